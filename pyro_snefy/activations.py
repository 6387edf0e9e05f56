r"""Activation functions of squared neural families."""

__all__ = [
    "GELU",
    "Activation",
    "Bump",
    "Cis",
    "Cos",
    "Erf",
    "Exp",
    "FourierActivation",
    "GaussianActivation",
    "Identity",
    "LeakyReLU",
    "ReLU",
    "Sin",
    "Snake",
    "Step",
]

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .numerics.forms import Features


class Activation:
    r"""A function :math:`\sigma: \mathbb{R} \to \mathbb{R}` applied to each preactivation.

    Activations are small immutable values, compared by value. Kernels are found by dispatch on
    their type, see :func:`pyro_snefy.kernels.register_kernel`.

    Example:
        >>> Cos() == Cos(), Snake(1.0) == Snake(2.0)
        (True, False)
    """

    needs_float64: ClassVar[bool] = False  # preactivations in float32 would lose digits
    is_bounded: ClassVar[bool] = False  # whether neurons are at most one in size
    is_complex: ClassVar[bool] = False  # complex readouts and Hermitian grams are allowed
    exponent: ClassVar[float | None] = None  # the s of an exponential e^{s z}
    # How fast σ^2 varies between kinks, in radians per unit of z. Quadrature takes panels of a few
    # radians.
    resolution: ClassVar[float] = 4.0
    # The p of a σ that is homogeneous, σ(r z) = r^p σ(z) for r > 0, with a kink at zero, or None.
    degree: ClassVar[int | None] = None
    # The |z| beyond which σ is negligible beside one in float64, or None. Within it, σ^2 varies as
    # in panels of length two.
    extent: ClassVar[float | None] = None

    def __call__(self, z: Tensor) -> Tensor:
        raise NotImplementedError

    def features(self, z: Tensor) -> Features:
        r"""The neurons :math:`\sigma(z)`, with a logarithmic scale where they would overflow."""
        return Features(None, (self(z),), bounded=self.is_bounded)


class FourierActivation(Activation):
    r"""Activations whose kernel needs the characteristic function of the base.

    Example:
        >>> isinstance(Snake(), FourierActivation)
        True
    """

    wave_frequency: ClassVar[float] = 1.0  # of the wave in σ, in radians per unit of z

    def bounds(self, centre: Tensor) -> list[tuple[Tensor, float]]:
        r"""Bounds :math:`|\sigma(z)| \leq \alpha + \beta |z - c|`, for the sampler.

        Arguments:
            centre: The centre :math:`c`.

        Returns:
            Pairs of :math:`\alpha`, of the shape of the centre, and :math:`\beta`.
        """
        raise NotImplementedError(f"{self} has no bounds.")


class GaussianActivation(Activation):
    r"""Activations whose kernel under a Gaussian base is a bivariate normal expectation.

    They are logarithmically concave on either side of zero, or vanish there.

    Example:
        >>> isinstance(GELU(), GaussianActivation)
        True
    """

    def modes(self, mean: Tensor, scale: Tensor) -> tuple[Tensor | None, Tensor]:
        r"""The modes of :math:`\sigma(z)^2 \mathcal{N}(z; m, s^2)` below and above zero.

        Arguments:
            mean: The mean :math:`m`.
            scale: The standard deviation :math:`s`.

        Returns:
            The modes; None for the lower one where :math:`\sigma` vanishes below zero.
        """
        raise NotImplementedError(f"{self} has no modes.")


def _power_mode(power: int, mean: Tensor, scale: Tensor) -> Tensor:
    # The mode of z^(2p) N(z; m, s^2) on z > 0, without cancellation for a negative mean.
    root = (mean.square() + 8 * power * scale.square()).sqrt()
    below = 4 * power * scale.square() / torch.where(mean > 0, 1.0, root - mean + _TINY)
    return torch.where(mean > 0, (mean + root) / 2, below)


def _search_mode(
    log_slope: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, mean: Tensor, scale: Tensor
) -> Tensor:
    # Where the derivative of the logarithm, which falls, changes sign.
    for _ in range(60):
        middle = (low + high) / 2
        rising = 2 * log_slope(middle) > (middle - mean) / scale.square()
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return (low + high) / 2


def _scaled_features(activation: Activation, z: Tensor, degree: int) -> Features:
    # σ(z) = m^p σ(z / m), where m is the largest |z| of a row: nothing overflows in float32.
    largest = z.detach().abs().amax(-1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)
    return Features(degree * largest.log(), (activation(z / largest),))


_TINY = 1e-300


class _Wave(FourierActivation):
    # A sine or cosine, with values and slopes of at most 1.
    resolution = 2.0

    def bounds(self, centre: Tensor) -> list[tuple[Tensor, float]]:
        return [(torch.ones_like(centre), 0.0), (self(centre).abs(), 1.0)]


