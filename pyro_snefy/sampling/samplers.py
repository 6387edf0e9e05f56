r"""Exact samplers of flat batches of squared neural families."""

__all__ = ["Sampler", "sampler"]

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..activations import Activation, Exp, FourierActivation
from ..bases import Base, Discrete, GaussianMixture, Interval, LaplaceBase, Mixture
from ..kernels import Separable
from ..network import Network
from ..numerics.dispatch import Dispatcher
from ..numerics.forms import Form, Readout
from ..numerics.linalg import broadcast_shapes, rows_matmul
from ..numerics.rejection import rejection
from .envelope import log_majorizer
from .neurons import NeuronLaw, find_neuron_law, pick

# Numbers that are held at once for the neurons of proposals: few enough for a cache.
_CHUNK = 2**19


class Sampler:
    r"""A sampler of the members of a flat batch.

    Arguments:
        acceptance: The expected share of accepted proposals, with shape :math:`(B,)` or
            :math:`(1,)`.
        log_normalizer: The logarithm of :math:`Z`, of the same shape.
    """

    def __init__(self, acceptance: Tensor, log_normalizer: Tensor) -> None:
        self.acceptance = acceptance
        self.log_normalizer = log_normalizer

    def compare_in(self, dtype: torch.dtype) -> None:
        """Compares densities with envelopes in a dtype; draws are in float64 still."""

    def draw(self, member: Tensor) -> Tensor:
        r"""Draws an event for each row.

        Arguments:
            member: The members of the batch, with shape :math:`(N,)`.

        Returns:
            Events, with shape :math:`(N, \text{event})`.
        """
        raise NotImplementedError


# By base, then activation: how events are composed comes before what neurons are.
_SAMPLERS: Dispatcher[Callable[[Network], Sampler | None]] = Dispatcher()


def sampler(network: Network) -> Sampler | None:
    r"""Finds and builds the sampler of a flat batch, or None where there is none.

    Arguments:
        network: The network in float64, with one batch dimension or none, on the law of its
            statistic.
    """
    build = _SAMPLERS.find(type(network.base), type(network.activation))
    assert build is not None
    return build(network)


def _at(x: Tensor, member: Tensor, rank: int) -> Tensor:
    # The rows of some members; a tensor without batch, or with a batch of one, is that of all.
    if x.dim() > rank:
        return x[0] if len(x) == 1 else x[member]
    return x


def _cumulate(log_weights: Tensor) -> Tensor:
    # Cumulative probabilities, with shape (1, n) or (B, n).
    total = log_weights.softmax(-1).cumsum(-1)
    return total / total[..., -1:]


def _choose(cumulative: Tensor, member: Tensor) -> Tensor:
    # An index for each row, by inversion: the first whose cumulative probability is above.
    uniform = torch.rand(len(member), dtype=cumulative.dtype, device=member.device)
    if len(cumulative) == 1:
        return torch.searchsorted(cumulative[0], uniform, right=True)
    rows = cumulative[member]
    return torch.searchsorted(rows, uniform.unsqueeze(-1), right=True).squeeze(-1)


def _preactivations(network: Network, x: Tensor, member: Tensor) -> Tensor:
    statistic = network.base.members(member).statistic(x)
    weight = _at(network.weight, member, 2)
    return rows_matmul(statistic, weight.mT).add_(_at(network.bias, member, 1))


