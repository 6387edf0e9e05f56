r"""The Laplace engine: kernels from log-partition functions."""

from torch import Tensor

from ..activations import Exp
from ..bases.base import cutoff_exp
from ..bases.engines import LaplaceBase
from ..numerics.forms import Features
from .kernel import Separable
from .registry import register_kernel


@register_kernel(Exp, LaplaceBase)
def _exp(activation: Exp, base: LaplaceBase, weight: Tensor) -> Separable:
    # Scales and correlations: log-partition functions are convex, so that no block exceeds one.
    scale, correlation = base.pair_log_partitions(activation.scale * weight)
    return Separable(
        {(0, 0): cutoff_exp(correlation)},
        lambda bias: Features(activation.scale * bias + scale, (None,)),
    )
