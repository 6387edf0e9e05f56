r"""Confluent hypergeometric limit functions: the Laplace and Fourier transforms of a sphere.

Numbers such as 10.41.3 are equations of the NIST Digital Library of Mathematical Functions (DLMF),
https://dlmf.nist.gov.
"""

__all__ = ["hyp0f1_oscillating", "log_hyp0f1"]

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

import numpy as np
import torch
from numpy.polynomial import Polynomial
from torch import Tensor

from .elementwise import elementwise

# From order 32 on, 11 terms of Debye's expansion of a Bessel function leave an error below 1e-16.
_DEBYE_TERMS = 11
_DEBYE_ORDER = 32.0
# The rounding error of 1 in float64.
_EPS = 2.0**-53

Coefficients = tuple[float, ...]
T = TypeVar("T")


def log_hyp0f1(order: float, y: Tensor) -> Tensor:
    r"""Computes the logarithm of the confluent hypergeometric limit function.

    .. math:: \log {}_0F_1\left(; a; \frac{y}{4}\right)
        = \log \frac{\Gamma(a) \, I_{a - 1}(\kappa)}{(\kappa / 2)^{a - 1}},
        \quad \kappa = \sqrt{y}

    by 10.39.9. With :math:`a = d / 2` and :math:`y = \|\omega\|^2`, this is
    :math:`\log \mathbb{E} [e^{\omega^T x}]` for :math:`x` uniform on the sphere in
    :math:`\mathbb{R}^d`. The function is analytic in :math:`y`, also at zero. The relative error is
    small everywhere. Derivatives of every order exist, in backward and in forward mode.

    Arguments:
        order: The order :math:`a`, at least one half.
        y: The argument :math:`y \geq 0`, of any shape.

    Returns:
        The values, with the shape of `y`.

    Example:
        >>> y = torch.tensor([0.0, 4.0], dtype=torch.float64)
        >>> log_hyp0f1(1.5, y)  # log(sinh(2) / 2)
        tensor([0.0000, 0.5952], dtype=torch.float64)
    """

    # torch.compile may have made a symbol of a size, and of the order with it. Unlike
    # float(order), the method turns a symbol into a number.
    (value,) = _log_value(order.__float__(), y)
    return value


def hyp0f1_oscillating(order: float, y: Tensor) -> Tensor:
    r"""Computes the confluent hypergeometric limit function at a negative argument.

    .. math:: {}_0F_1\left(; a; -\frac{y}{4}\right)
        = \frac{\Gamma(a) \, J_{a - 1}(\kappa)}{(\kappa / 2)^{a - 1}},
        \quad \kappa = \sqrt{y}

    by 10.16.9. With :math:`a = d / 2` and :math:`y = \|\omega\|^2`, this is
    :math:`\mathbb{E} [\cos \omega^T x]` for :math:`x` uniform on the sphere in
    :math:`\mathbb{R}^d`. The absolute error is small everywhere; the relative error is not, near a
    zero of the function. Derivatives of every order exist, in backward and in forward mode.

    Arguments:
        order: The order :math:`a`, at least one.
        y: The argument :math:`y \geq 0`, of any shape. Negative values count as zero.

    Returns:
        The values, with the shape of `y`.

    Example:
        >>> y = torch.tensor([0.0, 4.0], dtype=torch.float64)
        >>> hyp0f1_oscillating(1.5, y)  # sin(2) / 2
        tensor([1.0000, 0.4546], dtype=torch.float64)
    """

    (value,) = _oscillating_value(order.__float__(), y)  # a number, as in log_hyp0f1
    return value


def _constant(function: Callable[..., T]) -> Callable[..., T]:
    r"""Decorates a pure function of numbers: computed once, and never traced by torch.compile."""

    cached = lru_cache(maxsize=None)(function)

    # torch.compile looks through lru_cache, but not through this mark.
    @torch.compiler.assume_constant_result
    @wraps(function)
    def wrapper(*args: float) -> T:
        return cached(*args)

    return wrapper


