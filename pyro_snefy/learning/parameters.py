r"""Modules that own the tensors of immutable values."""

__all__ = ["BaseModule", "ConstrainedModule"]

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import transform_to

from ..bases import Base
from ..constraints import is_real


class ConstrainedModule(nn.Module):
    r"""A module some of whose parameters are subject to constraints.

    A parameter ``scale`` that is constrained is kept as an unconstrained ``raw_scale``, and is
    there as the attribute ``scale``, as every other one is. In a :class:`pyro.nn.PyroModule`, it
    gives way to a :class:`pyro.nn.PyroSample` of that name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._constraints: dict[str, Any] = {}

    def constraint(self, name: str) -> Any:
        """The constraint of a parameter."""
        return self._constraints[name]

    def constrain(self, name: str, value: Tensor, constraint: Any) -> None:
        """Registers a parameter that satisfies a constraint, with its first value."""
        if is_real(constraint):
            self.register_parameter(name, nn.Parameter(value.detach().clone()))
            return
        self._constraints[name] = constraint
        raw = transform_to(constraint).inv(value.detach())
        self.register_parameter(f"raw_{name}", nn.Parameter(raw.clone()))

    @torch.no_grad()
    def assign(self, name: str, value: Tensor) -> None:
        """Gives a parameter or buffer another value, in place."""
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
    r"""A module that owns the tensors of a base, and moves and saves them with the others.

    The tensors are attributes by their names: ``loc`` and ``scale`` of a Gaussian,
    ``bases_1_rate`` of a Poisson law that is the second factor of a product.

    Arguments:
        base: The base.
        learn: Whether its tensors are parameters, under their constraints, or buffers. Tensors
            that say where the support is are buffers always.

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
        # The value without its tensors' graph: modules are copied, and graphs are not.
        self._base = base.map(Tensor.detach)
        self._names = [re.sub(r"\W+", "_", name) for name, _ in base.tensors()]
        pairs = zip(base.tensors(), base.tensor_constraints(), strict=True)
        for name, ((_, value), constraint) in zip(self._names, pairs, strict=True):
            if learn and constraint is not None:
                self.constrain(name, value, constraint)
            else:
                self.register_buffer(name, value)

    def forward(self) -> Base:
        """The base, made of the tensors as they are now."""
        tensors = iter([getattr(self, name) for name in self._names])
        return self._base.map(lambda _: next(tensors))

    def set(self, base: Base) -> None:
        """Takes the values of another base of the same kind and shapes."""
        for name, (_, value) in zip(self._names, base.tensors(), strict=True):
            self.assign(name, value)
