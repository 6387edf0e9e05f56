r"""Functions on panels as Legendre series, from their values at Gauss-Legendre nodes."""

__all__ = ["LegendreRule", "antiderivative", "derivative_matrix", "legendre", "legendre_rule"]

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class LegendreRule(NamedTuple):
    r"""A Gauss-Legendre rule on :math:`[-1, 1]`.

    Arguments:
        nodes: The nodes, with shape :math:`(n,)`.
        weights: The weights, with shape :math:`(n,)`.
        transform: The matrix from values at the nodes, on its left, to coefficients of Legendre
            polynomials, with shape :math:`(n, n)`.
    """

    nodes: Tensor
    weights: Tensor
    transform: Tensor


def legendre_rule(count: int, like: Tensor) -> LegendreRule:
    r"""The rule with a given number of nodes, with the dtype and device of a tensor."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    basis = np.polynomial.legendre.legvander(nodes, count - 1)
    transform = (basis * weights[:, None]) * (2 * np.arange(count) + 1) / 2
    return LegendreRule(
        *(
            torch.as_tensor(x, dtype=like.dtype, device=like.device)
            for x in (nodes, weights, transform)
        )
    )


def derivative_matrix(count: int, like: Tensor) -> Tensor:
    r"""The matrix from coefficients of a series, on its left, to those of its derivative."""
    rows = [np.polynomial.legendre.legder(row) for row in np.eye(count)]
    matrix = np.stack([np.pad(row, (0, count - len(row))) for row in rows])
    return torch.as_tensor(matrix, dtype=like.dtype, device=like.device)


def legendre(t: Tensor, count: int) -> Tensor:
    r"""The first Legendre polynomials :math:`P_0(t), P_1(t), \ldots`, with shape :math:`(*, n)`."""
    values = [torch.ones_like(t), t]
    for k in range(1, count - 1):
        values.append(((2 * k + 1) * t * values[-1] - k * values[-2]) / (k + 1))
    return torch.stack(values[:count], dim=-1)


def antiderivative(series: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    r"""The integral of a series from -1 to :math:`t`, and the series itself at :math:`t`.

    .. math:: \int P_k = \frac{P_{k + 1} - P_{k - 1}}{2 k + 1}

    Arguments:
        series: The coefficients, with shape :math:`(*, n)`.
        t: Values in :math:`[-1, 1]`, with shape :math:`(*)`.
    """
    count = series.shape[-1]
    values = legendre(t, count + 1)
    factor = 1 / (2 * torch.arange(1, count, dtype=t.dtype, device=t.device) + 1)
    higher = (values[..., 2:] - values[..., : count - 1]) * factor
    integral = torch.cat([(t + 1).unsqueeze(-1), higher], dim=-1)
    return (series * integral).sum(-1), (series * values[..., :count]).sum(-1)