def _horner(coefficients: Coefficients, x: Tensor) -> Tensor:
    r"""Evaluates a polynomial by Horner's rule. The constant coefficient comes first."""

    value = torch.zeros_like(x)
    for c in reversed(coefficients):
        value = value * x + c

    return value


# The logarithm at a positive argument


def _log_slope(order: float, y: Tensor) -> Tensor:
    r"""Computes the derivative :math:`u_a = \frac{d}{dy} \log {}_0F_1(; a; y / 4)`.

    .. math:: u_a = \frac{1}{4 a} \frac{{}_0F_1(; a + 1; y / 4)}{{}_0F_1(; a; y / 4)}
        = \frac{1}{4 (a + y \, u_{a + 1})}

    by 10.29.1. The recursion goes down from a large order, and subtracts nothing. So neither it nor
    its derivatives by autograd lose digits, however large :math:`y` is.
    """

    top, *below = _debye_orders(order)
    slope = _debye_slope(top, y)
    for a in below:
        slope = 0.25 / (a + y * slope)

    return slope


@elementwise(lambda order, y: [(_log_slope(order, y),)])
def _log_value(order: float, y: Tensor) -> tuple[Tensor]:
    r"""Computes :func:`log_hyp0f1`.

    .. math:: {}_0F_1(; a; y / 4) = (1 + y \, u_{a + 1} / a) \, {}_0F_1(; a + 1; y / 4)

    by 10.29.1. Every term is positive, so nothing cancels.
    """

    top, *below = _debye_orders(order)
    value, slope = _debye_value(top, y), _debye_slope(top, y)
    for a in below:
        step = y * slope
        value = value + torch.log1p(step / a)
        slope = 0.25 / (a + step)

    return (value,)


def _debye_orders(order: float) -> list[float]:
    r"""Returns orders in unit steps, from one that suits Debye's expansion down to `order`."""

    steps = max(0, math.ceil(_DEBYE_ORDER + 1 - order))
    return [order + k for k in range(steps, -1, -1)]


def _debye_value(order: float, y: Tensor) -> Tensor:
    r"""Computes :math:`\log {}_0F_1(; a; y / 4)` for an order of at least 33.

    Debye's expansion 10.41.3 of :math:`I_\nu`, uniform in :math:`y`, is

    .. math:: \nu (2 w - \log(1 + w)) - \frac{1}{4} \log\left(1 + \frac{y}{\nu^2}\right)
        + D(p) - D(1)

    with :math:`\nu = a - 1`, :math:`s = \sqrt{\nu^2 + y}`, :math:`p = \nu / s` and
    :math:`w = y / 2 \nu (\nu + s)`. The difference :math:`D(p) - D(1)` is :math:`p - 1` times a
    polynomial. In this form the relative error of every term is small also near :math:`y = 0`.
    """

    nu = order - 1
    s = torch.sqrt(nu**2 + y)
    excess = y / (nu + s)  # s - nu = 2 nu w
    quotient, _ = _debye_coefficients(nu)

    return (
        excess
        - nu * torch.log1p(excess / (2 * nu))
        - torch.log1p(y / nu**2) / 4
        - excess / s * _horner(quotient, nu / s)
    )


def _debye_slope(order: float, y: Tensor) -> Tensor:
    r"""Computes the derivative of :func:`_debye_value` with respect to :math:`y`.

    .. math:: \frac{1}{2 (\nu + s)} - \frac{1}{4 s^2} - \frac{p^3}{2 \nu^2} D'(p)
    """

    nu = order - 1
    s = torch.sqrt(nu**2 + y)
    p = nu / s
    _, slope = _debye_coefficients(nu)

    return 0.5 / (nu + s) - (0.25 + 0.5 * p * _horner(slope, p)) / (nu**2 + y)


