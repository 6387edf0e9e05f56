r"""Moments of rectified and sigmoidal functions of two correlated Gaussian variables."""

__all__ = [
    "bivariate_cdf",
    "erf_moment",
    "gelu_moment",
    "half_normal_moment",
    "leaky_relu_moment",
    "relu_moment",
]

import math
from collections.abc import Iterator
from typing import Any

import torch
from numpy.polynomial.legendre import leggauss
from torch import Tensor

Order = tuple[int, int]


def _unit_rule(count: int) -> tuple[tuple[float, float], ...]:
    nodes, weights = leggauss(count)

    return tuple((float(1 + u) / 2, float(w) / 2) for u, w in zip(nodes, weights, strict=True))


# Measured, the smallest numbers of nodes whose error is negligible wherever the arguments are.
_LONG_RULE = _unit_rule(48)
_SHORT_RULE = _unit_rule(40)
_HALF_RULE = _unit_rule(40)
# Nodes are visited together while their values fit in a cache, which saves kernel launches, and
# one by one otherwise, so that memory is a small multiple of the inputs.
_CHUNK, _CACHE = 8, 2**16
# Nats after which an integrand is dropped: exp(-38) is below the rounding of its sum.
_DROP = 38.0
# Below this variance a variable counts as constant: 1 / v must not overflow.
_TINY = 1e-200
# |h| beyond which exp(-h^2 / 4) is zero in float64, whatever the rest is.
_FAR = 1e3
# |artanh(rho)| beyond which sqrt(1 - rho^2) < 1e-12 and the pair counts as degenerate.
_DEGENERATE = 28.0


