"""The oracle against mpmath, known values, symmetries and Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import mpmath as mp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from tests.oracle import (
    Activation,
    Atoms,
    Box,
    Counting,
    DirichletFamily,
    GammaFamily,
    Gaussian,
    GaussianMixture,
    Intervals,
    Law,
    Mixture,
    NormalFamily,
    Product,
    Sphere,
    activation,
    geometric,
    kernel_matrix,
    log_kernel_matrix,
    log_normalizer,
    poisson,
    poisson_family,
)

Array = NDArray[np.float64]
TOLERANCE = 1e-12

SMOOTH = ["cos", "sin", "cis", "snake", "identity", "erf", "gelu"]
KINKED = ["step", "relu", "leaky"]
COV = np.array([[1.3, 0.4], [0.4, 0.7]])
LOC = np.array([0.3, -0.2])


def weights(n: int, dim: int, seed: int = 0, scale: float = 1.0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return scale * rng.normal(size=(n, dim)), rng.normal(size=n)


def relative_error(act: Activation | str, law: Law, w: Array, b: Array, expected: object) -> float:
    """Return |K_12 - expected| / sqrt(K_11 K_22), in extended precision."""
    log_k, phase = log_kernel_matrix(act, law, w, b)
    found = mp.exp(mp.mpf(float(log_k[0, 1]))) * mp.mpmathify(complex(phase[0, 1]))
    return float(abs(found - expected) / mp.exp(mp.mpf(float(log_k[0, 0] + log_k[1, 1])) / 2))


@pytest.fixture(autouse=True)
def _precision() -> object:
    with mp.workdps(25):
        yield


# ------------------------------------------------------------------- references in mpmath


def normal_pdf(x: mp.mpf) -> mp.mpf:
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def normal_cdf(x: mp.mpf) -> mp.mpf:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def relu_moment(power: int, c: mp.mpf, s: mp.mpf) -> mp.mpf:
    """Return E (c + s v)_+^power, v standard normal."""
    if s == 0:
        return c**power if c > 0 else mp.mpf(0)
    before, last = normal_cdf(c / s), c * normal_cdf(c / s) + s * normal_pdf(c / s)
    if power == 0:
        return before
    for k in range(2, power + 1):
        before, last = last, c * last + (k - 1) * s * s * before
    return last


def gelu_mean(c: mp.mpf, s: mp.mpf) -> mp.mpf:
    t = mp.sqrt(1 + s * s)
    return c * normal_cdf(c / t) + s * s / t * normal_pdf(c / t)


def snake_mean(a: float, c: mp.mpf, s: mp.mpf) -> mp.mpf:
    return c + (1 - mp.cos(2 * a * c) * mp.exp(-2 * (a * s) ** 2)) / (2 * a)


Mean = Callable[[mp.mpf, mp.mpf], mp.mpf]
# E sigma(c + s v): one neuron at a time, so that no formula for a pair enters
MEANS: dict[str, tuple[Activation, Mean]] = {
    "cos": (activation("cos"), lambda c, s: mp.cos(c) * mp.exp(-s * s / 2)),
    "sin": (activation("sin"), lambda c, s: mp.sin(c) * mp.exp(-s * s / 2)),
    "snake": (activation("snake", 1.7), partial(snake_mean, 1.7)),
    "identity": (activation("identity"), lambda c, s: c),
    "erf": (activation("erf"), lambda c, s: mp.erf(c / mp.sqrt(1 + 2 * s * s))),
    "gelu": (activation("gelu"), gelu_mean),
    "step": (activation("step"), partial(relu_moment, 0)),
    "relu": (activation("relu"), partial(relu_moment, 1)),
    "relu3": (activation("relu", 3), partial(relu_moment, 3)),
    "leaky": (
        activation("leaky", 0.1),
        lambda c, s: mp.mpf("0.9") * relu_moment(1, c, s) + mp.mpf("0.1") * c,
    ),
}


def bivariate(w: Array, b: Array, loc: Array, cov: Array) -> tuple[mp.mpf, ...]:
    """Return m1, s1, m2, slope of z2 on the first standard normal, and its residual scale."""
    w_, c_, m_ = (mp.matrix(x.tolist()) for x in (w, cov, loc))
    s = w_ * c_ * w_.T
    m = w_ * m_
    s1 = mp.sqrt(s[0, 0])
    slope = s[0, 1] / s1
    return m[0] + b[0], s1, m[1] + b[1], slope, mp.sqrt(max(s[1, 1] - slope**2, 0))


def gaussian_reference(mean: Mean, w: Array, b: Array, loc: Array, cov: Array) -> mp.mpf:
    """Integrate over the first neuron, the second being averaged given the first."""
    m1, s1, m2, slope, rest = bivariate(w, b, loc, cov)

    def f(u: mp.mpf) -> mp.mpf:
        return mean(m1 + s1 * u, mp.mpf(0)) * mean(m2 + slope * u, rest) * normal_pdf(u)

    kinks = [k for k in (-m1 / s1, -m2 / slope) if abs(k) < 10]
    panels = sorted([*map(mp.mpf, range(-10, 11, 2)), *kinks])
    return mp.quad(f, panels, method="gauss-legendre", maxdegree=4)


def bessel_laplace(d: int, kappa: float) -> mp.mpf:
    """Return the integral of exp(kappa x_1) over the sphere, by its power series."""
    return mp.hyp0f1(mp.mpf(d) / 2, mp.mpf(kappa) ** 2 / 4)


def bessel_fourier(d: int, vector: Array) -> mp.mpf:
    squared = mp.fsum(mp.mpf(float(x)) ** 2 for x in vector)
    return mp.hyp0f1(mp.mpf(d) / 2, -squared / 4)


def cos_reference(chi: Callable[[Array], mp.mpc], w: Array, b: Array) -> mp.mpf:
    """Return K_12 of cos from a characteristic function."""
    minus = mp.expj(mp.mpf(b[0]) - mp.mpf(b[1])) * chi(w[0] - w[1])
    plus = mp.expj(mp.mpf(b[0]) + mp.mpf(b[1])) * chi(w[0] + w[1])
    return mp.re(minus + plus) / 2


# ------------------------------------------------------------------------------- activations


def test_activations() -> None:
    z = np.array([-1.5, 0.0, 2.0])
    assert activation("step").value(z).tolist() == [0, 0, 1]
    assert activation("relu", 2).value(z).tolist() == [0, 0, 4]
    assert activation("leaky", 0.1).value(z) == pytest.approx([-0.15, 0, 2])
    assert activation("exp", 0.5).value(z) == pytest.approx(np.exp(z / 2))
    assert activation("snake", 2.0).value(z) == pytest.approx(z + np.sin(2 * z) ** 2 / 2)
    assert activation("snake", 2.0, offset=False).value(z) == pytest.approx(
        z + np.sin(2 * z) ** 2 / 2 - 0.25
    )
    assert activation("gelu").value(z) == pytest.approx(z * special.ndtr(z))
    assert activation("cis").value(z) == pytest.approx(np.cos(z) + 1j * np.sin(z))


@pytest.mark.parametrize("name", [*SMOOTH, *KINKED, "exp"])
def test_activation_logs_agree_with_values(name: str) -> None:
    act = activation(name)
    z = np.linspace(-3, 3, 13)
    log, phase = act.log(z)
    np.testing.assert_allclose(phase * np.exp(log), act.value(z), rtol=1e-14, atol=1e-16)
    assert act.kinks == ((0.0,) if name in KINKED else ())


def test_activation_from_a_function() -> None:
    law = Gaussian(LOC, COV)
    w, b = weights(3, 2)
    custom = activation(lambda z: np.abs(z), kinks=[0.0])
    absolute = activation("leaky", -1.0)
    np.testing.assert_allclose(
        kernel_matrix(custom, law, w, b), kernel_matrix(absolute, law, w, b), rtol=1e-13
    )


# ---------------------------------------------------------------------- every law, every activation

Sampler = Callable[[np.random.Generator, int], Array]


def sphere_sample(d: int, rng: np.random.Generator, n: int) -> Array:
    x = rng.normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def gaussian_sample(rng: np.random.Generator, n: int) -> Array:
    return rng.multivariate_normal(LOC, COV, size=n)


def mixture_sample(rng: np.random.Generator, n: int) -> Array:
    pick = rng.random(n) < 0.3
    return np.where(pick[:, None], gaussian_sample(rng, n), rng.normal(size=(n, 2)) - 1)


def interval_sample(rng: np.random.Generator, n: int) -> Array:
    x = 3 * rng.random(n)  # lengths 1 and 2
    return np.where(x < 1, x - 2, x - 0.5)[:, None]


POINTS = np.array([[0.0, 1.0], [-1.0, 0.5], [2.0, -0.3]])
MASSES = np.array([0.2, 0.5, 0.3])
COUNTS = np.array([0.1, 0.4, 0.2, 0.3])

# a law, its total mass, and a sampler of the law divided by that mass
LAWS: dict[str, tuple[Law, float, Sampler]] = {
    "gaussian": (Gaussian(LOC, COV), 1.0, gaussian_sample),
    "mixture": (
        GaussianMixture(
            np.array([0.3, 0.7]), np.array([LOC, [-1.0, -1.0]]), np.array([COV, np.eye(2)])
        ),
        1.0,
        mixture_sample,
    ),
    "circle": (Sphere(2), 1.0, partial(sphere_sample, 2)),
    "sphere": (Sphere(3), 1.0, partial(sphere_sample, 3)),
    "sphere 7": (Sphere(7), 1.0, partial(sphere_sample, 7)),
    "segment": (
        Box(np.array([-1.0]), np.array([2.0])),
        1.0,
        lambda rng, n: 3 * rng.random((n, 1)) - 1,
    ),
    "rectangle": (
        Box(np.array([-1.0, 0.0]), np.array([2.0, 1.5])),
        1.0,
        lambda rng, n: rng.random((n, 2)) * [3, 1.5] - [1, 0],
    ),
    "intervals": (Intervals(np.array([-2.0, 0.5]), np.array([-1.0, 2.5])), 3.0, interval_sample),
    "poisson": (poisson(2.3), 1.0, lambda rng, n: rng.poisson(2.3, (n, 1)).astype(float)),
    "poisson family": (
        poisson_family(),
        math.e,
        lambda rng, n: rng.poisson(1.0, (n, 1)).astype(float),
    ),
    "geometric": (
        geometric(0.4),
        1.0,
        lambda rng, n: (rng.geometric(0.4, (n, 1)) - 1).astype(float),
    ),
    "counting": (
        Counting(np.log(COUNTS)),
        1.0,
        lambda rng, n: rng.choice(4, (n, 1), p=COUNTS).astype(float),
    ),
    "atoms": (
        Atoms(POINTS, 2 * MASSES),
        2.0,
        lambda rng, n: POINTS[rng.choice(3, n, p=MASSES)],
    ),
    "atom in a normal law": (
        Mixture(
            np.array([0.4, 0.6]),
            [Atoms(np.array([0.0]), np.array([1.0])), Gaussian(np.zeros(1), np.eye(1))],
        ),
        1.0,
        lambda rng, n: np.where(rng.random(n) < 0.4, 0.0, rng.normal(size=n))[:, None],
    ),
    "product": (
        Product([Gaussian(LOC, COV), Counting(np.log(COUNTS)), Gaussian(np.zeros(1), np.eye(1))]),
        1.0,
        lambda rng, n: np.column_stack(
            [gaussian_sample(rng, n), rng.choice(4, n, p=COUNTS), rng.normal(size=n)]
        ),
    ),
}
EVERY = [*SMOOTH, *KINKED, "exp"]


def neurons(law: Law, act: str, seed: int, scale: float = 1.0) -> tuple[Array, Array]:
    """Return three neurons with a finite kernel."""
    w, b = weights(3, law.dim, seed, scale)
    # exp(eta x) has a geometric sum for small eta only
    return (-np.abs(w) if law is LAWS["geometric"][0] and act == "exp" else w), b


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("act", EVERY)
def test_total_mass(act: str, name: str) -> None:
    law, mass, _ = LAWS[name]
    b = np.array([0.7, 1.9])
    value = activation(act).value(b)
    expected = mass * np.outer(value, value.conj())
    found = kernel_matrix(act, law, np.zeros((2, law.dim)), b)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("name", LAWS)
def test_monte_carlo(name: str) -> None:
    """30,000 draws, to five standard errors: 6e-7 is the rate of false alarms of one entry.

    An error of 0.03 standard deviations of the products is seen half of the time.
    """
    law, mass, sample = LAWS[name]
    n = 30_000
    t = sample(np.random.default_rng(1), n)
    for act in EVERY:
        w, b = neurons(law, act, seed=2, scale=0.6)
        value = activation(act).value(t @ w.T + b)  # (n, 3)
        product = mass * value[:, :, None] * value[:, None, :].conj()
        k = kernel_matrix(act, law, w, b)
        # five standard errors, and what may lie in events too rare to be seen
        bound = 5 * product.std(0) / n**0.5 + 10 / n * np.max(np.abs(k))
        assert np.all(np.abs(product.mean(0) - k) < bound), act


@pytest.mark.parametrize("name", ["gaussian", "sphere", "sphere 7", "rectangle", "product"])
@pytest.mark.parametrize("act", ["cos", "gelu", *KINKED])
def test_order_of_neurons(act: str, name: str) -> None:
    # The first neuron of a pair gives the outer variable: swapped, it is another double integral.
    law = LAWS[name][0]
    w, b = weights(3, law.dim, seed=3)
    w[2] = -w[0]
    k = kernel_matrix(act, law, w, b)
    swapped = kernel_matrix(act, law, w[::-1], b[::-1])[::-1, ::-1]
    size = np.sqrt(np.outer(np.diag(k).real, np.diag(k).real))
    assert np.all(np.abs(k - swapped) <= TOLERANCE * size)


# ---------------------------------------------------------------------------------- Gaussian laws


@pytest.mark.parametrize("name", MEANS)
def test_gaussian_pair(name: str) -> None:
    act, mean = MEANS[name]
    w, b = np.array([[1.2, -0.7], [0.4, 1.9]]), np.array([0.3, -0.8])
    expected = gaussian_reference(mean, w, b, LOC, COV)
    assert relative_error(act, Gaussian(LOC, COV), w, b, expected) < TOLERANCE


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize(
    ("scale", "bias"), [(1.0, 0.5), (30.0, 2.0), (1.0, 20.0), (0.05, -1.0), (1.0, -6.0)]
)
def test_gaussian_independent_pair(name: str, scale: float, bias: float) -> None:
    act, mean = MEANS[name]
    w = scale * np.array([[0.6, -0.8, 0.0], [0.8, 0.6, 0.0]])
    b = np.array([bias, -0.3 * bias])
    zero, one = np.zeros(3), np.eye(3)
    m1, s1, m2, slope, rest = bivariate(w, b, zero, one)
    assert abs(slope) < 1e-14 * scale
    expected = mean(m1, s1) * mean(m2, rest)
    assert relative_error(act, Gaussian(zero, one), w, b, expected) < TOLERANCE


@pytest.mark.parametrize("power", [0, 1, 2, 3])
@pytest.mark.parametrize("h", [-30.0, -20.0, -3.0, 0.0, 20.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_gaussian_diagonal_in_the_tails(power: int, h: float, scale: float) -> None:
    act = activation("relu", power) if power else activation("step")
    w, b = scale * np.array([[0.6, 0.8]]), np.array([h * scale])
    log_k, phase = log_kernel_matrix(act, Gaussian(np.zeros(2), np.eye(2)), w, b)
    with mp.workdps(60):  # the recursion for moments cancels
        c, s = mp.mpf(b[0]), mp.sqrt(mp.mpf(w[0, 0]) ** 2 + mp.mpf(w[0, 1]) ** 2)
        expected = mp.log(relu_moment(2 * power, c, s))
    assert phase[0, 0] == 1
    assert abs(log_k[0, 0] - expected) < 1e-14 * (1 + h * h)


@pytest.mark.parametrize("name", ["step", "relu", "gelu"])
@pytest.mark.parametrize("rho", [0.9, 0.3])
def test_gaussian_pair_in_the_tails(name: str, rho: float) -> None:
    act, mean = MEANS[name]
    w, b = np.array([[1.0, 0.0], [rho, math.sqrt(1 - rho**2)]]), np.array([-20.0, -19.0])
    zero, one = np.zeros(2), np.eye(2)
    log_k, _ = log_kernel_matrix(act, Gaussian(zero, one), w, b)
    m1, s1, m2, slope, rest = bivariate(w, b, zero, one)

    size = mp.exp(mp.mpf(float(log_k[0, 1])))  # mp.quad stops at an absolute error

    def f(u: mp.mpf) -> mp.mpf:
        return mean(m1 + s1 * u, mp.mpf(0)) * mean(m2 + slope * u, rest) * normal_pdf(u) / size

    panels = mp.linspace(3, 20, 18) if name == "gelu" else mp.linspace(20, 25, 11)
    # relative to K_12 itself, which is far below sqrt(K_11 K_22)
    assert abs(mp.quad(f, panels, method="gauss-legendre", maxdegree=5) - 1) < TOLERANCE


@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-8, 1e-4, 0.3])
@pytest.mark.parametrize("sign", [1, -1])
def test_gaussian_nearly_parallel_step_and_relu(gap: float, sign: int) -> None:
    w = np.array([[3.0, 4.0, 0.0], sign * np.array([3.0, 4.0, 5 * gap])])
    law = Gaussian(np.zeros(3), np.eye(3))
    angle = mp.atan(mp.mpf(gap)) if sign == 1 else mp.pi - mp.atan(mp.mpf(gap))
    step = (mp.pi - angle) / (2 * mp.pi)
    relu = mp.sin(angle) + (mp.pi - angle) * mp.cos(angle)
    relu *= 25 * mp.sqrt(1 + mp.mpf(gap) ** 2) / (2 * mp.pi)
    assert relative_error("step", law, w, np.zeros(2), step) < TOLERANCE
    assert relative_error("relu", law, w, np.zeros(2), relu) < TOLERANCE


@pytest.mark.parametrize("gap", [1e-13, 1e-11, 1e-9])
def test_gaussian_nearly_antiparallel_with_bias(gap: float) -> None:
    law = Gaussian(np.zeros(2), np.eye(2))
    w, b = np.array([[1.0, 0.0], [-1.0, gap]]), np.array([0.9, 0.125])
    # the limit of parallel weights, from which the gap takes its square only
    expected = normal_cdf(mp.mpf(b[0])) - normal_cdf(-mp.mpf(b[1]))
    assert relative_error("step", law, w, b, expected) < TOLERANCE
    # a wedge about as narrow as rounding: nothing to compare with, but no failure either
    log_k, _ = log_kernel_matrix("relu", law, w, np.array([-9.5, 9.5 + 10 * gap]))
    assert log_k[0, 1] < np.log(1e3 * gap) + log_k[0, 0] / 2 + log_k[1, 1] / 2


def test_gaussian_parallel_with_bias() -> None:
    w, b = np.array([[2.0], [-1.0]]), np.array([1.0, 0.7])  # active together on (-0.5, 0.7)
    expected = mp.quad(lambda u: (2 * u + 1) * (mp.mpf(b[1]) - u) * normal_pdf(u), [-0.5, b[1]])
    assert relative_error("relu", Gaussian(np.zeros(1), np.eye(1)), w, b, expected) < TOLERANCE
    log_k, phase = log_kernel_matrix(
        "relu", Gaussian(np.zeros(1), np.eye(1)), w, np.array([-1.0, -1.0])
    )
    assert log_k[0, 1] == -np.inf
    assert phase[0, 1] == 0


def test_gaussian_singular_covariance() -> None:
    one, both = np.array([[1.0, 1.0], [1.0, 1.0]]), np.array([[1.0], [1.0]])
    w, b = weights(3, 2, seed=4)
    for act in ("cos", "relu", "exp", "gelu"):
        found = kernel_matrix(act, Gaussian(np.zeros(2), one), w, b)
        expected = kernel_matrix(act, Gaussian(np.zeros(1), np.eye(1)), w @ both, b)
        np.testing.assert_allclose(found, expected, rtol=1e-7)  # an eigenvalue of 1e-17 for 0


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1000.0])
def test_gaussian_exp(scale: float) -> None:
    w, b = weights(2, 2, scale=scale)
    eta = mp.matrix(w.sum(0).tolist())
    c, m = mp.matrix(COV.tolist()), mp.matrix(LOC.tolist())
    expected = mp.fsum(b.tolist()) + (eta.T * m)[0] + (eta.T * c * eta)[0] / 2
    log_k, _ = log_kernel_matrix("exp", Gaussian(LOC, COV), w, b)
    assert abs(log_k[0, 1] - expected) < 1e-13 + 1e-15 * abs(expected)


@pytest.mark.parametrize("frequency", [1.0, 30.0])
def test_gaussian_oscillating(frequency: float) -> None:
    direction = np.array([0.6, 0.8])
    w = frequency * np.array([direction, direction + 0.01])
    b = np.array([20.0, -20.0])

    def chi(v: Array) -> mp.mpf:
        return mp.exp(-mp.fsum(mp.mpf(float(x)) ** 2 for x in v) / 2)

    law = Gaussian(np.zeros(2), np.eye(2))
    assert relative_error("cos", law, w, b, cos_reference(chi, w, b)) < TOLERANCE
    cis = mp.expj(mp.mpf(b[0]) - mp.mpf(b[1])) * chi(w[0] - w[1])
    assert relative_error("cis", law, w, b, cis) < TOLERANCE


# ---------------------------------------------------------------------------------------- spheres


@pytest.mark.parametrize("d", [2, 3, 4, 5, 20])
@pytest.mark.parametrize("kappa", [0.0, 1e-3, 1.0, 60.0, 1e3])
def test_sphere_exp(d: int, kappa: float) -> None:
    w = np.zeros((2, d))
    w[:, -1] = kappa / 2
    log_k, _ = log_kernel_matrix("exp", Sphere(d), w, np.array([0.5, 0.25]))
    expected = mp.log(bessel_laplace(d, kappa)) + mp.mpf("0.75")
    assert abs(log_k[0, 1] - expected) < 1e-13 * (1 + kappa)


@pytest.mark.parametrize("d", [3, 5])
def test_sphere_exp_concentrated(d: int) -> None:
    kappa = 1e6
    w = np.zeros((1, d))
    w[0, 0] = kappa / 2
    log_k, _ = log_kernel_matrix("exp", Sphere(d), w, np.zeros(1))
    k = mp.mpf(kappa)
    surface = mp.exp(k) * (1 - 1 / k if d == 5 else 1)  # sinh and cosh up to exp(-2 kappa)
    expected = mp.log(surface * (3 / k**2 / 2 if d == 5 else 1 / k / 2))
    assert abs(log_k[0, 0] - expected) < 2 * np.spacing(kappa)


@pytest.mark.parametrize("d", [2, 3, 4, 9])
@pytest.mark.parametrize("frequency", [1.0, 30.0])
def test_sphere_oscillating(d: int, frequency: float) -> None:
    w, b = weights(2, d, seed=5)
    w *= frequency / np.linalg.norm(w, axis=1, keepdims=True)
    expected = cos_reference(partial(bessel_fourier, d), w, b)
    assert relative_error("cos", Sphere(d), w, b, expected) < TOLERANCE


@pytest.mark.parametrize("d", [2, 3, 4, 9])
def test_sphere_and_gaussian_agree_on_homogeneous_activations(d: int) -> None:
    # x = |x| (x / |x|), and the two are independent
    w, b = weights(3, d, seed=6)[0], np.zeros(3)
    w[2] = -2 * w[0]
    normal = Gaussian(np.zeros(d), np.eye(d))
    for act, moment in ((activation("step"), 1), (activation("relu"), d), (activation("leaky"), d)):
        found, other = (kernel_matrix(act, law, w, b) for law in (Sphere(d), normal))
        np.testing.assert_allclose(moment * found, other, rtol=1e-12, atol=1e-13)


def test_sphere_relu_with_bias_on_an_axis() -> None:
    w, b = np.array([[0.0, 0.0, 2.0], [0.0, 0.0, -3.0]]), np.array([0.5, 1.0])
    expected = mp.quad(lambda s: (2 * s + mp.mpf("0.5")) * (1 - 3 * s) / 2, [-0.25, mp.mpf(1) / 3])
    assert relative_error("relu", Sphere(3), w, b, expected) < TOLERANCE


# -------------------------------------------------------------------------- boxes and intervals


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_box_oscillating(scale: float) -> None:
    low, high = np.array([-1.0, 0.0, 0.5]), np.array([1.0, 0.5, 2.0])
    w, b = weights(2, 3, seed=7)
    w *= scale / np.linalg.norm(w, axis=1, keepdims=True)

    def chi(v: Array) -> mp.mpc:
        parts = zip(map(mp.mpf, v.tolist()), low, high, strict=True)
        return mp.fprod(mp.expj(e * (x + y) / 2) * mp.sinc(e * (y - x) / 2) for e, x, y in parts)

    expected = cos_reference(chi, w, b)
    assert relative_error("cos", Box(low, high), w, b, expected) < TOLERANCE


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_box_exp(scale: float) -> None:
    low, high = np.array([-1.0, 0.0]), np.array([1.0, 0.5])
    w, b = scale * np.array([[1.0, -2.0], [0.5, 0.25]]), np.zeros(2)
    expected = mp.mpf(0)
    for e, x, y in zip(map(mp.mpf, w.sum(0)), low, high, strict=True):
        width = mp.mpf(y - x)
        expected += mp.log((mp.exp(e * y) - mp.exp(e * x)) / (e * width)) if e else 0
    log_k, _ = log_kernel_matrix("exp", Box(low, high), w, b)
    assert abs(log_k[0, 1] - expected) < 1e-13 * (1 + scale)


@pytest.mark.parametrize("act", ["step", "relu", "leaky"])
@pytest.mark.parametrize("bias", [0.0, -2.5, 3.0])
def test_rectangle_in_either_order(act: str, bias: float) -> None:
    w, b = weights(4, 2, seed=8, scale=2.0)
    w[1] = -w[0]
    w[2, 0] = 0.0
    low, high = np.array([-1.0, 0.0]), np.array([2.0, 1.5])
    found = kernel_matrix(act, Box(low, high), w, b + bias)
    turned = kernel_matrix(act, Box(low[::-1], high[::-1]), w[:, ::-1], b + bias)
    np.testing.assert_allclose(found, turned, rtol=1e-12, atol=1e-15 * np.max(np.abs(found)))


def test_rectangle_triangle_areas() -> None:
    w, b = np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([-1.0, 0.0])
    found = kernel_matrix("step", Box(np.zeros(2), np.ones(2)), w, b)
    np.testing.assert_allclose(found, [[0.5, 0.25], [0.25, 0.5]], rtol=1e-13)
    # moments of the triangle {x + y > 1}, by hand: E (x + y - 1)^2 = 1/12
    relu = kernel_matrix("relu", Box(np.zeros(2), np.ones(2)), w, b)
    np.testing.assert_allclose(relu[0, 0], 1 / 12, rtol=1e-13)


@pytest.mark.parametrize("name", ["cos", "erf", "gelu", "relu", "relu3", "leaky", "step"])
def test_intervals(name: str) -> None:
    act, mean = MEANS[name]
    w, b = np.array([[1.5], [-2.0]]), np.array([0.6, 1.0])
    lows, highs = np.array([-2.0, 0.25]), np.array([-0.1, 3.0])

    def f(x: mp.mpf) -> mp.mpf:
        return mean(w[0, 0] * x + mp.mpf(b[0]), mp.mpf(0)) * mean(w[1, 0] * x + b[1], mp.mpf(0))

    kink = -mp.mpf(b[0]) / w[0, 0]
    pieces = ([lows[0], kink, highs[0]], [lows[1], mp.mpf("0.5"), 1, 2, highs[1]])
    expected = mp.fsum(mp.quad(f, piece) for piece in pieces)
    assert relative_error(act, Intervals(lows, highs), w, b, expected) < TOLERANCE


# ---------------------------------------------------------------------------- exponential families


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_normal_family(scale: float) -> None:
    w = np.array([[0.3, -1.0, -0.5, -2.0], [1.2, 0.7, -0.1, -0.01]])
    b = np.array([0.4, -3.0])
    eta = scale * w.sum(0)

    def line(a: float, c: float) -> mp.mpf:
        return mp.quad(lambda x: mp.exp(a * x + c * x * x), mp.linspace(-30, 30, 41), maxdegree=4)

    expected = mp.log(line(eta[0], eta[2]) * line(eta[1], eta[3])) + scale * b.sum()
    log_k, _ = log_kernel_matrix(activation("exp", scale), NormalFamily(2), w, b)
    assert abs(log_k[0, 1] - expected) < TOLERANCE


@pytest.mark.parametrize("shape", [-0.999, -0.5, 0.0, 3.0, 500.0])
@pytest.mark.parametrize("rate", [1e-3, 1.0, 70.0])
def test_gamma_family(shape: float, rate: float) -> None:
    w = np.array([[shape / 2, rate / 2]])
    log_k, _ = log_kernel_matrix("exp", GammaFamily(), w, np.zeros(1))
    a, r = mp.mpf(float(2 * w[0, 0])) + 1, mp.mpf(float(2 * w[0, 1]))
    assert abs(log_k[0, 0] - (mp.loggamma(a) - a * mp.log(r))) < 1e-13 * (1 + abs(log_k[0, 0]))


def test_gamma_family_by_quadrature() -> None:
    w = np.array([[0.7, 1.1], [1.3, 0.4]])
    log_k, _ = log_kernel_matrix("exp", GammaFamily(), w, np.zeros(2))
    expected = mp.log(mp.quad(lambda x: x**2 * mp.exp(-1.5 * x), [0, 1, 4, 16, mp.inf]))
    assert abs(log_k[0, 1] - expected) < TOLERANCE


@pytest.mark.parametrize(
    "eta", [(-0.999, 0.5), (0.0, 0.0), (40.0, -0.9), (-0.98, -0.98, -0.98), (1.0, 20.0, -0.5, 3.0)]
)
def test_dirichlet_family(eta: tuple[float, ...]) -> None:
    w = np.array([eta]) / 2
    log_k, _ = log_kernel_matrix("exp", DirichletFamily(len(eta)), w, np.zeros(1))
    shape = [1 + mp.mpf(float(2 * x)) for x in w[0]]
    expected = mp.fsum(map(mp.loggamma, shape)) - mp.loggamma(mp.fsum(shape))
    assert abs(log_k[0, 0] - expected) < 1e-13 * (1 + abs(log_k[0, 0]))


def test_dirichlet_family_by_quadrature() -> None:
    w = np.array([[0.5, 1.0, 1.5], [0.5, 1.0, 0.5]])
    log_k, _ = log_kernel_matrix("exp", DirichletFamily(3), w, np.zeros(2))
    with mp.workdps(15):
        # x y^2 (1 - x - y)^2 over the triangle, a polynomial: Gauss-Legendre is exact
        expected = mp.log(
            mp.quad(
                lambda x: mp.quad(
                    lambda y: x * y**2 * (1 - x - y) ** 2,
                    [0, 1 - x],
                    method="gauss-legendre",
                    maxdegree=2,
                ),
                [0, 1],
                method="gauss-legendre",
                maxdegree=2,
            )
        )
    assert abs(log_k[0, 1] - expected) < TOLERANCE


@pytest.mark.parametrize(
    ("law", "w"),
    [
        (NormalFamily(1), [[0.0, 0.1]]),
        (GammaFamily(), [[-0.5, 1.0]]),
        (DirichletFamily(2), [[-0.5, 1.0]]),
    ],
)
def test_families_refuse_what_diverges(law: Law, w: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="expected"):
        log_kernel_matrix("exp", law, np.array(w), np.zeros(1))


# ------------------------------------------------------------------------------------ discrete laws


@pytest.mark.parametrize("name", ["cos", "snake", "erf", "gelu", "relu", "relu3", "step"])
def test_counting_by_extended_sums(name: str) -> None:
    act, mean = MEANS[name]
    w, b = np.array([[0.5], [1.5]]), np.array([0.7, -20.0])

    def f(x: int) -> mp.mpf:
        z1, z2 = w[0, 0] * x + mp.mpf(b[0]), w[1, 0] * x + mp.mpf(b[1])
        return mean(z1, mp.mpf(0)) * mean(z2, mp.mpf(0))

    masses: list[tuple[Law, Callable[[int], mp.mpf]]] = [
        (poisson_family(), lambda x: 1 / mp.factorial(x)),
        (poisson(3.0), lambda x: mp.mpf(3) ** x * mp.exp(-3) / mp.factorial(x)),
        (geometric(0.25), lambda x: mp.mpf("0.25") * mp.mpf("0.75") ** x),
    ]
    for law, mass in masses:
        expected = mp.fsum(mass(x) * f(x) for x in range(300))
        assert relative_error(act, law, w, b, expected) < TOLERANCE


@pytest.mark.parametrize("eta", [-30.0, 0.0, 2.0, 8.0])
def test_poisson_family_exp(eta: float) -> None:
    log_k, _ = log_kernel_matrix("exp", poisson_family(), np.array([[eta / 2]]), np.zeros(1))
    assert abs(log_k[0, 0] - mp.exp(eta)) < 1e-13 + 2e-15 * eta * math.exp(eta)


def test_counting_never_active() -> None:
    w, b = np.array([[-1.0], [-2.0]]), np.array([-1.0, 0.0])
    log_k, phase = log_kernel_matrix("relu", Counting(np.log(COUNTS)), w, b)
    assert np.all(log_k == -np.inf)
    assert np.all(phase == 0)


# ---------------------------------------------------------------------------- mixtures and products


@pytest.mark.parametrize("act", EVERY)
def test_product_of_gaussians_is_gaussian(act: str) -> None:
    w, b = weights(3, 3, seed=9)
    cov = np.zeros((3, 3))
    cov[:2, :2], cov[2, 2] = COV, 0.5
    parts = Product([Gaussian(LOC, COV), Gaussian(np.array([1.0]), np.array([[0.5]]))])
    whole = Gaussian(np.array([*LOC, 1.0]), cov)
    np.testing.assert_allclose(
        kernel_matrix(act, parts, w, b), kernel_matrix(act, whole, w, b), rtol=1e-12, atol=1e-14
    )


def test_product_oscillating() -> None:
    normal = Gaussian(np.array([0.5]), np.eye(1))
    laws = [Box(np.zeros(1), np.ones(1)), poisson(2.0), Sphere(2), normal]
    w, b = weights(2, 5, seed=10)
    w[1] = w[0] + 0.3 * w[1]  # so that K is not all rounding

    def chi(v: Array) -> mp.mpc:
        box, count, *_, line = map(mp.mpf, v.tolist())
        bounded = mp.expj(box / 2) * mp.sinc(box / 2)
        counted = mp.exp(2 * (mp.expj(count) - 1))
        return bounded * counted * bessel_fourier(2, v[2:4]) * mp.exp(mp.mpc(-line / 2, 0.5) * line)

    expected = cos_reference(chi, w, b)
    assert relative_error("cos", Product(laws), w, b, expected) < TOLERANCE


@pytest.mark.parametrize("act", ["relu", "gelu", "cos", "exp"])
def test_product_distributes_over_mixtures(act: str) -> None:
    normal, atoms = Gaussian(LOC, COV), Atoms(np.array([-1.0, 0.5]), np.array([0.3, 0.7]))
    spike = Mixture(np.array([0.25, 0.75]), [Atoms(np.array([0.0]), np.array([1.0])), atoms])
    w, b = weights(2, 3, seed=11)
    found = kernel_matrix(act, Product([normal, Product([spike])]), w, b)
    points, masses = [0.0, -1.0, 0.5], [0.25, 0.225, 0.525]
    expected = sum(
        p * kernel_matrix(act, normal, w[:, :2], b + w[:, 2] * x)
        for x, p in zip(points, masses, strict=True)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# --------------------------------------------------------------------------------------- normaliser


def test_log_normalizer_is_the_integral_of_the_square() -> None:
    rng = np.random.default_rng(12)
    w, b = rng.normal(size=(3, 1)), rng.normal(size=3)
    readout = rng.normal(size=(2, 3)) + 1j * rng.normal(size=(2, 3))

    def density(x: float) -> float:
        return float(np.sum(np.abs(readout @ np.exp(1j * (w[:, 0] * x + b))) ** 2))

    x, step = np.linspace(-12, 12, 4001, retstep=True)
    normal = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    expected = np.log(step * np.sum([density(u) for u in x] * normal))
    gram = readout.conj().T @ readout
    found = log_normalizer("cis", Gaussian(np.zeros(1), np.eye(1)), w, b, gram)
    assert found == pytest.approx(expected, abs=1e-12)


def test_log_normalizer_neither_over_nor_underflows() -> None:
    w, b = np.array([[1e6, 0.0, 0.0], [0.0, 1e6, 0.0]]), np.zeros(2)
    found = log_normalizer("exp", Sphere(3), w, b, np.eye(2))
    assert found == pytest.approx(2e6 - np.log(4e6) + np.log(2), rel=1e-15)
    law = Gaussian(np.zeros(2), np.eye(2))
    found = log_normalizer("relu", law, np.eye(2), np.array([-40.0, -40.0]), np.eye(2))
    expected = mp.log(2 * relu_moment(2, mp.mpf(-40), mp.mpf(1)))
    assert abs(found - expected) < TOLERANCE


def test_log_normalizer_of_nothing() -> None:
    law = Gaussian(np.zeros(1), np.eye(1))
    assert log_normalizer("relu", law, np.zeros((1, 1)), -np.ones(1), np.eye(1)) == -np.inf
    with pytest.raises(ValueError, match="positive semidefinite"):
        log_normalizer("cos", law, np.ones((1, 1)), np.ones(1), -np.eye(1))


# -------------------------------------------------------------------------------------- refusals


def test_refusals_name_what_was_found() -> None:
    with pytest.raises(NotImplementedError, match="cos under GammaFamily"):
        log_kernel_matrix("cos", GammaFamily(), np.ones((1, 2)), np.zeros(1))
    with pytest.raises(NotImplementedError, match="dimension 3"):
        log_kernel_matrix("relu", Box(np.zeros(3), np.ones(3)), np.ones((1, 3)), np.zeros(1))
    with pytest.raises(NotImplementedError, match="Sphere, Gaussian"):
        law = Product([Sphere(2), Gaussian(LOC, COV)])
        log_kernel_matrix("relu", law, np.ones((1, 4)), np.zeros(1))
    with pytest.raises(ValueError, match="expected weight"):
        log_kernel_matrix("cos", Sphere(2), np.ones((1, 3)), np.zeros(1))
    with pytest.raises(ValueError, match="tanh"):
        activation("tanh")
