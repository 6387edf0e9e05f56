"""Densities of the bases of the catalogue in NumPy, and rules to integrate over their supports."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor

from pyro_snefy import bases
from pyro_snefy.bases import Base
from tests.cases import BASES, LENGTHS, LOC, LOCS, LOGITS, MASSES, POINTS, SCALE, SCALES, TRIL

Array = NDArray[np.float64]
Density = Callable[[Array], Array]
Rule = tuple[Array, Array]  # points (N,) or (N, d) and weights (N,)


def _np(x: Tensor) -> Any:
    return x.detach().numpy()


def _normal(x: Array, loc: Tensor, scale: Tensor) -> Array:
    return stats.norm.logpdf(x, _np(loc), _np(scale)).sum(-1)


def _full(x: Array) -> Array:
    return stats.multivariate_normal.logpdf(x, _np(LOC), _np(TRIL @ TRIL.T))


def _gaussian_mixture(x: Array) -> Array:
    parts = [_normal(x, loc, scale) for loc, scale in zip(LOCS, SCALES, strict=True)]
    return special.logsumexp(np.stack(parts), 0, b=special.softmax(_np(LOGITS))[:, None])


def _smooth(x: Array, low: Any, high: Any, scale: Any) -> Array:
    # Each side of the middle by the tail that is small there.
    flip = np.where(x > (low + high) / 2, -1, 1)
    upper, lower = flip * (x - low) / scale, flip * (x - high) / scale
    mass = np.where(flip > 0, stats.norm.cdf(upper) - stats.norm.cdf(lower), 0.0)
    mass = np.where(flip > 0, mass, stats.norm.cdf(lower) - stats.norm.cdf(upper))
    with np.errstate(divide="ignore"):
        return np.log(mass / (high - low))


def _smooth_boxes(x: Array) -> Array:
    sides = zip(_np(LOCS), _np(LENGTHS), _np(SCALES) / 2, strict=True)
    parts = [_smooth(x, m - h, m + h, s).sum(-1) for m, h, s in sides]
    return special.logsumexp(np.stack(parts), 0, b=special.softmax(_np(LOGITS))[:, None])


def _atom_weights() -> Any:
    return special.softmax(_np(LOGITS[:2]))


def _mixture_atom(x: Array) -> Array:
    smooth = np.log(_atom_weights()[0]) + stats.norm.logpdf(x, 0.3, 0.8)
    return np.where(x == 0.5, np.log(_atom_weights()[1]), smooth)


def _mixture_counts(x: Array) -> Array:
    weights = _atom_weights()
    zero = np.log(weights[1], where=x == 0, out=np.full_like(x, -np.inf))
    return np.logaddexp(np.log(weights[0]) + stats.poisson.logpmf(x, 3.0), zero)


def _masses(x: Array, points: Array) -> Array:
    matches = (x[:, None] == points).reshape(len(x), len(points), -1).all(-1)
    return np.log(matches @ _np(MASSES))


def _area(d: int) -> float:
    # that of the unit sphere, from the radial integral of a standard normal density
    return (2 * np.pi) ** (d / 2) / (2 ** (d / 2 - 1) * special.gamma(d / 2))


def _zero(x: Array) -> Array:
    return np.zeros(len(x))


LOG_DENSITIES: dict[str, Density] = {
    "Gaussian": lambda x: _normal(x, LOC, SCALE),
    "GaussianScalar": lambda x: stats.norm.logpdf(x, 0.3, 0.8),
    "GaussianFull": _full,
    "GaussianMixture": _gaussian_mixture,
    "UniformCube": _zero,
    "UniformBox": lambda x: np.full(len(x), -np.log(1.5 * 2.5)),
    "SmoothBox": lambda x: _smooth(
        x, np.array([-1.0, 0.5]), np.array([0.5, 3.0]), np.array([0.3, 0.8])
    ).sum(-1),
    "SmoothBoxScalar": lambda x: _smooth(x, 0.3, 2.3, 0.8),
    "SmoothBoxMixture": _smooth_boxes,
    "Interval": _zero,
    "Intervals": _zero,
    "UniformCircle": lambda x: np.full(len(x), -np.log(2 * np.pi)),
    "UniformSphere": lambda x: np.full(len(x), -np.log(4 * np.pi)),
    "UniformSphere7": lambda x: np.full(len(x), -np.log(_area(7))),
    "ProjectedGaussian": lambda x: stats.norm.logpdf(x).sum(-1),
    "NormalFamily": _zero,
    "GammaFamily": _zero,
    "DirichletFamily": _zero,
    "PoissonFamily": lambda x: -special.gammaln(x + 1),
    "Poisson": lambda x: stats.poisson.logpmf(x, 3.0),
    "Geometric": lambda x: stats.geom.logpmf(x + 1, 0.4),
    "StudentT": lambda x: stats.t.logpdf(x, 8.0, 0.3, 0.8),
    "Laplace": lambda x: stats.laplace.logpdf(x, 0.3, 0.8),
    "Logistic": lambda x: stats.logistic.logpdf(x, 0.3, 0.8),
    "NegativeBinomial": lambda x: stats.nbinom.logpmf(x, 2.5, 0.4),
    "Binomial": lambda x: stats.binom.logpmf(x, 7, 0.3),
    "Bernoulli": lambda x: stats.bernoulli.logpmf(x, 0.3),
    "UniformAngle": lambda x: np.full(len(x), -np.log(2 * np.pi)),
    "Discrete": lambda x: _masses(x, _np(POINTS)),
    "DiscreteScalar": lambda x: _masses(x, _np(POINTS[:, 0])),
    "MixtureAtom": _mixture_atom,
    "MixtureCounts": _mixture_counts,
    "Product": lambda x: (
        _full(x[:, :2])
        + stats.poisson.logpmf(x[:, 2], 2.0)
        + stats.uniform.logpdf(x[:, 3], -1, 1.5)
    ),
}

STATISTICS: dict[str, Density] = {
    "UniformCube": stats.norm.ppf,
    "ProjectedGaussian": lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
    "NormalFamily": lambda x: np.concatenate([x, x**2], -1),
    "GammaFamily": lambda x: np.stack([np.log(x), -x], -1),
    "DirichletFamily": np.log,
    "UniformAngle": lambda x: np.stack([np.cos(x), np.sin(x)], -1),
}


def statistic(name: str, x: Array) -> Array:
    """The statistic of events, (N, D)."""
    return STATISTICS[name](x) if name in STATISTICS else x.reshape(len(x), -1)


def legendre(low: float, high: float, panels: int = 200) -> Rule:
    """Gauss-Legendre quadrature on panels of equal length."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    ends = np.linspace(low, high, panels + 1)
    half = np.diff(ends)[:, None] / 2
    centres = (ends[1:] + ends[:-1])[:, None] / 2
    return (centres + half * nodes).ravel(), (half * weights).ravel()


