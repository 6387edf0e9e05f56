r"""The Laplace engine: kernels from log-partition functions (arXiv:2305.13552, section 3).

.. math:: K_{ij} = e^{s (b_i + b_j) + A(s (w_i + w_j))}, \quad
    A(\eta) = \log \int e^{\eta \cdot t} \, d\mu
"""

from torch import Tensor

from ..activations import Exp
from ..bases.base import cutoff_exp
from ..bases.engines import LaplaceBase
from ..numerics.forms import Features
from .kernel import Separable
from .registry import register_kernel


@register_kernel(Exp, LaplaceBase)
def _exp(activation: Exp, base: LaplaceBase, weight: Tensor) -> Separable:
    # Log-partition functions are convex: correlations K_ij / sqrt(K_ii K_jj) are at most one.
    scale, correlation = base.pair_log_partitions(activation.scale * weight)
    return Separable(
        {(0, 0): cutoff_exp(correlation)},
        lambda bias: Features(activation.scale * bias + scale, (None,)),
    )
