r"""Moments of rectified and sigmoidal functions of two correlated Gaussian variables.

Each product moment :math:`\mathbb{E} [\sigma(z_1) \sigma(z_2)]` takes the law of
:math:`(z_1, z_2)` as six tensors that broadcast together:

- `m1` and `m2`, the means,
- `v1` and `v2`, the variances, which may be zero,
- `c`, the covariance,
- `angle`, the angle :math:`\arccos \rho` between the weights of the two neurons. Near 0 and
  :math:`\pi` the covariance has lost the digits of the angle. The angle gets no gradient.

Throughout, :math:`s_k = \sqrt{v_k}`, :math:`h_k = m_k / s_k` and :math:`\rho = c / s_1 s_2`.
:math:`\phi` and :math:`\Phi` are the standard normal density and distribution function,
:math:`\phi_2` and :math:`\Phi_2` the bivariate ones. All moments rest on Price's theorem (1958):
:math:`\partial_c \mathbb{E} [f(z_1) g(z_2)] = \mathbb{E} [f'(z_1) g'(z_2)]`. The moments are
kernels of squared neural families (arXiv:2305.13552) for any bias. Derivatives of every order
exist, in backward and in forward mode.
"""

__all__ = [
    "bump_moment",
    "erf_moment",
    "gelu_moment",
    "half_normal_moments",
    "leaky_relu_moment",
    "relu_moment",
]

import math
from collections.abc import Iterator

import torch
from numpy.polynomial.legendre import leggauss
from torch import Tensor

from .elementwise import elementwise

Orders = frozenset[tuple[int, int]]
Rule = list[tuple[float, float]]


def _unit_rule(count: int) -> Rule:
    """Returns the Gauss-Legendre rule on [0, 1], as pairs of a node and its weight."""
    return [((1 + u) / 2, w / 2) for u, w in zip(*map(list, leggauss(count)), strict=True)]


# The smallest numbers of nodes, by measurement, with a negligible error for all arguments: up to
# the third power, for higher powers, and for integrands that decay slowly.
_LOW_RULE, _HIGH_RULE, _SLOW_RULE = _unit_rule(40), _unit_rule(64), _unit_rule(48)
# Nodes are visited together while their values are at most this many numbers. Together they save
# kernel launches; beyond this number, they would leave the cache and take memory.
_CACHE = 2**16
# Integrands end 38 nats below their peak: exp(-38) is below the rounding error of the sum.
_DROP = 38.0
# A variable counts as constant below this variance, so that 1 / v does not overflow.
_TINY = 1e-200
# h is clamped to this size: exp(-h^2 / 4) is already zero in float64.
_FAR = 1e3
# A pair counts as degenerate beyond this |artanh(rho)|, where sqrt(1 - rho^2) < 1e-12.
_DEGENERATE = 28.0


