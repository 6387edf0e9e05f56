r"""Quadratic forms :math:`\|V \phi\|^2` and :math:`\phi^\top M \phi` in logarithmic scale.

A form meets two kinds of features. Features of an event give the numerator of a density. Features
:math:`\phi_p(b)` of a kernel, with its blocks :math:`G^{pq}`, give the normaliser. Both stand for
the product :math:`e^{\ell} \phi`. Constants move between the form and :math:`\ell` before anything
is exponentiated, so that nothing overflows.
"""

__all__ = ["Blocks", "Features", "Form", "Gram", "Readout"]

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .linalg import bilinear, broadcast_shapes, rows_matmul, safe_log
from .quadratic import quadratic, trace

Blocks = Mapping[tuple[int, int], Tensor]


class Features(NamedTuple):
    r"""Features :math:`e^{\ell_i} \phi_{p i}` of the neurons.

    Arguments:
        log_scale: The scale :math:`\ell`, with shape :math:`(*, n)`, or None for zeros.
        values: For each :math:`p`, values with shape :math:`(*, n)`, or None for ones.
        direct: Features :math:`\rho`, with shape :math:`(r, *, n)`, whose blocks are ones: they
            add :math:`\sum_k \rho_{ki} \rho_{kj}` to a kernel. None stands for no such features.
        bounded: Whether the values are at most one in size.

    Example:
        >>> Readout(torch.ones(1, 2)).log_square(Features(None, (torch.ones(2),))).exp()
        tensor(4.0000, dtype=torch.float64)
    """

    log_scale: Tensor | None
    values: tuple[Tensor | None, ...]
    direct: Tensor | None = None
    bounded: bool = False


