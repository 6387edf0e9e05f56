r"""Densities of many laws at the Gauss-Legendre nodes of panels, a few rows at a time."""

__all__ = [
    "NODES",
    "Distributions",
    "OwnPanels",
    "Panels",
    "SharedPanels",
    "Table",
    "in_events",
    "tabulated",
]

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..bases import Standardized
from ..network import Network
from ..numerics.forms import Readout
from ..numerics.legendre import antiderivative, legendre_rule
from .marginals import log_numerator
from .quantiles import Line, coordinate, line, shared_edges
from .shared_lines import Laws, has_restriction, masses_below

NODES = 16  # of each panel
_CHUNK = 2**22  # numbers that are held at once
_MIDDLE = 256  # panels of the middle of a line with long tails
_FIRST = 64  # panels that are tried first
_EDGES = 2**16  # edges that are evaluated at once
# Inside a panel, the base times its neurons is less than this times its values at the edges.
_BETWEEN = 4.0


class Panels(NamedTuple):
    r"""The densities of rows on panels in ascending order.

    Arguments:
        low: The lower ends of the panels, with shape :math:`(R, P)`.
        high: The upper ends, of the same shape.
        density: The densities at the nodes, with shape :math:`(R, P, \text{nodes})`.
    """

    low: Tensor
    high: Tensor
    density: Tensor


class Distributions(NamedTuple):
    r"""The distribution functions of rows on neighbouring panels in ascending order.

    Arguments:
        edges: The edges of the panels, with shape :math:`(R, P + 1)`.
        values: The distribution functions at the nodes, with shape :math:`(R, P, \text{nodes})`.
    """

    edges: Tensor
    values: Tensor


