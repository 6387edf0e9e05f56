r"""Distribution functions and quantiles of many laws that share their neurons and their base.

.. math:: F(x) = \frac{1}{Z} \operatorname{Tr}\left( V A(x) V^\top \right), \quad
    A(x) = \int_{-\infty}^x \phi(u) \phi(u)^\top \mu(du), \quad \phi(u) = \sigma(W t(u) + b)

A conditional family with one readout for each context is such a batch. One table of the matrices
:math:`A` at the edges of panels serves all rows: each row meets a few of them, and evaluates its
density in one panel.
"""

__all__ = ["Laws", "SharedLine", "has_restriction", "masses_below", "with_shared_neurons"]

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from ..activations import Cos, Sin
from ..kernels import closed_form
from ..network import Network
from ..numerics.forms import Readout
from ..numerics.legendre import antiderivative, legendre_rule
from .restricted import restrict

_NODES = 16  # of each panel
_COARSE = 64  # edges that are searched first
_CHUNK = 2**22  # numbers that are held at once
_TABLE = 2**22  # numbers of the table for the middle of the line, at most
_BLOCK = 64  # panels of a block in the tails
_BOXES = 2**17  # pairs of neurons in boxes that are evaluated at once
_MOST = 2**20  # panels: more would take too long


def with_shared_neurons(network: Network) -> Network | None:
    r"""The same networks with one set of neurons and a readout each, or None.

    .. math:: \cos(w \cdot t + b) = \cos b \cos(w \cdot t) - \sin b \sin(w \cdot t)

    Biases of waves that differ from law to law move to the readouts.

    Arguments:
        network: The network of a batch of laws.
    """
    network = network.real()
    weight, bias, matrix = network.weight, network.bias, network.form.matrix
    shared = weight.dim() == 2 and not network.base.batch_shape
    if not (shared and isinstance(network.form, Readout) and max(matrix.dim() - 2, bias.dim() - 1)):
        return None
    if bias.dim() == 1:
        return network
    if not isinstance(network.activation, Cos | Sin):
        return None
    cos, sin = bias.cos().unsqueeze(-2), bias.sin().unsqueeze(-2)
    quarter = math.pi / 2 if isinstance(network.activation, Sin) else -math.pi / 2
    sign = math.copysign(1.0, quarter)
    phases = torch.stack([torch.zeros_like(weight[:, 0]), torch.full_like(weight[:, 0], quarter)])
    return replace(
        network,
        weight=torch.cat([weight, weight]),
        bias=phases.flatten(),
        form=Readout(torch.cat([matrix * cos, sign * matrix * sin], dim=-1)),
    )


def has_restriction(network: Network) -> bool:
    """Whether :func:`masses_below` has a closed form."""
    event = network.weight.new_zeros(network.base.event_shape)
    try:
        _, part = restrict(network.base, torch.full_like(event, -torch.inf), event)
    except NotImplementedError:
        return False
    return closed_form(network.activation, part, bias=True)


