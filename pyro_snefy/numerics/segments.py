r"""Integrals of the standard normal density over segments, with an exponential or a wave."""

__all__ = [
    "density_over",
    "faddeeva",
    "log_mean_density",
    "log_segment",
    "segment_moments",
    "segment_reach",
    "segment_rule",
    "segment_series",
    "wave_segment",
]

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from .elementwise import elementwise


@cache
def _gauss(count: int) -> tuple[list[float], list[float]]:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return nodes.tolist(), weights.tolist()


_LOG_ROOT = math.log(2 * math.pi) / 2
# Nodes of the trapezoidal rule for w(z): relative errors are below 2e-15.
_COUNT = 12
_STEP = math.sqrt(math.pi / _COUNT)
# Four Gauss-Legendre nodes integrate exponents that vary by 0.2 to the last digit of float64.
_NODES, _WEIGHTS = _gauss(4)
_NARROW = 0.1
# Up to this length, in units of its variation, as many terms of a mean give all digits.
_CLOSE, _TERMS = 0.5, 7
# A segment ends where the density is e^{-45}, 3e-20, of its peak. As many nodes resolve the rest.
_DROP = 45.0
_LONG = 48
# Below this frequency in standard deviations, moments up to this order give all digits.
_SLOW = 0.1
_ORDER = 18


