r"""Neural network kernels and normalising constants by brute-force integration.

The kernel of a squared neural family is

.. math:: K_{ij} = \int \sigma(z_i) \, \overline{\sigma(z_j)} \, \mu(dt), \qquad z = W t + b.

Here it is computed by quadrature and summation only, so that a closed form can be tested against
something that shares no formula with it. Every integral is carried as a logarithm and a phase:
kernels of :math:`10^{-90}` keep their relative accuracy, and :math:`e^{10^6}` does not overflow.

Three facts shorten the integrals without deciding their value: two linear forms of a rotation
invariant law only see the plane of their weights, a product of exponentials is the exponential of
a sum, and integrals over independent coordinates of a product factorise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special, stats

__all__ = [
    "Activation",
    "Atoms",
    "Box",
    "Counting",
    "DirichletFamily",
    "GammaFamily",
    "Gaussian",
    "GaussianMixture",
    "Intervals",
    "Law",
    "Mixture",
    "NormalFamily",
    "Product",
    "SmoothBox",
    "Sphere",
    "activation",
    "geometric",
    "kernel_matrix",
    "log_kernel_matrix",
    "log_normalizer",
    "poisson",
    "poisson_family",
]

Array = NDArray[np.float64]
Value = tuple[float, complex]  # log|K| and the phase of K: 1, -1, 0 or a complex unit
Integrand = Callable[[Array], tuple[Array, NDArray]]  # points -> log|f|, phase of f

DROP = 60.0  # nats below the peak at which an integrand is cut off: 1e-26
ORDER = 20  # Gauss-Legendre nodes in a panel
TINY_ANGLE = 1e-14  # below it two weight vectors are parallel up to rounding
MAX_PANELS = 2000
MAX_NODES = 200_000_000
CHUNK = 1_000_000
MAX_TERMS = 1 << 23
ZERO = 1e8  # integrals below exp(-ZERO), of which a logarithm holds no digit, are zero
HOPELESS = 1e5  # log-masses below -HOPELESS are not searched for active neurons


# ------------------------------------------------------------------------------------ activations


class Activation(NamedTuple):
    r"""A function :math:`\sigma` and what a quadrature rule has to know about it."""

    name: str
    value: Callable[[Array], NDArray]
    kinks: tuple[float, ...] = ()
    bandwidth: float = 0.0  # highest frequency in z of an oscillating function
    precision: float = 0.0  # p, when the spectrum in z decays like exp(-omega^2 / 2p)
    log_value: Integrand | None = None  # where `value` underflows
    scale: float | None = None  # of exp(scale z)

    def log(self, z: Array) -> tuple[Array, NDArray]:
        """Return log|sigma(z)| and the phase of sigma(z)."""
        return _log_phase(self.value(z)) if self.log_value is None else self.log_value(z)


def _log_phase(value: NDArray) -> tuple[Array, NDArray]:
    size = np.abs(value)
    with np.errstate(divide="ignore"):
        log_size = np.log(size)
    if np.iscomplexobj(value):
        return log_size, np.divide(value, size, out=np.zeros_like(value), where=size > 0)
    return log_size, np.sign(value)


def _value(log_size: NDArray, phase: NDArray) -> Value:
    """Make a scalar of arrays without dimensions."""
    return float(log_size), np.asarray(phase)[()]  # type: ignore[return-value]


def _snake(a: float = 1.0, offset: bool = True) -> Activation:
    shift = 0.0 if offset else 0.5 / a
    return Activation("snake", lambda z: z + np.sin(a * z) ** 2 / a - shift, bandwidth=2 * abs(a))


def _exp(scale: float = 1.0) -> Activation:
    def log_value(z: Array) -> tuple[Array, Array]:
        return scale * z, np.ones_like(z)

    return Activation("exp", lambda z: np.exp(scale * z), log_value=log_value, scale=scale)


def _relu(power: int = 1) -> Activation:
    def value(z: Array) -> Array:
        return np.where(z > 0, z, 0.0) ** power

    def log_value(z: Array) -> tuple[Array, Array]:
        with np.errstate(divide="ignore"):
            return power * np.log(np.maximum(z, 0.0)), np.where(z > 0, 1.0, 0.0)

    return Activation("relu", value, kinks=(0.0,), log_value=log_value)


def _leaky(slope: float = 0.01) -> Activation:
    return Activation("leaky", lambda z: np.where(z > 0, z, slope * z), kinks=(0.0,))


def _gelu() -> Activation:
    def log_value(z: Array) -> tuple[Array, Array]:
        with np.errstate(divide="ignore"):
            return np.log(np.abs(z)) + special.log_ndtr(z), np.sign(z)

    return Activation("gelu", lambda z: z * special.ndtr(z), precision=1.0, log_value=log_value)


def _bump() -> Activation:
    def log_value(z: Array) -> tuple[Array, Array]:
        return -0.5 * z**2, np.ones_like(z)

    return Activation("bump", lambda z: np.exp(-0.5 * z**2), precision=1.0, log_value=log_value)


_ACTIVATIONS: dict[str, Callable[..., Activation]] = {
    "cos": lambda: Activation("cos", np.cos, bandwidth=1.0),
    "sin": lambda: Activation("sin", np.sin, bandwidth=1.0),
    "cis": lambda: Activation("cis", lambda z: np.exp(1j * z), bandwidth=1.0),
    "snake": _snake,
    "exp": _exp,
    "identity": lambda: Activation("identity", lambda z: z),
    "erf": lambda: Activation("erf", special.erf, precision=2.0),
    "step": lambda: Activation("step", lambda z: np.where(z > 0, 1.0, 0.0), kinks=(0.0,)),
    "relu": _relu,
    "leaky": _leaky,
    "gelu": _gelu,
    "bump": _bump,
}


def activation(
    spec: str | Callable[[Array], NDArray] | Activation, *args: float, **kwargs: object
) -> Activation:
    """Return an activation by name, with its parameters, or wrap a function of z.

    Arguments:
        spec: One of cos, sin, cis, snake(a, offset), exp(scale), identity, erf, step, relu(power),
            leaky(slope), gelu, bump; or a function, with `kinks=`, `bandwidth=` and `precision=` as
            in :class:`Activation`; or an activation, returned as it is.

    Example:
        >>> activation("relu", 2).kinks
        (0.0,)
    """
    if isinstance(spec, Activation):
        return spec
    if isinstance(spec, str):
        if spec not in _ACTIVATIONS:
            raise ValueError(f"expected one of {sorted(_ACTIVATIONS)}, found {spec!r}")
        return _ACTIVATIONS[spec](*args, **kwargs)
    return Activation(getattr(spec, "__name__", "custom"), spec, **kwargs)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- integration on a line


@lru_cache(maxsize=256)
def _legendre(order: int) -> tuple[Array, Array]:
    """Return Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = special.roots_legendre(order)
    return 0.5 * (nodes + 1), 0.5 * weights


