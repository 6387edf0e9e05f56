r"""The Fourier engine: kernels from characteristic functions.

.. math:: \int \cos(w_i \cdot t) \cos(w_j \cdot t) \, d\mu
    = \frac{1}{2} \Re \left( \chi(w_i - w_j) + \chi(w_i + w_j) \right), \quad
    \chi(\omega) = \int e^{i \omega \cdot t} \, d\mu

Products of sines have a minus in place of the plus. Biases enter by the addition theorems. The
kernels of the cosine and the snake on a normal law are in arXiv:2305.13552, where the cosine lacks
a factor 1/2; the snake is the activation of arXiv:2006.08195.
"""

__all__ = ["wave_products"]

import math
from collections.abc import Callable
from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from ..activations import Cis, Cos, Identity, Sin, Snake
from ..bases import FourierBase, Gaussian, GaussianMixture
from ..numerics.elementwise import elementwise
from ..numerics.forms import Features
from ..numerics.hyperbolic import scaled_hyperbolic, scaled_remainders
from ..numerics.linalg import rows_matmul
from .kernel import Separable
from .registry import register_kernel

# With at most four coordinates, the linear part of a snake is D vectors for each row of biases,
# which costs less than one more matrix product.
_DIRECT = 4


class _Products(NamedTuple):
    r"""Integrals of products of :math:`\cos(w_i \cdot t)` and :math:`\sin(w_j \cdot t)`."""

    cos_cos: Tensor
    sin_sin: Tensor
    cos_sin: Tensor | None
    exact: bool = False  # of a law of mass one; products of sines have all digits, however small


@singledispatch
def wave_products(base: FourierBase, weight: Tensor) -> _Products:
    r"""The integrals of products of waves of the centred statistic, each :math:`(*, n, n)`.

    Arguments:
        base: The base.
        weight: The weights, with shape :math:`(*, n, D)`.
    """
    return _fourier_products(base, weight)


def _fourier_products(base: FourierBase, weight: Tensor) -> _Products:
    lost, sin_sin, cos_sin, _ = _deficits(base, weight)
    return _Products(base.mass(weight)[..., None, None] - lost, sin_sin, cos_sin)


def _deficits(base: FourierBase, weight: Tensor) -> _Products:
    # As the products, with what the products of cosines lack of the total mass in their place.
    (real_minus, imag_minus), (real_plus, imag_plus) = base.pair_deficits(weight)
    return _Products(
        cos_cos=(real_plus + real_minus) / 2,
        sin_sin=(real_plus - real_minus) / 2,
        cos_sin=None if imag_minus is None or imag_plus is None else (imag_minus - imag_plus) / 2,
    )


def _cancels(base: FourierBase) -> bool:
    return any(isinstance(part, FourierBase) and part.deficit_cancels for part in base.parts())


def _error(base: FourierBase, weight: Tensor, sin_sin: Tensor) -> Tensor:
    # The size of the numbers whose differences are products of sines, (*, 1).
    if _cancels(base):
        return base.mass(weight).unsqueeze(-1)
    return 2.0 * sin_sin.detach().diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)


@wave_products.register
def _gaussian_products(base: Gaussian, weight: Tensor) -> _Products:
    # With phases P = W C W', products of sines are e^{-(P_ii + P_jj) / 2} sinh P_ij.
    white = base.whiten(weight)
    lost = (white * white).sum(-1) / -2.0
    cosh, sinh = scaled_hyperbolic(white @ white.mT, lost.unsqueeze(-1) + lost.unsqueeze(-2))
    return _Products(cosh, sinh, None, exact=True)


@wave_products.register
def _mixture_products(base: GaussianMixture, weight: Tensor) -> _Products:
    if not base.is_concentric:
        return _fourier_products(base, weight)
    components = _gaussian_products(base.gaussians, weight.unsqueeze(-3))
    cos_cos, sin_sin = base.average(torch.stack(components[:2]), rank=2).unbind()
    return _Products(cos_cos, sin_sin, None, exact=True)


def _shift(base: FourierBase, weight: Tensor) -> Tensor:
    # Transforms are of the centred statistic: its mean goes to the biases, (*, n).
    return rows_matmul(base.mean(weight), weight.mT)


def _linear(base: FourierBase, weight: Tensor) -> tuple[Tensor, Tensor]:
    # The total mass, and the second moments of w_i . t, each (*, n, n) or broadcastable to it.
    mass = base.mass(weight)[..., None, None]
    return mass, mass * (weight @ base.covariance(weight) @ weight.mT)


