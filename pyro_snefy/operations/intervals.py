r"""Masses of boxes under a network.

.. math:: \int_A \mu(x) \left\| V \sigma(W t(x) + b) \right\|^2 dx = \mu(A) \, Z_{\mu | A}

The base :math:`\mu` restricted to a box :math:`A` is a base again. The normaliser
(arXiv:2305.13552) over the restricted base, times the mass of the box under :math:`\mu`, is the
mass of the box. Where there is no restricted base, and events have one coordinate, the mass is a
quadrature of the density.
"""

__all__ = ["log_box_mass"]

from dataclasses import replace
from functools import singledispatch

import torch
from torch import Tensor

from ..bases import Base, Product, Pushforward, Standardized, UniformCube
from ..kernels.kernel import in_chunks
from ..kernels.registry import closed_form
from ..network import Network
from ..numerics.linalg import broadcast_shapes, safe_log
from .quantiles import box_mass
from .restricted import restrict, standardized

# Pairs of neurons in boxes that are evaluated at once: about as much as the caches hold. A neuron
# takes part in as many pairs at least, or has as many nodes of a quadrature.
_CHUNK, _LEAST = 2**19, 64


@singledispatch
def _to_latent(base: Base, x: Tensor) -> Tensor:
    # Ends of boxes of the latent base, whose coordinates are increasing functions of coordinates
    # of the base, one of each.
    if isinstance(base, Pushforward) and not bool(x.isinf().all()):
        raise NotImplementedError(f"{base} has no masses of boxes in closed form")
    return x


@_to_latent.register
def _(base: UniformCube, x: Tensor) -> Tensor:
    inside = torch.special.ndtri(x.clamp(1e-300, 1 - 1e-16))
    return torch.where(x <= 0, -torch.inf, torch.where(x >= 1, torch.inf, inside))


@_to_latent.register
def _(base: Standardized, x: Tensor) -> Tensor:
    return standardized(x, base.loc, base.scale)


@_to_latent.register
def _(base: Product, x: Tensor) -> Tensor:
    return base._join([_to_latent(part, piece) for part, piece in base._pieces(x)])


def log_box_mass(network: Network, low: Tensor, high: Tensor) -> Tensor:
    r"""The logarithm of :math:`\int_A \mu(x) \| V \sigma(W t(x) + b) \|^2 dx` for boxes :math:`A`.

    Arguments:
        network: The network.
        low: The lower corners, with shape :math:`(*, \text{event})`; infinite ones are allowed.
        high: The upper corners, of the same shape. Boxes contain their corners.

    Returns:
        The values in float64, with shape :math:`(*)`, where the batch shape of the network is on
        the right.
    """
    network, base = network.to(torch.float64), network.base
    rank = base.event_dim
    shape = broadcast_shapes(
        low.shape[: low.dim() - rank], high.shape[: high.dim() - rank], network.batch_shape
    )
    # Boxes stay at their own batch shape: one box for many biases has one kernel.
    low, high = torch.broadcast_tensors(low.double(), high.double())
    layers = list(network._layers())
    try:
        for layer in layers:
            low, high = _to_latent(layer, low), _to_latent(layer, high)
        return _by_restriction(network.latent(), low, high).expand(shape)
    except NotImplementedError as error:
        if base.event_shape.numel() > 1:
            raise NotImplementedError(
                f"No closed form for boxes with {network.activation} on {base}: {error}. There is "
                "one for events with one coordinate; for vectors with Cos, Sin, Cis, Snake, "
                "Identity and Exp on a Gaussian with scale, a GaussianMixture, a UniformCube and a "
                "UniformBox; with every activation on a Discrete base; on Standardized ones, and "
                "on a Product or Mixture of these. Other factors of a Product may be unbounded."
            ) from None
    low, high = ((x.squeeze(-1) if rank else x).expand(shape) for x in (low, high))
    return safe_log(box_mass(network.latent(), low, high)) + network.log_normalizer()


def _by_restriction(network: Network, low: Tensor, high: Tensor) -> Tensor:
    base, event_dim = network.base, network.base.event_dim
    rows = torch.cat([low, high], -1) if event_dim else torch.stack([low, high], -1)

    def evaluate(rows: Tensor) -> Tensor:
        ends = rows.chunk(2, dim=-1) if event_dim else rows.unbind(-1)
        log_mass, part = restrict(base, *ends)
        if not closed_form(network.activation, part, bias=False):
            raise NotImplementedError("products of two bends have no integrals over its boxes")
        empty = log_mass == -torch.inf
        value = replace(network, base=part).log_normalizer()
        return torch.where(empty, log_mass, value + log_mass)

    width = network.width
    count = max(1, _CHUNK // (width * max(width, _LEAST) * base.num_statistics))
    boxes = rows.shape[:-1].numel()
    if network.batch_shape or boxes <= count or rows.requires_grad:
        return in_chunks(evaluate, rows, network.batch_shape, count)
    low, high = rows.reshape(boxes, 2, -1).unbind(-2)
    order = _tiles(low, high, count)
    values = in_chunks(evaluate, rows.reshape(boxes, -1)[order], network.batch_shape, count)
    return values[order.argsort()].reshape(rows.shape[:-1])


def _tiles(low: Tensor, high: Tensor, count: int) -> Tensor:
    r"""An order of boxes (N, d), in which successive ones have few distinct segments.

    Boxes of a grid are taken tile by tile. A tile has about as many segments in each coordinate.
    """
    side = max(1, round(count ** (1 / low.shape[-1])))
    key = torch.zeros(len(low), dtype=torch.long, device=low.device)
    for ends in zip(low.unbind(-1), high.unbind(-1), strict=True):
        _, place = torch.stack(ends, -1).unique(dim=0, return_inverse=True)
        key = key * (len(low) + 1) + place // side
    return key.argsort(stable=True)
