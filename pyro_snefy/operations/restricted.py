r"""Bases restricted to boxes, which are bases again."""

__all__ = ["restrict", "standardized"]

import math
from collections.abc import Callable
from functools import singledispatch
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from ..bases import (
    Base,
    Discrete,
    FourierBase,
    Gaussian,
    GaussianMixture,
    Interval,
    LaplaceBase,
    Mixture,
    Product,
    UniformBox,
)
from ..bases.base import TensorField
from ..bases.engines import Pairs
from ..bases.mixture import BatchedMixture
from ..numerics.linalg import broadcast_shapes, safe_logsumexp
from ..numerics.segments import (
    density_over,
    log_segment,
    segment_moments,
    segment_reach,
    segment_rule,
    segment_series,
    wave_segment,
)

Restricted = tuple[Tensor, Base]

# Gauss's rule with 48 + 0.6 ωh nodes finds E[e^{iωt}] in a segment of length 2h to the last digits.
# Beyond this ωh, error functions cost less.
_FAST = 500.0


class _TruncatedGaussian(FourierBase, LaplaceBase):
    r"""The normal law with a diagonal covariance, given that it is in a box, :math:`t(x) = x`."""

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        name: TensorField(constraints.real, per_event=True)
        for name in ("loc", "scale", "low", "high")
    }

    def __init__(self, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor, rank: int) -> None:
        self.loc, self.scale, self.low, self.high = loc, scale, low, high
        shape = broadcast_shapes(loc.shape, scale.shape, low.shape, high.shape)
        event = shape[len(shape) - rank :]
        batch = shape[: len(shape) - rank]
        super().__init__(batch, event, event.numel(), validate_args=False)

    def _ends(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # Location and scale, and the standardised ends of the box, each (*, 1, D).
        values = torch.broadcast_tensors(self.loc, self.scale, self.low, self.high)
        vectors = (x if self.event_dim else x.unsqueeze(-1) for x in values)
        loc, scale, low, high = (x.unsqueeze(-2) for x in vectors)
        return loc, scale, standardized(low, loc, scale), standardized(high, loc, scale)

    def log_mass(self) -> Tensor:
        """The logarithm of the mass of the box under the normal law, with shape (*)."""
        _, _, low, high = self._ends()
        return log_segment(None, low, high)[0].sum((-2, -1))

    def mean(self, like: Tensor) -> Tensor:
        loc, scale, low, high = self._ends()
        return (loc + scale * segment_moments(low, high)[0]).squeeze(-2)

    def covariance(self, like: Tensor) -> Tensor:
        _, scale, low, high = self._ends()
        variance = segment_moments(low, high)[1]
        return torch.diag_embed((scale.square() * variance).squeeze(-2))

    def _coordinate(self, k: int, batch_dim: int) -> tuple["_TruncatedGaussian", Tensor | None]:
        # The law of one coordinate, in the distinct segments that boxes have there, (S, *), and the
        # segment of each box, or None if there is a segment for each box.
        values = [self.loc, self.scale, self.low, self.high]
        if self.event_dim:
            d = self.num_statistics
            values = [x.expand((*x.shape[:-1], d))[..., k] for x in values]
        loc, scale, low, high = values
        low, high = torch.broadcast_tensors(low, high)
        # Leading dimensions belong to the boxes alone.
        lead = low.dim() - max(loc.dim(), scale.dim(), batch_dim)
        if lead < 1 or low.requires_grad or high.requires_grad:
            return _TruncatedGaussian(loc, scale, low, high, 0), None
        shape = low.shape[lead:]
        low, high = low.reshape(-1, *shape), high.reshape(-1, *shape)
        both = torch.stack([low, high], -1).flatten(1)
        distinct, place = both.unique(dim=0, return_inverse=True)
        low, high = distinct.reshape(-1, *shape, 2).unbind(-1)
        return _TruncatedGaussian(loc, scale, low, high, 0), place.reshape(self.low.shape[:lead])

    def _each(self, transform: Callable[..., Tensor], omega: Tensor) -> list[Tensor]:
        # A transform of each coordinate, (*, E), for frequencies (*, E, D).
        values = []
        for k, own in enumerate(omega.split(1, dim=-1)):
            part, place = self._coordinate(k, omega.dim() - 2)
            value = transform(part, own).squeeze(-1)
            values.append(value if place is None else value[place])
        return values

    def _wave(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        # E[e^{iωt}] of each coordinate, standardised and centred, (*, E, D), and its centre.
        _, _, low, high = self._ends()
        (log_mass,) = log_segment(None, low, high)
        nearest = torch.zeros_like(low).clamp(low.detach(), high.detach())
        log_scale = -nearest.square() / 2  # about the mass, and without a gradient
        ends = torch.broadcast_tensors(low, high, omega, log_scale)
        centre, _ = segment_moments(low, high)
        turn = torch.polar((log_scale - log_mass).exp().expand_as(ends[2]), -omega * centre)
        return torch.complex(*wave_segment(None, *ends)) * turn, centre

    def _lost(self, omega: Tensor) -> Tensor:
        # 1 - E[e^{iωt}] of each coordinate, centred, (*, E, D).
        _, scale, low, high = self._ends()
        omega = omega * scale
        slow, deficit, _ = segment_series(low, high, omega)
        return torch.where(slow, deficit, 1 - self._wave(omega)[0])

    def _slope(self, omega: Tensor) -> Tensor:
        # E[t e^{iωt}] of each coordinate, centred, (*, E, D).
        _, scale, low, high = self._ends()
        omega = omega * scale
        value, centre = self._wave(omega)
        (log_mass,) = log_segment(None, low, high)
        # By parts, E[t e^{iωt}] = iω E[e^{iωt}] - [φ e^{iωt}] / mass, before centring.
        lower, upper = (
            torch.polar(density_over(x, log_mass).expand_as(omega), omega * (_finite(x) - centre))
            for x in (low, high)
        )
        slope = lower - upper + (1j * omega - centre) * value
        slow, _, slow_slope = segment_series(low, high, omega)
        return scale * torch.where(slow, slow_slope, slope)

    deficit_cancels = False

    def deficit(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        # 1 - (1 - a) (1 - b) = a + b (1 - a), one coordinate after the other.
        total, *others = self._each(_TruncatedGaussian._lost, omega)
        for own in others:
            total = total + own * (1 - total)
        return total.real, total.imag

    def characteristic(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        real, imag = self.deficit(omega)
        return 1 - real, -imag

    def characteristic_moment(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        value = 1 - torch.stack(self._each(_TruncatedGaussian._lost, omega), dim=-1)
        slope = torch.stack(self._each(_TruncatedGaussian._slope, omega), dim=-1)
        ones = torch.ones_like(value[..., :1])
        before = torch.cat([ones, value[..., :-1]], dim=-1).cumprod(-1)
        after = torch.cat([ones, value[..., 1:].flip(-1)], dim=-1).cumprod(-1).flip(-1)
        moment = slope * before * after
        return moment.real, moment.imag

    def pair_deficits(self, weight: Tensor) -> Pairs:
        # Pairs of n waves by products of matrices, with a column for each node, if nodes resolve
        # them: n sums of 64 waves cost less than n² error functions.
        count = self._count(weight)
        if count is None:
            return self._fast_pair_deficits(weight)
        total: list[Tensor] = []
        for k, own in enumerate(weight.unbind(-1)):
            part, place = self._coordinate(k, weight.dim() - 2)
            values = part._pair_deficits(own, count)
            values = values if place is None else [x[place] for x in values]
            if total:  # 1 - (1 - a) (1 - b) = a + b (1 - a)
                values = [x for i in (0, 2) for x in _joined(total[i : i + 2], values[i : i + 2])]
            total = values
        return (total[0], total[1]), (total[2], total[3])

    def _count(self, weight: Tensor) -> int | None:
        # Nodes that resolve the waves of all pairs in all boxes, or None if these are too fast.
        _, scale, low, high = self._ends()
        angle = 2 * weight.abs() * scale * segment_reach(low, high)
        largest = float(angle.detach().amax())
        return 48 + 16 * math.ceil(0.6 * largest / 16) if largest <= _FAST else None

    def _pair_deficits(self, weight: Tensor, count: int) -> list[Tensor]:
        # Real and imaginary parts of 1 - E[e^{i(a ∓ b)}], a = w_i (t - m), b = w_j (t - m), for a
        # scalar and weights (*, n). With u = e^{ia} - 1 and v = e^{ib} - 1, e^{i(a + b)} - 1 is
        # u + v + uv, without cancellation of ones.
        _, scale, low, high = (x.squeeze(-1) for x in self._ends())  # (*, 1)
        _, distance, share = segment_rule(low, high, count)  # (*, 1, nodes)
        offset = scale.unsqueeze(-1) * (distance - (share * distance).sum(-1, keepdim=True))
        half = weight.unsqueeze(-1) * offset / 2  # (*, n, nodes)
        sin, cos = half.sin(), half.cos()
        real, imag = -2 * sin * sin, 2 * sin * cos  # of u
        left = [real * share, imag * share]
        mean_real, mean_imag = (x.sum(-1) for x in left)
        both, other, cross = left[0] @ real.mT, left[1] @ imag.mT, left[0] @ imag.mT
        sums = mean_real.unsqueeze(-1) + mean_real.unsqueeze(-2) + both
        minus = cross.mT - cross + mean_imag.unsqueeze(-1) - mean_imag.unsqueeze(-2)
        plus = cross.mT + cross + mean_imag.unsqueeze(-1) + mean_imag.unsqueeze(-2)
        return [-sums - other, -minus, other - sums, -plus]

    def _fast_pair_deficits(self, weight: Tensor) -> Pairs:
        # φ(-ω) is the conjugate of φ(ω): pairs i <= j are enough.
        n = weight.shape[-2]
        i, j = torch.triu_indices(n, n, device=weight.device)
        place = torch.zeros((n, n), dtype=torch.long, device=weight.device)
        place[i, j] = place[j, i] = torch.arange(len(i), device=weight.device)
        left, right = weight[..., i, :], weight[..., j, :]
        real, imag = self.deficit(torch.cat([left - right, left + right], dim=-2))
        (real_minus, real_plus), (imag_minus, imag_plus) = (
            [half[..., place] for half in x.split(len(i), dim=-1)] for x in (real, imag)
        )
        sign = torch.ones((n, n), dtype=weight.dtype, device=weight.device)
        imag_minus = imag_minus * (sign.triu() - sign.tril(-1))
        return (real_minus, imag_minus), (real_plus, imag_plus)

    def log_partition(self, eta: Tensor) -> Tensor:
        loc, scale, low, high = self._ends()
        tilt = eta * scale
        ends = torch.broadcast_tensors(low - tilt, high - tilt)
        (inside,), (log_mass,) = log_segment(None, *ends), log_segment(None, low, high)
        return (eta * loc + tilt.square() / 2 + inside - log_mass).sum(-1)


def standardized(x: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Returns :math:`(x - l) / s`, with zero gradients where :math:`x` is infinite."""
    finite = x.isfinite()
    return torch.where(finite, (torch.where(finite, x, loc) - loc) / scale, x.detach())


def _joined(first: list[Tensor], second: list[Tensor]) -> tuple[Tensor, Tensor]:
    # a + b (1 - a) of complex a and b.
    (real, imag), (other, across) = first, second
    rest = 1 - real
    return real + other * rest + across * imag, imag + across * rest - other * imag


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, torch.zeros_like(x))


class _TruncatedMixture(BatchedMixture):
    r"""A mixture of truncated normal laws, components in the dimension before the event's."""

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "logits": TensorField(constraints.real, rank=1),
        **{
            name: TensorField(constraints.real, rank=1, per_event=True)
            for name in ("loc", "scale", "low", "high")
        },
    }

    def __init__(self, logits: Tensor, part: _TruncatedGaussian) -> None:
        self.logits = logits
        self.loc, self.scale, self.low, self.high = part.loc, part.scale, part.low, part.high
        batch = broadcast_shapes(logits.shape, part.batch_shape)[:-1]
        super().__init__(batch, part.event_shape, part.num_statistics, validate_args=False)

    @property
    def components(self) -> _TruncatedGaussian:
        return _TruncatedGaussian(self.loc, self.scale, self.low, self.high, self.event_dim)

    def log_weights(self) -> Tensor:
        return self.logits.log_softmax(-1)


@singledispatch
def restrict(base: Base, low: Tensor, high: Tensor) -> Restricted:
    r"""The logarithm of the mass of boxes, and a multiple of the base restricted to them.

    The integral of a function over a box is the mass times its integral over the restricted base.

    Arguments:
        base: The base.
        low: The lower corners, with shape :math:`(*, \text{event})`; infinite ones are allowed.
        high: The upper corners, of the same shape.

    Returns:
        The logarithms, with shape :math:`(*)`, and a base with batch shape :math:`(*)`. A box
        without mass has the logarithm :math:`-\infty` and the base of another box.
    """
    if bool((low == -torch.inf).all()) and bool((high == torch.inf).all()):
        return low.new_zeros(low.shape[: low.dim() - base.event_dim]), base
    raise NotImplementedError(f"{base} has no masses of boxes in closed form")


def _events(x: Tensor, base: Base) -> Tensor:
    return x.any(-1) if base.event_dim else x


def _without_mass(log_mass: Tensor, empty: Tensor) -> Tensor:
    return torch.where(empty, torch.full_like(log_mass, -torch.inf), log_mass)


@restrict.register
def _(base: Gaussian, low: Tensor, high: Tensor) -> Restricted:
    if base.scale is None:
        return restrict.dispatch(Base)(base, low, high)
    empty = ~(low < high)
    low = torch.where(empty, torch.full_like(low, -torch.inf), low)
    high = torch.where(empty, torch.full_like(high, torch.inf), high)
    part = _TruncatedGaussian(base.loc, base.scale, low, high, base.event_dim)
    return _without_mass(part.log_mass(), _events(empty, base)), part


@restrict.register
def _(base: GaussianMixture, low: Tensor, high: Tensor) -> Restricted:
    place = -1 - base.event_dim
    log_masses, part = restrict(base.gaussians, low.unsqueeze(place), high.unsqueeze(place))
    logits = base.log_weights() + log_masses
    empty = (logits == -torch.inf).all(-1)
    finite = torch.where(empty.unsqueeze(-1), torch.zeros_like(logits), logits)
    assert isinstance(part, _TruncatedGaussian)
    return safe_logsumexp(logits), _TruncatedMixture(finite, part)


@restrict.register
def _(base: UniformBox, low: Tensor, high: Tensor) -> Restricted:
    low, high = torch.maximum(base.low, low), torch.minimum(base.high, high)
    empty = ~(low < high)
    low, high = torch.where(empty, base.low, low), torch.where(empty, base.high, high)
    share = ((high - low) / (base.high - base.low)).log().sum(-1)
    part = UniformBox(low, high, validate_args=False)
    return _without_mass(share, _events(empty, base)), part


@restrict.register
def _(base: Interval, low: Tensor, high: Tensor) -> Restricted:
    low = torch.minimum(torch.maximum(base.low, low.unsqueeze(-1)), base.high)
    high = torch.maximum(torch.minimum(base.high, high.unsqueeze(-1)), low)
    empty = ~(low < high).any(-1)
    low = torch.where(empty.unsqueeze(-1), base.low, low)
    high = torch.where(empty.unsqueeze(-1), base.high, high)
    return _without_mass(torch.zeros_like(low[..., 0]), empty), Interval(
        low, high, validate_args=False
    )


@restrict.register
def _(base: Discrete, low: Tensor, high: Tensor) -> Restricted:
    low, high = (x.unsqueeze(-1 - base.event_dim) for x in (low, high))
    outside = _events((base.points < low) | (base.points > high), base)
    empty = outside.all(-1)
    masses = torch.where(outside & ~empty.unsqueeze(-1), 0.0, base.masses)
    part = Discrete(base.points, masses, validate_args=False)
    return _without_mass(torch.zeros_like(masses[..., 0]), empty), part


@restrict.register
def _(base: Product, low: Tensor, high: Tensor) -> Restricted:
    pairs = zip(base._pieces(low), base._pieces(high), strict=True)
    found = [restrict(part, below, above) for (part, below), (_, above) in pairs]
    log_masses = torch.broadcast_tensors(*(log_mass for log_mass, _ in found))
    return torch.stack(log_masses).sum(0), Product([part for _, part in found])


@restrict.register
def _(base: Mixture, low: Tensor, high: Tensor) -> Restricted:
    found = [restrict(part, low, high) for part in base.bases]
    masses = torch.broadcast_tensors(*(log_mass for log_mass, _ in found))
    logits = base.log_weights() + torch.stack(masses, dim=-1)
    empty = (logits == -torch.inf).all(-1)
    finite = torch.where(empty.unsqueeze(-1), torch.zeros_like(logits), logits)
    part = Mixture(finite, [part for _, part in found], validate_args=False)
    return safe_logsumexp(logits), part