@dataclass(frozen=True)
class Cos(_Wave):
    r"""The cosine, :math:`\sigma(z) = \cos z`.

    Example:
        >>> Cos()(torch.zeros(2))
        tensor([1., 1.])
    """

    is_bounded: ClassVar[bool] = True

    def __call__(self, z: Tensor) -> Tensor:
        return z.cos()


@dataclass(frozen=True)
class Sin(_Wave):
    r"""The sine, :math:`\sigma(z) = \sin z`.

    Example:
        >>> Sin()(torch.zeros(2))
        tensor([0., 0.])
    """

    is_bounded: ClassVar[bool] = True

    def __call__(self, z: Tensor) -> Tensor:
        return z.sin()


@dataclass(frozen=True)
class Cis(FourierActivation):
    r"""The complex exponential, :math:`\sigma(z) = e^{iz} = \cos z + i \sin z`.

    It is the only activation that takes a complex readout or a Hermitian gram.

    Example:
        >>> Cis()(torch.zeros(1))
        tensor([1.+0.j])
    """

    is_complex: ClassVar[bool] = True
    resolution = 2.0

    def __call__(self, z: Tensor) -> Tensor:
        return torch.complex(z.cos(), z.sin())

    def features(self, z: Tensor) -> Features:
        # Real and imaginary parts, to be read by a real matrix of twice the width.
        return Features(None, (torch.cat([z.cos(), z.sin()], dim=-1),), bounded=True)


@dataclass(frozen=True)
class Snake(FourierActivation):
    r"""The snake, :math:`\sigma(z) = z + \sin^2(a z) / a`.

    Arguments:
        a: The frequency :math:`a > 0`.
        offset: If false, :math:`1 / 2a` is subtracted, which leaves
            :math:`z - \cos(2 a z) / 2a`.

    Example:
        >>> Snake(a=2.0)(torch.zeros(1))
        tensor([0.])
    """

    a: float = 1.0
    offset: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.a) and self.a > 0):
            raise ValueError(f"Snake: expected a finite a > 0, got a={self.a!r}.")

    @property
    def resolution(self) -> float:  # type: ignore[override]
        return 4 * self.a

    @property
    def wave_frequency(self) -> float:  # type: ignore[override]
        return 2 * self.a

    def bounds(self, centre: Tensor) -> list[tuple[Tensor, float]]:
        # The slope is between 0 and 2; the wave about the line has the amplitude 1 / 2a.
        amplitude = 0.5 / self.a
        line = centre + amplitude if self.offset else centre
        return [(self(centre).abs(), 2.0), (line.abs() + amplitude, 1.0)]

    def __call__(self, z: Tensor) -> Tensor:
        if self.offset:
            sin = (self.a * z).sin()
            return torch.add(z, sin * sin, alpha=1 / self.a)
        return z - (2 * self.a * z).cos() / (2 * self.a)


@dataclass(frozen=True)
class Identity(FourierActivation):
    r"""The identity, :math:`\sigma(z) = z`.

    Example:
        >>> Identity()(torch.ones(1))
        tensor([1.])
    """

    resolution = 0.0

    def bounds(self, centre: Tensor) -> list[tuple[Tensor, float]]:
        return [(centre.abs(), 1.0)]

    def __call__(self, z: Tensor) -> Tensor:
        return z

    def features(self, z: Tensor) -> Features:
        return _scaled_features(self, z, 1)


@dataclass(frozen=True)
class Exp(Activation):
    r"""The exponential, :math:`\sigma(z) = e^{s z}`.

    ``Exp(0.5)`` makes a single neuron the exponential family of the base with natural
    parameter :math:`w`.

    Arguments:
        scale: The scale :math:`s > 0`.

    Example:
        >>> Exp(0.5)(torch.zeros(1))
        tensor([1.])
    """

    # An error of the exponent is an error of the log-density.
    needs_float64: ClassVar[bool] = True

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"Exp: expected a finite scale > 0, got scale={self.scale!r}.")

    @property
    def exponent(self) -> float:  # type: ignore[override]
        return self.scale

    @property
    def resolution(self) -> float:  # type: ignore[override]
        return 2 * self.scale

    def __call__(self, z: Tensor) -> Tensor:
        return (self.scale * z).exp()

    def features(self, z: Tensor) -> Features:
        return Features(self.scale * z, (None,))


