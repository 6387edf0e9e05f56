r"""Functions that are evaluated again in the backward pass, so that memory is bounded."""

__all__ = ["recomputed"]

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    r"""Evaluates a function, and again in the backward pass if gradients are asked for.

    Inside ``torch.func.grad`` and its relatives, which admit no hooks on saved tensors, the
    function is evaluated once, and what it saves is kept.

    Arguments:
        function: The function.
        x: Its argument.

    Example:
        >>> torch.func.grad(lambda w: recomputed(lambda x: w * x, torch.tensor(2.0)))(
        ...     torch.ones(())
        ... )
        tensor(2.)
    """
    if torch.is_grad_enabled() and _admits_hooks():
        return checkpoint(function, x, use_reentrant=False)
    return function(x)


def _admits_hooks() -> bool:
    if torch.compiler.is_compiling():
        return True
    try:
        with saved_tensors_hooks(lambda x: x, lambda x: x):
            return True
    except RuntimeError:
        return False
