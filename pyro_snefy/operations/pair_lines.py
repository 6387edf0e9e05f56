r"""Distribution functions and quantiles of one coordinate of bumps on normal laws.

.. math:: F(x) = \frac{1}{Z} \sum_{ijk} M_{ij} \pi_k K_{ijk} \,
    \Phi\left(\frac{x - m_{ijk}}{s_{ijk}}\right), \qquad M = V^\top V

A product of two bumps and a normal law is a normal density times a number: the entry
:math:`K_{ijk}` of the kernel of component :math:`k`. With :math:`x = c + L e`, weights
:math:`v = w L` and preactivations :math:`a` at the mean, its precision in :math:`e` is
:math:`I + v_i v_i^\top + v_j v_j^\top`. The formula of Woodbury gives the mean and the variance
of a coordinate, with the row :math:`l` of :math:`L` and the matrix
:math:`G = I + (v_i, v_j)^\top (v_i, v_j)`:

.. math:: m = c - (l \cdot v_i, l \cdot v_j) G^{-1} (a_i, a_j)^\top, \quad
    s^2 = l \cdot l - (l \cdot v_i, l \cdot v_j) G^{-1} (l \cdot v_i, l \cdot v_j)^\top

Terms have both signs, as in the normaliser: where neurons nearly cancel each other, both lose
digits.
"""

__all__ = ["PairLine", "pair_line"]

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..activations import Bump
from ..bases import Gaussian, GaussianMixture
from ..kernels.registry import kernel
from ..network import Network
from ..numerics.recompute import recomputed

_CHUNK = 2**22  # numbers that are held at once
_ANCHORS = 512  # values that a quantile is looked for between
_REACH = 40.0  # standard deviations: the mass beyond is zero in float64
_STEPS = 60  # of Newton's method, at most
_ROUNDING = 4 * torch.finfo(torch.float64).eps


def pair_line(network: Network, dim: int) -> "PairLine | None":
    r"""The laws of a coordinate of vectors, where all laws share their bumps, or None.

    Arguments:
        network: The network, in float64, whose statistic is its event.
        dim: The coordinate.
    """
    base = network.base
    normal = isinstance(base, Gaussian | GaussianMixture) and base.event_shape.numel() > 1
    shared = network.weight.dim() == 2 and network.bias.dim() == 1 and not base.batch_shape
    bumps = isinstance(network.activation, Bump)
    return PairLine(network, dim) if bumps and normal and shared else None


