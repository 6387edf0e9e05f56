r"""Bases whose statistic follows the law of another base."""

__all__ = ["Pushforward", "Standardized", "UniformCube"]

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Size, Tensor
from torch.distributions import constraints

from ..activations import Activation
from ..constraints import REALS
from ..numerics.linalg import broadcast_shapes
from .base import Base, Partial, TensorField, TensorLike, as_parameters, check_dimension
from .gaussian import Gaussian


class Pushforward(Base):
    r"""A base whose statistic :math:`t(x)` follows the law of another base, the latent one.

    Kernels and samplers work on the latent base; :meth:`event` maps its events back.

    A subclass must supply :meth:`latent` and :meth:`event`, besides what every
    :class:`~pyro_snefy.bases.Base` supplies, and :meth:`to_latent` where an event of this base
    determines the latent event.

    Example:
        >>> UniformCube(2).latent(torch.zeros(()))
        Gaussian(loc: (2,), scale: (2,))
    """

    latent_kind: ClassVar[type[Base]] = Base  # of the latent base, if it is always the same

    def parts(self) -> tuple[Base, ...]:
        return self.latent(torch.empty(0)).parts()

    def latent(self, like: Tensor) -> Any:
        r"""The latent base, whose statistics have the law of :math:`t(x)`.

        Arguments:
            like: A tensor with the dtype and device that the latent base gets.
        """
        raise NotImplementedError

    def event(self, latent: Tensor) -> Tensor:
        """The events of this base, from events of the latent base.

        Arguments:
            latent: Events of the latent base.
        """
        raise NotImplementedError

    def to_latent(self, x: Tensor) -> Tensor:
        r"""The latent events, from events of this base.

        Arguments:
            x: The events, with shape :math:`(*, \text{event})`.
        """
        raise NotImplementedError(f"{self} has no coordinates of its own.")


