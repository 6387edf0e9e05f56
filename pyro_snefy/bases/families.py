r"""Bases of exponential families: with ``Exp(0.5)``, one neuron is a member of the family.

The families and the conditions on their weights are in Tsuchida, Ong and Sejdinovic,
arXiv:2305.13552. Log-partition functions are in Nielsen and Garcia, "Statistical exponential
families: A digest with flash cards", arXiv:0911.4863.
"""

__all__ = ["DirichletFamily", "GammaFamily", "NormalFamily", "PoissonFamily"]

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from ..numerics.rejection import poisson
from .base import check_dimension
from .engines import LaplaceBase


class NormalFamily(LaplaceBase):
    r"""Lebesgue measure on :math:`\mathbb{R}^d`, with :math:`t(x) = (x, x^2)`.

    .. math:: A(\eta, \theta) = \frac{1}{2} \sum_k
        \left(\log \frac{\pi}{-\theta_k} - \frac{\eta_k^2}{2 \theta_k}\right)

    The members are the normal laws with diagonal covariance. With ``Exp``, the quadratic weights
    (the last :math:`d` of a row) are negative.

    Arguments:
        d: The dimension.

    Example:
        >>> NormalFamily(2).statistic(torch.tensor([2.0, 3.0]))
        tensor([2., 3., 4., 9.])
    """

    support = constraints.real_vector

    def __init__(self, d: int) -> None:
        check_dimension(self, d, 1)
        super().__init__(Size(), Size((d,)), 2 * d)

    def natural_constraint(self, scale: float) -> Any:
        d = self.event_shape[0]
        blocks = [constraints.real, constraints.less_than(0.0)]
        return constraints.independent(constraints.cat(blocks, dim=-1, lengths=[d, d]), 1)

    def statistic(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.square()], dim=-1)

    def log_density(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[:-1])

    def columns(self, dims: Sequence[int]) -> list[int]:
        return [*dims, *(self.event_shape[0] + k for k in dims)]

    def marginal(self, dims: Sequence[int]) -> "NormalFamily":
        return NormalFamily(len(dims))

    def log_partition(self, eta: Tensor) -> Tensor:
        linear, quadratic = eta.chunk(2, dim=-1)
        terms = math.log(math.pi) - (-quadratic).log() - linear.square() / (2 * quadratic)
        return terms.sum(-1) / 2

    def member_moments(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        linear, quadratic = eta.chunk(2, dim=-1)
        return -linear / (2 * quadratic), torch.diag_embed(-0.5 / quadratic)

    def sample_member(self, eta: Tensor) -> Tensor:
        linear, quadratic = eta.chunk(2, dim=-1)
        variance = -0.5 / quadratic
        return linear * variance + variance.sqrt() * torch.randn_like(linear)


class GammaFamily(LaplaceBase):
    r"""Lebesgue measure on :math:`(0, \infty)`, with :math:`t(x) = (\log x, -x)`.

    .. math:: A(a, b) = \log \Gamma(a + 1) - (a + 1) \log b

    The members are the gamma laws. With ``Exp(s)``, a row of weights is above
    :math:`(-1 / 2s, 0)`.

    Example:
        >>> GammaFamily().statistic(torch.tensor(1.0))
        tensor([ 0., -1.])
    """

    support = constraints.positive

    def __init__(self) -> None:
        super().__init__(Size(), Size(), 2)

    def natural_constraint(self, scale: float) -> Any:
        blocks = [constraints.greater_than(-0.5 / scale), constraints.positive]
        return constraints.independent(constraints.cat(blocks, dim=-1, lengths=[1, 1]), 1)

    def example(self, like: Tensor) -> Tensor:
        return like.new_ones(())

    def statistic(self, x: Tensor) -> Tensor:
        return torch.stack([x.log(), -x], dim=-1)

    def log_density(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def log_partition(self, eta: Tensor) -> Tensor:
        shape, rate = eta.unbind(-1)
        return (shape + 1).lgamma() - (shape + 1) * rate.log()

    def member_moments(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        shape, rate = eta.split(1, dim=-1)
        mean = (shape + 1) / rate
        return mean, (mean / rate).unsqueeze(-1)

    def sample_member(self, eta: Tensor) -> Tensor:
        shape, rate = eta.unbind(-1)
        return torch.distributions.Gamma(shape + 1, rate, validate_args=False).sample()

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype).clamp(min=torch.finfo(dtype).tiny)


class DirichletFamily(LaplaceBase):
    r"""Lebesgue measure on the simplex in :math:`\mathbb{R}^d`, with :math:`t(x) = \log x`.

    .. math:: A(\eta) = \sum_k \log \Gamma(\eta_k + 1) - \log \Gamma\Big(\sum_k (\eta_k + 1)\Big)

    Densities are with respect to the first :math:`d - 1` coordinates. The members are the
    Dirichlet laws. With ``Exp(s)``, weights are above :math:`-1 / 2s`.

    Arguments:
        d: The number :math:`d \geq 2` of coordinates, which add up to one.

    Example:
        >>> DirichletFamily(3).event_shape
        torch.Size([3])
    """

    support = constraints.simplex

    def __init__(self, d: int) -> None:
        check_dimension(self, d, 2)
        super().__init__(Size(), Size((d,)), d)

    def natural_constraint(self, scale: float) -> Any:
        return constraints.independent(constraints.greater_than(-0.5 / scale), 1)

    def example(self, like: Tensor) -> Tensor:
        return like.new_full(self.event_shape, 1 / self.event_shape[0])

    def codimension(self, x: Tensor) -> int:
        return 1

    def statistic(self, x: Tensor) -> Tensor:
        # The boundary of the simplex has measure zero and infinite statistics.
        return x.clamp(min=torch.finfo(x.dtype).tiny).log()

    def log_density(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[:-1])

    def log_partition(self, eta: Tensor) -> Tensor:
        concentration = eta + 1
        return concentration.lgamma().sum(-1) - concentration.sum(-1).lgamma()

    def member_moments(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        concentration = eta + 1
        total = concentration.sum(-1, keepdim=True)
        mean = concentration / total
        spread = torch.diag_embed(mean) - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        return mean, spread / (total + 1).unsqueeze(-1)

    def sample_member(self, eta: Tensor) -> Tensor:
        return torch.distributions.Dirichlet(eta + 1, validate_args=False).sample()


class PoissonFamily(LaplaceBase):
    r"""Masses :math:`1 / x!` on :math:`0, 1, 2, \ldots`, with :math:`t(x) = x`.

    The members are the Poisson laws, with :math:`A(\eta) = e^\eta`.

    Example:
        >>> PoissonFamily().log_density(torch.tensor(2.0))
        tensor(-0.6931)
    """

    is_discrete = True
    support = constraints.nonnegative_integer

    def __init__(self) -> None:
        super().__init__(Size(), Size(), 1)

    def log_density(self, x: Tensor) -> Tensor:
        return -(x + 1).lgamma()

    def log_partition(self, eta: Tensor) -> Tensor:
        return eta.squeeze(-1).exp()

    def sample_member(self, eta: Tensor) -> Tensor:
        return poisson(eta.squeeze(-1).exp())
