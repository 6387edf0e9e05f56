r"""Bases on cubes and boxes."""

__all__ = ["Pushforward", "UniformBox", "UniformCube", "normal_cdf"]

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from ..numerics.hypergeometric import hyp0f1_oscillating, log_hyp0f1
from ..numerics.linalg import broadcast_shapes
from ..numerics.rejection import choose
from .base import FourierBase, LaplaceBase, Pairs, Partial, check_dimension
from .gaussian import Gaussian


class UniformBox(FourierBase, LaplaceBase):
    r"""The uniform law on a box :math:`[l, u]`, with :math:`t(x) = x`.

    Arguments:
        low: The lower corner :math:`l`, with shape :math:`(*, d)`.
        high: The upper corner :math:`u`, with shape :math:`(*, d)`.
        validate_args: Whether the tensors are checked.

    Example:
        >>> UniformBox(torch.zeros(2), torch.ones(2)).event_shape
        torch.Size([2])
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "low": constraints.real,
        "high": constraints.real,
    }
    fixed = ("low", "high")  # the support

    tensor_ranks: ClassVar[dict[str, int]] = {"low": 1, "high": 1}

    def __init__(self, low: Tensor, high: Tensor, *, validate_args: bool | None = None) -> None:
        try:
            shape = broadcast_shapes(low.shape, high.shape)
            if not shape:
                raise RuntimeError
        except RuntimeError:
            raise ValueError(
                "UniformBox: expected low and high with shape (*, d), "
                f"got {tuple(low.shape)} and {tuple(high.shape)}."
            ) from None
        self.low, self.high = low, high
        super().__init__(shape[:-1], shape[-1:], shape[-1], validate_args)

    def _validate(self) -> None:
        super()._validate()
        if not (self.low < self.high).all():
            raise ValueError(
                f"UniformBox: expected low < high, got low {self.low} and high {self.high}."
            )

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
        # sin(x) / x is the function 0F1(3/2; -x^2 / 4), smooth in x^2 with all its derivatives.
        return _product(hyp0f1_oscillating(1.5, (omega * self._half()).square())), None

    def characteristic_moment(self, omega: Tensor) -> tuple[None, Tensor]:
        half = self._half()
        square = (omega * half).square()
        sinc = hyp0f1_oscillating(1.5, square)
        slope = omega * half.square() / 3 * hyp0f1_oscillating(2.5, square)
        return None, slope * _product_of_others(sinc)

    def marginal(self, dims: Sequence[int]) -> "UniformBox":
        low, high = torch.broadcast_tensors(self.low, self.high)
        return UniformBox(low[..., dims], high[..., dims], validate_args=False)

    def conditional(self, dims: Sequence[int], values: Tensor) -> "UniformBox":
        return self.marginal(self.others(dims))

    def partial(self, x: Tensor, observed: Tensor) -> Partial:
        log_density = -(self.high - self.low).log()
        return Partial(
            self,
            torch.where(observed, x, 0.0),
            ~observed,
            torch.where(observed, log_density, 0.0).sum(-1).expand(x.shape[:-1]),
        )

    def log_partition(self, eta: Tensor) -> Tensor:
        mean = self.mean(eta).unsqueeze(-2)
        return (eta * mean + log_hyp0f1(1.5, (eta * self._half()).square())).sum(-1)

    def sample_member(self, eta: Tensor) -> Tensor:
        # Each coordinate is a truncated exponential variable, from the end where it is largest.
        length = self.high - self.low
        steep = eta.abs() * length
        uniform = torch.rand_like(eta)
        flat = steep < 1e-8
        safe = torch.where(flat, 1.0, steep)
        depth = torch.where(flat, uniform, -torch.log1p(uniform * torch.expm1(-safe)) / safe)
        return torch.where(eta > 0, self.high - length * depth, self.low + length * depth)

    def sample_square(self, weight: Tensor) -> Tensor:
        # Averaged over the signs of all terms of v = Σ_k v_k, the square is Σ_k v_k^2: magnitudes
        # are uniform but for one, and signs follow one after the other.
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


def normal_cdf(x: Tensor) -> Tensor:
    r"""The standard normal distribution function, far into the lower tail."""
    # torch's ndtr is zero below -9, even in float64.
    return torch.special.erfc(x * -math.sqrt(0.5)) / 2


def _product(x: Tensor) -> Tensor:
    # The gradients of torch's prod and cumprod look for zeros, and wait for the device to do so.
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        pairs = x[..., :half] * x[..., half : 2 * half]
        x = torch.cat([pairs, x[..., 2 * half :]], dim=-1) if x.shape[-1] % 2 else pairs
    return x.squeeze(-1)


def _product_of_others(x: Tensor) -> Tensor:
    # Products over all coordinates but one; a quotient would divide by zeros.
    ones = torch.ones_like(x[..., :1])
    left = _cumulative_product(torch.cat([ones, x[..., :-1]], dim=-1))
    right = _cumulative_product(torch.cat([ones, x[..., 1:].flip(-1)], dim=-1)).flip(-1)
    return left * right


def _cumulative_product(x: Tensor) -> Tensor:
    # Windows of doubling length; see _product.
    length = 1
    while length < x.shape[-1]:
        before = torch.nn.functional.pad(x[..., :-length], (length, 0), value=1.0)
        x, length = x * before, 2 * length
    return x


class Pushforward(FourierBase, LaplaceBase):
    r"""A base whose statistic follows the law of another base, the latent one."""

    def latent(self, like: Tensor) -> Any:
        r"""The law of :math:`t(x)`, with the dtype and device of a tensor."""
        raise NotImplementedError

    def event(self, latent: Tensor) -> Tensor:
        """Events, from events of the latent base."""
        raise NotImplementedError

    def to_latent(self, x: Tensor) -> Tensor:
        """The events of the latent base, where they are functions of these."""
        raise NotImplementedError(f"{self} has no coordinates of its own.")

    def sample_member(self, eta: Tensor) -> Tensor:
        return self.event(self.latent(eta).sample_member(eta))

    def sample_square(self, weight: Tensor) -> Tensor:
        return self.event(self.latent(weight).sample_square(weight))

    def mass(self, like: Tensor) -> Tensor:
        return self.latent(like).mass(like)

    def mean(self, like: Tensor) -> Tensor:
        return self.latent(like).mean(like)

    def covariance(self, like: Tensor) -> Tensor:
        return self.latent(like).covariance(like)

    def characteristic(self, omega: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.latent(omega).characteristic(omega)

    def characteristic_moment(self, omega: Tensor) -> tuple[Tensor | None, Tensor]:
        return self.latent(omega).characteristic_moment(omega)

    def pair_characteristics(self, weight: Tensor) -> Pairs:
        return self.latent(weight).pair_characteristics(weight)

    def log_partition(self, eta: Tensor) -> Tensor:
        return self.latent(eta).log_partition(eta)

    def pair_log_partitions(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self.latent(weight).pair_log_partitions(weight)

    def member_moments(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError(f"{type(self).__name__} has no closed-form moments.")


class UniformCube(Pushforward):
    r"""The uniform law on :math:`[0, 1]^d`, with :math:`t(x) = \Phi^{-1}(x)`.

    The statistic is standard normal, so that every kernel of a Gaussian base holds here.

    Arguments:
        d: The dimension.

    Example:
        >>> UniformCube(2).statistic(torch.tensor([0.5, 0.5]))
        tensor([0., 0.])
    """

    def __init__(self, d: int) -> None:
        check_dimension(self, d, 1)
        super().__init__(Size(), Size((d,)), d)

    @property
    def support(self) -> Any:
        return constraints.independent(constraints.unit_interval, 1)

    def example(self, like: Tensor) -> Tensor:
        return like.new_full(self.event_shape, 0.5)

    def statistic(self, x: Tensor) -> Tensor:
        # The faces have measure zero, and no finite statistic: they stand for the nearest floats.
        info = torch.finfo(x.dtype)
        return torch.special.ndtri(x.clamp(min=info.tiny, max=1 - info.eps / 2))

    def log_density(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[:-1])

    def marginal(self, dims: Sequence[int]) -> "UniformCube":
        return UniformCube(len(dims))

    def conditional(self, dims: Sequence[int], values: Tensor) -> "UniformCube":
        return UniformCube(len(self.others(dims)))

    def partial(self, x: Tensor, observed: Tensor) -> Partial:
        statistic = torch.where(observed, self.statistic(x), 0.0)
        return Partial(self, statistic, ~observed, x.new_zeros(x.shape[:-1]))

    def event(self, latent: Tensor) -> Tensor:
        return normal_cdf(latent)

    def to_latent(self, x: Tensor) -> Tensor:
        return self.statistic(x)

    def latent(self, like: Tensor) -> Gaussian:
        zeros = like.new_zeros(self.event_shape)
        return Gaussian(zeros, torch.ones_like(zeros), validate_args=False)

    def __repr__(self) -> str:
        return f"UniformCube({self.num_statistics})"
