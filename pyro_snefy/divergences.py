r"""Distances between squared neural families, in closed form.

The integrals are sums over pairs of terms of the two squared networks. The notation is that of
Tsuchida, Ong and Sejdinovic, arXiv:2305.13552.
"""

__all__ = ["l2_distance", "mmd", "total_variation_bound"]

import math

import torch
from torch import Tensor

from .distributions import SNEFY
from .distributions.algebra import same_base
from .numerics.linalg import broadcast_shapes
from .operations.divergences import affinity_bound, overlap


def l2_distance(p: SNEFY, q: SNEFY) -> Tensor:
    r"""The :math:`L^2` distance of two densities.

    .. math:: \left( \int (p(x) - q(x))^2 \, dx \right)^{1/2}

    It is a closed form for ``Cos``, ``Sin`` and ``Cis``, and for ``Exp``, on Gaussian bases and
    their mixtures. The bases may differ. It takes :math:`O(n^4)` time, and bounded memory.

    Arguments:
        p: A family.
        q: Another one, with events of the same shape.

    Returns:
        The distance, with the common batch shape.

    Example:
        >>> from pyro_snefy import SNEFY
        >>> p = SNEFY(torch.randn(4, 2), None, torch.randn(1, 4))
        >>> l2_distance(p, p) < 1e-3
        tensor(True)
    """
    return _distance("l2_distance", p, q, 0.0, 1.0)


def mmd(p: SNEFY, q: SNEFY, length_scale: float) -> Tensor:
    r"""The maximum mean discrepancy with a Gaussian kernel (Gretton et al., JMLR 13, 2012).

    .. math:: \mathrm{MMD}^2 = \mathbb{E} \, k(x, x') - 2 \, \mathbb{E} \, k(x, y)
        + \mathbb{E} \, k(y, y'), \quad k(x, y) = e^{-\|x - y\|^2 / 2 \ell^2}

    Here :math:`x, x' \sim p` and :math:`y, y' \sim q` are independent. It is a closed form where
    :func:`l2_distance` is.

    Arguments:
        p: A family.
        q: Another one, with events of the same shape.
        length_scale: The length scale :math:`\ell > 0`.

    Returns:
        The discrepancy, the root of :math:`\mathrm{MMD}^2`, with the common batch shape.

    Example:
        >>> from pyro_snefy import SNEFY
        >>> p, q = (SNEFY(torch.randn(4, 2), None, torch.randn(1, 4)) for _ in range(2))
        >>> 0 <= mmd(p, q, 0.5) <= 2**0.5
        tensor(True)
    """
    length = float(length_scale)
    if not 0 < length < math.inf:
        raise ValueError(f"mmd: expected a positive and finite length_scale, got {length_scale}.")
    d = p.event_shape.numel()
    return _distance("mmd", p, q, length**2, (2 * math.pi * length**2) ** (d / 2))


def total_variation_bound(p: SNEFY, q: SNEFY) -> Tensor:
    r"""An upper bound of the total variation distance :math:`\frac{1}{2} \int |p - q|`.

    .. math:: \sqrt{1 - F^2}, \quad
        F = \frac{\|V_1 K_{12} V_2^\top\|_*}{\sqrt{Z_1 Z_2}} \leq \int \sqrt{p(x) q(x)} \, dx

    The kernel :math:`K_{12}` is between the neurons of both, and :math:`\|\cdot\|_*` is the nuclear
    norm. The bound is certified, for every activation and base. It is sharp if both readouts have
    one row and the product of the two functions has one sign.

    Arguments:
        p: A family.
        q: Another one, with the same activation and base.

    Returns:
        The bound, with the common batch shape.

    Example:
        >>> from pyro_snefy import SNEFY
        >>> p, q = (SNEFY(torch.randn(4, 2), None, torch.randn(1, 4)) for _ in range(2))
        >>> 0 <= total_variation_bound(p, q) <= 1
        tensor(True)
    """
    _check("total_variation_bound", p, q)
    if p.activation != q.activation or not same_base(p.base, q.base):
        raise ValueError(
            "total_variation_bound: expected families with one activation on one base, got "
            f"{p.activation} on {p.base} and {q.activation} on {q.base}."
        )
    affinity = affinity_bound(*(x._network.to(torch.float64) for x in (p, q)))
    return _expanded(_root((1 - affinity) * (1 + affinity)), p, q)


def _distance(name: str, p: SNEFY, q: SNEFY, variance: float, factor: float) -> Tensor:
    _check(name, p, q)
    first, second = (x._network.to(torch.float64) for x in (p, q))
    width = first.weight.new_tensor(variance)
    same, cross, other = (
        overlap(x, y, width) for x, y in ((first, first), (first, second), (second, second))
    )
    return _expanded(_root(factor * (same - 2 * cross + other)), p, q)


def _root(square: Tensor) -> Tensor:
    # The gradient is zero where rounding leaves nothing of the square.
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)


def _expanded(value: Tensor, p: SNEFY, q: SNEFY) -> Tensor:
    shape = broadcast_shapes(value.shape, p.batch_shape, q.batch_shape)
    return value.to(p.weight.dtype).expand(shape)


def _check(name: str, p: SNEFY, q: SNEFY) -> None:
    for argument, value in (("p", p), ("q", q)):
        if not isinstance(value, SNEFY):
            raise TypeError(f"{name}: expected {argument} to be a SNEFY, got {value!r}.")
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"{name}: expected events of one shape, got {tuple(p.event_shape)} and "
            f"{tuple(q.event_shape)}."
        )