class RejectionSampler(Sampler):
    r"""A sampler that proposes, and accepts in proportion to the density over its envelope.

    Arguments:
        network: The network.
        log_normalizer: The logarithm of :math:`Z`, with shape :math:`(B,)` or :math:`(1,)`.
        log_envelope: The logarithm of the integral of the envelope, of the same shape.
    """

    def __init__(self, network: Network, log_normalizer: Tensor, log_envelope: Tensor) -> None:
        self.network = network
        super().__init__((log_normalizer - log_envelope).exp().clamp(max=1.0), log_normalizer)

    def propose(self, member: Tensor) -> Tensor:
        r"""Draws from the envelope.

        Arguments:
            member: The members of the batch, with shape :math:`(N,)`.
        """
        raise NotImplementedError

    def log_acceptance(self, x: Tensor, member: Tensor) -> Tensor:
        r"""The logarithm of the density over its envelope, which is never positive.

        Arguments:
            x: Events, with shape :math:`(N, \text{event})`.
            member: The members of the batch that they belong to, with shape :math:`(N,)`.
        """
        raise NotImplementedError

    def draw(self, member: Tensor) -> Tensor:
        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            own = member[rows]
            x = self.propose(own)
            return x, torch.rand_like(own, dtype=x.dtype).log() <= self.log_acceptance(x, own)

        if not len(member):
            return self.network.weight.new_empty((0, *self.network.base.event_shape))
        law = torch.zeros_like(member) if len(self.acceptance) == 1 else member
        law, place = law.sort(stable=True)
        member = member[place]
        most = max(1, _CHUNK // self.network.weight.shape[-2])
        x = rejection(propose, law, self.acceptance[law], most)
        out = torch.empty_like(x)
        out[place] = x
        return out


@_SAMPLERS.register(Base, Activation)
def _neurons(network: Network) -> Sampler | None:
    law = find_neuron_law(type(network.activation), type(network.base))
    return None if law is None else NeuronSampler(network, law)


class NeuronSampler(RejectionSampler):
    r"""Rejection from a mixture of single neurons.

    For a diagonal :math:`D \succeq M`, :math:`\sigma^\top M \sigma \leq \sum_i D_i \sigma_i^2`,
    and :math:`Z / \sum_i D_i K_{ii}` of the proposals are accepted.

    Arguments:
        network: The network.
        law: The class of the laws of single neurons.
    """

    def __init__(self, network: Network, law: type[NeuronLaw]) -> None:
        log_norm = _log_norms(network)  # (B, n) or (1, n)
        log_diagonal = log_majorizer(network.form, log_norm)
        self.diagonal = log_diagonal.exp()
        log_weights = log_diagonal + log_norm
        self.cumulative = _cumulate(log_weights)
        self.law = law(network, log_norm)
        log_total = log_weights.logsumexp(-1)
        self.compared = network
        super().__init__(network, torch.atleast_1d(network.log_normalizer()), log_total)

    def propose(self, member: Tensor) -> Tensor:
        return self.law.draw(member, _choose(self.cumulative, member))

    def log_acceptance(self, x: Tensor, member: Tensor) -> Tensor:
        network = self.compared
        z = _preactivations(network, x.to(network.weight.dtype), member)
        neurons = network.activation(z)
        square = _square(network.form, neurons, member)
        bound = neurons.square_().mul_(_at(self.diagonal, member, 1)).sum(-1)
        return (square / bound).log()

    def compare_in(self, dtype: torch.dtype) -> None:
        # Where neither powers of neurons nor the envelope can overflow in float32.
        moderate = (self.diagonal > 1e-20) & (self.diagonal < 1e20)
        if isinstance(self.network.activation, FourierActivation) and bool(moderate.all()):
            self.compared, self.diagonal = self.network.to(dtype), self.diagonal.to(dtype)


def _log_norms(network: Network) -> Tensor:
    r"""The logarithms of :math:`K_{ii}`, with shape :math:`(B, n)` or :math:`(1, n)`."""
    log_norm = network.log_norms()
    return log_norm if log_norm.dim() > 1 else log_norm.unsqueeze(0)


def _square(form: Form, neurons: Tensor, member: Tensor) -> Tensor:
    matrix = _at(form.matrix, member, 2)
    if isinstance(form, Readout):
        return rows_matmul(neurons, matrix.mT).square().sum(-1)
    return (rows_matmul(neurons, matrix) * neurons).sum(-1).clamp(min=0)


@_SAMPLERS.register(LaplaceBase, Exp)
class PairSampler(RejectionSampler):
    r"""Rejection from pairs of exponential neurons, each a member of the exponential family.

    .. math:: \sigma^\top M \sigma \leq \sum_{M_{ij} > 0} M_{ij} \sigma_i \sigma_j

    Arguments:
        network: The network.
    """

    def __init__(self, network: Network) -> None:
        gram = network.form.gram()
        diagonal = gram.diagonal(dim1=-2, dim2=-1)
        used = diagonal > 0
        self.log_read = torch.where(used, diagonal, 1.0).log() / 2
        size = self.log_read.exp()
        gram = gram / (size.unsqueeze(-1) * size.unsqueeze(-2))
        self.gram = gram * (used.unsqueeze(-1) & used.unsqueeze(-2))
        self.log_read = torch.where(used, self.log_read, -torch.inf)
        neurons = network.kernel()
        assert isinstance(neurons, Separable)
        log_scale = neurons.features(network.bias).log_scale
        assert log_scale is not None
        log_scale = log_scale + self.log_read
        log_scale = log_scale if log_scale.dim() > 1 else log_scale.unsqueeze(0)
        largest = log_scale.amax(-1, keepdim=True)
        self.scale = (log_scale - largest).exp()  # (B, n) or (1, n)
        pairs = self.gram * neurons.blocks[0, 0]
        self.pairs = pairs.clamp(min=0)  # (n, n) or (B, n, n)
        row_sums = rows_matmul(self.scale, self.pairs) * self.scale
        self.cumulative = _cumulate(row_sums.log())
        total = (rows_matmul(self.scale, pairs) * self.scale).sum(-1)
        log_size = 2 * largest.squeeze(-1)
        super().__init__(
            network, total.clamp(min=0).log() + log_size, row_sums.sum(-1).log() + log_size
        )

    def propose(self, member: Tensor) -> Tensor:
        activation: Any = self.network.activation
        base: Any = self.network.base.members(member)
        first = _choose(self.cumulative, member)
        row = self.pairs[first] if self.pairs.dim() == 2 else self.pairs[member, first]
        sums = (row * _at(self.scale, member, 1)).cumsum(-1)
        uniform = torch.rand_like(sums[:, :1]) * sums[:, -1:]
        second = torch.searchsorted(sums, uniform, right=True).squeeze(-1)
        weight = self.network.weight
        both = pick(weight, member, first, 1) + pick(weight, member, second, 1)
        return base.sample_member(activation.scale * both)

    def log_acceptance(self, x: Tensor, member: Tensor) -> Tensor:
        activation: Any = self.network.activation
        z = _preactivations(self.network, x, member)
        exponent = activation.scale * z + _at(self.log_read, member, 1)
        neurons = (exponent - exponent.amax(-1, keepdim=True)).exp()
        gram = _at(self.gram, member, 2)
        square = (rows_matmul(neurons, gram) * neurons).sum(-1)
        bound = (rows_matmul(neurons, gram.clamp(min=0)) * neurons).sum(-1)
        return (square.clamp(min=0) / bound).log()


@_SAMPLERS.register(Discrete, Activation)
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
        square = network.log_square(points)
        log_weights = square.mT + base.masses.log()
        self.cumulative = _cumulate(log_weights)
        log_normalizer = log_weights.logsumexp(-1)
        super().__init__(torch.ones_like(log_normalizer), log_normalizer)

    def draw(self, member: Tensor) -> Tensor:
        return self.points[_choose(self.cumulative, member)]


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
        super().__init__(1 / tries, log_weights.logsumexp(-1))

    def compare_in(self, dtype: torch.dtype) -> None:
        for part in self.parts:
            part.compare_in(dtype)

    def draw(self, member: Tensor) -> Tensor:
        component = _choose(_cumulate(self.log_weights), member)
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
        super().__init__(inner.acceptance, inner.log_normalizer)

    def compare_in(self, dtype: torch.dtype) -> None:
        self.inner.compare_in(dtype)

    def draw(self, member: Tensor) -> Tensor:
        return self.inner.draw(member).squeeze(-1)


@_SAMPLERS.register(GaussianMixture, Activation)
def _gaussian_mixture(network: Network) -> Sampler | None:
    base: Any = network.base
    return _batched_mixture(network, base.gaussians)


def _batched_mixture(network: Network, components: Base) -> Sampler | None:
    base: Any = network.base
    apart = network.over(components)
    log_weights = torch.atleast_2d(base.log_weights())
    shape = broadcast_shapes(log_weights.shape, apart.batch_shape)
    inner = sampler(apart.expand(shape).flatten())
    if inner is None:
        return None
    log_normalizer = inner.log_normalizer.expand(shape.numel()).reshape(shape)
    return MixtureSampler(log_weights + log_normalizer, [inner])


@_SAMPLERS.register(Interval, Activation)
def _interval(network: Network) -> Sampler | None:
    base: Any = network.base
    inner = _batched_mixture(network, base.boxes)
    return None if inner is None else _Scalars(inner)


@_SAMPLERS.register(Mixture, Activation)
def _mixture(network: Network) -> Sampler | None:
    base: Any = network.base
    parts = [sampler(replace(network, base=part)) for part in base.bases]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    columns = torch.broadcast_tensors(*(part.log_normalizer for part in found))
    return MixtureSampler(base.log_weights() + torch.stack(columns, dim=-1), found)
