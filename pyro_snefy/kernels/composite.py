r"""Kernels that are sums: over finite sets of points, and over the components of mixtures."""

__all__ = ["Mixed"]

from collections.abc import Callable

import torch
from torch import Tensor

from ..activations import Activation, Cis, Cos, Exp, GaussianActivation, Identity, Sin, Snake
from ..bases import Discrete, GaussianMixture, Mixture, SmoothBoxMixture
from ..bases.mixture import MixtureBase
from ..numerics.forms import Form
from ..numerics.linalg import broadcast_shapes, safe_logsumexp
from .kernel import Kernel, Pairwise, Separable
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
    kernels = [kernel(activation, part.latent(weight), weight) for part in base.bases]
    weights = base.log_weights().exp()

    def evaluate(bias: Tensor) -> Tensor:
        total = bias.new_zeros(())
        for part, factor in zip(kernels, weights.unbind(-1), strict=True):
            total = total + factor[..., None, None] * part.matrix(bias)[1]
        return total

    return Pairwise(evaluate, broadcast_shapes(weight.shape[:-2], base.batch_shape))


class Mixed(Kernel):
    r"""A kernel :math:`\sum_k \pi_k K_k` over the components of a mixture.

    Where weights differ from row to row, as given values do, normalisers are mixed, and not
    kernels: a batch of weights needs no batch of matrices. One bias has one matrix. Rows of biases
    under one mixture meet the kernel of the mixture as a whole.

    Arguments:
        components: The kernels :math:`K_k`, with the components in their last batch dimension.
        logits: The logarithms :math:`\log \pi_k`, up to a constant, with shape :math:`(*, K)`.
        whole: A function that builds the kernel of the mixture as a whole, from this one.
    """

    def __init__(
        self, components: Kernel, logits: Tensor, whole: Callable[["Mixed"], Kernel]
    ) -> None:
        self.components, self.logits, self.whole = components, logits, whole
        self.takes_float32 = components.takes_float32
        self.has_factor = components.has_factor and logits.dim() == 1

    def log_normalizer(self, form: Form, bias: Tensor) -> Tensor:
        if self.logits.dim() > 1:
            values = self.components.log_normalizer(form.unsqueeze(), bias.unsqueeze(-2))
            return safe_logsumexp(self.logits.log_softmax(-1) + values)
        if bias.dim() > 1:
            return self.whole(self).log_normalizer(form, bias)
        return self._log_normalizer_of_one(form, bias, 0.0)

    def matrix(self, bias: Tensor) -> tuple[Tensor | None, Tensor]:
        log_scale, matrices = self.components.matrix(bias.unsqueeze(-2))
        weights = self.logits.softmax(-1)
        if log_scale is None:
            return None, _weighted_sum(weights, matrices)
        largest = log_scale.amax(-2)  # over components
        factor = (log_scale - largest.unsqueeze(-2)).exp()
        matrices = factor.unsqueeze(-1) * matrices * factor.unsqueeze(-2)
        return largest, _weighted_sum(weights, matrices)


def _weighted_sum(weights: Tensor, matrices: Tensor) -> Tensor:
    # One product of weights (*, K) and matrices (*, K, n, n).
    flat = matrices.flatten(-2)
    if weights.dim() == 1 and flat.dim() == 2:
        total = torch.mv(flat.mT, weights)
    else:
        total = (weights.unsqueeze(-2) @ flat).squeeze(-2)
    return total.reshape(total.shape[:-1] + matrices.shape[-2:])


def _gaussian_mixture(activation: Activation, base: GaussianMixture, weight: Tensor) -> Kernel:
    if base.is_concentric and base.logits.dim() == 1 and isinstance(activation, _FOURIER):
        return kernel(activation, base, weight, MixtureBase)
    return _mixed(activation, base, weight)


def _mixed(
    activation: Activation, base: GaussianMixture | SmoothBoxMixture, weight: Tensor
) -> Kernel:
    apart = weight if weight.dim() == 2 else weight.unsqueeze(-3)
    components = kernel(activation, base.components, apart)

    def whole(mixed: Mixed) -> Kernel:
        # Not a closure over the kernel: a cycle would keep its tensors until they are collected.
        if isinstance(mixed.components, Separable):
            return kernel(activation, base, weight, MixtureBase)
        batch_shape = broadcast_shapes(weight.shape[:-2], base.batch_shape)
        return Pairwise(lambda bias: mixed.matrix(bias)[1], batch_shape)

    return Mixed(components, base.logits, whole)


_FOURIER = (Cis, Cos, Identity, Sin, Snake)

# The activation decides first: one entry for each that has one for all Fourier or Laplace bases.
for _activation in (*_FOURIER, Exp, GaussianActivation):
    register_kernel(_activation, GaussianMixture)(_gaussian_mixture)
for _activation in (*_FOURIER, Exp):
    register_kernel(_activation, SmoothBoxMixture)(_mixed)
