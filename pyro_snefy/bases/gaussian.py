r"""Gaussian bases."""

__all__ = ["Gaussian"]

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from ..numerics.linalg import rows_matmul, take
from .base import Partial, TensorField, TensorLike, as_parameters, cutoff_exp
from .engines import FourierBase, LaplaceBase, Pairs

LOG_ROOT = math.log(2 * math.pi) / 2  # of the square root of 2π


class Gaussian(FourierBase, LaplaceBase):
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

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "loc": TensorField(constraints.real, per_event=True),
        "scale": TensorField(constraints.positive, per_event=True),
        "scale_tril": TensorField(constraints.lower_cholesky, rank=2),
    }

    def __init__(
        self,
        loc: TensorLike,
        scale: TensorLike | None = None,
        *,
        scale_tril: TensorLike | None = None,
        event_dim: int = 1,
        validate_args: bool | None = None,
    ) -> None:
        if (scale is None) == (scale_tril is None):
            raise ValueError("Gaussian: expected exactly one of scale and scale_tril.")
        if event_dim not in (0, 1):
            raise ValueError(f"Gaussian: expected event_dim 0 or 1, got {event_dim}.")
        if event_dim == 0 and scale_tril is not None:
            raise ValueError("Gaussian: expected scale, not scale_tril, for a scalar event.")
        if event_dim and not torch.as_tensor(loc).dim():
            raise ValueError(
                "Gaussian: expected loc with shape (*, d), got (); scalar events need event_dim=0."
            )
        letters = "d" * event_dim
        self.scale: Tensor | None = None
        self.scale_tril: Tensor | None = None
        if scale is not None:
            given = {"loc": (loc, letters), "scale": (scale, letters)}
            shape, (self.loc, self.scale) = as_parameters(self, **given)
        elif scale_tril is not None:
            given = {"loc": (loc, letters), "scale_tril": (scale_tril, "dd")}
            shape, (self.loc, self.scale_tril) = as_parameters(self, **given)
            found = tuple(self.scale_tril.shape)
            if found[-2:] != 2 * tuple(shape[-2:-1]):
                raise ValueError(
                    f"Gaussian: expected scale_tril with shape (*, d, d) to match loc with shape "
                    f"{tuple(self.loc.shape)}, got {found}."
                )
            shape = shape[:-1]
        batch, event = shape[: len(shape) - event_dim], shape[len(shape) - event_dim :]
        super().__init__(batch, event, event[0] if event_dim else 1, validate_args)

    @property
    def support(self) -> Any:
        return constraints.real_vector if self.event_dim else constraints.real

    def log_density(self, x: Tensor) -> Tensor:
        if self.scale_tril is not None:
            # One inverse for all events. torch's MultivariateNormal loses precision in traces of
            # torch.jit, where a size is a tensor and its product with a number is in float32.
            eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
            inverse = torch.linalg.solve_triangular(self.scale_tril, eye, upper=False)
            white = rows_matmul(x - self.loc, inverse.mT)
            log_scale = self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            return -(white.square() + math.log(2 * math.pi)).sum(-1) / 2 - log_scale
        assert self.scale is not None
        log_density = _log_normal(x, self.loc, self.scale)
        return log_density.sum(-1) if self.event_dim else log_density

    def mean(self, like: Tensor) -> Tensor:
        return self._vector(self.loc)

    def _vector(self, x: Tensor) -> Tensor:
        # With shape (*, D), where one number may stand for all coordinates.
        x = x if self.event_dim else x.unsqueeze(-1)
        d = self.num_statistics
        return x if x.shape[-1] == d else x.expand((*x.shape[:-1], d))

    @property
    def factor(self) -> Tensor:
        r"""The factor :math:`L` of :math:`C = L L^\top`, :math:`(*, d, d)`, or its diagonal."""
        return self._vector_scale() if self.scale_tril is None else self.scale_tril

    def covariance(self, like: Tensor) -> Tensor:
        if self.scale_tril is not None:
            return self.scale_tril @ self.scale_tril.mT
        return torch.diag_embed(self._vector_scale().square())

    def whiten(self, weight: Tensor) -> Tensor:
        r"""The weights :math:`W L` on a standard normal, where :math:`L L^\top = C`."""
        if self.scale_tril is not None:
            return weight @ self.scale_tril
        return weight * self._vector_scale().unsqueeze(-2)

    def quadratic(self, weight: Tensor) -> Tensor:
        r"""The covariance :math:`W C W^\top` of preactivations, with shape :math:`(*, n, n)`."""
        white = self.whiten(weight)
        return white @ white.mT

    def characteristic(self, omega: Tensor) -> tuple[Tensor, None]:
        return cutoff_exp(-self.whiten(omega).square().sum(-1) / 2), None

    def characteristic_moment(self, omega: Tensor) -> tuple[None, Tensor]:
        real, _ = self.characteristic(omega)
        return None, real.unsqueeze(-1) * self._times_covariance(omega)

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
        mean = self.mean(eta).unsqueeze(-2) + self._times_covariance(eta)
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

    def _white_rows(self, rows: Tensor) -> Tensor:
        return self.whiten(rows.unsqueeze(-2)).squeeze(-2)  # (N, D)

    def _event(self, noise: Tensor) -> Tensor:
        # The event m + L e, for noise e with shape (N, D).
        if self.scale_tril is not None:
            return self.loc + rows_matmul(noise, self.scale_tril.mT)
        x = self.mean(noise) + noise * self._vector_scale()
        return x if self.event_dim else x.squeeze(-1)

    def marginal(self, dims: Sequence[int]) -> "Gaussian":
        if self.scale_tril is None:
            loc, scale = self.loc, self._vector_scale()
            if loc.shape != scale.shape:
                loc, scale = torch.broadcast_tensors(loc, scale)
            return Gaussian(take(loc, dims), take(scale, dims), validate_args=False)
        factor = torch.linalg.cholesky(self.covariance(self.loc)[..., dims, :][..., dims])
        return Gaussian(self.loc[..., dims], scale_tril=factor, validate_args=False)

    def conditional(self, dims: Sequence[int], values: Tensor) -> "Gaussian":
        others = self.others(dims)
        matrix = self.regression(dims, values)
        if matrix is None:
            return self.marginal(others)
        covariance = self.covariance(values)[..., others, :]
        covariance = covariance[..., others] - covariance[..., dims] @ matrix.mT
        loc = self.loc[..., others] + rows_matmul(values - self.loc[..., dims], matrix.mT)
        return Gaussian(loc, scale_tril=torch.linalg.cholesky(covariance), validate_args=False)

    def regression(self, dims: Sequence[int], like: Tensor) -> Tensor | None:
        if self.scale_tril is None:
            return None
        covariance = self.covariance(like)[..., dims, :]  # (*, D_1, D)
        factor = torch.linalg.cholesky(covariance[..., dims])
        return torch.cholesky_solve(covariance[..., self.others(dims)], factor).mT

    def partial(self, x: Tensor, observed: Tensor) -> Partial | None:
        if not self.event_dim:
            return super().partial(x, observed)
        if self.scale_tril is None:
            log_prob = _log_normal(x, self.loc, self._vector_scale())
            hidden = ~observed
            base = Gaussian(self.loc * hidden, self._vector_scale() * hidden, validate_args=False)
            log_density = torch.where(observed, log_prob, 0.0).sum(-1)
            return Partial(base, torch.where(observed, x, 0.0), None, log_density)
        # Masks in place of slices, so that all patterns have one size. In matrices of observed
        # coordinates, rows and columns that are not observed are replaced by the identity.
        known = observed.to(x.dtype)  # (K, 1, d)
        eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        both = known.mT * known  # (K, d, d)
        covariance = self.covariance(x)
        factor = torch.linalg.cholesky(both * covariance + torch.diag_embed(1 - known[..., 0, :]))
        offset = torch.where(observed, x - self.loc, 0.0)  # (K, R, d)
        solved = torch.cholesky_solve(offset.mT, factor).mT
        mean = torch.where(observed, x, self.loc + solved @ covariance)
        reduction = torch.cholesky_solve(known.mT * covariance, factor)
        unknown = (1 - known).mT * (1 - known)
        left = unknown * (covariance - (covariance * known) @ reduction)
        spread = torch.linalg.cholesky(left + both * eye) * (1 - known).mT
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (K,)
        square = (offset * solved).sum(-1) + known.sum(-1) * math.log(2 * math.pi)
        zeros = torch.zeros_like(self.loc)
        base = Gaussian(zeros, scale_tril=spread.unsqueeze(-3), validate_args=False)
        return Partial(base, mean, None, -square / 2 - log_det.unsqueeze(-1))

    def _split(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        # W C Wᵀ and (|w_i|^2 + |w_j|^2) / 2 in the metric of C; |w_i ± w_j|^2 / 2 is the second
        # plus or minus the first.
        square = self.quadratic(weight)
        norms = square.diagonal(dim1=-2, dim2=-1) / 2
        return square, norms.unsqueeze(-1) + norms.unsqueeze(-2)

    def _times_covariance(self, rows: Tensor) -> Tensor:
        if self.scale_tril is not None:
            return rows @ self.scale_tril @ self.scale_tril.mT
        return rows * self._vector_scale().square().unsqueeze(-2)

    def _vector_scale(self) -> Tensor:
        assert self.scale is not None
        return self._vector(self.scale)


def _log_normal(x: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    # With fewer operations than torch.distributions.Normal.
    white = (x - loc) / scale
    return torch.add(-LOG_ROOT - scale.log(), white * white, alpha=-0.5)
