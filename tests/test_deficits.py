"""Sines and snakes of small weights: what a characteristic function lacks of one, and moments.

The integral of products of sines is half the difference of two deficits 1 - φ(ω). At a frequency
of 1e-9 both are 1e-18: as differences of numbers near one they would have no digits.
"""

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from pyro_snefy import SNEFY
from pyro_snefy.activations import Sin, Snake
from pyro_snefy.bases import (
    Bernoulli,
    Binomial,
    Gaussian,
    Geometric,
    Interval,
    Laplace,
    Logistic,
    NegativeBinomial,
    Poisson,
    Product,
    SmoothBox,
    StudentT,
    UniformBox,
    UniformCube,
    UniformSphere,
)
from pyro_snefy.numerics.matern import matern_deficit
from pyro_snefy.numerics.segments import segment_moments, segment_series
from pyro_snefy.operations.restricted import _TruncatedGaussian

F64 = torch.float64
INF = torch.inf
FREQUENCIES = (1e-12, 1e-6, 1e-3, 0.3)


def _t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def _n(value: float) -> Tensor:
    return torch.tensor(value, dtype=F64)


def _failures(count: float, q: Any) -> Callable[[Any], Any]:
    q = mpf(q)
    mean = count * q / (1 - q)

    def transform(omega: Any) -> Any:
        return mpmath.expj(-omega * mean) * ((1 - q) / (1 - q * mpmath.expj(omega))) ** count

    return transform


def _trials(count: int, p: float) -> Callable[[Any], Any]:
    p = mpf(p)
    one = lambda omega: p * mpmath.expj(omega * (1 - p)) + (1 - p) * mpmath.expj(-omega * p)  # noqa: E731
    return lambda omega: one(omega) ** count


CASES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "Poisson": (
        Poisson(_n(2.5)),
        lambda w: mpmath.exp(2.5 * (mpmath.expj(w) - 1 - 1j * w)),
    ),
    "rare Poisson": (
        Poisson(_n(2.0**-7)),
        lambda w: mpmath.exp(mpf(2) ** -7 * (mpmath.expj(w) - 1 - 1j * w)),
    ),
    "Geometric": (Geometric(_n(0.25)), _failures(1, 0.75)),
    "NegativeBinomial": (NegativeBinomial(_n(0.125), _n(0.75)), _failures(mpf(0.125), 0.75)),
    "Binomial": (Binomial(_n(5.0), _n(0.25)), _trials(5, 0.25)),
    "Bernoulli": (Bernoulli(_n(0.75)), _trials(1, 0.75)),
    "Laplace": (Laplace(_n(0.5), _n(2.0)), lambda w: 1 / (1 + 4 * w**2)),
    "Logistic": (
        Logistic(_n(0.5), _n(2.0)),
        lambda w: 2 * mpmath.pi * w / mpmath.sinh(2 * mpmath.pi * w),
    ),
}


@pytest.mark.parametrize("omega", FREQUENCIES)
@pytest.mark.parametrize("name", CASES)
def test_deficits(name: str, omega: float) -> None:
    """The real part has a small relative error, the imaginary part one relative to its bound."""
    base, transform = CASES[name]
    with mpmath.workdps(60):
        expected = 1 - transform(mpf(omega))
        real, imag = base.deficit(_t(omega).unsqueeze(-1))
        assert abs(real.item() / expected.real - 1) < 1e-14
        scale = omega * float(base.mean(real)) + omega
        found = 0.0 if imag is None else imag.item()
        assert abs(found - expected.imag) < 1e-15 * scale
        real, imag = base.characteristic(_t(omega).unsqueeze(-1))
        assert abs(real.item() - (1 - expected).real) < 1e-15


@pytest.mark.parametrize("omega", (0.7, 3.1, 40.0))
@pytest.mark.parametrize("name", CASES)
def test_fast_deficits(name: str, omega: float) -> None:
    base, transform = CASES[name]
    expected = complex(1 - transform(mpf(omega)))
    real, imag = base.deficit(_t(omega).unsqueeze(-1))
    assert real.item() == pytest.approx(expected.real, abs=1e-14)
    assert (0.0 if imag is None else imag.item()) == pytest.approx(expected.imag, abs=1e-13)


