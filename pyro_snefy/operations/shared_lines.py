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

import numpy as np
import torch
from torch import Tensor

from ..activations import Cos, Sin
from ..network import Network
from ..numerics.forms import Readout

_NODES = 16  # of each panel
_STRIDE = 8  # edges between two entries of the table that is searched first
_CHUNK = 2**22  # numbers that are held at once
_TABLE = 2**25  # numbers in the largest table


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


class SharedLine:
    r"""The laws of a batch whose events have one coordinate, on panels that all of them share.

    Arguments:
        network: The network, in float64, whose statistic is its event, with neurons and a base
            without batch dimensions.
        edges: The edges of the panels, in ascending order, with shape :math:`(E,)`.
    """

    def __init__(self, network: Network, edges: Tensor) -> None:
        self.network, self.edges = network, edges
        # With readouts of this size, all normalisers are one.
        size = (-0.5 * network.log_normalizer()).exp()[..., None, None]
        readout = network.form.matrix * size
        shape = network.batch_shape + readout.shape[-2:]
        self.readout = readout.expand(shape).reshape(-1, *shape[-2:])  # (B, m, n)
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        # From values at the nodes to coefficients of Legendre polynomials.
        orders = np.arange(_NODES)
        basis = np.polynomial.legendre.legvander(nodes, _NODES - 1)
        transform = (basis * weights[:, None]) * (2 * orders + 1) / 2
        self.nodes, self.weights, self.transform = (
            torch.as_tensor(x, dtype=edges.dtype, device=edges.device)
            for x in (nodes, weights, transform)
        )
        self.table = self._table()

    @staticmethod
    def fits(network: Network, count: int) -> bool:
        """Whether the table of a given number of edges is small enough."""
        return count * network.width**2 <= _TABLE

    def _table(self) -> Tensor:
        # The matrices A at the edges, (E, n, n).
        low, high = self.edges[:-1, None], self.edges[1:, None]
        half = (high - low) / 2
        x = (low + high) / 2 + half * self.nodes  # (E - 1, nodes)
        neurons, density = self._neurons(x)
        panels = neurons.mT @ ((density * self.weights * half).unsqueeze(-1) * neurons)
        return torch.cat([torch.zeros_like(panels[:1]), panels.cumsum(0)])

    def _neurons(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # Values of the neurons, (*, n), and of the base, (*), at values of the coordinate.
        network = self.network
        value = x.unsqueeze(-1) if network.base.event_dim else x
        z = network.base.statistic(value) @ network.weight.mT + network.bias
        return network.activation(z), network.base.log_density(value).exp()

    def _by_rows(self, function: Callable[..., Tensor], *values: Tensor) -> Tensor:
        # A function of rows of the batch and values (*, batch), of a few of them at a time.
        shape, rows = values[0].shape, torch.arange(len(self.readout), device=self.edges.device)
        rows = rows.repeat(values[0].numel() // max(1, len(rows)))
        size = max(1, _CHUNK // (self.network.width * max(self.network.width, _NODES)))
        pieces = zip(rows.split(size), *(x.reshape(-1).split(size) for x in values), strict=True)
        return torch.cat([function(*piece) for piece in pieces]).reshape(shape)

    def _below(self, rows: Tensor, place: Tensor) -> Tensor:
        # The mass of each row up to an edge.
        readout = self.readout[rows]
        return ((readout @ self.table[place]) * readout).sum((-2, -1))

    def _coefficients(self, rows: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # The density of each row in a panel as a Legendre series, with middle and half length.
        low, high = self.edges[place], self.edges[place + 1]
        middle, half = (low + high) / 2, (high - low) / 2
        neurons, density = self._neurons(middle.unsqueeze(-1) + half.unsqueeze(-1) * self.nodes)
        square = (neurons @ self.readout[rows].mT).square().sum(-1)
        return (square * density) @ self.transform, middle, half

    def cdf(self, x: Tensor) -> Tensor:
        r"""The distribution functions, with gradients.

        Arguments:
            x: Values, with shape :math:`(*, \text{batch})`.
        """
        return self._by_rows(self._cdf, x).clamp(max=1.0)

    def _cdf(self, rows: Tensor, x: Tensor) -> Tensor:
        place = torch.searchsorted(self.edges, x.detach().contiguous(), right=True) - 1
        place = place.clamp(0, len(self.edges) - 2)
        series, middle, half = self._coefficients(rows, place)
        t = ((x - middle) / half).clamp(-1.0, 1.0)
        return self._below(rows, place) + half * _antiderivative(series, t)[0]

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
            density = self._by_rows(self._density, x)
        return x + change / torch.where(density > 0, density, torch.inf)

    def _density(self, rows: Tensor, x: Tensor) -> Tensor:
        neurons, density = self._neurons(x)
        square = (self.readout[rows] @ neurons.unsqueeze(-1)).square().sum((-2, -1))
        return density * square

    def _icdf(self, rows: Tensor, q: Tensor) -> Tensor:
        last = len(self.edges) - 1
        # First every eighth edge, by one matrix product, then halves.
        readout = self.readout[rows]
        gram = (readout.mT @ readout).flatten(-2)
        coarse = self.table[::_STRIDE].flatten(-2)
        masses = gram @ coarse.mT
        target = q * (gram * self.table[-1].flatten()).sum(-1)
        found = torch.searchsorted(masses.cummax(-1).values, target.unsqueeze(-1)).squeeze(-1)
        place = (found - 1).clamp(min=0) * _STRIDE
        step = _STRIDE // 2
        while step:
            middle = (place + step).clamp(max=last)
            place = torch.where(self._below(rows, middle) < target, middle, place)
            step //= 2
        place = place.clamp(max=last - 1)
        series, middle, half = self._coefficients(rows, place)
        mass = (target - self._below(rows, place)) / half
        return middle + half * _solve(series, mass)


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
