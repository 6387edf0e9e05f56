r"""The density of some coordinates of a network, the others integrated out.

.. math:: p(x_1) = \frac{\mu_1(x_1)}{Z} \int \left\| V \sigma(W_1 t_1(x_1) + W_2 t_2(x_2) + b)
    \right\|^2 \mu_{2 | 1}(dx_2)

The integral is a normaliser at the bias :math:`b + W_1 t_1(x_1)` (arXiv:2305.13552, section 3.2).
"""

__all__ = ["check_dims", "integrated", "log_numerator", "marginal"]

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Size, Tensor

from ..activations import Cos, Exp, Sin
from ..bases import FourierBase
from ..kernels import Separable
from ..kernels.fourier import wave_products
from ..network import Network
from ..numerics.forms import Gram


def check_dims(dims: Sequence[int], event_shape: Size) -> list[int]:
    """Checks coordinates of an event of the given shape, a vector; makes them non-negative."""
    if len(event_shape) != 1:
        raise ValueError(f"Expected an event that is a vector, got event_shape {event_shape}.")
    if isinstance(dims, int):
        raise TypeError(f"Expected dims to be a list of coordinates, got {dims}: try [{dims}].")
    d = event_shape[0]
    result = [dim + d if dim < 0 else dim for dim in dims]
    if not result or len(set(result)) != len(result) or not all(0 <= k < d for k in result):
        raise ValueError(
            f"Expected dims to be distinct coordinates of an event of length {d}, got {list(dims)}."
        )
    return result


def log_numerator(network: Network, dims: Sequence[int], values: Tensor) -> Tensor:
    r"""The log-density of some coordinates, plus :math:`\log Z`.

    Arguments:
        network: The network of all coordinates.
        dims: The coordinates, in ascending order. They may be all, or none.
        values: Their values, in the support, with shape :math:`(*, \text{len(dims)})`.
    """
    if not dims:
        return network.log_normalizer().expand(values.shape[:-1])
    if len(dims) == network.base.event_shape[0]:
        return network.to(values.dtype).log_density(values)
    law = network.base.marginal(dims)
    others = network.condition(dims, values.to(network.weight.dtype))
    return law.log_density(values) + others.log_normalizer()


def marginal(network: Network, dims: Sequence[int]) -> tuple[Network, list[int]]:
    r"""A network with the density of some coordinates, and which of its coordinates they are.

    For waves and exponentials it is a network of these coordinates alone: the normaliser of the
    others is a quadratic form in functions of single biases, and each function is a neuron. For
    other activations it is the given network.

    Arguments:
        network: The network of all coordinates.
        dims: The coordinates that are kept, in this order.
    """
    joint = network, list(dims)
    if len(dims) == network.base.event_shape[0]:
        return joint
    wide = network.to(torch.float64).real()
    base, weight, bias = wide.base, wide.weight, wide.bias
    try:
        law, regression = base.marginal(dims), base.regression(dims, weight)
    except NotImplementedError:
        return joint
    kept, rest = weight[..., base.columns(dims)], weight[..., base.columns(base.others(dims))]
    reference = law.example(weight)
    if regression is not None:
        # The mean of the others is linear in the values, and so are their preactivations.
        slope = rest @ regression
        kept = kept + slope
        bias = bias - (slope @ law.statistic(reference).unsqueeze(-1)).squeeze(-1)
    others = replace(wide, base=base.conditional(dims, reference), weight=rest, bias=bias)
    small = integrated(others, kept)
    if small is None:
        return joint
    small = replace(small, base=law, batch_shape=network.batch_shape).to(network.weight.dtype)
    return small, list(range(len(dims)))


def integrated(others: Network, weight: Tensor) -> Network | None:
    r"""The square of a network in :math:`y` that is left when a network is integrated.

    .. math:: \int \left\| V \sigma(W t(x) + K y + b) \right\|^2 \mu(dx)
        = \left\| V' \sigma'(K' y + b') \right\|^2

    Exponentials stay exponentials, and cosines and sines become twice as many. The result is None
    where the integral is no such square. Its base is the given one, for the caller to replace.

    Arguments:
        others: The network at :math:`y = 0`, in float64.
        weight: The weights :math:`K`, with shape :math:`(*, n, e)`.
    """
    if not isinstance(others.activation, Cos | Sin | Exp):
        return None
    integral = others.kernel()
    if not isinstance(integral, Separable):
        return None
    if isinstance(others.activation, Exp):
        return _exponentials(others, integral, weight)
    return _waves(others, weight)


def _exponentials(others: Network, integral: Separable, kept: Tensor) -> Network:
    # A factor of each neuron goes to its bias, a factor of each pair to the gram.
    log_scale = integral.features(others.bias).log_scale
    assert log_scale is not None and isinstance(others.activation, Exp)
    gram = others.form.gram() * integral.blocks[0, 0]
    bias = log_scale / others.activation.scale
    return replace(others, weight=kept, bias=bias, form=Gram(gram))


def _waves(others: Network, kept: Tensor) -> Network:
    # Each wave becomes two waves, the second a quarter of a turn ahead.
    gram, base = others.form.gram(), others.latent().base
    assert isinstance(base, FourierBase)
    mean = base.mean(others.weight)
    bias = others.bias + (others.weight * mean.unsqueeze(-2)).sum(-1)
    cos_cos, sin_sin, cos_sin, _ = wave_products(base, others.weight)
    cross = torch.zeros_like(gram) if cos_sin is None else gram * cos_sin
    first, second, cross = torch.broadcast_tensors(gram * cos_cos, gram * sin_sin, cross)
    upper = torch.cat([first, cross], dim=-1)
    lower = torch.cat([cross.mT, second], dim=-1)
    return replace(
        others,
        weight=torch.cat([kept, kept], dim=-2),
        bias=torch.cat([bias, bias + math.pi / 2], dim=-1),
        form=Gram(torch.cat([upper, lower], dim=-2)),
    )
