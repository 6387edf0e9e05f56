r"""Distribution functions and quantiles of one coordinate, mostly by Gauss-Legendre quadrature.

All terms of a quadrature of a density are positive. A distribution function thus has its digits in
the lower tail, too, where terms of a sum over pairs of neurons may cancel. Such sums serve where
each node of a quadrature would be one: coordinates of bumps on normal laws, which are
:class:`~pyro_snefy.operations.pair_lines.PairLine`.
"""

__all__ = [
    "Line",
    "box_mass",
    "cdf",
    "coordinate",
    "count_nodes",
    "distribution",
    "icdf",
    "line",
    "shared_edges",
    "shared_line",
]

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Size, Tensor

from ..activations import Step
from ..bases import Base, FourierBase, GaussianMixture, SmoothBoxMixture, StudentT
from ..constraints import is_real
from ..network import Network
from ..numerics.linalg import broadcast_shapes
from .marginals import log_numerator
from .pair_lines import PairLine, pair_line
from .panels import EdgesAndAtoms, Neurons, between_tails, edges_and_atoms, ends
from .shared_lines import SharedLine, with_shared_neurons
from .tails import Tails

_NODES = 16  # of each panel
# Values of neurons at nodes that are held at once, which bounds memory.
_CHUNK = 2**22
# The logarithm of a mass that is negligible in float64, e^7 below eps: densities vary in a panel.
_NO_MASS = -43.0
# Digits of a quantile that are not looked for.
_ROUNDING = 4 * torch.finfo(torch.float64).eps


