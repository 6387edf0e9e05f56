r"""The uniform law on the sphere, and the normal law seen through directions."""

__all__ = ["ProjectedGaussian", "UniformAngle", "UniformSphere"]

import math
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Beta, constraints

from ..constraints import unit_sphere
from ..numerics.hypergeometric import hyp0f1_deficit, hyp0f1_oscillating, log_hyp0f1
from ..numerics.rejection import rejection_by_row
from .base import check_dimension
from .engines import FourierBase, LaplaceBase
from .pushforward import Pushforward


class UniformSphere(FourierBase, LaplaceBase):
    r"""The uniform law on the unit sphere in :math:`\mathbb{R}^d`, with :math:`t(x) = x`.

    .. math:: \mu(x) = \frac{\Gamma(d/2)}{2 \pi^{d/2}}, \quad
        \varphi(\omega) = {}_0F_1(d/2; -\|\omega\|^2 / 4), \quad
        A(\eta) = \log {}_0F_1(d/2; \|\eta\|^2 / 4)

    Densities are with respect to surface measure. With ``Exp``, the members are the laws of von
    Mises and Fisher (Tsuchida, Ong and Sejdinovic, arXiv:2305.13552; Mardia and Jupp 2000).

    Arguments:
        d: The dimension :math:`d \geq 2` of the space around the sphere.

    Example:
        >>> UniformSphere(3).log_density(torch.tensor([0.0, 0.0, 1.0]))
        tensor(-2.5310)
    """

    support: Any = unit_sphere

    def __init__(self, d: int) -> None:
        check_dimension(self, d, 2)
        super().__init__(Size(), Size((d,)), d)

    def example(self, like: Tensor) -> Tensor:
        return like.new_full(self.event_shape, self.num_statistics**-0.5)

    def codimension(self, x: Tensor) -> int:
        return 1

    def log_density(self, x: Tensor) -> Tensor:
        half = self.num_statistics / 2
        log_area = math.log(2) + half * math.log(math.pi) - math.lgamma(half)
        return x.new_full(x.shape[:-1], -log_area)

    def mean(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.num_statistics)

    def covariance(self, like: Tensor) -> Tensor:
        d = self.num_statistics
        return torch.eye(d, dtype=like.dtype, device=like.device) / d

    def characteristic(self, omega: Tensor) -> tuple[Tensor, None]:
        return hyp0f1_oscillating(self.num_statistics / 2, omega.square().sum(-1)), None

    deficit_cancels = False

    def deficit(self, omega: Tensor) -> tuple[Tensor, None]:
        return hyp0f1_deficit(self.num_statistics / 2, omega.square().sum(-1)), None

    def characteristic_moment(self, omega: Tensor) -> tuple[None, Tensor]:
        d = self.num_statistics
        slope = hyp0f1_oscillating(d / 2 + 1, omega.square().sum(-1)) / d
        return None, omega * slope.unsqueeze(-1)

    def log_partition(self, eta: Tensor) -> Tensor:
        return log_hyp0f1(self.num_statistics / 2, eta.square().sum(-1))

    def sample_member(self, eta: Tensor) -> Tensor:
        # The cosine to the axis of a von Mises-Fisher law, by rejection: Wood (1994), "Simulation
        # of the von Mises Fisher distribution". Here b = (1 - x0) / (1 + x0).
        other = self.num_statistics - 1
        kappa = eta.norm(dim=-1)
        b = other / (2 * kappa + (4 * kappa.square() + other**2).sqrt())
        x0 = (1 - b) / (1 + b)
        # 1 - x0^2 = 4 b / (1 + b)^2, without cancellation where the law is concentrated.
        c = kappa * x0 + other * (4 * b / (1 + b).square()).log()
        beta = Beta(*(eta.new_tensor(other / 2),) * 2, validate_args=False)

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            z, ratio = beta.sample(rows.shape), b[rows]
            cosine = (1 - (1 + ratio) * z) / (1 - (1 - ratio) * z)
            log_acceptance = (
                kappa[rows] * cosine + other * torch.log1p(-x0[rows] * cosine) - c[rows]
            )
            return cosine, log_acceptance >= torch.rand_like(cosine).log()

        return _around(eta, rejection_by_row(propose, eta))

    def sample_square(self, weight: Tensor) -> Tensor:
        sign = torch.randint_like(weight[:, 0], 2) * 2 - 1
        return self.sample_power(weight, 2, sign)

    def sample_power(self, weight: Tensor, power: int, sign: Tensor) -> Tensor:
        r"""Draws from the law :math:`\propto |w \cdot x|^p`, on one side of the equator.

        The squared cosine of :math:`x` and :math:`w` follows
        :math:`\mathrm{Beta}((p + 1) / 2, (d - 1) / 2)`.

        Arguments:
            weight: The weights, with shape :math:`(N, d)`.
            power: The power :math:`p`.
            sign: The sign of :math:`w \cdot x`, with shape :math:`(N,)`.
        """
        first, second = (power + 1) / 2, (self.num_statistics - 1) / 2
        square = Beta(weight.new_tensor(first), weight.new_tensor(second), validate_args=False)
        return _around(weight, sign * square.sample(sign.shape).sqrt())


