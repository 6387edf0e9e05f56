r"""Two stretches of a density about its own centre, with which likelihoods are recalibrated."""

__all__ = ["Stretches", "best_stretches"]

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import pad

from ..bases import Base
from .heads import Parameters

# The power of a density whose mean is its centre. Tails and lesser modes hardly count.
_POWER = 3.0
# The least ratio of both factors: closer ones are one factor, and bumps that are hardly wider are
# no smooth sums of bumps.
_LEAST = 1.1
# The largest logarithm of a factor. With the default basis none is above 96.
_LARGEST = 300.0
# A prior of log a, log(b / a - 1.1) and log(α / (1 - α)): means and standard deviations.
_USUAL, _SPREAD = np.array([math.log(0.75), math.log(0.6), 0.0]), np.array([0.3, 0.3, 0.5])
# Where a search may start, as steps from the means of the first two numbers, and how often it
# evaluates the score.
_STARTS = tuple(itertools.product((-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5), (-1.0, 0.0, 1.0)))
_TRIALS = 80


@dataclass(frozen=True)
class Stretches:
    r"""A mixture of two stretches of a density :math:`p` about its own centre :math:`m`.

    .. math:: \frac{\alpha}{a} \, p\left(m + \frac{u - m}{a}\right) +
        \frac{1 - \alpha}{b} \, p\left(m + \frac{u - m}{b}\right), \qquad a < b

    The mixture is a family with more neurons and twice the rows of readout, and one kernel serves
    all rows. The first stretch is another location and another scale. The second one is
    :math:`r = b / a` times as wide as the first, and moves a bump from :math:`c` to
    :math:`c' = m + r (c - m)`. The basis gets longer by bumps of the same width :math:`1 / w` at
    the same distance :math:`h`, so that its centres :math:`c_j` reach :math:`r` times as far. The
    wide bump is a sum of these bumps:

    .. math:: e^{-w^2 (u - c')^2 / 2 r^2} \approx r h \sum_j
        \mathcal{N}\left(c_j; c', \tau^2\right) e^{-w^2 (u - c_j)^2 / 2}, \qquad
        \tau^2 = \frac{r^2 - 1}{w^2}

    With an integral in place of the sum, both sides are equal. The relative error of the sum is
    about :math:`2 e^{-2 \pi^2 \tau^2 / h^2}` within the reach of the centres. Coefficients are
    multiplied by :math:`g(c_j)`, where :math:`g` is the root of the stretched base over the base.
    The constant neuron becomes :math:`g`:

    .. math:: g(u) \approx 1 + \frac{w h}{\sqrt{2 \pi}}
        \sum_j (g(c_j) - 1) e^{-w^2 (u - c_j)^2 / 2}

    The normaliser is exact, however good these approximations are.

    Arguments:
        near: The factor :math:`a`.
        far: The factor :math:`b`.
        share: The weight :math:`\alpha`.

    Example:
        >>> from pyro_snefy import conditional_snefy
        >>> likelihood = conditional_snefy((), context_dim=1)
        >>> likelihood.stretches = Stretches(0.7, 1.5, 0.6)
        >>> likelihood(torch.zeros(1)).readout.shape
        torch.Size([6, 38])
    """

    near: float
    far: float
    share: float

    def __call__(self, parameters: Parameters, weight: Tensor) -> tuple[Parameters, Tensor]:
        r"""The parameters of the mixture, and the weights of its neurons.

        Arguments:
            parameters: The parameters of densities of scalar events, and the biases of a basis.
            weight: The weights of the basis, with shape :math:`(n, 1)`.
        """
        loc, scale, bias, readout, base = parameters
        ratio = self.far / self.near
        basis = _Basis(weight[-1, 0], -bias[1:] / weight[-1, 0])
        extra = math.ceil((ratio - 1.0) * (len(bias) - 2) / 2)  # bumps at each end
        longer = basis.with_more(extra)
        # The base of each density, with one more dimension for points.
        base = base.map_batches(lambda x, rank: x.unsqueeze(-1 - rank) if x.dim() > rank else x)
        centre = _centre(readout, basis, base)
        wide = _widened(readout, basis, longer, base, centre, ratio)
        near = torch.cat([readout[..., :1], pad(readout[..., 1:], (extra, extra))], dim=-1)
        rows = [math.sqrt(self.share) * near, math.sqrt(1.0 - self.share) * wide]
        changed = parameters._replace(
            loc=loc + (1.0 - self.near) * scale * centre.squeeze(-1),
            scale=self.near * scale,
            bias=torch.cat([bias[:1], -longer.precision * longer.centres]),
            readout=torch.cat(rows, dim=-2),
        )
        slope = longer.precision.expand(len(longer.centres), 1)
        return changed, torch.cat([weight[:1], slope])


