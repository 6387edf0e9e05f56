r"""Bases seen from a location, at a scale."""

__all__ = ["Standardized"]

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.distributions import constraints

from ..activations import Activation
from ..numerics.linalg import broadcast_shapes
from .base import Base
from .bounded import Pushforward

Self = TypeVar("Self", bound="Base")


class Standardized(Pushforward):
    r"""A base moved and stretched: :math:`(x - l) / s` follows the given one.

    .. math:: t(x) = t_0\left(\frac{x - l}{s}\right), \quad
        \mu(x) = \frac{1}{\prod_k s_k} \mu_0\left(\frac{x - l}{s}\right)

    The statistic has the law that it has under the given base, whatever location and scale are,
    so that one kernel serves a whole batch of them.

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

    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }

    def __init__(
        self, base: Base, loc: Tensor, scale: Tensor, *, validate_args: bool | None = None
    ) -> None:
        if base.support not in (constraints.real, constraints.real_vector):
            raise ValueError(
                f"Standardized: expected a base on the reals or real vectors, got {base}."
            )
        event = base.event_shape
        shape = broadcast_shapes(loc.shape, scale.shape)
        if shape[len(shape) - len(event) :] != event:
            raise ValueError(
                f"Standardized: expected loc and scale with shape (*, {', '.join(map(str, event))})"
                f", got {tuple(loc.shape)} and {tuple(scale.shape)}."
            )
        self.base, self.loc, self.scale = base, loc, scale
        batch = broadcast_shapes(shape[: len(shape) - len(event)], base.batch_shape)
        super().__init__(batch, event, base.num_statistics, validate_args)

    @property
    def support(self) -> Any:
        return self.base.support

    def weight_constraint(self, activation: Activation) -> Any:
        return self.base.weight_constraint(activation)

    def parts(self) -> tuple[Base, ...]:
        return self.base.parts()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from super().tensors()
        for name, value in self.base.tensors():
            yield f"base.{name}", value

    def tensor_constraints(self) -> Iterator[Any]:
        yield from super().tensor_constraints()
        yield from self.base.tensor_constraints()

    def map(self: Self, function: Callable[[Tensor], Tensor]) -> Self:
        assert isinstance(self, Standardized)
        loc, scale = function(self.loc), function(self.scale)  # in the order of the tensors
        return type(self)(self.base.map(function), loc, scale, validate_args=False)

    def map_batches(self: Self, function: Callable[[Tensor, int], Tensor]) -> Self:
        assert isinstance(self, Standardized)
        base, rank = self.base.map_batches(function), self.event_dim
        loc, scale = function(self.loc, rank), function(self.scale, rank)
        return type(self)(base, loc, scale, validate_args=False)

    def event(self, latent: Tensor) -> Tensor:
        return self.loc + self.scale * latent

    def to_latent(self, x: Tensor) -> Tensor:
        r"""The event :math:`(x - l) / s` of the given base."""
        return (x - self.loc) / self.scale

    def example(self, like: Tensor) -> Tensor:
        return self.loc

    def statistic(self, x: Tensor) -> Tensor:
        return self.base.statistic(self.to_latent(x))

    def log_density(self, x: Tensor) -> Tensor:
        log_scale = self.scale.log()
        volume = log_scale.sum(-1) if self.event_dim else log_scale
        return self.base.log_density(self.to_latent(x)) - volume

    def columns(self, dims: Sequence[int]) -> list[int]:
        return self.base.columns(dims)

    def _part(self, base: Base, dims: Sequence[int]) -> "Standardized":
        loc, scale = torch.broadcast_tensors(self.loc, self.scale)
        return Standardized(base, loc[..., dims], scale[..., dims], validate_args=False)

    def _standardize_part(self, dims: Sequence[int], values: Tensor) -> Tensor:
        loc, scale = torch.broadcast_tensors(self.loc, self.scale)
        return (values - loc[..., dims]) / scale[..., dims]

    def marginal(self, dims: Sequence[int]) -> "Standardized":
        return self._part(self.base.marginal(dims), dims)

    def conditional(self, dims: Sequence[int], values: Tensor) -> "Standardized":
        base = self.base.conditional(dims, self._standardize_part(dims, values))
        return self._part(base, self.others(dims))

    def regression(self, dims: Sequence[int], like: Tensor) -> Tensor | None:
        return self.base.regression(dims, like)

    def latent(self, like: Tensor) -> Base:
        return self.base

    def __repr__(self) -> str:
        return f"Standardized({self.base})"