class Line:
    r"""The law of one coordinate, on panels that resolve its density.

    Arguments:
        log_density: The log-density, from values of shape :math:`(*, \text{batch})` to the same.
        law: The base of the coordinate.
        neurons: The neurons as functions of the coordinate.
        batch_shape: The batch shape.
        width: The number of neurons.
        jumps: Where the density may jump, each with shape :math:`(*, J)`.
        tails: The masses beyond all panels, or None where they are negligible.
    """

    def __init__(
        self,
        log_density: Callable[[Tensor], Tensor],
        law: Base,
        neurons: Neurons,
        batch_shape: Size,
        width: int,
        jumps: Sequence[Tensor] = (),
        tails: Tails | None = None,
    ) -> None:
        self.log_density, self.batch_shape, self.tails = log_density, batch_shape, tails
        self.jumps = [x.expand(batch_shape + x.shape[-1:]) for x in jumps if x.requires_grad]
        like = neurons.slope
        self.nodes, self.weights = (
            torch.as_tensor(x, dtype=like.dtype, device=like.device)
            for x in np.polynomial.legendre.leggauss(_NODES)
        )
        self._panels_at_once = max(1, _CHUNK // (_NODES * width * max(1, batch_shape.numel())))
        with torch.no_grad():
            edges, atoms = _edges_and_atoms(law, neurons, tails)
        self.diffuse = bool(edges)
        self.points = torch.cat(atoms, dim=-1).unique() if atoms else like.new_zeros(0)
        every = [*edges, self.points] if atoms else edges
        every = [x.expand(batch_shape + x.shape[-1:]) for x in every]
        self.edges = torch.cat(every, dim=-1).detach().sort(dim=-1).values  # (batch, E)

    @cached_property
    def upper(self) -> Tensor:
        r"""The mass up to each edge, its atom included, with shape :math:`(\text{batch}, E)`."""
        smooth = torch.nn.functional.pad(self._panels().cumsum(-1), (1, 0))
        if self.tails is not None:
            smooth = smooth + self.tails.beyond(self.edges[..., 0], -1).unsqueeze(-1)
        return smooth + self.atoms.cumsum(-1)

    def _panels(self) -> Tensor:
        # The mass of what is continuous in each panel, (batch, E - 1).
        edges = self.edges.movedim(-1, 0)
        if not self.diffuse:
            return torch.zeros_like(self.edges[..., 1:])
        return self._chunked(self.integral, edges[:-1], edges[1:]).movedim(0, -1)

    @cached_property
    def atoms(self) -> Tensor:
        r"""The mass of the atom at each edge, or zero, with shape :math:`(\text{batch}, E)`."""
        masses, points = torch.zeros_like(self.edges), self.points
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
        r"""The distribution function :math:`F(x)`, with gradients.

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
        total = below + self._chunked(self.integral, low, high)
        if self.tails is not None:
            total = self._with_tails(x, total, place < 0, -1)
            total = self._with_tails(x, total, place >= last, 1)
        return total.clamp(max=1.0)

    def _with_tails(self, x: Tensor, total: Tensor, outside: Tensor, sign: int) -> Tensor:
        # The distribution function with its values in one tail, where there are any.
        assert self.tails is not None
        rows, (flat, mask) = self._rows(outside, x, outside)
        if not len(rows):
            return total
        edge = self.edges[..., 0 if sign < 0 else -1]
        mass = self.tails.beyond(torch.where(mask, flat, edge), sign)
        values = total.reshape(-1, *self.batch_shape)
        found = torch.where(mask, mass if sign < 0 else 1 - mass, values[rows])
        return values.index_put((rows,), found).reshape(total.shape)

    def mass(self, low: Tensor, high: Tensor) -> Tensor:
        r"""The mass of closed intervals, with digits in both tails, and with gradients.

        Sums of panels start from the tail that is nearer, so that they do not cancel.

        Arguments:
            low: The lower ends, with shape :math:`(*, \text{batch})`.
            high: The upper ends, of the same shape.
        """
        if self.tails is not None:  # beyond the edges, too
            ends = (torch.where(x.isfinite(), x, 0.0) for x in (low, high))
            first, final = (
                torch.where(x.isfinite(), self.cdf(end), (x > 0).to(x.dtype))
                for x, end in zip((low, high), ends, strict=True)
            )
            return (final - first).clamp(0.0, 1.0)
        last = self.edges.shape[-1] - 1
        after = self._search(self.edges, low, right=False)  # the first edge that is not below
        before = self._search(self.edges, high, right=True) - 1  # the last edge that is not above
        total = self._between(after, before) + self._moved(high) - self._moved(low)
        if self.diffuse:
            first, final = (self._gather(self.edges, x.clamp(0, last)) for x in (after, before))
            # Panels of no length, and what is outside, have no nodes.
            inner, outer = self.edges[..., 0], self.edges[..., -1]
            low, high = (torch.minimum(torch.maximum(x, inner), outer) for x in (low, high))
            together = after > before  # both ends in one panel
            lower = self._chunked(self.integral, low, torch.where(together, high, first))
            upper = self._chunked(self.integral, torch.where(together, high, final), high)
            total = total + lower + upper
        return torch.where(low <= high, total, 0.0).clamp(0.0, 1.0)

    def _between(self, first: Tensor, last: Tensor) -> Tensor:
        # The mass from one edge to another, (*, batch), the atoms at both included.
        panels = torch.nn.functional.pad(self._panels(), (1, 0))
        below = self.upper - self.atoms  # before each edge, and from each edge on
        above = (
            panels.flip(-1).cumsum(-1).flip(-1) - panels + self.atoms.flip(-1).cumsum(-1).flip(-1)
        )
        top = self.edges.shape[-1] - 1
        start, end = first.clamp(0, top), last.clamp(0, top)
        from_below = self._gather(self.upper, end) - self._gather(below, start)
        from_above = self._gather(above, start) - self._gather(above - self.atoms, end)
        lower_half = self._gather(self.upper, end) < self._gather(above, start)
        return torch.where(first <= last, torch.where(lower_half, from_below, from_above), 0.0)

    def _moved(self, x: Tensor) -> Tensor:
        # Zero, but with the gradient of the mass that enters or leaves when a jump below x moves.
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
        r"""The quantile function :math:`F^{-1}(q)`, with gradients.

        Arguments:
            q: Probabilities, with shape :math:`(*, \text{batch})`.
        """
        upper, lower = self.upper, self.upper - self.atoms
        with torch.no_grad():
            total = upper[..., -1]  # one, but for rounding
            if self.tails is not None:
                total = total + self.tails.beyond(self.edges[..., -1], 1)
            target = q * total
            place = self._search(upper, target, right=False)  # the first edge at or above
            place = place.clamp(max=self.edges.shape[-1] - 1)
            high = self._gather(self.edges, place)
            before = (place - 1).clamp(min=0)
            low, below = self._gather(self.edges, before), self._gather(upper, before)
            at_atom = (target > self._gather(lower, place)) | (place == 0)
            if not self.diffuse:
                return high
            low = torch.where(at_atom, high, low)
            x = self._chunked(self._newton, low, high, target - below, target)
            x = torch.where(at_atom, high, x)
            if self.tails is not None:
                at_atom = torch.zeros_like(at_atom)
                lower, higher = target < upper[..., 0], target > upper[..., -1]
                x = self._in_tail(x, target, lower, -1)
                x = self._in_tail(x, total - target, higher, 1)
        return torch.where(at_atom, x, self.attach(x, q)) if torch.is_grad_enabled() else x

    def _in_tail(self, x: Tensor, mass: Tensor, outside: Tensor, sign: int) -> Tensor:
        # Quantiles with their values in one tail, from the mass beyond, where there are any.
        assert self.tails is not None
        rows, (mass, mask) = self._rows(outside, mass, outside)
        if not len(rows):
            return x
        edge = self.tails.beyond(self.edges[..., 0 if sign < 0 else -1], sign)
        mass = torch.where(mask, torch.minimum(mass, edge), edge)
        found = self.tails.quantile(mass, sign, self.log_density)
        values = x.reshape(-1, *self.batch_shape)
        found = torch.where(mask, found, values[rows])
        return values.index_put((rows,), found).reshape(x.shape)

    def _rows(self, chosen: Tensor, *values: Tensor) -> tuple[Tensor, list[Tensor]]:
        # The rows of values (*, batch), with leading dimensions folded, where any is chosen.
        count = chosen.shape[: chosen.dim() - len(self.batch_shape)].numel()
        (rows,) = chosen.reshape(count, -1).any(-1).nonzero(as_tuple=True)
        return rows, [y.reshape(count, *self.batch_shape)[rows] for y in values]

    def attach(self, x: Tensor, q: Tensor) -> Tensor:
        r"""Values :math:`x` with the gradients of quantiles, by implicit differentiation.

        .. math:: F(x) = q \quad \Rightarrow \quad dx = (dq - dF(x)) / F'(x)

        Arguments:
            x: The values, with shape :math:`(*, \text{batch})`.
            q: The probabilities, of the same shape; only their gradients count.
        """
        x = x.detach()
        one_each = x.shape == self.batch_shape and not len(self.points) and self.tails is None
        distribution = self._mass_below(x) if one_each else self.cdf(x)
        change = (q - q.detach()) - (distribution - distribution.detach())
        density = self.log_density(x).exp().detach()
        return x + change / torch.where(density > 0, density, torch.inf)

    def _mass_below(self, x: Tensor) -> Tensor:
        # The distribution function at one x (batch) of each law: no table of all panels, but the
        # panels below x that have any mass, which two points in each of them tell.
        with torch.no_grad():
            low = self.edges[..., :-1].movedim(-1, 0)
            length = (torch.minimum(self.edges[..., 1:].movedim(-1, 0), x) - low).clamp(min=0)
            found = [self._chunked(self.log_density, low + h * length) for h in (0.27, 0.7)]
            used = torch.maximum(*found) + length.log() > _NO_MASS
            place = used.sort(dim=0, descending=True, stable=True).indices
            place = place[: int(used.sum(0).max())]
            low = low.gather(0, place)
            high = low + (length * used).gather(0, place)
        return self._chunked(self.integral, low, high).sum(0) + self._moved(x)

    def _chunked(self, function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        # A function of values (*, batch), of a few of them at a time.
        leading = rows[0].shape[: rows[0].dim() - len(self.batch_shape)]
        if Size(leading).numel() <= self._panels_at_once:
            return function(*rows)
        flat = [x.reshape(-1, *self.batch_shape).split(self._panels_at_once) for x in rows]
        pieces = [function(*chunk) for chunk in zip(*flat, strict=True)]
        return torch.cat(pieces).reshape(rows[0].shape)

    def _newton(self, low: Tensor, high: Tensor, mass: Tensor, target: Tensor) -> Tensor:
        # The x of a panel with a given mass below it, by Newton's method within a bisection.
        start, x = low, (low + high) / 2
        for _ in range(100):
            error = self.integral(start, x) - mass
            low, high = torch.where(error < 0, x, low), torch.where(error < 0, high, x)
            step = x - error / self.log_density(x).exp()
            # Rounding may keep the error away from zero; steps become small nevertheless.
            narrow = torch.minimum(high - low, (step - x).abs()) <= _ROUNDING * x.abs()
            done = narrow | (error.abs() <= 1e-14 * target)
            if bool(done.all()):
                break
            inside = (step > low) & (step < high)
            step = torch.where(inside, step, (low + high) / 2)
            x = torch.where(done, x, step)
        return x


def line(network: Network, dim: int = 0, panels_only: bool = False) -> Line:
    r"""The law of one coordinate of a network whose statistic is its event.

    Arguments:
        network: The network.
        dim: The coordinate.
        panels_only: Whether tails have panels, too, in place of closed forms of their masses.
    """
    network = network.to(torch.float64)
    base, event_shape = network.base, network.base.event_shape
    whole = event_shape.numel() == 1
    law = base if whole else base.marginal([dim])
    log_normalizer = network.log_normalizer()

    def log_density(x: Tensor) -> Tensor:
        value = x.unsqueeze(-1) if event_shape else x
        inside = law.contains(value)
        mask = inside.unsqueeze(-1) if event_shape else inside
        value = torch.where(mask, value, law.example(value))
        total = network.log_density(value) if whole else log_numerator(network, [dim], value)
        return torch.where(inside, total - log_normalizer, -torch.inf)

    with torch.no_grad():
        neurons = _along(network, dim, whole)
    jumps = [*ends(law), *_steps(network, dim, neurons)]
    tails = None if panels_only else _tails(network, whole, log_normalizer)
    return Line(log_density, law, neurons, network.batch_shape, network.width, jumps, tails)


def _tails(network: Network, whole: bool, log_normalizer: Tensor) -> Tails | None:
    return Tails(network, log_normalizer) if whole and isinstance(network.base, StudentT) else None


def _edges_and_atoms(law: Base, neurons: Neurons, tails: Tails | None) -> EdgesAndAtoms:
    if tails is None:
        return edges_and_atoms(law, neurons)
    assert isinstance(law, StudentT)
    return between_tails(law, neurons, *tails.ends())


@torch.no_grad()
def count_nodes(network: Network, dim: int = 0) -> int:
    r"""The number of points at which :func:`line` evaluates the density of each member.

    Arguments:
        network: The network.
        dim: The coordinate.
    """
    whole = network.base.event_shape.numel() == 1
    base = network.base if whole else network.base.marginal([dim])
    tails = _tails(network, whole, network.weight.new_zeros(()))
    edges, atoms = _edges_and_atoms(base, _along(network, dim, whole), tails)
    return _NODES * sum(x.shape[-1] for x in edges) + sum(x.shape[-1] for x in atoms)


def _steps(network: Network, dim: int, neurons: Neurons) -> list[Tensor]:
    # Where neurons step, unless the place depends on coordinates that are integrated out.
    if not isinstance(network.activation, Step):
        return []
    slope = network.weight[..., dim]
    sharp = neurons.width if neurons.width.dim() < 2 else neurons.width.flatten(0, -2).amax(0)
    sharp = (slope != 0) & ~(sharp > 0)
    return [torch.where(sharp, -network.bias / torch.where(slope == 0, 1.0, slope), 0.0)]


def _along(network: Network, dim: int, whole: bool) -> Neurons:
    # As if other coordinates were normal, with the first two moments that they have.
    activation, base = network.activation, network.base
    weight, bias = network.weight, network.bias
    if isinstance(base, GaussianMixture | SmoothBoxMixture):
        weight, bias = weight.unsqueeze(-3), bias.unsqueeze(-2)
        base = base.components
    if whole:
        slope = weight.squeeze(-1) if weight.shape[-1] == 1 else weight
        zero = -bias / slope if weight.shape[-1] == 1 else torch.zeros_like(bias)
        return Neurons(activation, slope, zero, torch.zeros_like(zero))
    assert isinstance(base, FourierBase)
    covariance = base.dispersion(weight)
    spread = weight @ covariance  # (*, n, D)
    variance = covariance[..., dim, dim].unsqueeze(-1)
    mean = base.mean(weight)
    centre = bias + (weight * mean.unsqueeze(-2)).sum(-1)
    slope = spread[..., dim] / variance
    total = (spread * weight).sum(-1)
    left = total - slope.square() * variance
    left = torch.where(left > 1e-12 * total, left, 0.0)
    crossings = None
    if activation.degree is not None:
        shared = spread @ weight.mT - slope.unsqueeze(-1) * spread[..., dim].unsqueeze(-2)
        constant = centre - slope * mean[..., dim].unsqueeze(-1)
        crossings = _crossings(shared, left.sqrt(), constant, slope)
    return Neurons(
        activation,
        slope,
        mean[..., dim].unsqueeze(-1) - centre / slope,
        left.sqrt() / slope.abs(),
        crossings,
    )


def _crossings(shared: Tensor, root: Tensor, constant: Tensor, slope: Tensor) -> Tensor | None:
    # Where the kinks of two neurons meet, if one variable u is all that is left of both, as r_i u
    # and ± r_j u: the integral over u has a kink there. Their covariances are shared, (*, n, n).
    product = root.unsqueeze(-1) * root.unsqueeze(-2)
    one = ((product > 0) & (shared.abs() >= (1 - 1e-9) * product)).triu(1)
    if not bool(one.any()):
        return None
    sign = shared.sign()
    safe = torch.where(root > 0, root, 1.0)
    height, steep = constant / safe, slope / safe
    gap = height.unsqueeze(-1) - sign * height.unsqueeze(-2)
    closing = steep.unsqueeze(-1) - sign * steep.unsqueeze(-2)
    where = -gap / closing
    where = torch.where(one & where.isfinite(), where, 0.0)
    used = one.flatten(0, -3).any(0) if one.dim() > 2 else one
    return where[..., used]


def shared_line(network: Network) -> SharedLine | None:
    r"""The laws of a batch on one table, where they share neurons and base on the real line.

    Arguments:
        network: The network, in float64, whose statistic is its event.
    """
    found = shared_edges(network)
    return None if found is None else SharedLine(*found)


def distribution(network: Network, dim: int = 0) -> Line | SharedLine | PairLine:
    r"""The law of one coordinate, from what all members of a batch have in common.

    Arguments:
        network: The network, in float64, whose statistic is its event.
        dim: The coordinate.
    """
    return shared_line(network) or pair_line(network, dim) or line(network, dim)


def shared_edges(network: Network) -> tuple[Network, Tensor] | None:
    r"""The laws of a batch with one set of neurons, and edges of panels for all of them, or None.

    Arguments:
        network: The network, in float64, whose statistic is its event.
    """
    shared = with_shared_neurons(network) if network.base.event_shape.numel() == 1 else None
    if shared is None or shared.activation.degree is not None or not is_real(shared.base.support):
        return None
    with torch.no_grad():
        edges, atoms = edges_and_atoms(shared.base, _along(shared, 0, True))
    if atoms or not SharedLine.fits(sum(x.numel() for x in edges)):
        return None
    return shared, torch.cat([x.flatten() for x in edges]).unique()


def coordinate(network: Network, dim: int) -> Network:
    """A network whose base maps values of a coordinate to latent values and back."""
    whole = network.base.event_shape.numel() == 1
    return network if whole else replace(network, base=network.base.marginal([dim]))


def cdf(network: Network, dim: int, value: Tensor) -> Tensor:
    r"""The distribution function of one coordinate.

    Arguments:
        network: The network.
        dim: The coordinate.
        value: Events, with shape :math:`(*)`, or :math:`(*, 1)` if events are vectors.
    """
    dtype = torch.promote_types(value.dtype, network.weight.dtype)
    network = network.to(torch.float64)
    x = coordinate(network, dim).to_latent(value.double())
    x = x.squeeze(-1) if network.base.event_dim else x
    x = x.expand(broadcast_shapes(x.shape, network.batch_shape))
    value = distribution(network.latent(), dim).cdf(x)
    return torch.where(x.isnan(), torch.nan, value).to(dtype)


def icdf(network: Network, dim: int, value: Tensor) -> Tensor:
    r"""The quantile function of one coordinate.

    Arguments:
        network: The network.
        dim: The coordinate.
        value: Probabilities, with shape :math:`(*)`.
    """
    dtype = torch.promote_types(value.dtype, network.weight.dtype)
    network = network.to(torch.float64)
    axis = coordinate(network, dim)
    q = value.expand(broadcast_shapes(value.shape, network.batch_shape)).double()
    x = distribution(network.latent(), dim).icdf(q)
    if is_real(axis.latent().base.support):
        x = torch.where(q > 0, torch.where(q < 1, x, torch.inf), -torch.inf)
    x = torch.where((q >= 0) & (q <= 1), x, torch.nan)
    return axis.from_latent(x.unsqueeze(-1) if network.base.event_dim else x).to(dtype)


def box_mass(network: Network, low: Tensor, high: Tensor) -> Tensor:
    r"""The probability of closed intervals, for events with one coordinate.

    Arguments:
        network: The network, in float64, whose statistic is its event.
        low: The lower ends, with shape :math:`(*, \text{batch})`.
        high: The upper ends, of the same shape.
    """
    return line(network).mass(low, high)
