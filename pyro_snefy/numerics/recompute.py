r"""Functions that are evaluated again in the backward pass, so that memory is bounded."""

__all__ = ["by_rows", "recomputed", "recomputed_by_rows"]

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.forward_ad import unpack_dual
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


def by_rows(
    function: Callable[[Sequence[Tensor]], Tensor],
    tensors: Sequence[Tensor],
    dims: Sequence[int | None],
    count: int,
    out_dim: int,
) -> Tensor:
    r"""Evaluates a function of tensors on some rows at a time.

    Arguments:
        function: A function of all tensors, whose values have a dimension of rows, too.
        tensors: The tensors.
        dims: For each tensor, the dimension of its rows, or None if all rows share it.
        count: How many rows to evaluate at a time.
        out_dim: The dimension of the rows in the values, from the right.

    Example:
        >>> by_rows(lambda x: x[0] * x[1], [torch.arange(3), torch.tensor(2)], [0, None], 2, -1)
        tensor([0, 2, 4])
    """
    return torch.cat([function(chunk) for chunk in _chunks(tensors, dims, count)], out_dim)


def recomputed_by_rows(
    function: Callable[[Sequence[Tensor]], Tensor],
    tensors: Sequence[Tensor],
    dims: Sequence[int | None],
    count: int,
    out_dim: int,
) -> Tensor:
    r"""As :func:`by_rows`, but chunks are evaluated again in the backward pass.

    The forward pass keeps no graph. Graphs of many chunks are small, but they would lie between the
    large tensors of the chunks, and memory that these leave would not be used again.

    Arguments:
        function: As in :func:`by_rows`. It uses no other tensors with a gradient.
        tensors: As in :func:`by_rows`.
        dims: As in :func:`by_rows`.
        count: As in :func:`by_rows`.
        out_dim: As in :func:`by_rows`.

    Example:
        >>> rows, weight = torch.arange(3.0), torch.ones((), requires_grad=True)
        >>> values = recomputed_by_rows(lambda x: x[0] * x[1], [rows, weight], [0, None], 2, -1)
        >>> torch.autograd.grad(values.sum(), weight)
        (tensor(3.),)
    """
    dual = any(unpack_dual(x).tangent is not None for x in tensors)
    if (
        torch.is_grad_enabled()
        and not dual
        and not torch.compiler.is_compiling()
        and _admits_hooks()
    ):
        values: Tensor = _ByRows.apply(function, dims, count, out_dim, *tensors)
        return values
    return by_rows(function, tensors, dims, count, out_dim)


def _chunks(
    tensors: Sequence[Tensor], dims: Sequence[int | None], count: int
) -> Iterator[list[Tensor]]:
    pairs, total = list(zip(tensors, dims, strict=True)), _total(tensors, dims)
    for start in range(0, total, count):
        size = min(count, total - start)
        yield [x if dim is None else x.narrow(dim, start, size) for x, dim in pairs]


def _total(tensors: Sequence[Tensor], dims: Sequence[int | None]) -> int:
    return next(x.shape[dim] for x, dim in zip(tensors, dims, strict=True) if dim is not None)


class _ByRows(Function):
    @staticmethod
    def forward(
        ctx: Any, function: Any, dims: Any, count: int, out_dim: int, *tensors: Tensor
    ) -> Tensor:
        ctx.function, ctx.dims, ctx.count, ctx.out_dim = function, dims, count, out_dim
        ctx.save_for_backward(*tensors)
        chunks = _chunks(tensors, dims, count)
        first = function(next(chunks))
        shape = list(first.shape)
        shape[out_dim] = _total(tensors, dims)
        # One tensor for all values, which would lie between large tensors as graphs would.
        values = first.new_empty(shape)
        places = values.split(count, out_dim)
        places[0].copy_(first)
        for place, chunk in zip(places[1:], chunks, strict=True):
            place.copy_(function(chunk))
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        again = torch.is_grad_enabled()  # derivatives of the gradient are asked for
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[4:]
        totals = [torch.zeros_like(x) for x in tensors]
        places = _chunks(totals, ctx.dims, ctx.count)
        pieces = grad.split(ctx.count, ctx.out_dim)
        asked = [k for k, flag in enumerate(wanted) if flag]
        chunks = _chunks(tensors, ctx.dims, ctx.count)
        for chunk, place, piece in zip(chunks, places, pieces, strict=True):
            with torch.enable_grad():
                # Views: a tensor that is a function of another one keeps its gradient to itself.
                chunk = [x.view_as(x) for x in chunk]
                value = ctx.function(chunk)
            sources = [chunk[k] for k in asked]
            found = torch.autograd.grad(
                value, sources, piece, create_graph=again, allow_unused=True
            )
            for k, own in zip(asked, found, strict=True):
                if own is not None:
                    place[k].add_(own)
        gradients = (x if flag else None for x, flag in zip(totals, wanted, strict=True))
        return None, None, None, None, *gradients


def _admits_hooks() -> bool:
    if torch.compiler.is_compiling():
        return True
    try:
        with saved_tensors_hooks(lambda x: x, lambda x: x):
            return True
    except RuntimeError:
        return False