@dataclass(frozen=True)
class Erf(GaussianActivation):
    r"""The error function, :math:`\sigma(z) = \mathrm{erf}(z)`.

    Example:
        >>> Erf()(torch.zeros(1))
        tensor([0.])
    """

    is_bounded: ClassVar[bool] = True

    def modes(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        def above(m: Tensor) -> Tensor:
            bound = _power_mode(1, m, scale)
            return _search_mode(_erf_log_slope, torch.zeros_like(m), bound, m, scale)

        return -above(-mean), above(mean)

    def __call__(self, z: Tensor) -> Tensor:
        return z.erf()


def _erf_log_slope(z: Tensor) -> Tensor:
    return 2 / math.sqrt(math.pi) * (-z.square()).exp() / z.erf()


@dataclass(frozen=True)
class Bump(GaussianActivation):
    r"""The bump, :math:`\sigma(z) = e^{-z^2 / 2}`.

    A neuron is large in the slab :math:`|w \cdot t + b| \lesssim 1` and negligible far from it, so
    that the tails of a density are those of the base, times what neurons with zero weight leave
    there. Squared networks of bumps are the positive semi-definite models of Rudi and Ciliberto,
    arXiv:2106.16116, with slabs in place of balls.

    Example:
        >>> Bump()(torch.tensor([0.0, 1.0]))
        tensor([1.0000, 0.6065])
    """

    is_bounded: ClassVar[bool] = True
    resolution = 0.0
    extent = 9.0

    def modes(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        mode = mean / (1 + 2 * scale.square())
        return mode.clamp(max=0), mode.clamp(min=0)

    def __call__(self, z: Tensor) -> Tensor:
        return (-0.5 * z * z).exp()

    def features(self, z: Tensor) -> Features:
        # Over the largest bump of a row, which may be below the smallest float.
        exponent = -0.5 * z * z
        largest = exponent.detach().amax(-1, keepdim=True)
        return Features(largest, ((exponent - largest).exp(),), bounded=True)


@dataclass(frozen=True)
class Step(GaussianActivation):
    r"""The Heaviside step, :math:`\sigma(z) = 1` for :math:`z > 0` and :math:`0` elsewhere.

    Example:
        >>> Step()(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0., 0., 1.])
    """

    is_bounded: ClassVar[bool] = True

    resolution = 0.0
    degree = 0

    def modes(self, mean: Tensor, scale: Tensor) -> tuple[None, Tensor]:
        return None, _power_mode(0, mean, scale)

    def __call__(self, z: Tensor) -> Tensor:
        return (z > 0).to(z.dtype)


@dataclass(frozen=True)
class ReLU(GaussianActivation):
    r"""The rectified power, :math:`\sigma(z) = \max(z, 0)^p`.

    Arguments:
        power: The power :math:`p \geq 1`, an integer.

    Example:
        >>> ReLU(power=2)(torch.tensor([-1.0, 3.0]))
        tensor([0., 9.])
    """

    power: int = 1

    resolution = 0.0

    @property
    def degree(self) -> int:  # type: ignore[override]
        return self.power

    def modes(self, mean: Tensor, scale: Tensor) -> tuple[None, Tensor]:
        return None, _power_mode(self.power, mean, scale)

    def __post_init__(self) -> None:
        if not (isinstance(self.power, int) and self.power >= 1):
            raise ValueError(f"ReLU: expected an integer power >= 1, got power={self.power!r}.")

    def __call__(self, z: Tensor) -> Tensor:
        return z.relu().pow(self.power)

    def features(self, z: Tensor) -> Features:
        return super().features(z) if self.power == 1 else _scaled_features(self, z, self.power)


@dataclass(frozen=True)
class LeakyReLU(GaussianActivation):
    r"""The leaky rectifier, :math:`\sigma(z) = \max(z, 0) + a \min(z, 0)`.

    Arguments:
        negative_slope: The slope :math:`a` on the negative side.

    Example:
        >>> LeakyReLU(0.5)(torch.tensor([-1.0, 3.0]))
        tensor([-0.5000,  3.0000])
    """

    negative_slope: float = 0.01

    resolution = 0.0
    degree = 1

    def modes(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return -_power_mode(1, -mean, scale), _power_mode(1, mean, scale)

    def __post_init__(self) -> None:
        if not math.isfinite(self.negative_slope):
            raise ValueError(
                "LeakyReLU: expected a finite negative_slope, "
                f"got negative_slope={self.negative_slope!r}."
            )

    def __call__(self, z: Tensor) -> Tensor:
        return torch.nn.functional.leaky_relu(z, self.negative_slope)


@dataclass(frozen=True)
class GELU(GaussianActivation):
    r"""The Gaussian error linear unit, :math:`\sigma(z) = z \, \Phi(z)`.

    Example:
        >>> GELU()(torch.tensor([1.0]))
        tensor([0.8413])
    """

    def modes(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        zero = torch.zeros_like(mean)
        # Above zero the slope of log Φ is less than 1, below it only moves the mode up.
        above = _power_mode(1, mean, scale) + 2 * scale.square()
        below = -_power_mode(1, -mean, scale)
        return (
            _search_mode(_gelu_log_slope, below, zero, mean, scale),
            _search_mode(_gelu_log_slope, zero, above, mean, scale),
        )

    def __call__(self, z: Tensor) -> Tensor:
        # torch's gelu and ndtr vanish where z < -9; the tail of the normal law does not.
        return z * torch.special.erfc(z * -math.sqrt(0.5)) / 2


def _gelu_log_slope(z: Tensor) -> Tensor:
    # With the hazard rate of the normal law in scaled form, which does not underflow.
    root = math.sqrt(0.5)
    return 1 / z + math.sqrt(2 / math.pi) / torch.special.erfcx(-root * z)
