r"""Mixtures of boxes for events with sharp edges.

Boxes are the cells of a tree of cuts, each across one coordinate, as in density estimation trees
(Ram and Gray, 2011). With :math:`n_k` of :math:`N` events in a cell of volume :math:`v_k`, the
log-likelihood is

.. math:: \sum_k n_k \log \frac{n_k}{N v_k}.

No single cut makes the events of a checkerboard more likely. So cuts are judged together with one
more cut of either part. A cell is as large as the events in it: a gap between them belongs to none.
"""

__all__ = ["box_mixture", "prefer_boxes"]

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..bases import Base, Gaussian, SmoothBox, SmoothBoxMixture
from .statistics import spread

_MAX_DIM = 8  # coordinates: all pairs of them are looked at
_PLACES = 96  # for cuts, divided among coordinates
_ZOOMS = 2  # how often the place of a cut is refined
_CELLS = 32  # at most
_EVENTS = 40  # in a box, at least
_COST = 10.0  # in nats: what a cut has to gain
# The shortest side of a cell and the least scale of an edge, where events have a spread of 1. Atoms
# are thus no more likely in a box than under a normal law with the least scale of mixtures.
_SHORTEST, _SHARPEST = 3e-3, 1e-4
_NORMALS = 6  # normal laws, for the events that no box explains
_ROUNDS = 30  # of expectation maximisation
_FEWEST = 20.0  # events that a component explains, at least
_HOPELESS = 0.25  # in nats per event: cells that are less likely by more than this stay so
_ERRORS = 2.0  # standard errors by which boxes have to be more likely

Law = TypeVar("Law", bound=Base)


class _Cut(NamedTuple):
    gain: float  # in nats, less the cost; a cut with none is not made
    dim: int
    place: float


def prefer_boxes(base: Law, x: Tensor, held_out: Tensor) -> Law | SmoothBoxMixture:
    r"""A mixture of boxes in place of a law, if it makes other events clearly more likely.

    Arguments:
        base: The law, which was fitted to the events.
        x: The events, with shape :math:`(N, d)` or :math:`(N)`, and a spread of about 1.
        held_out: The other events, with shape :math:`(M, d)` or :math:`(M)`.
    """
    rows = x.unsqueeze(-1) if x.dim() == 1 else x
    if len(held_out) < 2 or rows.shape[-1] > _MAX_DIM or len(rows) < 2 * _EVENTS:
        return base
    score = base.log_density(held_out)
    enough = score.mean().item() - _HOPELESS
    cells = _cells(rows, enough)
    if _log_likelihood(cells) < enough:
        return base
    mixture = box_mixture(x, cells)
    if mixture is None:
        return base
    gain = mixture.log_density(held_out) - score
    return mixture if gain.mean() > _ERRORS * gain.std() / math.sqrt(len(gain)) else base


def _sides(rows: Tensor) -> tuple[Tensor, Tensor]:
    # The ends of the box of the rows (n, d), as far beyond them as they are apart.
    low, high = rows.amin(0), rows.amax(0)
    more = (high - low) / max(1, len(rows) - 1)
    more = torch.maximum(more, (_SHORTEST - (high - low)) / 2)
    return low - more, high + more


def _log_likelihood(cells: list[Tensor]) -> float:
    # In nats per event.
    total = sum(map(len, cells))
    volumes = [(high - low).log().sum().item() for low, high in map(_sides, cells)]
    terms = (
        len(rows) * (math.log(len(rows) / total) - v)
        for rows, v in zip(cells, volumes, strict=True)
    )
    return sum(terms) / total


def _cells(x: Tensor, enough: float = -math.inf) -> list[Tensor]:
    # The events of each cell, (n, d). Cutting ends early where further cuts as good as the best one
    # would not reach a log-likelihood that is enough, in nats per event.
    cells = [(_best_cut(x), x)]
    while len(cells) < _CELLS:
        cells.sort(key=lambda cell: cell[0].gain)
        cut, rows = cells[-1]
        reach = (_CELLS - len(cells)) * cut.gain / len(x)
        if cut.gain <= 0 or _log_likelihood([rows for _, rows in cells]) + reach < enough:
            break
        place = _refined(rows, cut)
        below = rows[:, cut.dim] < place
        cells[-1:] = [(_best_cut(part), part) for part in (rows[below], rows[~below])]
    return [rows for _, rows in cells]