def _log_sum(logs: NDArray, phases: NDArray, axis: int | None = None) -> tuple[Array, NDArray]:
    """Sum numbers given by logarithm and phase."""
    peak = np.max(logs, axis=axis, keepdims=True, initial=-np.inf)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    total = np.sum(np.exp(logs - peak) * phases, axis=axis)
    log_total, phase = _log_phase(total)
    return log_total + np.squeeze(peak, axis=axis), phase


def _window(f: Integrand, low: float, high: float) -> tuple[float, float, float]:
    """Zoom in on the part of [low, high] where f is within DROP nats of its maximum."""
    peak = -np.inf
    for _ in range(40):
        grid = np.linspace(low, high, 202)
        logs = f(0.5 * (grid[1:] + grid[:-1]))[0]
        peak = float(np.max(logs))
        if peak == -np.inf:
            break
        kept = np.flatnonzero(logs >= peak - DROP)
        # one cell of margin: the peak may be as narrow as a cell
        first, last = max(kept[0] - 1, 0), min(kept[-1] + 2, len(grid) - 1)
        shrunk = grid[last] - grid[first] < 0.5 * (high - low)
        low, high = float(grid[first]), float(grid[last])
        if not shrunk:
            break
    return low, high, peak


def _panel_sums(f: Integrand, low: Array, high: Array, ref: float) -> tuple[NDArray, Array]:
    """Integrate f and |f|, divided by exp(ref), over each panel."""
    nodes, weights = _legendre(ORDER)
    points = low[:, None] + (high - low)[:, None] * nodes
    logs, phases = f(points.ravel())
    size = np.exp(logs - ref).reshape(points.shape)
    width = high - low
    signed = size * phases.reshape(points.shape)
    return width * (signed @ weights), width * (size @ weights)


def _bisect(f: Integrand, low: Array, high: Array, ref: float) -> complex:
    """Integrate f / exp(ref) over panels, halving those that have not converged."""
    # Log-integrands of size |ref| are themselves only known to eps |ref|.
    tolerance = 1e-13 + 4 * np.finfo(float).eps * abs(ref)
    coarse, size = _panel_sums(f, low, high, ref)
    done: complex = 0.0
    done_size = 0.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        left, left_size = _panel_sums(f, low, middle, ref)
        right, right_size = _panel_sums(f, middle, high, ref)
        fine, size = left + right, left_size + right_size
        error = np.abs(fine - coarse)
        total = done_size + float(size.sum())
        keep = error > tolerance * total / max(1, len(low)) ** 0.5
        keep &= error > 10 * np.finfo(float).eps * size
        # narrower panels would resolve the rounding of x
        keep &= high - low > 256 * np.finfo(float).eps * np.maximum(np.abs(low), np.abs(high))
        done += fine[~keep].sum()
        done_size += float(size[~keep].sum())
        if not keep.any():
            return done
        if keep.sum() > MAX_PANELS:
            break
        low, high = (
            np.concatenate([low[keep], middle[keep]]),
            np.concatenate([middle[keep], high[keep]]),
        )
        coarse = np.concatenate([left[keep], right[keep]])
    raise ArithmeticError(f"an integral has not converged with {2 * keep.sum()} panels")


def _graded(centre: float, width: float, reach: float) -> Array:
    """Return points that close in on a centre geometrically, until they are as near as width."""
    count = max(1, math.ceil(math.log(reach / width, 4))) if 0 < width < reach else 0
    distance = width * 4.0 ** np.arange(count)
    return np.concatenate([centre - distance, centre + distance])


def _integrate(
    f: Integrand,
    low: float,
    high: float,
    breaks: Iterable[float] = (),
    edges_of_panels: Iterable[float] = (),
) -> Value:
    """Integrate f over [low, high], decaying towards both if they are far apart.

    Arguments:
        breaks: Where f is not analytic.
        edges_of_panels: Further points between which to integrate, to begin with: panels are
            halved where f is seen to vary, but a step much narrower than a panel goes unseen.
    """
    inside = {float(x) for x in breaks if np.isfinite(x) and low < x < high}
    edges = [low, *sorted(inside), high]
    windows = [_window(f, a, b) for a, b in pairwise(edges)]
    ref = max(peak for _, _, peak in windows)
    if ref < -ZERO:
        return -np.inf, 0.0
    marks = np.array([*edges_of_panels], float)
    # The grid may miss a peak at the edge of a segment, so only hopeless segments are left out.
    panels = [
        np.union1d(np.linspace(a, b, 9), marks[(a < marks) & (marks < b)])
        for a, b, peak in windows
        if peak > ref - 2 * DROP
    ]
    lows = np.concatenate([p[:-1] for p in panels])
    highs = np.concatenate([p[1:] for p in panels])
    log_total, phase = _log_phase(np.asarray(_bisect(f, lows, highs, ref)))
    return _value(log_total + ref, phase)


def _log_integral(log_f: Callable[[Array], Array], low: float, high: float) -> float:
    """Return the logarithm of the integral of a positive function."""
    return _integrate(lambda x: (log_f(x), np.ones_like(x)), low, high)[0]


def _rows(low: Array, high: Array, panels: int) -> tuple[Array, Array]:
    """Return nodes and log-weights of a composite rule on the interval of each row."""
    nodes, weights = _legendre(ORDER)
    nodes = ((np.arange(panels)[:, None] + nodes) / panels).ravel()  # (panels * ORDER,)
    weights = np.tile(weights / panels, panels)
    width = np.maximum(high - low, 0.0)[:, None]
    with np.errstate(divide="ignore"):
        return low[:, None] + width * nodes, np.log(width) + np.log(weights)


def _pair_log(act: Activation, z1: Array, z2: Array, log_w: Array) -> tuple[Array, NDArray]:
    """Return the logarithm and phase of w sigma(z1) conj(sigma(z2))."""
    log1, phase1 = act.log(z1)
    log2, phase2 = act.log(z2)
    return log1 + log2 + log_w, phase1 * np.conj(phase2)


