r"""Rejection sampling of many rows at once."""

__all__ = ["choose", "rejection"]

from collections.abc import Callable

import torch
from torch import Tensor

# Proposals of one round when few rows are left: several for each row cost as much as one.
_ROUND = 4096


def rejection(
    propose: Callable[[Tensor], tuple[Tensor, Tensor]],
    count: int,
    device: torch.device,
    acceptance: float = 0.1,
) -> Tensor:
    r"""Proposes for all rows that have nothing yet, until all rows have something.

    Arguments:
        propose: A function from the indices of rows, with shape :math:`(R,)` and maybe repeated,
            to proposals, with shape :math:`(R, *)`, and whether they are accepted, with shape
            :math:`(R,)`.
        count: The number of rows.
        device: Where the indices are to be.
        acceptance: The least probability of acceptance of any row. Rows that are rejected far
            more often are an error, not a reason to wait.

    Returns:
        The first accepted proposal of each row, with shape :math:`(\text{count}, *)`.
    """
    left = torch.arange(count, device=device)
    result: Tensor | None = None
    rounds = int(100 / acceptance)
    for _ in range(rounds):
        tries = max(1, _ROUND // max(1, len(left)))
        proposals, accepted = propose(left.repeat_interleave(tries))
        if result is None:
            result = proposals.new_empty((count, *proposals.shape[1:]))
        accepted = accepted.reshape(-1, tries)
        first = accepted.to(torch.int8).argmax(-1)  # the first of the largest
        done = accepted.any(-1)
        place = torch.arange(len(left), device=device) * tries + first
        result[left[done]] = proposals[place[done]]
        left = left[~done]
        if not len(left):
            return result
    raise RuntimeError(
        f"No proposal was accepted in {rounds} rounds for {len(left)} of {count} rows, each with "
        f"a probability of {acceptance:.2g} or more: expected finite parameters."
    )


def choose(log_weights: Tensor) -> Tensor:
    r"""Draws an index with probability proportional to :math:`e^{\ell_k}`, row by row.

    Arguments:
        log_weights: The logarithms :math:`\ell`, with shape :math:`(N, K)`; minus infinity for
            what is never drawn.

    Returns:
        Indices, with shape :math:`(N,)`.
    """
    # Gumbel's trick: no sum is formed, so that nothing is lost of small weights.
    noise = -torch.empty_like(log_weights).exponential_().log()
    return (log_weights + noise).argmax(-1)
