r"""Hyperbolic functions times a decaying exponential, without overflow or cancellation."""

__all__ = ["damped_hyperbolic", "scaled_hyperbolic"]

import torch
from torch import Tensor

from .elementwise import elementwise

# exp(-100) is negligible next to 1, and stays above float64 denormals after a few products.
_CUTOFF = -100.0
_LOG_2 = 0.6931471805599453


@elementwise(lambda _, cosh, sinh: [(sinh, cosh), (cosh, sinh)], saves_values=True)
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
