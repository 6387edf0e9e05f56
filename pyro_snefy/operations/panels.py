r"""Panels of Gauss-Legendre quadrature that resolve the density of one coordinate."""

__all__ = ["Neurons", "between_tails", "edges_and_atoms", "ends"]

import math
from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from torch import Tensor

from ..activations import Activation, Exp, GaussianActivation, Identity, Snake
from ..bases import (
    Base,
    Binomial,
    Discrete,
    GammaFamily,
    Gaussian,
    GaussianMixture,
    Geometric,
    Interval,
    Laplace,
    Logistic,
    Mixture,
    NegativeBinomial,
    NormalFamily,
    Poisson,
    PoissonFamily,
    Product,
    SmoothBox,
    SmoothBoxMixture,
    StudentT,
    UniformAngle,
    UniformBox,
)

# The length of a panel in radians: sixteen nodes integrate a whole panel to the last digit of
# float64, and a panel that is cut to 1e-11.
_RADIANS = 6.0
# The mass of a normal law beyond twelve standard deviations, 4e-33, is negligible in float64.
_REACH = 12.0
# More panels or counts than this would take too long.
_MOST = 2**20
# Panels on either side that resolve waves in tails: fewer where each node needs a kernel.
_AFFORDABLE, _AFFORDABLE_KERNELS = 2**12, 2**9

# e^{-80} is negligible in the lower tail, too, squares of linear neurons included.
_DROP = 80.0

_BATCHED = (GaussianMixture, SmoothBoxMixture)

EdgesAndAtoms = tuple[list[Tensor], list[Tensor]]


@dataclass(frozen=True, eq=False)
class Neurons:
    r"""The preactivations given the coordinate :math:`x`: normal, with a mean linear in :math:`x`.

    Arguments:
        activation: The activation.
        slope: The slopes of the means, with shape :math:`(*, n)`.
        zero: Where the means are zero, with shape :math:`(*, n)`.
        width: Standard deviations divided by slopes, with shape :math:`(*, n)`.
        crossings: Where the kinks of two neurons meet in the coordinates that are integrated out,
            with shape :math:`(*, C)`, or None.
    """

    activation: Activation
    slope: Tensor
    zero: Tensor
    width: Tensor
    crossings: Tensor | None = None

    @property
    def rate(self) -> Tensor:
        r"""How fast the square varies, in radians per unit of :math:`x`, with shape :math:`(*)`."""
        return self.activation.resolution * self.slope.abs().amax(-1)

    @property
    def tilts(self) -> tuple[Tensor, Tensor]:
        r"""The least and the largest :math:`\eta` of the factors :math:`e^{\eta x}`, or zeros."""
        if not isinstance(self.activation, Exp):
            return (torch.zeros_like(self.rate),) * 2
        eta = self.activation.resolution * self.slope
        return eta.amin(-1).clamp(max=0), eta.amax(-1).clamp(min=0)


def _grid(low: Tensor, high: Tensor, step: Tensor) -> Tensor:
    # Edges, (*, P + 1), of equal panels from low to high that are not longer than the step.
    count = int(((high - low) / step).amax().ceil().clamp(min=1))
    if count > _MOST:
        raise NotImplementedError(
            f"A distribution function by quadrature would take {count} panels, more than {_MOST}: "
            "expected smaller weights."
        )
    share = torch.linspace(0, 1, count + 1, dtype=low.dtype, device=low.device)
    return low.unsqueeze(-1) + (high - low).unsqueeze(-1) * share


@singledispatch
def edges_and_atoms(base: Base, neurons: Neurons) -> EdgesAndAtoms:
    """Edges of panels, and atoms, of a base on the real line, each with shape (*, E)."""
    raise NotImplementedError(f"{base} has no distribution function.")


@edges_and_atoms.register
def _(base: Gaussian, neurons: Neurons) -> EdgesAndAtoms:
    low, high, step = _reach(base, neurons)
    return [_grid(low, high, step), *_kinks(neurons, step)], []


