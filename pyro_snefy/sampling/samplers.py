r"""Exact samplers of flat batches of squared neural families."""

__all__ = ["Sampler", "flatten", "sampler"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Size, Tensor

from ..activations import Activation, Exp, FourierActivation
from ..bases.base import Base, LaplaceBase, flatten_batch
from ..bases.bounded import Pushforward
from ..bases.counts import Discrete
from ..bases.mixture import GaussianMixture, Interval, Mixture
from ..dispatch import Dispatcher
from ..forms import Form, Readout
from ..kernels import Separable, kernel
from ..linalg import rows_matmul
from ..network import Network
from ..rejection import choose, rejection
from .envelope import log_majorizer
from .neurons import find_neuron_law

# Numbers that are held at once for the neurons of proposals.
_CHUNK = 2**22


class Sampler:
    r"""A sampler of the members of a flat batch.

    Arguments:
        acceptance: The expected share of accepted proposals, with shape :math:`(B,)` or
            :math:`(1,)`.
    """

    def __init__(self, acceptance: Tensor) -> None:
        self.acceptance = acceptance

    def draw(self, member: Tensor) -> Tensor:
        r"""Draws an event for each row.

        Arguments:
            member: The members of the batch, with shape :math:`(N,)`.

        Returns:
            Events, with shape :math:`(N, \text{event})`.
        """
        raise NotImplementedError

    def _least(self, member: Tensor) -> float:
        # The least acceptance of those that are drawn; others may have none.
        return float(self.acceptance[member if len(self.acceptance) > 1 else 0].min())


_SAMPLERS: Dispatcher[Callable[[Network], Sampler | None]] = Dispatcher()


def sampler(network: Network) -> Sampler | None:
    r"""Finds and builds the sampler of a flat batch, or None where there is none.

    Arguments:
        network: The network in float64, with one batch dimension or none.
    """
    build = _SAMPLERS.find(type(network.activation), type(network.base))
    assert build is not None
    return build(network)


def flatten(network: Network, batch_shape: Size) -> Network:
    """The same networks with one batch dimension; what they all share has none.

    Arguments:
        network: The networks.
        batch_shape: Their batch shape.
    """
    activation, base, weight, bias, form = network
    return Network(
        activation,
        base.flatten(batch_shape),
        flatten_batch(weight, 2, batch_shape),
        flatten_batch(bias, 1, batch_shape),
        type(form)(flatten_batch(form.matrix, 2, batch_shape)),
    )


def _at(x: Tensor, member: Tensor, rank: int) -> Tensor:
    # The rows of some members; a tensor without batch, or with a batch of one, is that of all.
    if x.dim() > rank:
        return x[0] if len(x) == 1 else x[member]
    return x


def _choose(log_weights: Tensor, member: Tensor) -> Tensor:
    # An index for each row, with weights of shape (1, n) or (B, n).
    if len(log_weights) > 1:
        return choose(log_weights[member])
    return torch.multinomial(log_weights[0].softmax(-1), len(member), replacement=True)


def _preactivations(network: Network, x: Tensor, member: Tensor) -> Tensor:
    statistic = network.base.take(member).statistic(x)
    weight = _at(network.weight, member, 2)
    return rows_matmul(statistic, weight.mT) + _at(network.bias, member, 1)


def _in_chunks(draw: Any, member: Tensor, width: int) -> Tensor:
    size = max(1, _CHUNK // width)
    if len(member) <= size:
        return draw(member)
    return torch.cat([draw(chunk) for chunk in member.split(size)])


@_SAMPLERS.register(Activation, Base)
def _neurons(network: Network) -> Sampler | None:
    law = find_neuron_law(type(network.activation), type(network.base))
    return None if law is None else NeuronSampler(network, law)


class NeuronSampler(Sampler):
    r"""Rejection from a mixture of single neurons.

    For a diagonal :math:`D \succeq M`, :math:`\sigma^\top M \sigma \leq \sum_i D_i \sigma_i^2`,
    and :math:`Z / \sum_i D_i K_{ii}` of the proposals are accepted.

    Arguments:
        network: The network.
        law: The class of the laws of single neurons.
    """

    def __init__(self, network: Network, law: Any) -> None:
        self.network = network
        log_norm = _log_norms(network)  # (B, n) or (1, n)
        gram = network.form.gram()
        self.log_diagonal = log_majorizer(gram, log_norm)
        self.log_weights = self.log_diagonal + log_norm
        self.law = law(network, log_norm)
        total = self.log_weights.logsumexp(-1)
        super().__init__((network.log_normalizer() - total).exp().clamp(max=1.0))

    def draw(self, member: Tensor) -> Tensor:
        return _in_chunks(self._draw, member, self.log_weights.shape[-1])

    def _draw(self, member: Tensor) -> Tensor:
        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            own = member[rows]
            x = self.law.draw(own, _choose(self.log_weights, own))
            return x, torch.rand_like(own, dtype=x.dtype).log() <= self.log_ratio(x, own)

        return rejection(propose, len(member), member.device, self._least(member))

    def log_ratio(self, x: Tensor, member: Tensor) -> Tensor:
        r"""The logarithm of the density over its envelope, which is never positive.

        Arguments:
            x: Events, with shape :math:`(N, \text{event})`.
            member: The members of the batch that they belong to, with shape :math:`(N,)`.
        """
        z = _preactivations(self.network, x, member)
        neurons = self.network.activation(z)
        log_diagonal = _at(self.log_diagonal, member, 1)
        # Rescaled neurons have an envelope that is a plain sum of squares.
        half = (log_diagonal - log_diagonal.amax(-1, keepdim=True)) / 2
        square = _square(self.network.form, neurons, member).log()
        bound = ((neurons * half.exp()).square()).sum(-1).log() + log_diagonal.amax(-1)
        return square - bound


def _log_norms(network: Network) -> Tensor:
    r"""The logarithms of :math:`K_{ii}`, with shape :math:`(B, n)` or :math:`(1, n)`."""
    activation, base, weight, bias, _ = network
    # The neurons are one more batch dimension, each alone.
    base = base.map_batches(lambda x, rank: x.unsqueeze(-1 - rank) if x.dim() > rank else x)
    alone = kernel(activation, base, weight.unsqueeze(-2))
    log_scale, matrix = alone.matrix(bias.unsqueeze(-1))
    log_norm = matrix[..., 0, 0].clamp(min=0).log()
    log_norm = log_norm if log_scale is None else log_norm + 2 * log_scale.squeeze(-1)
    return log_norm if log_norm.dim() > 1 else log_norm.unsqueeze(0)


def _square(form: Form, neurons: Tensor, member: Tensor) -> Tensor:
    matrix = _at(form.matrix, member, 2)
    if isinstance(form, Readout):
        return rows_matmul(neurons, matrix.mT).square().sum(-1)
    return (rows_matmul(neurons, matrix) * neurons).sum(-1).clamp(min=0)


@_SAMPLERS.register(Exp, LaplaceBase)
class PairSampler(Sampler):
    r"""Rejection from pairs of exponential neurons, each a member of the exponential family.

    .. math:: \sigma^\top M \sigma \leq \sum_{M_{ij} > 0} M_{ij} \sigma_i \sigma_j

    Arguments:
        network: The network.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        gram = network.form.gram()
        diagonal = gram.diagonal(dim1=-2, dim2=-1)
        used = diagonal > 0
        self.log_read = torch.where(used, diagonal, 1.0).log() / 2
        size = self.log_read.exp()
        gram = gram / (size.unsqueeze(-1) * size.unsqueeze(-2))
        self.gram = gram * (used.unsqueeze(-1) & used.unsqueeze(-2))
        self.log_read = torch.where(used, self.log_read, -torch.inf)
        neurons = kernel(network.activation, network.base, network.weight)
        assert isinstance(neurons, Separable)
        log_scale = neurons.features(network.bias).log_scale
        assert log_scale is not None
        log_scale = log_scale + self.log_read
        scale = (log_scale - log_scale.amax(-1, keepdim=True)).exp()
        self.scale = scale if scale.dim() > 1 else scale.unsqueeze(0)  # (B, n) or (1, n)
        pairs = self.gram * neurons.blocks[0, 0]
        self.pairs = pairs.clamp(min=0)  # (n, n) or (B, n, n)
        self.row_sums = rows_matmul(self.scale, self.pairs) * self.scale
        total = (rows_matmul(self.scale, pairs) * self.scale).sum(-1)
        super().__init__((total / self.row_sums.sum(-1)).clamp(0.0, 1.0))

    def draw(self, member: Tensor) -> Tensor:
        return _in_chunks(self._draw, member, self.scale.shape[-1] * 2)

    def _draw(self, member: Tensor) -> Tensor:
        network = self.network
        activation: Any = network.activation

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            own = member[rows]
            first = _choose(self.row_sums.log(), own)
            row = self.pairs[first] if self.pairs.dim() == 2 else self.pairs[own, first]
            second = choose((row * _at(self.scale, own, 1)).log())
            weight = network.weight
            if weight.dim() == 2:
                both = weight[first] + weight[second]
            else:
                both = weight[own, first] + weight[own, second]
            base: Any = network.base.take(own)
            x = base.sample_member(activation.scale * both)
            return x, torch.rand_like(own, dtype=x.dtype) <= self.log_ratio(x, own).exp()

        return rejection(propose, len(member), member.device, self._least(member))

    def log_ratio(self, x: Tensor, member: Tensor) -> Tensor:
        r"""The logarithm of the density over its envelope, which is never positive.

        Arguments:
            x: Events, with shape :math:`(N, \text{event})`.
            member: The members of the batch that they belong to, with shape :math:`(N,)`.
        """
        activation: Any = self.network.activation
        z = _preactivations(self.network, x, member)
        exponent = activation.scale * z + _at(self.log_read, member, 1)
        neurons = (exponent - exponent.amax(-1, keepdim=True)).exp()
        gram = _at(self.gram, member, 2)
        square = (rows_matmul(neurons, gram) * neurons).sum(-1)
        bound = (rows_matmul(neurons, gram.clamp(min=0)) * neurons).sum(-1)
        return (square.clamp(min=0) / bound).log()


@_SAMPLERS.register(Exp, Pushforward)
@_SAMPLERS.register(Activation, Pushforward)
def _pushforward(network: Network) -> Sampler | None:
    base: Any = network.base
    inner = sampler(network._replace(base=base.latent(network.weight)))
    return None if inner is None else PushforwardSampler(base, inner)


class PushforwardSampler(Sampler):
    r"""Events that are functions of those of another base.

    Arguments:
        base: The base.
        inner: The sampler of the latent base.
    """

    def __init__(self, base: Pushforward, inner: Sampler) -> None:
        self.base, self.inner = base, inner
        super().__init__(inner.acceptance)

    def draw(self, member: Tensor) -> Tensor:
        return self.base.take(member).event(self.inner.draw(member))


@_SAMPLERS.register(Exp, Discrete)
@_SAMPLERS.register(Activation, Discrete)
class FiniteSampler(Sampler):
    r"""Draws from the probabilities of all points of a finite set.

    Arguments:
        network: The network.
    """

    def __init__(self, network: Network) -> None:
        base: Any = network.base
        self.points = base.points
        points = base.points.unsqueeze(1)  # (K, 1, event)
        # Equal points have masses of their own.
        square = network.log_density(points) - base.log_density(points)
        log_weights = square.mT + base.masses.log()
        self.log_weights = log_weights if log_weights.dim() > 1 else log_weights.unsqueeze(0)
        super().__init__(torch.ones_like(self.log_weights[:, 0]))

    def draw(self, member: Tensor) -> Tensor:
        return self.points[_choose(self.log_weights, member)]


class MixtureSampler(Sampler):
    r"""Draws a component in proportion to its own normaliser, and an event of it.

    Arguments:
        log_weights: The logarithms of weights times normalisers, with shape :math:`(B, K)` or
            :math:`(1, K)`.
        parts: The samplers of the components; one if they are one flat batch, with the component
            as its last dimension.
    """

    def __init__(self, log_weights: Tensor, parts: list[Sampler]) -> None:
        self.log_weights, self.parts = log_weights, parts
        if len(parts) == 1:
            acceptance = parts[0].acceptance.expand(log_weights.numel()).reshape_as(log_weights)
        else:
            columns = torch.broadcast_tensors(*(part.acceptance for part in parts))
            acceptance = torch.stack(columns, dim=-1)
        share = log_weights.softmax(-1)
        # What has no mass is never tried.
        tries = torch.where(share > 0, share / acceptance, 0.0).sum(-1)
        super().__init__(1 / tries)

    def draw(self, member: Tensor) -> Tensor:
        component = _choose(self.log_weights, member)
        if len(self.parts) == 1:
            first = 0 if len(self.log_weights) == 1 else member * self.log_weights.shape[-1]
            return self.parts[0].draw(first + component)
        pieces, places = [], []
        for k, part in enumerate(self.parts):
            (rows,) = (component == k).nonzero(as_tuple=True)
            if len(rows):
                pieces.append(part.draw(member[rows]))
                places.append(rows)
        events = torch.cat(pieces)
        out = torch.empty_like(events)
        out[torch.cat(places)] = events
        return out


class _Scalars(Sampler):
    # Vectors of length one, as scalars.
    def __init__(self, inner: Sampler) -> None:
        self.inner = inner
        super().__init__(inner.acceptance)

    def draw(self, member: Tensor) -> Tensor:
        return self.inner.draw(member).squeeze(-1)


@_SAMPLERS.register(Exp, GaussianMixture)
@_SAMPLERS.register(Activation, GaussianMixture)
def _gaussian_mixture(network: Network) -> Sampler | None:
    base: Any = network.base
    return _batched_mixture(network, base.gaussians)


def _batched_mixture(network: Network, components: Base) -> Sampler | None:
    base: Any = network.base
    activation, _, weight, bias, form = network
    apart = Network(
        activation,
        components,
        weight.unsqueeze(-3),
        bias.unsqueeze(-2),
        type(form)(form.matrix.unsqueeze(-3)),
    )
    log_normalizer = apart.log_normalizer()  # (K,) or (B, K)
    log_weights = base.log_weights() + log_normalizer
    log_weights = log_weights if log_weights.dim() > 1 else log_weights.unsqueeze(0)
    inner = sampler(flatten(apart, log_weights.shape))
    return None if inner is None else MixtureSampler(log_weights, [inner])


@_SAMPLERS.register(Exp, Interval)
@_SAMPLERS.register(FourierActivation, Interval)
def _interval(network: Network) -> Sampler | None:
    base: Any = network.base
    inner = _batched_mixture(network, base.boxes)
    return None if inner is None else _Scalars(inner)


@_SAMPLERS.register(Exp, Mixture)
@_SAMPLERS.register(Activation, Mixture)
def _mixture(network: Network) -> Sampler | None:
    base: Any = network.base
    networks = [network._replace(base=part) for part in base.bases]
    parts = [sampler(part) for part in networks]
    if any(part is None for part in parts):
        return None
    columns = torch.broadcast_tensors(*(part.log_normalizer() for part in networks))
    log_weights = base.log_weights() + torch.stack(columns, dim=-1)
    log_weights = log_weights if log_weights.dim() > 1 else log_weights.unsqueeze(0)
    return MixtureSampler(log_weights, [part for part in parts if part is not None])
