r"""Products of batched matrices with batches of rows, without copies of the matrices."""

__all__ = [
    "affine",
    "bilinear",
    "broadcast_shapes",
    "concatenate",
    "fold",
    "lower_factor",
    "rows_matmul",
    "safe_log",
    "safe_logsumexp",
    "take",
    "unfold",
]

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Size, Tensor


def broadcast_shapes(*shapes: Size) -> Size:
    r"""As :func:`torch.broadcast_shapes`, which is slow."""
    largest = Size()
    for shape in shapes:  # torch.compile knows no max with a key
        largest = shape if len(shape) > len(largest) else largest
    for shape in shapes:
        if shape and shape != largest:
            return _broadcast(largest, shapes)
    return largest  # as nearly always


def _broadcast(largest: Size, shapes: Sequence[Size]) -> Size:
    lengths = list(largest)
    for shape in shapes:
        start = len(lengths) - len(shape)
        for k, length in enumerate(shape, start):
            if lengths[k] == 1:
                lengths[k] = length
            elif length not in (1, lengths[k]):
                raise RuntimeError(f"Shapes do not broadcast: {', '.join(map(str, shapes))}.")
    return Size(lengths)


class Layout(NamedTuple):
    r"""How :func:`fold` arranged the batch dimensions of rows."""

    shape: tuple[int, ...]  # of the rows after broadcasting, in the arranged order
    order: tuple[int, ...]  # the place of each batch dimension in the arranged order


def fold(rows: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Layout | None]:
    r"""Folds the batch dimensions that a matrix lacks into the rows of one matrix product.

    A batch of rows against one matrix is a single product then, and the matrix is never copied.
    From rows :math:`(*, I)` and a matrix :math:`(*, I, K)`, returns rows :math:`(*, N, I)`, a
    matrix, and what :func:`unfold` needs: None if both are matrices already.
    """
    if matrix.dim() == 2:
        if rows.dim() == 2:
            return rows, matrix, None
        batch = tuple(rows.shape[:-1])
        return (
            rows.reshape(math.prod(batch), rows.shape[-1]),
            matrix,
            Layout(batch, tuple(range(len(batch)))),
        )
    rank = max(rows.dim() - 1, matrix.dim() - 2)
    rows = rows.reshape((1,) * (rank + 1 - rows.dim()) + rows.shape)
    batch = (1,) * (rank + 2 - matrix.dim()) + tuple(matrix.shape[:-2])
    own = [k for k in range(rank) if batch[k] != 1]  # dimensions that the matrix has too
    free = [k for k in range(rank) if batch[k] == 1]
    sizes = [batch[k] for k in own]
    matrix = matrix.reshape(sizes + list(matrix.shape[-2:]))
    arranged = rows.permute(*own, *free, rank)
    count = math.prod([rows.shape[k] for k in free])  # no -1, because batches may be empty
    folded = arranged.reshape([rows.shape[k] for k in own] + [count, rows.shape[-1]])
    order = own + free
    shape = (*sizes, *(rows.shape[k] for k in free))
    return folded, matrix, Layout(shape, tuple(order.index(k) for k in range(rank)))


def unfold(products: Tensor, layout: Layout | None) -> Tensor:
    r"""Gives products of folded rows, with shape :math:`(*, N, K)`, their batch shape back."""
    if layout is None:
        return products
    shape, order = layout
    products = products.reshape((*shape, products.shape[-1]))
    if order == tuple(range(len(order))):
        return products
    return products.permute(*order, len(order))


def lower_factor(matrix: Tensor) -> Tensor:
    r"""The lower triangular :math:`T` with :math:`T T^\top = A A^\top` and a positive diagonal.

    :math:`A A^\top` is never formed: its condition is the square of the condition of :math:`A`.

    Arguments:
        matrix: The matrix :math:`A`, with shape :math:`(*, k, d)` and :math:`k \leq d`.
    """
    upper = torch.linalg.qr(matrix.mT).R
    sign = upper.detach().diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-1)
    return (upper * torch.where(sign < 0, -1.0, 1.0).to(upper.dtype)).mT


def rows_matmul(rows: Tensor, matrix: Tensor) -> Tensor:
    r"""Multiplies rows :math:`(*, I)` by a matrix :math:`(*, I, K)`, with broadcasting."""
    if matrix.dim() == 2:
        return rows @ matrix
    folded, matrix, layout = fold(rows, matrix)
    return unfold(folded @ matrix, layout)


def affine(rows: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    r"""Evaluates :math:`y_k = \sum_i A_{ki} x_i + b_k` for rows :math:`x`, with broadcasting."""
    if rows.dim() == matrix.dim() == 2 and shift.shape[:-1] in ((), rows.shape[:1]):
        return torch.addmm(shift, rows, matrix.mT)  # one operation, with two fewer backwards
    return rows_matmul(rows, matrix.mT) + shift


def take(x: Tensor, dims: Sequence[int]) -> Tensor:
    r"""Takes entries of the last dimension, as a view where they are evenly spaced."""
    first, last = dims[0], dims[-1]
    step = dims[1] - first if len(dims) > 1 else 1
    if step > 0 and list(dims) == list(range(first, last + 1, step)):
        return x[..., first : last + 1 : step]
    return x[..., list(dims)]


def concatenate(pieces: Sequence[Tensor]) -> Tensor:
    r"""Joins tensors :math:`(*, d_k)` along their last dimension, with broadcasting."""
    batch = broadcast_shapes(*(piece.shape[:-1] for piece in pieces))
    return torch.cat([piece.expand(batch + piece.shape[-1:]) for piece in pieces], dim=-1)


def bilinear(left: Tensor | None, matrix: Tensor, right: Tensor | None) -> Tensor:
    r"""Evaluates :math:`\sum_{ij} u_i A_{ij} v_j`, with broadcasting; None stands for ones."""
    product = matrix.sum(dim=-2) if left is None else rows_matmul(left, matrix)
    return (product if right is None else product * right).sum(dim=-1)


def safe_log(x: Tensor) -> Tensor:
    r"""Returns :math:`\log x`, and :math:`-\infty` with a zero gradient where :math:`x \leq 0`."""
    # The rectifier selects its gradient, so that the infinite one of the logarithm stops there.
    return x.relu().log()


def safe_logsumexp(x: Tensor) -> Tensor:
    r"""Returns :math:`\log \sum_k e^{x_k}`, with a zero gradient where every term is zero."""
    # The one of torch has the gradient NaN there, as far from all components of a mixture.
    largest = x.detach().amax(-1, keepdim=True)
    largest = torch.threshold(largest, torch.finfo(x.dtype).min, 0.0)
    return safe_log((x - largest).exp().sum(-1)) + largest.squeeze(-1)
