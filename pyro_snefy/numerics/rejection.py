r"""Rejection sampling (von Neumann 1951) of many rows at once."""

__all__ = ["choose", "poisson", "rejection", "rejection_by_row"]

from collections.abc import Callable

import torch
from torch import Tensor

# A round makes at least this many proposals: fewer would take as long.
_ROUND = 1024


def rejection(
    propose: Callable[[Tensor], tuple[Tensor, Tensor]],
    group: Tensor,
    rate: Tensor,
    most: int = 2**20,
) -> Tensor:
    r"""Draws one accepted proposal for each row.

    Every round proposes for the rows that have no accepted proposal yet. Rows with the same law
    share the proposals that were accepted for any of them.

    Arguments:
        propose: A function from row indices, with shape :math:`(R,)`, to proposals, with shape
            :math:`(R, *)`, and whether each is accepted, with shape :math:`(R,)`. An index is
            repeated to make several proposals for one row.
        group: The number of each row's law, with shape :math:`(N,)`, in ascending order.
        rate: The probability of acceptance of each row, with shape :math:`(N,)`. Rows that are
            rejected far more often than this raise an error.
        most: The largest number of proposals of one round.

    Returns:
        Accepted proposals, with shape :math:`(N, *)`.
    """
    left = torch.arange(len(group), device=group.device)
    result: Tensor | None = None
    least = float(rate.min()) if len(rate) else 1.0
    rounds = 100 + int(100 / least) + int(len(group) / least / most)
    # 1 / rate proposals give one acceptance on average; 20 % more make a second round rare for
    # laws with many rows.
    tries = (1.2 / rate).ceil().clamp(max=most).long()
    for _ in range(rounds if len(left) else 0):
        few = max(1, _ROUND // max(1, int(tries[left].sum())))
        number = few * tries[left]
        some = left[number.cumsum(0) <= max(most, int(number[0]))]
        rows = some.repeat_interleave(number[: len(some)])
        proposals, accepted = propose(rows)
        if result is None:
            result = proposals.new_empty((len(group), *proposals.shape[1:]))
        (chosen,) = accepted.nonzero(as_tuple=True)
        # The accepted proposals of each law go to the rows of this law, one after the other.
        own, others = group[some], group[rows[chosen]]
        start = torch.searchsorted(others, own)
        count = torch.searchsorted(others, own, right=True) - start
        rank = torch.arange(len(own), device=group.device) - torch.searchsorted(own, own)
        done = rank < count
        result[some[done]] = proposals[chosen[(start + rank)[done]]]
        left = torch.cat([some[~done], left[len(some) :]])
        if not len(left):
            return result
    raise RuntimeError(
        f"Nothing was accepted in {rounds} rounds for {len(left)} rows, with a probability of "
        f"{least:.2g} or more for each proposal: expected finite parameters."
    )


def rejection_by_row(
    propose: Callable[[Tensor], tuple[Tensor, Tensor]], like: Tensor, rate: float = 0.4
) -> Tensor:
    r"""As :func:`rejection`, where every row has a law of its own.

    Arguments:
        propose: As in :func:`rejection`.
        like: A tensor with shape :math:`(N, *)`, on the device of the rows.
        rate: The least probability of acceptance of any row.
    """
    left = torch.arange(len(like), device=like.device)
    result, accepted = propose(left)
    for _ in range(100 + int(100 / rate)):
        left = left[~accepted]
        if not len(left):
            return result
        # Each remaining row gets several proposals, and takes the first accepted one.
        tries = max(2, 4 * _ROUND // len(left))
        proposals, every = propose(left.repeat_interleave(tries))
        every = every.reshape(-1, tries)
        accepted = every.any(-1)
        first = every.to(torch.int8).argmax(-1)
        proposals = proposals.unflatten(0, (len(left), tries))
        result[left[accepted]] = proposals[accepted, first[accepted]]
    raise RuntimeError(
        f"Nothing was accepted for {len(left)} rows, with a probability of {rate:.2g} or more for "
        "each proposal: expected finite parameters."
    )


def poisson(rate: Tensor) -> Tensor:
    r"""Draws from Poisson laws, by the normal law where counts overflow the integers of torch.

    The distribution functions differ by less than 0.48 / sqrt(rate) (Berry and Esseen), which is
    2e-8 where the normal law takes over.
    """
    small = torch.poisson(rate.clamp(max=1e15))
    return torch.where(rate < 1e15, small, (rate + rate.sqrt() * torch.randn_like(rate)).round())


def choose(log_weights: Tensor) -> Tensor:
    r"""Draws an index with probability proportional to :math:`e^{\ell_k}`, row by row.

    The logarithms :math:`\ell` have the shape :math:`(N, K)`; minus infinity excludes an index.
    """
    # The Gumbel-max trick (arXiv:1411.0030) forms no sum, which could absorb small weights.
    noise = -torch.empty_like(log_weights).exponential_().log()
    return (log_weights + noise).argmax(-1)
