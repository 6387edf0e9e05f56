r"""Confluent hypergeometric limit functions: the Laplace and Fourier transforms of a sphere."""

__all__ = ["hyp0f1_oscillating", "log_hyp0f1"]

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.polynomial import Polynomial
from torch import Tensor
from torch.autograd import Function

# Debye's expansion with 11 terms is exact to a part in 1e16 for Bessel functions of order 32 on.
_DEBYE_TERMS = 11
_DEBYE_ORDER = 32.0
_EPS = 2.0**-53

Coefficients = tuple[float, ...]
T = TypeVar("T")


def log_hyp0f1(order: float, y: Tensor) -> Tensor:
    r"""Computes the logarithm of the confluent hypergeometric limit function.

    .. math:: \log {}_0F_1\left(; a; \frac{y}{4}\right)
        = \log \frac{\Gamma(a) \, I_{a - 1}(\kappa)}{(\kappa / 2)^{a - 1}},
        \quad \kappa = \sqrt{y}

    With :math:`a = d / 2` and :math:`y = \|\omega\|^2`, this is
    :math:`\log \mathbb{E} [e^{\omega^T x}]` for :math:`x` uniform on the sphere in
    :math:`\mathbb{R}^d`. It is analytic in :math:`y`, zero included, has its relative accuracy
    everywhere, and derivatives of all orders.

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

    if torch.compiler.is_compiling():  # the compiler refuses rules for forward mode
        return _LogHyp0F1.apply(_number(order), y)

    return _DualLogHyp0F1.apply(order, y)


def hyp0f1_oscillating(order: float, y: Tensor) -> Tensor:
    r"""Computes the confluent hypergeometric limit function at a negative argument.

    .. math:: {}_0F_1\left(; a; -\frac{y}{4}\right)
        = \frac{\Gamma(a) \, J_{a - 1}(\kappa)}{(\kappa / 2)^{a - 1}},
        \quad \kappa = \sqrt{y}

    With :math:`a = d / 2` and :math:`y = \|\omega\|^2`, this is
    :math:`\mathbb{E} [\cos \omega^T x]` for :math:`x` uniform on the sphere in
    :math:`\mathbb{R}^d`. It has derivatives of all orders. Its accuracy is absolute.

    Arguments:
        order: The order :math:`a`, at least one.
        y: The argument :math:`y \geq 0`, of any shape. Negative values are taken for zeros.

    Returns:
        The values, with the shape of `y`.

    Example:
        >>> y = torch.tensor([0.0, 4.0], dtype=torch.float64)
        >>> hyp0f1_oscillating(1.5, y)  # sin(2) / 2
        tensor([1.0000, 0.4546], dtype=torch.float64)
    """

    if torch.compiler.is_compiling():  # the compiler refuses rules for forward mode
        return _Hyp0F1Oscillating.apply(_number(order), y)

    return _DualHyp0F1Oscillating.apply(order, y)


def _number(order: float) -> float:
    r"""Returns the order as a number, where the compiler may have made it a symbol.

    The compiler generalises sizes that change between calls. Unlike `float(order)`, which stays
    symbolic, the method makes it compile for each order separately.

    Arguments:
        order: The order :math:`a`.
    """

    return order.__float__()


def _constant(function: Callable[..., T]) -> Callable[..., T]:
    r"""Decorates a function of plain numbers to be computed once, and not traced by compilers.

    Arguments:
        function: The function, pure and with hashable arguments.
    """

    cached = lru_cache(maxsize=None)(function)

    # The compiler looks through caches, but stops at this mark.
    @torch.compiler.assume_constant_result
    @wraps(function)
    def wrapper(*args: float) -> T:
        return cached(*args)

    return wrapper


class _LogHyp0F1(Function):
    r"""Keeps nothing but the argument: the derivative is computed afresh, not from the graph."""

    generate_vmap_rule = True

    @staticmethod
    def forward(order: float, y: Tensor) -> Tensor:
        top = _debye_order(order)
        value, slope = _debye_value(top, y), _debye_slope(top, y)

        # f_a / f_{a + 1} = 1 + y u_{a + 1} / a with u = (log f)'. All terms are positive.
        for a in _orders_below(order, top):
            step = y * slope
            value = value + torch.log1p(step / a)
            slope = 0.25 / (a + step)

        return value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[float, Tensor], output: Tensor) -> None:
        ctx.order, y = inputs
        ctx.save_for_backward(y)
        ctx.save_for_forward(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (y,) = ctx.saved_tensors
        return None, grad * _log_hyp0f1_slope(ctx.order, y)


class _DualLogHyp0F1(_LogHyp0F1):
    r"""Adds the rule for forward mode."""

    @staticmethod
    def jvp(ctx: Any, _: None, tangent: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return tangent * _log_hyp0f1_slope(ctx.order, y)


def _log_hyp0f1_slope(order: float, y: Tensor) -> Tensor:
    r"""Computes the derivative :math:`u_a = \frac{d}{dy} \log {}_0F_1(; a; y / 4)`.

    .. math:: u_a = \frac{1}{4 a} \frac{{}_0F_1(; a + 1; y / 4)}{{}_0F_1(; a; y / 4)}
        = \frac{1}{4 (a + y \, u_{a + 1})}

    The recursion goes down from a large order, without subtractions: there is no loss for large
    :math:`y`, neither here nor in the derivatives that autograd takes of it.

    Arguments:
        order: The order :math:`a`.
        y: The argument :math:`y \geq 0`.
    """

    top = _debye_order(order)
    slope = _debye_slope(top, y)

    for a in _orders_below(order, top):
        slope = 0.25 / (a + y * slope)

    return slope


def _debye_order(order: float) -> float:
    r"""Returns the smallest order above `order`, in integer steps, that Debye's expansion allows.

    Arguments:
        order: The order :math:`a` of the hypergeometric function.
    """

    return order + max(0, math.ceil(_DEBYE_ORDER + 1 - order))


def _orders_below(order: float, top: float) -> list[float]:
    r"""Returns the orders from `top - 1` down to `order`.

    Arguments:
        order: The last order.
        top: The order above the first one.
    """

    return [order + k for k in reversed(range(round(top - order)))]


def _debye_value(order: float, y: Tensor) -> Tensor:
    r"""Computes :math:`\log {}_0F_1(; a; y / 4)` for a large order.

    With :math:`\nu = a - 1`, :math:`s = \sqrt{\nu^2 + y}`, :math:`p = \nu / s` and
    :math:`w = y / 2 \nu (\nu + s)`, Debye's expansion of :math:`I_\nu`, uniform in :math:`y`, is

    .. math:: \nu (2 w - \log(1 + w)) - \frac{1}{4} \log\left(1 + \frac{y}{\nu^2}\right)
        + D(p) - D(1)

    The last difference is :math:`(p - 1)` times a polynomial, such that every term has its relative
    accuracy near :math:`y = 0`.

    Arguments:
        order: The order :math:`a`, at least 33.
        y: The argument :math:`y \geq 0`.
    """

    nu = order - 1
    s = torch.sqrt(nu**2 + y)
    excess = y / (nu + s)  # s - nu
    quotient, _ = _debye_coefficients(nu)

    return (
        excess
        - nu * torch.log1p(excess / (2 * nu))
        - torch.log1p(y / nu**2) / 4
        - excess / s * _horner(quotient, nu / s)
    )


def _debye_slope(order: float, y: Tensor) -> Tensor:
    r"""Computes the derivative of :func:`_debye_value` in :math:`y`.

    .. math:: \frac{1}{2 (\nu + s)} - \frac{1}{4 s^2} - \frac{p^3}{2 \nu^2} D'(p)

    Arguments:
        order: The order :math:`a`, at least 33.
        y: The argument :math:`y \geq 0`.
    """

    nu = order - 1
    s = torch.sqrt(nu**2 + y)
    p = nu / s
    _, slope = _debye_coefficients(nu)

    return 0.5 / (nu + s) - (0.25 + 0.5 * p * _horner(slope, p)) / (nu**2 + y)


@_constant
def _debye_coefficients(nu: float) -> tuple[Coefficients, Coefficients]:
    r"""Returns the coefficients of :math:`(D(p) - D(1)) / (p - 1)` and :math:`D'(p)`.

    .. math:: D(p) = \sum_{k = 1}^K \frac{D_k(p)}{\nu^k}, \quad D_1' = \frac{1 - 5 p^2}{8}, \quad
        D_{k + 1}' = \frac{1}{2} \Big( \big(p^2 (1 - p^2) D_k'\big)'
        + p^2 (1 - p^2) \sum_{i + j = k} D_i' D_j' \Big)

    This is the logarithm of Debye's series. Unlike the series, it follows from a recursion for its
    derivatives alone.

    Arguments:
        nu: The order :math:`\nu` of the Bessel function.
    """

    weight = Polynomial([0, 0, 1, 0, -1])
    series = [Polynomial([1, 0, -5]) / 8]
    for k in range(1, _DEBYE_TERMS):
        products = (series[i] * series[k - 2 - i] for i in range(k - 1))
        series.append(((weight * series[-1]).deriv() + weight * sum(products, Polynomial([0]))) / 2)

    slope = sum((term / nu**k for k, term in enumerate(series, 1)), Polynomial([0]))
    quotient = slope.integ() // Polynomial([-1, 1])

    return tuple(quotient.coef.tolist()), tuple(slope.coef.tolist())


def _horner(coefficients: Coefficients, x: Tensor) -> Tensor:
    r"""Evaluates a polynomial by Horner's rule.

    Arguments:
        coefficients: The coefficients, the constant first.
        x: The argument.
    """

    value = torch.zeros_like(x)
    for c in reversed(coefficients):
        value = value * x + c

    return value


class _Hyp0F1Oscillating(Function):
    r"""Switches between two formulas, whose own derivatives would not be those of the function."""

    generate_vmap_rule = True

    @staticmethod
    def forward(order: float, y: Tensor) -> Tensor:
        switch, coefficients = _hankel_expansion(order)
        kappa = torch.sqrt(y.clamp(min=0.0))

        return torch.where(
            kappa < switch,
            _gauss_cosine(order, switch, kappa.clamp(max=switch)),
            _hankel_cosine(order, switch, coefficients, kappa.clamp(min=switch)),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[float, Tensor], output: Tensor) -> None:
        ctx.order, y = inputs
        ctx.save_for_backward(y)
        ctx.save_for_forward(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (y,) = ctx.saved_tensors
        return None, grad * hyp0f1_oscillating(ctx.order + 1, y) / (-4 * ctx.order)


class _DualHyp0F1Oscillating(_Hyp0F1Oscillating):
    r"""Adds the rule for forward mode."""

    @staticmethod
    def jvp(ctx: Any, _: None, tangent: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return tangent * hyp0f1_oscillating(ctx.order + 1, y) / (-4 * ctx.order)


def _gauss_cosine(order: float, switch: float, kappa: Tensor) -> Tensor:
    r"""Computes :math:`\mathbb{E} [\cos \kappa s]` by Gauss's rule.

    Arguments:
        order: The order :math:`a`.
        switch: The largest argument the rule has to serve.
        kappa: The argument :math:`\kappa` in :math:`[0, \text{switch}]`.
    """

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

    Arguments:
        order: The order :math:`a`.
        switch: The smallest argument the expansion has to serve.
        coefficients: The coefficients of :math:`P` and :math:`Q` in powers of
            :math:`\text{switch} / \kappa`, interleaved.
        kappa: The argument :math:`\kappa`, at least `switch`.
    """

    ratio = switch / kappa
    p = _horner(coefficients[0::2], ratio**2)
    q = _horner(coefficients[1::2], ratio**2) * ratio

    # The phase is taken apart, because the difference would be rounded like kappa itself.
    phase = (math.pi / 2) * ((order - 0.5) % 4)
    cos, sin = math.cos(phase), math.sin(phase)
    wave = (cos * p + sin * q) * torch.cos(kappa) + (sin * p - cos * q) * torch.sin(kappa)

    return _hankel_envelope(order, switch) * torch.pow(ratio, order - 0.5) * wave


