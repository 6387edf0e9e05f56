r"""The Matérn function of any order: the characteristic function of Student's law.

.. math:: \mathcal{M}_p(s) = \frac{2^{1 - p}}{\Gamma(p)} s^p K_p(s)
    = \frac{1}{\Gamma(p)} \int_{-\infty}^\infty e^{p y - e^y - s^2 e^{-y} / 4} \, dy

The integral (DLMF 10.32.10) is taken by the trapezoidal rule. Its integrand is analytic in
:math:`|\Im y| < \pi / 2`, so that the error of a step :math:`h` is about :math:`e^{-\pi^2 / h}`
(Trefethen and Weideman 2014, "The exponentially convergent trapezoidal rule").
"""

__all__ = ["log_gamma_ratio", "matern", "matern_deficit"]

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_NODES = 192
_LONG = 256  # for integrands that decay slowly on the left
_DROP = 36.0  # e^{-36} is 2e-16: where the integrand has become negligible
_CHUNK = 2**14  # values whose nodes are held at once


def matern(order: Tensor, square: Tensor) -> Tensor:
    r"""The function :math:`\mathcal{M}_p`, differentiable in :math:`p` and :math:`s^2`.

    A function of :math:`s` would have the gradient NaN at zero.

    Arguments:
        order: The order :math:`p > 0`.
        square: The square :math:`s^2 \geq 0`, broadcastable with the order.
    """
    order, square = torch.broadcast_tensors(order, square)
    return _Integral.apply(order, square / 4, 0, 0)


def matern_deficit(order: Tensor, square: Tensor) -> Tensor:
    r"""The difference :math:`1 - \mathcal{M}_p`, with a small relative error for small :math:`s`.

    .. math:: 1 - \mathcal{M}_p(s) = \frac{1}{\Gamma(p)} \int_{-\infty}^\infty
        e^{p y - e^y} \left( 1 - e^{-s^2 e^{-y} / 4} \right) dy

    Arguments:
        order: The order :math:`p > 0`.
        square: The square :math:`s^2 \geq 0`, broadcastable with the order.

    Example:
        >>> matern_deficit(*(torch.tensor(x, dtype=torch.float64) for x in (2.0, 4e-20)))
        tensor(1.0000e-20, dtype=torch.float64)
    """
    order, square = torch.broadcast_tensors(order, square)
    return _Deficit.apply(order, square / 4, 0)


def log_gamma_ratio(x: Tensor, shift: float) -> Tensor:
    r"""The logarithm of :math:`\Gamma(x + a) / \Gamma(x)`, without cancellation for large x.

    Arguments:
        x: The argument :math:`x > 0`.
        shift: The shift :math:`a > 0`.
    """
    moved = x + shift
    powers = x * (shift / x).log1p() + shift * moved.log() - shift
    return powers + _stirling(x) - _stirling(moved)


