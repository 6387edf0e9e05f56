r"""Exact draws: by rejection, by inversion, or one coordinate at a time, as it costs less."""

__all__ = ["acceptance_rate", "sample"]

import math
from collections.abc import Callable

import torch
from torch import Size, Tensor

from ..kernels import Kernel
from ..network import Network
from .samplers import Sampler, find_sampler
from .sequential import price, sample_sequentially

# A thousand proposals take a few milliseconds: no other way is looked for above this rate.
_GOOD = 1e-3
# Of many laws: a table of quantiles that they share may be cheaper below this rate.
_GOOD_OF_MANY = 1 / 64
# Below this rate a draw takes up to a second or more: an error, if there is no other way.
_HOPELESS = 1e-5


def prepare(network: Network, draws: float = math.inf) -> tuple[Network, Sampler | None]:
    """The networks of a batch in one dimension, in float64, and their sampler if there is one."""
    flat = network.to(torch.float64).real().flatten()
    engine = find_sampler(flat.latent(), draws)
    if engine is not None:
        engine.compare_in(network.weight.dtype)
    return flat, engine


@torch.no_grad()
def acceptance_rate(network: Network) -> Tensor:
    r"""The expected share of accepted proposals, under the best envelope.

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
    network: Network,
    sample_shape: Size,
    check: Callable[[Tensor, Network, Kernel], object] | None = None,
) -> Tensor:
    r"""Draws events.

    Arguments:
        network: The network.
        sample_shape: The shape of the sample.
        check: A function of :math:`\log Z`, the network and its kernel, in float64 and with one
            batch dimension. It raises an error if :math:`Z` is not positive and finite.
    """
    count, members = sample_shape.numel(), network.batch_shape.numel()
    flat, engine = prepare(network, max(1, count))
    if check is not None:
        kernel = engine.kernel if engine is not None and engine.kernel else flat.kernel()
        check(engine.log_normalizer if engine else flat.log_normalizer(kernel), flat, kernel)
    event = network.base.event_shape
    latent = flat.weight.new_empty((count, members, *event))
    every = torch.arange(members, device=network.weight.device)
    rates = torch.zeros_like(every) if engine is None else engine.acceptance.expand(members)
    slow = ~(rates >= (_GOOD if members == 1 else _GOOD_OF_MANY))
    if count and bool(slow.any()):
        try:
            slow = slow & ~(rates * price(flat.latent()) >= 1)
            if bool(slow.any()):
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
