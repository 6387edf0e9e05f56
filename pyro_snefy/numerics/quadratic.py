r"""Quadratic forms of many rows, :math:`x^\top A x`, with a gradient of two matrix products."""

__all__ = ["quadratic"]

from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .elementwise import forward_mode, primals
from .linalg import fold, unfold

# Added to the diagonal of A, in units of its rounding errors over eps. A matrix that is positive
# semi-definite but for rounding has a Cholesky factor then; float32 does not see the change.
_RIDGE = 1e-12


def quadratic(rows: Tensor, matrix: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    r"""Evaluates :math:`q = x^\top A x` for rows :math:`x`, with broadcasting, in float64.

    Rows in float32 meet a factor of the matrix: :math:`q = \|L^\top x\|^2` with
    :math:`A = L L^\top` is a sum of squares. Its relative error is
    :math:`\sqrt{\kappa}` times the precision of float32, where
    :math:`\kappa = \sum_{ij} |x_i A_{ij} x_j| / q`; a plain sum would lose :math:`\kappa` times.

    Arguments:
        rows: The rows :math:`x`, with shape :math:`(*, n)`, in float32 or float64.
        matrix: The matrix :math:`A`, with shape :math:`(*, n, n)`, symmetric, positive
            semi-definite, in float64.
        unit: The entries of :math:`A` have absolute errors of eps times this number. It matters
            to rows in float32 alone.

    Returns:
        The values, with shape :math:`(*)`, in float64.

    Example:
        >>> matrix = torch.eye(2, dtype=torch.float64)
        >>> quadratic(torch.tensor([[3.0, 4.0]]), matrix)
        tensor([25.], dtype=torch.float64)
    """
    # torch.compile takes no function with a rule for forward mode.
    function = _Quadratic if torch.compiler.is_compiling() else _DualQuadratic
    folded, matrix, layout = fold(rows, matrix)
    return unfold(function.apply(folded, matrix, unit).unsqueeze(-1), layout).squeeze(-1)


class _Quadratic(Function):
    r"""The form of rows with shape (*, N, n) and matrices with shape (*, n, n)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, matrix: Tensor, unit: Tensor | float) -> Tensor:
        if rows.dtype == torch.float64:
            return torch.linalg.vecdot(rows @ matrix, rows)
        shifted = matrix.clone()
        shifted.diagonal(dim1=-2, dim2=-1).add_(_RIDGE * unit)
        factor, _ = torch.linalg.cholesky_ex(shifted)
        outputs = rows @ factor.to(rows.dtype)
        return torch.linalg.vector_norm(outputs, dim=-1, dtype=torch.float64).square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Any], output: Tensor) -> None:
        rows, matrix, _ = inputs
        ctx.save_for_backward(rows, matrix)
        ctx.save_for_forward(rows, matrix)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, matrix = ctx.saved_tensors
        weighted = rows * grad.unsqueeze(-1) if grad.dtype == rows.dtype else _weighted(rows, grad)
        # The gradient by the matrix is symmetric, as the matrix is.
        by_matrix = (rows.mT @ weighted).to(matrix.dtype)
        return (2.0 * weighted) @ matrix.to(rows.dtype), by_matrix, None


def _weighted(rows: Tensor, grad: Tensor) -> Tensor:
    # Rows in float32 times numbers in float64, by their roots: the square of a number in float32
    # may be out of the range of float32.
    root = grad.abs().sqrt().to(rows.dtype)
    return (rows * root.unsqueeze(-1)) * root.copysign(grad.to(rows.dtype)).unsqueeze(-1)


# Torch asks for the signature of a forward pass at each call, which takes longer than the rest.
_Quadratic.forward.__signature__ = signature(_Quadratic.forward)  # type: ignore[attr-defined]


class _DualQuadratic(_Quadratic):
    r"""The same function with a rule for forward mode."""

    @staticmethod
    def jvp(ctx: Any, by_rows: Tensor | None, by_matrix: Tensor | None, _: None) -> Tensor:
        with forward_mode():
            rows, matrix = (x.double() for x in primals(ctx.saved_tensors))
            total = rows.new_zeros(rows.shape[:-1])
            if by_rows is not None:
                total = total + 2.0 * torch.linalg.vecdot(by_rows.double() @ matrix, rows)
            if by_matrix is not None:
                total = total + torch.linalg.vecdot(rows @ by_matrix, rows)
            return total
