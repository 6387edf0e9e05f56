r"""Gaussian bases."""

__all__ = ["Gaussian"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..numerics.linalg import lower_factor, rows_matmul
from .base import Partial, TensorLike, cutoff_exp
from .elliptical import Elliptical
from .engines import LaplaceBase, Pairs

LOG_ROOT = math.log(2 * math.pi) / 2  # of the square root of 2π


class Gaussian(Elliptical, LaplaceBase):
    r"""The normal law :math:`\mathcal{N}(m, C)` with :math:`t(x) = x`.

    .. math:: \varphi(\omega) = e^{-\omega^\top C \omega / 2}, \quad
        A(\eta) = \eta \cdot m + \tfrac{1}{2} \eta^\top C \eta

    It has the most closed forms: Table 1 of Tsuchida, Ong and Sejdinovic, arXiv:2305.13552.

    Arguments:
        loc: The mean :math:`m`, with shape :math:`(*, d)`.
        scale: The standard deviations, with shape :math:`(*, d)`; :math:`C` is diagonal.
        scale_tril: Instead of ``scale``, a lower Cholesky factor of :math:`C`, with shape
            :math:`(*, d, d)`.
        event_dim: With 0, every entry of ``loc`` is the mean of a scalar event.
        validate_args: Whether the tensors are checked.

    Example:
        >>> Gaussian(torch.zeros(3), torch.ones(3))
        Gaussian(loc: (3,), scale: (3,))
        >>> Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0).event_shape
        torch.Size([])
    """

    def __init__(
        self,
        loc: TensorLike,
        scale: TensorLike | None = None,
        *,
        scale_tril: TensorLike | None = None,
        event_dim: int = 1,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(loc, scale, scale_tril, event_dim, validate_args)

    def log_density(self, x: Tensor) -> Tensor:
        if self.scale_tril is not None:
            white, log_scale = self.standardize(x)
            return -(white.square() + math.log(2 * math.pi)).sum(-1) / 2 - log_scale
        assert self.scale is not None
        log_density = _log_normal(x, self.loc, self.scale)
        return log_density.sum(-1) if self.event_dim else log_density

    def covariance(self, like: Tensor) -> Tensor:
        return self.matrix()

    def characteristic(self, omega: Tensor) -> tuple[Tensor, None]:
        return cutoff_exp(-self.whiten(omega).square().sum(-1) / 2), None

    def characteristic_moment(self, omega: Tensor) -> tuple[None, Tensor]:
        real, _ = self.characteristic(omega)
        return None, real.unsqueeze(-1) * self.times_matrix(omega)

    deficit_cancels = False

    def deficit(self, omega: Tensor) -> tuple[Tensor, None]:
        return -torch.expm1(-self.whiten(omega).square().sum(-1) / 2), None

    def pair_deficits(self, weight: Tensor) -> Pairs:
        square, diagonal = self._split(weight)
        return (-torch.expm1(square - diagonal), None), (-torch.expm1(-square - diagonal), None)

    def log_partition(self, eta: Tensor) -> Tensor:
        mean = self.mean(eta).unsqueeze(-2)
        return (eta * mean).sum(-1) + self.whiten(eta).square().sum(-1) / 2

    def pair_log_partitions(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        square, diagonal = self._split(weight)
        shift = (weight * self.mean(weight).unsqueeze(-2)).sum(-1)
        return shift + square.diagonal(dim1=-2, dim2=-1), square - diagonal

    def member_moments(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(eta).unsqueeze(-2) + self.times_matrix(eta)
        return mean, self.covariance(eta).unsqueeze(-3).expand(mean.shape + mean.shape[-1:])

    def sample_member(self, eta: Tensor) -> Tensor:
        return self._event(torch.randn_like(eta) + self._white_rows(eta))

    def sample_square(self, weight: Tensor) -> Tensor:
        # Along the weight, the density ∝ u^2 exp(-u^2 / 2): u^2 is chi-squared with three degrees
        # of freedom.
        sign = torch.randint_like(weight[:, 0], 2) * 2 - 1
        normal = torch.randn((len(weight), 3), dtype=weight.dtype, device=weight.device)
        return self.sample_along(weight, sign * normal.norm(dim=-1))

    def sample_along(self, weight: Tensor, along: Tensor) -> Tensor:
        r"""Draws events given :math:`w \cdot (x - m)`.

        Arguments:
            weight: The weights, with shape :math:`(N, D)`.
            along: The given values in units of their standard deviation, with shape :math:`(N,)`.
        """
        white = self._white_rows(weight)
        norm = white.norm(dim=-1, keepdim=True)
        unit = white / torch.where(norm > 0, norm, 1.0)
        noise = torch.randn_like(weight)
        noise = noise + unit * (along.unsqueeze(-1) - (noise * unit).sum(-1, keepdim=True))
        return self._event(noise)

    def marginal(self, dims: Sequence[int]) -> "Gaussian":
        return Gaussian(**self._some(dims), validate_args=False)

    def conditional(self, dims: Sequence[int], values: Tensor) -> "Gaussian":
        return Gaussian(**self._given(dims, values), validate_args=False)

    def regression(self, dims: Sequence[int], like: Tensor) -> Tensor | None:
        return self._coefficients(dims)

    def partial(self, x: Tensor, observed: Tensor) -> Partial | None:
        if not self.event_dim:
            return super().partial(x, observed)
        if self.scale_tril is None:
            log_prob = _log_normal(x, self.loc, self._vector_scale())
            hidden = ~observed
            base = Gaussian(self.loc * hidden, self._vector_scale() * hidden, validate_args=False)
            log_density = torch.where(observed, log_prob, 0.0).sum(-1)
            return Partial(base, torch.where(observed, x, 0.0), None, log_density)
        # x - m = T e with a lower triangular T, observed coordinates first: they determine their
        # own e, and the other e stay standard normal. Masks in place of slices give all patterns
        # one size. Matrices have the shape (K, *, d, d), rows (K, R, *, d).
        axis = -2 - len(self.batch_shape)  # of R
        hidden = (~observed).squeeze(axis)
        hidden, order = hidden.to(x.dtype).sort(dim=-1, stable=True)
        place = order.argsort(-1).unsqueeze(-1)
        triangle = lower_factor(
            torch.take_along_dim(self.scale_tril.unsqueeze(0), order.unsqueeze(-1), -2)
        )
        factor = torch.take_along_dim(triangle, place, -2)  # its rows in the order of coordinates
        eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        own = torch.where(hidden.unsqueeze(-1) > 0, eye, triangle)
        inverse = torch.linalg.solve_triangular(own, eye, upper=False)
        inverse = torch.take_along_dim(inverse, place.mT, -1)
        known = (1 - hidden).unsqueeze(-1) * inverse  # from x - m to the e of what is observed
        known, factor = known.unsqueeze(axis - 1), factor.unsqueeze(axis - 1)
        hidden = hidden.unsqueeze(axis)
        offset = torch.where(observed, x - self.loc, 0.0)
        noise = rows_matmul(offset, known.mT)
        mean = torch.where(observed, x, self.loc + rows_matmul(noise, factor.mT))
        log_det = (own.diagonal(dim1=-2, dim2=-1).log()).sum(-1).unsqueeze(axis + 1)
        count = observed.sum(-1).to(x.dtype)
        log_density = -(noise.square().sum(-1) / 2 + count * LOG_ROOT) - log_det
        left = Gaussian(
            torch.zeros_like(self.loc),
            scale_tril=factor * hidden.unsqueeze(-2),
            validate_args=False,
        )
        return Partial(left, mean, None, log_density)

    def _split(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        # W C Wᵀ and (|w_i|^2 + |w_j|^2) / 2 in the metric of C; |w_i ± w_j|^2 / 2 is the second
        # plus or minus the first.
        square = self.quadratic(weight)
        norms = square.diagonal(dim1=-2, dim2=-1) / 2
        return square, norms.unsqueeze(-1) + norms.unsqueeze(-2)


def _log_normal(x: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    # With fewer operations than torch.distributions.Normal.
    white = (x - loc) / scale
    return torch.add(-LOG_ROOT - scale.log(), white * white, alpha=-0.5)