class UniformCube(Pushforward):
    r"""The uniform law on :math:`[0, 1]^d`, with :math:`t(x) = \Phi^{-1}(x)`.

    The statistic is standard normal, so that every kernel of a Gaussian base holds here
    (Tsuchida, Ong and Sejdinovic, arXiv:2305.13552).

    Arguments:
        d: The dimension.

    Example:
        >>> UniformCube(2).statistic(torch.tensor([0.5, 0.5]))
        tensor([0., 0.])
    """

    support = constraints.independent(constraints.unit_interval, 1)
    latent_kind = Gaussian

    def __init__(self, d: int) -> None:
        check_dimension(self, d, 1)
        super().__init__(Size(), Size((d,)), d)

    def example(self, like: Tensor) -> Tensor:
        return like.new_full(self.event_shape, 0.5)

    def statistic(self, x: Tensor) -> Tensor:
        # The faces of the cube have measure zero and infinite statistics. Points on them are
        # moved to the nearest floating-point number inside.
        info = torch.finfo(x.dtype)
        return torch.special.ndtri(x.clamp(min=info.tiny, max=1 - info.eps / 2))

    def log_density(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[:-1])

    def latent(self, like: Tensor) -> Gaussian:
        zeros = like.new_zeros(self.event_shape)
        return Gaussian(zeros, torch.ones_like(zeros), validate_args=False)

    def event(self, latent: Tensor) -> Tensor:
        # Φ by erfc, which is accurate in the lower tail; torch's ndtr is zero below -9.
        return torch.special.erfc(latent * -math.sqrt(0.5)) / 2

    def to_latent(self, x: Tensor) -> Tensor:
        return self.statistic(x)

    def member_moments(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean and covariance of :math:`x` under the members :math:`\propto e^{\eta \cdot t}`.

        Under a member, :math:`t` is normal with the mean :math:`\eta`. With
        :math:`h = \eta / \sqrt{2}`, :math:`\mathbb{E}[x] = \Phi(h)` and
        :math:`\mathbb{E}[x^2] = \Phi(h) - 2 T(h, 1 / \sqrt{3})`, with the function of Owen (1956).

        Arguments:
            eta: The natural parameters, with shape :math:`(*, E, d)`.
        """
        nodes, weights = (
            torch.as_tensor(x, dtype=eta.dtype, device=eta.device)
            for x in np.polynomial.legendre.leggauss(32)
        )
        square = 1 + (nodes + 1).square() / 12  # 1 + u², for u between 0 and 1 / √3
        powers = (-eta.square().unsqueeze(-1) * square / 4).exp()
        owen = powers @ (weights / square) / (4 * math.pi * math.sqrt(3))
        mean = self.event(eta / math.sqrt(2))
        return mean, torch.diag_embed(mean * (1 - mean) - 2 * owen)

    def marginal(self, dims: Sequence[int]) -> "UniformCube":
        return UniformCube(len(dims))

    def partial(self, x: Tensor, observed: Tensor) -> Partial:
        statistic = torch.where(observed, self.statistic(x), 0.0)
        return Partial(self, statistic, ~observed, x.new_zeros(x.shape[:-1]))


class Standardized(Pushforward):
    r"""A base moved and stretched: :math:`(x - l) / s` follows the given base.

    .. math:: t(x) = t_0\left(\frac{x - l}{s}\right), \quad
        \mu(x) = \frac{1}{\prod_k s_k} \mu_0\left(\frac{x - l}{s}\right)

    The law of the statistic does not depend on :math:`l` and :math:`s`, so that one kernel serves
    a whole batch of locations and scales.

    Arguments:
        base: The base :math:`\mu_0` with :math:`t_0`, on the reals or on real vectors.
        loc: The location :math:`l`, with shape :math:`(*, \text{event})`.
        scale: The scale :math:`s > 0`, with shape :math:`(*, \text{event})`.
        validate_args: Whether the tensors are checked.

    Example:
        >>> from pyro_snefy.bases import Gaussian
        >>> base = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
        >>> Standardized(base, torch.zeros(5), torch.ones(5)).batch_shape
        torch.Size([5])
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "loc": TensorField(constraints.real, per_event=True),
        "scale": TensorField(constraints.positive, per_event=True),
    }
    base_fields = ("base",)

    def __init__(
        self, base: Base, loc: TensorLike, scale: TensorLike, *, validate_args: bool | None = None
    ) -> None:
        if base.support not in REALS:
            raise ValueError(
                f"Standardized: expected a base on the reals or real vectors, got {base}."
            )
        event, letters = base.event_shape, "d" * base.event_dim
        given = {"loc": (loc, letters), "scale": (scale, letters)}
        shape, (self.loc, self.scale) = as_parameters(self, **given)
        if shape[len(shape) - len(event) :] != event:
            raise ValueError(
                f"Standardized: expected loc and scale with shape (*, {', '.join(map(str, event))})"
                f", got {tuple(self.loc.shape)} and {tuple(self.scale.shape)}."
            )
        self.base = base
        batch = broadcast_shapes(shape[: len(shape) - len(event)], base.batch_shape)
        super().__init__(batch, event, base.num_statistics, validate_args)

    @property
    def support(self) -> Any:
        return self.base.support

    def weight_constraint(self, activation: Activation) -> Any:
        return self.base.weight_constraint(activation)

    def example(self, like: Tensor) -> Tensor:
        return self.loc.detach()  # what stands for other events passes no gradient on

    def statistic(self, x: Tensor) -> Tensor:
        return self.base.statistic(self.to_latent(x))

    def log_density(self, x: Tensor) -> Tensor:
        return self.base.log_density(self.to_latent(x)) - self._sum(self.scale.log())

    def log_density_and_statistic(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_density, statistic = self.base.log_density_and_statistic(self.to_latent(x))
        return log_density - self._sum(self.scale.log()), statistic

    def _sum(self, x: Tensor) -> Tensor:
        return x.sum(-1) if self.event_dim else x

    def parts(self) -> tuple[Base, ...]:
        return self.base.parts()

    def latent(self, like: Tensor) -> Base:
        return self.base

    def event(self, latent: Tensor) -> Tensor:
        return self.loc + self.scale * latent

    def to_latent(self, x: Tensor) -> Tensor:
        return (x - self.loc) / self.scale

    def columns(self, dims: Sequence[int]) -> list[int]:
        return self.base.columns(dims)

    def _some(self, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
        loc, scale = torch.broadcast_tensors(self.loc, self.scale)
        return loc[..., dims], scale[..., dims]

    def marginal(self, dims: Sequence[int]) -> "Standardized":
        return Standardized(self.base.marginal(dims), *self._some(dims), validate_args=False)

    def conditional(self, dims: Sequence[int], values: Tensor) -> "Standardized":
        loc, scale = self._some(dims)
        inner = self.base.conditional(dims, (values - loc) / scale)
        return Standardized(inner, *self._some(self.others(dims)), validate_args=False)

    def regression(self, dims: Sequence[int], like: Tensor) -> Tensor | None:
        return self.base.regression(dims, like)

    def partial(self, x: Tensor, observed: Tensor) -> Partial | None:
        partial = self.base.partial(self.to_latent(x), observed)
        if partial is None:
            return None
        volume = self._sum(torch.where(observed, self.scale.log(), 0.0))
        return partial._replace(log_density=partial.log_density - volume)

    def __repr__(self) -> str:
        return f"Standardized({self.base})"
