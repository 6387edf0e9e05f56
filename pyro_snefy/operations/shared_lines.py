r"""Distribution functions and quantiles of many laws that share their neurons and their base.

.. math:: F(x) = \frac{1}{Z} \operatorname{Tr}\left( V A(x) V^\top \right), \quad
    A(x) = \int_{-\infty}^x \phi(u) \phi(u)^\top \mu(du), \quad \phi(u) = \sigma(W t(u) + b)

A conditional family with one readout for each context is such a batch. One table of the matrices
:math:`A` at the edges of panels serves all rows: each row meets a few of them, and evaluates its
density in one panel.
"""

__all__ = ["SharedLine", "with_shared_neurons"]

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..activations import Cos, Sin
from ..network import Network
from ..numerics.forms import Readout

_NODES = 16  # of each panel
_COARSE = 64  # edges that are searched first
_CHUNK = 2**22  # numbers that are held at once
_TABLE = 2**20  # numbers of the table for the middle of the line, at most
_BLOCK = 64  # panels of a block in the tails
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


class _Segment(NamedTuple):
    r"""Blocks of panels, each with as many panels as the others."""

    first: int  # the number of its first block
    low: Tensor  # the lower ends of the panels, (blocks, panels)
    high: Tensor

    @classmethod
    def of(cls, first: int, edges: Tensor, block: int) -> "_Segment":
        """The panels between edges; the last panels of the last block may have no length."""
        short = -(len(edges) - 1) % block
        edges = torch.cat([edges, edges[-1:].expand(short)])
        return cls(first, edges[:-1].reshape(-1, block), edges[1:].reshape(-1, block))


