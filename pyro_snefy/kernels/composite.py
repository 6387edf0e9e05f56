r"""Kernels that are sums: over finite sets of points, and over the components of mixtures."""

__all__ = ["Mixed"]

from torch import Tensor

from ..activations import Activation, Cos, Exp, GaussianActivation, Identity, Sin, Snake
from ..bases import Discrete, GaussianMixture, Mixture
from ..bases.mixture import ConditionalGaussianMixture
from ..numerics.forms import Form
from ..numerics.linalg import broadcast_shapes, safe_logsumexp
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


@register_kernel(GaussianActivation, GaussianMixture)
def _gaussian_mixture(
    activation: GaussianActivation, base: GaussianMixture, weight: Tensor
) -> Kernel:
    mixed = _apart(activation, base, weight)
    batch_shape = broadcast_shapes(weight.shape[:-2], base.batch_shape)
    return Pairwise(lambda bias: mixed.matrix(bias)[1], batch_shape)


class Mixed(Kernel):
    r"""A kernel :math:`\sum_k \pi_k K_k`, whose components are kept apart.

    A batch of weights then needs no batch of matrices: normalisers are mixed, not kernels.

    Arguments:
        components: The kernels :math:`K_k`, with the components in their last batch dimension.
        log_weights: The logarithms :math:`\log \pi_k`, with shape :math:`(*, K)`.
    """

    def __init__(self, components: Kernel, log_weights: Tensor) -> None:
        self.components = components
        self.log_weights = log_weights
        self.takes_float32 = components.takes_float32

    def log_normalizer(self, form: Form, bias: Tensor) -> Tensor:
        values = self.components.log_normalizer(form.unsqueeze(), bias.unsqueeze(-2))
        return safe_logsumexp(self.log_weights + values)

    def matrix(self, bias: Tensor) -> tuple[Tensor | None, Tensor]:
        log_scale, matrices = self.components.matrix(bias.unsqueeze(-2))
        weights = self.log_weights.exp()[..., None, None]
        if log_scale is None:
            return None, (weights * matrices).sum(-3)
        largest = log_scale.amax(-2)  # over components
        factor = (log_scale - largest.unsqueeze(-2)).exp()
        matrices = factor.unsqueeze(-1) * matrices * factor.unsqueeze(-2)
        return largest, (weights * matrices).sum(-3)


@register_kernel(Cos, ConditionalGaussianMixture)
@register_kernel(Sin, ConditionalGaussianMixture)
@register_kernel(Snake, ConditionalGaussianMixture)
@register_kernel(Identity, ConditionalGaussianMixture)
@register_kernel(Exp, ConditionalGaussianMixture)
@register_kernel(GaussianActivation, ConditionalGaussianMixture)
def _apart(activation: Activation, base: GaussianMixture, weight: Tensor) -> Mixed:
    weight = weight if weight.dim() == 2 else weight.unsqueeze(-3)
    return Mixed(kernel(activation, base.gaussians, weight), base.log_weights())
