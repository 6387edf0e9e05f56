r"""Bases on boxes and intervals."""

__all__ = ["Interval", "UniformBox"]

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from ..constraints import intervals
from ..numerics.hypergeometric import hyp0f1_deficit, hyp0f1_oscillating, log_hyp0f1
from ..numerics.linalg import broadcast_shapes
from ..numerics.rejection import choose
from .base import Base, Partial, TensorField, TensorLike, as_parameters
from .engines import FourierBase, LaplaceBase
from .mixture import BatchedMixture


class _Bounded(Base):
    # A base with a lower and an upper end for each coordinate, or for each interval.
    low: Tensor
    high: Tensor

    def _validate(self) -> None:
        super()._validate()
        if not (self.low < self.high).all():
            raise ValueError(
                f"{type(self).__name__}: expected low < high, "
                f"got low {self.low} and high {self.high}."
            )


class UniformBox(_Bounded, FourierBase, LaplaceBase):
    r"""The uniform law on a box :math:`[l, u]`, with :math:`t(x) = x`.

    .. math:: \varphi(\omega) = \prod_k \frac{\sin(\omega_k h_k)}{\omega_k h_k}, \quad
        A(\eta) = \eta \cdot c + \sum_k \log \frac{\sinh(\eta_k h_k)}{\eta_k h_k}

    Here :math:`c = (l + u) / 2` and :math:`h = (u - l) / 2`.

    Arguments:
        low: The lower corner :math:`l`, with shape :math:`(*, d)`.
        high: The upper corner :math:`u`, with shape :math:`(*, d)`.
        validate_args: Whether the tensors are checked.

    Example:
        >>> UniformBox(torch.zeros(2), torch.ones(2)).event_shape
        torch.Size([2])
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "low": TensorField(constraints.real, per_event=True, fixed=True),
        "high": TensorField(constraints.real, per_event=True, fixed=True),
    }

    def __init__(
        self, low: TensorLike, high: TensorLike, *, validate_args: bool | None = None
    ) -> None:
        shape, (self.low, self.high) = as_parameters(self, low=(low, "d"), high=(high, "d"))
        super().__init__(shape[:-1], shape[-1:], shape[-1], validate_args)

    @property
    def support(self) -> Any:
        return constraints.independent(constraints.interval(self.low, self.high), 1)

    def example(self, like: Tensor) -> Tensor:
        return self.mean(like)

    def log_density(self, x: Tensor) -> Tensor:
        log_density = -(self.high - self.low).log().sum(-1)
        return log_density.expand(broadcast_shapes(x.shape[:-1], self.batch_shape))

    def _half(self) -> Tensor:
        return ((self.high - self.low) / 2).unsqueeze(-2)  # (*, 1, d)

    def mean(self, like: Tensor) -> Tensor:
        return (self.high + self.low) / 2

    def covariance(self, like: Tensor) -> Tensor:
        return torch.diag_embed((self.high - self.low).square() / 12)

    def characteristic(self, omega: Tensor) -> tuple[Tensor, None]:
        # sin(x) / x = 0F1(3/2; -x^2 / 4), which is smooth in x^2 with all its derivatives.
        return _product(hyp0f1_oscillating(1.5, (omega * self._half()).square())), None

    deficit_cancels = False

    def deficit(self, omega: Tensor) -> tuple[Tensor, None]:
        # 1 - (1 - a) (1 - b) = a + b (1 - a), one coordinate after the other.
        total, *others = hyp0f1_deficit(1.5, (omega * self._half()).square()).unbind(-1)
        for own in others:
            total = total + own * (1 - total)
        return total, None

    def characteristic_moment(self, omega: Tensor) -> tuple[None, Tensor]:
        half = self._half()
        square = (omega * half).square()
        sinc = hyp0f1_oscillating(1.5, square)
        slope = omega * half.square() / 3 * hyp0f1_oscillating(2.5, square)
        return None, slope * _product_of_others(sinc)

    def marginal(self, dims: Sequence[int]) -> "UniformBox":
        low, high = torch.broadcast_tensors(self.low, self.high)
        return UniformBox(low[..., dims], high[..., dims], validate_args=False)

    def partial(self, x: Tensor, observed: Tensor) -> Partial:
        log_density = torch.where(observed, -(self.high - self.low).log(), 0.0).sum(-1)
        known = torch.where(observed, x, 0.0)
        return Partial(self, known, ~observed, log_density.expand(x.shape[:-1]))

    def log_partition(self, eta: Tensor) -> Tensor:
        mean = self.mean(eta).unsqueeze(-2)
        return (eta * mean + log_hyp0f1(1.5, (eta * self._half()).square())).sum(-1)

    def sample_member(self, eta: Tensor) -> Tensor:
        # Each coordinate is a truncated exponential variable. Its distance from the end where the
        # density is largest comes from the inverse of its distribution function.
        length = self.high - self.low
        steep = eta.abs() * length
        uniform = torch.rand_like(eta)
        flat = steep < 1e-8
        safe = torch.where(flat, 1.0, steep)
        depth = torch.where(flat, uniform, -torch.log1p(uniform * torch.expm1(-safe)) / safe)
        return torch.where(eta > 0, self.high - length * depth, self.low + length * depth)

    def sample_square(self, weight: Tensor) -> Tensor:
        # The average of (Σ_k v_k)^2 over all signs of the v_k is Σ_k v_k^2. So draw magnitudes
        # first: one, chosen by its share, with density ∝ u^2, the others uniform. Then draw signs.
        half = self._half().squeeze(-2)
        scale = (weight * half).abs()  # (N, d)
        size = torch.rand_like(scale)
        one = torch.nn.functional.one_hot(choose(2 * scale.log()), scale.shape[-1]).bool()
        size = torch.where(one, size.pow(1 / 3), size)
        square = (scale * size).square()
        rest = square.sum(-1)
        total = torch.zeros_like(rest)
        signs = []
        for step, own in zip((scale * size).unbind(-1), square.unbind(-1), strict=True):
            rest = rest - own
            up, down = (total + step).square() + rest, (total - step).square() + rest
            sign = torch.where(torch.rand_like(up) * (up + down) < up, 1.0, -1.0)
            total = total + sign * step
            signs.append(sign)
        sign = torch.stack(signs, dim=-1) * torch.where(weight < 0, -1.0, 1.0)
        return self.mean(weight) + half * size * sign


class Interval(_Bounded, BatchedMixture):
    r"""Lebesgue measure on an interval or a union of disjoint intervals, :math:`t(x) = x`.

    It is a mixture of uniform laws, weighted by the lengths of the intervals.

    Arguments:
        low: The lower ends, a scalar or with shape :math:`(*, K)` for a union.
        high: The upper ends, of the same shape.
        validate_args: Whether the tensors are checked.

    Example:
        >>> Interval(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 3.0])).event_shape
        torch.Size([])
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "low": TensorField(constraints.real, rank=1, fixed=True),
        "high": TensorField(constraints.real, rank=1, fixed=True),
    }

    def __init__(
        self, low: TensorLike, high: TensorLike, *, validate_args: bool | None = None
    ) -> None:
        _, ends = as_parameters(self, low=(low, ""), high=(high, ""))
        self.low, self.high = torch.atleast_1d(*torch.broadcast_tensors(*ends))
        super().__init__(self.low.shape[:-1], Size(), 1, validate_args)

    def _validate(self) -> None:
        super()._validate()
        low, order = self.low.sort(dim=-1)
        if not (self.high.gather(-1, order)[..., :-1] <= low[..., 1:]).all():
            raise ValueError(
                f"Interval: expected disjoint intervals, got low {self.low} and high {self.high}."
            )

    @property
    def support(self) -> Any:
        if self.low.shape[-1] == 1:  # torch has a bijection from the reals to one interval
            return constraints.interval(self.low[..., 0], self.high[..., 0])
        return intervals(self.low, self.high)

    @property
    def components(self) -> UniformBox:
        return UniformBox(self.low.unsqueeze(-1), self.high.unsqueeze(-1), validate_args=False)

    boxes = components

    def log_weights(self) -> Tensor:
        return (self.high - self.low).log()

    def example(self, like: Tensor) -> Tensor:
        return self.low[..., 0]

    def log_density(self, x: Tensor) -> Tensor:
        return x.new_zeros(broadcast_shapes(x.shape, self.batch_shape))


def _product(x: Tensor) -> Tensor:
    # By halves: the gradients of torch's prod and cumprod look for zeros, and wait for the device.
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        pairs = x[..., :half] * x[..., half : 2 * half]
        x = torch.cat([pairs, x[..., 2 * half :]], dim=-1) if x.shape[-1] % 2 else pairs
    return x.squeeze(-1)


def _product_of_others(x: Tensor) -> Tensor:
    # Products over all coordinates but one. A quotient of the full product would divide by zero.
    ones = torch.ones_like(x[..., :1])
    left = _cumulative_product(torch.cat([ones, x[..., :-1]], dim=-1))
    right = _cumulative_product(torch.cat([ones, x[..., 1:].flip(-1)], dim=-1)).flip(-1)
    return left * right


def _cumulative_product(x: Tensor) -> Tensor:
    # Products over windows of doubling length. See _product for why not torch's cumprod.
    length = 1
    while length < x.shape[-1]:
        before = torch.nn.functional.pad(x[..., :-length], (length, 0), value=1.0)
        x, length = x * before, 2 * length
    return x