@_constant
def _debye_coefficients(nu: float) -> tuple[Coefficients, Coefficients]:
    r"""Returns the coefficients of :math:`(D(p) - D(1)) / (p - 1)` and of :math:`D'(p)`.

    .. math:: D(p) = \sum_{k = 1}^K \frac{D_k(p)}{\nu^k}, \quad D_1' = \frac{1 - 5 p^2}{8}, \quad
        D_{k + 1}' = \frac{1}{2} \Big( \big(p^2 (1 - p^2) D_k'\big)'
        + p^2 (1 - p^2) \sum_{i + j = k} D_i' D_j' \Big)

    :math:`D` is the logarithm of Debye's series :math:`\sum_k U_k(p) / \nu^k`. Its recursion
    follows from the recursion 10.41.9 of :math:`U_k`, and needs the derivatives :math:`D_k'` only.
    """

    weight = Polynomial([0, 0, 1, 0, -1])
    series = [Polynomial([1, 0, -5]) / 8]
    for k in range(1, _DEBYE_TERMS):
        products = (series[i] * series[k - 2 - i] for i in range(k - 1))
        series.append(((weight * series[-1]).deriv() + weight * sum(products, Polynomial([0]))) / 2)

    slope = sum((term / nu**k for k, term in enumerate(series, 1)), Polynomial([0]))
    quotient = slope.integ() // Polynomial([-1, 1])

    return tuple(quotient.coef.tolist()), tuple(slope.coef.tolist())


# The function at a negative argument


@elementwise(lambda order, y: [(hyp0f1_oscillating(order + 1, y) / (-4 * order),)])
def _oscillating_value(order: float, y: Tensor) -> tuple[Tensor]:
    r"""Computes :func:`hyp0f1_oscillating` by Gauss's rule, and by Hankel's expansion further out.

    The derivative is the same function at the next order: :math:`-{}_0F_1(; a + 1; -y / 4) / 4 a`.
    """

    switch, coefficients = _hankel_expansion(order)
    kappa = torch.sqrt(y.clamp(min=0.0))
    near = _gauss_cosine(order, switch, kappa.clamp(max=switch))
    far = _hankel_cosine(order, switch, coefficients, kappa.clamp(min=switch))

    return (torch.where(kappa < switch, near, far),)


def _gauss_cosine(order: float, switch: float, kappa: Tensor) -> Tensor:
    r"""Computes :math:`\mathbb{E} [\cos \kappa s]` for :math:`\kappa \leq` `switch`."""

    value = torch.zeros_like(kappa)
    for node, weight in _gauss_rule(order, switch):  # one by one: never nodes x elements
        value = value + weight * torch.cos(node * kappa)

    return value


def _hankel_cosine(
    order: float, switch: float, coefficients: Coefficients, kappa: Tensor
) -> Tensor:
    r"""Computes :math:`\Gamma(a) (2 / \kappa)^{a - 1} J_{a - 1}(\kappa)` by Hankel's expansion.

    .. math:: \frac{\Gamma(a)}{\sqrt{\pi}} \left(\frac{2}{\kappa}\right)^{a - 1/2}
        \big(P \cos(\kappa - \varphi) - Q \sin(\kappa - \varphi)\big),
        \quad \varphi = \frac{\pi}{2} \left(a - \frac{1}{2}\right)

    which is 10.17.3, for :math:`\kappa \geq` `switch`.
    """

    ratio = switch / kappa
    p = _horner(coefficients[0::2], ratio**2)
    q = _horner(coefficients[1::2], ratio**2) * ratio

    # By the addition theorem, since the rounding error of kappa - phase grows with kappa.
    phase = (math.pi / 2) * ((order - 0.5) % 4)
    cos, sin = math.cos(phase), math.sin(phase)
    wave = (cos * p + sin * q) * torch.cos(kappa) + (sin * p - cos * q) * torch.sin(kappa)

    return torch.pow(ratio, order - 0.5) * wave


