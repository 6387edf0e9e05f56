r"""Modules that own the tensors of bases, and keep them under their constraints."""

__all__ = ["BaseModule", "ConstrainedModule", "as_base"]

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import transform_to

from ..bases import Base, Gaussian
from ..constraints import is_real


class ConstrainedModule(nn.Module):
    r"""A module with parameters under constraints.

    .. math:: \text{scale} = T(\text{raw\_scale}), \quad
        T: \mathbb{R}^k \to \text{the constrained set}

    A constrained parameter ``scale`` is stored as the unconstrained parameter ``raw_scale``, where
    :math:`T` is ``transform_to(constraint)``. Reading the attribute ``scale`` applies :math:`T`.
    In a :class:`pyro.nn.PyroModule`, a :class:`pyro.nn.PyroSample` named ``scale`` takes the
    place of that attribute.
    """

    def __init__(self) -> None:
        super().__init__()
        self._constraints: dict[str, Any] = {}

    def constraint(self, name: str) -> Any:
        """The constraint of a parameter."""
        return self._constraints[name]

    def constrain(self, name: str, value: Tensor, constraint: Any) -> None:
        """Registers a parameter, unconstrained if not every value satisfies its constraint."""
        if is_real(constraint):
            self.register_parameter(name, nn.Parameter(value.detach().clone()))
            return
        self._constraints[name] = constraint
        raw = transform_to(constraint).inv(value.detach())
        self.register_parameter(f"raw_{name}", nn.Parameter(raw.clone()))

    @torch.no_grad()
    def assign(self, name: str, value: Tensor) -> None:
        """Overwrites a parameter or a buffer in place, by a value that satisfies its constraint."""
        if name in self._constraints:
            value = transform_to(self.constraint(name)).inv(value)
            name = f"raw_{name}"
        getattr(self, name).copy_(value)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in self.__dict__.get("_constraints", ()):
                raise
        return transform_to(self.constraint(name))(getattr(self, f"raw_{name}"))


class BaseModule(ConstrainedModule):
    r"""A module that owns the tensors of a base, so that they are moved and saved with it.

    Calling the module returns the base. Each tensor is an attribute: ``loc`` and ``scale`` for a
    Gaussian, ``bases_1_rate`` for the rate of a Poisson base that is the second factor of a
    product. With ``learn``, tensors are parameters under their constraints, except for tensors
    that define the support. Other tensors are buffers.

    Example:
        >>> import torch
        >>> from pyro_snefy.bases import Poisson
        >>> module = BaseModule(Poisson(torch.tensor(2.0)), learn=True).double()
        >>> module().rate.dtype
        torch.float64
        >>> [name for name, _ in module.named_parameters()]
        ['raw_rate']
    """

    def __init__(self, base: Base, learn: bool = False) -> None:
        super().__init__()
        # Detached, because a deep copy of the module would fail on tensors with a graph.
        self._base = base.map(Tensor.detach)
        self._names = [re.sub(r"\W+", "_", name) for name, _ in base.tensors()]
        pairs = zip(base.tensors(), base.tensor_constraints(), strict=True)
        for name, ((_, value), constraint) in zip(self._names, pairs, strict=True):
            if learn and constraint is not None:
                self.constrain(name, value, constraint)
            else:
                self.register_buffer(name, value)

    def forward(self) -> Base:
        """The base, built from the present values of the tensors."""
        tensors = iter([getattr(self, name) for name in self._names])
        return self._base.map(lambda _: next(tensors))

    def set(self, base: Base) -> None:
        """Overwrites the tensors by the tensors of a base of the same type and shapes."""
        for name, (_, value) in zip(self._names, base.tensors(), strict=True):
            self.assign(name, value)


def as_base(base_or_dim: Base | int, caller: str) -> Base:
    r"""The given base, or a standard normal base."""
    if isinstance(base_or_dim, Base):
        return base_or_dim
    if isinstance(base_or_dim, int) and base_or_dim >= 1:
        return Gaussian(torch.zeros(base_or_dim), torch.ones(base_or_dim))
    raise ValueError(
        f"{caller}: expected base_or_dim to be a Base or a positive integer, got {base_or_dim!r}."
    )