def _reach(base: Gaussian, neurons: Neurons) -> tuple[Tensor, Tensor, Tensor]:
    # The ends of the panels on a normal law, and their length, each with shape (*).
    scale = base.covariance(neurons.slope)[..., 0, 0].sqrt()
    loc = base.mean(neurons.slope)[..., 0]
    down, up = (scale * tilt for tilt in neurons.tilts)
    low, high = down - _REACH, up + _REACH
    if isinstance(neurons.activation, GaussianActivation):
        # A neuron whose zero is far out may have its mass there.
        far = ((neurons.zero - loc.unsqueeze(-1)) / scale.unsqueeze(-1)).abs()
        far = torch.where(far.isfinite(), far, 0.0).amax(-1).clamp(max=28.0)
        low, high = low - far, high + far
    step = _RADIANS / (scale * neurons.rate).clamp(min=2 * _RADIANS)
    low, high, step = torch.broadcast_tensors(loc + scale * low, loc + scale * high, scale * step)
    return low, high, step


def _kinks(neurons: Neurons, step: Tensor) -> list[Tensor]:
    if neurons.activation.extent is not None:
        return [_local_edges(neurons, neurons.activation.extent)]
    if neurons.activation.degree is None:
        return []
    zero = torch.where(neurons.zero.isfinite(), neurons.zero, 0.0)
    width = torch.where(neurons.width.isfinite(), neurons.width, 0.0)
    # A kink that is smoothed needs panels of the width of the smoothing, unless the others are
    # short enough.
    offsets = zero.new_tensor([-6.0, -4.0, -2.5, -1.25, 0.0, 1.25, 2.5, 4.0, 6.0])
    sharp = (1.25 * width < step.unsqueeze(-1)).reshape(-1, width.shape[-1]).any(0)
    zero, width = zero[..., sharp], width[..., sharp]
    smooth = zero.unsqueeze(-1) + width.unsqueeze(-1) * offsets
    kinks = [smooth.flatten(-2) if bool((width > 0).any()) else zero]
    return kinks if neurons.crossings is None else [*kinks, neurons.crossings]


def _local_edges(neurons: Neurons, extent: float) -> Tensor:
    # Panels of length two in the preactivation, about the zero of each neuron. A neuron without a
    # slope varies nowhere.
    varies = neurons.slope != 0
    zero = torch.where(varies, neurons.zero, 0.0)
    one = 1 / torch.where(varies, neurons.slope, torch.inf)
    width = torch.where(varies, torch.hypot(one, neurons.width), 0.0)
    offsets = torch.arange(-extent, extent + 1, 2, dtype=zero.dtype, device=zero.device)
    return (zero.unsqueeze(-1) + width.unsqueeze(-1) * offsets).flatten(-2)


@edges_and_atoms.register
def _(base: UniformBox, neurons: Neurons) -> EdgesAndAtoms:
    low, high = torch.broadcast_tensors(base.low[..., 0], base.high[..., 0])
    step = _RADIANS / neurons.rate.clamp(min=1e-30)
    return [_grid(low, high, step), *_clamped(_kinks(neurons, step), low, high)], []


@edges_and_atoms.register
def _(base: SmoothBox, neurons: Neurons) -> EdgesAndAtoms:
    # Far apart, the edges of the box have panels of their own; the density is flat between them.
    box, scale = base.box, base.noise.scale
    assert scale is not None
    low, high, scale = torch.broadcast_tensors(box.low[..., 0], box.high[..., 0], scale[..., 0])
    tilts = (scale * tilt for tilt in neurons.tilts)  # how far they move the noise
    down, up = (
        scale * (tilt + reach) for tilt, reach in zip(tilts, (-_REACH, _REACH), strict=True)
    )
    step = _RADIANS / (neurons.rate + 2 * _RADIANS / scale)
    inner = _RADIANS / neurons.rate.clamp(min=1e-30)
    ends = [_grid(*torch.broadcast_tensors(end + down, end + up, step)) for end in (low, high)]
    return [*ends, _grid(*torch.broadcast_tensors(low, high, inner))], []


