r"""What default likelihoods are made of: a base with heavy tails, a basis of bumps, a network."""

__all__ = ["OBLIQUE", "AsinhNet", "along", "bump_basis", "heavy_tailed", "start_near_base_"]

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, silu

from ..bases import Base, GaussianMixture

# Scales of the components of a base with heavy tails, and the first logarithms of their weights.
_SCALES = tuple(4.0**k for k in range(7))
_LOGITS = (0.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0)


def heavy_tailed(base: Base, correlated: bool = False) -> GaussianMixture:
    """Normal laws about zero in place of a base, each four times as wide as the one before.

    Arguments:
        base: The base.
        correlated: Whether the laws of a vector have a ``scale_tril``, which can be oblique.
    """
    logits, loc = torch.tensor(_LOGITS), torch.zeros((1, *base.event_shape))
    scale = torch.tensor(_SCALES).reshape((-1,) + (1,) * base.event_dim)
    if correlated and base.event_dim:
        tril = scale.unsqueeze(-1) * torch.eye(base.event_shape[0])
        return GaussianMixture(logits, loc, scale_tril=tril)
    return GaussianMixture(logits, loc, scale, event_dim=base.event_dim)


_SHARPNESS = 1.702  # of rectifiers, see AsinhNet
_REACH = 3.0  # the outermost centre of the bumps of a basis
# Inverse widths of bumps: along random directions, where narrow ones would leave gaps, and the most
# along a line.
OBLIQUE, _SHARPEST = 2.0, 3.5


def along(count: int) -> float:
    """The inverse width of the bumps of so many neurons along a line.

    Bumps are as wide as their centres are apart, and no narrower than 1 / 3.5.
    """
    return min(_SHARPEST, max(count - 2, 1) / (2 * _REACH))


def bump_basis(like: Tensor, precision: float = OBLIQUE) -> tuple[Tensor, Tensor]:
    r"""Weights and biases of a constant neuron and of bumps along a line.

    .. math:: 1, \quad e^{-w^2 (a_i \cdot u - c_i)^2 / 2}, \ldots

    The centres :math:`c_i` are equally spaced. The directions :math:`a_i` are random unit vectors.

    Arguments:
        like: A tensor with the shape, the dtype and the device of the weights, :math:`(n, D)`.
        precision: The inverse :math:`w` of the width of a bump.
    """
    n, d = like.shape
    centre = torch.linspace(-_REACH, _REACH, n - 1, dtype=like.dtype, device=like.device)
    if d == 1:
        direction = torch.ones_like(like[1:])
    else:
        direction = nn.functional.normalize(torch.randn_like(like[1:]), dim=-1)
    weight = torch.cat([torch.zeros_like(like[:1]), precision * direction])
    return weight, torch.cat([torch.zeros_like(like[0, :1]), -precision * centre])


def start_near_base_(readout: Tensor) -> None:
    """Draws a readout, in place, that makes a family of such neurons close to its base."""
    nn.init.normal_(readout, std=0.1)
    readout[0, 0] += 1.0  # the first neuron is constant


class AsinhNet(nn.Module):
    r"""Smooth rectifiers on asinh of the contexts.

    .. math:: h_1 = \rho(W_1 \, a \operatorname{asinh}(c) + b_1), \quad h_2 = \rho(W_2 h_1 + b_2),
        \quad \ldots, \qquad \rho(z) = \frac{z}{1 + e^{-z}}

    The factor :math:`a = 1.702` makes the rectifiers as sharp as GELU (Hendrycks and Gimpel,
    arXiv:1606.08415): :math:`\rho(a z) / a` is within 0.021 of it, and takes half the time.

    A network of rectifiers is linear far from the data: at an outlying context it would emit a
    location far from the truth, with a small scale. asinh brings outlying contexts near. Between
    few rows, a smooth function is nearer to the truth than one with kinks.

    In training, a share ``dropout`` of the hidden outputs is zero in each step, and the others are
    larger for it (Srivastava et al., 2014). The share is zero but in :func:`~pyro_snefy.fit`, so
    that a density is a number and no draw wherever else a module is in the mode of training.

    Arguments:
        sizes: The numbers of inputs, of hidden outputs, and of outputs.
        dropped: The dropout of a fit to :math:`N` rows is this number over :math:`N`, at most 0.1.
    """

    def __init__(self, sizes: Sequence[int], dropped: float = 20.0) -> None:
        super().__init__()
        self.dropout, self.dropped = 0.0, dropped
        self.layers = nn.ModuleList(nn.Linear(size, after) for size, after in pairwise(sizes))
        # Small outputs: the family starts out nearly the same for every context.
        last_weight, last_bias = self.layers[-1].parameters()
        nn.init.normal_(last_weight, std=0.01)
        nn.init.zeros_(last_bias)

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self.layers  # a slice would be a new module
        x = x.asinh()
        x = _SHARPNESS * x if hidden else x
        for layer in hidden:
            x = silu(layer(x))
            if self.training and self.dropout:
                x = dropout(x, self.dropout)
        outputs: Tensor = last(x)
        return outputs
