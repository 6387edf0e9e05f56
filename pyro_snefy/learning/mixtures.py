r"""Mixtures of normal laws by expectation maximisation, and how many components data call for."""

__all__ = ["choose_base", "normal_mixture"]

import math
from typing import TypeVar

import torch
from torch import Tensor

from ..bases import Base, Gaussian, GaussianMixture
from .statistics import clip_far, spread

_ROUNDS = 100  # of expectation maximisation at most
_GAIN = 1e-4  # in nats per event: less is not worth another round
_CHECK = 5  # rounds between two looks at the gain
_FLOOR = 1e-6  # of the variance of a component, as a part of the variance of the events
_ROUNDING = 1e-14  # of the squares of locations
_ENTRIES = 2**16  # shares of events in components at a time: more leave the cache
_SIZES = (6, 16, 48, 96)  # numbers of components to choose from
_EVENTS = 40  # per component, at least
_MAX_DIM = 20  # coordinates: beyond, a mixture of normal laws is no more than a cluster or two

Law = TypeVar("Law", bound=Base)


def normal_mixture(x: Tensor, count: int, full: bool = False) -> GaussianMixture:
    r"""A mixture of normal laws, fitted to events with shape :math:`(N, d)` or :math:`(N)`.

    Centres are found by k-means++ (Arthur and Vassilvitskii, 2007), then everything by expectation
    maximisation (Dempster, Laird and Rubin, 1977), in float64 and in standardised coordinates. The
    logits have the mean zero.

    Arguments:
        x: The events.
        count: The number of components.
        full: Whether components of vectors have full covariance matrices.
    """
    return _mixture(x, _centres(x, count), full)


