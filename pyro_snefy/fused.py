r"""Functions with forward and backward passes by hand, for what a step of training spends time on.

Such a step is made of many small operations. Recorded by autograd, each one costs more than the
numbers in it, and leaves a tensor behind; by hand they are fewer, and write where there is memory
already. Whatever such passes cannot do is left to the same function in plain operations.
"""

__all__ = ["Fused"]

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class Fused(Function):
    r"""A function that is defined twice, in plain operations and by hand.

    A subclass defines the static methods

    - ``plain(*inputs)``, the value in operations that autograd and vmap understand,
    - ``value(*inputs)``, the same value, and a list of what else its gradient needs, and
    - ``gradient(grad, inputs, saved, needed)``, the gradients of the inputs.

    It is evaluated by :meth:`call`.
    """

    plain: Any
    value: Any
    gradient: Any

    @classmethod
    def call(cls, *inputs: Any) -> Tensor:
        r"""Evaluates the function.

        Arguments:
            inputs: Tensors, and then constants that are none.
        """
        # Traces, functional transforms and forward mode differentiate single operations.
        if (
            torch.jit.is_tracing()  # type: ignore[attr-defined]
            or torch._C._are_functorch_transforms_active()
            or torch.autograd.forward_ad._current_level >= 0
        ):
            return cls.plain(*inputs)
        return cls.apply(cls, *inputs)

    @staticmethod
    def forward(ctx: Any, cls: Any, *inputs: Any) -> Tensor:
        value, saved = cls.value(*inputs)
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        ctx.cls, ctx.constants = cls, inputs[len(tensors) :]
        ctx.save_for_backward(*tensors, *saved)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        needed, tensors = ctx.needs_input_grad[1:], ctx.saved_tensors
        count = len(needed) - len(ctx.constants)
        inputs = (*tensors[:count], *ctx.constants)
        if not torch.is_grad_enabled():
            return None, *ctx.cls.gradient(grad, inputs, tensors[count:], needed)
        # Derivatives of this gradient are asked for.
        leaves = [x for x, need in zip(inputs, needed, strict=True) if need]
        found = torch.autograd.grad(ctx.cls.plain(*inputs), leaves, grad, create_graph=True)
        rest = iter(found)
        return None, *(next(rest) if need else None for need in needed)
