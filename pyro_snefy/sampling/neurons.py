r"""Laws of single neurons, :math:`\propto \sigma(w \cdot t(x) + b)^2 \mu(dx)`."""

__all__ = ["NeuronLaw", "find_neuron_law", "register_neuron_law"]

import math
from typing import Any

import torch
from torch import Tensor

from ..activations import FourierActivation, GaussianActivation, LeakyReLU, ReLU, Step
from ..bases.counts import Geometric, Poisson
from ..bases.engines import FourierBase
from ..bases.gaussian import Gaussian
from ..bases.sphere import UniformSphere
from ..network import Network
from ..numerics.dispatch import Dispatcher
from ..numerics.linalg import rows_matmul
from ..numerics.rejection import rejection_by_row


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
        r"""Draws an event of a neuron for each row.

        Arguments:
            member: The members of the batch, with shape :math:`(N,)`.
            neuron: The neurons, with shape :math:`(N,)`.

        Returns:
            Events, with shape :math:`(N, \text{event})`.
        """
        raise NotImplementedError

    def _row(self, member: Tensor, neuron: Tensor) -> tuple[Any, Tensor, Tensor]:
        # Base, weight and bias of each row.
        _, base, weight, bias, _ = self.network
        return base.members(member), pick(weight, member, neuron, 1), pick(bias, member, neuron)


def pick(x: Tensor, member: Tensor, neuron: Tensor, rank: int = 0) -> Tensor:
    r"""The entries of some neurons of some members of a batch.

    Arguments:
        x: A tensor with shape :math:`(n, *)`, :math:`(1, n, *)` or :math:`(B, n, *)`.
        member: The members, with shape :math:`(N,)`.
        neuron: The neurons, with shape :math:`(N,)`.
        rank: The number of dimensions in :math:`*`.
    """
    if x.dim() == rank + 1:
        return x[neuron]
    return x[0, neuron] if len(x) == 1 else x[member, neuron]


_LAWS: Dispatcher[type[NeuronLaw]] = Dispatcher()
register_neuron_law = _LAWS.register
find_neuron_law = _LAWS.find