def grid(*rules: Rule) -> Rule:
    """The product of rules."""
    points = np.meshgrid(*(rule[0] for rule in rules), indexing="ij")
    weights = np.meshgrid(*(rule[1] for rule in rules), indexing="ij")
    return np.stack([x.ravel() for x in points], -1), np.prod([w.ravel() for w in weights], 0)


def kinked(weight: Tensor, bias: Tensor) -> Rule:
    """A rule for neurons with kinks across the axes, which are at ends of its panels."""
    axes = []
    for slopes in weight.T:
        kinks = np.sort(_np(-bias / slopes)[_np(slopes) != 0])
        ends = np.concatenate([[-12.0], kinks[abs(kinks) < 12], [12.0]])
        axes.append(join(*(legendre(a, b, panels=25) for a, b in pairwise(ends))))
    return axes[0] if len(axes) == 1 else grid(*axes)


def _line(reach: float, step: float) -> Rule:
    # Equal weights are spectrally accurate for what decays at both ends.
    points = np.arange(-reach, reach, step)
    return points, np.full_like(points, step)


def _circle(count: int) -> Rule:
    return 2 * np.pi * np.arange(count) / count, np.full(count, 2 * np.pi / count)


def _counts(count: int) -> Rule:
    return np.arange(count, dtype=float), np.ones(count)


def join(*rules: Rule) -> Rule:
    return np.concatenate([rule[0] for rule in rules]), np.concatenate([rule[1] for rule in rules])


def _plane() -> Rule:
    return grid(_line(14.0, 0.05), _line(14.0, 0.05))


def _cube() -> Rule:
    z, weights = grid(*[_line(8.0, 0.3)] * 3)
    return special.ndtr(z), weights * np.exp(stats.norm.logpdf(z).sum(-1))


def _on_circle() -> Rule:
    angle, weights = _circle(4000)
    return np.stack([np.cos(angle), np.sin(angle)], -1), weights


