r"""Exact samplers of flat batches of squared neural families."""

__all__ = ["Sampler", "find_sampler"]

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Size, Tensor

from ..activations import Activation, Exp, FourierActivation
from ..bases import Base, Discrete, LaplaceBase, Mixture
from ..bases.mixture import BatchedMixture
from ..kernels import Kernel, Separable
from ..network import Network
from ..numerics.dispatch import Dispatcher
from ..numerics.forms import Form, Readout
from ..numerics.linalg import broadcast_shapes, rows_matmul
from ..numerics.rejection import rejection
from ..operations.shared_lines import with_shared_neurons
from .envelope import log_majorizer
from .neurons import (
    MixtureLaw,
    NeuronLaw,
    cumulate,
    find_neuron_law,
    of_members,
    of_neurons,
    pick,
)

# Entries of neurons that are held at once for proposals: few enough for a cache.
_CHUNK = 2**19
# Entries of weights and forms that are held at once, where every proposal has its own: 64 MB.
_OWN = 2**23


class Sampler:
    r"""A sampler of the members of a flat batch.

    Arguments:
        acceptance: The expected share of accepted proposals, with shape :math:`(B,)` or
            :math:`(1,)`.
        log_normalizer: The logarithm of :math:`Z`, of the same shape.
    """

    kernel: Kernel | None = None  # the kernel of the network, if the sampler has built one

    def __init__(self, acceptance: Tensor, log_normalizer: Tensor) -> None:
        self.acceptance = acceptance
        self.log_normalizer = log_normalizer

    def compare_in(self, dtype: torch.dtype) -> None:
        """Compares densities with envelopes in a dtype. Draws stay in float64."""

    def draw(self, member: Tensor) -> Tensor:
        r"""Draws an event of a member for each row, with shape :math:`(N, \text{event})`.

        Arguments:
            member: The members of the batch, with shape :math:`(N,)`.
        """
        raise NotImplementedError


# By base, then activation: a mixture is drawn component by component, whatever its neurons are.
_SAMPLERS: Dispatcher[Callable[[Network, float], Sampler | None]] = Dispatcher()


def find_sampler(network: Network, draws: float = math.inf) -> Sampler | None:
    r"""Builds the sampler of a flat batch, or returns None if no sampler is registered for it.

    Arguments:
        network: The network in float64, with one batch dimension or none, on the law of its
            statistic.
        draws: The number of draws of each member, which decides what an envelope may cost.
    """
    build = _SAMPLERS.find(type(network.base), type(network.activation))
    assert build is not None
    return build(network, draws)


def _preactivations(network: Network, x: Tensor, member: Tensor) -> Tensor:
    statistic = network.base.members(member).statistic(x)
    weight = of_members(network.weight, member, 2)
    return rows_matmul(statistic, weight.mT).add_(of_members(network.bias, member, 1))


