r"""Exact draws, by whatever is fastest."""

__all__ = ["acceptance_rate", "sample"]

from collections.abc import Callable

import torch
from torch import Size, Tensor

from ..network import Network
from .samplers import Sampler, sampler
from .sequential import sample_sequentially

# Below the first rate one coordinate at a time is faster; below the second nobody would wait.
_SLOW = 1e-3
_HOPELESS = 1e-5


def prepare(network: Network) -> tuple[Network, Sampler | None]:
    r"""The networks of a batch in one dimension, in float64, and their sampler if there is one.

    Arguments:
        network: The network.
    """
    flat = network.to(torch.float64).real().flatten()
    engine = sampler(flat.latent())
    if engine is not None:
        engine.compare_in(network.weight.dtype)
    return flat, engine


@torch.no_grad()
def acceptance_rate(network: Network) -> Tensor:
    r"""The expected share of accepted proposals.

    Arguments:
        network: The network.
    """
    _, engine = prepare(network)
    if engine is None:
        return network.weight.new_ones(network.batch_shape)
    rate = engine.acceptance.expand(network.batch_shape.numel())
    return rate.reshape(network.batch_shape).to(network.weight.dtype)


@torch.no_grad()
def sample(
    network: Network, sample_shape: Size, check: Callable[[Tensor], object] | None = None
) -> Tensor:
    r"""Draws events.

    Arguments:
        network: The network.
        sample_shape: The shape of the sample.
        check: A function that raises an error if a :math:`\log Z` that it is given is not finite.
    """
    flat, engine = prepare(network)
    if check is not None:
        check(flat.log_normalizer() if engine is None else engine.log_normalizer)
    count, members = sample_shape.numel(), network.batch_shape.numel()
    every = torch.arange(members, device=network.weight.device)
    if engine is None:
        rates = torch.zeros_like(every, dtype=torch.float64)
    else:
        rates = engine.acceptance.expand(members)
    slow = ~(rates >= _SLOW)
    event = network.base.event_shape
    latent = flat.weight.new_empty((count, members, *event))
    if count and bool(slow.any()):
        try:
            some = flat.latent().members(every[slow])
            latent[:, slow] = sample_sequentially(some, Size((count,)))
        except NotImplementedError as error:
            least = float(rates.min())
            if engine is None or not least >= _HOPELESS:
                raise NotImplementedError(
                    f"{network.activation} on {network.base} has no sampler that could be "
                    "afforded: rejection would accept one of "
                    f"{1 / max(least, 1e-300):.2g} proposals (acceptance_rate {least:.2g}), and "
                    f"there is no other way: {error}"
                ) from error
            slow = torch.zeros_like(slow)
    if count and engine is not None and not bool(slow.all()):
        rows = every[~slow].repeat(count)
        latent[:, ~slow] = engine.draw(rows).reshape((count, -1, *event))
    x = flat.from_latent(latent).reshape(sample_shape + network.batch_shape + event)
    return network.base.cast(x, network.weight.dtype)