@edges_and_atoms.register
def _(base: UniformAngle, neurons: Neurons) -> EdgesAndAtoms:
    # The preactivation is |w| cos(θ - α) + b. The weights are the slopes, (*, n, 2).
    weight = neurons.slope
    rate = neurons.activation.resolution * weight.norm(dim=-1).amax(-1)
    half = torch.full_like(rate, math.pi)
    edges = [_grid(-half, half, _RADIANS / (rate + _RADIANS))]
    if neurons.activation.degree is not None:  # without a bias, neurons are zero at α ± π / 2
        angle = torch.atan2(weight[..., 1], weight[..., 0]) + math.pi / 2
        angle = torch.cat([angle, angle - math.pi], dim=-1)
        edges.append(angle - 2 * math.pi * (angle / (2 * math.pi)).round())
    return edges, []


@edges_and_atoms.register(Laplace)
@edges_and_atoms.register(Logistic)
def _(base: Laplace | Logistic, neurons: Neurons) -> EdgesAndAtoms:
    # Tails e^{-|x - m| / s} with tilts. The logistic density has poles at m ± i π s.
    down, up = neurons.tilts
    low = base.loc - _DROP / (1 / base.scale + down)
    high = base.loc + _DROP / (1 / base.scale - up)
    low, high, rate = torch.broadcast_tensors(low, high, neurons.rate + 4 / base.scale)
    return [_grid(low, high, _RADIANS / rate), base.loc.unsqueeze(-1)], []


@edges_and_atoms.register
def _(base: StudentT, neurons: Neurons) -> EdgesAndAtoms:
    # Without the masses of the tails, panels reach to a mass of 1e-13 or as far as can be paid.
    # Longer panels beyond sample the waves, and leave an error of the order of the mass there.
    loc, scale, df = base.mean(neurons.slope)[..., 0], base.matrix()[..., 0, 0].sqrt(), base.df
    order = df - 2 if isinstance(neurons.activation, Snake | Identity) else df
    step = _student_step(scale, df, neurons)
    reach = scale * df.sqrt() * (math.log(1e13) / order).clamp(max=70.0).exp()
    reach, loc, step = torch.broadcast_tensors(reach, loc, step)
    alone = not bool((neurons.width > 0).any())
    near = torch.minimum(reach, (_AFFORDABLE if alone else _AFFORDABLE_KERNELS) * step)
    far = _grid(near.log(), reach.log(), torch.full_like(near, 0.5)).exp()
    centre = loc.unsqueeze(-1)
    return [_grid(loc - near, loc + near, step), centre - far, centre + far], []


def _student_step(scale: Tensor, df: Tensor, neurons: Neurons) -> Tensor:
    # The density has branch points at m ± i √ν s.
    return _RADIANS / (neurons.rate + _RADIANS / (scale * df.sqrt().clamp(max=0.5)))


def between_tails(base: StudentT, neurons: Neurons, low: Tensor, high: Tensor) -> EdgesAndAtoms:
    """Edges of panels between two tails whose masses are known, from low to high."""
    step = _student_step(base.matrix()[..., 0, 0].sqrt(), base.df, neurons)
    return [_grid(*torch.broadcast_tensors(low, high, step))], []


def _clamped(edges: list[Tensor], low: Tensor, high: Tensor) -> list[Tensor]:
    return [x.clamp(low.unsqueeze(-1), high.unsqueeze(-1)) for x in edges]


@edges_and_atoms.register
def _(base: Interval, neurons: Neurons) -> EdgesAndAtoms:
    return [x.flatten(-2) for x in edges_and_atoms(base.boxes, _spread(neurons))[0]], []


def _spread(neurons: Neurons) -> Neurons:
    # The same for all components, which are one more batch dimension.
    slope, zero, width = (x.unsqueeze(-2) for x in (neurons.slope, neurons.zero, neurons.width))
    return replace(neurons, slope=slope, zero=zero, width=width)


@edges_and_atoms.register
def _(base: GaussianMixture, neurons: Neurons) -> EdgesAndAtoms:
    # The neurons have the components in their last batch dimension.
    low, high, step = _reach(base.gaussians, neurons)  # (*, K)
    ends = low.amin(-1), high.amax(-1), step.amin(-1)
    kinks = [x.flatten(-2) for x in _kinks(neurons, step)]
    # One grid for all components, unless a grid for each of them has fewer panels.
    together = ((ends[1] - ends[0]) / ends[2]).amax()
    if together <= low.shape[-1] * ((high - low) / step).amax():
        return [_grid(*ends), *kinks], []
    return [_grid(low, high, step).flatten(-2), *kinks], []


