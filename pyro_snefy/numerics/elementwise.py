r"""Elementwise functions that come with formulas for their partial derivatives."""

__all__ = ["elementwise"]

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual

Values = Callable[..., tuple[Tensor, ...]]
Partials = Callable[..., Sequence[tuple[Tensor, ...]]]


def elementwise(partials: Partials) -> Callable[[Values], Values]:
    r"""Decorates an elementwise function, which is then differentiated by given formulas.

    The function takes one constant, then tensors of one shape. It returns a tuple of tensors of the
    same shape. Autograd keeps the input tensors only, in backward and in forward mode. Derivatives
    of higher order follow from the operations in `partials`. vmap and torch.compile are supported,
    except for forward mode inside torch.compile.

    Arguments:
        partials: A function of the same arguments. It returns, for each output, the partial
            derivatives with respect to the first tensors. The remaining tensors get no gradient.

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
        class Plain(Function):
            generate_vmap_rule = True
            forward = staticmethod(values)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                ctx.constant, *tensors = inputs
                ctx.save_for_backward(*tensors)
                ctx.save_for_forward(*tensors)

            @staticmethod
            def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
                rows = partials(ctx.constant, *ctx.saved_tensors)
                found = [_inner(column, grads) for column in zip(*rows, strict=True)]
                return None, *found, *[None] * (len(ctx.saved_tensors) - len(found))

        class Dual(Plain):
            @staticmethod
            def jvp(ctx: Any, _: None, *tangents: Tensor) -> tuple[Tensor, ...]:
                # Torch calls this rule with forward mode off, so that a derivative of the rule in
                # forward mode would be zero. The saved tensors still carry the tangents given here.
                with _set_fwd_grad_enabled(True):
                    tensors = [unpack_dual(x, level=0).primal for x in ctx.saved_tensors]
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
    first, *rest = (a * b for a, b in zip(left, right, strict=True))
    return sum(rest, first)