@register_neuron_law(FourierActivation, FourierBase)
class BoundedLaw(NeuronLaw):
    r"""Neurons that grow at most linearly, by rejection from quadratic tilts of the base.

    From :math:`|\sigma| \leq \alpha + \beta |v|`, where :math:`v = w \cdot \tilde{t}` has the
    standard deviation :math:`r`, follows :math:`\sigma^2 \leq (\alpha + \beta r)
    (\alpha + \beta v^2 / r)`.
    """

    def _envelope(self, centre: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        # The coefficients of 1 and v^2, by the bound that is best for each row.
        activation: Any = self.network.activation
        (constant, slope), *others = activation.bounds(centre)
        slope = torch.full_like(constant, slope)
        for other, steep in others:
            less = other + steep * spread < constant + slope * spread
            constant, slope = torch.where(less, other, constant), torch.where(less, steep, slope)
        total = constant + slope * spread
        return total * constant, total * slope / torch.where(spread > 0, spread, torch.inf)

    def draw(self, member: Tensor, neuron: Tensor) -> Tensor:
        activation: Any = self.network.activation
        base, weight, bias = self._row(member, neuron)
        mean = base.mean(weight)
        centre = bias + (weight * mean).sum(-1)
        spread = (rows_matmul(weight, base.covariance(weight)) * weight).sum(-1).sqrt()
        c0, c2 = self._envelope(centre, spread)

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            own, w, k0, k2 = base.members(rows), weight[rows], c0[rows], c2[rows]
            x = own.sample_quadratic(w, k0, torch.zeros_like(k0), k2)
            v = (w * (own.statistic(x) - (mean[rows] if mean.dim() > 1 else mean))).sum(-1)
            bound = k0 + k2 * v.square()
            accepted = torch.rand_like(v) * bound <= activation(centre[rows] + v).square()
            return x, accepted

        return rejection_by_row(propose, weight, rate=0.05)


@register_neuron_law(FourierActivation, Gaussian)
class BoundedGaussianLaw(BoundedLaw):
    r"""The same on a Gaussian base, where proposals are for one coordinate, along the weight."""

    def draw(self, member: Tensor, neuron: Tensor) -> Tensor:
        activation: Any = self.network.activation
        base, weight, bias = self._row(member, neuron)
        centre = bias + (weight * base.mean(weight)).sum(-1)
        scale = base.whiten(weight.unsqueeze(-2)).squeeze(-2).norm(dim=-1)
        c0, c2 = self._envelope(centre, scale)
        c2 = c2 * scale.square()  # in standard deviations u

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            k0, k2 = c0[rows], c2[rows]
            u = torch.randn_like(k0)
            (bent,) = (torch.rand_like(u) * (k0 + k2) > k0).nonzero(as_tuple=True)
            # The law of u^2 times the normal one: a sign, and three degrees of freedom.
            more = torch.randn((2, len(bent)), dtype=u.dtype, device=u.device).square().sum(0)
            u[bent] = (u[bent].square() + more).sqrt().copysign(u[bent])
            bound = k0 + k2 * u.square()
            z = centre[rows] + scale[rows] * u
            return u, torch.rand_like(u) * bound <= activation(z).square()

        return base.sample_along(weight, rejection_by_row(propose, weight, rate=0.05))


@register_neuron_law(FourierActivation, Poisson)
@register_neuron_law(FourierActivation, Geometric)
class CountLaw(NeuronLaw):
    r"""Neurons on counts, by the probabilities of all counts that have any.

    Waves of a frequency near :math:`\pi` may be small at every integer, which no bound knows.
    """

    def draw(self, member: Tensor, neuron: Tensor) -> Tensor:
        base, weight, bias = self._row(member, neuron)
        counts = torch.arange(base.most_counts(), dtype=weight.dtype, device=weight.device)
        own = base.map_batches(lambda x, rank: x.unsqueeze(-1))
        neurons = self.network.activation(weight * counts + bias.unsqueeze(-1))
        totals = (own.log_density(counts).exp() * neurons.square()).cumsum(-1)  # (N, X)
        uniform = torch.rand_like(weight) * totals[:, -1:]
        return counts[torch.searchsorted(totals, uniform, right=True).squeeze(-1)]


@register_neuron_law(GaussianActivation, Gaussian)
class ConcaveLaw(NeuronLaw):
    r"""Neurons that are logarithmically concave on either side of zero, on a Gaussian base.

    Along the weight the law is one-dimensional, across it normal. A logarithmically concave
    function with maximum :math:`f^*` at :math:`u^*` and integral at most :math:`I` is bounded by

    .. math:: f(u) \leq f^* \min\left(1, e^{1 - |u - u^*| f^* / I}\right).
    """

    def draw(self, member: Tensor, neuron: Tensor) -> Tensor:
        activation: Any = self.network.activation
        base, weight, bias = self._row(member, neuron)
        log_norm = pick(self.log_norm, member, neuron)
        mean = bias + (weight * base.mean(weight)).sum(-1)
        scale = base.whiten(weight.unsqueeze(-2)).squeeze(-2).norm(dim=-1)
        flat = scale == 0  # a constant neuron: nothing to tilt
        safe = torch.where(flat, 1.0, scale)
        lower, upper = activation.modes(mean, safe)

        def log_target(z: Tensor, u: Tensor) -> Tensor:
            return 2 * activation(z).abs().log() - u.square() / 2 - math.log(2 * math.pi) / 2

        tiny = torch.finfo(mean.dtype).tiny  # zero belongs to neither side
        sides = (
            [upper.clamp(min=tiny)]
            if lower is None
            else [
                upper.clamp(min=tiny),
                lower.clamp(max=-tiny),
            ]
        )
        modes = torch.stack([(side - mean) / safe for side in sides])  # (1 or 2, N)
        peaks = torch.stack([log_target(z, u) for z, u in zip(sides, modes, strict=True)])
        rates = (peaks - log_norm).exp()

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            side = torch.randint(len(sides), rows.shape, device=rows.device)
            sign = torch.where(side == 0, 1.0, -1.0)
            mode, peak, rate = modes[side, rows], peaks[side, rows], rates[side, rows]
            far = torch.rand_like(mode) < 0.5
            uniform = torch.rand_like(mode)
            distance = torch.where(far, 1 - uniform.log(), uniform)  # times the rate
            step = torch.where(torch.rand_like(mode) < 0.5, distance, -distance) / rate
            u = mode + step
            z = mean[rows] + safe[rows] * u
            inside = sign * z > 0
            log_bound = peak + (1 - distance).clamp(max=0)
            ratio = log_target(z, u) - log_bound
            accepted = inside & (torch.rand_like(u).log() <= ratio)
            return u, accepted | flat[rows]

        u = rejection_by_row(propose, weight, rate=0.1)
        return base.sample_along(weight, torch.where(flat, torch.randn_like(u), u))


class PowerLaw(NeuronLaw):
    r"""Homogeneous neurons without bias on the sphere: powers of :math:`w \cdot x`."""

    def power(self) -> int:
        """The power of the neurons."""
        raise NotImplementedError

    def lower_share(self) -> float:
        """The probability of the side where the preactivation is negative."""
        return 0.0

    def draw(self, member: Tensor, neuron: Tensor) -> Tensor:
        base, weight, _ = self._row(member, neuron)
        below = torch.rand_like(weight[:, 0]) < self.lower_share()
        return base.sample_power(weight, 2 * self.power(), torch.where(below, -1.0, 1.0))


@register_neuron_law(Step, UniformSphere)
class _StepLaw(PowerLaw):
    def power(self) -> int:
        return 0


@register_neuron_law(ReLU, UniformSphere)
class _ReLULaw(PowerLaw):
    def power(self) -> int:
        activation: Any = self.network.activation
        return activation.power


@register_neuron_law(LeakyReLU, UniformSphere)
class _LeakyReLULaw(PowerLaw):
    def power(self) -> int:
        return 1

    def lower_share(self) -> float:
        activation: Any = self.network.activation
        square = activation.negative_slope**2
        return square / (1 + square)