@edges_and_atoms.register
def _(base: SmoothBoxMixture, neurons: Neurons) -> EdgesAndAtoms:
    # The neurons have the components in their last batch dimension.
    return [x.flatten(-2) for x in edges_and_atoms(base.components, neurons)[0]], []


@edges_and_atoms.register
def _(base: GammaFamily, neurons: Neurons) -> EdgesAndAtoms:
    shape, rate = (neurons.activation.resolution * neurons.slope).unbind(-1)  # (*, n)
    shape = shape + 1
    least, most = shape.amin(-1), shape.amax(-1)
    low = (-45 / least - rate.amax(-1).log()).clamp(min=-700.0)
    high = ((most + 12 * most.sqrt() + 60) / rate.amin(-1)).log()
    step = (2 * most.rsqrt()).clamp(max=0.5)
    return [_grid(low, high, step).exp()], []


@edges_and_atoms.register
def _(base: NormalFamily, neurons: Neurons) -> EdgesAndAtoms:
    linear, quadratic = (neurons.activation.resolution * neurons.slope).unbind(-1)  # (*, n)
    variance = -0.5 / quadratic
    reach = torch.full_like(variance, _REACH)
    grid = _grid(-reach, reach, torch.full_like(reach, 0.5))
    loc, scale = (linear * variance).unsqueeze(-1), variance.sqrt().unsqueeze(-1)
    return [(loc + scale * grid).flatten(-2)], []


def _counts(most: Tensor) -> list[Tensor]:
    count = int(most.max()) + 1
    if count > _MOST:
        raise NotImplementedError(
            f"A distribution function would be a sum over {count} counts, more than {_MOST}."
        )
    return [torch.arange(count, dtype=most.dtype, device=most.device)]


def _poisson_bound(rate: Tensor) -> Tensor:
    return rate + 15 * rate.sqrt() + 60


@edges_and_atoms.register
def _(base: PoissonFamily, neurons: Neurons) -> EdgesAndAtoms:
    largest = (neurons.activation.resolution * neurons.slope).amax(-1)
    return [], _counts(_poisson_bound(largest.exp()))


@edges_and_atoms.register
def _(base: Poisson, neurons: Neurons) -> EdgesAndAtoms:
    return [], _counts(_poisson_bound(base.rate * neurons.tilts[1].exp()))


@edges_and_atoms.register
def _(base: Geometric, neurons: Neurons) -> EdgesAndAtoms:
    return [], _counts(60 / (-torch.log1p(-base.probs) - neurons.tilts[1]) + 60)


@edges_and_atoms.register
def _(base: NegativeBinomial, neurons: Neurons) -> EdgesAndAtoms:
    log_odds = base.probs.log() + neurons.tilts[1]
    failure = -log_odds.expm1()
    mean = base.total_count * log_odds.exp() / failure
    return [], _counts(mean + 15 * (mean / failure).sqrt() - 60 / log_odds + 60)


@edges_and_atoms.register
def _(base: Binomial, neurons: Neurons) -> EdgesAndAtoms:
    return [], _counts(base.total_count)


@edges_and_atoms.register
def _(base: Discrete, neurons: Neurons) -> EdgesAndAtoms:
    return [], [base.vectors.squeeze(-1)]


@edges_and_atoms.register
def _(base: Mixture, neurons: Neurons) -> EdgesAndAtoms:
    found = [
        edges_and_atoms(part, _spread(neurons) if isinstance(part, _BATCHED) else neurons)
        for part in base.bases
    ]
    return [x for edges, _ in found for x in edges], [x for _, atoms in found for x in atoms]


@edges_and_atoms.register
def _(base: Product, neurons: Neurons) -> EdgesAndAtoms:
    (factor,) = base.bases
    return edges_and_atoms(factor, neurons)


@singledispatch
def ends(base: Base) -> list[Tensor]:
    """Where the density of a base jumps on the real line, each with shape (*, E)."""
    return []


@ends.register(UniformBox)
@ends.register(Interval)
def _(base: UniformBox | Interval) -> list[Tensor]:
    return [base.low, base.high]


@ends.register(Mixture)
@ends.register(Product)
def _(base: Mixture | Product) -> list[Tensor]:
    return [x for part in base.bases for x in ends(part)]
