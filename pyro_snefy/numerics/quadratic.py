r"""Quadratic forms of many rows, :math:`x^\top A x`, with a gradient of two matrix products."""

__all__ = ["quadratic", "trace"]

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .elementwise import Positional, forward_mode, primals
from .linalg import fold, unfold

# Added to the diagonal of A, in units of its rounding errors over eps. A matrix that is positive
# semi-definite but for rounding has a Cholesky factor then; float32 does not see the change.
_RIDGE = 1e-12
# Stands for a zero on the diagonal, whose row is zero. Its root is zero in float32.
_TINY = 1e-100
# Stands for zero where numbers are divided by the largest of them.
_LEAST = 1e-300


def quadratic(rows: Tensor, matrix: Tensor) -> Tensor:
    r"""Evaluates :math:`q = x^\top A x` for rows :math:`x`, with broadcasting, in float64.

    Arguments:
        rows: The rows :math:`x`, with shape :math:`(*, n)`, in float32 or float64.
        matrix: The matrix :math:`A`, with shape :math:`(*, n, n)`, symmetric, in float64.

    Returns:
        The values, with shape :math:`(*)`, in float64.

    Example:
        >>> matrix = torch.eye(2, dtype=torch.float64)
        >>> quadratic(torch.tensor([[3.0, 4.0]]), matrix)
        tensor([25.], dtype=torch.float64)
    """
    folded, matrix, layout = fold(rows, matrix)
    # The value and the gradient by the rows share one matrix product.
    wide = folded.detach().double()
    products = wide @ matrix.detach()
    # torch.compile takes no function with a rule for forward mode.
    function = _Quadratic if torch.compiler.is_compiling() else _DualQuadratic
    values = function.apply(folded, matrix, wide, products)
    return values if layout is None else unfold(values.unsqueeze(-1), layout).squeeze(-1)


def trace(rows: Tensor, matrix: Tensor, unit: Tensor | float = 0.0) -> Tensor:
    r"""Evaluates :math:`q = \sum_k x_k^\top A x_k`, with broadcasting, in float64.

    Rows in float32 meet a factor of the matrix: :math:`q = \sum_k \|L^\top x_k\|^2` with
    :math:`A = L L^\top` is a sum of squares. Its relative error is
    :math:`\sqrt{\kappa}` times the precision of float32, where
    :math:`\kappa = \sum_{ijk} |x_{ki} A_{ij} x_{kj}| / q`; a plain sum would lose :math:`\kappa`
    times.

    Arguments:
        rows: The rows :math:`x_k`, with shape :math:`(*, m, n)`, in float32 or float64.
        matrix: The matrix :math:`A`, with shape :math:`(*, n, n)`, symmetric, positive
            semi-definite, in float64.
        unit: The entries of :math:`A` have errors of eps times
            :math:`\sqrt{A_{ii} A_{jj}}` plus this number. It matters to rows in float32 alone.

    Returns:
        The values, with shape :math:`(*)`, in float64.

    Example:
        >>> trace(torch.ones(3, 2), torch.eye(2, dtype=torch.float64))
        tensor(6., dtype=torch.float64)
    """
    if rows.dtype == torch.float64:
        return quadratic(rows, matrix if matrix.dim() == 2 else matrix.unsqueeze(-3)).sum(-1)
    function = _Trace if torch.compiler.is_compiling() else _DualTrace
    layout = None
    if matrix.dim() == 2:
        folded = rows if rows.dim() == 3 else rows.reshape(-1, *rows.shape[-2:])
    else:
        # The rows of a sum lie one after another, because the matrix lacks their dimension.
        folded, matrix, layout = fold(rows, matrix.unsqueeze(-3))
        folded = folded.unflatten(-2, (-1, rows.shape[-2]))
    # The largest entry of a positive semi-definite matrix is on its diagonal.
    largest = matrix.detach().amax((-2, -1), keepdim=True).clamp(min=_LEAST)
    exact = isinstance(unit, float) and not unit
    ridge = _TINY if exact else unit / largest.squeeze(-1) * _RIDGE + _TINY
    values = function.apply(folded, matrix, largest, ridge)
    if layout is None:
        return values if rows.dim() == 3 else values.reshape(rows.shape[:-2])
    shape, order = layout.shape[:-1], layout.order[:-1]
    values = values if values.shape == shape else values.reshape(shape)
    return values if order == tuple(range(len(order))) else values.permute(order)


