r"""Log-densities of events with missing coordinates, row by row.

The observed coordinates of a row follow their marginal law (arXiv:2305.13552, section 3.2). Which
coordinates of a row are observed is its pattern.
"""

__all__ = ["check_patterns", "log_numerator_of_boxes", "log_numerator_of_rows", "patterns_of"]

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..bases import Base, Product
from ..kernels import Separable
from ..network import Network
from ..numerics.linalg import rows_matmul
from ..numerics.recompute import recomputed_by_rows
from .intervals import log_box_mass
from .marginals import log_numerator

# Entries of kernel matrices that are held at once where each row has a matrix of its own. A step
# of training holds some fifty such tensors.
_ENTRIES = 2**18


def check_patterns(base: Base, observed: Tensor) -> None:
    r"""Raises if a base without marginal laws, such as a sphere, is observed in part.

    Arguments:
        base: The base, or a product, whose factors are checked.
        observed: Which coordinates are observed, with shape :math:`(*, d)`.
    """
    if isinstance(base, Product):
        for factor, part in zip(base.bases, observed.split(base.lengths, dim=-1), strict=True):
            check_patterns(factor, part)
        return
    if observed.shape[-1] == 1 or type(base).marginal is not Base.marginal:
        return
    if bool((observed.any(-1) != observed.all(-1)).any()):
        raise NotImplementedError(
            f"{base} has no marginal laws in closed form: expected all of its coordinates to be "
            "observed, or none."
        )