class SharedLine:
    r"""The laws of a batch whose events have one coordinate, on panels that all of them share.

    The middle of the line, where most rows are, has a matrix at every edge. The tails, which may be
    long, have one at every 64th edge.

    Arguments:
        network: The network, in float64, whose statistic is its event, with neurons and a base
            without batch dimensions.
        edges: The edges of the panels, in ascending order, with shape :math:`(E,)`.
    """

    def __init__(self, network: Network, edges: Tensor) -> None:
        self.network = network
        # With readouts of this size, all normalisers are one.
        size = (-0.5 * network.log_normalizer()).exp()[..., None, None]
        readout = network.form.matrix * size
        shape = network.batch_shape + readout.shape[-2:]
        self.readout = readout.expand(shape).reshape(-1, *shape[-2:])  # (B, m, n)
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        # From values at the nodes to coefficients of Legendre polynomials.
        basis = np.polynomial.legendre.legvander(nodes, _NODES - 1)
        transform = (basis * weights[:, None]) * (2 * np.arange(_NODES) + 1) / 2
        self.nodes, self.weights, self.transform = (
            torch.as_tensor(x, dtype=edges.dtype, device=edges.device)
            for x in (nodes, weights, transform)
        )
        middle = min(len(edges) - 1, max(1, _TABLE // network.width**2))
        start = (len(edges) - 1 - middle) // 2
        self.segments: list[_Segment] = []
        for low, high, block in (
            (0, start, _BLOCK),
            (start, start + middle, 1),
            (start + middle, len(edges) - 1, _BLOCK),
        ):
            if high > low:
                first = sum(len(x.low) for x in self.segments)
                self.segments.append(_Segment.of(first, edges[low : high + 1], block))
        self.anchors = torch.cat([*(x.low[:, 0] for x in self.segments), edges[-1:]])
        self.table = self._table()

    @staticmethod
    def fits(count: int) -> bool:
        """Whether a given number of edges is small enough."""
        return count <= _MOST

    def _table(self) -> Tensor:
        # The matrices A at the anchors, (blocks + 1, n, n), a few blocks at a time.
        pieces = []
        for _, lows, highs in self.segments:
            size = max(1, _CHUNK // (lows.shape[-1] * _NODES * self.network.width))
            for low, high in zip(lows.split(size), highs.split(size), strict=True):
                x, measure = self._at_nodes(low, high)
                neurons, density = self._neurons(x.flatten(1))
                weighted = (density * measure.flatten(1)).unsqueeze(-1) * neurons
                pieces.append(neurons.mT @ weighted)
        blocks = torch.cat(pieces)
        return torch.cat([torch.zeros_like(blocks[:1]), blocks.cumsum(0)])

    def _at_nodes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        # The nodes of panels (*), and their weights, each (*, nodes).
        middle, half = ((low + high) / 2).unsqueeze(-1), ((high - low) / 2).unsqueeze(-1)
        return middle + half * self.nodes, half * self.weights

    def _neurons(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # Values of the neurons, (*, n), and of the base, (*), at values of the coordinate.
        network = self.network
        value = x.unsqueeze(-1) if network.base.event_dim else x
        z = network.base.statistic(value) @ network.weight.mT + network.bias
        return network.activation(z), network.base.log_density(value).exp()

    def _by_rows(self, function: Callable[..., Tensor], *values: Tensor) -> Tensor:
        # A function of rows of the batch and values (*, batch), of a few of them at a time.
        shape, rows = values[0].shape, torch.arange(len(self.readout), device=values[0].device)
        rows = rows.repeat(values[0].numel() // max(1, len(rows)))
        size = max(1, _CHUNK // (self.network.width * max(self.network.width, _NODES)))
        pieces = zip(rows.split(size), *(x.reshape(-1).split(size) for x in values), strict=True)
        return torch.cat([function(*piece) for piece in pieces]).reshape(shape)

    def _by_segments(
        self, function: Callable[..., Tensor], block: Tensor, *values: Tensor
    ) -> Tensor:
        # A function of a segment, and of blocks and values (N,) in it, of a few of them at a time.
        places, pieces = [], []
        for segment in self.segments:
            own = block - segment.first
            (inside,) = ((own >= 0) & (own < len(segment.low))).nonzero(as_tuple=True)
            size = max(1, _CHUNK // (segment.low.shape[-1] * _NODES * self.network.width))
            for index in inside.split(size) if len(inside) else ():
                pieces.append(function(segment, own[index], *(x[index] for x in values)))
                places.append(index)
        order = torch.cat(places)
        return torch.empty_like(values[-1]).index_put((order,), torch.cat(pieces))

    def _below(self, rows: Tensor, block: Tensor) -> Tensor:
        # The mass of each row up to an anchor.
        readout = self.readout[rows]
        return ((readout @ self.table[block]) * readout).sum((-2, -1))

    def _density(self, rows: Tensor, x: Tensor) -> Tensor:
        # The density of each row at its values, (N, *).
        neurons, density = self._neurons(x)
        outputs = neurons.flatten(1, -2) @ self.readout[rows].mT
        return density * outputs.square().sum(-1).reshape(x.shape)

    def _in_block(self, segment: _Segment, block: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        # The masses of the panels of a block, (N, panels), and densities, (N, panels, nodes).
        x, measure = self._at_nodes(segment.low[block], segment.high[block])
        density = self._density(rows, x)
        return (density * measure).sum(-1), density

    def _panel(
        self, segment: _Segment, block: Tensor, panel: Tensor, density: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The density in one panel as a Legendre series, with its middle and half length.
        index = panel.unsqueeze(-1)
        low, high = (x[block].gather(-1, index).squeeze(-1) for x in (segment.low, segment.high))
        density = density.take_along_dim(index.unsqueeze(-1), dim=1).squeeze(1)
        return density @ self.transform, (low + high) / 2, (high - low) / 2

    def cdf(self, x: Tensor) -> Tensor:
        r"""The distribution functions, with gradients.

        Arguments:
            x: Values, with shape :math:`(*, \text{batch})`.
        """
        return self._by_rows(self._cdf, x).clamp(max=1.0)

    def _cdf(self, rows: Tensor, x: Tensor) -> Tensor:
        block = torch.searchsorted(self.anchors, x.detach().contiguous(), right=True) - 1
        block = block.clamp(0, len(self.anchors) - 2)
        return self._below(rows, block) + self._by_segments(self._within, block, rows, x)

    def _within(self, segment: _Segment, block: Tensor, rows: Tensor, x: Tensor) -> Tensor:
        # The mass from the lower end of a block to x.
        masses, density = self._in_block(segment, block, rows)
        panel = (segment.low[block] <= x.detach().unsqueeze(-1)).sum(-1) - 1
        panel = panel.clamp(min=0)
        before = torch.arange(masses.shape[-1], device=x.device) < panel.unsqueeze(-1)
        series, middle, half = self._panel(segment, block, panel, density)
        t = ((x - middle) / torch.where(half > 0, half, 1.0)).clamp(-1.0, 1.0)
        return torch.where(before, masses, 0.0).sum(-1) + half * _antiderivative(series, t)[0]

    def icdf(self, q: Tensor) -> Tensor:
        r"""The quantiles, with gradients by implicit differentiation.

        .. math:: F(x) = q \quad \Rightarrow \quad dx = (dq - dF(x)) / F'(x)

        Arguments:
            q: Probabilities, with shape :math:`(*, \text{batch})`.
        """
        with torch.no_grad():
            x = self._by_rows(self._icdf, q)
        if not torch.is_grad_enabled():
            return x
        distribution = self.cdf(x)
        change = (q - q.detach()) - (distribution - distribution.detach())
        with torch.no_grad():
            density = self._by_rows(lambda rows, x: self._density(rows, x[:, None])[:, 0], x)
        return x + change / torch.where(density > 0, density, torch.inf)

    def _icdf(self, rows: Tensor, q: Tensor) -> Tensor:
        target = q * self._below(rows, torch.full_like(rows, len(self.anchors) - 1))
        block = self._block(rows, target)
        missing = target - self._below(rows, block)
        return self._by_segments(self._reach, block, rows, missing)

    def _reach(self, segment: _Segment, block: Tensor, rows: Tensor, mass: Tensor) -> Tensor:
        # The x with a given mass from the lower end of a block to x.
        masses, density = self._in_block(segment, block, rows)
        upper = masses.cumsum(-1)
        panel = (upper < mass.unsqueeze(-1)).sum(-1).clamp(max=masses.shape[-1] - 1)
        series, middle, half = self._panel(segment, block, panel, density)
        below = (upper - masses).gather(-1, panel.unsqueeze(-1)).squeeze(-1)
        return middle + half * _solve(series, (mass - below) / torch.where(half > 0, half, 1.0))

    def _block(self, rows: Tensor, target: Tensor) -> Tensor:
        # The last block with less than the target below it: first among a few anchors, dense
        # where the base is, by one matrix product, and then by halves.
        last = len(self.anchors) - 1
        ends = self.anchors[[0, -1]].asinh()
        share = torch.linspace(0, 1, _COARSE, dtype=target.dtype, device=target.device)
        coarse = torch.searchsorted(self.anchors, (ends[0] + (ends[1] - ends[0]) * share).sinh())
        coarse = torch.cat([coarse.clamp(0, last), coarse.new_tensor([0, last])]).unique()
        readout = self.readout[rows]
        masses = (readout.mT @ readout).flatten(-2) @ self.table[coarse].flatten(-2).mT
        found = torch.searchsorted(masses.cummax(-1).values, target.unsqueeze(-1)).squeeze(-1)
        found = (found - 1).clamp(0, len(coarse) - 2)
        low, high = coarse[found], coarse[found + 1]
        while len(wide := (high - low > 1).nonzero().squeeze(-1)):
            middle = (low[wide] + high[wide]) // 2
            less = self._below(rows[wide], middle) < target[wide]
            low[wide] = torch.where(less, middle, low[wide])
            high[wide] = torch.where(less, high[wide], middle)
        return low


def _antiderivative(series: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    # The integral of a Legendre series from -1 to t, and the series itself at t, each (*):
    # the antiderivative of P_k is (P_{k+1} - P_{k-1}) / (2k + 1).
    count = series.shape[-1]
    values = [torch.ones_like(t), t]
    for k in range(1, count):
        values.append(((2 * k + 1) * t * values[-1] - k * values[-2]) / (k + 1))
    legendre = torch.stack(values, dim=-1)
    factor = 1 / (2 * torch.arange(1, count, dtype=t.dtype, device=t.device) + 1)
    higher = (legendre[..., 2:] - legendre[..., : count - 1]) * factor
    integral = torch.cat([(t + 1).unsqueeze(-1), higher], dim=-1)
    return (series * integral).sum(-1), (series * legendre[..., :count]).sum(-1)


def _solve(series: Tensor, mass: Tensor) -> Tensor:
    # The t in [-1, 1] with a given mass below it, by Newton's method within a bisection.
    low, high = -torch.ones_like(mass), torch.ones_like(mass)
    t = torch.zeros_like(mass)
    for _ in range(60):
        integral, density = _antiderivative(series, t)
        below = integral < mass
        low, high = torch.where(below, t, low), torch.where(below, high, t)
        step = t + (mass - integral) / density
        inside = (step > low) & (step < high)
        new = torch.where(inside, step, (low + high) / 2)
        done = (new - t).abs() <= 1e-15
        t = new
        if bool(done.all()):
            break
    return t
