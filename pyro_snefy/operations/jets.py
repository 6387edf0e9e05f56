r"""Moments of lines and waves under products of independent factors, from jets of each factor.

.. math:: J_k(\epsilon) = \int x^{\otimes k} e^{(i \omega + \epsilon s) \cdot t(x)} \mu(dx), \quad
    k = 0, 1, 2

A factor supplies the first Taylor coefficients in :math:`\epsilon`. Those of a product are products
of polynomials. The event :math:`x` of a factor need not be its statistic :math:`t`.
"""

__all__ = ["Rows", "as_complex", "centres", "independent_factors", "sums_over_rows"]

import math
from collections.abc import Sequence
from functools import singledispatch
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..bases import (
    Base,
    FourierBase,
    Product,
    ProjectedGaussian,
    SmoothBox,
    Standardized,
    UniformBox,
    UniformCube,
)
from ..kernels.homogeneous import radial_moment
from ..numerics.linalg import broadcast_shapes, concatenate


class Rows(NamedTuple):
    r"""The function :math:`\sum_{er} c_{re} \, (s_e \cdot t)^r / r! \; e^{i \omega_e \cdot t}`.

    Arguments:
        frequency: :math:`\omega`, with shape :math:`(*, E, D)`.
        direction: :math:`s`, with shape :math:`(*, E, D)`.
        coefficients: :math:`c`, each complex or real, with shape :math:`(*, E)`, for
            :math:`r = 0, 1, \ldots`
    """

    frequency: Tensor
    direction: Tensor
    coefficients: Sequence[Tensor]


class _Jet(NamedTuple):
    # Taylor coefficients of the integrals of 1, (*, E); x, (*, E, d); and x xᵀ, (*, E, d, d).
    mass: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]


def independent_factors(base: Base) -> list[Base] | None:
    """The independent factors of a base that have jets, in the order of their coordinates."""
    if isinstance(base, Product):
        parts = [independent_factors(part) for part in base.bases]
        found = [part for part in parts if part is not None]
        return None if len(found) < len(parts) else [x for part in found for x in part]
    if isinstance(base, SmoothBox | UniformBox | UniformCube) and base.event_dim:
        return [base.marginal([k]) for k in range(base.event_shape[0])]
    inner = base.base if isinstance(base, Standardized) else base
    own = isinstance(inner, FourierBase) and type(inner).statistic is Base.statistic
    return [base] if own or isinstance(inner, UniformCube | ProjectedGaussian) else None