class PairLine:
    r"""The laws of one coordinate of a batch of networks that share their bumps.

    Arguments:
        network: The network, in float64, whose statistic is its event.
        dim: The coordinate.
    """

    def __init__(self, network: Network, dim: int) -> None:
        # Laws do not depend on the sizes of their forms, whose squares might overflow.
        form = network.form.map(lambda x: x / x.detach().abs().amax((-2, -1), keepdim=True))
        network = replace(network, form=form)
        weight, bias, base = network.weight, network.bias, network.base
        self.pairs = torch.triu_indices(network.width, network.width, device=weight.device)
        self.batch_shape = network.batch_shape
        self.form = form.map(
            lambda x: x.expand(self.batch_shape + x.shape[-2:]).reshape(-1, *x.shape[-2:])
        )
        self.size = (-network.log_normalizer()).exp().expand(self.batch_shape).reshape(-1, 1)
        shares = weight.new_ones(())
        if isinstance(base, GaussianMixture):
            shares, base = base.log_weights().exp(), base.components
        assert isinstance(base, Gaussian)
        _, matrix = kernel(network.activation, base, weight).matrix(bias)
        mean = base.mean(weight)
        unit = torch.zeros_like(weight[:1])
        unit[:, dim] = 1.0
        loc, scale = self._tilted(
            base.whiten(weight), base.whiten(unit), (weight * mean.unsqueeze(-2)).sum(-1) + bias
        )
        first, second = self.pairs
        both = 1.0 + (first != second).to(weight)  # each pair of two neurons stands for two
        entries = both * matrix[..., first, second] * shares.unsqueeze(-1)
        flat = (-1, self.pairs.shape[-1])  # (components, pairs)
        self.loc, self.scale, self.entries = (
            x.expand(entries.shape).reshape(flat)
            for x in (mean[..., dim, None] - loc, scale, entries)
        )

    def _tilted(self, white: Tensor, unit: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
        # What neurons take from the mean of a coordinate, and its deviation, (*, pairs).
        first, second = self.pairs
        inner = white @ white.mT
        own = 1.0 + inner.diagonal(dim1=-2, dim2=-1)
        across = inner[..., first, second]
        det = own[..., first] * own[..., second] - across.square()
        along = (white @ unit.mT).squeeze(-1)

        def product(x: Tensor, y: Tensor) -> Tensor:
            mixed = x[..., first] * y[..., second] + x[..., second] * y[..., first]
            rest = own[..., second] * (x * y)[..., first] + own[..., first] * (x * y)[..., second]
            return (rest - across * mixed) / det

        total = unit.square().sum((-2, -1)).unsqueeze(-1)
        tiny = torch.finfo(total.dtype).eps
        variance = torch.maximum(total - product(along, along), tiny * total)
        return product(along, centre), variance.sqrt()

    def _table(self, function: Callable[[Tensor], Tensor], factor: Tensor, x: Tensor) -> Tensor:
        # Sums over components of a function of standardised values (N,), with shape (N, pairs).
        values = (x[:, None, None] - self.loc) / self.scale
        return (factor * function(values)).sum(-2)

    def _grams(self, rows: Tensor) -> Tensor:
        gram = self.form.map(lambda x: x[rows]).gram()
        return self.size[rows] * gram[..., self.pairs[0], self.pairs[1]]

    def _by_rows(
        self, function: Callable[[Tensor], Tensor], factor: Tensor, rows: Tensor, x: Tensor
    ) -> Tensor:
        # Sums over pairs and components for some rows (N,) at values (N,).
        def total(part: Tensor) -> Tensor:
            table = self._table(function, factor, x[part])
            return (self._grams(rows[part]) * table).sum(-1)

        parts = torch.arange(len(x), device=x.device).split(max(1, _CHUNK // self.loc.numel()))
        return torch.cat([recomputed(total, part) for part in parts])

    def _below(self, rows: Tensor, x: Tensor) -> Tensor:
        return self._by_rows(_distribution, self.entries, rows, x)

    def _density(self, rows: Tensor, x: Tensor) -> Tensor:
        return self._by_rows(_density, self.entries / self.scale, rows, x)

    def _rows(self, x: Tensor) -> Tensor:
        # The rows of the batch that values (*, batch) belong to, in one dimension.
        count = self.batch_shape.numel()
        return torch.arange(count, device=x.device).repeat(x.numel() // max(1, count))

    def cdf(self, x: Tensor) -> Tensor:
        r"""The distribution functions, with gradients.

        Arguments:
            x: Values, with shape :math:`(*, \text{batch})`.
        """
        found = self._below(self._rows(x), x.reshape(-1))
        return found.reshape(x.shape).clamp(0.0, 1.0)

    def icdf(self, q: Tensor) -> Tensor:
        r"""The quantiles, with gradients by implicit differentiation.

        .. math:: F(x) = q \quad \Rightarrow \quad dx = (dq - dF(x)) / F'(x)

        Arguments:
            q: Probabilities, with shape :math:`(*, \text{batch})`.
        """
        rows, target = self._rows(q), q.reshape(-1)
        with torch.no_grad():
            x = self._newton(rows, target, *self._brackets(rows, target))
        if torch.is_grad_enabled():
            below = self._below(rows, x)
            with torch.no_grad():
                density = self._density(rows, x)
            change = (target - target.detach()) - (below - below.detach())
            x = x + change / torch.where(density > 0, density, torch.inf)
        return x.reshape(q.shape)

    def _brackets(self, rows: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Two neighbours among some values that all laws share, dense about zero, and a value
        # between them, by a chord.
        reach = (self.loc.abs() + _REACH * self.scale).amax()
        size = self.scale.amin()
        share = torch.linspace(-1, 1, _ANCHORS, dtype=target.dtype, device=target.device)
        anchors = size * ((reach / size).asinh() * share).sinh()
        chunk = max(1, _CHUNK // self.loc.numel())
        table = torch.cat(
            [self._table(_distribution, self.entries, x) for x in anchors.split(chunk)]
        )
        pieces = []
        for part in torch.arange(len(rows), device=rows.device).split(chunk):
            below, mass = self._grams(rows[part]) @ table.mT, target[part].unsqueeze(-1)
            place = torch.searchsorted(below.cummax(-1).values, mass).clamp(1, _ANCHORS - 1)
            ends = torch.cat([place - 1, place], dim=-1)
            pieces.append(torch.cat([anchors[ends], below.gather(-1, ends)], dim=-1))
        low, high, less, more = torch.cat(pieces).unbind(-1)
        share = (target - less) / torch.where(more > less, more - less, 1.0)
        return low.clone(), high.clone(), low + share.clamp(0.0, 1.0) * (high - low)

    def _newton(self, rows: Tensor, target: Tensor, low: Tensor, high: Tensor, x: Tensor) -> Tensor:
        # Newton's method within a bisection, for the values that have not converged. A step that is
        # small is the last one, because errors are about squares of steps.
        small = math.sqrt(torch.finfo(x.dtype).eps) * self.scale.amin()
        left = torch.arange(len(x), device=x.device)
        for _ in range(_STEPS):
            if not len(left):
                break
            some, at = rows[left], x[left]
            error = self._below(some, at) - target[left]
            low[left] = torch.where(error < 0, at, low[left])
            high[left] = torch.where(error < 0, high[left], at)
            step = at - error / self._density(some, at)
            inside = (step > low[left]) & (step < high[left])
            x[left] = torch.where(inside, step, (low[left] + high[left]) / 2)
            near = inside & ((step - at).abs() <= small)
            narrow = high[left] - low[left] <= _ROUNDING * at.abs()
            left = left[~(near | narrow)]
        return x


def _distribution(z: Tensor) -> Tensor:
    return torch.special.erfc(z * -math.sqrt(0.5)) / 2


def _density(z: Tensor) -> Tensor:
    return (z * z / -2).exp() / math.sqrt(2 * math.pi)
