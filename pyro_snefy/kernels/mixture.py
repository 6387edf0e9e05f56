r"""Mixtures of Gaussian bases whose weights differ from row to row."""

__all__ = ["Mixed"]

from torch import Tensor

from ..activations import Activation, Cis, Cos, Exp, GaussianActivation, Identity, Sin, Snake
from ..bases.mixture import ConditionalGaussianMixture
from ..numerics.forms import Form
from ..numerics.linalg import safe_logsumexp
from .kernel import Kernel
from .registry import kernel, register_kernel


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
@register_kernel(Cis, ConditionalGaussianMixture)
@register_kernel(Snake, ConditionalGaussianMixture)
@register_kernel(Identity, ConditionalGaussianMixture)
@register_kernel(Exp, ConditionalGaussianMixture)
@register_kernel(GaussianActivation, ConditionalGaussianMixture)
def _mixed(activation: Activation, base: ConditionalGaussianMixture, weight: Tensor) -> Mixed:
    weight = weight if weight.dim() == 2 else weight.unsqueeze(-3)
    components = kernel(activation, base.gaussians, weight)
    return Mixed(components, base.log_weights())
