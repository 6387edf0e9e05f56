r"""Homogeneous activations without bias on spheres."""

__all__ = ["radial_moment"]

import math

from torch import Tensor

from ..activations import Activation, LeakyReLU, ReLU, Step
from ..bases import Gaussian, UniformSphere
from .kernel import Kernel, Pairwise
from .registry import kernel, register_kernel


def radial_moment(d: int, order: int) -> float:
    r"""The moment :math:`\mathbb{E}[r^k]` of the norm of a standard normal vector.

    Arguments:
        d: The dimension of the vector.
        order: The order :math:`k`.
    """
    log_moment = order / 2 * math.log(2) + math.lgamma((d + order) / 2) - math.lgamma(d / 2)
    return math.exp(log_moment)


@register_kernel(Step, UniformSphere, bias=False)
@register_kernel(ReLU, UniformSphere, bias=False)
@register_kernel(LeakyReLU, UniformSphere, bias=False)
def _sphere(activation: Activation, base: UniformSphere, weight: Tensor) -> Kernel:
    r"""A standard normal vector is :math:`r u`, with a uniform direction and independent radius.

    .. math:: \mathbb{E}[\sigma(w_i \cdot r u) \sigma(w_j \cdot r u)]
        = \mathbb{E}[r^{2p}] \, \mathbb{E}[\sigma(w_i \cdot u) \sigma(w_j \cdot u)]

    for activations of degree :math:`p`: the kernel on the sphere is the kernel on the normal law
    over a constant (Cho and Saul, arXiv:1112.3712).
    """
    assert activation.degree is not None
    d = base.num_statistics
    zeros = weight.new_zeros((d,))
    normal = kernel(activation, Gaussian(zeros, zeros + 1, validate_args=False), weight)
    _, matrix = normal.matrix(weight.new_zeros(weight.shape[-2:-1]))
    matrix = matrix / radial_moment(d, 2 * activation.degree)
    return Pairwise(lambda bias: matrix, weight.shape[:-2])
