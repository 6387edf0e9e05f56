r"""Exact draws, by whatever is fastest."""

__all__ = ["acceptance_rate", "sample"]

from typing import Any

import torch
from torch import Size, Tensor

from ..network import Network
from .samplers import Sampler, flatten, sampler
from .sequential import sample_sequentially

# Below the first rate one coordinate at a time is faster; below the second nobody would wait.
_SLOW = 1e-3
_HOPELESS = 1e-5


def _prepare(law: Any) -> tuple[Network, Sampler | None]:
    network = flatten(law._network(torch.float64).real(), law.batch_shape)
    engine = sampler(network)
    if engine is not None:
        engine.to(law.weight.dtype)
    return network, engine


@torch.no_grad()
def acceptance_rate(law: Any) -> Tensor:
    r"""The expected share of accepted proposals.

    Arguments:
        law: A :class:`~pyro_snefy.SNEFY`.
    """
    _, engine = _prepare(law)
    if engine is None:
        return law.weight.new_ones(law.batch_shape)
    rate = engine.acceptance.expand(law.batch_shape.numel())
    return rate.reshape(law.batch_shape).to(law.weight.dtype)


@torch.no_grad()
def sample(law: Any, sample_shape: Size) -> Tensor:
    r"""Draws from a squared neural family.

    Arguments:
        law: A :class:`~pyro_snefy.SNEFY`.
        sample_shape: The shape of the sample.
    """
    if law._validate_args:
        law._log_normalizer()  # raises where there is nothing to draw from
    network, engine = _prepare(law)
    count, members = sample_shape.numel(), law.batch_shape.numel()
    device, event = law.weight.device, law.event_shape
    every = torch.arange(members, device=device)
    if engine is None:
        slow = torch.ones_like(every, dtype=torch.bool)
        rates = torch.zeros_like(every, dtype=torch.float64)
    else:
        rates = engine.acceptance.expand(members)
        slow = ~(rates >= _SLOW)
    x = network.weight.new_empty((count, members, *event))
    if count and bool(slow.any()):
        try:
            some = law.from_network(network.take(every[slow])).expand(Size((int(slow.sum()),)))
            x[:, slow] = sample_sequentially(some, Size((count,)))
        except NotImplementedError as error:
            least = float(rates.min())
            if engine is None or not least >= _HOPELESS:
                raise NotImplementedError(
                    f"{law} has no sampler that could be afforded: rejection would accept one of "
                    f"{1 / max(least, 1e-300):.2g} proposals (acceptance_rate {least:.2g}), and "
                    f"there is no other way: {error}"
                ) from error
            slow = torch.zeros_like(slow)
    if count and engine is not None and not bool(slow.all()):
        rows = every[~slow].repeat(count)
        x[:, ~slow] = engine.draw(rows).reshape((count, -1, *event))
    x = x.reshape(sample_shape + law.batch_shape + event)
    return law.base.cast(x, law.weight.dtype)