class _Integral(Function):
    # ∫ (y - ψ(p))^k e^{(p - j) y - e^y - z e^{-y}} dy / Γ(p): derivatives are of the same kind.
    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, z: Tensor, j: int, k: int) -> Tensor:
        if p.numel() <= _CHUNK:
            return _integral(p, z, j, k)
        pieces = zip(p.reshape(-1).split(_CHUNK), z.reshape(-1).split(_CHUNK), strict=True)
        return torch.cat([_integral(a, b, j, k) for a, b in pieces]).reshape(p.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        p, z, *ctx.powers = inputs
        ctx.save_for_backward(p, z)
        ctx.save_for_forward(p, z)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,), arguments = gradients, (*ctx.saved_tensors, *ctx.powers)
        by_p, by_z, *_ = ctx.needs_input_grad
        return (
            gradient * _by_order(*arguments) if by_p else None,
            gradient * _by_square(*arguments) if by_z else None,
            None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        arguments = (*ctx.saved_tensors, *ctx.powers)
        by_p, by_z, *_ = tangents
        return by_p * _by_order(*arguments) + by_z * _by_square(*arguments)


class _Deficit(Function):
    # ∫ (y - ψ(p))^k e^{p y - e^y} (1 - e^{-z e^{-y}}) dy / Γ(p).
    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, z: Tensor, k: int) -> Tensor:
        if p.numel() <= _CHUNK:
            return _deficit(p, z, k)
        pieces = zip(p.reshape(-1).split(_CHUNK), z.reshape(-1).split(_CHUNK), strict=True)
        return torch.cat([_deficit(a, b, k) for a, b in pieces]).reshape(p.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        p, z, ctx.power = inputs
        ctx.save_for_backward(p, z)
        ctx.save_for_forward(p, z)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,), (p, z), k = gradients, ctx.saved_tensors, ctx.power
        by_p, by_z, _ = ctx.needs_input_grad
        return (
            gradient * _deficit_by_order(p, z, k) if by_p else None,
            gradient * _Integral.apply(p, z, 1, k) if by_z else None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        (p, z), k = ctx.saved_tensors, ctx.power
        by_p, by_z, _ = tangents
        return by_p * _deficit_by_order(p, z, k) + by_z * _Integral.apply(p, z, 1, k)


def _deficit_by_order(p: Tensor, z: Tensor, k: int) -> Tensor:
    slope = _Deficit.apply(p, z, k + 1)
    return slope - k * torch.polygamma(1, p) * _Deficit.apply(p, z, k - 1) if k else slope


def _deficit(p: Tensor, z: Tensor, k: int) -> Tensor:
    # The integrand is e^{p y} below log z, and above z e^{(p - 1) y - e^y}, as long as that grows.
    bend = z.clamp(min=1e-290).log()
    peak = (p - 1).clamp(min=0.1).log()
    low = torch.minimum(bend, peak) - _DROP / p
    steep = peak - _reach(_DROP / (p - 1).clamp(min=1e-3))
    low = torch.where(p > 1, torch.maximum(steep, low), low)
    high = p.log() + _short_reach((_DROP + 4) / p)
    # Where it is not small, or its tails are too long, one less the other integral serves.
    error = (-(math.pi**2) * (_LONG - 1) / (high - low)).exp()
    size = (bend * p.clamp(max=1.0)).exp() / p.clamp(min=1.0)
    large = (size > 0.05) | (error * size > 1e-16)
    alpha, beta = _peak(p, z)
    left, right = _reaches(alpha, beta)
    low = torch.where(large, alpha.log() - left, low)
    high = torch.where(large, alpha.log() + right, high)
    share = torch.linspace(0, 1, _LONG, dtype=z.dtype, device=z.device)
    y = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * share
    # With t = y - log p, p y - e^y - log Γ(p) is -p (e^t - 1 - t) + p log p - p - log Γ(p).
    t = y - p.log().unsqueeze(-1)
    exponent = -p.unsqueeze(-1) * (t.expm1() - t) + _stirling(p).unsqueeze(-1)
    decay = (bend.unsqueeze(-1) - y).clamp(max=60.0).exp()
    terms = exponent.exp() * torch.where(large.unsqueeze(-1), (-decay).exp(), -(-decay).expm1())
    if k:
        terms = terms * (y - torch.digamma(p).unsqueeze(-1)).pow(k)
    value = terms.sum(-1) * (high - low) / (_LONG - 1)
    # The integral of (y - ψ(p))^k e^{p y - e^y} / Γ(p), of which the other one is taken.
    value = torch.where(large, _whole(p, k) - value, value)
    return torch.where(z > 0, value, torch.zeros_like(value))


def _whole(p: Tensor, k: int) -> Tensor:
    # Central moments of the logarithm of a gamma variable, from cumulants ψ^(j - 1)(p).
    moments = [torch.ones_like(p), torch.zeros_like(p)]
    for n in range(2, k + 1):
        cumulants = [torch.polygamma(j - 1, p) * math.comb(n - 1, j - 1) for j in range(2, n + 1)]
        pairs = zip(cumulants, [moments[n - j] for j in range(2, n + 1)], strict=True)
        moments.append(sum((a * b for a, b in pairs), torch.zeros_like(p)))
    return moments[k]


def _by_order(p: Tensor, z: Tensor, j: int, k: int) -> Tensor:
    slope = _Integral.apply(p, z, j, k + 1)
    return slope - k * torch.polygamma(1, p) * _Integral.apply(p, z, j, k - 1) if k else slope


def _by_square(p: Tensor, z: Tensor, j: int, k: int) -> Tensor:
    return -_Integral.apply(p, z, j + 1, k)


def _integral(p: Tensor, z: Tensor, j: int, k: int) -> Tensor:
    # The exponent has its peak where e^y = α. With t = y - log α and β = z / α, it is there less
    # α (e^t - 1 - t) + β (e^{-t} - 1 + t), two terms without cancellation.
    a = p - j
    alpha, beta = _peak(a, z)
    left, right = _reaches(alpha, beta)
    share = torch.linspace(0, 1, _NODES, dtype=z.dtype, device=z.device)
    t = (left + right).unsqueeze(-1) * share - left.unsqueeze(-1)
    up = t.expm1()
    drop = alpha.unsqueeze(-1) * (up - t) + beta.unsqueeze(-1) * (t - up / t.exp())
    terms = (-drop).exp()
    if k:
        offset = alpha.log() - torch.digamma(p)
        terms = terms * (t + offset.unsqueeze(-1)).pow(k)
    step = (left + right) / (_NODES - 1)
    # (p - j) log α - α - β - log Γ(p), where large numbers would cancel: α - p = β - j.
    excess = ((beta - j) / p).clamp(min=-1 + 1e-12)
    near = p * torch.where(a > 0, excess, 0.0).log1p() - (2 * beta - j) - j * alpha.log()
    far = a * alpha.log() - (alpha + beta) - p * p.log() + p
    peak = torch.where(a > 0, near, far) + _stirling(p)
    value = terms.sum(-1) * step * peak.clamp(max=600.0).exp()
    if k:
        return value
    # At zero, Γ(p - j) / Γ(p).
    exact = torch.ones_like(p)
    for i in range(1, j + 1):
        exact = exact / (p - i)
    return torch.where((z == 0) & (a > 0), exact, value)


def _peak(a: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    # The α and β = z / α with α - β = a.
    safe = z.clamp(min=1e-290)
    large = (torch.hypot(a, 2 * safe.sqrt()) + a.abs()) / 2
    small = safe / large
    return torch.where(a > 0, large, small), torch.where(a > 0, small, large)


def _reaches(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    # How far from the peak the integrand is negligible, on the left and on the right.
    left = torch.minimum(_reach(_DROP / alpha), _short_reach(_DROP / beta))
    return left, torch.minimum(_reach(_DROP / beta), _short_reach(_DROP / alpha))


def _reach(drop: Tensor) -> Tensor:
    # A bound of the t where t - 1 + e^{-t} ≥ t² / (2 + t) has risen to a value.
    return (drop + (drop * (drop + 8)).sqrt()) / 2


def _short_reach(drop: Tensor) -> Tensor:
    # A bound of the t where e^t - 1 - t has risen to a value.
    return (drop + (2 * drop).sqrt()).log1p()


def _stirling(p: Tensor) -> Tensor:
    # p log p - p - log Γ(p), by its asymptotic series (DLMF 5.11.1) for large p.
    large = p.clamp(min=20.0)
    inverse = 1 / large.square()
    terms = (((-1 / 1188 * inverse + 1 / 1680) * inverse - 1 / 1260) * inverse + 1 / 360) * inverse
    series = (large / (2 * math.pi)).log() / 2 - (1 / 12 - terms) / large
    small = p.clamp(max=20.0)
    return torch.where(p < 20, small * small.log() - small - small.lgamma(), series)
