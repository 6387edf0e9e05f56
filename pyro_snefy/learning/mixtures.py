r"""Mixtures of normal laws by expectation maximisation, and how many components data call for."""

__all__ = ["choose_base", "normal_mixture"]

import math

import torch
from torch import Tensor

from ..bases import Base, GaussianMixture
from .statistics import spread

_ROUNDS = 100  # of expectation maximisation at most
_GAIN = 1e-4  # in nats per event: less is not worth another round
_CHECK = 5  # rounds between two looks at the gain
_FLOOR = 1e-6  # of the variance of a component, as a part of the variance of the events
_SIZES = (6, 16, 48, 96)  # numbers of components to choose from
_EVENTS = 40  # per component, at least
_MAX_DIM = 20  # coordinates: beyond, a mixture of normal laws is no more than a cluster or two


def normal_mixture(x: Tensor, count: int) -> GaussianMixture:
    r"""A mixture of normal laws, fitted to events with shape :math:`(N, d)`.

    Centres are found by k-means++ (Arthur and Vassilvitskii, 2007), then everything by expectation
    maximisation (Dempster, Laird and Rubin, 1977), in float64 and in standardised coordinates. The
    logits have the mean zero.
    """
    middle, unit = x.double().mean(0), spread(x).double()
    u = (x.double() - middle) / unit
    n, d = u.shape
    loc, distance = u[:1], u.new_full((n,), torch.inf)
    for _ in range(1, count):
        distance = torch.minimum(distance, (u - loc[-1]).square().sum(-1))
        loc = torch.cat([loc, u[torch.multinomial(distance + 1e-12, 1)]])
    scale = torch.full_like(loc, count ** (-1 / d))
    logits = torch.zeros_like(loc[:, 0])
    moments = torch.cat([u, u * u], dim=-1)  # (N, 2d)
    before = -math.inf
    for k in range(_ROUNDS):
        precision = scale.square().reciprocal()
        linear = torch.cat([loc * precision, -precision / 2], dim=-1)
        constant = logits.log_softmax(-1) - (loc * loc * precision / 2 + scale.log()).sum(-1)
        # Exponents need float64, their exponentials do not.
        joint = torch.addmm(constant, moments, linear.mT).float()  # (N, K)
        if k % _CHECK == 0:
            now = joint.logsumexp(-1).mean().item()
            if now - before < _CHECK * _GAIN:
                break
            before = now
        shares = joint.softmax(-1).double()
        # 1e-3 of an event at the present location keeps a component without events finite.
        mass = shares.sum(0).unsqueeze(-1)
        first, second = (shares.mT @ moments).split(d, dim=-1)
        new = (first + 1e-3 * loc) / (mass + 1e-3)
        variance = second - 2 * new * first + mass * new.square()  # about the new location
        scale = (variance / (mass + 1e-3)).clamp(min=_FLOOR).sqrt()
        loc, logits = new, (mass + 1e-3).squeeze(-1).log()
    return GaussianMixture(
        (logits - logits.mean()).to(x.dtype),
        (loc * unit + middle).to(x.dtype),
        (scale * unit).to(x.dtype),
        validate_args=False,
    )


def choose_base(base: Base, x: Tensor, held_out: Tensor) -> Base:
    r"""A normal law, or the mixture of normal laws that other events call for.

    A larger mixture has to be more likely by more than a standard error.

    Arguments:
        base: The normal law, fitted to the events.
        x: The events, with shape :math:`(N, d)`.
        held_out: Events to compare mixtures by, with shape :math:`(M, d)`.
    """
    best = base
    if x.shape[-1] > _MAX_DIM or len(held_out) < 2:
        return best
    score = best.log_density(held_out)
    for count in _SIZES:
        if count * _EVENTS > len(x):
            break
        found = normal_mixture(x, count)
        other = found.log_density(held_out)
        gain = other - score
        if not gain.mean() > gain.std() / math.sqrt(len(gain)):
            break
        best, score = found, other
    return best
