r"""Activations that are monomials on either side of zero, on intervals with Lebesgue measure."""

__all__ = ["piecewise_moment"]

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..activations import Activation, LeakyReLU, ReLU, Step
from ..bases import Interval
from ..numerics.linalg import broadcast_shapes
from .kernel import Kernel, Pairwise
from .registry import register_kernel


def piecewise_moment(
    activation: Activation, base: Interval, weight: Tensor, order: int
) -> Callable[[Tensor], Tensor]:
    r"""The integrals :math:`\int x^k \sigma(w_i x + b_i) \sigma(w_j x + b_j) \, dx` over intervals.

    The kinks of two neurons split an interval in three. Between kinks the integrand is a
    polynomial, and Gauss-Legendre quadrature is exact.

    Arguments:
        activation: An activation with a degree: a monomial on either side of zero.
        base: The intervals.
        weight: The weights, with shape :math:`(*, n, 1)`.
        order: The power :math:`k`.

    Returns:
        A function from biases, with shape :math:`(*, n)`, to matrices, with shape
        :math:`(*, n, n)`.
    """
    assert activation.degree is not None
    slope = weight.squeeze(-1).unsqueeze(-2)  # (*, 1, n)
    low, high = base.low.unsqueeze(-1), base.high.unsqueeze(-1)  # (*, K, 1)
    nodes, weights = (
        torch.as_tensor(x, dtype=weight.dtype, device=weight.device)
        for x in np.polynomial.legendre.leggauss(activation.degree + 1 + (order + 1) // 2)
    )

    def evaluate(bias: Tensor) -> Tensor:
        offset = bias.unsqueeze(-2)
        start, stop = slope * low + offset, slope * high + offset
        crosses = start * stop < 0
        fraction = torch.where(crosses, start, 0.0) / torch.where(crosses, start - stop, 1.0)
        kink = low + (high - low) * fraction  # (*, K, n); the lower end where there is none
        left, right = torch.broadcast_tensors(kink.unsqueeze(-1), kink.unsqueeze(-2))
        first, second = torch.minimum(left, right), torch.maximum(left, right)
        ends = [low.unsqueeze(-1), first, second, high.unsqueeze(-1)]  # (*, K, n, n)
        total = offset.new_zeros(())
        for a, b in pairwise(ends):
            x = ((a + b) / 2).unsqueeze(-1) + ((b - a) / 2).unsqueeze(-1) * nodes
            rows = activation(slope[..., None, None] * x + offset[..., None, None])
            columns = activation(slope[..., None, :, None] * x + offset[..., None, :, None])
            value = rows * columns * weights * x**order
            total = total + (value.sum(-1) * (b - a) / 2).sum(-3)
        return total

    return evaluate


@register_kernel(Step, Interval)
@register_kernel(ReLU, Interval)
@register_kernel(LeakyReLU, Interval)
def _interval(activation: Activation, base: Interval, weight: Tensor) -> Kernel:
    evaluate = piecewise_moment(activation, base, weight, order=0)
    return Pairwise(evaluate, broadcast_shapes(weight.shape[:-2], base.batch_shape))