@pytest.mark.parametrize("order", [0.5, 0.9, 1.0, 1.02, 1.6, 2.0, 10.0, 500.0])
def test_student(order: float) -> None:
    """1 - 𝓜_p against Bessel functions of 80 digits."""
    squares = [1e-18, 1e-10, 1e-4, 0.09, 1.0, 900.0]
    found = matern_deficit(_n(order), _t(*squares)).tolist()
    with mpmath.workdps(80):
        for square, value in zip(squares, found, strict=True):
            p, s = mpf(order), mpmath.sqrt(mpf(square))
            expected = 1 - 2 ** (1 - p) / mpmath.gamma(p) * s**p * mpmath.besselk(p, s)
            assert abs(value / expected - 1) < (1e-9 if order == 0.5 else 1e-13)


def test_derivatives_of_student() -> None:
    inputs = [_t(0.7, 1.3, 2.5, 8.0), _t(0.3, 1.2, 0.01, 4.0)]
    inputs = [x.requires_grad_() for x in inputs]
    assert gradcheck(matern_deficit, inputs)
    assert gradgradcheck(matern_deficit, inputs)
    # With respect to the order, too, of the order of s².
    order, square = _n(2.5).requires_grad_(), _n(1e-12)
    (slope,) = torch.autograd.grad(matern_deficit(order, square), order)
    assert float(slope) == pytest.approx(-1e-12 / 4 / 1.5**2, rel=1e-9)  # s² / 4 (p - 1)


SEGMENTS = [
    (-INF, INF),
    (-1.0, 2.0),
    (0.0, INF),
    (-INF, -1.0),
    (3.0, 3.5),
    (40.0, INF),
    (-INF, -300.0),
    (7.0, 7.0 + 2.0**-19),
    (-8.0, 20.0),
    (1000.0, 1001.0),
]


def _segment(low: float, high: float) -> tuple[Any, Callable[[Callable[[Any], Any]], Any]]:
    """The place of the peak, and expectations of functions of the distance from the mean."""
    peak = mpf(min(max(low, 0.0), high))
    reach = 25 if abs(peak) < 10 else 250 / abs(peak)
    ends = mpmath.linspace(max(mpf(low), peak - reach), min(mpf(high), peak + reach), 9)

    def integral(function: Callable[[Any], Any]) -> Any:
        return mpmath.quad(lambda t: mpmath.exp((peak**2 - t**2) / 2) * function(t), ends)

    mass = integral(lambda t: 1)
    mean = integral(lambda t: t - peak) / mass
    return peak + mean, lambda function: integral(lambda t: function(t - peak - mean)) / mass


@pytest.mark.parametrize(("low", "high"), SEGMENTS, ids=str)
def test_truncated_normal(low: float, high: float) -> None:
    """Moments, deficits and slopes at low frequencies: relative errors of 3e-14."""
    with mpmath.workdps(30):
        mean, expectation = _segment(low, high)
        variance = expectation(lambda t: t**2)
        found_mean, found_variance = segment_moments(_t(low), _t(high))
        rounding = 1e-15 * abs(mean) / mpmath.sqrt(variance)
        assert abs(found_mean.item() - mean) / mpmath.sqrt(variance) < 1e-13 + rounding
        assert abs(found_variance.item() / variance - 1) < 3e-14
        for share in (1e-12, 1e-6, 1e-2, 0.09):
            omega = mpf(float(share / mpmath.sqrt(variance)))
            # Divided by powers of ω, since the errors of mpmath's quadrature are absolute.
            real = expectation(lambda t, w=omega: 2 * (mpmath.sin(w * t / 2) / w) ** 2) * omega**2
            imag = expectation(lambda t, w=omega: mpmath.sin(w * t) - w * t)
            steep = expectation(lambda t, w=omega: t * mpmath.sin(w * t) / w) * omega
            flat = expectation(lambda t, w=omega: t * (mpmath.cos(w * t) - 1))
            base = _TruncatedGaussian(_n(0.0), _n(1.0), _n(low), _n(high), 0)
            row = _t(float(omega)).unsqueeze(-1)
            assert abs(base.deficit(row)[0].item() / real - 1) < 3e-14
            assert abs(base.deficit(row)[1].item() + imag) < 1e-13 * share
            slopes = [x.item() for x in base.characteristic_moment(row)]
            assert abs(slopes[1] / steep - 1) < 3e-14
            assert abs(slopes[0] - flat) < 1e-13 * abs(steep)


