r"""Two stretches of a density about its own centre, with which likelihoods are recalibrated."""

__all__ = ["Stretches", "best_stretches"]

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ..bases import Base
from .heads import Parameters

# The power of a density whose mean is its centre. Tails and lesser modes hardly count.
_POWER = 3.0
# The least ratio of both factors: closer ones are one factor, and bumps that are hardly wider are
# no smooth sums of bumps.
_LEAST = 1.1
# The largest logarithm of a factor. With the default basis none is above 61.
_LARGEST = 300.0
# A prior of log a, log(b / a - 1.1) and log(α / (1 - α)): means and standard deviations.
_USUAL, _SPREAD = np.array([math.log(0.75), math.log(0.6), 0.0]), np.array([0.3, 0.3, 0.5])
# Where a search may start, as steps from the mean of log a, and how often it evaluates the score.
_STARTS, _TRIALS = (-1.0, -0.5, 0.0, 0.5), 80


@dataclass(frozen=True)
class Stretches:
    r"""A mixture of two stretches of a density :math:`p` about its own centre :math:`m`.

    .. math:: \frac{\alpha}{a} \, p\left(m + \frac{u - m}{a}\right) +
        \frac{1 - \alpha}{b} \, p\left(m + \frac{u - m}{b}\right), \qquad a < b

    The mixture is a family with the same neurons, and so with the same kernel. The first stretch
    is another location and another scale. The second one is in more rows of the readout. It is
    :math:`r = b / a` times as wide as the first, and moves a bump from :math:`c` to
    :math:`c' = m + r (c - m)`. That wide bump is a sum of the bumps of the basis, which have the
    centres :math:`c_j`, the distance :math:`h` and the width :math:`1 / w`:

    .. math:: e^{-w^2 (u - c')^2 / 2 r^2} \approx r h \sum_j
        \mathcal{N}\left(c_j; c', \tau^2\right) e^{-w^2 (u - c_j)^2 / 2}, \qquad
        \tau^2 = \frac{r^2 - 1}{w^2}

    With an integral in place of the sum, both sides are equal. The relative error of the sum is
    about :math:`2 e^{-2 \pi^2 \tau^2 / h^2}` within the reach of the centres. The coefficients are
    multiplied by the root of the stretched base over the base at :math:`c_j`. The normaliser is
    exact, however good these approximations are.

    Arguments:
        near: The factor :math:`a`.
        far: The factor :math:`b`.
        share: The weight :math:`\alpha`.

    Example:
        >>> from pyro_snefy import conditional_snefy
        >>> likelihood = conditional_snefy((), context_dim=1)
        >>> likelihood.stretches = Stretches(0.7, 1.5, 0.6)
        >>> likelihood(torch.zeros(1)).readout.shape
        torch.Size([6, 18])
    """

    near: float
    far: float
    share: float

    def __call__(self, parameters: Parameters, weight: Tensor, bias: Tensor) -> Parameters:
        r"""The parameters of the mixture.

        Arguments:
            parameters: The parameters of densities of scalar events.
            weight: The weights of the basis, with shape :math:`(n, 1)`.
            bias: The biases of the basis, with shape :math:`(n)`.
        """
        precision = weight[-1, 0]
        basis = _Basis(precision, -bias[1:] / precision)
        # The base of each density, with one more dimension for points.
        base = parameters.base.map_batches(
            lambda x, rank: x.unsqueeze(-1 - rank) if x.dim() > rank else x
        )
        loc, scale, readout = parameters.loc, parameters.scale, parameters.readout
        centre = _centre(readout, basis, base)
        wide = _widened(readout, basis, base, centre, self.far / self.near)
        readout = torch.cat(
            [math.sqrt(self.share) * readout, math.sqrt(1.0 - self.share) * wide], dim=-2
        )
        loc = loc + (1.0 - self.near) * scale * centre.squeeze(-1)
        return parameters._replace(loc=loc, scale=self.near * scale, readout=readout)


