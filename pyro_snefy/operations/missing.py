r"""Log-densities of events of which some coordinates are not observed, row by row."""

__all__ = ["log_numerator_of_rows", "patterns_of"]

from dataclasses import replace

import torch
from torch import Tensor

from ..network import Network
from ..numerics.linalg import rows_matmul
from .marginals import log_numerator


def log_numerator_of_rows(network: Network, rows: Tensor, observed: Tensor) -> Tensor:
    r"""The log-density of what is observed, plus :math:`\log Z`, for rows with a pattern each.

    Arguments:
        network: The network of all coordinates, with batch shape :math:`(*)`.
        rows: The events, with shape :math:`(*, d)`, and any values of the support where they are
            not observed.
        observed: Which coordinates are observed, with shape :math:`(*, d)`.

    Returns:
        The values, with shape :math:`(*)`.
    """
    shape, d = rows.shape[:-1], rows.shape[-1]
    patterns, pattern = patterns_of(observed.reshape(-1, d))
    one_model = network.weight.dim() == 2 and network.form.matrix.dim() == 2
    if one_model and not network.base.batch_shape:
        blocks = _Blocks(pattern, len(patterns))
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
            values = partial.log_density + others.log_normalizer()
            return blocks.unpack(values).reshape(shape)
    # Without a way to do them all at once, patterns are taken one after the other.
    total = rows.new_zeros(shape, dtype=torch.float64)
    for k, mask in enumerate(patterns.tolist()):
        dims = [dim for dim, here in enumerate(mask) if here]
        value = log_numerator(network, dims, rows[..., dims])
        total = torch.where(pattern.reshape(shape) == k, value.double(), total)
    return total


def patterns_of(observed: Tensor) -> tuple[Tensor, Tensor]:
    r"""Finds the rows that differ, with shape :math:`(K, d)`, and which of them each row is."""
    d = observed.shape[-1]
    if d > 62:
        return torch.unique(observed, dim=0, return_inverse=True)
    # As binary numbers, which are sorted much faster than rows.
    digits = torch.arange(d, device=observed.device)
    numbers, pattern = torch.unique((observed << digits).sum(-1), return_inverse=True)
    return (numbers.unsqueeze(-1) >> digits & 1).bool(), pattern


class _Blocks:
    r"""Rows in blocks of one size, so that all rows of a block have one pattern.

    There are at most twice as many blocks as patterns, and the last rows of a pattern are repeated
    to fill its last block.

    Arguments:
        pattern: The pattern of each row, with shape :math:`(N,)`.
        count: The number of patterns.
    """

    def __init__(self, pattern: Tensor, count: int) -> None:
        size = -(-len(pattern) // count)
        order = pattern.argsort(stable=True)
        counts = torch.bincount(pattern, minlength=count)
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
        r"""The values of the rows, from those of the blocks, with shape :math:`(K, R)`."""
        return values.flatten()[self.place]