def _standardized(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # Vectors in float64 with mean zero and spread one, and the location and the scale of them.
    rows = (x.unsqueeze(-1) if x.dim() == 1 else x).double()
    near = clip_far(rows)
    middle, unit = near.mean(0), spread(near)
    return (rows - middle) / unit, middle, unit


def _centres(x: Tensor, count: int) -> Tensor:
    # Some of the events, far from each other, in standardised coordinates, (K, d).
    u, _, _ = _standardized(x)
    loc, distance = u[:1], u.new_full((len(u),), torch.inf)
    for _ in range(1, count):
        distance = torch.minimum(distance, (u - loc[-1]).square().sum(-1))
        up_to = (distance + 1e-12).cumsum(0)
        chosen = torch.searchsorted(up_to, up_to[-1:] * torch.rand_like(up_to[-1:]))
        loc = torch.cat([loc, u[chosen.clamp(max=len(u) - 1)]])
    return loc


def _mixture(x: Tensor, loc: Tensor, full: bool) -> GaussianMixture:
    # The mixture that is found from centres in standardised coordinates.
    u, middle, unit = _standardized(x)
    count, d = loc.shape
    times = _outer if full else torch.mul  # the products whose means are second moments
    one = torch.eye(d, dtype=u.dtype, device=u.device).flatten() if full else torch.ones_like(u[0])
    variance = count ** (-2 / d) * one.expand(count, -1)  # (K, d) or (K, d²)
    logits = torch.zeros_like(loc[:, 0])
    moments = torch.cat([torch.ones_like(u[:, :1]), u, times(u, u)], dim=-1)  # (N, 1 + 2d) or more
    before = -math.inf
    for k in range(_ROUNDS):
        precision, log_det = _inverse(variance, d)
        linear = _applied(precision, loc)
        constant = logits.log_softmax(-1) - ((loc * linear).sum(-1) + log_det) / 2
        # Exponents need float64, their exponentials do not.
        natural = torch.cat([constant.unsqueeze(-1), linear, -precision / 2], dim=-1)
        total, sums = u.new_zeros(()), moments.new_zeros(count, moments.shape[-1])
        for rows in moments.split(max(1, _ENTRIES // count)):
            joint = (rows @ natural.mT).float()  # (R, K)
            shares = joint.softmax(-1)
            if k % _CHECK == 0:
                # The log-density of an event is log p_k - log(share of k), for the largest share.
                total += (joint.amax(-1) - shares.amax(-1).log()).sum()
            sums.addmm_(shares.double().mT, rows)
        if k % _CHECK == 0:
            now = total.item() / len(u)
            if now - before < _CHECK * _GAIN:
                break
            before = now
        # 1e-3 of an event at the present location keeps a component without events finite.
        mass, first, second = sums.tensor_split([1, 1 + d], dim=-1)
        loc = (first + 1e-3 * loc) / (mass + 1e-3)
        variance = second - times(loc, first) - times(first, loc) + mass * times(loc, loc)
        # Moments of a component far from zero are rounded: the floor is above that.
        floor = _FLOOR + _ROUNDING * loc.square().sum(-1, keepdim=True)
        variance = variance / (mass + 1e-3) + floor * one
        logits = (mass + 1e-3).squeeze(-1).log()
    logits, loc = (logits - logits.mean()).to(x.dtype), (loc * unit + middle).to(x.dtype)
    if full:
        tril = unit.unsqueeze(-1) * torch.linalg.cholesky(variance.unflatten(-1, (d, d)))
        return GaussianMixture(logits, loc, scale_tril=tril.to(x.dtype), validate_args=False)
    scale = (variance.clamp(min=_FLOOR).sqrt() * unit).to(x.dtype)
    if x.dim() == 1:
        loc, scale = loc.squeeze(-1), scale.squeeze(-1)
    return GaussianMixture(logits, loc, scale, event_dim=x.dim() - 1, validate_args=False)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    # All products of two coordinates, (*, d²).
    return (left.unsqueeze(-1) * right.unsqueeze(-2)).flatten(-2)


def _inverse(variance: Tensor, d: int) -> tuple[Tensor, Tensor]:
    # Precisions, and logarithms of determinants, of variances (K, d) or of covariances (K, d²).
    if variance.shape[-1] == d:
        variance = variance.clamp(min=_FLOOR)
        return variance.reciprocal(), variance.log().sum(-1)
    factor = torch.linalg.cholesky(variance.unflatten(-1, (d, d)))
    log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return torch.cholesky_inverse(factor).flatten(-2), log_det


def _applied(precision: Tensor, loc: Tensor) -> Tensor:
    # Precisions, as diagonals or as matrices, times locations, (K, d).
    if precision.shape == loc.shape:
        return precision * loc
    matrix = precision.unflatten(-1, (loc.shape[-1], loc.shape[-1]))
    return (matrix @ loc.unsqueeze(-1)).squeeze(-1)


def choose_base(base: Gaussian, x: Tensor, held_out: Tensor) -> Gaussian | GaussianMixture:
    r"""A normal law, or the mixture of normal laws that other events call for.

    Covariances are diagonal or full; of mixtures, the smallest one decides. A larger mixture, or
    full covariances, have to make the other events more likely by more than a standard error.

    Arguments:
        base: The normal law, with a diagonal covariance, fitted to the events.
        x: The events, with shape :math:`(N, d)` or :math:`(N)`.
        held_out: Events to compare mixtures by, with shape :math:`(M, d)` or :math:`(M)`.
    """
    if len(held_out) < 2:
        return base
    d = x.shape[1:].numel()
    kinds = [False, True] if d > 1 else [False]
    best: Gaussian | GaussianMixture = base
    score = best.log_density(held_out)
    if True in kinds:
        only = normal_mixture(x, 1, full=True)
        assert only.scale_tril is not None
        normal = Gaussian(only.loc[0], scale_tril=only.scale_tril[0], validate_args=False)
        best, score = _better(best, score, normal, held_out)
    for count in _SIZES if d <= _MAX_DIM else ():
        if count * _EVENTS > len(x):
            break
        centres = _centres(x, count)
        first, *others = (_mixture(x, centres, full) for full in kinds)
        likely, values = first, first.log_density(held_out)
        for other in others:
            likely, values = _better(likely, values, other, held_out)
        before = best
        best, score = _better(best, score, likely, held_out)
        if best is before:
            break
        kinds = [likely.scale_tril is not None]
    return best


def _better(best: Law, score: Tensor, other: Law, held_out: Tensor) -> tuple[Law, Tensor]:
    # The other law and its log-densities, if it is more likely by more than a standard error.
    values = other.log_density(held_out)
    gain = values - score
    if gain.mean() > gain.std() / math.sqrt(len(gain)):
        return other, values
    return best, score
