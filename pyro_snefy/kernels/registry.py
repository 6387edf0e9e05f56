r"""Kernels by the types of activation and base."""

__all__ = ["check_closed_form", "closed_form", "kernel", "register_kernel"]

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ..activations import Activation
from ..bases import Base
from ..numerics.dispatch import Dispatcher
from .kernel import Kernel

KernelFunction = Callable[[Any, Any, Tensor], Kernel]
Function = TypeVar("Function", bound=KernelFunction)


class _Entry(NamedTuple):
    function: KernelFunction
    bias: bool


_REGISTRY: Dispatcher[_Entry] = Dispatcher()


def register_kernel(
    activation: type[Activation], base: type[Base], *, bias: bool = True
) -> Callable[[Function], Function]:
    r"""Registers the closed form of a pair of activation and base.

    The decorated function takes an activation, a base and weights of shape :math:`(*, n, D)`, all
    in float64, and returns a :class:`~pyro_snefy.kernels.Kernel`. The most specific pair of types
    is taken, as in :func:`torch.distributions.kl.register_kl`; the activation decides first.

    Arguments:
        activation: A subclass of :class:`~pyro_snefy.activations.Activation`.
        base: A subclass of :class:`~pyro_snefy.bases.Base`.
        bias: Whether the closed form holds with a bias.

    Example:
        >>> from pyro_snefy.activations import Activation
        >>> from pyro_snefy.bases import Gaussian
        >>> from pyro_snefy.kernels import Pairwise, register_kernel
        >>> class Square(Activation):
        ...     def __call__(self, z):
        ...         return z.square()
        >>> @register_kernel(Square, Gaussian)
        ... def _square_gaussian(activation, base, weight):
        ...     c = base.quadratic(weight)
        ...     v = c.diagonal(dim1=-2, dim2=-1)
        ...
        ...     def evaluate(bias):
        ...         m = bias + (weight @ base.mean(weight).unsqueeze(-1)).squeeze(-1)
        ...         second = (m.square() + v).unsqueeze(-1) * (m.square() + v).unsqueeze(-2)
        ...         return second + 4 * m.unsqueeze(-1) * m.unsqueeze(-2) * c + 2 * c.square()
        ...
        ...     return Pairwise(evaluate)
    """
    for name, value, kind in (("activation", activation, Activation), ("base", base, Base)):
        if not (isinstance(value, type) and issubclass(value, kind)):
            raise TypeError(
                f"register_kernel: expected {name} to be a subclass of {kind.__name__}, "
                f"got {value!r}."
            )

    def decorator(function: Function) -> Function:
        _REGISTRY.add(activation, base, _Entry(function, bias))
        return function

    return decorator


def closed_form(activation: Activation, base: Base, bias: bool) -> bool:
    r"""Whether a pair has a closed form.

    Arguments:
        activation: The activation.
        base: The base. A composition has one where all its parts have.
        bias: Whether there is a bias.

    Example:
        >>> from pyro_snefy.activations import ReLU
        >>> from pyro_snefy.bases import UniformSphere
        >>> closed_form(ReLU(), UniformSphere(3), bias=False)
        True
        >>> closed_form(ReLU(), UniformSphere(3), bias=True)
        False
    """
    return all(_has_entry(type(activation), type(part), bias) for part in base.parts())


def _has_entry(activation: type[Activation], base: type[Base], bias: bool) -> bool:
    entry = _REGISTRY.find(activation, base)
    return entry is not None and (entry.bias or not bias)


def _concrete(root: type) -> set[type]:
    # The classes below a root that define what it leaves to them, but for private ones.
    method = "log_density" if root is Base else "__call__"
    found: set[type] = set()
    kinds = [root]
    while kinds:
        kind = kinds.pop()
        kinds.extend(kind.__subclasses__())
        if getattr(kind, method) is not getattr(root, method) and not kind.__name__.startswith("_"):
            found.add(kind)
    return found


def check_closed_form(activation: Activation, base: Base, bias: bool) -> None:
    r"""Raises an error, which lists what would work, unless a pair has a closed form."""
    if closed_form(activation, base, bias):
        return
    name = f"{type(activation).__name__} on {base}"
    if bias and closed_form(activation, base, bias=False):
        raise NotImplementedError(
            f"No closed form for {name} with a bias; there is one without: pass bias=None."
        )
    parts = [type(part) for part in base.parts()]
    activations = {
        kind.__name__
        for kind in _concrete(Activation)
        if all(_has_entry(kind, part, bias) for part in parts)
    }
    bases = {
        kind.__name__
        for kind in _concrete(Base)
        if _has_entry(type(activation), getattr(kind, "latent_kind", kind), bias)
    }
    others, elsewhere = (", ".join(sorted(x)) or "none" for x in (activations, bases))
    raise NotImplementedError(
        f"No closed form for {name}. Activations with one on {type(base).__name__}: {others}. "
        f"Bases with one for {type(activation).__name__}: {elsewhere}. Others can be added with "
        "pyro_snefy.kernels.register_kernel."
    )


def kernel(
    activation: Activation, base: Base, weight: Tensor, kind: type[Base] | None = None
) -> Kernel:
    r"""Finds and builds the kernel of an activation, a base and weights.

    Arguments:
        activation: The activation.
        base: The base, whose statistic is not the one of a pushforward.
        weight: The weights, with shape :math:`(*, n, D)`.
        kind: The type of base to look for, if it is not the one of the base.

    Example:
        >>> import torch
        >>> from pyro_snefy.activations import Cos
        >>> from pyro_snefy.bases import UniformSphere
        >>> _, matrix = kernel(Cos(), UniformSphere(3), torch.zeros(2, 3)).matrix(torch.zeros(2))
        >>> matrix
        tensor([[1., 1.],
                [1., 1.]])
    """
    entry = _REGISTRY.find(type(activation), kind or type(base))
    if entry is None or base.base_fields:
        check_closed_form(activation, base, bias=False)
    assert entry is not None, f"{base} is a pushforward: its latent base has a kernel."
    return entry.function(activation, base, weight)