# ----------------------------------------------------------------- sums over independent factors


class Nodes(NamedTuple):
    """A discretised law of the two linear forms w_1.t and w_2.t."""

    form1: Array
    form2: Array
    log_w: Array


def _nodes(points: Array, log_w: Array, coefficients: Array) -> Nodes:
    """Return the forms `points @ coefficients.T`, without the points of negligible weight."""
    keep = log_w > np.max(log_w) - DROP
    forms = points[keep] @ coefficients.T
    return Nodes(forms[:, 0], forms[:, 1], log_w[keep])


def _convolve(left: Nodes, right: Nodes) -> Nodes:
    return Nodes(*(np.add.outer(a, b).ravel() for a, b in zip(left, right, strict=True)))


def _sum_nodes(act: Activation, factors: Sequence[Nodes], bias: Array) -> Value:
    """Sum over the tensor product of the nodes of independent factors."""
    size = int(np.prod([len(f.log_w) for f in factors], dtype=float))
    if size > MAX_NODES:
        raise NotImplementedError(f"{size:.1e} nodes for {act.name}: too many to sum")
    *few, most = sorted(factors, key=lambda f: len(f.log_w))
    outer = Nodes(np.zeros(1), np.zeros(1), np.zeros(1))
    for factor in few:
        outer = _convolve(outer, factor)
    step = max(1, CHUNK // len(most.log_w))
    parts = []
    for start in range(0, len(outer.log_w), step):
        piece = _convolve(Nodes(*(x[start : start + step] for x in outer)), most)
        parts.append(_sum_chunk(act, piece, bias))
    return _add(parts)


def _add(parts: Iterable[Value]) -> Value:
    """Sum integrals given by logarithm and phase."""
    logs, phases = (np.array(x) for x in zip(*parts, strict=True))
    return _value(*_log_sum(logs, phases))


def _sum_chunk(act: Activation, nodes: Nodes, bias: Array) -> Value:
    z1, z2 = nodes.form1 + bias[0], nodes.form2 + bias[1]
    if act.log_value is not None:
        return _value(*_log_sum(*_pair_log(act, z1, z2, nodes.log_w)))
    peak = np.max(nodes.log_w)
    total = np.sum(act.value(z1) * np.conj(act.value(z2)) * np.exp(nodes.log_w - peak))
    log_total, phase = _log_phase(total)
    return _value(log_total + peak, phase)


def _order(act: Activation, reach: float) -> int:
    """Return how many Gauss-Legendre nodes resolve sigma sigma on an interval.

    Arguments:
        reach: By how much z_1 and z_2 together change over half of the interval.
    """
    # exp(-omega^2 / 2p) is below 1e-17 at omega = 9 sqrt(p)
    phase = (act.bandwidth + 9 * act.precision**0.5) * reach
    return int(24 + phase / 2 + 6 * phase ** (1 / 3))


def _plane(vectors: Array) -> Array:
    """Return coordinates (2, 2), lower triangular, of two vectors in a plane that holds both."""
    first, second = vectors
    length = np.linalg.norm(first)
    if length == 0:
        return np.array([[0.0, 0.0], [np.linalg.norm(second), 0.0]])
    axis = first / length
    along = second @ axis
    across = second - along * axis
    # A second pass of Gram-Schmidt, without which parallel vectors differ by sqrt(eps).
    correction = across @ axis
    rest = float(np.linalg.norm(across - correction * axis))
    if rest <= TINY_ANGLE * np.linalg.norm(second):
        rest = 0.0
    return np.array([[length, 0.0], [along + correction, rest]])


# ------------------------------------------------------------------------------------------- laws


class Law:
    """A measure of the statistic t, with the integrals of pairs of neurons under it."""

    @property
    def dim(self) -> int:
        """The number of coordinates of t."""
        raise NotImplementedError

    def log_laplace(self, eta: Array) -> float:
        """Return the logarithm of the integral of exp(eta.t)."""
        raise NotImplementedError(f"exp under {type(self).__name__}")

    def factors(self, act: Activation, weight: Array, bias: Array) -> list[Nodes]:
        """Return nodes of independent parts of t, enough of them for a smooth activation."""
        raise NotImplementedError(f"{act.name} under {type(self).__name__}")

    def kinked(self, act: Activation, weight: Array, bias: Array) -> Value:
        """Integrate a pair of neurons whose activation has kinks, or decays."""
        raise NotImplementedError(f"{act.name} under {type(self).__name__}")

    def _needs_bias(self, act: Activation) -> bool:
        """Whether the points that matter depend on the bias."""
        return bool(act.kinks)

    def pair(self, act: Activation, weight: Array, bias: Array) -> Value:
        """Integrate a pair of neurons, weight (2, D) and bias (2,)."""
        if act.scale is not None:
            return act.scale * bias.sum() + self.log_laplace(act.scale * weight.sum(0)), 1.0
        if self._needs_bias(act):
            return self.kinked(act, weight, bias)
        return _sum_nodes(act, self.factors(act, weight, bias), bias)


@dataclass(frozen=True, eq=False)
class Gaussian(Law):
    """A normal law of any dimension; `loc` (D,), `cov` (D, D), which may be singular."""

    loc: Array
    cov: Array

    @property
    def dim(self) -> int:
        return np.atleast_1d(self.loc).shape[0]

    def _reduce(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        """Return coefficients (2, 2) and means (2,) of z in terms of two standard normals."""
        cov = np.atleast_2d(np.asarray(self.cov, float))
        try:
            factor = np.linalg.cholesky(cov)
        except np.linalg.LinAlgError:
            values, vectors = np.linalg.eigh(cov)
            factor = vectors * np.sqrt(np.clip(values, 0.0, None))
        return _plane(weight @ factor), bias + weight @ np.atleast_1d(self.loc)

    def log_laplace(self, eta: Array) -> float:
        scale = self._reduce(np.stack([eta, eta]), np.zeros(2))[0][0, 0]
        log_z = _log_integral(lambda u: scale * u - u**2 / 2, -40.0, scale + 40.0)
        return float(eta @ np.atleast_1d(self.loc)) + log_z - 0.5 * np.log(2 * np.pi)

    def factors(self, act: Activation, weight: Array, bias: Array) -> list[Nodes]:
        # The trapezoidal rule converges faster than any power for entire functions times a normal
        # density: its error is the spectrum of the integrand beyond 2 pi / step.
        coefficients, mean = self._reduce(weight, bias)
        shift = mean - bias
        factors = [Nodes(shift[:1], shift[1:], np.zeros(1))]
        for axis, (low, high) in enumerate(_normal_box(act, coefficients, mean)):
            column = coefficients[:, axis : axis + 1]  # (2, 1)
            size = np.abs(column).sum()
            if size == 0:
                continue
            spread = np.sqrt(1 + act.precision * np.sum(column**2))
            step = 2 * np.pi / (act.bandwidth * size + 10 * spread)
            u = np.arange(low, high + step, step)
            log_w = np.log(step) - u**2 / 2 - 0.5 * np.log(2 * np.pi)
            factors.append(Nodes(u * column[0], u * column[1], log_w))
        return factors

    def kinked(self, act: Activation, weight: Array, bias: Array) -> Value:
        coefficients, mean = self._reduce(weight, bias)
        (first, _), (along, across) = coefficients
        if first == 0 and along == 0:
            return _value(*_pair_log(act, mean[0], mean[1], np.zeros(())))
        # Distances from the kink of the first neuron, not from zero: when the second kink is near,
        # neurons of opposite signs are both active in a wedge that rounding u would blur.
        origin = (act.kinks[0] - mean[0]) / first if first != 0 else 0.0
        origin = origin if abs(origin) < 100 else 0.0
        m1, m2 = mean + origin * coefficients[:, 0]
        m1 = act.kinks[0] if origin != 0 else m1
        # where each neuron crosses a kink, or, for the second, where its mean given u does
        slopes = [(first, m1), (along, m2)]
        breaks = [(k - m) / s for s, m in slopes if s != 0 for k in act.kinks]

        def f(x: Array) -> tuple[Array, NDArray]:
            log_density = -((origin + x) ** 2) / 2 - 0.5 * np.log(2 * np.pi)
            if across == 0:
                return _pair_log(act, m1 + first * x, m2 + along * x, log_density)
            log1, phase1 = act.log(m1 + first * x)
            log2, phase2 = _smoothed(act, m2 + along * x, across)
            return log1 + log2 + log_density, phase1 * np.conj(phase2)

        reach = 40.0 + 2 * max((abs(x + origin) for x in breaks), default=0.0)
        # near a kink of the second neuron its average over v changes within across / along
        marks = [_graded((k - m2) / along, across / abs(along), 20.0) for k in act.kinks if along]
        return _integrate(f, -reach - origin, reach - origin, breaks, np.concatenate([[], *marks]))


def _normal_box(act: Activation, coefficients: Array, mean: Array) -> list[tuple[float, float]]:
    """Return the part of the (u, v) plane that matters for E sigma(z_1) sigma(z_2)."""
    default = (-12.0, 12.0)
    if act.log_value is None:
        return [default, default]
    # An activation that decays moves the mass into the tails of the normal law.
    box = [(-45.0, 45.0), (-45.0, 45.0) if coefficients[1, 1] else (0.0, 0.0)]
    for _ in range(12):
        u, v = (np.linspace(*side, 161) for side in box)
        grid = np.stack(np.meshgrid(u, v, indexing="ij"))  # (2, 161, 161)
        z = np.tensordot(coefficients, grid, 1) + mean[:, None, None]
        logs = _pair_log(act, z[0], z[1], -(grid**2).sum(0) / 2)[0]
        kept = np.nonzero(logs > logs.max() - DROP)
        new = []
        for side, index in zip((u, v), kept, strict=True):
            new.append((side[max(index.min() - 2, 0)], side[min(index.max() + 2, 160)]))
        if all(b - a > 0.7 * (d - c) for (a, b), (c, d) in zip(new, box, strict=True) if d > c):
            return new
        box = new
    return box


def _smoothed(act: Activation, mean: Array, scale: float) -> tuple[Array, NDArray]:
    """Return the logarithm and phase of E sigma(mean + scale v), v standard normal."""
    panels = 4 + int((act.bandwidth + 3 * act.precision**0.5) * scale * 2)
    logs, phases = [], []
    for below, above in pairwise([-np.inf, *sorted(act.kinks), np.inf]):
        low, high = (below - mean) / scale, (above - mean) / scale
        # Distances y from the point of the piece nearest to the origin: in the far tails, where
        # there is nothing but a boundary layer at a kink, v itself would not resolve it.
        nearest = np.clip(0.0, low, high)
        reach = 2 * DROP / (np.abs(nearest) + np.sqrt(nearest**2 + 2 * DROP))
        y, log_w = _rows(
            np.maximum(low - nearest, -reach), np.minimum(high - nearest, reach), panels
        )
        start = np.where(nearest > 0, below, np.where(nearest < 0, above, mean))
        log_s, phase = act.log(start[:, None] + scale * y)
        log_density = -(nearest[:, None] ** 2) / 2 - (nearest[:, None] + y / 2) * y
        logs.append(log_s + log_w + log_density - 0.5 * np.log(2 * np.pi))
        phases.append(phase)
    return _log_sum(np.concatenate(logs, 1), np.concatenate(phases, 1), axis=1)


def _log_sine(angle: Array, power: int) -> Array:
    return np.zeros_like(angle) if power == 0 else power * np.log(np.sin(angle))


@lru_cache(maxsize=64)
def _log_area(power: int) -> float:
    return _log_integral(lambda angle: _log_sine(angle, power), 0.0, np.pi)


@dataclass(frozen=True, eq=False)
class Sphere(Law):
    """The uniform probability measure on the unit sphere of R^d, d >= 2."""

    d: int

    @property
    def dim(self) -> int:
        return self.d

    def log_laplace(self, eta: Array) -> float:
        kappa = float(np.linalg.norm(eta))

        def log_f(angle: Array) -> Array:  # kappa (cos - 1) without cancellation
            return -2 * kappa * np.sin(angle / 2) ** 2 + _log_sine(angle, self.d - 2)

        return kappa + (_log_integral(log_f, 0.0, np.pi) - _log_area(self.d - 2))

    def factors(self, act: Activation, weight: Array, bias: Array) -> list[Nodes]:
        coefficients = _plane(weight)
        length = np.abs(coefficients).sum()
        order = _order(act, 2 * length) + self.d
        if self.d == 2:
            angle = 2 * np.pi * np.arange(2 * order) / (2 * order)
            points = np.stack([np.cos(angle), np.sin(angle)], 1)
            return [_nodes(points, np.full(2 * order, -np.log(2 * order)), coefficients)]
        nodes, weights = _legendre(order)
        angle = np.pi * nodes
        log_w = np.log(weights) + _log_sine(angle, self.d - 2)
        log_w -= special.logsumexp(log_w)
        points = np.stack([np.cos(angle), np.zeros(order)], 1)
        if coefficients[1, 1] != 0:
            log_v = np.log(weights) + _log_sine(angle, self.d - 3)
            log_w = np.add.outer(log_w, log_v - special.logsumexp(log_v)).ravel()
            up = np.repeat(np.cos(angle), order)
            points = np.stack([up, np.outer(np.sin(angle), np.cos(angle)).ravel()], 1)
        return [_nodes(points, log_w, coefficients)]

    def kinked(self, act: Activation, weight: Array, bias: Array) -> Value:
        (first, _), (along, across) = _plane(weight)
        radius, tilt = np.hypot(along, across), np.arctan2(across, along)
        breaks = []
        for size, centre, b in ((first, 0.0, bias[0]), (radius, tilt, bias[1])):
            for kink in act.kinks:
                if size > abs(kink - b):
                    half = np.arccos((kink - b) / size)
                    # in d > 2 the second neuron's kink touches the circle of latitude at
                    # angles mirrored in the axis as well
                    ends = np.array([centre + half, centre - half, half - centre, -centre - half])
                    breaks.extend(np.mod(ends, 2 * np.pi))

        def f(angle: Array) -> tuple[Array, NDArray]:
            if across == 0 or self.d == 2:
                z2 = along * np.cos(angle) + across * np.sin(angle) + bias[1]
                log_w = _log_sine(angle, self.d - 2)
                return _pair_log(act, first * np.cos(angle) + bias[0], z2, log_w)
            log1, phase1 = act.log(first * np.cos(angle) + bias[0])
            centre = along * np.cos(angle) + bias[1]
            log2, phase2 = self._latitude(act, centre, across * np.sin(angle))
            return log1 + log2 + _log_sine(angle, self.d - 2), phase1 * np.conj(phase2)

        if self.d == 2:
            log_k, phase = _integrate(f, 0.0, 2 * np.pi, breaks)
            return log_k - np.log(2 * np.pi), phase
        log_k, phase = _integrate(f, 0.0, np.pi, breaks)
        return log_k - _log_area(self.d - 2), phase

    def _latitude(self, act: Activation, centre: Array, radius: Array) -> tuple[Array, NDArray]:
        """Return the mean of sigma(centre + radius cos) over a sphere of one dimension less."""
        cosines = (np.sort(act.kinks)[::-1, None] - centre) / radius
        inner = np.arccos(np.clip(cosines, -1.0, 1.0))
        edges = np.concatenate([np.zeros_like(inner[:1]), inner, np.full_like(inner[:1], np.pi)])
        panels = 3 + int((act.bandwidth + 3 * act.precision**0.5) * np.max(radius) / 3)
        logs, phases = [], []
        for low, high in pairwise(edges):
            angle, log_w = _rows(low, high, panels)
            log_s, phase = act.log(centre[:, None] + radius[:, None] * np.cos(angle))
            with np.errstate(divide="ignore"):
                logs.append(log_s + log_w + _log_sine(angle, self.d - 3))
            phases.append(phase)
        log_g, phase = _log_sum(np.concatenate(logs, 1), np.concatenate(phases, 1), axis=1)
        return log_g - _log_area(self.d - 3), phase


@dataclass(frozen=True, eq=False)
class Box(Law):
    """The uniform probability measure on a box; `low`, `high` (D,). Kinks need D <= 2."""

    low: Array
    high: Array

    @property
    def dim(self) -> int:
        return np.atleast_1d(self.low).shape[0]

    @property
    def _sides(self) -> list[tuple[float, float]]:
        return [*zip(np.atleast_1d(self.low), np.atleast_1d(self.high), strict=True)]

    @property
    def _log_volume(self) -> float:
        return float(sum(np.log(b - a) for a, b in self._sides))

    def log_laplace(self, eta: Array) -> float:
        sides = zip(self._sides, eta, strict=True)
        return sum(_log_slope(e, a, b) for (a, b), e in sides) - self._log_volume

    def factors(self, act: Activation, weight: Array, bias: Array) -> list[Nodes]:
        sides = zip(self._sides, weight.T, strict=True)
        return [_interval_nodes(act, a, b, w, -np.log(b - a)) for (a, b), w in sides]

    def kinked(self, act: Activation, weight: Array, bias: Array) -> Value:
        if self.dim == 1:
            log_k, phase = _interval_pair(act, *self._sides[0], weight[:, 0], bias)
        elif self.dim == 2:
            log_k, phase = self._rectangle(act, weight, bias)
        else:
            raise NotImplementedError(f"{act.name} under a Box of dimension {self.dim} > 2")
        return log_k - self._log_volume, phase

    def _rectangle(self, act: Activation, weight: Array, bias: Array) -> Value:
        side, (low, high) = self._sides
        kinks = [(w, k - b) for w, b in zip(weight, bias, strict=True) for k in act.kinks]
        # the inner integral changes its form where kink lines leave the box or cross
        breaks = [(k - w[1] * y) / w[0] for w, k in kinks for y in (low, high) if w[0] != 0]
        for n, (w1, k1) in enumerate(kinks):
            for w2, k2 in kinks[:n]:
                determinant = w1[0] * w2[1] - w1[1] * w2[0]
                if determinant != 0:
                    breaks.append((k1 * w2[1] - k2 * w1[1]) / determinant)

        def f(x: Array) -> tuple[Array, NDArray]:
            lines = [(k - w[0] * x) / w[1] for w, k in kinks if w[1] != 0]
            inner = [np.clip(line, low, high) for line in lines]
            edges = np.sort([np.full_like(x, low), *inner, np.full_like(x, high)], axis=0)
            logs, phases = [], []
            for start, end in pairwise(edges):
                y, log_w = _rows(start, end, 3)
                z = weight @ np.stack([np.broadcast_to(x[:, None], y.shape), y]).reshape(2, -1)
                z = z.reshape(2, *y.shape) + bias[:, None, None]
                log_s, phase = _pair_log(act, z[0], z[1], log_w)
                logs.append(log_s)
                phases.append(phase)
            return _log_sum(np.concatenate(logs, 1), np.concatenate(phases, 1), axis=1)

        return _integrate(f, *side, breaks)


def _log_slope(eta: float, low: float, high: float) -> float:
    return _log_integral(lambda x: eta * x, low, high)


def _interval_nodes(act: Activation, low: float, high: float, w: Array, log_mass: float) -> Nodes:
    nodes, weights = _legendre(_order(act, np.abs(w).sum() * (high - low) / 2))
    x = low + (high - low) * nodes
    return Nodes(w[0] * x, w[1] * x, np.log(weights * (high - low)) + log_mass)


def _interval_pair(act: Activation, low: float, high: float, w: Array, bias: Array) -> Value:
    slopes = zip(w, bias, strict=True)
    breaks = [(k - b) / s for s, b in slopes if s != 0 for k in act.kinks]

    def f(x: Array) -> tuple[Array, NDArray]:
        return _pair_log(act, w[0] * x + bias[0], w[1] * x + bias[1], np.zeros_like(x))

    return _integrate(f, low, high, breaks)


@dataclass(frozen=True, eq=False)
class Intervals(Law):
    """Lebesgue measure on a union of disjoint intervals; `lows`, `highs` (k,)."""

    lows: Array
    highs: Array

    @property
    def dim(self) -> int:
        return 1

    @property
    def _sides(self) -> list[tuple[float, float]]:
        return [*zip(np.atleast_1d(self.lows), np.atleast_1d(self.highs), strict=True)]

    def log_laplace(self, eta: Array) -> float:
        logs = [_log_slope(eta[0], a, b) for a, b in self._sides]
        return float(special.logsumexp(logs))

    def factors(self, act: Activation, weight: Array, bias: Array) -> list[Nodes]:
        parts = [_interval_nodes(act, a, b, weight[:, 0], 0.0) for a, b in self._sides]
        return [Nodes(*(np.concatenate(x) for x in zip(*parts, strict=True)))]

    def kinked(self, act: Activation, weight: Array, bias: Array) -> Value:
        parts = [_interval_pair(act, a, b, weight[:, 0], bias) for a, b in self._sides]
        return _add(parts)


@dataclass(frozen=True, eq=False)
class Density(Law):
    """A density on the reals, smooth but for a kink at `loc`, and negligible beyond `reach`."""

    log_density: Callable[[Array], Array]
    loc: float
    scale: float
    reach: float  # in scales, exponential tilts included

    @property
    def dim(self) -> int:
        return 1

    def log_laplace(self, eta: Array) -> float:
        def f(x: Array) -> tuple[Array, NDArray]:
            return eta[0] * x + self.log_density(x), np.ones_like(x)

        reach = self.scale * self.reach
        return _integrate(f, self.loc - reach, self.loc + reach, [self.loc])[0]

    def factors(self, act: Activation, weight: Array, bias: Array) -> list[Nodes]:
        # Panels as long as the distance to poles next to the axis, at most half a period.
        size = self.scale / (1 + act.bandwidth * np.abs(weight).sum() * self.scale / 3)
        count = math.ceil(self.reach * self.scale / size)
        ends = self.loc + np.linspace(-self.reach, self.reach, 2 * count + 1) * self.scale
        x, log_w = _rows(ends[:-1], ends[1:], 1)
        x, log_w = x.ravel(), log_w.ravel()
        return [_nodes(x[:, None], log_w + self.log_density(x), weight)]


def student_t(df: float, loc: float, scale: float) -> Density:
    """Return Student's law, beyond whose reach fourth moments are below 1e-12 for df = 8."""
    return Density(lambda x: stats.t.logpdf(x, df, loc, scale), loc, scale, 2000.0)


def laplace(loc: float, scale: float) -> Density:
    """Return the law of Laplace."""
    return Density(lambda x: stats.laplace.logpdf(x, loc, scale), loc, scale, 400.0)


def logistic(loc: float, scale: float) -> Density:
    """Return the logistic law."""
    return Density(lambda x: stats.logistic.logpdf(x, loc, scale), loc, scale, 400.0)


@dataclass(frozen=True, eq=False)
class SmoothBox(Law):
    """The law of a point of a box plus normal noise; `low`, `high`, `scale` (D,)."""

    low: Array
    high: Array
    scale: Array

    @property
    def dim(self) -> int:
        return len(self.low)

    def log_laplace(self, eta: Array) -> float:
        noise = Gaussian(np.zeros_like(self.low), np.diag(self.scale**2))
        return Box(self.low, self.high).log_laplace(eta) + noise.log_laplace(eta)

    def factors(self, act: Activation, weight: Array, bias: Array) -> list[Nodes]:
        sides = zip(self.low, self.high, self.scale, weight.T, strict=True)
        parts = [(_smooth_interval(a, b, s), w[:, None]) for a, b, s, w in sides]
        return [nodes for law, w in parts for nodes in law.factors(act, w, bias)]


def _smooth_interval(low: float, high: float, scale: float) -> Density:
    middle, half = (low + high) / 2, (high - low) / 2

    def log_density(x: Array) -> Array:
        near, far = (half - abs(x - middle)) / scale, (-half - abs(x - middle)) / scale
        log_near, log_far = special.log_ndtr(near), special.log_ndtr(far)
        return log_near + np.log1p(-np.exp(log_far - log_near)) - np.log(2 * half)

    # Panels as long as two scales resolve the edges. Ten scales beyond them, nothing is left.
    return Density(log_density, middle, 2 * scale, half / (2 * scale) + 5.0)


@dataclass(frozen=True, eq=False)
class NormalFamily(Law):
    """Lebesgue measure on R^d with t = (x, x^2); exp only."""

    d: int

    @property
    def dim(self) -> int:
        return 2 * self.d

    def log_laplace(self, eta: Array) -> float:
        return sum(self._line(a, c) for a, c in zip(eta[: self.d], eta[self.d :], strict=True))

    def _line(self, a: float, c: float) -> float:
        if c >= 0:
            raise ValueError(f"expected a negative coefficient of x^2, found {c}")
        reach = 30 / np.sqrt(-c)
        centre = -a / (2 * c)
        return _log_integral(lambda x: (a + c * x) * x, centre - reach, centre + reach)


@dataclass(frozen=True, eq=False)
class GammaFamily(Law):
    """Lebesgue measure on the positive numbers with t = (log x, -x); exp only."""

    @property
    def dim(self) -> int:
        return 2

    def log_laplace(self, eta: Array) -> float:
        shape, rate = eta[0] + 1, eta[1]
        if shape <= 0 or rate <= 0:
            raise ValueError(f"expected shape > 0 and rate > 0, found {shape} and {rate}")
        peak = np.log(shape / rate)
        # in y = log x - peak, relative to the value at the peak
        low, high = -90 / shape - 15 / np.sqrt(shape), np.log1p(90 / shape) + 3
        log_z = _log_integral(lambda y: shape * (y - np.expm1(y)), low, high)
        return float(shape * (peak - 1) + log_z)


@dataclass(frozen=True, eq=False)
class DirichletFamily(Law):
    """Lebesgue measure in the first d - 1 coordinates of the simplex, t = log x; exp only."""

    d: int

    @property
    def dim(self) -> int:
        return self.d

    def log_laplace(self, eta: Array) -> float:
        shape = np.asarray(eta, float) + 1
        if np.any(shape <= 0):
            raise ValueError(f"expected every shape > 0, found {shape}")
        # Broken like a stick, the simplex is a product of intervals.
        rest = np.cumsum(shape[::-1])[::-1]
        return sum(self._stick(shape[k], rest[k + 1]) for k in range(self.d - 1))

    def _stick(self, left: float, right: float) -> float:
        """Integrate x^(left - 1) (1 - x)^(right - 1) in the variable logit x."""

        def log_f(y: Array) -> Array:
            return left * special.log_expit(y) + right * special.log_expit(-y)

        # either factor alone is 100 nats below the peak beyond its bound
        drop = 100 - float(log_f(np.log(left / right)))
        return _log_integral(
            log_f, _log_expit_inverse(drop / left), -_log_expit_inverse(drop / right)
        )


def _log_expit_inverse(drop: float) -> float:
    """Return where log expit is -drop."""
    return -drop - np.log(-np.expm1(-drop))


@dataclass(frozen=True, eq=False)
class Atoms(Law):
    """Finitely many points (k, D), or (k,) for D = 1, with masses (k,)."""

    points: Array
    masses: Array

    @property
    def _points(self) -> Array:
        points = np.asarray(self.points, float)
        return points[:, None] if points.ndim == 1 else points

    @property
    def dim(self) -> int:
        return self._points.shape[1]

    def atoms(self) -> tuple[Array, Array]:
        """Return points (k, D) and log-masses (k,)."""
        with np.errstate(divide="ignore"):
            return self._points, np.log(np.asarray(self.masses, float))

    def log_laplace(self, eta: Array) -> float:
        points, log_mass = self.atoms()
        return float(special.logsumexp(points @ eta + log_mass))

    def factors(self, act: Activation, weight: Array, bias: Array) -> list[Nodes]:
        points, log_mass = self.atoms()
        return [Nodes(points @ weight[0], points @ weight[1], log_mass)]

    def kinked(self, act: Activation, weight: Array, bias: Array) -> Value:
        points, log_mass = self.atoms()
        z = points @ weight.T + bias
        return _value(*_log_sum(*_pair_log(act, z[:, 0], z[:, 1], log_mass)))


@dataclass(frozen=True, eq=False)
class Counting(Law):
    """Masses on 0, 1, 2, ...; `log_mass` an array (N + 1,) or a function, eventually decreasing."""

    log_mass: Array | Callable[[Array], Array]

    @property
    def dim(self) -> int:
        return 1

    def _sum(self, term: Integrand) -> tuple[Array, Array, NDArray]:
        """Return 0..N, term(x) + log mass and phases, with N past everything that counts."""
        if not callable(self.log_mass):
            x = np.arange(len(self.log_mass), dtype=float)
            logs, phases = term(x)
            return x, logs + self.log_mass, phases
        size = 128
        while size <= MAX_TERMS:
            x = np.arange(size, dtype=float)
            logs, phases = term(x)
            log_mass = self.log_mass(x)
            logs = logs + log_mass
            done = logs[size // 2 :].max() < logs.max() - DROP
            # neurons that are never both active leave no term to compare with
            if done or (logs.max() == -np.inf and log_mass[-1] < -HOPELESS):
                return x, logs, phases
            size *= 2
        raise NotImplementedError(f"more than {MAX_TERMS} terms in a sum over the integers")

    def atoms(self) -> tuple[Array, Array]:
        """Return points (k, 1) and log-masses (k,) of all but a negligible mass."""
        x, log_mass, _ = self._sum(lambda x: (np.zeros_like(x), np.ones_like(x)))
        keep = log_mass > log_mass.max() - DROP
        return x[keep, None], log_mass[keep]

    def log_laplace(self, eta: Array) -> float:
        logs = self._sum(lambda x: (eta[0] * x, np.ones_like(x)))[1]
        return float(special.logsumexp(logs))

    def factors(self, act: Activation, weight: Array, bias: Array) -> list[Nodes]:
        points, log_mass = self.atoms()
        return [Nodes(points @ weight[0], points @ weight[1], log_mass)]

    def kinked(self, act: Activation, weight: Array, bias: Array) -> Value:
        def term(x: Array) -> tuple[Array, NDArray]:
            z1, z2 = weight[0] * x + bias[0], weight[1] * x + bias[1]
            return _pair_log(act, z1, z2, np.zeros_like(x))

        _, logs, phases = self._sum(term)
        return _value(*_log_sum(logs, phases))

    def _needs_bias(self, act: Activation) -> bool:
        # A decaying activation moves the mass as a kinked one does.
        return bool(act.kinks) or act.log_value is not None


def poisson_family() -> Counting:
    """Return the masses 1/x!."""
    return Counting(lambda x: -special.gammaln(x + 1))


def poisson(rate: float) -> Counting:
    """Return the Poisson probabilities."""
    return Counting(lambda x: x * np.log(rate) - rate - special.gammaln(x + 1))


def geometric(probs: float) -> Counting:
    """Return the probabilities probs (1 - probs)^x."""
    return Counting(lambda x: np.log(probs) + x * np.log1p(-probs))


def negative_binomial(count: float, probs: float) -> Counting:
    """Return the probabilities of successes before failures, SciPy's with the names swapped."""
    return Counting(lambda x: stats.nbinom.logpmf(x, count, 1 - probs))


def binomial(count: int, probs: float) -> Counting:
    """Return the binomial probabilities."""
    return Counting(stats.binom.logpmf(np.arange(count + 1), count, probs))


@dataclass(frozen=True, eq=False)
class Mixture(Law):
    """A weighted sum of laws of one dimension."""

    weights: Array
    laws: Sequence[Law]

    @property
    def dim(self) -> int:
        return self.laws[0].dim

    def pair(self, act: Activation, weight: Array, bias: Array) -> Value:
        parts = (law.pair(act, weight, bias) for law in self.laws)
        terms = zip(np.log(self.weights), parts, strict=True)
        return _add((log_p + log_k, phase) for log_p, (log_k, phase) in terms)

    def log_laplace(self, eta: Array) -> float:
        logs = [law.log_laplace(eta) for law in self.laws]
        return float(special.logsumexp(logs + np.log(self.weights)))


def GaussianMixture(weights: Array, locs: Array, covs: Array) -> Mixture:
    """Return a mixture of normal laws: weights (k,), locs (k, D), covs (k, D, D)."""
    return Mixture(weights, [Gaussian(m, c) for m, c in zip(locs, covs, strict=True)])


@dataclass(frozen=True, eq=False)
class Product(Law):
    """Independent laws, their statistics concatenated.

    Kinked activations need at most one continuous factor that is not Gaussian, and no Gaussian
    beside it; discrete factors are always welcome.
    """

    laws: Sequence[Law]

    @property
    def dim(self) -> int:
        return sum(law.dim for law in self.laws)

    def _split(self, weight: Array) -> list[Array]:
        return np.split(weight, np.cumsum([law.dim for law in self._flat])[:-1], axis=-1)

    def log_laplace(self, eta: Array) -> float:
        parts = zip(self._flat, self._split(eta), strict=True)
        return sum(law.log_laplace(part) for law, part in parts)

    def pair(self, act: Activation, weight: Array, bias: Array) -> Value:
        for index, law in enumerate(self._flat):
            if isinstance(law, Mixture):
                return self._distribute(index, law).pair(act, weight, bias)
        return super().pair(act, weight, bias)

    def _needs_bias(self, act: Activation) -> bool:
        return bool(act.kinks) or act.log_value is not None

    @property
    def _flat(self) -> list[Law]:
        parts = (law._flat if isinstance(law, Product) else [law] for law in self.laws)
        return [law for part in parts for law in part]

    def _distribute(self, index: int, mixture: Mixture) -> Mixture:
        before, after = self._flat[:index], self._flat[index + 1 :]
        return Mixture(mixture.weights, [Product([*before, x, *after]) for x in mixture.laws])

    def _merged(self, weight: Array) -> tuple[list[tuple[Law, Array]], list[tuple[Law, Array]]]:
        """Return discrete and continuous laws with their weights, Gaussians made into one."""
        parts = [*zip(self._flat, self._split(weight), strict=True)]
        discrete = [p for p in parts if isinstance(p[0], Atoms | Counting)]
        gaussian = [(law, w) for law, w in parts if isinstance(law, Gaussian)]
        others = [p for p in parts if not isinstance(p[0], Atoms | Counting | Gaussian)]
        if gaussian:
            loc = np.concatenate([np.atleast_1d(g.loc) for g, _ in gaussian])
            cov = linalg.block_diag(*(np.atleast_2d(g.cov) for g, _ in gaussian))
            others.append((Gaussian(loc, cov), np.concatenate([w for _, w in gaussian], axis=1)))
        return discrete, others

    def factors(self, act: Activation, weight: Array, bias: Array) -> list[Nodes]:
        discrete, continuous = self._merged(weight)
        return [n for law, w in discrete + continuous for n in law.factors(act, w, bias)]

    def kinked(self, act: Activation, weight: Array, bias: Array) -> Value:
        discrete, continuous = self._merged(weight)
        if len(continuous) > 1:
            names = ", ".join(type(law).__name__ for law in self.laws)
            raise NotImplementedError(f"{act.name} under a Product of {names}")
        atoms = Nodes(np.zeros(1), np.zeros(1), np.zeros(1))
        for law, w in discrete:
            atoms = _convolve(atoms, *law.factors(act, w, bias))
        shifted = bias + np.stack(atoms[:2], 1)  # (k, 2)
        if not continuous:
            logs, phases = _pair_log(act, shifted[:, 0], shifted[:, 1], atoms.log_w)
            return _value(*_log_sum(logs, phases))
        law, w = continuous[0]
        parts = zip(shifted, atoms.log_w, strict=True)
        values = [(law.pair(act, w, b), log_p) for b, log_p in parts]
        return _add((log_k + log_p, phase) for (log_k, phase), log_p in values)


# ----------------------------------------------------------------------------- kernels, normaliser


def log_kernel_matrix(
    act: Activation | str, law: Law, weight: Array, bias: Array
) -> tuple[Array, NDArray]:
    """Return log|K| and the phase of K, both (n, n).

    Arguments:
        act: An activation, or the name of one with its default parameters.
        law: The law of the statistic t.
        weight: (n, D).
        bias: (n,).

    The phase is 1, -1 or 0, or a complex number of modulus 1 for complex activations, with
    K_ij the integral of sigma_i conj(sigma_j).
    """
    act = activation(act)
    weight, bias = np.asarray(weight, float), np.asarray(bias, float)
    n = len(weight)
    if weight.shape != (n, law.dim) or bias.shape != (n,):
        expected = f"weight ({n}, {law.dim}) and bias ({n},)"
        raise ValueError(f"expected {expected}, found {weight.shape} and {bias.shape}")
    log_k = np.empty((n, n))
    phase = np.empty((n, n), complex)
    for i in range(n):
        for j in range(i, n):
            log_k[i, j], phase[i, j] = law.pair(act, weight[[i, j]], bias[[i, j]])
            log_k[j, i], phase[j, i] = log_k[i, j], np.conj(phase[i, j])
    return log_k, phase if act.name == "cis" or np.any(phase.imag) else phase.real


def kernel_matrix(act: Activation | str, law: Law, weight: Array, bias: Array) -> NDArray:
    """Return K (n, n), which may overflow or underflow where its logarithm does not."""
    log_k, phase = log_kernel_matrix(act, law, weight, bias)
    return phase * np.exp(log_k)


def log_normalizer(
    act: Activation | str, law: Law, weight: Array, bias: Array, gram: NDArray
) -> float:
    """Return log Re sum_ij conj(gram_ij) K_ij, gram (n, n) symmetric or Hermitian."""
    log_k, phase = log_kernel_matrix(act, law, weight, bias)
    log_m, phase_m = _log_phase(np.asarray(gram))
    log_z, sign = _log_sum(log_k + log_m, np.real(phase * np.conj(phase_m)))
    if sign < 0:
        raise ValueError("expected a positive semidefinite gram, found a negative normaliser")
    return float(log_z)