def masses_below(network: Network, x: Tensor) -> Tensor:
    r"""The matrices :math:`A(x)`, with shape :math:`(N, n, n)`, in closed form.

    Arguments:
        network: The network, in float64, with neurons and a base without batch dimensions.
        x: The values, with shape :math:`(N,)`.
    """
    pieces = []
    for piece in x.split(max(1, _BOXES // network.width**2)):
        event = piece.unsqueeze(-1) if network.base.event_dim else piece
        log_mass, part = restrict(network.base, torch.full_like(event, -torch.inf), event)
        _, matrix = replace(network, base=part).kernel().matrix(network.bias)
        pieces.append(log_mass.exp()[:, None, None] * matrix)
    return torch.cat(pieces)


class Laws:
    r"""The densities of a batch of laws that share their neurons, by Gauss-Legendre nodes.

    Arguments:
        network: The network, in float64, with neurons and a base without batch dimensions.
        like: A tensor of the dtype and device that nodes are to have.
    """

    def __init__(self, network: Network, like: Tensor) -> None:
        self.network = network
        self.has_graph = torch.is_grad_enabled()
        # With readouts of this size, all normalisers are one.
        size = (-0.5 * network.log_normalizer()).exp()[..., None, None]
        readout = network.form.matrix * size
        shape = network.batch_shape + readout.shape[-2:]
        self.readout = readout.expand(shape).reshape(-1, *shape[-2:])  # (B, m, n)
        self.nodes, self.weights, self.transform = legendre_rule(_NODES, like)

    def at_nodes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The nodes of panels (*), and their weights, each (*, nodes)."""
        middle, half = ((low + high) / 2).unsqueeze(-1), ((high - low) / 2).unsqueeze(-1)
        return middle + half * self.nodes, half * self.weights

    def neurons(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values of the neurons, (*, n), and of the base, (*), at values of the coordinate."""
        network = self.network
        value = x.unsqueeze(-1) if network.base.event_dim else x
        z = network.base.statistic(value) @ network.weight.mT + network.bias
        return network.activation(z), network.base.log_density(value).exp()

    def density(self, rows: Tensor, x: Tensor) -> Tensor:
        """The density of each row at its values, (N, *)."""
        neurons, density = self.neurons(x)
        outputs = neurons.flatten(1, -2) @ self.readout[rows].mT
        return density * outputs.square().sum(-1).reshape(x.shape)

    def form(self, rows: Tensor, matrix: Tensor) -> Tensor:
        """The trace of V A V', for one matrix or for one each row."""
        readout = self.readout[rows]
        return ((readout @ matrix) * readout).sum((-2, -1))


class _Segment:
    r"""Blocks of panels on a part of the line, with a matrix :math:`A` at the end of each block.

    Arguments:
        laws: The laws.
        edges: The edges of the panels, in ascending order, with shape :math:`(E,)`.
        block: The number of panels of a block.
        start: A function that returns :math:`A` at the first edge.
    """

    def __init__(self, laws: Laws, edges: Tensor, block: int, start: Callable[[], Tensor]) -> None:
        self.laws, self.start = laws, start
        short = -(len(edges) - 1) % block
        edges = torch.cat([edges, edges[-1:].expand(short)])  # the last panels have no length
        self.low, self.high = (x.reshape(-1, block) for x in (edges[:-1], edges[1:]))
        self.anchors = torch.cat([self.low[:, 0], edges[-1:]])
        self.size = max(1, _CHUNK // (block * _NODES * laws.network.width))

    @cached_property
    def table(self) -> Tensor:
        r"""The matrices :math:`A` at the anchors, with shape :math:`(\text{blocks} + 1, n, n)`."""
        laws, pieces = self.laws, []
        with torch.set_grad_enabled(laws.has_graph):
            for low, high in zip(
                self.low.split(self.size), self.high.split(self.size), strict=True
            ):
                x, measure = laws.at_nodes(low, high)
                neurons, density = laws.neurons(x.flatten(1))
                weighted = (density * measure.flatten(1)).unsqueeze(-1) * neurons
                pieces.append(neurons.mT @ weighted)
            return torch.cat([self.start().unsqueeze(0), *pieces]).cumsum(0)

    def cdf(self, rows: Tensor, x: Tensor) -> Tensor:
        """The distribution functions at values (N,) of the segment."""
        block = torch.searchsorted(self.anchors, x.detach().contiguous(), right=True) - 1
        block = block.clamp(0, len(self.low) - 1)
        masses, density = self._in_block(rows, block)
        panel = ((self.low[block] <= x.detach().unsqueeze(-1)).sum(-1) - 1).clamp(min=0)
        before = torch.arange(masses.shape[-1], device=x.device) < panel.unsqueeze(-1)
        series, middle, half = self._panel(block, panel, density)
        t = ((x - middle) / torch.where(half > 0, half, 1.0)).clamp(-1.0, 1.0)
        within = torch.where(before, masses, 0.0).sum(-1) + half * antiderivative(series, t)[0]
        return self.laws.form(rows, self.table[block]) + within

    def icdf(self, rows: Tensor, target: Tensor) -> Tensor:
        """The values with a given mass below them, which are in the segment."""
        block = self._block(rows, target)
        mass = target - self.laws.form(rows, self.table[block])
        masses, density = self._in_block(rows, block)
        upper = masses.cumsum(-1)
        panel = (upper < mass.unsqueeze(-1)).sum(-1).clamp(max=masses.shape[-1] - 1)
        series, middle, half = self._panel(block, panel, density)
        below = (upper - masses).gather(-1, panel.unsqueeze(-1)).squeeze(-1)
        return middle + half * _solve(series, (mass - below) / torch.where(half > 0, half, 1.0))

    def _in_block(self, rows: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        # The masses of the panels of a block, (N, panels), and densities, (N, panels, nodes).
        x, measure = self.laws.at_nodes(self.low[block], self.high[block])
        density = self.laws.density(rows, x)
        return (density * measure).sum(-1), density

    def _panel(
        self, block: Tensor, panel: Tensor, density: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The density in one panel as a Legendre series, with its middle and half length.
        index = panel.unsqueeze(-1)
        low, high = (x[block].gather(-1, index).squeeze(-1) for x in (self.low, self.high))
        density = density.take_along_dim(index.unsqueeze(-1), dim=1).squeeze(1)
        return density @ self.laws.transform, (low + high) / 2, (high - low) / 2

    def _block(self, rows: Tensor, target: Tensor) -> Tensor:
        # The last block with less than the target below it: first among a few anchors, dense
        # about zero, by one matrix product, and then by halves.
        last = len(self.anchors) - 1
        ends = self.anchors[[0, -1]].asinh()
        share = torch.linspace(0, 1, _COARSE, dtype=target.dtype, device=target.device)
        coarse = torch.searchsorted(self.anchors, (ends[0] + (ends[1] - ends[0]) * share).sinh())
        coarse = torch.cat([coarse.clamp(0, last), coarse.new_tensor([0, last])]).unique()
        readout = self.laws.readout[rows]
        masses = (readout.mT @ readout).flatten(-2) @ self.table[coarse].flatten(-2).mT
        found = torch.searchsorted(masses.cummax(-1).values, target.unsqueeze(-1)).squeeze(-1)
        found = (found - 1).clamp(0, len(coarse) - 2)
        low, high = coarse[found], coarse[found + 1]
        while len(wide := (high - low > 1).nonzero().squeeze(-1)):
            middle = (low[wide] + high[wide]) // 2
            less = self.laws.form(rows[wide], self.table[middle]) < target[wide]
            low[wide] = torch.where(less, middle, low[wide])
            high[wide] = torch.where(less, high[wide], middle)
        return low


class SharedLine:
    r"""The laws of a batch whose events have one coordinate, on panels that all of them share.

    The middle of the line, where most rows are, has a matrix at every edge. The tails, which may be
    long, have one at every 64th edge, and only if a row is there.

    Arguments:
        network: The network, in float64, whose statistic is its event, with neurons and a base
            without batch dimensions.
        edges: The edges of the panels, in ascending order, with shape :math:`(E,)`.
    """

    def __init__(self, network: Network, edges: Tensor) -> None:
        laws = self.laws = Laws(network, edges)
        n, count = network.width, len(edges) - 1
        width = min(count, max(1, _TABLE // n**2))
        first = (count - width) // 2
        last = first + width
        middle = _Segment(laws, edges[first : last + 1], 1, self._start)
        self.segments = [middle]
        if first:
            nothing = edges.new_zeros((n, n))
            self.segments.insert(0, _Segment(laws, edges[: first + 1], _BLOCK, lambda: nothing))
        if last < count:
            end = _Segment(laws, edges[last:], _BLOCK, lambda: middle.table[-1])
            self.segments.append(end)
        self.middle = middle
        self.borders = torch.stack([x.anchors[0] for x in self.segments[1:]] or [edges[-1]])

    @staticmethod
    def fits(count: int) -> bool:
        """Whether a given number of edges is small enough."""
        return count <= _MOST

    def _start(self) -> Tensor:
        # A where the middle begins: in closed form, or else by panels.
        network, edge = self.laws.network, self.middle.anchors[0]
        if self.segments[0] is self.middle:
            return edge.new_zeros((network.width,) * 2)
        if not has_restriction(network):
            return self.segments[0].table[-1]
        return masses_below(network, edge.unsqueeze(0)).squeeze(0)

    def _by_rows(
        self, function: Callable[[_Segment, Tensor, Tensor], Tensor], part: Tensor, values: Tensor
    ) -> Tensor:
        # A function of segments, and of rows of the batch and values (*, batch) in each segment, of
        # a few of them at a time.
        rows = torch.arange(len(self.laws.readout), device=values.device)
        rows = rows.repeat(values.numel() // max(1, len(rows)))
        flat, part = values.reshape(-1), part.reshape(-1)
        places, pieces = [rows[:0]], [flat[:0]]
        for k, segment in enumerate(self.segments):
            (inside,) = (part == k).nonzero(as_tuple=True)
            size = min(segment.size, max(1, _CHUNK // self.laws.network.width**2))
            for index in inside.split(size) if len(inside) else ():
                pieces.append(function(segment, rows[index], flat[index]))
                places.append(index)
        found = torch.empty_like(flat).index_put((torch.cat(places),), torch.cat(pieces))
        return found.reshape(values.shape)

    def cdf(self, x: Tensor) -> Tensor:
        r"""The distribution functions, with gradients.

        Arguments:
            x: Values, with shape :math:`(*, \text{batch})`.
        """
        part = torch.searchsorted(self.borders, x.detach().contiguous(), right=True)
        part = part.clamp(max=len(self.segments) - 1)
        return self._by_rows(_Segment.cdf, part, x).clamp(max=1.0)

    def icdf(self, q: Tensor) -> Tensor:
        r"""The quantiles, with gradients by implicit differentiation.

        .. math:: F(x) = q \quad \Rightarrow \quad dx = (dq - dF(x)) / F'(x)

        Arguments:
            q: Probabilities, with shape :math:`(*, \text{batch})`.
        """
        shape = self.laws.network.batch_shape
        with torch.no_grad():
            part = torch.zeros_like(q, dtype=torch.long)
            every = torch.arange(len(self.laws.readout), device=q.device)
            table, index = self.middle.table, self.segments.index(self.middle)
            borders = [table[0]] * (index > 0) + [table[-1]] * (self.segments[-1] != self.middle)
            for matrix in borders:
                part = part + (self.laws.form(every, matrix).reshape(shape) < q)
            x = self._by_rows(_Segment.icdf, part, q)
        if not torch.is_grad_enabled():
            return x
        distribution = self.cdf(x)
        change = (q - q.detach()) - (distribution - distribution.detach())
        with torch.no_grad():
            density = self._by_rows(
                lambda segment, rows, x: segment.laws.density(rows, x[:, None])[:, 0], part, x
            )
        return x + change / torch.where(density > 0, density, torch.inf)


def _solve(series: Tensor, mass: Tensor) -> Tensor:
    # The t in [-1, 1] with a given mass below it, by Newton's method within a bisection.
    low, high = -torch.ones_like(mass), torch.ones_like(mass)
    t = torch.zeros_like(mass)
    for _ in range(60):
        integral, density = antiderivative(series, t)
        below = integral < mass
        low, high = torch.where(below, t, low), torch.where(below, high, t)
        step = t + (mass - integral) / density
        inside = (step > low) & (step < high)
        new = torch.where(inside, step, (low + high) / 2)
        done = (new - t).abs() <= 1e-14
        t = new
        if bool(done.all()):
            break
    return t
