r"""Laws of single neurons, :math:`\propto \sigma(w \cdot t(x) + b)^2 \mu(dx)`."""

__all__ = [
    "MixtureLaw",
    "NeuronLaw",
    "cumulate",
    "find_neuron_law",
    "of_members",
    "of_neurons",
    "pick",
    "register_neuron_law",
]

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Size, Tensor

from ..activations import (
    Bump,
    Cos,
    FourierActivation,
    GaussianActivation,
    LeakyReLU,
    ReLU,
    Sin,
    Step,
)
from ..bases import FourierBase, Gaussian, UniformSphere
from ..bases.counts import Counts
from ..bases.mixture import BatchedMixture
from ..network import Network
from ..numerics.dispatch import Dispatcher
from ..numerics.linalg import rows_matmul
from ..numerics.rejection import rejection_by_row


def of_members(x: Tensor, member: Tensor, rank: int) -> Tensor:
    r"""The rows (N, *) of some members in x (B, *), or x where all share (*) or (1, *)."""
    if x.dim() == rank:
        return x
    return x[0] if len(x) == 1 else x[member]


def of_neurons(x: Tensor, member: Tensor, neuron: Tensor, rank: int = 0) -> Tensor:
    r"""The rows (N, *) of some neurons of some members in x (n, *), (1, n, *) or (B, n, *)."""
    if x.dim() == rank + 1:
        return x[neuron]
    return x[0, neuron] if len(x) == 1 else x[member, neuron]


def cumulate(log_weights: Tensor) -> Tensor:
    r"""Cumulative probabilities, with shape (1, n) or (B, n)."""
    total = log_weights.softmax(-1).cumsum(-1)
    return total / total[..., -1:]


def pick(cumulative: Tensor, member: Tensor) -> Tensor:
    r"""Draws an index for each row, by inversion of the cumulative probabilities of its member."""
    uniform = torch.rand(len(member), dtype=cumulative.dtype, device=member.device)
    if len(cumulative) == 1:
        return torch.searchsorted(cumulative[0], uniform, right=True)
    rows = cumulative[member]
    return torch.searchsorted(rows, uniform.unsqueeze(-1), right=True).squeeze(-1)


class NeuronLaw:
    r"""The laws of the single neurons of a flat batch of networks.

    Arguments:
        network: The network, with one batch dimension or none.
        log_norm: The logarithms of :math:`\int \sigma_i^2 d\mu`, with shape :math:`(B, n)` or
            :math:`(1, n)`.
    """

    def __init__(self, network: Network, log_norm: Tensor) -> None:
        self.network = network
        self.log_norm = log_norm

    def draw(self, member: Tensor, neuron: Tensor) -> Tensor:
        r"""Draws an event of a neuron for each row, with shape :math:`(N, \text{event})`.

        Arguments:
            member: The members of the batch, with shape :math:`(N,)`.
            neuron: The neurons, with shape :math:`(N,)`.
        """
        raise NotImplementedError

    def _rows(self, member: Tensor, neuron: Tensor) -> tuple[Any, Tensor, Tensor]:
        # The base, the weight (N, D) and the bias (N,) of each row.
        network = self.network
        weight = of_neurons(network.weight, member, neuron, rank=1)
        return network.base.members(member), weight, of_neurons(network.bias, member, neuron)


_LAWS: Dispatcher[type[NeuronLaw]] = Dispatcher()
register_neuron_law = _LAWS.register
find_neuron_law = _LAWS.find