@pytest.mark.parametrize(("low", "high"), SEGMENTS, ids=str)
def test_pairs_in_a_segment(low: float, high: float) -> None:
    """Deficits of pairs of waves to 1e-13, and products of sines of tiny weights relatively."""
    base = _TruncatedGaussian(_n(0.0), _n(1.0), _n(low), _n(high), 0)
    with mpmath.workdps(30):
        _, expectation = _segment(low, high)
        scale = mpmath.sqrt(expectation(lambda t: t**2))
        for share in (1e-9, 0.5, 6.0):
            weight = _t(float(share / scale), float(-0.7 * share / scale)).unsqueeze(-1)
            assert base._count(weight) is not None
            first, second = (mpf(x) for x in weight.squeeze(-1).tolist())
            found = base.pair_deficits(weight)
            for (real, imag), omega in zip(found, (first - second, first + second), strict=True):
                assert imag is not None
                cos = expectation(lambda t, w=omega: mpmath.cos(w * t))
                sin = expectation(lambda t, w=omega: mpmath.sin(w * t))
                assert abs(1 - real[0, 1].item() - cos) < 1e-13
                assert abs(-imag[0, 1].item() - sin) < 1e-13
            product = (found[1][0] - found[0][0])[0, 1].item() / 2
            size = first * second
            exact = expectation(
                lambda t, a=first, b=second: mpmath.sin(a * t) * mpmath.sin(b * t) / (a * b)
            )
            assert abs(product - size * exact) < 1e-13 * abs(size) * scale**2


def test_truncated_normal_at_the_switch() -> None:
    """Both forms agree where one takes over from the other."""
    low, high = _n(-0.5), _n(1.5)
    scale = float(segment_moments(low, high)[1].sqrt())
    base = _TruncatedGaussian(_n(0.0), _n(1.0), low, high, 0)
    rows = _t(0.1 / scale * (1 - 1e-9), 0.1 / scale * (1 + 1e-9)).unsqueeze(-1)
    slow, _, _ = segment_series(low, high, rows.squeeze(-1))
    assert slow.tolist() == [True, False]
    for pair in (*base.deficit(rows), *(x.squeeze(-1) for x in base.characteristic_moment(rows))):
        assert abs(float(pair[0] - pair[1])) < 3e-9 * max(1e-2, float(pair[0].abs()))


def test_derivatives_of_the_truncated_normal() -> None:
    ends, omega = (_t(-0.7, 2.0), _t(1.1, 2.2)), _t(0.05, 0.2)
    inputs = [x.requires_grad_() for x in (*ends, omega)]

    def series(low: Tensor, high: Tensor, omega: Tensor) -> tuple[Tensor, ...]:
        _, deficit, slope = segment_series(low, high, omega)
        return deficit.real, deficit.imag, slope.real, slope.imag

    assert gradcheck(series, inputs)
    assert gradgradcheck(series, inputs)
    assert gradcheck(segment_moments, inputs[:2])


# Intervals and moments of the limit of small weights: the square is that of a linear function.


