r"""Confluent hypergeometric limit functions: the Laplace and Fourier transforms of a sphere.

Numbers such as 10.41.3 are equations of the NIST Digital Library of Mathematical Functions (DLMF),
https://dlmf.nist.gov.
"""

__all__ = ["hyp0f1_deficit", "hyp0f1_oscillating", "log_hyp0f1"]

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


def hyp0f1_deficit(order: float, y: Tensor) -> Tensor:
    r"""Computes one less the confluent hypergeometric limit function at a negative argument.

    .. math:: 1 - {}_0F_1\left(; a; -\frac{y}{4}\right) = \frac{y}{4 a} - \cdots

    The relative error is small however small :math:`y` is.

    Arguments:
        order: The order :math:`a`, at least one.
        y: The argument :math:`y \geq 0`, of any shape. Negative values count as zero.

    Returns:
        The values, with the shape of `y`.

    Example:
        >>> hyp0f1_deficit(1.5, torch.tensor(6e-20, dtype=torch.float64))
        tensor(1.0000e-20, dtype=torch.float64)
    """
    (value,) = _deficit_value(order.__float__(), y)  # a number, as in log_hyp0f1
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
    # u_a = d/dy log 0F1(; a; y / 4) = 1 / 4 (a + y u_{a+1}) (10.29.1). The recursion goes down from
    # a large order, and subtracts nothing: neither it nor its derivatives by autograd lose digits.
    top, *below = _debye_orders(order)
    slope = _debye_slope(top, y)
    for a in below:
        slope = 0.25 / (a + y * slope)
    return slope


@elementwise(lambda order, y: [(_log_slope(order, y),)])
def _log_value(order: float, y: Tensor) -> tuple[Tensor]:
    # 0F1(; a; y / 4) = (1 + y u_{a+1} / a) 0F1(; a + 1; y / 4) (10.29.1). All terms are positive.
    top, *below = _debye_orders(order)
    value, slope = _debye_value(top, y), _debye_slope(top, y)
    for a in below:
        step = y * slope
        value = value + torch.log1p(step / a)
        slope = 0.25 / (a + step)
    return (value,)


def _debye_orders(order: float) -> list[float]:
    # Orders in unit steps, from one that suits Debye's expansion down to the given one.
    steps = max(0, math.ceil(_DEBYE_ORDER + 1 - order))
    return [order + k for k in range(steps, -1, -1)]


def _debye_value(order: float, y: Tensor) -> Tensor:
    # log 0F1(; a; y / 4) for a >= 33 by Debye's expansion of I_ν (10.41.3), uniform in y:
    #   ν (2 w - log(1 + w)) - log(1 + y / ν^2) / 4 + D(p) - D(1)
    # with ν = a - 1, s = sqrt(ν^2 + y), p = ν / s and w = y / 2ν(ν + s). D(p) - D(1) is p - 1 times
    # a polynomial. In this form the relative error of every term is small also near y = 0.
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
    # The derivative of _debye_value by y: 1 / 2(ν + s) - 1 / 4s^2 - p^3 D'(p) / 2ν^2.
    nu = order - 1
    s = torch.sqrt(nu**2 + y)
    p = nu / s
    _, slope = _debye_coefficients(nu)
    return 0.5 / (nu + s) - (0.25 + 0.5 * p * _horner(slope, p)) / (nu**2 + y)


@_constant
def _debye_coefficients(nu: float) -> tuple[Coefficients, Coefficients]:
    # The coefficients of (D(p) - D(1)) / (p - 1) and of D'(p). The logarithm of Debye's series is
    # D = Σ_k D_k / ν^k. By the recursion 10.41.9 of the series, with q = p^2 (1 - p^2),
    #   D_1' = (1 - 5 p^2) / 8,  D_{k+1}' = ((q D_k')' + q Σ_{i+j=k} D_i' D_j') / 2.
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
    # By Gauss's rule, and by Hankel's expansion further out. The derivative is the same function at
    # the next order: -0F1(; a + 1; -y / 4) / 4a.
    switch, coefficients = _hankel_expansion(order)
    kappa = torch.sqrt(y.clamp(min=0.0))
    near = _gauss_cosine(order, switch, kappa.clamp(max=switch))
    far = _hankel_cosine(order, switch, coefficients, kappa.clamp(min=switch))
    return (torch.where(kappa < switch, near, far),)


@elementwise(lambda order, y: [(hyp0f1_oscillating(order + 1, y) / (4 * order),)])
def _deficit_value(order: float, y: Tensor) -> tuple[Tensor]:
    # As above, with 1 - cos κs = 2 sin(κs / 2)^2 under Gauss's rule.
    switch, coefficients = _hankel_expansion(order)
    kappa = torch.sqrt(y.clamp(min=0.0))
    half = kappa.clamp(max=switch) / 2
    near = torch.zeros_like(half)
    for node, weight in _gauss_rule(order, switch):
        near = near + 2 * weight * torch.sin(node * half).square()
    far = 1 - _hankel_cosine(order, switch, coefficients, kappa.clamp(min=switch))
    return (torch.where(kappa < switch, near, far),)


def _gauss_cosine(order: float, switch: float, kappa: Tensor) -> Tensor:
    # E[cos κs] for κ <= switch, with s one coordinate of the uniform sphere.
    value = torch.zeros_like(kappa)
    for node, weight in _gauss_rule(order, switch):  # one by one: never nodes x elements
        value = value + weight * torch.cos(node * kappa)
    return value


def _hankel_cosine(
    order: float, switch: float, coefficients: Coefficients, kappa: Tensor
) -> Tensor:
    # Hankel's expansion (10.17.3), for κ >= switch and φ = (a - 1/2) π / 2:
    #   Γ(a) / sqrt(π) (2 / κ)^{a - 1/2} (P cos(κ - φ) - Q sin(κ - φ))
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
    # The smallest κ where Hankel's expansion serves, and the terms of P and Q there, interleaved,
    # with the amplitude Γ(a) / sqrt(π) (2 / κ)^{a - 1/2}. By 10.17.1, with ν = a - 1,
    #   P - iQ ~ Σ_k a_k / (iκ)^k,  a_k = Π_{j <= k} (4 ν^2 - (2j - 1)^2) / 8j.
    # From k = ν on, the error is below the first neglected term (§10.17(iii)). In odd dimensions
    # the expansion is finite, and only its rounding error forbids a smaller κ.
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
    # Nodes and weights for even functions of one coordinate s of the uniform sphere, with density
    # ∝ (1 - s^2)^{λ - 1/2} and λ = a - 1. Its monic Gegenbauer polynomials recur with (§18.9(i))
    #   β_k = k (k + 2λ - 1) / 4 (k + λ) (k + λ - 1).
    # For cos κs, the error of n nodes is at most κ^{2n} / (2n)! Π_{k <= n} β_k (§3.5(v)). The rule
    # comes from the eigenvectors of a tridiagonal matrix (Golub & Welsch 1969). By symmetry, the
    # positive nodes suffice.
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