class _Basis(NamedTuple):
    # Bumps of one width on a line, beside a constant neuron, which is the first.
    precision: Tensor  # w
    centres: Tensor  # c, (n - 1)


def _centre(readout: Tensor, basis: _Basis, base: Base) -> Tensor:
    # The mean Σ c p(c)³ / Σ p(c)³ over the centres of the bumps, with shape (*, 1).
    c = basis.centres
    bumps = (-0.5 * (basis.precision * (c - c.unsqueeze(-1))).square()).exp()
    outputs = readout[..., 1:] @ bumps + readout[..., :1]  # (*, m, n - 1)
    square = outputs.square().sum(-2).clamp(min=torch.finfo(readout.dtype).tiny)
    share = (_POWER * (square.log() + base.log_density(c))).softmax(-1)
    return (share * c).sum(-1, keepdim=True)


def _widened(readout: Tensor, basis: _Basis, base: Base, centre: Tensor, ratio: float) -> Tensor:
    # The readout of densities that are stretched by r about their centres m, with shape (*, m, n).
    c = basis.centres
    before = base.log_density(centre + (c - centre) / ratio)
    log_root = 0.5 * (before - base.log_density(c) - math.log(ratio)).double()
    # With s = (r - 1) m, the exponent (c_j - r c_k + s)² is a part that all densities share, and
    # s (c_j - r c_k) + s²/2, which is a sum of a function of j and a function of k.
    c, shift = c.double(), (ratio - 1.0) * centre.double()
    variance = (ratio**2 - 1.0) / basis.precision.double().square()
    gap = c - ratio * c.unsqueeze(-1)  # (k, j)
    spacing = c[1] - c[0]
    shared = ratio * spacing * (-0.5 * gap.square() / variance).exp()
    shared = shared / (2 * math.pi * variance).sqrt()
    before = (ratio * c * shift / variance).clamp(-_LARGEST, _LARGEST)
    after = (-(c + 0.5 * shift) * shift / variance).clamp(-_LARGEST, _LARGEST)
    rows = readout[..., 1:].double() * before.exp().unsqueeze(-2)
    moved = (rows @ shared) * (after + log_root).exp().unsqueeze(-2)
    first = readout[..., :1].expand((*moved.shape[:-1], 1))
    return torch.cat([first, moved.to(readout.dtype)], dim=-1)


def best_stretches(
    score: Callable[[Stretches | None], float], present: Stretches | None, rows: float = math.inf
) -> Stretches | None:
    r"""The stretches with the lowest score, by the search of Nelder and Mead (1965).

    .. math:: \text{score} + \frac{1}{2 N} \sum_k \left(\frac{\theta_k - \bar\theta_k}{\sigma_k}
        \right)^2, \qquad \theta = \left(\log a, \; \log(b / a - 1.1), \;
        \log \frac{\alpha}{1 - \alpha}\right)

    Few rows do not determine three numbers: :math:`\bar\theta` is a normal prior, at factors of
    0.75 and 1.3 with equal weights.

    Arguments:
        score: The score of a trial, lower is better.
        present: The stretches that a trial has to be better than.
        rows: The number :math:`N` of rows that a score is a mean of.
    """

    def trial(place: np.ndarray) -> Stretches:
        log_near, log_rest, logit = map(float, place)
        near = math.exp(log_near)
        far = near * (_LEAST + math.exp(log_rest))
        return Stretches(near, far, 1.0 / (1.0 + math.exp(-logit)))

    def penalised(place: np.ndarray) -> float:
        return score(trial(place)) + 0.5 * float(np.square((place - _USUAL) / _SPREAD).sum()) / rows

    starts = [_USUAL + np.array([step, 0, 0]) for step in _STARTS]
    start = min(starts, key=penalised)  # from afar, a search may end where it need not
    simplex = start + np.array([[0, 0, 0], [-0.3, 0, 0], [0, 0.5, 0], [0, 0, 0.7]])
    options = {"maxfev": _TRIALS, "initial_simplex": simplex}
    found = trial(minimize(penalised, start, method="Nelder-Mead", options=options).x)
    return found if score(found) < score(present) else present