def _hankel_envelope(order: float, kappa: float) -> float:
    r"""Returns the amplitude :math:`\frac{\Gamma(a)}{\sqrt{\pi}} (2 / \kappa)^{a - 1/2}`.

    Arguments:
        order: The order :math:`a`.
        kappa: The argument :math:`\kappa > 0`.
    """

    logarithm = math.lgamma(order) - math.log(math.pi) / 2 + (order - 0.5) * math.log(2 / kappa)
    return math.exp(min(logarithm, 700.0))  # the search below starts where this may overflow


@_constant
def _hankel_expansion(order: float) -> tuple[float, Coefficients]:
    r"""Finds where Hankel's expansion begins to serve, and the terms it needs there.

    .. math:: P - i Q \sim \sum_k \frac{a_k}{(i \kappa)^k}, \quad
        a_k = \prod_{j \leq k} \frac{4 \nu^2 - (2 j - 1)^2}{8 j}, \quad \nu = a - 1

    From :math:`k = \nu` on, the error is less than the first neglected term. What counts is the
    absolute error, hence the envelope :math:`\propto \kappa^{1/2 - a}`. For odd dimensions the
    expansion is finite, and only rounding keeps it away from zero.

    Arguments:
        order: The order :math:`a`.
    """

    switch = 1.0
    while True:
        envelope = _hankel_envelope(order, switch)
        terms, size = [1.0], math.inf

        # The terms fall until k is about 2 kappa, then rise again.
        while len(terms) <= order or (envelope * abs(size) > _EPS / 10 and len(terms) < 2 * switch):
            k = len(terms)
            size = terms[-1] * (4 * (order - 1) ** 2 - (2 * k - 1) ** 2) / (8 * k * switch)
            terms.append(size)

        *terms, neglected = terms
        if envelope * abs(neglected) <= _EPS / 10 and envelope * max(map(abs, terms)) <= 1.0:
            return switch, tuple(c * (1, 1, -1, -1)[k % 4] for k, c in enumerate(terms))

        switch = switch * 1.0625


