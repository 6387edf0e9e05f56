r"""The Gaussian engine: kernels from the bivariate normal law of two preactivations.

The formulas, for any bias, and their sources are in :mod:`pyro_snefy.numerics.bivariate`.
"""

__all__ = ["normal_expectation"]

import math
from functools import singledispatch

import torch
from torch import Tensor

from ..activations import GELU, Activation, Bump, Erf, GaussianActivation, LeakyReLU, ReLU, Step
from ..bases import Gaussian
from ..numerics.bivariate import (
    bump_moment,
    erf_moment,
    gelu_moment,
    leaky_relu_moment,
    relu_moment,
)
from .kernel import Kernel, Pairwise
from .registry import register_kernel


@singledispatch
def normal_expectation(activation: Activation, *pair: Tensor) -> Tensor:
    r"""The expectation :math:`\mathbb{E}[\sigma(z_1) \sigma(z_2)]` under a bivariate normal law.

    Arguments:
        activation: The activation :math:`\sigma`.
        pair: Means, variances, covariance and angle, as in :mod:`pyro_snefy.numerics.bivariate`.
    """
    raise NotImplementedError


@normal_expectation.register
def _(activation: Step, *pair: Tensor) -> Tensor:
    return relu_moment(0, *pair)


@normal_expectation.register
def _(activation: ReLU, *pair: Tensor) -> Tensor:
    return relu_moment(activation.power, *pair)


@normal_expectation.register
def _(activation: LeakyReLU, *pair: Tensor) -> Tensor:
    return leaky_relu_moment(activation.negative_slope, *pair)


@normal_expectation.register
def _(activation: Erf, *pair: Tensor) -> Tensor:
    return erf_moment(*pair)


@normal_expectation.register
def _(activation: Bump, *pair: Tensor) -> Tensor:
    return bump_moment(*pair)


@normal_expectation.register
def _(activation: GELU, *pair: Tensor) -> Tensor:
    return gelu_moment(*pair)


def angles(white: Tensor) -> Tensor:
    r"""The angles between weights on a standard normal law, with shape :math:`(*, n, n)`.

    .. math:: \theta = 2 \arctan \frac{\|u - v\|}{\|u + v\|}

    has all digits near zero and :math:`\pi`, where :math:`\arccos \rho` has half of them (Kahan
    2006). Angles carry no gradient: covariances do.
    """
    white = white.detach()
    if white.shape[-1] == 1:
        return math.pi * (white * white.mT < 0).to(white)
    norm = white.norm(dim=-1, keepdim=True)
    unit = white / torch.where(norm > 0, norm, 1.0)
    difference = (unit.unsqueeze(-2) - unit.unsqueeze(-3)).norm(dim=-1)
    total = (unit.unsqueeze(-2) + unit.unsqueeze(-3)).norm(dim=-1)
    return 2 * torch.atan2(difference, total)


@register_kernel(GaussianActivation, Gaussian)
def _gaussian(activation: GaussianActivation, base: Gaussian, weight: Tensor) -> Kernel:
    covariance = base.quadratic(weight)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    angle = angles(base.whiten(weight))
    shift = (weight @ base.mean(weight).unsqueeze(-1)).squeeze(-1)

    def evaluate(mean: Tensor) -> Tensor:
        return normal_expectation(
            activation,
            mean.unsqueeze(-1),
            mean.unsqueeze(-2),
            variance.unsqueeze(-1),
            variance.unsqueeze(-2),
            covariance,
            angle,
        )

    return Pairwise(evaluate, covariance.shape[:-2], shift)


@register_kernel(Bump, Gaussian)
def _bump(activation: Bump, base: Gaussian, weight: Tensor) -> Kernel:
    r"""On a line, where covariances of preactivations are :math:`s_i s_j`.

    .. math:: K_{ij} = \frac{1}{\sqrt{d_{ij}}} \exp\left(
        -\frac{m_i^2 + m_j^2 + (m_i s_j - m_j s_i)^2}{2 d_{ij}} \right), \quad
        d_{ij} = 1 + s_i^2 + s_j^2,

    with the means :math:`m` of the preactivations. See
    :func:`~pyro_snefy.numerics.bivariate.bump_moment` for the general case.
    """
    if base.num_statistics > 1:
        return _gaussian(activation, base, weight)
    white = base.whiten(weight)  # s, (*, n, 1)
    variance = white * white
    det = (variance + 1.0) + variance.mT
    factor = det.rsqrt()
    shift = (weight * base.mean(weight).unsqueeze(-2)).squeeze(-1)

    def evaluate(mean: Tensor) -> Tensor:
        column = mean.unsqueeze(-1) * math.sqrt(0.5)
        own, across = column * -column, column * white.mT
        rest = across - across.mT
        return factor * (torch.addcmul(own + own.mT, rest, rest, value=-1.0) / det).exp()

    return Pairwise(evaluate, det.shape[:-2], shift, has_factor=True)
