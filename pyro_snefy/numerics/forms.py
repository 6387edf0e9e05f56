r"""Quadratic forms :math:`\|V \phi\|^2` and :math:`\phi^\top M \phi` in logarithmic scale.

A form meets two kinds of features: those of one event, which give the numerator of a density, and
those of a kernel, :math:`\phi_p(b)` with blocks :math:`G^{pq}`, which give its normaliser. Either
comes as a logarithmic scale :math:`\ell`, or None for zeros, and values :math:`\phi`, or None for
ones, which stand for the product :math:`e^{\ell} \phi`. Rows and columns of the form are rescaled
by constants before anything is exponentiated, so that nothing overflows.
"""

__all__ = ["Blocks", "Features", "Form", "Gram", "Readout"]

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .linalg import bilinear, rows_matmul, safe_log

Blocks = Mapping[tuple[int, int], Tensor]


class Features(NamedTuple):
    r"""Features :math:`e^{\ell_i} \phi_{p i}` of the neurons.

    Arguments:
        log_scale: The scale :math:`\ell`, with shape :math:`(*, n)`, or None for zeros.
        values: For each :math:`p`, values with shape :math:`(*, n)`, or None for ones.

    Example:
        >>> Readout(torch.ones(1, 2)).log_square(Features(None, (torch.ones(2),))).exp()
        tensor(4.0000, dtype=torch.float64)
    """

    log_scale: Tensor | None
    values: tuple[Tensor | None, ...]


class Form:
    r"""A positive semi-definite quadratic form on the features of :math:`n` neurons."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def gram(self) -> Tensor:
        r"""The matrix :math:`M` of the form, with shape :math:`(*, n, n)`."""
        raise NotImplementedError

    def to(self, dtype: torch.dtype) -> "Form":
        """The same form in another dtype."""
        return self if self.matrix.dtype == dtype else type(self)(self.matrix.to(dtype))

    def unsqueeze(self) -> "Form":
        """The same form with one more batch dimension, on the right; one form stays one."""
        if self.matrix.dim() == 2:
            return self
        return type(self)(self.matrix.unsqueeze(-3))

    def log_square(self, features: Features) -> Tensor:
        r"""The logarithm of the form at features with a single :math:`\phi`."""
        raise NotImplementedError

    def log_trace(self, features: Features, blocks: Blocks) -> Tensor:
        r"""The logarithm of :math:`\sum_{ij} M_{ij} K_{ij}`.

        .. math:: K_{ij} = \sum_{pq} e^{\ell_i} \phi_{pi} G^{pq}_{ij} \phi_{qj} e^{\ell_j}

        Arguments:
            features: The features :math:`\phi_p`.
            blocks: The matrices :math:`G^{pq}` for :math:`p \leq q`, each broadcastable to
                :math:`(*, n, n)`; the other blocks are their transposes.
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
        matrix, log_scale = self.matrix, None
        # Squares of float32 are numbers in float64, so that these need no scale.
        if features.log_scale is not None or matrix.dtype == torch.float64:
            matrix, features, log_scale = self._rescale(features)
        value = features.values[0]
        assert value is not None
        rows = rows_matmul(value, matrix.mT)  # (*, m)
        log_norm = safe_log(torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64))
        return 2 * log_norm if log_scale is None else 2 * log_norm + log_scale

    def log_trace(self, features: Features, blocks: Blocks) -> Tensor:
        matrix, features, log_scale = self._rescale(features)
        if matrix.dim() == 2:
            return safe_log(_trace(matrix.mT @ matrix, features, blocks)) + log_scale
        # One readout per row: rows V_k * phi against shared blocks, and no gram per row.
        rows = [
            matrix if value is None else matrix * value.unsqueeze(-2) for value in features.values
        ]
        total = None
        for (p, q), block in blocks.items():
            block = block.expand(torch.broadcast_shapes(block.shape, matrix.shape[-1:] * 2))
            term = bilinear(rows[p], block.unsqueeze(-3), rows[q]).sum(-1)
            term = term if p == q else 2 * term
            total = term if total is None else total + term
        assert total is not None
        return safe_log(total) + log_scale

    def _rescale(self, features: Features) -> tuple[Tensor, Features, Tensor]:
        columns = self.matrix.detach().abs().amax(dim=-2)  # (*, n); any norm will do
        features, column_scale, log_scale = _balance(features, columns)
        return self.matrix * column_scale.unsqueeze(-2), features, log_scale


class Gram(Form):
    r"""The form :math:`\phi^\top M \phi`.

    Arguments:
        matrix: The matrix :math:`M`, with shape :math:`(*, n, n)`.
    """

    def gram(self) -> Tensor:
        return self.matrix

    def log_square(self, features: Features) -> Tensor:
        # Terms of both signs cancel, where those of a readout are squares.
        log_scale, (value,) = features
        wide = Features(log_scale, (None if value is None else value.double(),))
        ones = self.matrix.new_ones((1, 1), dtype=torch.float64)
        return Gram(self.matrix.double()).log_trace(wide, {(0, 0): ones})

    def log_trace(self, features: Features, blocks: Blocks) -> Tensor:
        columns = self.matrix.detach().diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
        features, column_scale, log_scale = _balance(features, columns)
        matrix = self.matrix * column_scale.unsqueeze(-2) * column_scale.unsqueeze(-1)
        return safe_log(_trace(matrix, features, blocks)) + log_scale


def _trace(matrix: Tensor, features: Features, blocks: Blocks) -> Tensor:
    total = None
    for (p, q), block in blocks.items():
        term = bilinear(features.values[p], matrix * block, features.values[q])
        term = term if p == q else 2 * term
        total = term if total is None else total + term
    assert total is not None
    return total


def _balance(features: Features, columns: Tensor) -> tuple[Features, Tensor, Tensor]:
    r"""Moves the scales of the neurons to where nothing overflows.

    Arguments:
        features: The features.
        columns: The sizes of the columns of the form, detached, with shape :math:`(*, n)`.

    Returns:
        Features without logarithmic scale, factors for the columns of the form, with shape
        :math:`(*, n)` or :math:`(*, 1)`, and the logarithm to add to that of the form.
    """
    if features.log_scale is None:
        largest = columns.amax(-1, keepdim=True)
        largest = torch.where(largest > 0, largest, 1.0)
        return features, 1 / largest, 2 * largest.log().squeeze(-1)
    used = columns > 0
    columns = torch.where(used, columns, 1.0)
    # A neuron that is not read has no say in the common scale.
    exponent = torch.where(used, features.log_scale + columns.log(), -torch.inf)
    largest = exponent.detach().amax(-1, keepdim=True)
    largest = torch.where(largest > -torch.inf, largest, 0.0)
    scale = (torch.where(used, features.log_scale, largest) + columns.log() - largest).exp()
    scale = scale.to(columns.dtype)
    values = tuple(scale if value is None else scale * value for value in features.values)
    return Features(None, values), 1 / columns, 2 * largest.squeeze(-1)
