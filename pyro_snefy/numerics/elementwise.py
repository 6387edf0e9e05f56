r"""Elementwise functions that come with formulas for their partial derivatives."""

__all__ = ["Positional", "elementwise", "forward_mode", "primals"]

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import Signature, signature
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.forward_ad import unpack_dual

Values = Callable[..., tuple[Tensor, ...]]
Partials = Callable[..., Sequence[tuple[Tensor, ...]]]


class Positional(Signature):
    r"""The signature of a forward pass that is given all of its arguments by position.

    Torch asks for the signature of a forward pass and binds arguments to it at each call, which
    takes longer than small operations do.

    Arguments:
        function: The forward pass, which has no keyword arguments and no defaults.

    Example:
        >>> def forward(x, y):
        ...     return x + y
        >>> Positional(forward).bind(1, 2).args
        (1, 2)
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(list(signature(function).parameters.values()))

    def bind(self, *args: Any, **kwargs: Any) -> "_Bound":  # type: ignore[override]
        return _Bound(args, kwargs)


class _Bound(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def apply_defaults(self) -> None:
        pass


@contextmanager
def forward_mode() -> Iterator[None]:
    r"""Turns forward mode on inside a jvp rule, so that derivatives of the rule are not lost.

    Torch calls these rules with forward mode off, and a second derivative in forward mode would be
    zero. Leaving inference mode turns it on.
    """
    grad = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(grad):
        yield


def primals(tensors: Sequence[Tensor]) -> list[Tensor]:
    r"""The tensors that a jvp rule has saved, without the tangents that it is given."""
    return [unpack_dual(x, level=0).primal for x in tensors]


def elementwise(partials: Partials, saves_values: bool = False) -> Callable[[Values], Values]:
    r"""Decorates an elementwise function, which is then differentiated by given formulas.

    The function takes one constant, then tensors of one shape. It returns a tuple of tensors of the
    same shape. Derivatives of higher order follow from the operations in `partials`. vmap and
    torch.compile are supported, except for forward mode inside torch.compile.

    Arguments:
        partials: A function of the same arguments. It returns, for each output, the partial
            derivatives with respect to the first tensors. The remaining tensors get no gradient.
        saves_values: Whether the partial derivatives are functions of the values, too, which
            `partials` takes after the tensors. Autograd keeps the values then.

    Example:
        >>> @elementwise(lambda k, x: [(k * x ** (k - 1),)])
        ... def power(k: int, x: Tensor) -> tuple[Tensor]:
        ...     return (x**k,)
        >>> x = torch.tensor(3.0)
        >>> torch.func.grad(lambda x: power(2, x)[0])(x)
        tensor(6.)
        >>> torch.func.jacfwd(lambda x: power(2, x)[0])(x)
        tensor(6.)
    """

    def decorator(values: Values) -> Values:
        values.__signature__ = Positional(values)  # type: ignore[attr-defined]

        class Plain(Function):
            generate_vmap_rule = True
            forward = staticmethod(values)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                ctx.constant, *tensors = inputs
                ctx.count = len(tensors)
                kept = (*tensors, *output) if saves_values else tensors
                ctx.save_for_backward(*kept)
                ctx.save_for_forward(*kept)

            @staticmethod
            def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
                rows = partials(ctx.constant, *ctx.saved_tensors)
                found = [_inner(column, grads) for column in zip(*rows, strict=True)]
                return None, *found, *[None] * (ctx.count - len(found))

        class Dual(Plain):
            @staticmethod
            def jvp(ctx: Any, _: None, *tangents: Tensor) -> tuple[Tensor, ...]:
                with forward_mode():
                    tensors = primals(ctx.saved_tensors[: ctx.count])
                    if saves_values:
                        tensors += Dual.apply(ctx.constant, *tensors)
                    rows = partials(ctx.constant, *tensors)
                    return tuple(_inner(row, tangents[: len(row)]) for row in rows)

        @wraps(values)
        def function(constant: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
            # torch.compile refuses a function that has a jvp.
            chosen = Plain if torch.compiler.is_compiling() else Dual
            return chosen.apply(constant, *tensors)

        return function

    return decorator


def _inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    (a, b), *rest = zip(left, right, strict=True)
    total = a * b
    for a, b in rest:
        total = torch.addcmul(total, a, b)  # one pass over memory, where a sum takes two
    return total