def _node_chunks(rule: Rule, like: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    # Nodes lead, so that the innermost loop of each kernel runs over the inputs.
    shape = (-1,) + (1,) * like.dim()
    chunk = max(_CACHE // max(int(like.numel()), 1), 1)
    for i in range(0, len(rule), chunk):
        part = torch.tensor(rule[i : i + chunk], dtype=like.dtype, device=like.device)
        yield part[:, 0].reshape(shape), part[:, 1].reshape(shape)


def _natural_power(x: Tensor, n: int) -> Tensor:
    # Repeated squaring is several times faster than pow on a tensor.
    if n == 1:
        return x
    half = _natural_power(x, n // 2)
    return half * half * x if n % 2 else half * half


def _pdf(h: Tensor) -> Tensor:
    return torch.exp(-h * h / 2) / math.sqrt(2 * math.pi)


def _cdf(h: Tensor) -> Tensor:
    return torch.erfc(-h / math.sqrt(2)) / 2


def _sign(x: Tensor) -> Tensor:
    return torch.where(x < 0, -1.0, 1.0).to(x)


def _clamp(h: Tensor) -> Tensor:
    return torch.clamp(h, -_FAR, _FAR)


def _standardise(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Returns h = m / s and s, both with finite gradients where v = 0."""
    random = v > _TINY
    s = torch.sqrt(torch.where(random, v, 1.0))
    h = torch.where(random, m / s, torch.where(m > 0, _FAR, -_FAR))
    return _clamp(h), torch.where(random, s, 0.0)


# One variable


def _laplace_moments(k: int, y: Tensor) -> list[Tensor]:
    # M_j = ∫ r^j exp(-r^2/2 - ry) dr over r > 0, for j = 0 to k and y >= 0: parabolic cylinder
    # functions (DLMF 12.5.1). M_{j+1} = j M_{j-1} - y M_j (12.8.1) cancels upwards and is stable
    # downwards, so only the top two are integrated.

    # The integrand peaks at r. At r + d it is _DROP nats below its peak.
    r = 2 * k / (y + torch.sqrt(y * y + 4 * k))
    ratio = _DROP / k
    d = r * (ratio + math.sqrt(ratio * (ratio + 2)))
    end = r + torch.clamp(d, max=math.sqrt(2 * _DROP))
    high, low = torch.zeros_like(y), torch.zeros_like(y)
    for u, w in _node_chunks(_HIGH_RULE if k > 3 else _LOW_RULE, y):
        t = end * u
        term = w * torch.exp(-t * (t / 2 + y)) * t ** (k - 1)
        low = low + term.sum(0)
        high = high + (term * t).sum(0)
    moments = [end * high, end * low]
    for j in range(k - 1, 0, -1):
        moments.append((moments[-2] + y * moments[-1]) / j)
    return moments[::-1]


def _half_normal_partials(k: int, m: Tensor, v: Tensor) -> list[tuple[Tensor, Tensor]]:
    # ∂e_j/∂m = j e_{j-1} and ∂e_j/∂v = j (j-1) e_{j-2} / 2. For j = 0 and 1, the density of z at
    # zero and its slope stand in for moments of negative order.
    h, s = _standardise(m, v)
    s = torch.where(s > 0, s, 1.0)  # h is so far out where s = 0 that its density is zero
    density = _pdf(h) / s
    e = half_normal_moments(k - 1, m, v) if k > 0 else ()
    rows = [(density, -h * density / (2 * s)), *((x, density / 2) for x in e[:1])]
    return rows + [(j * e[j - 1], j * (j - 1) / 2 * e[j - 2]) for j in range(2, k + 1)]


@elementwise(_half_normal_partials)
def half_normal_moments(k: int, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    r"""Returns moments of the positive part of a Gaussian variable, from order 0 to k.

    .. math:: e_j(m, v) = \mathbb{E} [ (z)_+^j ] \qquad z \sim \mathcal{N}(m, v)

    where :math:`(z)_+^0 = 1` if :math:`z > 0` and 0 otherwise. However far :math:`m` lies below
    zero, the relative error is small, unless the moment underflows.

    Arguments:
        k: The highest order, a natural number.
        m: The mean.
        v: The variance, of the same shape, which may be zero.
    """
    h, s = _standardise(m, v)
    if k == 0:
        return (_cdf(h),)

    # For m > 0 every term of the upward recursion is positive. It is exact at v = 0.
    right = [_cdf(h), m * _cdf(h) + s * _pdf(h)]
    for j in range(2, k + 1):
        right.append(m * right[-1] + (j - 1) * v * right[-2])
    scale, left = _pdf(h), right[:1]
    for moment in _laplace_moments(k, torch.clamp(-h, min=0.0))[1:]:
        scale = scale * s
        left.append(scale * moment)
    return tuple(torch.where(h > 0, a, b) for a, b in zip(right, left, strict=True))


# Two variables


def _rapidity_slope(_: None, rho: Tensor, x: Tensor) -> list[tuple[Tensor]]:
    (x,) = _rapidity(None, rho, x)
    slope = torch.cosh(torch.clamp(x, -_DEGENERATE, _DEGENERATE)).square()
    return [(torch.where(x.abs() < _DEGENERATE, slope, 0.0),)]


@elementwise(_rapidity_slope)
def _rapidity(_: None, rho: Tensor, x: Tensor) -> tuple[Tensor]:
    """Returns x, the precise artanh of rho, as a function of rho with the slope cosh(x)^2."""
    return (x.clone(),)


def _boundary(k: int, h1: Tensor, h2: Tensor, x: Tensor) -> Tensor:
    # The bivariate density times exp(2kx), which counts as zero for a degenerate pair.
    inside = x.abs() < _DEGENERATE
    x = torch.where(inside, x, 0.0)
    exponent = (h1 * h1 + h2 * h2) / 4 - 2 * k * x
    exponent = exponent + (h1 - h2).square() * torch.exp(2 * x) / 8
    exponent = exponent + (h1 + h2).square() * torch.exp(-2 * x) / 8
    return torch.where(inside, torch.cosh(x) * torch.exp(-exponent) / (2 * math.pi), 0.0)


def _conditional_cdf(h1: Tensor, h2: Tensor, x: Tensor) -> Tensor:
    # Phi((h2 - rho h1) / sqrt(1 - rho^2)), without the cancellation in either difference.
    sign, size = _sign(x), x.abs()
    h = (h2 - sign * h1) * torch.cosh(size) + sign * h1 * torch.exp(-size)

    # For a degenerate pair this is a step in h2 - h1, and counts as constant. Otherwise its slopes
    # by h1 and h2, of size cosh(x), would swamp all other terms when they cancel for h1 = h2.
    return _cdf(torch.where(size < _DEGENERATE, h, h.detach()))


def _pair_partials(
    orders: Orders, h1: Tensor, h2: Tensor, rho: Tensor, x: Tensor
) -> list[tuple[Tensor, Tensor, Tensor]]:
    # ∂S_pk/∂h1 = -h1 S_pk / 2 - (h1 - h2) S_{p,k+1} / 4 - (h1 + h2) S_{p,k-1} / 4, in closed form
    # for S_00 (Drezner & Wesolowsky 1990). ∂S_pk/∂rho = p S_{p-1,k}, or the integrand for p = 0.
    shifted = {(p, k + i) for p, k in orders for i in (-1, 0, 1) if (p, k) != (0, 0)}
    needed = frozenset(shifted | {(p - 1, k) for p, k in orders if p > 0})
    sums = _pair_integrals(needed, h1, h2, rho, x) if needed else ()
    family = dict(zip(sorted(needed), sums, strict=True))
    (end,) = _rapidity(None, rho, x)
    rows = []
    for p, k in sorted(orders):
        if (p, k) == (0, 0):
            d1 = _pdf(h1) * (_conditional_cdf(h1, h2, end) - _cdf(h2))
            d2 = _pdf(h2) * (_conditional_cdf(h2, h1, end) - _cdf(h1))
        else:
            rise = (h1 - h2) * family[p, k + 1] / 4
            fall = (h1 + h2) * family[p, k - 1] / 4
            d1 = -h1 * family[p, k] / 2 - rise - fall
            d2 = -h2 * family[p, k] / 2 + rise - fall
        rows.append((d1, d2, p * family[p - 1, k] if p else _boundary(k, h1, h2, end)))
    return rows


@elementwise(_pair_partials)
def _pair_integrals(
    orders: Orders, h1: Tensor, h2: Tensor, rho: Tensor, x: Tensor
) -> tuple[Tensor, ...]:
    # S_pk = ∫ (rho - t)^p ((1 + t) / (1 - t))^k φ_2(h1, h2; t) dt from 0 to rho, for Price's
    # theorem, in ascending order of (p, k). With t = tanh τ, φ_2 dt is
    #   sech(τ) / 2π exp(-(h1^2 + h2^2) / 4 - (h1 - h2)^2 e^{2τ} / 8 - (h1 + h2)^2 e^{-2τ} / 8) dτ,
    # without a boundary layer at |rho| = 1. The family is closed under differentiation. The upper
    # end is given twice: rho gets the gradient, and x is its precise artanh.
    sign, end = _sign(x), x.abs()

    # For rho < 0, t and h2 change sign, so that t runs from 0 to end. The integrand is
    # exp(-rise * exp(2t) - fall * exp(-2t)) * sech(t) * (tanh(end) - tanh(t))^p * exp(2kt).
    rise = (h1 - sign * h2).square() / 8
    fall = (h1 + sign * h2).square() / 8

    # Keep the stretch in which the exponent stays within `drop` of its least value. Far from this
    # value the integrand falls like y^p exp(-y), where y is the rise of the exponent. It peaks at
    # y = p, and is _DROP nats below its peak at y = drop.
    top_power = max(p for p, _ in orders)
    drop = _DROP + top_power + math.sqrt(2 * _DROP * top_power)
    a, b = torch.clamp(rise, min=1e-300), torch.clamp(fall, min=1e-300)
    top = torch.minimum(torch.clamp(torch.log(b / a) / 4, min=0.0), end)
    level = a * torch.exp(2 * top) + b * torch.exp(-2 * top) + drop
    level = level + torch.sqrt(torch.clamp(level * level - 4 * a * b, min=0.0))
    start = torch.minimum(torch.clamp(torch.log(2 * b / level) / 2, min=0.0), end)
    decay = max(min(2 * p + 1 - 2 * max(k, 0) for p, k in orders), 1)
    stop = torch.minimum(torch.log(level / (2 * a)) / 2, start + _DROP / decay + 2)
    stop = torch.maximum(torch.minimum(stop, end), start)

    # The integrand falls like exp(-decay t), so nodes thin out like exp(-t / grade).
    grade = max(math.ceil(10 / decay), 1)
    width = (stop - start) / grade
    share = -torch.expm1(-width)
    floor = torch.exp(-2 * end)
    first = torch.exp(-start)
    del a, b, top, level, stop, end
    rule = _HIGH_RULE if top_power > 3 else _LOW_RULE if decay > 1 else _SLOW_RULE
    sums = {order: torch.zeros_like(width) for order in sorted(orders)}
    for u, w in _node_chunks(rule, width):
        thin = (share * u).neg_().add_(1)
        root = first * _natural_power(thin, grade)  # exp(-t)
        e = root * root
        shape = root / (1 + e)  # sech(t) / 2
        term = (fall * e).add_(rise / e).neg_().exp_().mul_(shape).mul_(w).div_(thin)
        # (tanh(end) - tanh(t)) / ratio and exp(2t), up to the sign of t, where needed.
        difference = (e - floor).div_(1 + e) if top_power > 0 else e
        tilt = torch.where(sign > 0, 1 / e, e) if any(k for _, k in sums) else e
        previous = 0
        for p, k in sums:
            if p > previous:
                term = term * _natural_power(difference, p - previous)
                previous = p
            part = term * (tilt if k == 1 else tilt**k) if k else term
            sums[p, k] = sums[p, k] + part.sum(0)
    scale = share * torch.exp(-(h1 * h1 + h2 * h2) / 4) * (grade / math.pi)
    ratio = 2 / (1 + floor)
    return tuple(sums[p, k] * scale * (sign ** (p + 1) * ratio**p) for p, k in sums)


def _price_remainder(p: int, h1: Tensor, h2: Tensor, rho: Tensor, x: Tensor) -> Tensor:
    # ∫ (rho - t)^p φ_2(h1, h2; t) dt from 0 to rho, where x = artanh(rho).
    (integral,) = _pair_integrals(frozenset({(p, 0)}), *torch.broadcast_tensors(h1, h2, rho, x))
    return integral


def _artanh(rho: Tensor, angle: Tensor) -> Tensor:
    """Returns artanh(rho) with a small relative error for every rho = cos(angle)."""
    rho, angle = rho.detach(), angle.detach()
    near = torch.atanh(torch.clamp(rho, -0.5, 0.5))
    far = -torch.log(torch.tan(torch.clamp(angle, min=1e-130) / 2))
    return torch.where(rho.abs() < 0.5, near, far)


def relu_moment(
    power: int, m1: Tensor, m2: Tensor, v1: Tensor, v2: Tensor, c: Tensor, angle: Tensor
) -> Tensor:
    r"""Returns the product moment of powers of two rectified Gaussian variables.

    .. math:: \mathbb{E} [ (z_1)_+^p (z_2)_+^p ] = \sum_{k=0}^p k! \binom{p}{k}^2 c^k \,
        e_{p-k}(m_1, v_1) \, e_{p-k}(m_2, v_2)
        + p! \, (s_1 s_2)^p \int_0^\rho (\rho - t)^p \phi_2(h_1, h_2; t) \, dt

    This is Taylor's formula in :math:`c`, by Price's theorem, with :math:`e_k` from
    :func:`half_normal_moments`. For :math:`\rho \geq 0` every term is positive. For zero means it
    is an arc-cosine kernel (Cho & Saul, arXiv:1112.3712).

    Arguments:
        power: The power :math:`p`, a natural number. 0 is the unit step, with step(0) = 0.
        m1, m2, v1, v2, c, angle: The law of the pair.
    """
    h1, s1 = _standardise(m1, v1)
    h2, s2 = _standardise(m2, v2)
    e1 = half_normal_moments(power, *torch.broadcast_tensors(m1, v1))
    e2 = half_normal_moments(power, *torch.broadcast_tensors(m2, v2))
    scale = s1 * s2
    random = scale > 0
    rho = torch.where(random, c / torch.where(random, scale, 1.0), 0.0)
    x = torch.where(random, _artanh(rho, angle), 0.0)

    # Factorials become floats here: a tensor takes no integer above 2^63.
    total = float(math.factorial(power)) * _price_remainder(power, h1, h2, rho, x)
    if power > 0:
        total = total * scale**power
    for k in range(power, -1, -1):
        term = float(math.comb(power, k) * math.perm(power, k)) * e1[power - k] * e2[power - k]
        total = total + (term * c**k if k else term)

    # For opposite weights the sum is a difference, and rounding may push it below zero. A clamp
    # would take its gradient there, too.
    return total - total.detach().clamp(max=0.0)


def leaky_relu_moment(
    slope: float | Tensor,
    m1: Tensor,
    m2: Tensor,
    v1: Tensor,
    v2: Tensor,
    c: Tensor,
    angle: Tensor,
) -> Tensor:
    r"""Returns the product moment of two leaky rectified Gaussian variables.

    .. math:: \sigma(z) = a z + (1 - a) (z)_+ \qquad
        \mathbb{E} [ z_1 (z_2)_+ ] = m_1 e_1(m_2, v_2) + c \, \Phi(h_2)

    For zero means: Tsuchida, Roosta & Gallagher (arXiv:1711.09090).

    Arguments:
        slope: The slope :math:`a` below zero.
        m1, m2, v1, v2, c, angle: The law of the pair.
    """
    p1, e1 = half_normal_moments(1, *torch.broadcast_tensors(m1, v1))
    p2, e2 = half_normal_moments(1, *torch.broadcast_tensors(m2, v2))
    linear = m1 * m2 + c
    mixed = m1 * e2 + m2 * e1 + c * (p1 + p2)
    rectified = relu_moment(1, m1, m2, v1, v2, c, angle)
    return slope**2 * linear + slope * (1 - slope) * mixed + (1 - slope) ** 2 * rectified


def _gram_determinant(v1: Tensor, v2: Tensor, c: Tensor, angle: Tensor) -> Tensor:
    # v1 v2 - c^2: the value from the angle, since the difference cancels for parallel weights, and
    # the gradient from the difference.
    sine = torch.where((v1 > 0) & (v2 > 0), torch.sin(angle), 0.0)
    value = (v1 * v2 * sine.square()).detach()
    plain = v1 * v2 - c * c
    return value + (plain - plain.detach())


def erf_moment(m1: Tensor, m2: Tensor, v1: Tensor, v2: Tensor, c: Tensor, angle: Tensor) -> Tensor:
    r"""Returns the product moment of the error functions of two Gaussian variables.

    .. math:: \mathbb{E} [ \operatorname{erf}(z_1) \operatorname{erf}(z_2) ] =
        \operatorname{erf}(m_1 / t_1) \operatorname{erf}(m_2 / t_2)
        + 4 \int_0^r \phi_2(\alpha_1, \alpha_2; t) \, dt

    where :math:`t_k = \sqrt{1 + 2 v_k}`, :math:`\alpha_k = \sqrt{2} m_k / t_k` and
    :math:`r = 2 c / (t_1 t_2)`. For zero means it is :math:`\frac{2}{\pi} \arcsin r` (Williams
    1998).

    Arguments:
        m1, m2, v1, v2, c, angle: The law of the pair.
    """
    t1, t2 = torch.sqrt(1 + 2 * v1), torch.sqrt(1 + 2 * v2)
    a1, a2 = m1 / t1, m2 / t2
    h1, h2 = _clamp(math.sqrt(2) * a1), _clamp(math.sqrt(2) * a2)
    root = torch.sqrt(1 + 2 * (v1 + v2) + 4 * _gram_determinant(v1, v2, c, angle))
    x = torch.asinh(2 * c / root).detach()
    return torch.erf(a1) * torch.erf(a2) + 4 * _price_remainder(0, h1, h2, 2 * c / (t1 * t2), x)


def gelu_moment(m1: Tensor, m2: Tensor, v1: Tensor, v2: Tensor, c: Tensor, angle: Tensor) -> Tensor:
    r"""Returns the product moment of :math:`\sigma(z) = z \Phi(z)` at two Gaussian variables.

    .. math::
        \mathbb{E} [ \sigma(z_1) \sigma(z_2) ] = m_1 (m_2 Q + v_2 F_2 + c F_1)
        + v_1 \left( \left( m_2 - \frac{c \, m_1}{t_1^2} \right) F_1
        + \frac{v_2 + v_1 v_2 - c^2}{t_1^2} f \right)
        + c \left( Q + \frac{m_2 F_2}{t_2^2} + \frac{c f}{t_2^2} \right)

    where :math:`t_k = \sqrt{1 + v_k}`, :math:`\alpha_k = m_k / t_k`,
    :math:`r = c / (t_1 t_2)`, :math:`Q = \Phi_2(\alpha_1, \alpha_2; r)`,
    :math:`f = \phi_2(\alpha_1, \alpha_2; r) / (t_1 t_2)`, and
    :math:`F_1 = \phi(\alpha_1) / t_1 \cdot \Phi((\alpha_2 - r \alpha_1) / \sqrt{1 - r^2})`,
    :math:`F_2` likewise. For zero means: Tsuchida, Pearce, van der Heide, Roosta & Gallagher
    (arXiv:2002.08517).

    Arguments:
        m1, m2, v1, v2, c, angle: The law of the pair.
    """
    u1, u2 = 1 + v1, 1 + v2
    t1, t2 = torch.sqrt(u1), torch.sqrt(u2)
    h1, h2 = _clamp(m1 / t1), _clamp(m2 / t2)
    gram = _gram_determinant(v1, v2, c, angle)
    det = 1 + v1 + v2 + gram
    root = torch.sqrt(det)
    x = torch.asinh(c / root).detach()
    q = _cdf(h1) * _cdf(h2) + _price_remainder(0, h1, h2, c / (t1 * t2), x)
    f1 = _pdf(h1) / t1 * _cdf((m2 * u1 - c * m1) / (t1 * root))
    f2 = _pdf(h2) / t2 * _cdf((m1 * u2 - c * m2) / (t2 * root))
    distance = (u2 * m1.square() - 2 * c * m1 * m2 + u1 * m2.square()) / det
    f = torch.exp(-distance / 2) / (2 * math.pi * root)
    first = m1 * (m2 * q + v2 * f2 + c * f1)
    second = v1 * ((m2 - c * m1 / u1) * f1 + (v2 + gram) / u1 * f)
    third = c * (q + (m2 * f2 + c * f) / u2)
    return first + second + third


# Bumps


def bump_moment(m1: Tensor, m2: Tensor, v1: Tensor, v2: Tensor, c: Tensor, angle: Tensor) -> Tensor:
    r"""Computes :math:`\mathbb{E} [e^{-z_1^2 / 2} e^{-z_2^2 / 2}]`.

    .. math:: \frac{1}{\sqrt{t q}} \exp\left( -\frac{m_1^2}{2 t} - \frac{(m_2 - r m_1)^2}{2 q}
        \right), \quad t = 1 + v_1, \quad r = \frac{c}{t}, \quad q = 1 + v_2 - r c

    It is a Gaussian integral, over :math:`z_2` given :math:`z_1` and then over :math:`z_1`. Where
    variances are large, :math:`q` is a difference of large numbers. The angle gives its value:
    :math:`q = 1 + v_2 (1 + v_1 \sin^2 \theta) / t`.
    """
    t = 1 + v1
    r = c / t
    exact = 1 + v2 * (1 + v1 * angle.sin().square()) / t
    q = _with_value(1 + v2 - r * c, exact)
    exponent = m1.square() / t + (m2 - r * m1).square() / q
    return (t * q).rsqrt() * (-0.5 * exponent).exp()


def _with_value(x: Tensor, value: Tensor) -> Tensor:
    # The derivatives of one expression, at the value of another that is the same number.
    return x + (value - x).detach()