class Table:
    r"""The laws of a flat batch on panels.

    Arguments:
        rows: The number of laws.
        first: The number of panels to try first.
        count: The number of all panels of a law.
        like: A tensor of the dtype and device of the results.
    """

    has_atoms, diffuse = False, True

    def __init__(self, rows: int, first: int, count: int, like: Tensor) -> None:
        self.rows, self.first, self.count = rows, first, count
        self.panels_of_distributions = count
        self.rule = legendre_rule(NODES, like)

    def at_once(self, count: int) -> int:
        """How many rows with a number of panels each may be evaluated at once."""
        return max(1, _CHUNK // (4 * NODES * count))

    def panels(self, rows: Tensor, count: int) -> Panels:
        """The panels of some rows where the density may be largest."""
        raise NotImplementedError

    def bound(self, rows: Tensor, count: int) -> Tensor:
        r"""A number that no density of a row exceeds outside :meth:`panels`, with shape (R,).

        It is :math:`-\infty` if there is nothing outside.
        """
        raise NotImplementedError

    def atoms(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The points with mass in ascending order, (K,), and their masses, (R, K)."""
        raise NotImplementedError

    def distributions(self, rows: Tensor) -> Distributions:
        """The distribution functions of some rows, on panels that reach into both tails."""
        raise NotImplementedError

    def _within(self, density: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        # The mass of a panel below each of its nodes, (R, P, nodes), and its mass, (R, P).
        nodes, weights, transform = self.rule
        eye = torch.eye(NODES, dtype=nodes.dtype, device=nodes.device)
        below = transform @ antiderivative(eye.unsqueeze(-2), nodes.expand(NODES, -1))[0]
        half = length.unsqueeze(-1) / 2
        return density @ below * half, (density * weights * half).sum(-1)


class SharedPanels(Table):
    r"""The laws of a batch that share their neurons and their base.

    .. math:: p(x) \leq \|V\|^2 \, \mu(x) \, \|\sigma(W t(x) + b)\|^2 / Z

    Panels are taken in the order of this bound.

    Arguments:
        network: The network, as :func:`~pyro_snefy.operations.quantiles.shared_edges` returns it.
        edges: The edges of all panels, in ascending order.
    """

    def __init__(self, network: Network, edges: Tensor) -> None:
        self.laws = Laws(network, edges)
        count = len(edges) - 1
        super().__init__(len(self.laws.readout), min(_FIRST, count), count, edges)
        self.edges = edges
        self.panels_of_distributions = (
            min(count, 2 * _MIDDLE) if has_restriction(network) else count
        )
        with torch.no_grad():
            sizes = [self._size(piece) for piece in edges.split(_EDGES)]
            size = torch.cat(sizes)
            bound = _BETWEEN * torch.maximum(size[:-1], size[1:])
            self.bounds, self.order = bound.sort(descending=True)

    def _size(self, x: Tensor) -> Tensor:
        neurons, density = self.laws.neurons(x)
        return density * neurons.square().sum(-1)

    def at_once(self, count: int) -> int:
        return max(1, _CHUNK // (NODES * count * max(4, self.laws.readout.shape[-2])))

    def panels(self, rows: Tensor, count: int) -> Panels:
        place = self.order[:count].sort().values
        low, high = self.edges[place], self.edges[place + 1]
        return Panels(
            low.expand(len(rows), -1), high.expand(len(rows), -1), self.density(rows, low, high)
        )

    def density(self, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The densities of rows at the nodes of panels (P,), with shape (R, P, nodes)."""
        x, _ = self.laws.at_nodes(low, high)
        neurons, density = self.laws.neurons(x.flatten())
        outputs = self.laws.readout[rows] @ neurons.mT  # (R, m, P * nodes)
        return (density * outputs.square().sum(-2)).unflatten(-1, x.shape)

    def distributions(self, rows: Tensor) -> Distributions:
        edges, first, last, matrices = self._far
        core = edges[first : last + 1]
        low, high = core[:-1], core[1:]
        within, mass = self._within(self.density(rows, low, high), high - low)
        readout = self.laws.readout[rows]
        gram = (readout.mT @ readout).flatten(-2)
        far = (gram @ matrices.flatten(-2).mT).clamp(0.0, 1.0)  # (R, 1 + nodes of far panels)
        start, far = far[:, :1], far[:, 1:].unflatten(-1, (-1, NODES))
        below = start + torch.nn.functional.pad(mass.cumsum(-1)[:, :-1], (1, 0))
        middle = below.unsqueeze(-1) + within
        values = torch.cat([far[:, :first], middle, far[:, first:]], dim=1)
        return Distributions(edges.expand(len(rows), -1), values)

    @cached_property
    def _far(self) -> tuple[Tensor, int, int, Tensor]:
        r"""Panels that resolve the middle of the line, and panels twice as far out each.

        Returns:
            The edges, the numbers of the first and the last edge of the middle, and the matrices
            :math:`A(x)` of :class:`~pyro_snefy.operations.shared_lines.SharedLine`, at the first
            edge of the middle and at the nodes of panels outside it, in closed form.
        """
        edges, network = self.edges, self.laws.network
        peak = int(self.order[0])
        first, last = max(0, peak - _MIDDLE // 2), min(self.count, peak + _MIDDLE // 2)
        if self.count <= 2 * _MIDDLE or not has_restriction(network):
            return edges, 0, self.count, edges.new_zeros((1, network.width, network.width))
        centre, core = edges[peak], edges[first : last + 1]
        lower = centre - _doubled(centre - core[0], centre - edges[0]).flip(0)
        upper = centre + _doubled(core[-1] - centre, edges[-1] - centre)
        ends = [(lower[:-1], lower[1:]), (upper[:-1], upper[1:])]
        nodes = torch.cat([self.laws.at_nodes(*pair)[0].flatten() for pair in ends])
        matrices = masses_below(network, torch.cat([core[:1], nodes]))
        every = torch.cat([lower[:-1], core, upper[1:]])
        return every, len(lower) - 1, len(lower) - 1 + len(core) - 1, matrices

    def bound(self, rows: Tensor, count: int) -> Tensor:
        norm = self.laws.readout[rows].square().sum((-2, -1))
        return (
            norm * self.bounds[count] if count < self.count else torch.full_like(norm, -torch.inf)
        )


class OwnPanels(Table):
    r"""The laws of one coordinate of a batch of networks, each on panels of its own.

    Arguments:
        network: The network, in float64, with one batch dimension.
        dim: The coordinate.
        events: Whether values are events, and not events of the latent base.
    """

    def __init__(self, network: Network, dim: int, events: bool) -> None:
        self.network, self.dim, self.events = network, dim, events
        first = torch.zeros(1, dtype=torch.long, device=network.weight.device)
        some = line(network.members(first).latent(), dim, panels_only=True)
        count = some.edges.shape[-1] - 1
        super().__init__(network.batch_shape.numel(), count, count, network.weight)
        self.has_atoms = len(some.points) > 0
        self.diffuse = some.diffuse

    def at_once(self, count: int) -> int:
        return max(1, _CHUNK // (NODES * max(1, count) * max(4, self.network.width)))

    def panels(self, rows: Tensor, count: int) -> Panels:
        network, own = self.network.members(rows), self._line(rows)
        edges, log_density = own.edges, own.log_density
        if self.events:
            axis = coordinate(network, self.dim)
            vector = network.base.event_dim > 0
            points = edges.mT.unsqueeze(-1) if vector else edges.mT
            points = axis.from_latent(points)
            edges = (points.squeeze(-1) if vector else points).mT
            log_normalizer = network.log_normalizer()
            whole = network.base.event_shape.numel() == 1

            def log_density(x: Tensor) -> Tensor:
                x = x.unsqueeze(-1) if vector else x
                value = network.log_density(x) if whole else log_numerator(network, [self.dim], x)
                return value - log_normalizer

        low, high = edges[..., :-1], edges[..., 1:]
        middle, half = (low + high) / 2, (high - low) / 2
        x = middle.mT.unsqueeze(1) + half.mT.unsqueeze(1) * self.rule.nodes[:, None]
        pieces = [log_density(part).exp() for part in x.split(self._at_once(len(rows)))]
        return Panels(low, high, torch.cat(pieces).movedim(-1, 0))

    def _line(self, rows: Tensor) -> Line:
        return line(self.network.members(rows).latent(), self.dim, panels_only=True)

    def distributions(self, rows: Tensor) -> Distributions:
        panels, own = self.panels(rows, self.count), self._line(rows)
        within, mass = self._within(panels.density, panels.high - panels.low)
        below = (
            torch.nn.functional.pad(mass.cumsum(-1)[:, :-1], (1, 0)) + own.atoms.cumsum(-1)[:, :-1]
        )
        edges = torch.cat([panels.low, panels.high[:, -1:]], dim=-1)
        return Distributions(edges, below.unsqueeze(-1) + within)

    def _at_once(self, rows: int) -> int:
        return max(1, _CHUNK // (NODES * rows * self.network.width))

    def bound(self, rows: Tensor, count: int) -> Tensor:
        return self.rule.nodes.new_full((len(rows),), -torch.inf)

    def atoms(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        own = self._line(rows)
        column = own.points.unsqueeze(-1).expand(-1, len(rows))
        return own.points, own.log_density(column).exp().mT


def _doubled(start: Tensor, end: Tensor) -> Tensor:
    # From a distance to a larger one, each at most twice the one before.
    count = int((end / start).log2().ceil().clamp(min=1))
    share = torch.linspace(0, 1, count + 1, dtype=start.dtype, device=start.device)
    return start * (end / start) ** share


def in_events(network: Network, dim: int) -> bool:
    """Whether a density in events is no constant times the one in latent events."""
    layers = list(coordinate(network, dim)._layers())
    return not all(isinstance(layer, Standardized) for layer in layers[:-1])


def tabulated(network: Network, dim: int) -> Table:
    r"""The laws of one coordinate of a batch of networks, in latent events where these are as good.

    Arguments:
        network: The network, in float64.
        dim: The coordinate.
    """
    flat, count = network.flatten(), network.batch_shape.numel()
    events = in_events(network, dim)
    if isinstance(flat.form, Readout) and not events:
        form = flat.form.map(lambda x: x.expand(count, *x.shape[-2:]))
        shared = shared_edges(replace(flat, form=form).latent())
        if shared is not None:
            return SharedPanels(*shared)
    return OwnPanels(flat, dim, events)
