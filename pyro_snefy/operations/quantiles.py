r"""Distribution functions and quantiles of one coordinate, by quadrature.

All terms of a quadrature of a density are positive, so that a distribution function has its
digits in the tails as well, where a sum over pairs of neurons would have cancelled.
"""

__all__ = ["Line"]

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor

from ..activations import Activation, Exp, GaussianActivation
from ..bases.base import Base
from ..bases.box import Interval, UniformBox
from ..bases.counts import Discrete, Geometric, Poisson
from ..bases.families import GammaFamily, NormalFamily, PoissonFamily
from ..bases.gaussian import Gaussian
from ..bases.mixture import GaussianMixture, Mixture
from ..bases.product import Product

# Nodes of each panel. Over six radians, their polynomial is exact to 1e-11 even where a panel is
# cut, and to the last digit where it is whole.
_NODES = 16
_RADIANS = 6.0
# Standard deviations beyond which no float64 has anything left.
_REACH = 12.0
# Numbers that are held at once for the neurons at the nodes.
_CHUNK = 2**22
_MOST = 2**20
# Digits of a quantile that are not looked for.
_ROUNDING = 4 * torch.finfo(torch.float64).eps


class Neurons:
    r"""How the preactivations depend on the coordinate :math:`x`: normal about a line.

    Arguments:
        activation: The activation.
        slope: The slopes of their means, with shape :math:`(*, n)`.
        zero: Where their means are zero, with shape :math:`(*, n)`.
        width: Their standard deviations over their slopes, with shape :math:`(*, n)`.
        crossings: Where the zeros of two neurons meet in what is integrated out, with shape
            :math:`(*, C)`, or None.
    """

    def __init__(
        self,
        activation: Activation,
        slope: Tensor,
        zero: Tensor,
        width: Tensor,
        crossings: Tensor | None = None,
    ) -> None:
        self.activation, self.slope, self.zero, self.width = activation, slope, zero, width
        self.crossings = crossings

    @property
    def rate(self) -> Tensor:
        r"""How fast the square varies, in radians per unit of :math:`x`, with shape :math:`(*)`."""
        return self.activation.frequency * self.slope.abs().amax(-1)

    @property
    def tilts(self) -> tuple[Tensor, Tensor]:
        r"""The least and largest :math:`\eta` by which a density is tilted, and zero."""
        if not isinstance(self.activation, Exp):
            return (torch.zeros_like(self.rate),) * 2
        eta = self.activation.frequency * self.slope
        return eta.amin(-1).clamp(max=0), eta.amax(-1).clamp(min=0)


def _grid(low: Tensor, high: Tensor, step: Tensor) -> Tensor:
    # Edges of panels from low to high, (*, P + 1), of at most the step.
    count = int(((high - low) / step).amax().ceil().clamp(min=1))
    if count > _MOST:
        raise NotImplementedError(
            f"A distribution function by quadrature would take {count} panels, more than {_MOST}: "
            "expected smaller weights."
        )
    share = torch.linspace(0, 1, count + 1, dtype=low.dtype, device=low.device)
    return low.unsqueeze(-1) + (high - low).unsqueeze(-1) * share


