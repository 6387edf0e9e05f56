r"""Hyperbolic functions times a decaying exponential, without overflow or cancellation."""

__all__ = ["damped_hyperbolic", "scaled_hyperbolic", "scaled_remainders"]

import torch
from torch import Tensor

from .elementwise import elementwise

# exp(-100) is negligible next to 1, and stays above float64 denormals after a few products.
_CUTOFF = -100.0
_LOG_2 = 0.6931471805599453


@elementwise(lambda _, p, t, cosh, sinh: [(sinh, cosh), (cosh, sinh)], saves_values=True)
def _hyperbolic(_: None, p: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    # In place where it can be: batches of matrices take longer to allocate than to compute.
    size = p.abs()
    half = torch.threshold_((size + t).sub_(_LOG_2), _CUTOFF, _CUTOFF).exp_()  # e^{|p| + t} / 2
    sinh = half * size.mul_(-2.0).expm1_()
    return torch.add(sinh, half, alpha=2.0), sinh.copysign_(p)


def scaled_hyperbolic(p: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    r"""Returns :math:`e^t \cosh p` and :math:`e^t \sinh p` for :math:`|p| \leq -t`.

    The relative error is small however small :math:`p` is.

    Arguments:
        p: The argument.
        t: The logarithm of the scale, of the same shape.

    Example:
        >>> p = torch.tensor(1e-10, dtype=torch.float64)
        >>> scaled_hyperbolic(p, -p)[1] / p
        tensor(1.0000, dtype=torch.float64)
    """
    cosh, sinh = _hyperbolic(None, p, t)
    return cosh, sinh


def damped_hyperbolic(p: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    r"""Returns :math:`e^{-s} \cosh p` and :math:`e^{-s} \sinh p` for :math:`|p| \leq s`.

    Arguments:
        p: The argument.
        s: The damping, of the same shape.
    """
    return scaled_hyperbolic(p, -s)


def _remainder_slopes(
    _: None, p: Tensor, t: Tensor, even: Tensor, odd: Tensor
) -> list[tuple[Tensor, Tensor]]:
    return [(torch.addcmul(odd, p, t.exp()), even), (even, odd)]


@elementwise(_remainder_slopes, saves_values=True)
def _remainders(_: None, p: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    # With b = -|p| and m = e^b - 1: cosh b - 1 = e^{-b} m² / 2, and
    # |sinh b - b| = e^{-b} |(1 + m) (m - 2 b) + m| / 2. The last bracket is never positive.
    less = p.abs().neg_()
    half = torch.threshold_((t - less).sub_(_LOG_2), _CUTOFF, _CUTOFF).exp_()  # e^{|p| + t} / 2
    rest = less.expm1()
    odd = torch.add(rest, less, alpha=-2.0)
    odd = odd.addcmul_(odd, rest).add_(rest).mul_(half)
    return half.mul_(rest).mul_(rest), odd.copysign_(p)


def scaled_remainders(p: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    r"""Returns :math:`e^t (\cosh p - 1)` and :math:`e^t (\sinh p - p)`.

    The relative error of the first is small however small :math:`p` is. The error of the second is
    small beside :math:`e^t p`. The sum :math:`t + |p|` must be in the range of the exponential.

    Arguments:
        p: The argument.
        t: The logarithm of the scale, of the same shape.

    Example:
        >>> p = torch.tensor(1e-10, dtype=torch.float64)
        >>> scaled_remainders(p, -p)[0] / p**2
        tensor(0.5000, dtype=torch.float64)
    """
    even, odd = _remainders(None, p, t)
    return even, odd