def sums_over_rows(factors: Sequence[Base], rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    r"""The integrals of a function times 1, :math:`x - c` and :math:`(x - c)(x - c)^\top`.

    Statistics are centred: :math:`t` stands for :math:`t - \mathbb{E}[t]`. The centre :math:`c` of
    the events is :func:`centres`.

    Returns:
        Complex tensors, with shapes :math:`(*)`, :math:`(*, d)` and :math:`(*, d, d)`.
    """
    order = len(rows.coefficients) - 1
    sizes = [factor.num_statistics for factor in factors]
    columns = zip(
        factors, rows.frequency.split(sizes, -1), rows.direction.split(sizes, -1), strict=True
    )
    jets = [_jet(factor, omega, direction, order) for factor, omega, direction in columns]
    one = [torch.ones_like(jets[0].mass[0])] + [torch.zeros_like(jets[0].mass[0])] * order
    before = [one]  # products of the masses of the factors before each, and of those after it
    for jet in jets:
        before.append(_times(before[-1], jet.mass))
    after = [one]
    for jet in reversed(jets):
        after.append(_times(after[-1], jet.mass))
    after = after[::-1][1:]
    weights = rows.coefficients
    total = _weighted(weights, before[-1], 0)
    firsts: list[Tensor] = []
    blocks: dict[tuple[int, int], Tensor] = {}
    for f, jet in enumerate(jets):
        others = _times(before[f], after[f])
        firsts.append(_weighted(weights, _times(others, jet.first, 1), 1))
        blocks[f, f] = _weighted(weights, _times(others, jet.second, 2), 2)
        between = _times(before[f], jet.first, 1)  # (*, E, d_f), with the factors up to g
        for g in range(f + 1, len(jets)):
            left = _times(after[g], between, 1)
            blocks[f, g] = _outer(weights, left, jets[g].first)
            between = _times(jets[g].mass, between, 1)
    return total, concatenate(firsts), _assembled(blocks, len(jets))


def centres(factors: Sequence[Base], like: Tensor) -> Tensor:
    """The centres of the events to which :func:`sums_over_rows` refers, with shape (*, d)."""
    return concatenate([_centre(factor, like) for factor in factors])


def _times(left: list[Tensor], right: list[Tensor], rank: int = 0) -> list[Tensor]:
    # The product of two polynomials, up to their degree. The second has ``rank`` more dimensions.
    left = [x[(...,) + (None,) * rank] for x in left]
    result = []
    for k in range(len(left)):
        total = left[0] * right[k]
        for j in range(1, k + 1):
            total = total + left[j] * right[k - j]
        result.append(total)
    return result


def _weighted(weights: Sequence[Tensor], values: list[Tensor], rank: int) -> Tensor:
    # Sums over rows, and over Taylor coefficients.
    pairs = zip(weights, values, strict=True)
    terms = [(c[(...,) + (None,) * rank] * x).sum(-1 - rank) for c, x in pairs]
    return sum(terms[1:], terms[0])


def _outer(weights: Sequence[Tensor], left: list[Tensor], right: list[Tensor]) -> Tensor:
    total = None
    for k, weight in enumerate(weights):
        for j in range(k + 1):
            term = (weight.unsqueeze(-1) * left[j]).mT @ right[k - j]
            total = term if total is None else total + term
    assert total is not None
    return total


def _assembled(blocks: dict[tuple[int, int], Tensor], count: int) -> Tensor:
    rows = []
    for f in range(count):
        row = [blocks[f, g] if f <= g else blocks[g, f].mT for g in range(count)]
        rows.append(concatenate(row).mT)
    return concatenate(rows).mT


# The jets of single factors ---------------------------------------------------------------------


@singledispatch
def _centre(base: Base, like: Tensor) -> Tensor:
    assert isinstance(base, FourierBase)
    return base.mean(like)


@_centre.register(UniformCube)
@_centre.register(ProjectedGaussian)
def _(base: Base, like: Tensor) -> Tensor:
    return like.new_zeros(base.event_shape)


@_centre.register
def _(base: Standardized, like: Tensor) -> Tensor:
    loc, scale = (x if base.event_dim else x.unsqueeze(-1) for x in (base.loc, base.scale))
    return loc + scale * _centre(base.base, like)


@singledispatch
def _jet(base: Base, omega: Tensor, direction: Tensor, order: int) -> _Jet:
    # From derivatives of the characteristic function of the centred statistic, which is x - c.
    assert isinstance(base, FourierBase)
    batch = broadcast_shapes(base.batch_shape, omega.shape[:-2], direction.shape[:-2])
    leaf = omega.new_zeros((*batch, *omega.shape[-2:])).requires_grad_()
    moved = omega + leaf
    mass = as_complex(*base.characteristic(moved))
    first = as_complex(*base.characteristic_moment(moved))
    second = torch.stack([_slope(x, leaf) for x in first.unbind(-1)], dim=-2)
    return _expanded(_Jet([mass], [first], [second]), leaf, direction, order)


def _expanded(jet: _Jet, leaf: Tensor, direction: Tensor, order: int) -> _Jet:
    # Adds Taylor coefficients, by derivatives along the direction.
    def along(x: Tensor) -> Tensor:
        return (_slope(x, leaf) * direction).sum(-1)

    for r in range(1, order + 1):
        for values in jet:
            last = values[-1]
            flat = last.unsqueeze(-1) if last.dim() == leaf.dim() - 1 else last
            flat = flat.flatten(leaf.dim() - 1)
            slopes = torch.stack([along(x) for x in flat.unbind(-1)], dim=-1)
            values.append(slopes.reshape(last.shape) / r)
    return jet


def _slope(value: Tensor, leaf: Tensor) -> Tensor:
    # -i times the gradient of a complex function of each row: (*, E) to (*, E, D).
    parts = []
    for part in (value.imag, -value.real):
        if not part.requires_grad:
            parts.append(torch.zeros_like(leaf))
            continue
        (gradient,) = torch.autograd.grad(
            part.sum(), leaf, create_graph=True, materialize_grads=True
        )
        parts.append(gradient)
    return torch.complex(*parts)


def as_complex(real: Tensor | None, imag: Tensor | None) -> Tensor:
    """A complex tensor, from real and imaginary parts, where None stands for zeros."""
    filler = imag if real is None else real
    assert filler is not None
    zeros = torch.zeros_like(filler)
    return torch.complex(zeros if real is None else real, zeros if imag is None else imag)


@_jet.register
def _(base: Standardized, omega: Tensor, direction: Tensor, order: int) -> _Jet:
    scale = base.scale if base.event_dim else base.scale.unsqueeze(-1)
    scale = scale.unsqueeze(-2)  # (*, 1, d)
    jet = _jet(base.base, omega, direction, order)
    return _Jet(
        jet.mass,
        [scale * x for x in jet.first],
        [scale.unsqueeze(-1) * x * scale.unsqueeze(-2) for x in jet.second],
    )


@_jet.register
def _(base: ProjectedGaussian, omega: Tensor, direction: Tensor, order: int) -> _Jet:
    # A direction, which is the statistic, times an independent radius.
    d = base.num_statistics
    jet = _jet(base.latent(omega), omega, direction, order)
    return _Jet(
        jet.mass,
        [radial_moment(d, 1) * x for x in jet.first],
        [radial_moment(d, 2) * x for x in jet.second],
    )


@_jet.register
def _(base: UniformCube, omega: Tensor, direction: Tensor, order: int) -> _Jet:
    r"""One coordinate :math:`x = \Phi(t)` of a standard normal :math:`t`.

    A normal variable with the mean :math:`i \omega` stands for the wave. With
    :math:`h = i \omega / \sqrt{2}`, the integrals of :math:`\Phi` and :math:`\Phi^2` are
    :math:`e^{h^2} \Phi(h)` and :math:`e^{h^2} (\Phi(h) - 2 T(h, 1 / \sqrt{3}))` with the function
    of Owen (1956). Both are integrals of positive functions over short intervals.
    """
    batch = broadcast_shapes(omega.shape[:-2], direction.shape[:-2])
    leaf = omega.new_zeros((*batch, *omega.shape[-2:])).requires_grad_()
    z = (omega + leaf).squeeze(-1)  # (*, E)
    nodes, weights = (
        torch.as_tensor(x, dtype=z.dtype, device=z.device)
        for x in np.polynomial.legendre.leggauss(32)
    )
    nodes, weights = (nodes + 1) / 2, weights / 2
    square = z.square().unsqueeze(-1) / 4
    decay = (-z.square() / 2).exp()
    odd = z / math.sqrt(4 * math.pi) * ((square * (nodes.square() - 2)).exp() @ weights)
    short = nodes.square() / 3
    owen = (square * (short - 1)).exp() @ (weights / (1 + short)) / (math.sqrt(3) * math.pi)
    jet = _Jet(
        [as_complex(decay, None)],
        [torch.complex(decay / 2, odd).unsqueeze(-1)],
        [torch.complex(decay / 2 - owen, odd)[..., None, None]],
    )
    return _expanded(jet, leaf, direction, order)