@pytest.mark.parametrize("scale", [1e-3, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("activation", [Sin(), Snake(1.5)], ids=str)
def test_intervals(activation: Any, scale: float) -> None:
    r"""In the limit, P(l < t < u) = ∫ t² φ(t) dt = [Φ(t) - t φ(t)]."""
    base = UniformCube(1)
    law = SNEFY(
        _t(scale).unsqueeze(-1), None, torch.ones(1, 1).double(), activation=activation, base=base
    )
    low, high = 0.2, 0.75
    with mpmath.workdps(30):
        a = activation.a if isinstance(activation, Snake) else 0.0
        ends = [mpmath.sqrt(2) * mpmath.erfinv(2 * mpf(x) - 1) for x in (low, high)]

        def square(t: Any) -> Any:
            z = scale * t
            value = mpmath.sin(z) if not a else z + mpmath.sin(a * z) ** 2 / a
            return value**2 * mpmath.npdf(t)

        whole = mpmath.quad(square, mpmath.linspace(-12, 12, 13))
        expected = float(mpmath.quad(square, ends) / whole)
    found = law.interval_probability(_t(low), _t(high))
    assert float(found) == pytest.approx(expected, rel=1e-12)


def _moments(law: SNEFY) -> tuple[Tensor, Tensor]:
    return law.mean.reshape(-1), law.variance.reshape(-1)


# Moments E[y^2], E[y^3], E[y^4] about the mean, and the mean.
LIMITS: dict[str, tuple[Any, tuple[float, float, float, float]]] = {
    "UniformBox": (UniformBox(_t(-1.0), _t(3.0)), (4 / 3, 0.0, 16 / 5, 1.0)),
    # A box plus noise: 4/3 + 1/4, and 16/5 + 6 · 4/3 · 1/4 + 3/16.
    "SmoothBox": (
        SmoothBox(_n(-1.0), _n(3.0), _n(0.5), event_dim=0),
        (19 / 12, 0.0, 16 / 5 + 2 + 3 / 16, 1.0),
    ),
    "Interval": (Interval(_n(-1.0), _n(3.0)), (4 / 3, 0.0, 16 / 5, 1.0)),
    "Poisson": (Poisson(_n(2.0)), (2.0, 2.0, 2.0 + 12.0, 2.0)),
    # q = 3/4: cumulants c, c (1 + c), c (1 + c) (1 + 2 c), c (1 + c) (1 + 6 c + 6 c²) with c = 3.
    "Geometric": (Geometric(_n(0.25)), (12.0, 84.0, 12 * 73.0 + 3 * 144, 3.0)),
    "Laplace": (Laplace(_n(0.5), _n(1.0)), (2.0, 0.0, 24.0, 0.5)),
    "StudentT": (StudentT(_n(8.0), _n(0.5), _n(1.0), event_dim=0), (4 / 3, 0.0, 8.0, 0.5)),
}


@pytest.mark.parametrize("scale", [1e-8, 1e-10])
@pytest.mark.parametrize("activation", [Sin(), Snake(1.5)], ids=str)
@pytest.mark.parametrize("name", LIMITS)
def test_moments(name: str, activation: Any, scale: float) -> None:
    r"""With f = w (y + s): E[y] = (m₃ + 2 s m₂) / Z and E[y²] = (m₄ + 2 s m₃ + s² m₂) / Z.

    Here s is the mean of the base, and Z = m₂ + s². The next term is smaller by the scale.
    """
    base, (m2, m3, m4, s) = LIMITS[name]
    weight, readout = scale * _t(1.0, -0.5).unsqueeze(-1), _t(1.0, 0.4).unsqueeze(0)
    law = SNEFY(weight, None, readout, activation=activation, base=base, validate_args=False)
    mass = m2 + s**2
    offset = (m3 + 2 * s * m2) / mass
    spread = (m4 + 2 * s * m3 + s**2 * m2) / mass - offset**2
    mean, variance = _moments(law)
    room = 1e-11 + 100 * scale
    assert float(mean) == pytest.approx(s + offset, rel=room)
    assert float(variance) == pytest.approx(spread, rel=room)


@pytest.mark.parametrize("activation", [Sin(), Snake(1.5)], ids=str)
def test_moments_on_products(activation: Any) -> None:
    """A factor without weight keeps its law; the other is as alone."""
    box, rows = UniformBox(_t(-1.0), _t(3.0)), _t(1e-9).unsqueeze(-1)
    readout = _t(1.0).unsqueeze(0)
    alone = _moments(SNEFY(rows, None, readout, activation=activation, base=box))
    base = Product([box, Geometric(_n(0.25))])
    weight = torch.cat([rows, torch.zeros_like(rows)], -1)
    mean, variance = _moments(SNEFY(weight, None, readout, activation=activation, base=base))
    assert mean.tolist() == pytest.approx([float(alone[0]), 3.0], rel=1e-12)
    assert variance.tolist() == pytest.approx([float(alone[1]), 12.0], rel=1e-12)


@pytest.mark.parametrize("activation", [Sin(), Snake(1.5)], ids=str)
@pytest.mark.parametrize("d", [2, 3])
def test_moments_on_spheres(activation: Any, d: int) -> None:
    """With x_1² as the density, E[x_1²] = 3 / (d + 2) and E[x_k²] = 1 / (d + 2)."""
    weight = torch.eye(d, dtype=F64)[:1] * 1e-9
    law = SNEFY(
        weight, None, torch.ones(1, 1).double(), activation=activation, base=UniformSphere(d)
    )
    mean, variance = _moments(law)
    expected = [3 / (d + 2), *[1 / (d + 2)] * (d - 1)]
    assert variance.tolist() == pytest.approx(expected, rel=1e-7)
    assert mean.abs().max() < 1e-7


def test_moments_that_are_lost() -> None:
    """Student's law with five degrees of freedom: NaN, since no digit is left."""
    base = StudentT(_n(5.0), _n(0.0), _n(1.0), event_dim=0)
    weight = _t(1e-9).unsqueeze(-1)
    law = SNEFY(
        weight, None, torch.ones(1, 1).double(), activation=Sin(), base=base, validate_args=False
    )
    assert law.mean.isnan() and law.variance.isnan()


@pytest.mark.parametrize("rows", ["readouts", "biases"])
@pytest.mark.parametrize("d", [1, 6])
@pytest.mark.parametrize("activation", [Sin(), Snake(1.5)], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1e-6, 1e-10])
def test_rows_in_float32(scale: float, activation: Any, d: int, rows: str) -> None:
    """Rows meet a Cholesky factor with a ridge, which must be small beside the kernel."""
    weight = scale * torch.randn(3, d)
    bias = scale * torch.randn(4, 3) if rows == "biases" else torch.zeros(3)
    readout = torch.randn(2, 3) if rows == "biases" else torch.randn(4, 2, 3)
    for base in (
        Gaussian(torch.zeros(d), torch.ones(d)),
        UniformBox(-torch.ones(d), torch.ones(d)),
    ):
        single = SNEFY(weight, bias, readout, activation=activation, base=base)
        x = 0.5 * torch.ones(d)
        tensors = [y.double() for y in (weight, bias, readout)]
        double = SNEFY(*tensors, activation=activation, base=base.map(Tensor.double))
        assert_close(single.log_prob(x).double(), double.log_prob(x.double()), rtol=0, atol=1e-4)


@pytest.mark.parametrize("activation", [Sin(), Snake(1.5)], ids=str)
def test_gradients_of_moments(activation: Any) -> None:
    """Moments do not depend on a factor of small weights, up to the factor."""
    base, readout = Poisson(_n(2.0)), _t(1.0, 0.4).unsqueeze(0)
    weight = _t(1.0, -0.5).unsqueeze(-1).requires_grad_()

    def mean(weight: Tensor) -> Tensor:
        return SNEFY(1e-7 * weight, None, readout, activation=activation, base=base).mean

    (gradient,) = torch.autograd.grad(mean(weight), weight)
    assert float((gradient * weight.detach()).sum().abs()) < 1e-5


def test_characteristic_function() -> None:
    """In the limit, E[e^{iux}] = E[x² e^{iux}] / E[x²]; the error is eps over the weight."""
    law = SNEFY(
        _t(1e-8).unsqueeze(-1),
        None,
        torch.ones(1, 1).double(),
        activation=Sin(),
        base=UniformBox(_t(-1.0), _t(1.0)),
    )
    u = 1.7
    found = law.characteristic_function(_t(u))
    with mpmath.workdps(30):
        expected = 3 * mpmath.quad(lambda x: x**2 * mpmath.cos(u * x), [0, 1])
    assert found.real.item() == pytest.approx(float(expected), rel=2e-7)
    assert abs(found.imag.item()) < 2e-7