@_constant
def _hankel_expansion(order: float) -> tuple[float, Coefficients]:
    r"""Finds the smallest :math:`\kappa` where Hankel's expansion serves, and its terms there.

    .. math:: P - i Q \sim \sum_k \frac{a_k}{(i \kappa)^k}, \quad
        a_k = \prod_{j \leq k} \frac{4 \nu^2 - (2 j - 1)^2}{8 j}, \quad \nu = a - 1

    which is 10.17.1. From :math:`k = \nu` on, the error is below the first neglected term
    (§10.17(iii)). The absolute error counts, so a term is weighed by the amplitude
    :math:`\Gamma(a) / \sqrt{\pi} \cdot (2 / \kappa)^{a - 1/2}`. In odd dimensions the expansion is
    finite, and only its rounding error forbids a smaller :math:`\kappa`.

    Returns:
        The switch :math:`\kappa`, and the coefficients of :math:`P` and :math:`Q`, interleaved, in
        powers of :math:`\text{switch} / \kappa`. They include the amplitude at the switch.
    """

    switch = 1.0
    while True:
        amplitude = math.lgamma(order) - math.log(math.pi) / 2
        amplitude = amplitude + (order - 0.5) * math.log(2 / switch)
        amplitude = math.exp(min(amplitude, 700.0))  # no overflow far below the switch
        terms, size = [1.0], math.inf

        # The terms fall until k is about 2 kappa, then rise again.
        while len(terms) <= order or (
            amplitude * abs(size) > _EPS / 10 and len(terms) < 2 * switch
        ):
            k = len(terms)
            size = terms[-1] * (4 * (order - 1) ** 2 - (2 * k - 1) ** 2) / (8 * k * switch)
            terms.append(size)

        *terms, neglected = terms
        if amplitude * abs(neglected) <= _EPS / 10 and amplitude * max(map(abs, terms)) <= 1.0:
            signs = (1, 1, -1, -1)
            return switch, tuple(amplitude * c * signs[k % 4] for k, c in enumerate(terms))

        switch = switch * 1.0625


@_constant
def _gauss_rule(order: float, switch: float) -> tuple[tuple[float, float], ...]:
    r"""Returns nodes and weights for even functions of one coordinate of the uniform sphere.

    The coordinate has a density :math:`\propto (1 - s^2)^{\lambda - 1/2}` with
    :math:`\lambda = a - 1`. The recurrence coefficients of the monic Gegenbauer polynomials, which
    are orthogonal with respect to this density, are

    .. math:: \beta_k = \frac{k (k + 2 \lambda - 1)}{4 (k + \lambda) (k + \lambda - 1)}

    by §18.9(i). For :math:`\cos \kappa s`, the error of :math:`n` nodes is at most
    :math:`\frac{\kappa^{2 n}}{(2 n)!} \prod_{k \leq n} \beta_k` (§3.5(v)). Nodes and weights come
    from the eigenvectors of a tridiagonal matrix (Golub & Welsch 1969). By symmetry, the positive
    nodes suffice.
    """

    beta: list[float] = []
    error, degree = 1.0, order - 1
    while error > _EPS / 10 or len(beta) % 2:
        k = len(beta) + 1
        if k == 1:  # beta_1 is 0 / 0 on the circle, where lambda = 0
            beta.append(1 / (2 + 2 * degree))
        else:
            beta.append(k * (k + 2 * degree - 1) / (4 * (k + degree) * (k + degree - 1)))
        error = error * beta[-1] * switch**2 / (2 * k * (2 * k - 1))

    nodes, vectors = np.linalg.eigh(np.diag(np.sqrt(beta[:-1]), -1))
    half = len(beta) // 2
    weights = vectors[0, half:] ** 2
    weights = weights / weights.sum()

    return tuple(zip(nodes[half:].tolist(), weights.tolist(), strict=True))