def _present(blocks: dict[tuple[int, int], Tensor | None]) -> dict[tuple[int, int], Tensor]:
    return {key: block for key, block in blocks.items() if block is not None}


def _wave(
    base: FourierBase, weight: Tensor, coefficients: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> Separable:
    # Neurons that are combinations of cos(w . t) and sin(w . t), with coefficients of the biases.
    cos_cos, sin_sin, cos_sin, exact = wave_products(base, weight)
    # Sines of tiny weights times one over their size, which their coefficients have instead: rows
    # in float32 have the range, and products of sines the errors, of products of cosines.
    size = _root_of_largest(sin_sin) if exact or not _cancels(base) else weight.new_ones(1)
    column = size.unsqueeze(-1)

    def features(angle: Tensor) -> Features:
        cos, sin = coefficients(angle)
        return Features(None, (cos, sin * size.to(sin.dtype)))

    cross = None if cos_sin is None else cos_sin / column
    return Separable(
        _present({(0, 0): cos_cos, (0, 1): cross, (1, 1): sin_sin / column.square()}),
        features,
        _shift(base, weight),
        0.0 if exact else base.mass(weight).amax(),
        takes_float32=True,
        errors=() if exact else (0.0, _error(base, weight, sin_sin) / size.square()),
    )


def _root_of_largest(matrix: Tensor) -> Tensor:
    # The root of the largest entry of the diagonal, at most one, without a gradient, (*, 1).
    largest = matrix.detach().diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
    return largest.clamp(max(1e-60, torch.finfo(matrix.dtype).tiny), 1.0).sqrt()


@register_kernel(Cos, FourierBase)
def _cos(activation: Cos, base: FourierBase, weight: Tensor) -> Separable:
    return _wave(base, weight, lambda angle: (angle.cos(), -angle.sin()))


@register_kernel(Sin, FourierBase)
def _sin(activation: Sin, base: FourierBase, weight: Tensor) -> Separable:
    return _wave(base, weight, lambda angle: (angle.sin(), angle.cos()))


@register_kernel(Cis, FourierBase)
def _cis(activation: Cis, base: FourierBase, weight: Tensor) -> Separable:
    # Real and imaginary part are cosines, the latter a quarter of a turn behind.
    cosines = _cos(Cos(), base, torch.cat([weight, weight], dim=-2))
    return Separable(
        cosines.blocks,
        lambda angle: cosines.features(torch.cat([angle, angle - math.pi / 2], dim=-1)),
        _shift(base, weight),
        cosines.unit,
        takes_float32=True,
    )


@register_kernel(Identity, FourierBase)
def _identity(activation: Identity, base: FourierBase, weight: Tensor) -> Separable:
    mass, linear = _linear(base, weight)
    return Separable(
        {(0, 0): mass, (1, 1): linear},
        lambda centre: Features(None, (centre, None)),
        _shift(base, weight),
    )


@register_kernel(Snake, FourierBase)
def _snake(activation: Snake, base: FourierBase, weight: Tensor) -> Separable:
    r"""The snake is its mean, a linear function and two waves.

    With the frequency :math:`f = 2a`, :math:`\omega = f w`, :math:`\beta = f b` and the offset
    :math:`o`,

    .. math:: \sigma = b + o + w \cdot t
        - \frac{\cos \beta \cos(\omega \cdot t) - \sin \beta \sin(\omega \cdot t)}{f}.

    The block of the means is the total mass. All other blocks are covariances.
    """
    frequency = activation.wave_frequency
    omega = frequency * weight
    mass, linear = _linear(base, weight)
    lost, sin_sin, cos_sin, _ = _deficits(base, omega)
    error = _error(base, weight, sin_sin)
    deficit, imag = base.deficit(omega)  # (*, n)
    slope_real, slope_imag = base.characteristic_moment(omega)  # (*, n, D)
    total = mass.squeeze(-1)  # (*, 1)
    # The means of cosines are 1 - short.
    short, mean_sin = deficit / total, None if imag is None else -imag / total

    def product(left: Tensor, right: Tensor) -> Tensor:
        return mass * left.unsqueeze(-1) * right.unsqueeze(-2)

    cos_cos = mass * (short.unsqueeze(-1) + short.unsqueeze(-2)) - product(short, short) - lost
    if mean_sin is not None and cos_sin is not None:
        sin_sin = sin_sin - product(mean_sin, mean_sin)
        cos_sin = cos_sin - product(1 - short, mean_sin)

    def features(centre: Tensor) -> Features:
        angle = frequency * centre
        cos, sin = angle.cos() / -frequency, angle.sin() / frequency
        # 1 - cos β (1 - s) = 2 sin(β / 2)^2 + s cos β.
        wave = (angle / 2).sin().square() * (2 / frequency) - cos * short
        mean = centre + (wave if activation.offset else wave - 1 / frequency)
        if mean_sin is not None:
            mean = mean + sin * mean_sin
        return Features(None, (mean, None, cos, sin))

    return Separable(
        _present(
            {
                (0, 0): mass,
                (1, 1): linear,
                (1, 2): None if slope_real is None else weight @ slope_real.mT,
                (1, 3): weight @ slope_imag.mT,
                (2, 2): cos_cos,
                (2, 3): cos_sin,
                (3, 3): sin_sin,
            }
        ),
        features,
        _shift(base, weight),
        mass.amax(),
        errors=(0.0, 0.0, error, error),
    )


@register_kernel(Snake, Gaussian)
def _snake_gaussian(activation: Snake, base: Gaussian, weight: Tensor) -> Separable:
    r"""The snake on a normal law: a constant, a linear function, and waves orthogonal to both.

    With :math:`\omega = f w`, :math:`\beta = f b`, :math:`P_{ij} = \omega_i^\top C \omega_j` and
    :math:`e_i = e^{-P_{ii} / 2}`, Stein's lemma gives the projection on linear functions:

    .. math:: f^2 K_{ij} = (\beta_i + f o - e_i \cos \beta_i)(\beta_j + f o - e_j \cos \beta_j)
        + (1 + e_i \sin \beta_i) P_{ij} (1 + e_j \sin \beta_j)
        + \cos \beta_i \, e_i e_j (\cosh P_{ij} - 1) \cos \beta_j
        + \sin \beta_i \, e_i e_j (\sinh P_{ij} - P_{ij}) \sin \beta_j.
    """
    frequency = activation.wave_frequency
    white = base.whiten(weight)
    omega = frequency * white
    phase = omega @ omega.mT  # P
    lost = phase.diagonal(dim1=-2, dim2=-1) * -0.5  # log e
    rest = torch.expm1(lost)  # e - 1
    damped = 1.0 + rest  # e is compared with one: an absolute error of eps does no harm
    part = lost - math.log(frequency)  # the factor 1 / f² is in the exponents
    even, odd = scaled_remainders(phase, part.unsqueeze(-1) + part.unsqueeze(-2))
    blocks = {(0, 0): even, (1, 1): odd}
    few = weight.shape[-1] <= _DIRECT
    if not few:
        blocks[2, 2] = white @ white.mT
    # One tensor holds all vectors that features need: it changes its dtype in one operation.
    slopes = [white.mT, damped.unsqueeze(-2) * white.mT] if few else [damped.unsqueeze(-2)]
    decay = damped / frequency
    start = rest / -frequency if activation.offset else -decay
    vectors = torch.cat([start.unsqueeze(-2), decay.unsqueeze(-2), *slopes], dim=-2)

    def features(centre: Tensor) -> Features:
        lift, cos, sin = _turn(frequency, centre)
        own, decay, *others = vectors.to(centre.dtype).unbind(-2)
        # (1 - e cos β) / f = (1 - e + e (1 - cos β)) / f, which is accurate for small β.
        mean = centre + own + decay * lift
        if not few:
            return Features(None, (cos, sin, 1 + others[0] * sin), mean.unsqueeze(0))
        still, moving = others[: len(others) // 2], others[len(others) // 2 :]
        slopes = [a + b * sin for a, b in zip(still, moving, strict=True)]
        return Features(None, (cos, sin), torch.stack([mean, *slopes]))

    # The errors of the blocks are relative to the largest P / f².
    unit = lost.detach().amin() * (-2.0 / frequency**2)
    return Separable(blocks, features, _shift(base, weight), unit, takes_float32=True)


def _slopes(
    frequency: float, x: Tensor, lift: Tensor, cos: Tensor, sin: Tensor
) -> list[tuple[Tensor]]:
    slope = frequency * sin
    return [(slope,), (-slope,), (frequency * cos,)]


@elementwise(_slopes, saves_values=True)
def _turn(frequency: float, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # 1 - cos β, cos β and sin β for β = f x. The first has all digits for small β.
    half = x * (frequency / 2)
    up = half.sin()
    double = up + up
    lift = up.mul_(double)
    return lift, 1 - lift, double.mul_(half.cos_())