def faddeeva(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    r"""Real and imaginary part of the Faddeeva function in the upper half-plane.

    .. math:: w(z) = e^{-z^2} \operatorname{erfc}(-i z), \quad z = x + i y

    It is a sum over the nodes of the trapezoidal rule or of the midpoint rule, whichever are
    farther from :math:`z`, and the residue at :math:`z` (Al Azah and Chandler-Wilde,
    arXiv:2010.05659).

    Arguments:
        x: The real parts.
        y: The imaginary parts, not negative.

    Example:
        >>> faddeeva(torch.zeros(1), torch.zeros(1))
        (tensor([1.]), tensor([0.]))
    """
    mirror, x = x < 0, x.abs()  # w(-conj z) = conj w(z)
    place = x / _STEP
    fraction = place - place.floor()
    high = y >= x.clamp(min=math.pi / _STEP)
    trapezoid = ~high & (y < x) & (fraction >= 0.25) & (fraction <= 0.75)
    flag = trapezoid.to(x.dtype)
    # z² = a + ib, and Σ_k c_k / (z² - t_k²).
    a, b = (x - y) * (x + y), 2 * x * y
    b_square, real, imag = b * b, torch.zeros_like(x), torch.zeros_like(x)
    for k in range(_COUNT):
        middle, end = ((k + 0.5) * _STEP) ** 2, ((k + 1) * _STEP) ** 2
        # The trapezoidal rule has one of its nodes at zero.
        weight = 0.0 if k == _COUNT - 1 else math.exp(-end)
        distance = a - middle + flag * (middle - end)
        share = (math.exp(-middle) + flag * (weight - math.exp(-middle))) / (
            distance * distance + b_square
        )
        real, imag = real + share * distance, imag - share * b
    # Times 2ihz/π, plus the node at zero, ih/(πz).
    factor = _STEP / math.pi
    real, imag = -2 * factor * (x * imag + y * real), 2 * factor * (x * real - y * imag)
    share = flag * factor / torch.where(trapezoid, x * x + y * y, torch.ones_like(x))
    real, imag = real + share * y, imag + share * x
    # The residue, 2 e^{-z²} / (1 ± e^{-2πiz/h}), as 2 e^{2πiz/h - z²} / (e^{2πiz/h} ± 1).
    turn = 2 * math.pi / _STEP
    size = (-turn * y).exp()
    cos, sin = size * (turn * x).cos() + 1 - 2 * flag, size * (turn * x).sin()
    norm = cos * cos + sin * sin
    exponent = torch.where(high, torch.full_like(x, -torch.inf), -turn * y - a)
    share = 2 * exponent.exp() / torch.where(high, torch.ones_like(x), norm)
    up, across = (turn * x - b).cos() * share, (turn * x - b).sin() * share
    real, imag = real + up * cos + across * sin, imag + across * cos - up * sin
    return real, torch.where(mirror, -imag, imag)


def _reflected(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # The mirror image of a segment that is mostly above zero: -high and -low, and whether it is.
    mirror = low + high > 0
    return torch.where(mirror, -high, low), torch.where(mirror, -low, high), mirror


def _middle(low: Tensor, high: Tensor, omega: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # Middle and half length of a segment on which the integrand hardly varies, and whether it is.
    half = (high - low) / 2
    middle = low + half
    narrow = half * (1 + middle.square() + omega.square()).sqrt() <= _NARROW
    zero = torch.zeros_like(half)
    return torch.where(narrow, middle, zero), torch.where(narrow, half, zero), narrow


def _log_segment_slopes(_: None, low: Tensor, high: Tensor) -> list[tuple[Tensor, ...]]:
    (value,) = log_segment(None, low, high)
    return [(-density_over(low, value), density_over(high, value))]


def density_over(x: Tensor, log_scale: Tensor) -> Tensor:
    r"""The standard normal density over :math:`e^g`; zero at infinity, with a zero gradient.

    Arguments:
        x: Where to evaluate the density.
        log_scale: The logarithms :math:`g`.

    Example:
        >>> density_over(torch.tensor([0.0, torch.inf]), torch.zeros(2))
        tensor([0.3989, 0.0000])
    """
    finite = x.isfinite()
    safe = torch.where(finite, x, torch.zeros_like(x))
    exponent = -safe * safe / 2 - _LOG_ROOT - log_scale
    return torch.where(finite, exponent, torch.full_like(exponent, -torch.inf)).exp()


@elementwise(_log_segment_slopes)
def log_segment(_: None, low: Tensor, high: Tensor) -> tuple[Tensor]:
    r"""The logarithm of :math:`\int_l^u \mathcal{N}(t; 0, 1) \, dt`, with digits in both tails.

    Arguments:
        low: The lower ends :math:`l`, which may be infinite.
        high: The upper ends :math:`u > l`.

    Example:
        >>> far = torch.tensor([40.0], dtype=torch.float64)
        >>> log_segment(None, far, far + 1)[0]
        tensor([-804.6084], dtype=torch.float64)
    """
    low, high, _mirror = _reflected(low, high)
    upper = torch.special.log_ndtr(high)
    value = upper + torch.log1p(-(torch.special.log_ndtr(low) - upper).exp())
    middle, half, narrow = _middle(low, high, torch.zeros_like(low))
    total = torch.zeros_like(low)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        t = half * node
        total = total + weight * (-(middle + t / 2) * t).exp()
    log_narrow = total.log() + half.log() - middle * middle / 2 - _LOG_ROOT
    return (torch.where(narrow, log_narrow, value),)


def log_mean_density(first: Tensor, second: Tensor) -> Tensor:
    r"""The logarithm of the mean of the standard normal density between two points.

    .. math:: \log \frac{\Phi(b) - \Phi(a)}{b - a}, \quad
        \frac{\Phi(b) - \Phi(a)}{b - a} = \varphi(m) \sum_{k \geq 0}
        \frac{\delta^{2k} \mathrm{He}_{2k}(m)}{4^k (2k + 1)!}

    Here :math:`m` is the middle, :math:`\delta` the distance, :math:`\mathrm{He}` are Hermite
    polynomials, and the series is for points that are close. The function is symmetric in both
    points, and smooth, also where they meet: there it is the logarithm of the density.

    Arguments:
        first: The points :math:`a`.
        second: The points :math:`b`, on either side of the others.

    Example:
        >>> log_mean_density(torch.zeros(2), torch.tensor([0.0, 40.0])).exp()
        tensor([0.3989, 0.0125])
    """
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    low, high = _above(low, high)
    length, middle = high - low, low + (high - low) / 2
    narrow = length * (1 + middle) <= _CLOSE
    zero, one = torch.zeros_like(length), torch.ones_like(length)
    # δ^n He_n(m) by their recursion, with what stays finite where the other form is taken.
    slope, square = torch.where(narrow, length * middle, zero), torch.where(narrow, length, zero)
    square = square * square
    before, now, total = one, slope, one
    for k in range(1, _TERMS):
        before = slope * now - (2 * k - 1) * square * before
        now = slope * before - 2 * k * square * now
        total = total + before / (4**k * math.factorial(2 * k + 1))
    series = total.log() - middle * middle / 2 - _LOG_ROOT
    # Beyond the peak, e^{-a²/2} comes first, so that neither values nor gradients underflow.
    beyond = low > 0
    root = math.sqrt(0.5)
    near = torch.where(beyond, low, zero)
    fall = (-length * middle).exp() * torch.special.erfcx(root * high)
    outer = torch.special.erfcx(root * near) - fall
    inner = torch.erfc(root * torch.where(beyond, -one, low)) - torch.erfc(root * high)
    mass = torch.where(narrow, one, torch.where(beyond, outer, inner))
    wide = mass.log() - near * near / 2 - torch.where(narrow, one, 2 * length).log()
    return torch.where(narrow, series, wide)


def _above(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    # The mirror image of a segment that is mostly below zero.
    below = low + high < 0
    return torch.where(below, -high, low), torch.where(below, -low, high)


def _range(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # Where the density is largest, and how far it is from there to both ends.
    peak = torch.zeros_like(low).clamp(low.detach(), high.detach())
    reach = 2 * _DROP / ((peak.square() + 2 * _DROP).sqrt() + peak.abs())
    return peak, (low - peak).clamp(min=-reach), (high - peak).clamp(max=reach)


def segment_reach(low: Tensor, high: Tensor) -> Tensor:
    r"""Half of the length of the part of a segment that has mass in float64.

    Arguments:
        low: The lower ends, which may be infinite.
        high: The upper ends, above the lower ones.

    Example:
        >>> segment_reach(torch.zeros(1), torch.full((1,), torch.inf))
        tensor([4.7434])
    """
    _, down, up = _range(low, high)
    return (up - down) / 2


def segment_rule(low: Tensor, high: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    r"""Gauss's rule for the standard normal law, given that it is in a segment.

    Arguments:
        low: The lower ends, with shape :math:`(*)`; they may be infinite.
        high: The upper ends, above the lower ones.
        count: The number of nodes.

    Returns:
        Where the density is largest, with shape :math:`(*)`; the distances of the nodes from there,
        and their weights, whose sum is one, with shape :math:`(*, \text{count})`.

    Example:
        >>> end = torch.full((), torch.inf)
        >>> peak, distance, weights = segment_rule(-end, end, 48)
        >>> (weights * distance.square()).sum()
        tensor(1.0000)
    """
    peak, down, up = _range(low, high)
    down, up = down.unsqueeze(-1), up.unsqueeze(-1)
    nodes, weights = (torch.tensor(x, dtype=low.dtype, device=low.device) for x in _gauss(count))
    distance = down + (up - down) * ((nodes + 1) / 2)
    size = (-distance * (distance / 2 + peak.unsqueeze(-1))).exp() * weights
    return peak, distance, size / size.sum(-1, keepdim=True)


def segment_moments(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of the standard normal law, given that it is in a segment.

    Sums of positive terms over the nodes of Gauss's rule have digits in both tails, and for narrow
    segments.

    Arguments:
        low: The lower ends, which may be infinite.
        high: The upper ends, above the lower ones.

    Example:
        >>> segment_moments(torch.zeros(1), torch.full((1,), torch.inf))
        (tensor([0.7979]), tensor([0.3634]))
    """
    peak, distance, weights = segment_rule(low, high, _LONG)
    centre = (weights * distance).sum(-1, keepdim=True)
    variance = (weights * (distance - centre).square()).sum(-1)
    return peak + centre.squeeze(-1), variance


def segment_series(low: Tensor, high: Tensor, omega: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Transforms at low frequencies of the normal law in a segment, from its moments.

    .. math:: 1 - \mathbb{E}[e^{i \omega (t - m)}] = -\sum_{k=2}^{18} \frac{(i \omega)^k}{k!}
        \mathbb{E}[(t - m)^k]

    Here :math:`m` is the mean. The real part, of the order of :math:`\omega^2`, has a small
    relative error.

    Arguments:
        low: The lower ends, with shape :math:`(*)`; they may be infinite.
        high: The upper ends.
        omega: The frequencies, broadcastable with the ends.

    Returns:
        Whether :math:`\omega` is at most a tenth of the inverse standard deviation; and there
        :math:`1 - \mathbb{E}[e^{i \omega (t - m)}]`, complex, and
        :math:`\mathbb{E}[(t - m) e^{i \omega (t - m)}]`, complex. They are zero elsewhere.

    Example:
        >>> end, omega = torch.full((1,), torch.inf), torch.full((1,), 1e-9)
        >>> segment_series(-end, end, omega)[1].real
        tensor([5.0000e-19])
    """
    _, distance, weights = segment_rule(low, high, _LONG)
    offset = distance - (weights * distance).sum(-1, keepdim=True)
    scale = (weights * offset.square()).sum(-1, keepdim=True).sqrt()
    power, moments = weights * offset / scale, []
    for k in range(2, _ORDER + 1):
        power = power * offset / (k * scale)
        moments.append(power.sum(-1))  # E[(t - m)^k] / s^k k!
    scale = scale.squeeze(-1)
    slow = (omega * scale).abs() <= _SLOW
    y = torch.where(slow, omega * scale, torch.zeros_like(omega * scale))
    square = -y.square()
    slopes = [k * x for k, x in enumerate(moments, 2)]
    even, odd = _polynomial(moments[0::2], square), _polynomial(moments[1::2], square)
    flat, steep = _polynomial(slopes[1::2], square), _polynomial(slopes[0::2], square)
    deficit = torch.complex(-square * even, -y * square * odd)
    return slow, deficit, scale * torch.complex(square * flat, y * steep)


def _polynomial(coefficients: list[Tensor], x: Tensor) -> Tensor:
    value = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


def _wave_segment_slopes(
    _: None, low: Tensor, high: Tensor, omega: Tensor, log_scale: Tensor
) -> list[tuple[Tensor, ...]]:
    # d/dω ∫ φ e^{iωt} = -i [φ e^{iωt}] - ω ∫ φ e^{iωt}, by parts.
    real, imag = wave_segment(None, low, high, omega, log_scale)
    (low_cos, low_sin), (high_cos, high_sin) = (
        _wave(density_over(x, log_scale), x, omega) for x in (low, high)
    )
    return [
        (-low_cos, high_cos, high_sin - low_sin - omega * real),
        (-low_sin, high_sin, low_cos - high_cos - omega * imag),
    ]


def _wave(size: Tensor, x: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    angle = omega * torch.where(x.isfinite(), x, torch.zeros_like(x))
    return size * angle.cos(), size * angle.sin()


@elementwise(_wave_segment_slopes)
def wave_segment(
    _: None, low: Tensor, high: Tensor, omega: Tensor, log_scale: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Real and imaginary part of :math:`e^{-g} \int_l^u \mathcal{N}(t; 0, 1) e^{i \omega t} dt`.

    .. math:: \int_{-\infty}^x \mathcal{N}(t; 0, 1) e^{i \omega t} dt
        = \tfrac{1}{2} e^{-x^2 / 2 + i \omega x} w\left( \frac{-\omega - i x}{\sqrt{2}} \right),
        \quad x \leq 0

    Segments above zero are mirrored. Narrow ones, for which the difference would cancel, are
    integrated by quadrature.

    Arguments:
        low: The lower ends :math:`l`, which may be infinite.
        high: The upper ends :math:`u > l`.
        omega: The frequencies :math:`\omega`.
        log_scale: The logarithms :math:`g` of a scale, without a gradient.

    Example:
        >>> infinite = torch.full((1,), torch.inf)
        >>> wave_segment(None, -infinite, infinite, torch.zeros(1), torch.zeros(1))
        (tensor([1.]), tensor([0.]))
    """
    low, high, mirror = _reflected(low, high)
    lower_real, lower_imag = _half_line(low, omega, log_scale)
    # A segment with zero inside: the whole line less both half-lines beyond.
    across = high > 0
    end_real, end_imag = _half_line(-high.abs(), torch.where(across, -omega, omega), log_scale)
    whole = (-omega * omega / 2 - log_scale).exp()
    real = torch.where(across, whole - end_real, end_real) - lower_real
    imag = torch.where(across, -end_imag, end_imag) - lower_imag
    middle, half, narrow = _middle(low, high, omega)
    narrow_real, narrow_imag = torch.zeros_like(real), torch.zeros_like(imag)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        t = middle + half * node
        size = weight * half * (-t * t / 2 - _LOG_ROOT - log_scale).exp()
        narrow_real = narrow_real + size * (omega * t).cos()
        narrow_imag = narrow_imag + size * (omega * t).sin()
    real, imag = torch.where(narrow, narrow_real, real), torch.where(narrow, narrow_imag, imag)
    return real, torch.where(mirror, -imag, imag)


def _half_line(x: Tensor, omega: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    # The integral up to x <= 0.
    finite = x.isfinite()
    x = torch.where(finite, x, torch.zeros_like(x))
    real, imag = faddeeva(-math.sqrt(0.5) * omega, -math.sqrt(0.5) * x)
    size = torch.where(finite, (-x * x / 2 - log_scale).exp() / 2, torch.zeros_like(x))
    cos, sin = size * (omega * x).cos(), size * (omega * x).sin()
    return cos * real - sin * imag, cos * imag + sin * real