def _on_sphere() -> Rule:
    # Heights on the sphere have constant surface measure.
    points, weights = grid(legendre(-1.0, 1.0, 60), _circle(400))
    height, angle = points.T
    radius = np.sqrt(1 - height**2)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), height], -1), weights


def _polar() -> Rule:
    points, weights = grid(legendre(0.0, 12.0, 20), _circle(500))
    radius, angle = points.T
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1), weights * radius


def _half_line() -> Rule:
    y, weights = _line(80.0, 0.02)
    return np.exp(y), weights * np.exp(y)


def _simplex() -> Rule:
    # A stick, broken twice.
    y, weights = grid(_line(60.0, 0.15), _line(60.0, 0.15))
    (first, second), (rest, other) = special.expit(y).T, special.expit(-y).T
    weights = weights * first * rest * rest * second * other
    return np.stack([first, rest * second, rest * other], -1), weights


# Bases, and rules for the measures that their densities are with respect to.
RULES: dict[str, tuple[Callable[[], Base], Callable[[], Rule]]] = {
    "Gaussian": (BASES["Gaussian"].build, _plane),
    "GaussianScalar": (BASES["GaussianScalar"].build, lambda: legendre(-12.0, 12.0)),
    "GaussianFull": (BASES["GaussianFull"].build, _plane),
    "GaussianMixture": (BASES["GaussianMixture"].build, _plane),
    "UniformCube": (BASES["UniformCube"].build, _cube),
    "UniformBox": (
        BASES["UniformBox"].build,
        lambda: grid(legendre(-1.0, 0.5, 20), legendre(0.5, 3.0, 20)),
    ),
    "SmoothBox": (BASES["SmoothBox"].build, _plane),
    "SmoothBoxScalar": (BASES["SmoothBoxScalar"].build, lambda: legendre(-12.0, 14.0)),
    "SmoothBoxMixture": (BASES["SmoothBoxMixture"].build, _plane),
    "Interval": (BASES["Interval"].build, lambda: legendre(-1.0, 1.5)),
    "Intervals": (
        BASES["Intervals"].build,
        lambda: join(legendre(-1.0, 1.0), legendre(2.0, 2.5)),
    ),
    "UniformCircle": (BASES["UniformCircle"].build, _on_circle),
    "UniformSphere": (BASES["UniformSphere"].build, _on_sphere),
    "ProjectedGaussian": (lambda: bases.ProjectedGaussian(2), _polar),
    "NormalFamily": (BASES["NormalFamily"].build, _plane),
    "GammaFamily": (bases.GammaFamily, _half_line),
    "DirichletFamily": (BASES["DirichletFamily"].build, _simplex),
    "PoissonFamily": (bases.PoissonFamily, lambda: _counts(300)),
    "Poisson": (BASES["Poisson"].build, lambda: _counts(300)),
    "Geometric": (BASES["Geometric"].build, lambda: _counts(300)),
    "StudentT": (BASES["StudentT"].build, lambda: legendre(-300.0, 300.0, 5000)),
    "Laplace": (
        BASES["Laplace"].build,
        lambda: join(legendre(-80.0, 0.3, 1000), legendre(0.3, 80.0, 1000)),
    ),
    "Logistic": (BASES["Logistic"].build, lambda: legendre(-80.0, 80.0, 1000)),
    "NegativeBinomial": (BASES["NegativeBinomial"].build, lambda: _counts(300)),
    "Binomial": (BASES["Binomial"].build, lambda: _counts(8)),
    "Bernoulli": (BASES["Bernoulli"].build, lambda: _counts(2)),
    "UniformAngle": (bases.UniformAngle, lambda: legendre(-np.pi, np.pi)),
    "Discrete": (BASES["Discrete"].build, lambda: (_np(POINTS), np.ones(4))),
    "DiscreteScalar": (BASES["DiscreteScalar"].build, lambda: (_np(POINTS[:, 0]), np.ones(4))),
    "MixtureAtom": (
        BASES["MixtureAtom"].build,
        lambda: join(legendre(-12.0, 12.0), (np.array([0.5]), np.ones(1))),
    ),
    "MixtureCounts": (BASES["MixtureCounts"].build, lambda: _counts(300)),
    "Product": (
        BASES["Product"].build,
        lambda: grid(_line(9.0, 0.3), _line(9.0, 0.3), _counts(30), legendre(-1.0, 0.5, panels=1)),
    ),
}
