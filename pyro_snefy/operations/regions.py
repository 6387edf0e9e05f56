r"""Regions of highest density and modes of laws of one coordinate.

In each panel the density is a Legendre series. Panels are cut into cells, and cells where the
series turns, so that the density is monotone in each piece. A region of highest density,

.. math:: \{x : p(x) \geq t\}, \quad \int_{p \geq t} p(x) \, dx = q,

is then a sum over pieces, and the threshold :math:`t` its root (Hyndman 1996, "Computing and
graphing highest density regions", The American Statistician 50).
"""

__all__ = ["highest_density_region", "mode"]

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..network import Network
from ..numerics.legendre import antiderivative, derivative_matrix, legendre
from ..numerics.linalg import broadcast_shapes
from .quantiles import coordinate
from .tabulated import NODES, Panels, Table, in_events, tabulated

_CELLS = 8  # of each panel
_FACTOR = 4  # how many times as many panels are tried next
_STEPS = 60  # of Newton's method within a bisection, at most
_SMALL = 1e-12  # of the largest density: what is less does not turn but by rounding
_TIE = 1e-9  # relative differences of densities that count as none
_STEP = 1e-8  # of Newton's method in a panel, whose square is negligible
_ROUNDING = 4 * torch.finfo(torch.float64).eps


class _Segments(NamedTuple):
    """Intervals of rows, flat: the row, the lower and the upper end of each, (N,)."""

    row: Tensor
    low: Tensor
    high: Tensor


