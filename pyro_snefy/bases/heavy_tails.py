r"""Laws with heavier tails than the normal law."""

__all__ = ["Laplace", "Logistic", "StudentT"]

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from ..constraints import open_interval
from ..numerics.hypergeometric import log_hyp0f1
from ..numerics.matern import log_gamma_ratio, matern, matern_deficit
from ..numerics.rejection import rejection_by_row
from .base import TensorField, TensorLike, as_parameters
from .elliptical import Elliptical
from .engines import FourierBase, LaplaceBase, Pairs


class StudentT(Elliptical):
    r"""Student's law :math:`t_\nu(m, \Sigma)` with :math:`t(x) = x`.

    .. math:: \varphi(\omega) = \mathcal{M}_{\nu / 2}\big(\sqrt{\nu \omega^\top \Sigma \omega}\big),
        \quad \mathcal{M}_p(s) = \frac{2^{1 - p}}{\Gamma(p)} s^p K_p(s)

    It is elliptical: coordinates are dependent even where :math:`\Sigma` is diagonal. With
    ``Cos``, ``Sin`` and ``Cis`` a squared neural family has the tails of its base. With ``Snake``
    and ``Identity`` :math:`Z` is finite for :math:`\nu > 2` alone. The characteristic function is
    in Kotz and Nadarajah (2004), "Multivariate t-Distributions and Their Applications", section 2.

    Arguments:
        df: The degrees of freedom :math:`\nu > 0`, with shape :math:`(*)`.
        loc: The location :math:`m`, with shape :math:`(*, d)`.
        scale: The scales, with shape :math:`(*, d)`; :math:`\Sigma` is diagonal.
        scale_tril: Instead of ``scale``, a lower Cholesky factor of :math:`\Sigma`, with shape
            :math:`(*, d, d)`.
        event_dim: With 0, every entry of ``loc`` is the location of a scalar event.
        validate_args: Whether the tensors are checked.

    Example:
        >>> StudentT(3.0, torch.zeros(2), torch.ones(2))
        StudentT(df: (), loc: (2,), scale: (2,))
        >>> StudentT(3.0, 0.0, 1.0, event_dim=0).log_density(torch.tensor(0.0))
        tensor(-1.0009)
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "df": TensorField(constraints.positive),
        **Elliptical.tensor_fields,
    }
    df: Tensor

    def __init__(
        self,
        df: TensorLike,
        loc: TensorLike,
        scale: TensorLike | None = None,
        *,
        scale_tril: TensorLike | None = None,
        event_dim: int = 1,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(loc, scale, scale_tril, event_dim, validate_args, df=df)

    def finite_moments(self) -> Tensor:
        return self.df

    def log_density(self, x: Tensor) -> Tensor:
        white, log_scale = self.standardize(x)
        d = self.num_statistics
        half = self.df.double() / 2
        constant = log_gamma_ratio(half, d / 2) - d / 2 * (half * 2 * math.pi).log()
        square = white.square().sum(-1)
        return constant.to(x.dtype) - (self.df + d) / 2 * (square / self.df).log1p() - log_scale

    def covariance(self, like: Tensor) -> Tensor:
        finite = self.df > 2
        safe = torch.where(finite, self.df, 3.0)
        factor = torch.where(finite, safe / (safe - 2), torch.inf)
        matrix = self.matrix()
        return torch.where(matrix == 0, 0.0, factor[..., None, None] * matrix)

    def dispersion(self, like: Tensor) -> Tensor:
        return self.matrix()

    def _square(self, omega: Tensor) -> Tensor:
        return self.df.unsqueeze(-1) * self.whiten(omega).square().sum(-1)

    def characteristic(self, omega: Tensor) -> tuple[Tensor, None]:
        return matern(self.df.unsqueeze(-1) / 2, self._square(omega)), None

    # The deficit has its digits. Draws and tails of sines of tiny weights do not: they are refused.
    deficit_cancels = True

    def deficit(self, omega: Tensor) -> tuple[Tensor, None]:
        return matern_deficit(self.df.unsqueeze(-1) / 2, self._square(omega)), None

    def characteristic_moment(self, omega: Tensor) -> tuple[None, Tensor]:
        # d 𝓜_p / d(s²) = -𝓜_{p-1} / 4 (p - 1).
        order = self.df.unsqueeze(-1) / 2 - 1
        slope = (order + 1) / order * matern(order, self._square(omega))
        return None, slope.unsqueeze(-1) * self.times_matrix(omega)

    def pair_deficits(self, weight: Tensor) -> Pairs:
        # Both matrices are symmetric: their upper triangles are enough.
        n = weight.shape[-2]
        row, column = torch.triu_indices(n, n, device=weight.device)
        left, right = weight[..., row, :], weight[..., column, :]
        place = torch.zeros((n, n), dtype=torch.long, device=weight.device)
        place[row, column] = place[column, row] = torch.arange(len(row), device=weight.device)
        minus, plus = (self.deficit(x)[0][..., place] for x in (left - right, left + right))
        return (minus, None), (plus, None)

    def sample_member(self, eta: Tensor) -> Tensor:
        return self._event(torch.randn_like(eta) * self._stretch(self.df / 2, eta))

    def sample_square(self, weight: Tensor) -> Tensor:
        # e = z √(ν / 2g) with g ~ Gamma(ν/2). The factor (w · e)² tilts the normal z along the
        # weight, where z² becomes chi-squared with three degrees of freedom, and g to ν/2 - 1.
        white = self._white_rows(weight)
        norm = white.norm(dim=-1, keepdim=True)
        unit = white / torch.where(norm > 0, norm, 1.0)
        noise, more = torch.randn_like(weight), torch.randn_like(weight[:, :2].expand(-1, 2))
        along = (noise * unit).sum(-1, keepdim=True)
        longer = (along.square() + more.square().sum(-1, keepdim=True)).sqrt().copysign(along)
        noise = noise + unit * (longer - along)
        return self._event(noise * self._stretch(self.df / 2 - 1, weight))

    def _stretch(self, shape: Tensor, rows: Tensor) -> Tensor:
        # √(ν / 2g), one for each row, (N, 1).
        half = self.df.expand(len(rows)) / 2
        gamma = torch.distributions.Gamma(shape.expand(len(rows)), 1.0, validate_args=False)
        return (half / gamma.sample()).sqrt().unsqueeze(-1)

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        largest = torch.finfo(dtype).max
        return x.clamp(-largest, largest).to(dtype)

    def marginal(self, dims: Sequence[int]) -> "StudentT":
        return StudentT(self.df, **self._some(dims), validate_args=False)

    def conditional(self, dims: Sequence[int], values: Tensor) -> "StudentT":
        # With δ the squared distance of the values, Σ_{2|1} grows by (ν + δ) / (ν + d_1).
        white, _ = self.marginal(dims).standardize(values)
        df = self.df + len(dims)
        stretch = ((self.df + white.square().sum(-1)) / df).sqrt()
        given = self._given(dims, values)
        if "scale" in given:
            given["scale"] = given["scale"] * stretch.unsqueeze(-1)
        else:
            given["scale_tril"] = given["scale_tril"] * stretch[..., None, None]
        return StudentT(df, **given, validate_args=False)

    def regression(self, dims: Sequence[int], like: Tensor) -> Tensor | None:
        raise NotImplementedError(f"The values of some coordinates of {self} scale the others.")


class _LocationScale(FourierBase, LaplaceBase):
    # A symmetric law on the reals with a location and a scale, and tails e^{-|x - m| / s}.
    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "loc": TensorField(constraints.real),
        "scale": TensorField(constraints.positive),
    }
    support = constraints.real

    def __init__(
        self, loc: TensorLike, scale: TensorLike, *, validate_args: bool | None = None
    ) -> None:
        batch, (self.loc, self.scale) = as_parameters(self, loc=(loc, ""), scale=(scale, ""))
        super().__init__(batch, Size(), 1, validate_args)

    def natural_constraint(self, scale: float) -> Any:
        bound = 0.5 / (scale * self.scale[..., None, None])
        return constraints.independent(open_interval(-bound, bound), 1)

    def mean(self, like: Tensor) -> Tensor:
        return self.loc.unsqueeze(-1)

    def _scaled(self, rows: Tensor) -> Tensor:
        # Frequencies or natural parameters of (x - m) / s, from (*, E, 1) to (*, E).
        return rows.squeeze(-1) * self.scale.unsqueeze(-1)

    def _shift(self, eta: Tensor) -> Tensor:
        return eta.squeeze(-1) * self.loc.unsqueeze(-1)


class Laplace(_LocationScale):
    r"""The law :math:`e^{-|x - m| / s} / 2s` of Laplace, with :math:`t(x) = x`.

    .. math:: \varphi(\omega) = \frac{1}{1 + s^2 \omega^2}, \quad
        A(\eta) = \eta m - \log(1 - s^2 \eta^2)

    With ``Exp(c)``, weights are between :math:`\pm 1 / 2 c s`.

    Arguments:
        loc: The location :math:`m`, with shape :math:`(*)`.
        scale: The scale :math:`s`, with shape :math:`(*)`.
        validate_args: Whether the tensors are checked.

    Example:
        >>> Laplace(0.0, 1.0).log_density(torch.tensor(0.0))
        tensor(-0.6931)
    """

    def log_density(self, x: Tensor) -> Tensor:
        return -(x - self.loc).abs() / self.scale - (2 * self.scale).log()

    def covariance(self, like: Tensor) -> Tensor:
        return 2 * self.scale.square()[..., None, None]

    def characteristic(self, omega: Tensor) -> tuple[Tensor, None]:
        return 1 / (1 + self._scaled(omega).square()), None

    deficit_cancels = False

    def deficit(self, omega: Tensor) -> tuple[Tensor, None]:
        square = self._scaled(omega).square()
        return square / (1 + square), None

    def characteristic_moment(self, omega: Tensor) -> tuple[None, Tensor]:
        scaled = self._scaled(omega)
        slope = 2 * self.scale.unsqueeze(-1) * scaled / (1 + scaled.square()).square()
        return None, slope.unsqueeze(-1)

    def log_partition(self, eta: Tensor) -> Tensor:
        return self._shift(eta) - (-self._scaled(eta).square()).log1p()

    def sample_member(self, eta: Tensor) -> Tensor:
        # Exponential on either side of m, with different rates.
        tilt = self.scale * eta.squeeze(-1)
        size = torch.empty_like(tilt).exponential_()
        right = 2 * torch.rand_like(tilt) < 1 + tilt
        return self.loc + self.scale * torch.where(right, size / (1 - tilt), -size / (1 + tilt))

    def sample_square(self, weight: Tensor) -> Tensor:
        size = torch.empty((len(weight), 3), dtype=weight.dtype, device=weight.device)
        size = size.exponential_().sum(-1)  # a gamma variable of shape 3
        return self.loc + self.scale * torch.where(torch.rand_like(size) < 0.5, size, -size)


class Logistic(_LocationScale):
    r"""The logistic law :math:`1 / 4 s \cosh^2((x - m) / 2s)`, with :math:`t(x) = x`.

    .. math:: \varphi(\omega) = \frac{\pi s \omega}{\sinh \pi s \omega}, \quad
        A(\eta) = \eta m + \log \Gamma(1 + s \eta) + \log \Gamma(1 - s \eta)

    With ``Exp(c)``, weights are between :math:`\pm 1 / 2 c s`.

    Arguments:
        loc: The location :math:`m`, with shape :math:`(*)`.
        scale: The scale :math:`s`, with shape :math:`(*)`.
        validate_args: Whether the tensors are checked.

    Example:
        >>> Logistic(0.0, 1.0).log_density(torch.tensor(0.0))
        tensor(-1.3863)
    """

    def log_density(self, x: Tensor) -> Tensor:
        size = ((x - self.loc) / self.scale).abs()
        return -size - 2 * (-size).exp().log1p() - self.scale.log()

    def covariance(self, like: Tensor) -> Tensor:
        return (math.pi * self.scale).square()[..., None, None] / 3

    def characteristic(self, omega: Tensor) -> tuple[Tensor, None]:
        # sinh(y) / y = 0F1(3/2; y^2 / 4), which is smooth in y^2 with all its derivatives.
        return (-log_hyp0f1(1.5, (math.pi * self._scaled(omega)).square())).exp(), None

    deficit_cancels = False

    def deficit(self, omega: Tensor) -> tuple[Tensor, None]:
        return -(-log_hyp0f1(1.5, (math.pi * self._scaled(omega)).square())).expm1(), None

    def characteristic_moment(self, omega: Tensor) -> tuple[None, Tensor]:
        scaled = math.pi * self._scaled(omega)
        square = scaled.square()
        slope = (log_hyp0f1(2.5, square) - 2 * log_hyp0f1(1.5, square)).exp() / 3
        return None, (math.pi * self.scale.unsqueeze(-1) * scaled * slope).unsqueeze(-1)

    def log_partition(self, eta: Tensor) -> Tensor:
        tilt = self._scaled(eta)
        return self._shift(eta) + (1 + tilt).lgamma() + (1 - tilt).lgamma()

    def sample_member(self, eta: Tensor) -> Tensor:
        # The logistic function of (x - m) / s follows a beta law: a ratio of gamma variables.
        tilt = self.scale * eta.squeeze(-1)
        ratio = _log_gamma_variable(1 + tilt) - _log_gamma_variable(1 - tilt)
        return self.loc + self.scale * ratio

    def sample_square(self, weight: Tensor) -> Tensor:
        # u^2 e^{-u} / (1 + e^{-u})^2 is below a gamma density of shape 3: 82 % are accepted.
        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            size = torch.empty((len(rows), 3), dtype=weight.dtype, device=weight.device)
            size = size.exponential_().sum(-1)
            kept = torch.rand_like(size) * (1 + (-size).exp()).square() <= 1
            return torch.where(torch.rand_like(size) < 0.5, size, -size), kept

        return self.loc + self.scale * rejection_by_row(propose, weight)


def _log_gamma_variable(shape: Tensor) -> Tensor:
    # G_a = G_{a+1} U^{1/a}: the logarithm is finite where a tiny shape would underflow.
    more = torch.distributions.Gamma(shape + 1, 1.0, validate_args=False).sample()
    return more.log() - torch.empty_like(shape).exponential_() / shape