@singledispatch
def _edges(base: Base, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    """Edges of panels, and atoms, of a base on the real line, each with shape (*, E)."""
    raise NotImplementedError(f"{base} has no distribution function.")


def _scalar(x: Tensor, base: Base) -> Tensor:
    return x.squeeze(-1) if base.event_dim else x


@_edges.register
def _(base: Gaussian, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    scale = base.covariance(neurons.slope)[..., 0, 0].sqrt()
    loc = base.mean(neurons.slope)[..., 0]
    down, up = (scale * tilt for tilt in neurons.tilts)
    low, high = down - _REACH, up + _REACH
    if isinstance(neurons.activation, GaussianActivation):
        # A bend that begins far out leaves its mass there.
        far = ((neurons.zero - loc.unsqueeze(-1)) / scale.unsqueeze(-1)).abs()
        far = torch.where(far.isfinite(), far, 0.0).amax(-1).clamp(max=28.0)
        low, high = low - far, high + far
    step = _RADIANS / (scale * neurons.rate).clamp(min=2 * _RADIANS)
    low, high, step = torch.broadcast_tensors(low, high, step)
    edges = loc.unsqueeze(-1) + scale.unsqueeze(-1) * _grid(low, high, step)
    return [edges, *_kinks(neurons)], []


def _kinks(neurons: Neurons) -> list[Tensor]:
    if not neurons.activation.kink:
        return []
    zero = torch.where(neurons.zero.isfinite(), neurons.zero, 0.0)
    width = torch.where(neurons.width.isfinite(), neurons.width, 0.0)
    # A kink that is smoothed needs panels of the width of the smoothing.
    steps = zero.new_tensor([-6.0, -4.0, -2.5, -1.25, 0.0, 1.25, 2.5, 4.0, 6.0])
    smooth = zero.unsqueeze(-1) + width.unsqueeze(-1) * steps
    kinks = [smooth.flatten(-2) if bool((width > 0).any()) else zero]
    return kinks if neurons.crossings is None else [*kinks, neurons.crossings]


@_edges.register
def _(base: UniformBox, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    low, high = base.low[..., 0], base.high[..., 0]
    low, high = torch.broadcast_tensors(low, high)
    step = _RADIANS / neurons.rate.clamp(min=1e-30)
    return [_grid(low, high, step), *_clamped(_kinks(neurons), low, high)], []


def _clamped(edges: list[Tensor], low: Tensor, high: Tensor) -> list[Tensor]:
    return [x.clamp(low.unsqueeze(-1), high.unsqueeze(-1)) for x in edges]


@_edges.register
def _(base: Interval, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    spread = Neurons(
        neurons.activation,
        neurons.slope.unsqueeze(-2),
        neurons.zero.unsqueeze(-2),
        neurons.width.unsqueeze(-2),
    )
    edges, _ = _edges(base.boxes, spread)
    return [x.flatten(-2) for x in edges], []


@_edges.register
def _(base: GaussianMixture, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    # The neurons have the components in their last batch dimension.
    edges, _ = _edges(base.gaussians, neurons)
    return [x.flatten(-2) for x in edges], []


@_edges.register
def _(base: GammaFamily, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    shape, rate = (neurons.activation.frequency * neurons.slope).unbind(-1)  # (*, n)
    shape = shape + 1
    least, most = shape.amin(-1), shape.amax(-1)
    low = (-45 / least - rate.amax(-1).log()).clamp(min=-700.0)
    high = ((most + 12 * most.sqrt() + 60) / rate.amin(-1)).log()
    step = (2 * most.rsqrt()).clamp(max=0.5)
    return [_grid(low, high, step).exp()], []


@_edges.register
def _(base: NormalFamily, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    linear, quadratic = (neurons.activation.frequency * neurons.slope).unbind(-1)  # (*, n)
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


@_edges.register
def _(base: PoissonFamily, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    largest = (neurons.activation.frequency * neurons.slope).amax(-1)
    return [], _counts(_poisson_bound(largest.exp()))


@_edges.register
def _(base: Poisson, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    return [], _counts(_poisson_bound(base.rate * neurons.tilts[1].exp()))


@_edges.register
def _(base: Geometric, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    return [], _counts(60 / (-torch.log1p(-base.probs) - neurons.tilts[1]) + 60)


@_edges.register
def _(base: Discrete, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    return [], [_scalar(base.points, base)]


@_edges.register
def _(base: Mixture, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    found = [_edges(part, neurons) for part in base.bases]
    return [x for edges, _ in found for x in edges], [x for _, atoms in found for x in atoms]


@_edges.register
def _(base: Product, neurons: Neurons) -> tuple[list[Tensor], list[Tensor]]:
    (factor,) = base.bases
    return _edges(factor, neurons)


@singledispatch
def ends(base: Base) -> list[Tensor]:
    """Where the density of a base jumps on the real line, each with shape (*, E)."""
    return []


@ends.register
def _(base: UniformBox) -> list[Tensor]:
    return [base.low, base.high]


@ends.register
def _(base: Interval) -> list[Tensor]:
    return [base.low, base.high]


@ends.register
def _(base: Mixture) -> list[Tensor]:
    return [x for part in base.bases for x in ends(part)]


@ends.register
def _(base: Product) -> list[Tensor]:
    (factor,) = base.bases
    return ends(factor)


class Line:
    r"""The law of one coordinate, on panels that resolve its density.

    Arguments:
        log_density: The log-density, from values of shape :math:`(*, \text{batch})` to the same.
        base: The base of the coordinate.
        neurons: How the neurons depend on it.
        batch_shape: The batch shape.
        width: The number of neurons.
        jumps: Where the density may jump, each with shape :math:`(*, J)`.
    """

    def __init__(
        self,
        log_density: Callable[[Tensor], Tensor],
        base: Base,
        neurons: Neurons,
        batch_shape: Size,
        width: int,
        jumps: Sequence[Tensor] = (),
    ) -> None:
        self.log_density = log_density
        self.batch_shape = batch_shape
        self.jumps = [x.expand(batch_shape + x.shape[-1:]) for x in jumps if x.requires_grad]
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        like = neurons.slope
        self.nodes = torch.as_tensor(nodes, dtype=like.dtype, device=like.device)
        self.weights = torch.as_tensor(weights, dtype=like.dtype, device=like.device)
        self._at_once = max(1, _CHUNK // (width * max(1, batch_shape.numel())))
        with torch.no_grad():
            edges, atoms = _edges(base, neurons)
        self.diffuse = bool(edges)
        points = torch.cat(atoms, dim=-1).unique() if atoms else like.new_zeros(0)
        every = [*edges, points] if atoms else edges
        every = [x.expand(batch_shape + x.shape[-1:]) for x in every]
        self.edges = torch.cat(every, dim=-1).detach().sort(dim=-1).values  # (batch, E)
        self.inside, self.atoms = self._panels(), self._atoms(points)
        # Up to each edge: what is continuous, and the atoms at it and before it.
        zero = torch.zeros_like(self.edges[..., :1])
        self.smooth = torch.cat([zero, self.inside.cumsum(-1)], dim=-1)
        self.upper = self.smooth + self.atoms.cumsum(-1)
        self.lower = self.upper - self.atoms

    def _panels(self) -> Tensor:
        if not self.diffuse:
            return torch.zeros_like(self.edges[..., 1:])
        low, high = self.edges[..., :-1].movedim(-1, 0), self.edges[..., 1:].movedim(-1, 0)
        pieces = [
            self.integral(a, b)
            for a, b in zip(
                low.split(max(1, self._at_once // _NODES)),
                high.split(max(1, self._at_once // _NODES)),
                strict=True,
            )
        ]
        return torch.cat(pieces).movedim(0, -1)

    def _atoms(self, points: Tensor) -> Tensor:
        masses = torch.zeros_like(self.edges)
        if not len(points):
            return masses
        column = points.reshape((-1,) + (1,) * len(self.batch_shape))
        found = self.log_density(column.expand((-1, *self.batch_shape))).exp().movedim(0, -1)
        place = torch.searchsorted(self.edges.contiguous(), points.expand(found.shape).contiguous())
        return masses.scatter(-1, place, found)

    def integral(self, low: Tensor, high: Tensor) -> Tensor:
        r"""The mass of what is continuous between two values of one panel.

        Arguments:
            low: The lower values, with shape :math:`(*, \text{batch})`.
            high: The upper values, of the same shape.
        """
        half = (high - low) / 2
        shape = (-1,) + (1,) * half.dim()
        x = (low + high) / 2 + half * self.nodes.reshape(shape)
        return (self.log_density(x).exp() * self.weights.reshape(shape)).sum(0) * half

    def _gather(self, table: Tensor, place: Tensor) -> Tensor:
        # The entries of a table (batch, E) at places (*, batch).
        flat = place.reshape(-1, *self.batch_shape).movedim(0, -1)
        return table.gather(-1, flat).movedim(-1, 0).reshape(place.shape)

    def _search(self, table: Tensor, values: Tensor, right: bool) -> Tensor:
        # How many entries of a table (batch, E) are below values (*, batch), or not above.
        flat = values.reshape(-1, *self.batch_shape).movedim(0, -1).contiguous()
        found = torch.searchsorted(table.detach().contiguous(), flat.detach(), right=right)
        return found.movedim(-1, 0).reshape(values.shape)

    def cdf(self, x: Tensor) -> Tensor:
        r"""The distribution function, with gradients.

        Arguments:
            x: Values, with shape :math:`(*, \text{batch})`.
        """
        last = self.edges.shape[-1] - 1
        place = self._search(self.edges, x, right=True) - 1  # the last edge that is not above
        at = place.clamp(0, last)
        below = torch.where(place < 0, 0.0, self._gather(self.upper, at)) + self._moved(x)
        if not self.diffuse:
            return below
        within = (place >= 0) & (place < last)
        low = self._gather(self.edges, at)
        high = torch.where(within, x, low)
        # Panels of no length have no nodes where the density need be finite.
        return (below + self._chunked(self.integral, low, high)).clamp(max=1.0)

    def _moved(self, x: Tensor) -> Tensor:
        # Zero, with the gradients of the jumps below: those of what they leave behind them.
        total = torch.zeros_like(x)
        if not torch.is_grad_enabled():
            return total
        for points in self.jumps:
            at = points.detach().movedim(-1, 0)  # (J, batch)
            beside = 1e-9 * (1 + at.abs())
            with torch.no_grad():
                before, behind = (self.log_density(at + h).exp() for h in (-beside, beside))
            moved = (before - behind) * (points.movedim(-1, 0) - at)
            for place, change in zip(at, moved, strict=True):
                total = total + torch.where(x.detach() > place, change, 0.0)
        return total

    def icdf(self, q: Tensor) -> Tensor:
        r"""The quantile function, the inverse of the distribution function.

        Arguments:
            q: Probabilities, with shape :math:`(*, \text{batch})`.
        """
        with torch.no_grad():
            target = q * self.upper[..., -1]  # one, but for rounding
            place = self._search(self.upper, target, right=False)  # the first edge at or above
            place = place.clamp(max=self.edges.shape[-1] - 1)
            high = self._gather(self.edges, place)
            before = (place - 1).clamp(min=0)
            low, below = self._gather(self.edges, before), self._gather(self.upper, before)
            at_atom = (target > self._gather(self.lower, place)) | (place == 0)
            if not self.diffuse:
                return high
            low = torch.where(at_atom, high, low)
            x = self._chunked(self._newton, low, high, target - below, target)
            x = torch.where(at_atom, high, x)
        return torch.where(at_atom, x, self.attach(x, q)) if torch.is_grad_enabled() else x

    def attach(self, x: Tensor, q: Tensor) -> Tensor:
        r"""Values with the gradients of quantiles: those of :math:`x` with :math:`F(x) = q`.

        Arguments:
            x: The values, with shape :math:`(*, \text{batch})`.
            q: The probabilities, of the same shape; only their gradients count.
        """
        distribution = self.cdf(x.detach())
        change = (q - q.detach()) - (distribution - distribution.detach())
        density = self.log_density(x.detach()).exp().detach()
        return x.detach() + change / torch.where(density > 0, density, torch.inf)

    def _chunked(self, function: Any, *rows: Tensor) -> Tensor:
        rank = len(self.batch_shape)
        leading = rows[0].shape[: rows[0].dim() - rank]
        size = max(1, self._at_once // _NODES)
        if leading.numel() <= size:
            return function(*rows)
        flat = [x.reshape(-1, *self.batch_shape).split(size) for x in rows]
        pieces = [function(*chunk) for chunk in zip(*flat, strict=True)]
        return torch.cat(pieces).reshape(rows[0].shape)

    def _newton(self, low: Tensor, high: Tensor, mass: Tensor, target: Tensor) -> Tensor:
        # The x of a panel up to which there is a given mass: Newton's method, which falls back on
        # bisection, on what is left.
        start, x = low, (low + high) / 2
        for _ in range(100):
            error = self.integral(start, x) - mass
            low, high = torch.where(error < 0, x, low), torch.where(error < 0, high, x)
            step = x - error / self.log_density(x).exp()
            # Rounding may keep the error from vanishing, but not the steps from being small.
            narrow = torch.minimum(high - low, (step - x).abs()) <= _ROUNDING * x.abs()
            done = narrow | (error.abs() <= 1e-14 * target)
            if bool(done.all()):
                break
            inside = (step > low) & (step < high)
            step = torch.where(inside, step, (low + high) / 2)
            x = torch.where(done, x, step)
        return x