class RejectionSampler(Sampler):
    r"""Rejection: a proposal is accepted with probability density over envelope (arXiv:2305.13552).

    Arguments:
        network: The network.
        log_normalizer: The logarithm of :math:`Z`, with shape :math:`(B,)` or :math:`(1,)`.
        log_envelope: The logarithm of the integral of the envelope, of the same shape.
    """

    def __init__(self, network: Network, log_normalizer: Tensor, log_envelope: Tensor) -> None:
        self.network, self.matrix = network, network.form.matrix
        acceptance = (log_normalizer - log_envelope).exp().clamp(max=1.0)
        # A member without mass has neither draws nor an envelope.
        super().__init__(acceptance.nan_to_num(nan=0.0), log_normalizer)

    def propose(self, member: Tensor) -> Tensor:
        r"""Draws from the envelopes of some members, with shape :math:`(N,)`."""
        raise NotImplementedError

    def log_acceptance(self, x: Tensor, member: Tensor) -> Tensor:
        r"""The logarithm of density over envelope at events of some members, never positive."""
        raise NotImplementedError

    def draw(self, member: Tensor) -> Tensor:
        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            own = member[rows]
            x = self.propose(own)
            return x, torch.rand_like(own, dtype=x.dtype).log() <= self.log_acceptance(x, own)

        network = self.network
        if not len(member):
            return network.weight.new_empty((0, *network.base.event_shape))
        # Members that share all their tensors share a law, and the proposals accepted for it.
        group = torch.zeros_like(member) if len(self.acceptance) == 1 else member
        group, place = group.sort(stable=True)
        member = member[place]
        own = sum(x[0].numel() for x in (network.weight, self.matrix) if x.dim() > 2)
        most = min(_CHUNK // network.width, _OWN // (own + network.weight.shape[-1]))
        x = rejection(propose, group, self.acceptance[group], max(1, most))
        return x[place.argsort()]


@_SAMPLERS.register(Base, Activation)
def _neurons(network: Network, draws: float) -> Sampler | None:
    law = find_neuron_law(type(network.activation), type(network.base))
    return None if law is None else NeuronSampler(network, draws, law)


class NeuronSampler(RejectionSampler):
    r"""Rejection from a mixture of single neurons.

    .. math:: D \succeq M \implies \sigma^\top M \sigma \leq \sum_i D_i \sigma_i^2

    A share :math:`Z / \sum_i D_i K_{ii}` of the proposals is accepted.
    """

    def __init__(self, network: Network, draws: float, law: type[NeuronLaw]) -> None:
        self.kernel = network.kernel()
        if isinstance(self.kernel, Separable):
            log_norm = self.kernel.log_diagonal(network.bias)
        else:
            log_norm = network.log_norms()
        log_norm = torch.atleast_2d(log_norm)  # (B, n) or (1, n)
        log_normalizer = torch.atleast_1d(network.log_normalizer(self.kernel))
        log_diagonal = log_majorizer(network.form, log_norm, math.log(draws) - log_normalizer)
        self.diagonal = log_diagonal.exp()
        log_weights = log_diagonal + log_norm
        self.cumulative = cumulate(log_weights)
        self.law = law(network, log_norm)
        self.compared = network
        super().__init__(network, log_normalizer, log_weights.logsumexp(-1))

    def propose(self, member: Tensor) -> Tensor:
        return self.law.draw(member, pick(self.cumulative, member))

    def log_acceptance(self, x: Tensor, member: Tensor) -> Tensor:
        network = self.compared
        z = _preactivations(network, x.to(network.weight.dtype), member)
        # The scale of a row, by which no neuron over- or underflows, cancels in the ratio.
        _, (neurons,), *_ = network.activation.features(z)
        assert neurons is not None
        square = _square(network.form, neurons, member)
        bound = neurons.square_().mul_(of_members(self.diagonal, member, 1)).sum(-1)
        return (square / bound).log()

    def compare_in(self, dtype: torch.dtype) -> None:
        # Only where neither neurons nor the envelope can overflow in float32.
        activation = self.network.activation
        tame = activation.is_bounded or isinstance(activation, FourierActivation)
        if tame and bool(((self.diagonal > 1e-20) & (self.diagonal < 1e20)).all()):
            self.compared, self.diagonal = self.network.to(dtype), self.diagonal.to(dtype)


def _square(form: Form, neurons: Tensor, member: Tensor) -> Tensor:
    # σᵀ M σ of each row, without a gram for each row of a batch of readouts.
    matrix = of_members(form.matrix, member, 2)
    if isinstance(form, Readout):
        return rows_matmul(neurons, matrix.mT).square().sum(-1)
    return (rows_matmul(neurons, matrix) * neurons).sum(-1).clamp(min=0)


@_SAMPLERS.register(LaplaceBase, Exp)
class PairSampler(RejectionSampler):
    r"""Rejection from pairs of exponential neurons.

    .. math:: \sigma^\top M \sigma \leq \sum_{M_{ij} > 0} M_{ij} \sigma_i \sigma_j

    The law :math:`\propto \sigma_i \sigma_j \mu` is a member of the exponential family of the base.
    """

    def __init__(self, network: Network, draws: float) -> None:
        assert network.activation.exponent is not None
        self.exponent = network.activation.exponent
        gram = network.form.gram()
        diagonal = gram.diagonal(dim1=-2, dim2=-1)
        used = diagonal > 0
        self.log_read = torch.where(used, diagonal, 1.0).log() / 2
        size = self.log_read.exp()
        gram = gram / (size.unsqueeze(-1) * size.unsqueeze(-2))
        gram = gram * (used.unsqueeze(-1) & used.unsqueeze(-2))
        self.log_read = torch.where(used, self.log_read, -torch.inf)
        self.kernel = neurons = network.kernel()
        assert isinstance(neurons, Separable)
        log_scale = neurons.features(network.bias).log_scale
        assert log_scale is not None
        log_scale = torch.atleast_2d(log_scale + self.log_read)
        largest = log_scale.amax(-1, keepdim=True)
        self.scale = (log_scale - largest).exp()  # (B, n) or (1, n)
        pairs = gram * neurons.blocks[0, 0]
        self.pairs = pairs.clamp(min=0)  # (n, n) or (B, n, n)
        row_sums = rows_matmul(self.scale, self.pairs) * self.scale
        self.cumulative = cumulate(row_sums.log())
        total = (rows_matmul(self.scale, pairs) * self.scale).sum(-1)
        log_size = 2 * largest.squeeze(-1)
        log_normalizer = total.clamp(min=0).log() + log_size
        super().__init__(network, log_normalizer, row_sums.sum(-1).log() + log_size)
        self.matrix = gram

    def propose(self, member: Tensor) -> Tensor:
        base: Any = self.network.base.members(member)
        first = pick(self.cumulative, member)
        row = self.pairs[first] if self.pairs.dim() == 2 else self.pairs[member, first]
        sums = (row * of_members(self.scale, member, 1)).cumsum(-1)
        uniform = torch.rand_like(sums[:, :1]) * sums[:, -1:]
        second = torch.searchsorted(sums, uniform, right=True).squeeze(-1)
        weight = self.network.weight
        both = of_neurons(weight, member, first, 1) + of_neurons(weight, member, second, 1)
        return base.sample_member(self.exponent * both)

    def log_acceptance(self, x: Tensor, member: Tensor) -> Tensor:
        z = _preactivations(self.network, x, member)
        exponent = self.exponent * z + of_members(self.log_read, member, 1)
        neurons = (exponent - exponent.amax(-1, keepdim=True)).exp()
        gram = of_members(self.matrix, member, 2)
        square = (rows_matmul(neurons, gram) * neurons).sum(-1)
        bound = (rows_matmul(neurons, gram.clamp(min=0)) * neurons).sum(-1)
        return (square.clamp(min=0) / bound).log()


@_SAMPLERS.register(Discrete, Activation)
class FiniteSampler(Sampler):
    r"""Inversion of the probabilities of all points of a finite set."""

    def __init__(self, network: Network, draws: float) -> None:
        base = network.base
        assert isinstance(base, Discrete)
        self.points = base.points
        # log_square and masses, not log_density, which adds the masses of equal points.
        log_weights = network.log_square(base.points.unsqueeze(1)).mT + base.masses.log()  # (B, K)
        self.cumulative = cumulate(log_weights)
        log_normalizer = log_weights.logsumexp(-1)
        super().__init__(torch.ones_like(log_normalizer), log_normalizer)

    def draw(self, member: Tensor) -> Tensor:
        return self.points[pick(self.cumulative, member)]


class MixtureSampler(Sampler):
    r"""Draws a component in proportion to its weight times its normaliser, then an event of it.

    Arguments:
        log_weights: The logarithms of weights times normalisers, with shape :math:`(B, K)` or
            :math:`(1, K)`.
        parts: The samplers of the components, or one sampler of the flat batch of members times
            components.
        event_shape: The shape of an event. Components may have scalars as vectors of length one.
    """

    def __init__(self, log_weights: Tensor, parts: list[Sampler], event_shape: Size) -> None:
        self.log_weights, self.parts, self.event_shape = log_weights, parts, event_shape
        if len(parts) == 1:
            acceptance = parts[0].acceptance.expand(log_weights.numel()).reshape_as(log_weights)
        else:
            columns = torch.broadcast_tensors(*(part.acceptance for part in parts))
            acceptance = torch.stack(columns, dim=-1)
        share = log_weights.softmax(-1)
        # A component without mass is never tried.
        tries = torch.where(share > 0, share / acceptance, 0.0).sum(-1)
        super().__init__(1 / tries, log_weights.logsumexp(-1))

    def compare_in(self, dtype: torch.dtype) -> None:
        for part in self.parts:
            part.compare_in(dtype)

    def draw(self, member: Tensor) -> Tensor:
        component = pick(cumulate(self.log_weights), member)
        if len(self.parts) == 1:
            first = 0 if len(self.log_weights) == 1 else member * self.log_weights.shape[-1]
            return self.parts[0].draw(first + component).reshape((-1, *self.event_shape))
        out = self.log_weights.new_empty((len(member), *self.event_shape))
        for k, part in enumerate(self.parts):
            (rows,) = (component == k).nonzero(as_tuple=True)
            out[rows] = part.draw(member[rows])
        return out


@_SAMPLERS.register(BatchedMixture, Activation)
def _batched_mixture(network: Network, draws: float) -> Sampler | None:
    base = network.base
    assert isinstance(base, BatchedMixture)
    # One envelope over all components needs one kernel for all members. By the inequality of Cauchy
    # and Schwarz, at least 1/n as many proposals are accepted as with an envelope on each.
    shared = with_shared_neurons(network)
    if shared is not None and MixtureLaw.covers(shared):
        sampler = NeuronSampler(shared, draws, MixtureLaw)
        if shared is not network:
            sampler.kernel = None  # of twice as many neurons
        return sampler
    apart, log_weights = network.over(base.components), torch.atleast_2d(base.log_weights())
    shape = broadcast_shapes(log_weights.shape, apart.batch_shape)
    # Any component may get all draws.
    inner = find_sampler(apart.expand(shape).flatten(), draws)
    if inner is None:
        return None
    log_normalizer = inner.log_normalizer.expand(shape.numel()).reshape(shape)
    return MixtureSampler(log_weights + log_normalizer, [inner], base.event_shape)


@_SAMPLERS.register(Mixture, Activation)
def _mixture(network: Network, draws: float) -> Sampler | None:
    base = network.base
    assert isinstance(base, Mixture)
    networks = [replace(network, base=part).latent() for part in base.bases]
    parts = [find_sampler(part, draws) for part in networks]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    columns = torch.broadcast_tensors(*(part.log_normalizer for part in found))
    log_weights = base.log_weights() + torch.stack(columns, dim=-1)
    return MixtureSampler(log_weights, found, base.event_shape)
