r"""Hyperbolic functions times a decaying exponential, without overflow or cancellation."""

__all__ = ["damped_hyperbolic"]

import torch
from torch import Tensor

from .elementwise import elementwise

# exp(-100) is negligible next to 1, and stays above float64 denormals after a few products.
_CUTOFF = -100.0
_LOG_2 = 0.6931471805599453


@elementwise(lambda _, cosh, sinh: [(sinh, -cosh), (cosh, -sinh)], saves_values=True)
def _hyperbolic(_: None, p: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    size = p.abs()
    # In place: matrices of many rows are as fast as memory is.
    half = (size - s).sub_(_LOG_2).clamp_(min=_CUTOFF).exp_()  # e^{|p| - s} / 2
    sinh = size.mul_(-2.0).expm1_().mul_(half)
    return torch.add(sinh, half, alpha=2.0), sinh.copysign_(p)


def damped_hyperbolic(p: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    r"""Returns :math:`e^{-s} \cosh p` and :math:`e^{-s} \sinh p` for :math:`|p| \leq s`.

    The relative error is small however small :math:`p` is.

    Arguments:
        p: The argument.
        s: The damping, of the same shape.

    Example:
        >>> p = torch.tensor(1e-10, dtype=torch.float64)
        >>> damped_hyperbolic(p, p)[1] / p
        tensor(1.0000, dtype=torch.float64)
    """
    cosh, sinh = _hyperbolic(None, p, s)
    return cosh, sinh