class _Basis(NamedTuple):
    # Bumps of one width on a line, beside a constant neuron, which is the first.
    precision: Tensor  # w
    centres: Tensor  # c, (n - 1)

    @property
    def spacing(self) -> Tensor:
        return (self.centres[-1] - self.centres[0]) / (len(self.centres) - 1)

    def with_more(self, extra: int) -> "_Basis":
        # As many more bumps at each end.
        c = self.centres
        beyond = self.spacing * torch.arange(1, extra + 1, dtype=c.dtype, device=c.device)
        return self._replace(centres=torch.cat([c[0] - beyond.flip(0), c, c[-1] + beyond]))


def _centre(readout: Tensor, basis: _Basis, base: Base) -> Tensor:
    # The mean Σ c p(c)³ / Σ p(c)³ over the centres of the bumps, with shape (*, 1).
    c = basis.centres
    bumps = (-0.5 * (basis.precision * (c - c.unsqueeze(-1))).square()).exp()
    outputs = readout[..., 1:] @ bumps + readout[..., :1]  # (*, m, n - 1)
    square = outputs.square().sum(-2).clamp(min=torch.finfo(readout.dtype).tiny)
    share = (_POWER * (square.log() + base.log_density(c))).softmax(-1)
    return (share * c).sum(-1, keepdim=True)


def _widened(
    readout: Tensor, basis: _Basis, longer: _Basis, base: Base, centre: Tensor, ratio: float
) -> Tensor:
    # The readout, on a longer basis, of densities that are stretched by r about their centres m.
    points = longer.centres
    before = base.log_density(centre + (points - centre) / ratio)
    log_root = 0.5 * (before - base.log_density(points) - math.log(ratio)).double()  # log g(c_j)
    # With s = (r - 1) m, the exponent (c_j - r c_k + s)² is a part that all densities share, and
    # s (c_j - r c_k) + s²/2, which is a sum of a function of j and a function of k.
    c, points = basis.centres.double(), points.double()
    shift = (ratio - 1.0) * centre.double()
    precision, spacing = basis.precision.double(), basis.spacing.double()
    variance = (ratio**2 - 1.0) / precision.square()
    gap = points - ratio * c.unsqueeze(-1)  # (k, j)
    shared = ratio * spacing * (-0.5 * gap.square() / variance).exp()
    shared = shared / (2 * math.pi * variance).sqrt()
    before = (ratio * c * shift / variance).clamp(-_LARGEST, _LARGEST)
    after = (-(points + 0.5 * shift) * shift / variance).clamp(-_LARGEST, _LARGEST)
    first = readout[..., :1].double()
    rows = readout[..., 1:].double() * before.exp().unsqueeze(-2)
    moved = (rows @ shared) * (after + log_root).exp().unsqueeze(-2)
    of_constant = precision * spacing / math.sqrt(2 * math.pi) * torch.expm1(log_root)
    moved = moved + first * of_constant.unsqueeze(-2)
    first = first.expand((*moved.shape[:-1], 1))
    return torch.cat([first, moved], dim=-1).to(readout.dtype)


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

    starts = [_USUAL + np.array([*steps, 0.0]) for steps in _STARTS]
    start = min(starts, key=penalised)  # from afar, a search may end where it need not
    simplex = start + np.array([[0, 0, 0], [-0.3, 0, 0], [0, 0.5, 0], [0, 0, 0.7]])
    options = {"maxfev": _TRIALS, "initial_simplex": simplex}
    found = trial(minimize(penalised, start, method="Nelder-Mead", options=options).x)
    return found if score(found) < score(present) else present