def _node_chunks(
    rule: tuple[tuple[float, float], ...], like: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    # Nodes lead, so that the innermost loop of each kernel runs over the inputs.
    shape = (-1,) + (1,) * like.dim()

    chunk = min(max(_CACHE // max(int(like.numel()), 1), 1), _CHUNK)

    for i in range(0, len(rule), chunk):
        part = torch.tensor(rule[i : i + chunk], dtype=like.dtype, device=like.device)
        yield part[:, 0].reshape(shape), part[:, 1].reshape(shape)


def _natural_power(x: Tensor, n: int) -> Tensor:
    # Repeated squaring: several times faster than pow on a tensor.
    if n == 1:
        return x
    half = _natural_power(x, n // 2)

    return half * half * x if n % 2 else half * half


def _pdf(h: Tensor) -> Tensor:
    return torch.exp(-h * h / 2) / math.sqrt(2 * math.pi)


def _cdf(h: Tensor) -> Tensor:
    return torch.erfc(-h / math.sqrt(2)) / 2


def _standardise(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Returns h = m / s and s, both with finite gradients where v = 0."""

    random = v > _TINY
    s = torch.sqrt(torch.where(random, v, 1.0))
    h = torch.where(random, m / s, torch.where(m > 0, _FAR, -_FAR))

    return torch.clamp(h, -_FAR, _FAR), torch.where(random, s, 0.0)


# One variable


def _laplace_moments(k: int, y: Tensor) -> list[Tensor]:
    r"""Returns :math:`\int_0^\infty r^j \exp(-r^2/2 - ry) dr` for j = 0 to k, where y >= 0.

    The recursion :math:`M_{j+1} = j M_{j-1} - y M_j` cancels upwards, not downwards: only
    the top two are integrated.
    """

    # The integrand peaks at r, and has lost _DROP nats of its height at r + d.
    r = 2 * k / (y + torch.sqrt(y * y + 4 * k))
    ratio = _DROP / max(k, 1)
    d = r * (ratio + math.sqrt(ratio * (ratio + 2)))
    d = torch.clamp(d, max=math.sqrt(2 * _DROP))
    if k == 0:
        d = 2 * _DROP / (y + torch.sqrt(y * y + 2 * _DROP))

    end = r + d
    high, low = torch.zeros_like(y), torch.zeros_like(y)
    for u, w in _node_chunks(_HALF_RULE, y):
        t = end * u
        term = w * torch.exp(-t * (t / 2 + y))
        term = term * t ** max(k - 1, 0)
        low = low + term.sum(0)
        high = high + (term * t).sum(0)

    if k == 0:
        return [end * low]

    moments = [end * high, end * low]
    for j in range(k - 1, 0, -1):
        moments.append((moments[-2] + y * moments[-1]) / j)

    return moments[::-1]


def _half_normal_values(k: int, m: Tensor, v: Tensor) -> list[Tensor]:
    h, s = _standardise(m, v)

    # Upward recursion: every term is positive for m > 0, and exact at v = 0.
    right = [_cdf(h)]
    if k > 0:
        right.append(m * right[0] + s * _pdf(h))
    for j in range(2, k + 1):
        right.append(m * right[-1] + (j - 1) * v * right[-2])

    if k == 0:
        return right

    scale = _pdf(h)
    left = [right[0]]
    for moment in _laplace_moments(k, torch.clamp(-h, min=0.0))[1:]:
        scale = scale * s
        left.append(scale * moment)

    return [torch.where(h > 0, a, b) for a, b in zip(right, left, strict=True)]


class _HalfNormal(torch.autograd.Function):
    r"""Moments :math:`e_0, \dots, e_k`, differentiated through each other.

    .. math:: \partial_m e_j = j e_{j-1} \qquad \partial_v e_j = \tfrac{1}{2} j (j-1) e_{j-2}
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(k: int, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return tuple(_half_normal_values(k, m, v))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, m, v = inputs
        ctx.save_for_backward(m, v, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        m, v, *e = ctx.saved_tensors
        h, s = _standardise(m, v)
        random = v > _TINY
        # e_{-1} and e_{-2} in the sense of distributions: the density at zero, and its slope.
        density = torch.where(random, _pdf(h) / torch.where(random, s, 1.0), 0.0)
        slope = torch.where(random, -h * density / (2 * torch.where(random, s, 1.0)), 0.0)

        grad_m, grad_v = grads[0] * density, grads[0] * slope
        for j, grad in enumerate(grads[1:], start=1):
            grad_m = grad_m + grad * j * e[j - 1]
            curvature = density / 2 if j == 1 else j * (j - 1) / 2 * e[j - 2]
            grad_v = grad_v + grad * curvature

        return None, grad_m, grad_v


def _half_normal_moments(k: int, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return _HalfNormal.apply(k, *torch.broadcast_tensors(m, v))


def half_normal_moment(k: int, m: Tensor, v: Tensor) -> Tensor:
    r"""Returns a moment of the positive part of a Gaussian variable.

    .. math:: e_k(m, v) = \mathbb{E} [ (z)_+^k ] \qquad z \sim \mathcal{N}(m, v)

    where :math:`(z)_+^0 = 1` if :math:`z > 0` and 0 otherwise. The relative error is small
    however far :math:`m` lies below zero, as long as the moment does not underflow.

    Arguments:
        k: The order of the moment, a natural number.
        m: The mean, broadcastable with `v`.
        v: The variance, which may be zero.
    """

    return _half_normal_moments(k, m, v)[k]


# Two variables


def _pair_sums(orders: tuple[Order, ...], h1: Tensor, h2: Tensor, x: Tensor) -> list[Tensor]:
    sign = torch.where(x < 0, -1.0, 1.0).to(x)
    end = x.abs()

    # The integrand is exp(-rise * exp(2t) - fall * exp(-2t)) times sech(t), a power of
    # tanh(end) - tanh(t) and exp(2kt), all up to the sign of rho; t runs from 0 to end.
    rise = (h1 - sign * h2).square() / 8
    fall = (h1 + sign * h2).square() / 8

    # Keep the stretch in which the exponent stays within _DROP of its least value.
    a, b = torch.clamp(rise, min=1e-300), torch.clamp(fall, min=1e-300)
    top = torch.minimum(torch.clamp(torch.log(b / a) / 4, min=0.0), end)
    level = a * torch.exp(2 * top) + b * torch.exp(-2 * top) + _DROP
    level = level + torch.sqrt(torch.clamp(level * level - 4 * a * b, min=0.0))
    start = torch.clamp(torch.log(2 * b / level) / 2, min=0.0)
    start = torch.minimum(start, end)
    decay = max(min(2 * p + 1 - 2 * max(k, 0) for p, k in orders), 1)
    stop = torch.minimum(torch.log(level / (2 * a)) / 2, start + _DROP / decay + 2)
    stop = torch.maximum(torch.minimum(stop, end), start)

    # Nodes thin out like exp(-t / grade), because what they resolve shrinks like exp(-decay t).
    grade = max(math.ceil(10 / decay), 1)
    width = (stop - start) / grade
    share = -torch.expm1(-width)
    floor = torch.exp(-2 * end)
    first = torch.exp(-start)
    del a, b, top, level, stop, end

    powers = sorted({p for p, _ in orders})
    tilted = any(k != 0 for _, k in orders)

    sums = {order: torch.zeros_like(width) for order in orders}
    for u, w in _node_chunks(_LONG_RULE if decay == 1 else _SHORT_RULE, width):
        thin = (share * u).neg_().add_(1)
        root = first * _natural_power(thin, grade)  # exp(-t)
        e = root * root
        shape = root / (1 + e)  # sech(t) / 2
        term = (fall * e).add_(rise / e).neg_().exp_().mul_(shape).mul_(w).div_(thin)
        # Up to a factor, tanh(end) - tanh(t).
        difference = (e - floor).div_(1 + e) if powers[-1] > 0 else e
        tilt = torch.where(sign > 0, 1 / e, e) if tilted else e
        previous = 0
        for p in powers:
            if p > previous:
                term = term * _natural_power(difference, p - previous)
            previous = p
            for k in (k for q, k in orders if q == p):
                part = term if k == 0 else term * (tilt if k == 1 else tilt**k)
                sums[p, k] = sums[p, k] + part.sum(0)

    scale = share * torch.exp(-(h1 * h1 + h2 * h2) / 4) * (grade / math.pi)
    ratio = 2 / (1 + floor)
    return [
        sums[p, k] * scale * (ratio**p if p % 2 else sign * ratio**p) / math.factorial(p)
        for p, k in orders
    ]


class _Rapidity(torch.autograd.Function):
    """Returns x, the precise artanh of rho, and passes its gradient on to rho."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rho: Tensor, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x = _Rapidity.apply(*ctx.saved_tensors)
        inside = x.abs() < _DEGENERATE
        slope = torch.cosh(torch.where(inside, x, 0.0)).square()

        return torch.where(inside, grad * slope, 0.0), None


def _boundary(k: int, h1: Tensor, h2: Tensor, x: Tensor) -> Tensor:
    # The bivariate density times exp(2kx), with the gradient at |rho| = 1 defined as zero.
    inside = x.abs() < _DEGENERATE
    x = torch.where(inside, x, 0.0)
    exponent = (h1 * h1 + h2 * h2) / 4 - 2 * k * x
    exponent = exponent + (h1 - h2).square() * torch.exp(2 * x) / 8
    exponent = exponent + (h1 + h2).square() * torch.exp(-2 * x) / 8

    return torch.where(inside, torch.cosh(x) * torch.exp(-exponent) / (2 * math.pi), 0.0)


def _conditional_cdf(h1: Tensor, h2: Tensor, x: Tensor) -> Tensor:
    # Phi((h2 - rho h1) / sqrt(1 - rho^2)), without the cancellation in either difference.
    sign = torch.where(x < 0, -1.0, 1.0).to(x)
    size = x.abs()

    return _cdf((h2 - sign * h1) * torch.cosh(size) + sign * h1 * torch.exp(-size))


class _PairIntegrals(torch.autograd.Function):
    r"""The family of integrals to which Price's theorem leads, one for each order (p, k).

    .. math:: S_{pk} = \int_0^\rho \frac{(\rho - t)^p}{p!}
        \left( \frac{1 + t}{1 - t} \right)^k \phi_2(h_1, h_2; t) \, dt

    With :math:`t = \tanh \tau` the density becomes

    .. math:: \phi_2 \, dt = \frac{\operatorname{sech} \tau}{2 \pi} \exp \left(
        -\frac{h_1^2 + h_2^2}{4} - \frac{(h_1 - h_2)^2 e^{2 \tau}}{8}
        - \frac{(h_1 + h_2)^2 e^{-2 \tau}}{8} \right) d\tau

    which has no boundary layer at :math:`|\rho| = 1`, and whose derivatives with respect to
    :math:`h_1`, :math:`h_2` and :math:`\rho` are members of the same family. The upper end
    is given twice, as `rho`, which gets the gradient, and as `x`, its precise artanh.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        orders: tuple[Order, ...], h1: Tensor, h2: Tensor, rho: Tensor, x: Tensor
    ) -> tuple[Tensor, ...]:
        return tuple(_pair_sums(orders, h1, h2, x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.orders = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        h1, h2, rho, x = ctx.saved_tensors

        needed: set[Order] = set()
        for p, k in ctx.orders:
            if (p, k) != (0, 0):
                needed |= {(p, k - 1), (p, k), (p, k + 1)}
            if p > 0:
                needed |= {(p - 1, k)}
        names = tuple(sorted(needed))
        sums = _PairIntegrals.apply(names, h1, h2, rho, x) if names else ()
        family = dict(zip(names, sums, strict=True))

        end = _Rapidity.apply(rho, x)
        grad_h1 = grad_h2 = grad_rho = torch.zeros_like(h1)
        for (p, k), grad in zip(ctx.orders, grads, strict=True):
            if (p, k) == (0, 0):
                d1 = _pdf(h1) * (_conditional_cdf(h1, h2, end) - _cdf(h2))
                d2 = _pdf(h2) * (_conditional_cdf(h2, h1, end) - _cdf(h1))
            else:
                rise = (h1 - h2) * family[p, k + 1] / 4
                fall = (h1 + h2) * family[p, k - 1] / 4
                d1 = -h1 * family[p, k] / 2 - rise - fall
                d2 = -h2 * family[p, k] / 2 + rise - fall
            grad_h1 = grad_h1 + grad * d1
            grad_h2 = grad_h2 + grad * d2
            grad_rho = grad_rho + grad * (family[p - 1, k] if p else _boundary(k, h1, h2, end))

        return None, grad_h1, grad_h2, grad_rho, None


def _price_remainder(p: int, h1: Tensor, h2: Tensor, rho: Tensor, x: Tensor) -> Tensor:
    r"""Returns :math:`\int_0^\rho (\rho - t)^p / p! \, \phi_2(h_1, h_2; t) dt`."""

    (integral,) = _PairIntegrals.apply(((p, 0),), *torch.broadcast_tensors(h1, h2, rho, x))

    return integral


def _artanh(rho: Tensor, angle: Tensor) -> Tensor:
    """Returns artanh(rho) with a small relative error, whatever rho = cos(angle) is."""

    rho, angle = rho.detach(), angle.detach()
    near = torch.atanh(torch.clamp(rho, -0.5, 0.5))
    far = -torch.log(torch.tan(torch.clamp(angle, min=1e-130) / 2))

    return torch.where(rho.abs() < 0.5, near, far)


def bivariate_cdf(h1: Tensor, h2: Tensor, rho: Tensor, angle: Tensor) -> Tensor:
    r"""Returns the distribution function of two correlated standard Gaussian variables.

    .. math:: \Phi_2(h_1, h_2; \rho) = \Phi(h_1) \Phi(h_2)
        + \int_0^\rho \phi_2(h_1, h_2; t) \, dt

    Arguments:
        h1: The first upper bound.
        h2: The second upper bound.
        rho: The correlation, which gets the gradient. At :math:`|\rho| = 1`, where the
            function has a kink, this gradient is zero.
        angle: The precise :math:`\arccos \rho`, which gets none.
    """

    h1, h2 = torch.clamp(h1, -_FAR, _FAR), torch.clamp(h2, -_FAR, _FAR)
    total = _cdf(h1) * _cdf(h2) + _price_remainder(0, h1, h2, rho, _artanh(rho, angle))

    return torch.clamp(total, min=0.0)


def relu_moment(
    power: int,
    m1: Tensor,
    m2: Tensor,
    v1: Tensor,
    v2: Tensor,
    c: Tensor,
    angle: Tensor,
) -> Tensor:
    r"""Returns the product moment of two rectified Gaussian variables.

    .. math:: \mathbb{E} [ (z_1)_+^p (z_2)_+^p ] = \sum_{k=0}^p \frac{c^k}{k!}
        \left( \frac{p!}{(p-k)!} \right)^2 e_{p-k}(m_1, v_1) \, e_{p-k}(m_2, v_2)
        + (p!)^2 (s_1 s_2)^p \int_0^\rho \frac{(\rho - t)^p}{p!} \phi_2(h_1, h_2; t) \, dt

    which is Taylor's formula in :math:`c`, by Price's theorem. No two terms cancel for
    :math:`\rho \geq 0`.

    Arguments:
        power: The power :math:`p`, a natural number. 0 is the unit step, with step(0) = 0.
        m1: The first mean.
        m2: The second mean.
        v1: The first variance.
        v2: The second variance.
        c: The covariance.
        angle: The precise :math:`\arccos \rho`, which gets no gradient.
    """

    h1, s1 = _standardise(m1, v1)
    h2, s2 = _standardise(m2, v2)
    e1 = _half_normal_moments(power, m1, v1)
    e2 = _half_normal_moments(power, m2, v2)

    scale = s1 * s2
    random = scale > 0
    rho = torch.where(random, c / torch.where(random, scale, 1.0), 0.0)
    x = torch.where(random, _artanh(rho, angle), 0.0)

    total = math.factorial(power) ** 2 * _price_remainder(power, h1, h2, rho, x)
    if power > 0:
        total = total * scale**power
    for k in range(power, -1, -1):
        factor = math.perm(power, k) ** 2 / math.factorial(k)
        term = factor * e1[power - k] * e2[power - k]
        total = total + (term * c**k if k else term)

    # For opposite weights the sum is a difference, whose rounding may fall below zero.
    return torch.clamp(total, min=0.0)


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

    Arguments:
        slope: The slope :math:`a` below zero.
        m1: The first mean.
        m2: The second mean.
        v1: The first variance.
        v2: The second variance.
        c: The covariance.
        angle: The precise :math:`\arccos \rho`, which gets no gradient.
    """

    p1, e1 = _half_normal_moments(1, m1, v1)
    p2, e2 = _half_normal_moments(1, m2, v2)
    linear = m1 * m2 + c
    mixed = m1 * e2 + m2 * e1 + c * (p1 + p2)
    rectified = relu_moment(1, m1, m2, v1, v2, c, angle)

    return slope**2 * linear + slope * (1 - slope) * mixed + (1 - slope) ** 2 * rectified


def _gram_determinant(v1: Tensor, v2: Tensor, c: Tensor, angle: Tensor) -> Tensor:
    r"""Returns :math:`v_1 v_2 - c^2`.

    The value comes from the angle, since the difference cancels for parallel weights. The
    gradient comes from the difference itself.
    """

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
    :math:`r = 2 c / (t_1 t_2)`.

    Arguments:
        m1: The first mean.
        m2: The second mean.
        v1: The first variance.
        v2: The second variance.
        c: The covariance.
        angle: The precise angle between the two weights, which gets no gradient.
    """

    t1, t2 = torch.sqrt(1 + 2 * v1), torch.sqrt(1 + 2 * v2)
    a1, a2 = m1 / t1, m2 / t2
    h1 = torch.clamp(math.sqrt(2) * a1, -_FAR, _FAR)
    h2 = torch.clamp(math.sqrt(2) * a2, -_FAR, _FAR)
    root = torch.sqrt(1 + 2 * (v1 + v2) + 4 * _gram_determinant(v1, v2, c, angle))
    x = torch.asinh(2 * c / root).detach()

    return torch.erf(a1) * torch.erf(a2) + 4 * _price_remainder(0, h1, h2, 2 * c / (t1 * t2), x)


def gelu_moment(m1: Tensor, m2: Tensor, v1: Tensor, v2: Tensor, c: Tensor, angle: Tensor) -> Tensor:
    r"""Returns the product moment of :math:`\sigma(z) = z \Phi(z)` at two Gaussian variables.

    .. math::
        K = m_1 (m_2 Q + v_2 F_2 + c F_1)
        + v_1 \left( \left( m_2 - \frac{c \, m_1}{t_1^2} \right) F_1
        + \frac{v_2 + v_1 v_2 - c^2}{t_1^2} f \right)
        + c \left( Q + \frac{m_2 F_2}{t_2^2} + \frac{c f}{t_2^2} \right)

    where :math:`t_k = \sqrt{1 + v_k}`, :math:`\alpha_k = m_k / t_k`,
    :math:`r = c / (t_1 t_2)`, :math:`Q = \Phi_2(\alpha_1, \alpha_2; r)`,
    :math:`f = \phi_2(\alpha_1, \alpha_2; r) / (t_1 t_2)`, and
    :math:`F_1 = \phi(\alpha_1) / t_1 \cdot \Phi((\alpha_2 - r \alpha_1) / \sqrt{1 - r^2})`,
    :math:`F_2` likewise.

    Arguments:
        m1: The first mean.
        m2: The second mean.
        v1: The first variance.
        v2: The second variance.
        c: The covariance.
        angle: The precise angle between the two weights, which gets no gradient.
    """

    u1, u2 = 1 + v1, 1 + v2
    t1, t2 = torch.sqrt(u1), torch.sqrt(u2)
    h1, h2 = torch.clamp(m1 / t1, -_FAR, _FAR), torch.clamp(m2 / t2, -_FAR, _FAR)
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