@register_neuron_law(FourierActivation, FourierBase)
class BoundedLaw(NeuronLaw):
    r"""Neurons that grow at most linearly, by rejection from quadratic tilts of the base.

    .. math:: |\sigma| \leq \alpha + \beta |v| \implies
        \sigma^2 \leq (\alpha + \beta r) (\alpha + \beta v^2 / r)

    Here :math:`v = w \cdot \tilde{t}(x)` has the standard deviation :math:`r` under the base. The
    implication is the inequality of Cauchy and Schwarz.
    """

    def _envelope(self, centre: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        # The coefficients of 1 and v^2, from the bound of σ with the least envelope, row by row.
        activation = self.network.activation
        assert isinstance(activation, FourierActivation)
        (constant, first), *others = activation.bounds(centre)
        slope = torch.full_like(constant, first)
        for other, steep in others:
            less = other + steep * spread < constant + slope * spread
            constant, slope = torch.where(less, other, constant), torch.where(less, steep, slope)
        total = constant + slope * spread
        return total * constant, total * slope / torch.where(spread > 0, spread, torch.inf)

    def draw(self, member: Tensor, neuron: Tensor) -> Tensor:
        activation = self.network.activation
        base, weight, bias = self._rows(member, neuron)
        mean = base.mean(weight)
        centre = bias + (weight * mean).sum(-1)
        spread = (rows_matmul(weight, base.covariance(weight)) * weight).sum(-1).sqrt()
        # No bound that grows is taken where it is infinite, or a difference of infinite numbers.
        spread = torch.where(spread < 1e100, spread, 1e100)
        c0, c2 = self._envelope(centre, spread)

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            own, w, k0, k2 = base.members(rows), weight[rows], c0[rows], c2[rows]
            x = own.sample_quadratic(w, k0, torch.zeros_like(k0), k2)
            v = (w * (own.statistic(x) - of_members(mean, rows, 1))).sum(-1)
            bound = k0 + k2 * v.square()
            return x, torch.rand_like(v) * bound <= activation(centre[rows] + v).square()

        return rejection_by_row(propose, weight, rate=0.05)


@register_neuron_law(FourierActivation, Gaussian)
class BoundedGaussianLaw(BoundedLaw):
    r"""Neurons on a Gaussian base: rejection in one coordinate, along the weight."""

    def draw(self, member: Tensor, neuron: Tensor) -> Tensor:
        activation = self.network.activation
        base, weight, bias = self._rows(member, neuron)
        centre = bias + (weight * base.mean(weight)).sum(-1)
        scale = base.whiten(weight.unsqueeze(-2)).squeeze(-2).norm(dim=-1)
        c0, c2 = self._envelope(centre, scale)
        c2 = c2 * scale.square()  # in standard deviations u

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            k0, k2 = c0[rows], c2[rows]
            u = torch.randn_like(k0)
            (bent,) = (torch.rand_like(u) * (k0 + k2) > k0).nonzero(as_tuple=True)
            # Under the law ∝ u² N(u; 0, 1), u² is chi-squared with three degrees of freedom.
            more = torch.randn((2, len(bent)), dtype=u.dtype, device=u.device).square().sum(0)
            u[bent] = (u[bent].square() + more).sqrt().copysign(u[bent])
            bound = k0 + k2 * u.square()
            z = centre[rows] + scale[rows] * u
            return u, torch.rand_like(u) * bound <= activation(z).square()

        return base.sample_along(weight, rejection_by_row(propose, weight, rate=0.05))


@register_neuron_law(Cos, Counts)
@register_neuron_law(Sin, Counts)
class CountLaw(BoundedLaw):
    r"""Waves on counts, whose squares have the period :math:`\pi` in the weight.

    A wave with a weight near :math:`\pi` is almost constant on the integers. The bounds of
    :class:`BoundedLaw` see this after the weight is reduced to :math:`|w| \leq \pi / 2`.
    """

    def _rows(self, member: Tensor, neuron: Tensor) -> tuple[Any, Tensor, Tensor]:
        base, weight, bias = super()._rows(member, neuron)
        return base, weight - math.pi * (weight / math.pi).round(), bias


@register_neuron_law(GaussianActivation, Gaussian)
class ConcaveLaw(NeuronLaw):
    r"""Neurons that are logarithmically concave on either side of zero, on a Gaussian base.

    Across the weight the law is normal. Along the weight, in standard deviations :math:`u`, it is
    logarithmically concave on either side. Such a function :math:`f` with maximum :math:`f^*` at
    :math:`u^*` and integral at most :math:`I` has the envelope of Devroye (1986, Non-Uniform
    Random Variate Generation, section VII.2):

    .. math:: f(u) \leq f^* \min\left(1, e^{1 - |u - u^*| f^* / I}\right)
    """

    def draw(self, member: Tensor, neuron: Tensor) -> Tensor:
        activation = self.network.activation
        assert isinstance(activation, GaussianActivation)
        base, weight, bias = self._rows(member, neuron)
        log_norm = of_neurons(self.log_norm, member, neuron)
        mean = bias + (weight * base.mean(weight)).sum(-1)
        scale = base.whiten(weight.unsqueeze(-2)).squeeze(-2).norm(dim=-1)
        constant = scale == 0  # the law is the base
        safe = torch.where(constant, 1.0, scale)
        lower, upper = activation.modes(mean, safe)

        def log_target(z: Tensor, u: Tensor) -> Tensor:
            return 2 * activation(z).abs().log() - u.square() / 2 - math.log(2 * math.pi) / 2

        tiny = torch.finfo(mean.dtype).tiny  # zero belongs to neither side
        sides = [upper.clamp(min=tiny)]
        if lower is not None:
            sides.append(lower.clamp(max=-tiny))
        modes = torch.stack([(side - mean) / safe for side in sides])  # (1 or 2, N)
        peaks = torch.stack([log_target(z, u) for z, u in zip(sides, modes, strict=True)])
        rates = (peaks - log_norm).exp()  # f* / I

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            side = torch.randint(len(sides), rows.shape, device=rows.device)
            sign = torch.where(side == 0, 1.0, -1.0)
            mode, peak, rate = modes[side, rows], peaks[side, rows], rates[side, rows]
            uniform, far = torch.rand_like(mode), torch.rand_like(mode) < 0.5
            distance = torch.where(far, 1 - uniform.log(), uniform)  # |u - u*| f* / I
            u = mode + torch.where(torch.rand_like(mode) < 0.5, distance, -distance) / rate
            z = mean[rows] + safe[rows] * u
            log_ratio = log_target(z, u) - peak - (1 - distance).clamp(max=0)
            accepted = (sign * z > 0) & (torch.rand_like(u).log() <= log_ratio)
            return u, accepted | constant[rows]

        u = rejection_by_row(propose, weight, rate=0.1)
        return base.sample_along(weight, torch.where(constant, torch.randn_like(u), u))


@register_neuron_law(Bump, Gaussian)
class NormalLaw(NeuronLaw):
    r"""Bumps on a Gaussian base: normal along the weight, in standard deviations :math:`u`.

    .. math:: e^{-(m + s u)^2 - u^2 / 2} \propto
        \mathcal{N}\left(u; \frac{-2 m s}{1 + 2 s^2}, \frac{1}{1 + 2 s^2}\right)
    """

    def draw(self, member: Tensor, neuron: Tensor) -> Tensor:
        base, weight, bias = self._rows(member, neuron)
        mean = bias + (weight * base.mean(weight)).sum(-1)
        scale = base.whiten(weight.unsqueeze(-2)).squeeze(-2).norm(dim=-1)
        precision = 1 + 2 * scale.square()
        u = torch.randn_like(mean) * precision.rsqrt() - 2 * mean * scale / precision
        return base.sample_along(weight, u)


@register_neuron_law(Step, UniformSphere)
@register_neuron_law(ReLU, UniformSphere)
@register_neuron_law(LeakyReLU, UniformSphere)
class PowerLaw(NeuronLaw):
    r"""Homogeneous neurons without bias on the sphere: powers of :math:`w \cdot x`."""

    def draw(self, member: Tensor, neuron: Tensor) -> Tensor:
        activation = self.network.activation
        assert activation.degree is not None
        base, weight, _ = self._rows(member, neuron)
        # σ(±1)² are the shares of the half-spheres.
        lower, upper = activation(weight.new_tensor([-1.0, 1.0])).square()
        below = torch.rand_like(weight[:, 0]) * (lower + upper) < lower
        return base.sample_power(weight, 2 * activation.degree, torch.where(below, -1.0, 1.0))


class MixtureLaw(NeuronLaw):
    r"""Neurons on a mixture that all members share: first a component, then a draw on it.

    .. math:: \int \sigma_i^2 d\mu = \sum_k \pi_k \int \sigma_i^2 d\mu_k
    """

    def __init__(self, network: Network, log_norm: Tensor) -> None:
        super().__init__(network, log_norm)
        base = network.base
        assert isinstance(base, BatchedMixture)
        count = Size(base.log_weights().shape)
        apart = replace(network, base=base.components.flatten(count), batch_shape=count)
        log_norms = apart.log_norms()  # (K, n)
        self.cumulative = cumulate((log_norms + base.log_weights().unsqueeze(-1)).mT)
        law = find_neuron_law(type(apart.activation), type(apart.base))
        assert law is not None
        self.law = law(apart, log_norms)

    @staticmethod
    def covers(network: Network) -> bool:
        """Whether there are laws of single neurons on the components."""
        base = network.base
        assert isinstance(base, BatchedMixture)
        return find_neuron_law(type(network.activation), type(base.components)) is not None

    def draw(self, member: Tensor, neuron: Tensor) -> Tensor:
        x = self.law.draw(pick(self.cumulative, neuron), neuron)
        return x.reshape((-1, *self.network.base.event_shape))