class Form:
    r"""A positive semi-definite quadratic form on the features of :math:`n` neurons."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def gram(self) -> Tensor:
        r"""The matrix :math:`M` of the form, with shape :math:`(*, n, n)`."""
        raise NotImplementedError

    def map(self, function: Callable[[Tensor], Tensor]) -> "Form":
        """The form whose matrix is a function of this one."""
        return type(self)(function(self.matrix))

    def to(self, dtype: torch.dtype) -> "Form":
        """The same form in another dtype."""
        return self if self.matrix.dtype == dtype else type(self)(self.matrix.to(dtype))

    def unsqueeze(self) -> "Form":
        """The same form with one more batch dimension, on the right; one form stays one."""
        return self if self.matrix.dim() == 2 else type(self)(self.matrix.unsqueeze(-3))

    def log_square(self, features: Features) -> Tensor:
        r"""The logarithm of the form at features with a single :math:`\phi`."""
        raise NotImplementedError

    def log_trace(self, features: Features, blocks: Blocks, unit: Tensor | float = 0.0) -> Tensor:
        r"""The logarithm of :math:`\sum_{ij} M_{ij} K_{ij}`.

        .. math:: K_{ij} = e^{\ell_i + \ell_j} \sum_{pq} \phi_{pi} G^{pq}_{ij} \phi_{qj}
            + \sum_k \rho_{ki} \rho_{kj}

        Arguments:
            features: The features :math:`\phi_p`.
            blocks: The matrices :math:`G^{pq}` for :math:`p \leq q`, each broadcastable to
                :math:`(*, n, n)`; the other blocks are their transposes.
            unit: The blocks have errors of eps times this number, beside relative ones.
        """
        raise NotImplementedError


class Readout(Form):
    r"""The form :math:`\|V \phi\|^2`.

    Arguments:
        matrix: The readout :math:`V`, with shape :math:`(*, m, n)`.
    """

    def gram(self) -> Tensor:
        return self.matrix.mT @ self.matrix

    def log_square(self, features: Features) -> Tensor:
        log_scale, (value,), *_ = features
        if log_scale is not None and value is not None and log_scale.shape[-1] == 1:
            # One scale for all neurons is a factor of the square.
            log_square = self.log_square(Features(None, (value,), None, features.bounded))
            return torch.add(log_square, log_scale.squeeze(-1), alpha=2.0)
        if log_scale is None and self.matrix.dtype != torch.float64:
            # Squares of float32 numbers are float64 numbers: the readout need not be rescaled.
            assert value is not None
            log_size = None
            if not features.bounded:
                value, log_size = _bounded(value)
            rows = _outputs(value, self.matrix).double()  # (*, m)
            log_square = safe_log(torch.linalg.vecdot(rows, rows))
            return log_square if log_size is None else torch.add(log_square, log_size, alpha=2.0)
        matrix, (_, (value,), *_), log_size = self._rescale(features)
        assert value is not None
        if log_scale is None:
            value, log_largest = _bounded(value)
            log_size = log_size + log_largest
        rows = rows_matmul(value, matrix.mT)  # (*, m)
        log_norm = safe_log(torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64))
        return 2.0 * (log_norm + log_size)

    def log_trace(self, features: Features, blocks: Blocks, unit: Tensor | float = 0.0) -> Tensor:
        matrix, log_size = self.matrix, None
        # Rows in float32 have squares in float64: nothing overflows.
        if features.log_scale is not None or matrix.dtype == torch.float64:
            matrix, features, log_size = self._rescale(features)
        if matrix.dim() == 2 and not _one_row_each(features, blocks):
            wide = matrix.double()
            total = _gram_trace(wide.mT @ wide, features, blocks)
        else:
            total = _readout_trace(matrix, features, blocks, unit)
        if features.direct is not None:
            outputs = _direct_outputs(features.direct, matrix).double()
            total = total + (outputs * outputs).sum((-2, -1))
        log_trace = safe_log(total)
        return log_trace if log_size is None else torch.add(log_trace, log_size, alpha=2.0)

    def _rescale(self, features: Features) -> tuple[Tensor, Features, Tensor]:
        matrix = self.matrix.detach()
        if features.log_scale is None:
            largest = matrix.abs().amax((-2, -1), keepdim=True)
            largest = largest.clamp(min=torch.finfo(matrix.dtype).tiny)
            return self.matrix / largest, features, largest.log().squeeze((-2, -1))
        columns = matrix.abs().amax(dim=-2)  # (*, n); any norm will do
        features, column_scale, log_size = _balance(features, columns)
        return self.matrix * column_scale.unsqueeze(-2), features, log_size


class Gram(Form):
    r"""The form :math:`\phi^\top M \phi`.

    Arguments:
        matrix: The matrix :math:`M`, with shape :math:`(*, n, n)`.
    """

    def gram(self) -> Tensor:
        return self.matrix

    def log_square(self, features: Features) -> Tensor:
        # Terms of both signs cancel, where the terms of a readout are squares.
        log_scale, (value,), *_ = features
        ones = self.matrix.new_ones((1, 1), dtype=torch.float64)
        if value is None:
            return self.log_trace(features, {(0, 0): ones})
        value, log_largest = _bounded(value.double())
        log_square = self.log_trace(Features(log_scale, (value,)), {(0, 0): ones})
        return torch.add(log_square, log_largest, alpha=2.0)

    def log_trace(self, features: Features, blocks: Blocks, unit: Tensor | float = 0.0) -> Tensor:
        matrix = self.matrix.double()
        columns = matrix.detach().diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
        features, column_scale, log_size = _balance(features, columns)
        matrix = matrix * column_scale.unsqueeze(-2) * column_scale.unsqueeze(-1)
        total = _gram_trace(matrix, features, blocks)
        if features.direct is not None:
            direct = _padded(features.direct.double(), matrix.dim())
            total = total + quadratic(direct, matrix).sum(0)
        return torch.add(safe_log(total), log_size, alpha=2.0)


def _one_row_each(features: Features, blocks: Blocks) -> bool:
    # Whether each row of features has matrices of its own, so that a gram meets none twice.
    rows = [value.shape[:-1] for value in features.values if value is not None]
    own = broadcast_shapes(*(block.shape[:-2] for block in blocks.values()))
    return len(own) > 0 and bool(rows) and all(shape == own for shape in rows)


def _bounded(value: Tensor) -> tuple[Tensor, Tensor]:
    # Values over the largest of their row, and its logarithm.
    tiny = torch.finfo(value.dtype).tiny
    largest = value.detach().abs().amax(-1, keepdim=True).clamp(min=tiny)
    return value / largest, largest.log().squeeze(-1)


def _outputs(value: Tensor, matrix: Tensor) -> Tensor:
    # The products V φ, (*, m). A product of many small matrices is slower than its terms.
    if matrix.dim() == 3 and value.shape[:-1] == matrix.shape[:1]:
        return (matrix * value.unsqueeze(-2)).sum(-1)
    return rows_matmul(value, matrix.mT)


def _direct_outputs(direct: Tensor, matrix: Tensor) -> Tensor:
    # The products V ρ of features (r, *, n), with shape (*, m, r), or (*, r, m).
    if direct.shape[1:-1] == matrix.shape[:-2]:
        return matrix @ direct.movedim(0, -1)  # gradients in the layout of V
    return rows_matmul(_padded(direct, matrix.dim()), matrix.mT).movedim(0, -2)


def _gram_trace(gram: Tensor, features: Features, blocks: Blocks) -> Tensor:
    r"""Computes :math:`\sum_{pq} \phi_p^\top (M \circ G^{pq}) \phi_q`, where :math:`M` is given."""
    values = features.values
    terms = [
        bilinear(values[p], gram * block, values[q]) * (1.0 if p == q else 2.0)
        for (p, q), block in blocks.items()
        if values[p] is None or values[q] is None
    ]
    for rows, matrix, copies in _bundles(values, blocks):
        tiled = gram if copies == 1 else gram.repeat(*(1,) * (gram.dim() - 2), copies, copies)
        matrix = tiled * _padded(matrix, gram.dim() + 1)
        rank = max(rows.dim() + 1, matrix.dim())
        terms.append(quadratic(_padded(rows, rank - 1), _padded(matrix, rank)).sum(0))
    return sum(terms[1:], terms[0])


def _readout_trace(
    readout: Tensor, features: Features, blocks: Blocks, unit: Tensor | float
) -> Tensor:
    r"""Computes :math:`\sum_{kpq} (V_k \circ \phi_p)^\top G^{pq} (V_k \circ \phi_q)`.

    Rows of the readout, times features, meet blocks that all readouts of a batch share: no gram
    is formed for each of them.
    """
    values, n = features.values, readout.shape[-1]

    def product(value: Tensor | None) -> Tensor:
        return readout if value is None else readout * value.unsqueeze(-2)  # (*, m, n)

    terms = []
    for (p, q), block in blocks.items():
        if values[p] is None or values[q] is None:
            block = _filled(block, n)
            left, right = product(values[p]), product(values[q])
            if p == q:
                terms.append(trace(left, block, unit))
            else:
                block = block if block.dim() == 2 else block.unsqueeze(-3)
                terms.append(2.0 * bilinear(left, block, right).sum(-1))
    for rows, matrix, copies in _bundles(values, blocks):
        tiled = readout if copies == 1 else readout.repeat(*(1,) * (readout.dim() - 1), copies)
        rows = tiled * _padded(rows.unsqueeze(-2), readout.dim() + 1)
        terms.append(_traces(rows, _filled(matrix, copies * n), unit).sum(0))
    return sum(terms[1:], terms[0])


def _filled(block: Tensor, n: int) -> Tensor:
    # A matrix (*, n, n), of which one number may stand for all.
    return block if block.shape[-2:] == (n, n) else block.expand((*block.shape[:-2], n, n))


def _traces(rows: Tensor, matrix: Tensor, unit: Tensor | float) -> Tensor:
    # The traces of rows (k, *, m, n) and matrices (k, *, n, n), with shape (k, *).
    rank = max(rows.dim(), matrix.dim())
    return trace(_padded(rows, rank), _padded(matrix, rank), unit)


def _padded(x: Tensor, rank: int) -> Tensor:
    # With dimensions of length one behind the first one, which is no batch dimension.
    return x if x.dim() >= rank else x.reshape(x.shape[:1] + (1,) * (rank - x.dim()) + x.shape[1:])


def _bundles(
    values: Sequence[Tensor | None], blocks: Blocks
) -> Iterator[tuple[Tensor, Tensor, int]]:
    r"""Stacks features without a cross block, and concatenates features with one.

    Few forms are left to compute: of rows, with shape :math:`(k, *, g n)`, and matrices, with shape
    :math:`(k, *, g n, g n)`, where :math:`g` features make a row.
    """
    present = {p: value for p, value in enumerate(values) if value is not None}
    linked = {k for key in blocks if key[0] != key[1] for k in key if k in present}
    alone = [p for p, q in blocks if p == q and p in present and p not in linked]
    if any(blocks[p, p].dim() > 2 for p in alone):
        # Many matrices take longer to copy than a form takes to compute.
        for p in alone:
            yield present[p].unsqueeze(0), blocks[p, p].unsqueeze(0), 1
    elif alone:
        rows = torch.stack(torch.broadcast_tensors(*(present[p] for p in alone)))
        matrix = torch.stack(torch.broadcast_tensors(*(blocks[p, p] for p in alone)))
        yield rows, matrix, 1
    if linked:
        order = sorted(linked)
        rows = torch.cat(torch.broadcast_tensors(*(present[p] for p in order)), dim=-1)
        corners = [[_corner(blocks, p, q) for q in order] for p in order]
        matrix = torch.cat([torch.cat(line, dim=-1) for line in corners], dim=-2)
        yield rows.unsqueeze(0), matrix.unsqueeze(0), len(order)


def _corner(blocks: Blocks, p: int, q: int) -> Tensor:
    if (p, q) in blocks:
        return blocks[p, q]
    return blocks[q, p].mT if (q, p) in blocks else torch.zeros_like(blocks[p, p])


def _balance(features: Features, columns: Tensor) -> tuple[Features, Tensor, Tensor]:
    r"""Moves the scales of the neurons to where nothing overflows.

    Given the sizes of the columns of the form, returns features without logarithmic scale, factors
    for the columns, and half the logarithm to add to the one of the form.
    """
    if features.log_scale is None:
        largest = columns.amax(-1, keepdim=True).clamp(min=torch.finfo(columns.dtype).tiny)
        return features, 1 / largest, largest.log().squeeze(-1)
    used = columns > 0
    columns = torch.where(used, columns, 1.0)
    # A neuron that is not read has no say in the common scale.
    exponent = torch.where(used, features.log_scale + columns.log(), -torch.inf)
    largest = exponent.detach().amax(-1, keepdim=True)
    largest = torch.where(largest > -torch.inf, largest, 0.0)
    scale = (torch.where(used, features.log_scale, largest) + columns.log() - largest).exp()
    scale = scale.to(columns.dtype)
    values = tuple(scale if value is None else scale * value for value in features.values)
    return Features(None, values), 1 / columns, largest.squeeze(-1)