def _around(axis: Tensor, cosine: Tensor) -> Tensor:
    # Points of the sphere with given cosines to an axis, uniform around the axis.
    norm = axis.norm(dim=-1, keepdim=True)
    pole = torch.zeros_like(axis)
    pole[..., 0] = 1.0
    axis = torch.where(norm > 0, axis / torch.where(norm > 0, norm, 1.0), pole)
    noise = torch.randn_like(axis)
    across = noise - axis * (noise * axis).sum(-1, keepdim=True)
    across = torch.nn.functional.normalize(across, dim=-1, eps=torch.finfo(axis.dtype).tiny)
    cosine = cosine.unsqueeze(-1)
    sine = (1 - cosine.square()).clamp(min=0).sqrt()
    return cosine * axis + sine * across


class UniformAngle(UniformSphere):
    r"""The uniform law of an angle, with :math:`t(\theta) = (\cos \theta, \sin \theta)`.

    .. math:: \mu(\theta) = \frac{1}{2 \pi}, \quad -\pi \leq \theta < \pi

    The statistic is uniform on the circle: kernels are the ones of ``UniformSphere(2)``. With
    ``Exp``, the members are the laws of von Mises (Mardia and Jupp 2000).

    Example:
        >>> UniformAngle().statistic(torch.tensor(0.0))
        tensor([1., 0.])
    """

    support = constraints.half_open_interval(-math.pi, math.pi)

    def __init__(self) -> None:
        super(UniformSphere, self).__init__(Size(), Size(), 2)

    def example(self, like: Tensor) -> Tensor:
        return like.new_zeros(())

    def codimension(self, x: Tensor) -> int:
        return 0

    def statistic(self, x: Tensor) -> Tensor:
        return torch.stack([x.cos(), x.sin()], dim=-1)

    def log_density(self, x: Tensor) -> Tensor:
        return torch.full_like(x, -math.log(2 * math.pi))

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        largest = math.pi * (1 - torch.finfo(dtype).eps)
        return x.to(dtype).clamp(-largest, largest)

    def sample_member(self, eta: Tensor) -> Tensor:
        return _angle(super().sample_member(eta))

    def sample_power(self, weight: Tensor, power: int, sign: Tensor) -> Tensor:
        return _angle(super().sample_power(weight, power, sign))


def _angle(x: Tensor) -> Tensor:
    return torch.atan2(x[..., 1], x[..., 0])


class ProjectedGaussian(Pushforward):
    r"""The standard normal law on :math:`\mathbb{R}^d`, with :math:`t(x) = x / \|x\|`.

    The statistic is uniform on the sphere, and independent of :math:`\|x\|` (Tsuchida, Ong and
    Sejdinovic, arXiv:2305.13552).

    Arguments:
        d: The dimension :math:`d \geq 2`.

    Example:
        >>> ProjectedGaussian(2).statistic(torch.tensor([3.0, 4.0]))
        tensor([0.6000, 0.8000])
    """

    support = constraints.real_vector
    latent_kind = UniformSphere

    def __init__(self, d: int) -> None:
        check_dimension(self, d, 2)
        super().__init__(Size(), Size((d,)), d)

    def example(self, like: Tensor) -> Tensor:
        return like.new_ones(self.event_shape)

    def statistic(self, x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(x, dim=-1, eps=torch.finfo(x.dtype).tiny)

    def log_density(self, x: Tensor) -> Tensor:
        d = self.num_statistics
        return -(x.square().sum(-1) + d * math.log(2 * math.pi)) / 2

    def latent(self, like: Tensor) -> UniformSphere:
        return UniformSphere(self.num_statistics)

    def event(self, latent: Tensor) -> Tensor:
        # A direction times an independent radius, which is drawn here.
        return latent * torch.randn_like(latent).norm(dim=-1, keepdim=True)