def log_numerator_of_rows(network: Network, rows: Tensor, observed: Tensor) -> Tensor:
    r"""The log-density of the observed coordinates of each row, plus :math:`\log Z`.

    Arguments:
        network: The network of all coordinates, with batch shape :math:`(*)`.
        rows: The events, with shape :math:`(*, d)`. Coordinates that are not observed may have any
            value in the support.
        observed: Which coordinates are observed, with shape :math:`(*, d)`.

    Returns:
        The values, with shape :math:`(*)`.
    """
    shape, d = rows.shape[:-1], rows.shape[-1]
    if not shape.numel():
        return network.log_normalizer().expand(shape)
    patterns, pattern = patterns_of(observed.reshape(-1, d))
    one_model = network.weight.dim() == 2 and network.form.matrix.dim() == 2
    if one_model and not network.base.batch_shape:
        separable = _is_separable(network)
        most = len(pattern) if separable else max(1, _ENTRIES // network.width**2)
        blocks = _Blocks(pattern, len(patterns), network.width, most)
        events = rows.reshape(-1, d).to(network.weight.dtype)[blocks.rows]  # (K, R, d)
        partial = network.base.partial(events, patterns[blocks.pattern].unsqueeze(-2))
        if partial is not None:
            weight, bias = network.weight, network.bias
            if bias.dim() > 1:
                bias = bias.expand(*shape, -1).reshape(-1, network.width)[blocks.rows]
            others = replace(
                network,
                base=partial.base,
                # (K, 1, n, D) where there is a mask
                weight=weight if partial.mask is None else weight * partial.mask.unsqueeze(-2),
                bias=bias + rows_matmul(partial.statistic, weight.mT),
            )
            values = others.log_normalizer() if separable else _log_normalizers(others)
            return blocks.unpack(partial.log_density + values).reshape(shape)
    # A base that cannot treat all patterns at once, or a batch of models: one after the other.
    total = rows.new_zeros(shape, dtype=torch.float64)
    for k, mask in enumerate(patterns.tolist()):
        dims = [dim for dim, here in enumerate(mask) if here]
        value = log_numerator(network, dims, rows[..., dims])
        total = torch.where(pattern.reshape(shape) == k, value.double(), total)
    return total


@torch.no_grad()
def _is_separable(network: Network) -> bool:
    # The kernel of one neuron tells its kind.
    return isinstance(replace(network, weight=network.weight[:1]).kernel(), Separable)


def _log_normalizers(network: Network) -> Tensor:
    # For biases (K, R, n), some of the K blocks at a time, and again in the backward pass.
    ranks: dict[int, int] = {}

    def note(x: Tensor, rank: int) -> Tensor:
        ranks[id(x)] = rank
        return x

    def evaluate(tensors: Sequence[Tensor]) -> Tensor:
        return network.with_tensors(tensors).log_normalizer()

    network.base.map_batches(note)
    tensors, (blocks, rows, width) = network.tensors(), network.bias.shape
    shared = [network.weight.dim() == 2, False, True]
    shared += [x.dim() == ranks[id(x)] for x in tensors[3:]]
    dims = [
        None if alone or len(x) != blocks else 0 for x, alone in zip(tensors, shared, strict=True)
    ]
    return recomputed_by_rows(evaluate, tensors, dims, max(1, _ENTRIES // (rows * width**2)), -2)


def log_numerator_of_boxes(
    network: Network, rows: Tensor, below: Tensor, above: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    r"""As :func:`log_numerator_of_rows`, where some coordinates are known to be beyond bounds.

    .. math:: \mu_1(x_1) \int_A \left\| V \sigma(W_1 t_1(x_1) + W_2 t_2(x_2) + b) \right\|^2
        \mu_{2 | 1}(dx_2)

    Here :math:`x_1` is observed, and :math:`A` is the box of the other coordinates.

    Arguments:
        network: The network of all coordinates, with batch shape :math:`(*)`.
        rows: The events, with shape :math:`(*, d)`, and NaN for what is not observed.
        below: Which coordinates are at or below ``low``, with shape :math:`(*, d)`.
        above: Which coordinates are at or above ``high``, with shape :math:`(*, d)`.
        low: The lower bounds, with shape :math:`(d)` or :math:`(*, d)`.
        high: The upper bounds, of the same shape.

    Returns:
        The values, with shape :math:`(*)`.
    """
    shape, d = rows.shape[:-1], rows.shape[-1]
    joint = network.expand(shape).flatten()
    rows, below, above = (x.reshape(-1, d) for x in (rows, below, above))
    if low.dim() > 1:  # bounds of each row
        low, high = (x.expand(*shape, d).reshape(-1, d) for x in (low, high))
    exact = ~(below | above | rows.isnan())
    total = rows.new_zeros(len(rows), dtype=torch.float64)
    patterns, pattern = patterns_of(torch.cat([exact, below, above], dim=-1))
    for k, code in enumerate(patterns):
        own, under, over = code.chunk(3)
        (place,) = (pattern == k).nonzero(as_tuple=True)
        given, hidden = own.nonzero().flatten().tolist(), (~own).nonzero().flatten().tolist()
        values = rows[place][:, given].to(network.weight.dtype)
        some = joint.members(place)
        if not hidden:
            found = some.log_density(values)
        else:
            bounds = (low, high) if low.dim() == 1 else (low[place], high[place])
            ends = (
                torch.where(over, bounds[1], -torch.inf)[..., hidden],
                torch.where(under, bounds[0], torch.inf)[..., hidden],
            )
            density = values.new_zeros(len(place))
            if given:
                density = some.base.marginal(given).log_density(values)
                some = some.condition(given, values).expand(some.batch_shape)
            found = density + log_box_mass(some, *ends)
        total = total.index_put((place,), found.double())
    return total.reshape(shape)


def patterns_of(observed: Tensor) -> tuple[Tensor, Tensor]:
    r"""The distinct patterns, with shape :math:`(K, d)`, and the index of each row's pattern."""
    d = observed.shape[-1]
    if d > 62:
        return torch.unique(observed, dim=0, return_inverse=True)
    # Patterns as binary numbers: numbers are sorted much faster than rows.
    digits = torch.arange(d, device=observed.device)
    numbers, pattern = torch.unique((observed << digits).sum(-1), return_inverse=True)
    return (numbers.unsqueeze(-1) >> digits & 1).bool(), pattern


class _Blocks:
    r"""Rows in blocks of one size, with one pattern for all rows of a block.

    Repeated rows fill the last block of each pattern.
    """

    def __init__(self, pattern: Tensor, count: int, width: int, most: int) -> None:
        # The index of each row's pattern, (N,), the number of patterns, of neurons, and of the rows
        # of a block at most.
        order = pattern.argsort(stable=True)
        counts = torch.bincount(pattern, minlength=count)
        # The kernel of a block costs about as much as one row for each neuron. Of the sizes between
        # the mean and the largest number of rows, the cheapest one is taken.
        sizes = torch.linspace(len(pattern) / count, int(counts.max()), 16, device=pattern.device)
        sizes = sizes.ceil().long().clamp(max=most)
        costs = (-(-counts // sizes.unsqueeze(-1))).sum(-1) * (sizes + width)
        size = int(sizes[costs.argmin()])
        starts = counts.cumsum(0) - counts
        numbers = -(-counts // size)
        firsts = numbers.cumsum(0) - numbers
        kinds = torch.arange(count, device=pattern.device)
        self.pattern = kinds.repeat_interleave(numbers)  # (K,)
        rank = torch.arange(len(self.pattern), device=pattern.device) - firsts[self.pattern]
        within = rank.unsqueeze(-1) * size + torch.arange(size, device=pattern.device)
        within = torch.minimum(within, counts[self.pattern].unsqueeze(-1) - 1)
        self.rows = order[starts[self.pattern].unsqueeze(-1) + within]  # (K, R)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=pattern.device)
        self.place = firsts[pattern] * size + place - starts[pattern]  # (N,)

    def unpack(self, values: Tensor) -> Tensor:
        # From values of the blocks, (K, R), to values of the rows, (N,).
        return values.flatten()[self.place]
