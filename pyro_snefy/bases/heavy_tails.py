r"""Laws with heavier tails than the normal law."""

__all__ = ["StudentT"]

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from ..numerics.matern import matern
from .base import TensorField, TensorLike
from .elliptical import Elliptical
from .engines import Pairs


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
        half = self.df.double() / 2  # logarithms of gamma functions cancel
        constant = (half + d / 2).lgamma() - half.lgamma() - d / 2 * (half * 2 * math.pi).log()
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

    def characteristic_moment(self, omega: Tensor) -> tuple[None, Tensor]:
        # d 𝓜_p / d(s²) = -𝓜_{p-1} / 4 (p - 1).
        order = self.df.unsqueeze(-1) / 2 - 1
        slope = (order + 1) / order * matern(order, self._square(omega))
        return None, slope.unsqueeze(-1) * self.times_matrix(omega)

    def pair_characteristics(self, weight: Tensor) -> Pairs:
        # Both matrices are symmetric: their upper triangles are enough.
        n = weight.shape[-2]
        row, column = torch.triu_indices(n, n, device=weight.device)
        left, right = weight[..., row, :], weight[..., column, :]
        place = torch.zeros((n, n), dtype=torch.long, device=weight.device)
        place[row, column] = place[column, row] = torch.arange(len(row), device=weight.device)
        minus, plus = (self.characteristic(x)[0][..., place] for x in (left - right, left + right))
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