@_constant
def _gauss_rule(order: float, switch: float) -> tuple[tuple[float, float], ...]:
    r"""Returns nodes and weights for even functions of one coordinate of the uniform sphere.

    The weight function is :math:`\propto (1 - s^2)^{a - 3/2}`. The error of the rule with
    :math:`n` nodes for :math:`\cos \kappa s` is at most :math:`\frac{\kappa^{2 n}}{(2 n)!}
    \prod_{k \leq n} \beta_k`, where :math:`\beta_k` are the recurrence coefficients of the
    orthogonal polynomials. Half of the nodes stand for all of them, by symmetry.

    Arguments:
        order: The order :math:`a`.
        switch: The largest :math:`\kappa`.
    """

    beta: list[float] = []
    error = 1.0
    while error > _EPS / 10 or len(beta) % 2:
        n = len(beta) + 1
        beta.append(_recurrence_coefficient(order - 1, n))
        error = error * beta[-1] * switch**2 / (2 * n * (2 * n - 1))

    off_diagonal = np.sqrt(np.asarray(beta[:-1]))
    nodes, vectors = np.linalg.eigh(np.diag(off_diagonal, -1))
    half = len(beta) // 2
    weights = vectors[0, half:] ** 2
    weights = weights / weights.sum()

    return tuple(zip(nodes[half:].tolist(), weights.tolist(), strict=True))


def _recurrence_coefficient(degree: float, k: int) -> float:
    r"""Returns :math:`\beta_k` of the monic Gegenbauer polynomials.

    .. math:: \beta_k = \frac{k (k + 2 \lambda - 1)}{4 (k + \lambda) (k + \lambda - 1)}

    Arguments:
        degree: The parameter :math:`\lambda`.
        k: The index, at least one.
    """

    if k == 1:  # the formula has 0 / 0 here on the circle
        return 1 / (2 + 2 * degree)

    return k * (k + 2 * degree - 1) / (4 * (k + degree) * (k + degree - 1))
