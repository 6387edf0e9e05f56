r"""Kernels by exact summation: finite sets, piecewise polynomials, and mixtures of bases."""

__all__ = ["piecewise_moment"]

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..activations import Activation, GaussianActivation, LeakyReLU, ReLU, Step
from ..bases.box import Interval
from ..bases.counts import Discrete
from ..bases.mixture import Mixture
from ..numerics.linalg import broadcast_shapes
from .kernel import Kernel, Pairwise
from .registry import kernel, register_kernel


@register_kernel(GaussianActivation, Discrete)
def _discrete(activation: GaussianActivation, base: Discrete, weight: Tensor) -> Kernel:
    linear = base.vectors @ weight.mT  # (*, K, n)

    def evaluate(bias: Tensor) -> Tensor:
        neurons = activation(linear + bias.unsqueeze(-2))
        return neurons.mT @ (base.masses.unsqueeze(-1) * neurons)

    return Pairwise(evaluate, broadcast_shapes(weight.shape[:-2], base.batch_shape))


@register_kernel(GaussianActivation, Mixture)
def _mixture(activation: GaussianActivation, base: Mixture, weight: Tensor) -> Kernel:
    kernels = [kernel(activation, part, weight) for part in base.bases]
    weights = base.log_weights().exp()

    def evaluate(bias: Tensor) -> Tensor:
        total = bias.new_zeros(())
        for part, factor in zip(kernels, weights.unbind(-1), strict=True):
            total = total + factor[..., None, None] * part.matrix(bias)[1]
        return total

    return Pairwise(evaluate, broadcast_shapes(weight.shape[:-2], base.batch_shape))


def piecewise_moment(
    activation: Activation, base: Interval, weight: Tensor, degree: int, order: int
) -> Callable[[Tensor], Tensor]:
    r"""The integrals :math:`\int x^k \sigma(w_i x + b_i) \sigma(w_j x + b_j) \, dx` over intervals.

    A kink splits an interval in two. Between kinks, Gauss-Legendre quadrature is exact.

    Arguments:
        activation: An activation that is a polynomial on either side of zero.
        base: The intervals.
        weight: The weights, with shape :math:`(*, n, 1)`.
        degree: The degree of the polynomials.
        order: The power :math:`k`.

    Returns:
        A function from biases, with shape :math:`(*, n)`, to matrices, with shape
        :math:`(*, n, n)`.
    """
    slope = weight.squeeze(-1).unsqueeze(-2)  # (*, 1, n)
    low, high = base.low.unsqueeze(-1), base.high.unsqueeze(-1)  # (*, K, 1)
    nodes, weights = (
        torch.as_tensor(x, dtype=weight.dtype, device=weight.device)
        for x in np.polynomial.legendre.leggauss(degree + 1 + (order + 1) // 2)
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


def _piecewise(activation: Activation, base: Interval, weight: Tensor, degree: int) -> Kernel:
    evaluate = piecewise_moment(activation, base, weight, degree, order=0)
    return Pairwise(evaluate, broadcast_shapes(weight.shape[:-2], base.batch_shape))


@register_kernel(Step, Interval)
def _step(activation: Step, base: Interval, weight: Tensor) -> Kernel:
    return _piecewise(activation, base, weight, 0)


@register_kernel(ReLU, Interval)
def _relu(activation: ReLU, base: Interval, weight: Tensor) -> Kernel:
    return _piecewise(activation, base, weight, activation.power)


@register_kernel(LeakyReLU, Interval)
def _leaky_relu(activation: LeakyReLU, base: Interval, weight: Tensor) -> Kernel:
    return _piecewise(activation, base, weight, 1)
