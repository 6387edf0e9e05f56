r"""Homogeneous activations without bias on spheres."""

import math

from torch import Tensor

from ..activations import Activation, LeakyReLU, ReLU, Step
from ..bases.gaussian import Gaussian
from ..bases.sphere import UniformSphere
from .kernel import Kernel, Pairwise
from .registry import kernel, register_kernel


def _homogeneous(
    activation: Activation, base: UniformSphere, weight: Tensor, degree: int
) -> Kernel:
    # A standard normal vector is a uniform direction times an independent radius r, and products
    # of two neurons are homogeneous: both kernels differ by E[r^(2 degree)] alone.
    d = base.num_statistics
    zeros = weight.new_zeros((d,))
    normal = kernel(activation, Gaussian(zeros, zeros + 1, validate_args=False), weight)
    radius = 2**degree * math.exp(math.lgamma(d / 2 + degree) - math.lgamma(d / 2))
    _, matrix = normal.matrix(weight.new_zeros(weight.shape[-2:-1]))
    return Pairwise(lambda bias: matrix / radius, weight.shape[:-2])


@register_kernel(Step, UniformSphere, bias=False)
def _step(activation: Step, base: UniformSphere, weight: Tensor) -> Kernel:
    return _homogeneous(activation, base, weight, 0)


@register_kernel(ReLU, UniformSphere, bias=False)
def _relu(activation: ReLU, base: UniformSphere, weight: Tensor) -> Kernel:
    return _homogeneous(activation, base, weight, activation.power)


@register_kernel(LeakyReLU, UniformSphere, bias=False)
def _leaky_relu(activation: LeakyReLU, base: UniformSphere, weight: Tensor) -> Kernel:
    return _homogeneous(activation, base, weight, 1)