class _Quadratic(Function):
    r"""The form of rows (*, N, n) under matrices (*, n, n), given the products of both."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, matrix: Tensor, wide: Tensor, products: Tensor) -> Tensor:
        return torch.linalg.vecdot(products, wide)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        rows, matrix, _, products = inputs
        ctx.save_for_backward(rows, matrix, products)
        ctx.save_for_forward(rows, matrix, products)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        rows, matrix, products = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is differentiated in turn
            products = rows.double() @ matrix
        by_rows = (products * (2.0 * grad).unsqueeze(-1)).to(rows.dtype)
        by_matrix = _moments(rows, grad) if ctx.needs_input_grad[1] else None
        return by_rows, by_matrix, None, None


class _DualQuadratic(_Quadratic):
    r"""The same function with a rule for forward mode."""

    @staticmethod
    def jvp(ctx: Any, by_rows: Tensor | None, by_matrix: Tensor | None, *_: None) -> Tensor:
        with forward_mode():
            rows, matrix = (x.double() for x in primals(ctx.saved_tensors[:2]))
            return _tangent(rows, matrix, by_rows, by_matrix)


def _moments(rows: Tensor, grad: Tensor) -> Tensor:
    # The gradient of the values by the matrix, which is symmetric as the matrix is, in float64.
    if rows.dtype == torch.float64:
        return rows.mT @ (rows * grad.unsqueeze(-1))
    # Weights of at most one are in the range of float32. Much smaller ones do not count.
    size = grad.detach().abs().amax(-1, keepdim=True).clamp(min=_TINY)
    weighted = rows * (grad / size).to(rows.dtype).unsqueeze(-1)
    return (rows.mT @ weighted) * size.unsqueeze(-1)


class _Trace(Function):
    r"""The sums of m rows each, of rows with shape (*, N, m, n), under matrices (*, n, n).

    Products in float32 meet the matrix over its largest entry :math:`c`, which is in their range.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, matrix: Tensor, largest: Tensor, ridge: Tensor | float) -> Tensor:
        *_, count, m, n = rows.shape
        shifted = matrix / largest
        shifted.diagonal(dim1=-2, dim2=-1).mul_(1 + _RIDGE).add_(ridge)
        factor, _ = torch.linalg.cholesky_ex(shifted)
        outputs = rows.flatten(-3, -2) @ factor.to(rows.dtype)
        outputs = outputs.reshape(*outputs.shape[:-2], count, m * n)
        norm = torch.linalg.vector_norm(outputs, dim=-1, dtype=torch.float64)
        return norm * norm * largest.squeeze(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Any], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        rows, matrix, largest = ctx.saved_tensors
        *_, count, m, n = rows.shape
        # In float64, because the square of a number in float32 may be out of the range of float32.
        weighted = (rows.flatten(-2) * (grad.unsqueeze(-1) * largest)).to(rows.dtype)
        weighted = weighted.reshape(*weighted.shape[:-2], count * m, n)
        by_rows = weighted @ (2.0 * matrix / largest).to(rows.dtype)
        by_matrix = None
        if ctx.needs_input_grad[1]:  # symmetric, as the matrix is
            by_matrix = rows.flatten(-3, -2).mT @ weighted / largest
        return by_rows.reshape(*by_rows.shape[:-2], count, m, n), by_matrix, None, None


class _DualTrace(_Trace):
    r"""The same function with a rule for forward mode."""

    @staticmethod
    def jvp(ctx: Any, by_rows: Tensor | None, by_matrix: Tensor | None, *_: None) -> Tensor:
        with forward_mode():
            rows, matrix = (x.double() for x in primals(ctx.saved_tensors))
            by_matrix = None if by_matrix is None else by_matrix.unsqueeze(-3)
            return _tangent(rows, matrix.unsqueeze(-3), by_rows, by_matrix).sum(-1)


def _tangent(
    rows: Tensor, matrix: Tensor, by_rows: Tensor | None, by_matrix: Tensor | None
) -> Tensor:
    # The derivative of the forms of all rows in directions of the rows and of the matrix.
    total = torch.zeros_like(rows)
    if by_rows is not None:
        total = total + 2.0 * (by_rows.double() @ matrix)
    if by_matrix is not None:
        total = total + rows @ by_matrix
    return torch.linalg.vecdot(total, rows)


for _function in (_Quadratic, _Trace):
    _function.forward.__signature__ = Positional(_function.forward)  # type: ignore[union-attr]