def _edges(rows: Tensor) -> Tensor:
    # The ends of bins of equal length, (d, B + 1).
    bins = max(12, min(48, _PLACES // rows.shape[-1]))
    low, high = rows.amin(0), rows.amax(0)
    length = (high - low).clamp(min=_SHORTEST)
    share = torch.linspace(0, 1, bins + 1, dtype=rows.dtype, device=rows.device)
    return low.unsqueeze(-1) + length.unsqueeze(-1) * share


def _best_cut(rows: Tensor) -> _Cut:
    if len(rows) < 2 * _EVENTS:
        return _Cut(-math.inf, 0, 0.0)
    edges = _edges(rows)
    gain, best = _gains(rows, edges, list(range(len(edges)))).flatten().max(0)
    dim, index = divmod(int(best), edges.shape[-1] - 2)
    return _Cut(float(gain), dim, float(edges[dim, index + 1]))


def _refined(rows: Tensor, cut: _Cut) -> float:
    # The best place near the place of a cut.
    edges, place = _edges(rows), cut.place
    bins = edges.shape[-1] - 1
    step = float(edges[cut.dim, 1] - edges[cut.dim, 0])
    share = torch.linspace(-1, 1, bins + 1, dtype=rows.dtype, device=rows.device)[1:-1]
    for _ in range(_ZOOMS):
        # More edges around the place; as many edges of other coordinates repeat their last one.
        more = edges[:, -1:].expand(-1, bins - 1).clone()
        more[cut.dim] = (place + step * share).clamp(max=edges[cut.dim, -1])
        finer = torch.cat([edges, more], dim=-1).sort(-1).values
        index = int(_gains(rows, finer, [cut.dim])[0].argmax())
        place, step = float(finer[cut.dim, index + 1]), 2 * step / bins
    return place


def _gains(rows: Tensor, edges: Tensor, dims: list[int]) -> Tensor:
    # What cuts of the coordinates in dims gain, less their cost, at the inner edges, (k, B - 1).
    d, bins = edges.shape[0], edges.shape[1] - 1
    index = torch.searchsorted(edges[:, 1:-1].contiguous(), rows.mT.contiguous(), right=True)
    first = index[dims].unsqueeze(1) * bins + index  # (k, d, n)
    offset = torch.arange(len(dims) * d, device=rows.device).reshape(-1, d, 1) * bins**2
    counts = torch.bincount((first + offset).flatten(), minlength=len(dims) * d * bins**2)
    counts = counts.reshape(len(dims), d, bins, bins).to(rows.dtype)
    below = counts.cumsum(-2)[..., :-1, :]  # events on one side of the cut, in the other bins
    parts = torch.stack([below, counts.sum(-2, keepdim=True) - below])  # (2, k, d, B - 1, B)
    # Without a second cut, (2, k, B - 1), and what a second cut adds to it.
    own = torch.arange(len(dims), device=rows.device)
    place = torch.tensor(dims, device=rows.device)
    plain = _likelihood(parts[:, own, place], edges[dims])[..., -1]
    length = edges[:, -1] - edges[:, 0]
    size = parts.sum(-1)  # (2, k, d, B - 1)
    before = _score(size, length.unsqueeze(-1))
    before[:, own, place] = plain
    more = (_likelihood(parts, edges).amax(-1) - before).amax(-2).sum(0)  # (k, B - 1)
    gain = plain.sum(0) - len(rows) * (len(rows) / length[dims]).log().unsqueeze(-1)
    gain = torch.maximum(gain - _COST, gain + more - 3 * _COST)
    return torch.where((size[:, :, 0] > 0).all(0), gain, -torch.inf)


def _likelihood(counts: Tensor, edges: Tensor) -> Tensor:
    # Of events in bins, (*, d, T, B), cut after each bin: the last value is without a cut.
    bins = counts.shape[-1]
    index, full = torch.arange(bins, device=counts.device), counts > 0
    last = torch.where(full, index, -1).cummax(-1).values.clamp(min=0)  # the last full bin so far
    first = torch.where(full, index, bins).flip(-1).cummin(-1).values.flip(-1).clamp(max=bins - 1)
    low, high = edges[:, :-1].unsqueeze(-2), edges[:, 1:].unsqueeze(-2)  # (d, 1, B)
    low, high = low.expand(counts.shape), high.expand(counts.shape)
    start, end = low.gather(-1, first[..., :1]), high.gather(-1, last[..., -1:])
    after = torch.cat([first[..., 1:], first[..., -1:]], dim=-1)
    below = counts.cumsum(-1)
    left = _score(below, high.gather(-1, last) - start)
    return left + _score(below[..., -1:] - below, end - low.gather(-1, after))


def _score(count: Tensor, length: Tensor) -> Tensor:
    # n log(n / v), and zero for no event.
    return torch.where(
        count > 0, count * (count.clamp(min=1) / length.clamp(min=_SHORTEST)).log(), 0.0
    )


def box_mixture(x: Tensor, cells: list[Tensor]) -> SmoothBoxMixture | None:
    r"""A mixture of boxes and normal laws, by expectation maximisation with the boxes held fixed.

    Arguments:
        x: The events, in random order, with shape :math:`(N, d)` or :math:`(N)`.
        cells: The events of each box, with shape :math:`(n_k, d)`.

    Returns:
        None if no cell has enough events.
    """
    cells = [rows for rows in cells if len(rows) >= _EVENTS]
    if not cells:
        return None
    rows = x.unsqueeze(-1) if x.dim() == 1 else x
    low, high = (torch.stack(ends) for ends in zip(*map(_sides, cells), strict=True))
    counts = low.new_tensor([len(cell) for cell in cells])
    scale = ((high - low) / counts.unsqueeze(-1)).clamp(min=_SHARPEST)
    boxes = SmoothBox(low, high, scale, validate_args=False)
    mass, normal = _explained(rows, boxes, counts / counts.sum())
    assert normal.scale is not None
    low, high = torch.cat([low, normal.loc]), torch.cat([high, normal.loc])
    scale = torch.cat([scale, normal.scale])
    kept = mass >= _FEWEST
    kept[len(cells) + normal.scale.log().sum(-1).argmax()] = True  # so that no event is impossible
    logits = mass.clamp(min=1e-3).log()[kept]
    low, high, scale = (value[kept] for value in (low, high, scale))
    if x.dim() == 1:
        low, high, scale = (value.squeeze(-1) for value in (low, high, scale))
    logits, event_dim = logits - logits.mean(), x.dim() - 1
    return SmoothBoxMixture(logits, low, high, scale, event_dim=event_dim, validate_args=False)


def _explained(rows: Tensor, boxes: SmoothBox, weights: Tensor) -> tuple[Tensor, Gaussian]:
    # How many events each box and each normal law explains, (K + L,), and the L normal laws.
    log_boxes = boxes.log_density(rows.unsqueeze(-2))  # (N, K)
    # Centres are events, which are in no order. Random numbers would change what follows.
    loc = rows[:_NORMALS]
    scale = spread(rows).expand(loc.shape)
    mass = len(rows) * torch.cat([weights, weights.new_full((len(loc),), 1 / len(loc))]) / 2
    for _ in range(_ROUNDS):
        normal = Gaussian(loc, scale, validate_args=False)
        log_density = torch.cat([log_boxes, normal.log_density(rows.unsqueeze(-2))], dim=-1)
        shares = (log_density + mass.clamp(min=1e-3).log()).softmax(-1)
        mass, own = shares.sum(0), shares[:, len(weights) :]
        # One more event, with the present moments, keeps a normal law without events finite.
        total = own.sum(0).unsqueeze(-1) + 1
        loc = (own.mT @ rows + loc) / total
        square = (own.unsqueeze(-1) * (rows.unsqueeze(-2) - loc).square()).sum(0)
        scale = ((square + scale.square()) / total).sqrt().clamp(min=_SHORTEST)
    return mass, Gaussian(loc, scale, validate_args=False)