class _Cells:
    """The cells of panels, (R, P, cells), with the density at their ends, and where it turns."""

    def __init__(self, table: Table, panels: Panels) -> None:
        self.low, self.length = panels.low, panels.high - panels.low
        self.series = panels.density @ table.rule.transform  # (R, P, nodes)
        like = self.series
        self.derivative = derivative_matrix(NODES, like)
        share = torch.arange(_CELLS + 1, dtype=like.dtype, device=like.device) / _CELLS
        self.ends = -(math.pi * share).cos()
        basis = legendre(self.ends, NODES)
        self.values = self.series @ basis.mT  # (R, P, cells + 1)
        slopes = (self.series @ self.derivative) @ basis.mT
        top = self.values.flatten(1).amax(-1)[:, None, None]
        turns = slopes[..., :-1] * slopes[..., 1:] < 0
        high = torch.maximum(self.values[..., :-1], self.values[..., 1:])
        self.row, self.panel, self.cell = (turns & (high > _SMALL * top)).nonzero(as_tuple=True)
        self.turn = self._turn(slopes)
        self.height = self._at(self.row, self.panel, self.turn)[1]

    def _turn(self, slopes: Tensor) -> Tensor:
        # Where the series turns in each of these cells.
        series = self.series[self.row, self.panel] @ self.derivative
        low, high = self.ends[self.cell], self.ends[self.cell + 1]
        first, last = (slopes[self.row, self.panel, self.cell + k] for k in (0, 1))
        return _root(series, series @ self.derivative, low, high, first, last)

    def _at(self, row: Tensor, panel: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        # The mass of a panel below a place in it, and the density there.
        mass, density = antiderivative(self.series[row, panel], t)
        return mass * self.length[row, panel] / 2, density

    def place(self, row: Tensor, panel: Tensor, t: Tensor) -> Tensor:
        """Values of the coordinate, from places in panels between -1 and 1."""
        return self.low[row, panel] + self.length[row, panel] * (t + 1) / 2

    def masses(self) -> Tensor:
        """The mass of each cell, (R, P, cells)."""
        eye = torch.eye(NODES, dtype=self.ends.dtype, device=self.ends.device)
        integral = antiderivative(eye.unsqueeze(-2), self.ends.expand(NODES, -1))[0]  # (nodes, S)
        return self.series @ integral.diff(dim=-1) * self.length.unsqueeze(-1) / 2

    def bounds(self) -> tuple[Tensor, Tensor]:
        """The least and the largest density in each cell, (R, P, cells)."""
        first, last = self.values[..., :-1], self.values[..., 1:]
        low, high = torch.minimum(first, last), torch.maximum(first, last)
        index = self.row, self.panel, self.cell
        low[index] = torch.minimum(low[index], self.height)
        high[index] = torch.maximum(high[index], self.height)
        return low, high


def _root(
    series: Tensor, slopes: Tensor, low: Tensor, high: Tensor, first: Tensor, last: Tensor
) -> Tensor:
    # Where monotone series are zero, by Newton's method within a bisection, from their values at
    # the first and the last place.
    rising = last > first
    found = low + (high - low) * first / (first - last)
    left = torch.arange(len(found), device=found.device)
    noise = _ROUNDING * series.abs().amax(-1) if len(left) else found
    t = found.clone()
    for _ in range(_STEPS):
        basis = legendre(t, series.shape[-1])
        error, slope = (series * basis).sum(-1), (slopes * basis).sum(-1)
        before = (error < 0) == rising
        low, high = torch.where(before, t, low), torch.where(before, high, t)
        step = t - error / slope
        step = torch.where((step >= low) & (step <= high), step, (low + high) / 2)
        found[left] = step
        # Steps of Newton's method that are small are followed by negligible ones.
        (more,) = (((step - t).abs() > _STEP) & (error.abs() > noise)).nonzero(as_tuple=True)
        if not len(more):
            break
        left, t, noise = left[more], step[more], noise[more]
        series, slopes, rising = series[more], slopes[more], rising[more]
        low, high = low[more], high[more]
    return found


class _Pieces:
    """The pieces of some cells, in each of which the density is monotone, (N,)."""

    def __init__(self, cells: _Cells, chosen: Tensor) -> None:
        place = torch.full_like(chosen, -1, dtype=torch.long)
        turns = torch.arange(len(cells.row), device=chosen.device)
        place[cells.row, cells.panel, cells.cell] = turns
        row, panel, cell = chosen.nonzero(as_tuple=True)
        turn = place[row, panel, cell]
        (two,) = (turn >= 0).nonzero(as_tuple=True)
        low, high = cells.ends[cell], cells.ends[cell + 1]
        first, last = cells.values[row, panel, cell], cells.values[row, panel, cell + 1]
        middle, height = cells.turn[turn[two]], cells.height[turn[two]]
        # The second pieces of cells with two pieces are at the end.
        self.row, self.panel = torch.cat([row, row[two]]), torch.cat([panel, panel[two]])
        self.low = torch.cat([low, middle])
        self.high = torch.cat([high.index_put((two,), middle), high[two]])
        self.first = torch.cat([first, height])
        self.last = torch.cat([last.index_put((two,), height), last[two]])
        self.cells = cells
        self.series = cells.series[self.row, self.panel]
        self.slopes = self.series @ cells.derivative

    def of_rows(self, chosen: Tensor) -> "_Pieces":
        """The pieces of some rows."""
        kept = chosen[self.row]
        new = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(new, name, value[kept])
        return new

    def above(self, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The ends of the part of each piece above thresholds (R,), and whether one is inside."""
        target = threshold[self.row]
        rising = self.last > self.first
        none = torch.maximum(self.first, self.last) < target
        every = torch.minimum(self.first, self.last) >= target
        inside = ~(none | every)
        (crossed,) = inside.nonzero(as_tuple=True)
        series = self.series[crossed]
        series[:, 0] -= target[crossed]
        given = (self.slopes, self.low, self.high, self.first - target, self.last - target)
        t = self.low.index_put((crossed,), _root(series, *(x[crossed] for x in given)))
        low = torch.where(every | ~rising, self.low, torch.where(none, self.high, t))
        high = torch.where(every | (rising & ~none), self.high, torch.where(none, low, t))
        return low, high, inside

    def mass(self, low: Tensor, high: Tensor) -> Tensor:
        """The mass of parts of the pieces."""
        upper, lower = (self.cells._at(self.row, self.panel, t)[0] for t in (high, low))
        return upper - lower

    def rate(self, low: Tensor, high: Tensor, inside: Tensor, threshold: Tensor) -> Tensor:
        """How fast the mass above thresholds falls when they rise."""
        t = torch.where(self.last > self.first, low, high)
        slope = (self.slopes * legendre(t, NODES)).sum(-1).abs()
        rate = threshold[self.row] * self.cells.length[self.row, self.panel] / (2 * slope)
        return torch.where(inside & (slope > 0), rate, 0.0)


def _sum_by(row: Tensor, values: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).index_add(0, row, values)


def _first_above(values: Tensor, masses: Tensor, level: Tensor) -> Tensor:
    # The largest t for which cells with a value of at least t have the mass of the level.
    values, order = values.sort(dim=-1, descending=True)
    total = masses.gather(-1, order).cumsum(-1)
    place = torch.searchsorted(total, level.unsqueeze(-1)).clamp(max=values.shape[-1] - 1)
    return values.gather(-1, place).squeeze(-1)


def _superlevel(
    table: Table, panels: Panels, level: Tensor, bound: Tensor
) -> tuple[_Segments, Tensor]:
    # The regions of rows whose thresholds are not below a bound, and which rows these are.
    cells = _Cells(table, panels)
    masses, (least, most) = cells.masses(), cells.bounds()
    flat = masses.flatten(1)
    low, high = (_first_above(x.flatten(1), flat, level) for x in (least, most))
    low, high = low * (1 - _TIE), high * (1 + _TIE)
    enough = (flat.sum(-1) >= level) & (low >= bound) | (bound == -torch.inf)
    chosen = enough[:, None, None]
    whole = chosen & (least >= high[:, None, None])
    pieces = _Pieces(cells, chosen & ~whole & (most > low[:, None, None]))
    fixed = torch.where(whole, masses, 0.0).sum((-2, -1))
    threshold = _threshold(pieces, fixed, level, enough, low, high)
    start, end, _ = pieces.above(threshold)
    runs = _runs(whole, cells, panels)
    row, panel = pieces.row, pieces.panel
    parts = _Segments(row, cells.place(row, panel, start), cells.place(row, panel, end))
    kept = end > start
    parts = _Segments(*(x[kept] for x in parts))
    joined = _Segments(*(torch.cat(pair) for pair in zip(runs, parts, strict=True)))
    return _merged(joined, cells.length.amin(-1)), enough


def _threshold(
    pieces: _Pieces, fixed: Tensor, level: Tensor, wanted: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    # The threshold of each row, by Newton's method within a bisection. Where the density is
    # constant there may be none: the region then has the mass of the level at least.
    t, error = (low + high) / 2, torch.zeros_like(low)
    for _ in range(_STEPS):
        start, end, inside = pieces.above(t)
        mass = fixed + _sum_by(pieces.row, pieces.mass(start, end), fixed)
        error = torch.where(wanted, mass - level, error)
        rate = _sum_by(pieces.row, pieces.rate(start, end, inside, t), fixed)
        low, high = torch.where(error >= 0, t, low), torch.where(error >= 0, high, t)
        wanted = wanted & (error.abs() > 1e-11) & (high - low > _ROUNDING * high)
        if not bool(wanted.any()):
            break
        pieces = pieces.of_rows(wanted)
        step = t + error / rate
        step = torch.where((step > low) & (step < high), step, (low + high) / 2)
        t = torch.where(wanted, step, t)
    return torch.where(error.abs() <= 1e-9, t, low * (1 - _TIE))


def _runs(inside: Tensor, cells: _Cells, panels: Panels) -> _Segments:
    # Runs of neighbouring cells (R, P, cells) that are inside.
    apart = torch.nn.functional.pad(panels.low[:, 1:] != panels.high[:, :-1], (1, 1), value=True)
    flat = inside.flatten(1)
    before = torch.nn.functional.pad(flat[:, :-1], (1, 0)).reshape(inside.shape)
    after = torch.nn.functional.pad(flat[:, 1:], (0, 1)).reshape(inside.shape)
    before[..., 0] &= ~apart[:, :-1]
    after[..., -1] &= ~apart[:, 1:]
    row, panel, cell = (inside & ~before).nonzero(as_tuple=True)
    _, last, end = (inside & ~after).nonzero(as_tuple=True)
    low = cells.place(row, panel, cells.ends[cell])
    return _Segments(row, low, cells.place(row, last, cells.ends[end + 1]))


def _merged(segments: _Segments, length: Tensor) -> _Segments:
    # Segments that touch, up to rounding, are one. An empty segment is before one that starts with
    # it: panels may be as short as the rounding of their ends.
    order = segments.high.argsort()
    order = order[segments.low[order].argsort(stable=True)]
    order = order[segments.row[order].argsort(stable=True)]
    row, low, high = (x[order] for x in segments)
    if not len(row):
        return segments
    new = torch.ones_like(row, dtype=torch.bool)
    nothing = 1e-11 * length[row[1:]] + _ROUNDING * low[1:].abs()
    new[1:] = (row[1:] != row[:-1]) | (low[1:] - high[:-1] > nothing)
    last = torch.ones_like(new)
    last[:-1] = new[1:]
    return _Segments(row[new], low[new], high[last])


def _is_discrete(table: Table, network: Network) -> bool:
    if table.has_atoms and table.diffuse:
        raise NotImplementedError(
            f"No highest density for {network.base}: a density and masses of points do not compare."
        )
    return table.has_atoms


def _points(table: Table, rows: Tensor, level: Tensor) -> tuple[_Segments, Tensor]:
    # Runs of the fewest points that have the probability of the level.
    points, masses = table.atoms(rows)
    threshold = _first_above(masses, masses, level * (1 - _TIE)).unsqueeze(-1)
    inside = (masses >= threshold * (1 - _TIE)) & (masses > 0)
    outside = torch.nn.functional.pad(~inside, (1, 1), value=True)
    row, first = (inside & outside[:, :-2]).nonzero(as_tuple=True)
    _, last = (inside & outside[:, 2:]).nonzero(as_tuple=True)
    return _Segments(row, points[first], points[last]), torch.ones_like(rows, dtype=torch.bool)


# From numbers of rows and of panels to segments, and to which rows the panels are enough for.
_Search = Callable[[Tensor, int], tuple[_Segments, Tensor]]


def _searched(table: Table, count_rows: int, search: _Search) -> _Segments:
    # Segments of rows, from as many panels as are enough.
    none = table.rule.nodes[:0]
    found = [_Segments(none.long(), none, none)]
    left, count = torch.arange(count_rows, device=none.device), table.first
    while len(left):
        again = []
        for index in left.split(table.at_once(count)):
            segments, enough = search(index, count)
            found.append(_Segments(index[segments.row], segments.low, segments.high))
            again.append(index[~enough])
        left, count = torch.cat(again), min(_FACTOR * count, table.count)
    row, low, high = (torch.cat(parts) for parts in zip(*found, strict=True))
    order = row.argsort(stable=True)
    return _Segments(row[order], low[order], high[order])


def _padded(segments: _Segments, count: int) -> tuple[Tensor, Tensor]:
    # The lower and upper ends of sorted segments, each (k, rows), with NaN where a row has fewer.
    row = segments.row
    every = torch.arange(len(row), device=row.device)
    rank = every - torch.searchsorted(row, row)
    size = int(rank.max()) + 1 if len(row) else 1
    empty = segments.low.new_full((size, count), torch.nan)
    return empty.index_put((rank, row), segments.low), empty.index_put((rank, row), segments.high)


def _to_events(network: Network, dim: int, x: Tensor) -> Tensor:
    # From values that a table has.
    x = x.unsqueeze(-1) if network.base.event_dim else x
    return x if in_events(network, dim) else coordinate(network, dim).from_latent(x)


@torch.no_grad()
def highest_density_region(network: Network, dim: int, level: Tensor) -> tuple[Tensor, Tensor]:
    r"""The smallest set with a given probability, as intervals.

    Arguments:
        network: The network.
        dim: The coordinate.
        level: The probabilities, with shape :math:`(*)`, each between zero and one.

    Returns:
        The lower and the upper ends of the intervals in ascending order, each with shape
        :math:`(k, *, \text{event})`, and NaN where there are fewer than :math:`k`.
    """
    dtype = torch.promote_types(level.dtype, network.weight.dtype)
    network = network.to(torch.float64)
    shape = broadcast_shapes(level.shape, network.batch_shape)
    q = level.double().expand(shape).flatten()
    table = tabulated(network, dim)
    rows = torch.arange(len(q), device=q.device) % max(1, table.rows)

    discrete = _is_discrete(table, network)

    def search(index: Tensor, count: int) -> tuple[_Segments, Tensor]:
        if discrete:
            return _points(table, rows[index], q[index])
        panels, bound = table.panels(rows[index], count), table.bound(rows[index], count)
        return _superlevel(table, panels, q[index], bound)

    ends = _padded(_searched(table, len(q), search), len(q))
    low, high = (_to_events(network, dim, x.reshape(-1, *shape)).to(dtype) for x in ends)
    return low, high


@torch.no_grad()
def mode(network: Network, dim: int) -> Tensor:
    r"""Where the density is largest, with shape :math:`(*, \text{event})`.

    Arguments:
        network: The network.
        dim: The coordinate.
    """
    dtype, network = network.weight.dtype, network.to(torch.float64)
    table = tabulated(network, dim)
    discrete = _is_discrete(table, network)

    def search(index: Tensor, count: int) -> tuple[_Segments, Tensor]:
        if not discrete:
            return _highest(table, table.panels(index, count), table.bound(index, count))
        points, masses = table.atoms(index)
        x = points[masses.argmax(-1)]
        return _Segments(index - index[0], x, x), torch.ones_like(index, dtype=torch.bool)

    x = _searched(table, table.rows, search).low
    return _to_events(network, dim, x.reshape(network.batch_shape)).to(dtype)


def _highest(table: Table, panels: Panels, bound: Tensor) -> tuple[_Segments, Tensor]:
    # The highest point of each row: an end of a cell, or where the density turns.
    cells = _Cells(table, panels)
    height, place = cells.values.flatten(1).max(-1)
    rows = torch.arange(len(height), device=height.device)
    panel, end = place // (_CELLS + 1), place % (_CELLS + 1)
    x = cells.place(rows, panel, cells.ends[end])
    turned = cells.place(cells.row, cells.panel, cells.turn)
    most = height.scatter_reduce(0, cells.row, cells.height, "amax")
    first = torch.where(height == most, x, torch.inf)
    candidate = torch.where(cells.height == most[cells.row], turned, torch.inf)
    first = first.scatter_reduce(0, cells.row, candidate, "amin")
    enough = most >= bound
    return _Segments(rows[enough], first[enough], first[enough]), enough
