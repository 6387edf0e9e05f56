r"""Products of batched matrices with batches of rows, without copies of the matrices."""

__all__ = ["bilinear", "broadcast_shapes", "rows_matmul", "safe_log"]

import torch
from torch import Size, Tensor


def broadcast_shapes(*shapes: Size) -> Size:
    r"""As :func:`torch.broadcast_shapes`, which is slow, but for the case that needs no work."""
    largest = Size()
    for shape in shapes:  # torch.compile knows no max with a key
        largest = shape if len(shape) > len(largest) else largest
    if all(shape == largest or not shape for shape in shapes):
        return largest
    return torch.broadcast_shapes(*shapes)


def rows_matmul(rows: Tensor, matrix: Tensor) -> Tensor:
    r"""Multiplies rows by a matrix, :math:`y_k = \sum_i x_i A_{ik}`, with broadcasting.

    Batch dimensions that the matrix lacks are folded into the rows of one matrix product, so
    that a batch of rows against one matrix is a single GEMM and the matrix is never copied.

    Arguments:
        rows: The rows :math:`x`, with shape :math:`(*, I)`.
        matrix: The matrix :math:`A`, with shape :math:`(*, I, K)`.

    Returns:
        The products, with shape :math:`(*, K)`.
    """
    if matrix.dim() == 2:
        return rows @ matrix
    rank = max(rows.dim() - 1, matrix.dim() - 2)
    rows = rows.reshape((1,) * (rank + 1 - rows.dim()) + rows.shape)
    batch = (1,) * (rank + 2 - matrix.dim()) + tuple(matrix.shape[:-2])
    own = [k for k in range(rank) if batch[k] != 1]  # dimensions that the matrix has too
    free = [k for k in range(rank) if batch[k] == 1]
    matrix = matrix.reshape([batch[k] for k in own] + list(matrix.shape[-2:]))
    folded = rows.permute(*own, *free, rank).reshape(
        [rows.shape[k] for k in own] + [-1, rows.shape[-1]]
    )
    out = folded @ matrix  # (*own, free, K)
    out = out.reshape(list(out.shape[: len(own)]) + [rows.shape[k] for k in free] + [out.shape[-1]])
    order = own + free
    return out.permute(*(order.index(k) for k in range(rank)), rank)


def bilinear(left: Tensor | None, matrix: Tensor, right: Tensor | None) -> Tensor:
    r"""Evaluates the bilinear form :math:`\sum_{ij} u_i A_{ij} v_j`, with broadcasting.

    Arguments:
        left: The rows :math:`u`, with shape :math:`(*, I)`. None stands for ones.
        matrix: The matrix :math:`A`, with shape :math:`(*, I, J)`.
        right: The rows :math:`v`, with shape :math:`(*, J)`. None stands for ones.

    Returns:
        The values, with shape :math:`(*)`.
    """
    product = matrix.sum(dim=-2) if left is None else rows_matmul(left, matrix)
    return (product if right is None else product * right).sum(dim=-1)


def safe_log(x: Tensor) -> Tensor:
    r"""Returns :math:`\log x`, and :math:`-\infty` with a zero gradient where :math:`x \leq 0`."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).log(), -torch.inf)
