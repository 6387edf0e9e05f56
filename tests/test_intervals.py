"""Probabilities of boxes, against quadrature, sums, mpmath and reference values."""

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from pyro_snefy import SNEFY
from pyro_snefy.activations import Activation, Cis, Cos, Exp, Identity, ReLU, Sin, Snake, Step
from pyro_snefy.bases import (
    Base,
    Discrete,
    Gaussian,
    GaussianMixture,
    Geometric,
    Interval,
    Mixture,
    PointMass,
    Poisson,
    Product,
    ProjectedGaussian,
    Standardized,
    UniformBox,
    UniformCube,
    UniformSphere,
)
from pyro_snefy.numerics.segments import faddeeva, log_segment, segment_moments, wave_segment
from pyro_snefy.operations import intervals, restricted

F64 = torch.float64
INF = torch.inf


def _t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


W2 = torch.tensor([[1.0, -0.5], [0.3, 2.0]], dtype=F64)
B2, V2 = _t(0.2, -1.0), torch.tensor([[1.0, -0.7], [0.4, 0.9]], dtype=F64)
W1, B1 = _t(1.0, -2.0, 0.5).unsqueeze(-1), _t(0.2, -1.0, 0.7)
V1 = torch.tensor([[1.0, -0.7, 0.3], [0.4, 0.9, -1.1]], dtype=F64)


def _plane(activation: Activation, base: Base) -> SNEFY:
    return SNEFY(W2, B2, V2, activation=activation, base=base)


def _line(activation: Activation, base: Base) -> SNEFY:
    return SNEFY(W1, B1, V1, activation=activation, base=base, validate_args=False)


def _normal(d: int = 2) -> Gaussian:
    return Gaussian(torch.zeros(d, dtype=F64), torch.ones(d, dtype=F64))


def _scalar(loc: float = 0.3, scale: float = 0.8) -> Gaussian:
    return Gaussian(_t(loc)[0], _t(scale)[0], event_dim=0)


def _mixture() -> GaussianMixture:
    loc = torch.tensor([[0.3, -0.2], [-1.0, 0.5]], dtype=F64)
    scale = torch.tensor([[1.0, 0.5], [0.7, 1.2]], dtype=F64)
    return GaussianMixture(_t(0.3, -0.2), loc, scale)


PLANES = {
    "Gaussian": lambda: Gaussian(_t(0.3, -0.5), _t(0.8, 1.3)),
    "GaussianMixture": _mixture,
    "UniformBox": lambda: UniformBox(_t(-1.5, -0.5), _t(1.0, 2.0)),
    "UniformCube": lambda: UniformCube(2),
    "Standardized": lambda: Standardized(_normal(), _t(0.5, -0.3), _t(2.0, 0.7)),
    "Product": lambda: Product([_scalar(), Interval(_t(-1.0)[0], _t(1.5)[0])]),
    "Mixture": lambda: Mixture(_t(0.0, 0.4), [_normal(), Gaussian(_t(1.0, 1.0), _t(0.5, 0.5))]),
}
WAVES = [Cos(), Sin(), Cis(), Exp(), Exp(0.5), Snake(1.5), Snake(0.7, False), Identity()]


def _by_cubature(law: SNEFY, low: Tensor, high: Tensor) -> float:
    """The integral of the density over a box in the plane, 80 Gauss-Legendre nodes a side."""
    nodes, weights = np.polynomial.legendre.leggauss(80)
    sides = [
        (a + b) / 2 + (b - a) / 2 * torch.as_tensor(nodes) for a, b in zip(low, high, strict=True)
    ]
    value = law.log_prob(torch.cartesian_prod(*sides)).exp().reshape(80, 80)
    w = torch.as_tensor(weights)
    return float((w @ value @ w) * (high - low).prod() / 4)


@pytest.mark.parametrize("activation", WAVES, ids=str)
@pytest.mark.parametrize("base", PLANES)
def test_boxes_in_the_plane(activation: Activation, base: str) -> None:
    law = _plane(activation, PLANES[base]())
    low = torch.tensor([[-0.9, -0.3], [0.1, 0.2], [0.3, 0.4]], dtype=F64)
    high = torch.tensor([[0.5, 1.3], [0.9, 0.7], [0.3 + 1e-5, 0.4 + 1e-4]], dtype=F64)
    if base == "UniformCube":  # the density is smooth inside only
        low, high = low.clamp(min=0.05), high.clamp(max=0.95)
    expected = torch.tensor(
        [_by_cubature(law, a, b) for a, b in zip(low, high, strict=True)], dtype=F64
    )
    # Linear parts of waves lose digits in the third box, which is narrow.
    digits = 1e-9 if isinstance(activation, Snake) else 1e-10
    assert_close(law.interval_probability(low, high), expected, rtol=digits, atol=0.0)


def test_reference_values() -> None:
    """Five times Z times the probability of a box, by an independent quadrature."""
    law = _plane(Cos(), _normal())
    count = 5 * law.log_normalizer.exp() * law.interval_probability(_t(-1, 0), _t(0.5, 2))
    assert count.item() == pytest.approx(1.602916213602329, rel=1e-14)
    law = _plane(Cos(), UniformBox(_t(0, 0), _t(1, 2)))
    count = 5 * law.log_normalizer.exp() * law.interval_probability(_t(0.2, 1), _t(0.5, 1.5))
    assert count.item() == pytest.approx(0.4744816021393, rel=1e-12)


def test_reference_value_of_a_half_space() -> None:
    """E[e^{iω·x} 1(u·x <= c)] of a normal law with a full covariance, from a segment."""
    mean, covariance = _t(0.3, -0.2), torch.tensor([[1.0, 0.3], [0.3, 0.5]], dtype=F64)
    normal, end, omega = _t(0.8, -1.1), 0.4, _t(1.3, 0.7)
    scale = (normal @ covariance @ normal).sqrt()
    along = normal @ covariance @ omega / scale
    high = ((end - normal @ mean) / scale).reshape(1)
    parts = wave_segment(None, _t(-INF), high, along.reshape(1), torch.zeros_like(high))
    rest = omega @ covariance @ omega - along.square()
    value = torch.complex(*parts) * torch.polar((-rest / 2).exp(), omega @ mean)
    assert value.item() == pytest.approx(0.145046618533656 - 0.020288998184112j, abs=1e-14)


@pytest.mark.parametrize("base", PLANES)
def test_a_thousand_boxes_fill_the_plane(base: str) -> None:
    edges = torch.cat([_t(-INF), torch.linspace(-3, 3, 31, dtype=F64), _t(INF)])
    low = torch.cartesian_prod(edges[:-1], edges[:-1])
    high = torch.cartesian_prod(edges[1:], edges[1:])
    found = _plane(Cos(), PLANES[base]()).interval_probability(low, high)
    assert found.shape == (1024,)
    assert (found >= 0).all()
    assert found.sum().item() == pytest.approx(1.0, abs=1e-13)


SCALARS: list[tuple[Activation, Any]] = [
    (Cos(), _scalar),
    (Exp(0.5), _scalar),
    (Snake(1.0), _scalar),
    (ReLU(), _scalar),
    (Step(), _scalar),
    (Cos(), lambda: Interval(_t(-2.0)[0], _t(2.5)[0])),
    (Sin(), lambda: Interval(_t(-2.0, 0.5), _t(0.0, 2.0))),
]


@pytest.mark.parametrize(
    ("activation", "base"), SCALARS, ids=lambda x: str(x) if isinstance(x, Activation) else ""
)
def test_intervals_on_the_line(activation: Activation, base: Any) -> None:
    law = _line(activation, base())
    for low, high in [(-1.1, 0.4), (0.2, 1.9), (-1.9, -1.2), (0.55, 0.56)]:

        def density(x: float) -> float:
            return float(law.log_prob(_t(x)[0]).exp())

        kinks = [-0.2, -0.5, -1.4, 0.0, 0.5, 2.0]
        inside = [x for x in kinks if low < x < high]
        expected, _ = integrate.quad(density, low, high, points=inside or None, epsabs=1e-13)
        found = law.interval_probability(_t(low)[0], _t(high)[0]).item()
        assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("activation", [Cos(), Exp(0.5), Snake(1.0), Identity(), ReLU()], ids=str)
@pytest.mark.parametrize("sign", [-1, 1])
def test_tails_have_their_digits(activation: Activation, sign: int) -> None:
    """Intervals far out on either side, against quadrature of the scaled density."""
    law = _line(activation, _scalar(0.0, 1.0))
    for near in (4.0, 8.0, 10.5):
        ends = sorted([sign * near, sign * (near + 0.4)])
        nodes, weights = np.polynomial.legendre.leggauss(40)
        x = torch.as_tensor(ends[0] + 0.2 + 0.2 * nodes)
        expected = float((law.log_prob(x).exp() * torch.as_tensor(weights)).sum() * 0.2)
        found = law.interval_probability(_t(ends[0])[0], _t(ends[1])[0]).item()
        assert found == pytest.approx(expected, rel=1e-9)


def test_waves_far_in_the_tails() -> None:
    """Beyond thirty standard deviations, to infinity, in log space by mpmath."""
    law = _plane(Cos(), _normal())
    found = law.interval_probability(_t(30.0, -INF), _t(INF, INF)).item()
    kernel = mpmath.mpf(0)
    with mpmath.workdps(250):
        w, b, v = W2.tolist(), B2.tolist(), (V2.mT @ V2).tolist()

        def half_space(u: float, s: float) -> Any:
            # ∫_{x > 30} e^{i(ux + sy)} under the standard normal law
            tail = mpmath.erfc((30 - 1j * mpmath.mpf(u)) / mpmath.sqrt(2)) / 2
            return mpmath.exp(-(mpmath.mpf(u) ** 2 + mpmath.mpf(s) ** 2) / 2) * tail

        for i in range(2):
            for j in range(2):
                for sign in (1, -1):
                    u, s = (w[i][k] + sign * w[j][k] for k in range(2))
                    phase = mpmath.exp(1j * mpmath.mpf(b[i] + sign * b[j]))
                    kernel += v[i][j] * mpmath.re(phase * half_space(u, s)) / 2
    expected = float(kernel / mpmath.exp(law.log_normalizer.item()))
    assert found == pytest.approx(expected, rel=1e-11)
    assert 0 < found < 1e-190


@pytest.mark.parametrize(
    "base", [lambda: Poisson(_t(3.0)[0]), lambda: Geometric(_t(0.3)[0])], ids=["Poisson", "Geo"]
)
def test_counts_and_their_ends(base: Any) -> None:
    law = _line(Cos(), base())
    x = torch.arange(200, dtype=F64)
    masses = law.log_prob(x).exp()
    for low, high in [(2.0, 5.0), (1.5, 4.5), (3.0, 3.0), (7.0, INF), (-INF, 0.0)]:
        inside = (x >= low) & (x <= high)
        found = law.interval_probability(_t(low)[0], _t(high)[0])
        assert_close(found, masses[inside].sum(), rtol=1e-11, atol=1e-16)


def test_atoms_beside_a_density() -> None:
    base = Mixture(_t(0.0, 0.3), [_scalar(), PointMass(_t(0.5)[0])])
    law = _line(Cos(), base)
    atom = law.log_prob(_t(0.5)[0]).exp()
    assert_close(law.interval_probability(_t(0.5)[0], _t(0.5)[0]), atom)
    together = law.interval_probability(_t(-1.0, 0.5 + 1e-12), _t(0.5, 2.0)).sum()
    assert_close(together, law.interval_probability(_t(-1.0)[0], _t(2.0)[0]))


def test_finite_sets_of_vectors() -> None:
    points = torch.tensor([[0.0, 1.0], [-1.0, 0.5], [2.0, 2.0], [0.3, -1.0]], dtype=F64)
    law = _plane(ReLU(), Discrete(points, _t(0.3, 0.1, 0.9, 0.4)))
    found = law.interval_probability(_t(-1.0, -1.0), _t(0.3, 0.7))
    assert_close(found, law.log_prob(points[[1, 3]]).exp().sum())
    assert law.interval_probability(_t(5.0, 5.0), _t(6.0, 6.0)) == 0


def test_marks_and_an_unbounded_sphere() -> None:
    """A factor without boxes may be left unbounded: a window of time, wherever on the sphere."""
    base = Product([UniformSphere(3), Interval(_t(0.0)[0], _t(2.0)[0])])
    law = SNEFY(
        torch.randn(5, 4, dtype=F64), torch.randn(5, dtype=F64), V1.new_ones(1, 5), base=base
    )
    time = law.marginal([3])
    low, high = _t(-INF, -INF, -INF, 0.5), _t(INF, INF, INF, 0.9)
    expected = time.cdf(_t(0.9)) - time.cdf(_t(0.5))
    assert_close(law.interval_probability(low, high), expected)
    with pytest.raises(NotImplementedError, match=r"Cos\(\) on Product.*UniformSphere.*Gaussian"):
        law.interval_probability(_t(0.0, -INF, -INF, 0.5), high)


@pytest.mark.parametrize("activation", [Cos(), Exp(), Snake(1.0)], ids=str)
@pytest.mark.parametrize("base", ["Gaussian", "GaussianMixture", "UniformBox"])
def test_gradients(activation: Activation, base: str) -> None:
    law = PLANES[base]()
    low, high = _t(-0.4, 0.1).requires_grad_(), _t(0.3, 1.2).requires_grad_()
    weight, bias = W2.clone().requires_grad_(), B2.clone().requires_grad_()

    def probability(*tensors: Tensor) -> Tensor:
        weight, bias, low, high = tensors
        family = SNEFY(weight, bias, V2, activation=activation, base=law, validate_args=False)
        return family.interval_probability(low, high)

    assert gradcheck(probability, (weight, bias, low, high))


def test_gradients_of_the_base_and_at_infinity() -> None:
    loc, scale = _t(0.3, -0.5).requires_grad_(), _t(0.8, 1.3).requires_grad_()
    low, high = _t(-INF, 0.2).requires_grad_(), _t(INF, INF).requires_grad_()
    law = _plane(Cos(), Gaussian(loc, scale))
    law.interval_probability(low, high).log().backward()
    for x in (loc, scale, low, high):
        assert x.grad is not None and x.grad.isfinite().all()

    def probability(loc: Tensor, scale: Tensor) -> Tensor:
        law = _plane(Cos(), Gaussian(loc, scale, validate_args=False))
        return law.interval_probability(_t(-0.4, 0.2), _t(0.3, INF))

    assert gradcheck(probability, (loc, scale))


def test_scalar_gradients() -> None:
    def probability(bias: Tensor, low: Tensor, high: Tensor) -> Tensor:
        law = SNEFY(W1, bias, V1, activation=Snake(1.0), base=_scalar())
        return law.interval_probability(low, high)

    ends = [_t(-0.4)[0].requires_grad_(), _t(0.9)[0].requires_grad_()]
    assert gradcheck(probability, (B1.clone().requires_grad_(), *ends))


def test_batches() -> None:
    bias = torch.randn(5, 2, dtype=F64)
    law = SNEFY(W2, bias, V2, base=_normal())
    low, high = torch.rand(3, 1, 2, dtype=F64) - 1, torch.rand(3, 1, 2, dtype=F64)
    found = law.interval_probability(low, high)
    assert found.shape == (3, 5)
    for k in range(5):
        alone = SNEFY(W2, bias[k], V2, base=_normal()).interval_probability(low, high)
        assert_close(found[:, k], alone[:, 0])
    wide = _plane(Cos(), _normal()).expand((4,))
    assert wide.interval_probability(low, high).shape == (3, 4)
    models = SNEFY(torch.randn(5, 2, 2, dtype=F64), B2, torch.randn(5, 3, 2, dtype=F64))
    assert models.interval_probability(low, high).shape == (3, 5)


def test_float32() -> None:
    base = Gaussian(torch.zeros(2), torch.ones(2))
    law = SNEFY(W2.float(), B2.float(), V2.float(), base=base)
    found = law.interval_probability(torch.tensor([-1.0, 0.0]), torch.tensor([0.5, 2.0]))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(1.602916213602329 / 6.182519180929842, rel=1e-6)


def test_empty_boxes_have_no_mass() -> None:
    low, high = _t(0.5, 0.0), _t(-0.5, 1.0)
    for base in PLANES:
        assert _plane(Cos(), PLANES[base]()).interval_probability(low, high) == 0
    outside = _plane(Cos(), PLANES["UniformBox"]())
    assert outside.interval_probability(_t(5.0, 5.0), _t(6.0, 6.0)) == 0
    assert _line(ReLU(), _scalar()).interval_probability(_t(1.0)[0], _t(0.0)[0]) == 0


@pytest.mark.parametrize(
    ("activation", "base"),
    [
        (ReLU(), _normal()),
        (Cos(), Gaussian(_t(0.0, 0.0), scale_tril=torch.eye(2, dtype=F64))),
        (Cos(), UniformSphere(2)),
        (Cos(), ProjectedGaussian(2)),
    ],
    ids=str,
)
def test_what_has_no_closed_form(activation: Activation, base: Base) -> None:
    law = SNEFY(W2, B2, V2, activation=activation, base=base)
    name = type(activation).__name__
    with pytest.raises(NotImplementedError, match=rf"{name}.*{type(base).__name__}.*UniformBox"):
        law.interval_probability(_t(0.0, 0.0), _t(1.0, 1.0))


def test_bad_input() -> None:
    law = _plane(Cos(), _normal())
    with pytest.raises(ValueError, match=r"low with shape \(\*, 2\), got \(3,\)"):
        law.interval_probability(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ValueError, match=r"high without NaN"):
        law.interval_probability(torch.zeros(2), torch.full((2,), torch.nan))
    with pytest.raises(TypeError, match=r"low to be a Tensor, got 0"):
        law.interval_probability(0.0, torch.zeros(2))  # type: ignore[arg-type]


def test_faddeeva() -> None:
    """Against SciPy, which has about thirteen digits."""
    size = 10.0 ** torch.linspace(-8, 6, 29, dtype=F64)
    x, y = torch.meshgrid(
        torch.cat([-size, _t(0.0), size]), torch.cat([_t(0), size]), indexing="ij"
    )
    found = torch.complex(*faddeeva(x, y))
    expected = torch.as_tensor(special.wofz(x.numpy() + 1j * y.numpy()))
    assert ((found - expected).abs() <= 2e-13 * expected.abs()).all()


@pytest.mark.parametrize("omega", [0.0, 0.3, 2.0, 15.0, 60.0])
def test_segments(omega: float) -> None:
    """Against mpmath, relative to the mass of the segment."""
    for low, high in [
        (-1.0, 0.5), (-INF, -3.0), (3.0, INF), (10.0, 10.5), (-14.0, -13.0), (-INF, INF),
        (0.3, 0.3001), (-5.0, 2.0), (1.0, 9.0), (0.0, 1e-9), (12.0, 12.0 + 1e-6),
    ]:  # fmt: skip
        nearest = min(max(0.0, low), high)
        ends = _t(low), _t(high)
        real, imag = wave_segment(None, *ends, _t(omega), _t(-(nearest**2) / 2))
        with mpmath.workdps(110):
            root = mpmath.sqrt(2)

            def above(x: float, root: Any = root) -> Any:
                # From x to infinity.
                if abs(x) == INF:
                    return 2 * mpmath.exp(-(mpmath.mpf(omega) ** 2) / 2) * (x < 0)
                tail = mpmath.erfc((mpmath.mpf(x) - 1j * mpmath.mpf(omega)) / root)
                return mpmath.exp(-(mpmath.mpf(omega) ** 2) / 2) * tail

            mass = (mpmath.erfc(low / root) - mpmath.erfc(high / root)) / 2
            expected = complex((above(low) - above(high)) / 2 / mass)
            log_mass = float(mpmath.log(mass))
        share = np.exp(-(nearest**2) / 2 - log_mass)
        assert complex(real * share, imag * share) == pytest.approx(expected, abs=3e-13)
        assert log_segment(None, *ends)[0].item() == pytest.approx(log_mass, rel=1e-14, abs=1e-13)


def test_derivatives_of_segments() -> None:
    low, high = _t(-1.0, 10.0, 0.3, -5.0), _t(0.5, 10.5, 0.31, 2.0)
    omega, scale = _t(0.3, 3.0, 4.0, 0.7), _t(0.0, -50.0, 0.0, 0.0)
    inputs = tuple(x.requires_grad_() for x in (low, high, omega))
    assert gradcheck(lambda *x: wave_segment(None, *x, scale), inputs)
    assert gradgradcheck(lambda *x: wave_segment(None, *x, scale), inputs)
    assert gradgradcheck(lambda *x: log_segment(None, *x), inputs[:2])


@pytest.mark.parametrize("base", PLANES)
def test_another_default_device(base: str) -> None:
    """Tensors are made where the parameters are."""
    law = _plane(Cos(), PLANES[base]())
    low, high = _t(0.1, 0.2), _t(0.9, INF)
    expected = law.interval_probability(low, high)
    with torch.device("meta"):
        assert_close(law.interval_probability(low, high), expected)


def test_moments_of_segments() -> None:
    """Against SciPy where it has digits, and the uniform law for a tiny segment."""
    low, high = _t(-1.0, 3.0, -INF, -2.0, 0.3), _t(0.5, INF, -1.0, 4.0, 0.35)
    mean, variance = segment_moments(low, high)
    expected = [
        stats.truncnorm(a, b).stats() for a, b in zip(low.tolist(), high.tolist(), strict=True)
    ]
    assert_close(mean, _t(*(float(m) for m, _ in expected)), rtol=1e-10, atol=1e-12)
    assert_close(variance, _t(*(float(v) for _, v in expected)), rtol=1e-6, atol=1e-12)
    low, high = _t(7.0), _t(7.0 + 2e-6)
    mean, variance = segment_moments(low, high)
    assert_close(mean, _t(7.0 + 1e-6 - 7e-12 / 3), rtol=1e-15, atol=1e-15)
    assert_close(variance, _t(1e-12 / 3), rtol=1e-8, atol=0.0)


# Many boxes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), Exp(0.4)], ids=str)
@pytest.mark.parametrize("kind", ["gaussian", "mixture", "box", "cube"])
def test_boxes_of_a_grid(
    activation: Activation, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes that share segments, in any order, have the values and gradients that each has alone.

    Components of the mixture are equal, but have parameters of their own.
    """
    edges = _t(-INF, -1.1, -0.2, 0.4, INF) if kind != "cube" else _t(0.0, 0.2, 0.5, 0.6, 1.0)
    order = torch.cat([torch.randperm(16), torch.tensor([3, 7])])  # two boxes occur twice
    low, high = (torch.cartesian_prod(x, x)[order] for x in (edges[:-1], edges[1:]))
    values = {
        "gaussian": (_t(0.1, -0.3), _t(0.8, 1.2)),
        "mixture": (_t(0.1, -0.3).repeat(2, 1), _t(0.8, 1.2).repeat(2, 1)),
        "box": (_t(-1.5, -1.3), _t(1.4, 1.6)),
        "cube": (),
    }[kind]
    parameters = [x.clone().requires_grad_() for x in (W2, B2, V2, *values)]

    def probability(low: Tensor, high: Tensor) -> Tensor:
        *network, first, second = parameters if values else (*parameters, None, None)
        bases: dict[str, Any] = {
            "gaussian": lambda: Gaussian(first, second),
            "mixture": lambda: GaussianMixture(_t(0.3, -0.3), first, second),
            "box": lambda: UniformBox(first, second),
            "cube": lambda: UniformCube(2),
        }
        law = SNEFY(*network, activation=activation, base=bases[kind]())
        return law.interval_probability(low, high)

    alone = torch.stack([probability(a, b) for a, b in zip(low, high, strict=True)])
    cotangent = torch.randn_like(alone)
    expected = torch.autograd.grad(alone, parameters, cotangent)
    pairs = len(W2) * max(len(W2), intervals._LEAST)
    monkeypatch.setattr(intervals, "_CHUNK", 4 * 2 * pairs)  # tiles of two by two
    together = probability(low, high)
    assert_close(together, alone, rtol=1e-12, atol=1e-14)
    found = torch.autograd.grad(together, parameters, cotangent)
    for own, value in zip(found, expected, strict=True):
        assert_close(own, value, rtol=1e-9, atol=1e-11)
    reshaped = probability(low.reshape(3, 6, 2), high.reshape(3, 6, 2))
    assert_close(reshaped, alone.reshape(3, 6), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("spread", [1.5, 30.0])
def test_boxes_without_common_edges(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over nodes and error functions agree, and so do their gradients.

    Waves with a spread of 30 are fast: infinite boxes have error functions in both ways.
    """
    torch.manual_seed(0)
    low = torch.randn(40, 2, dtype=F64)
    high = low + torch.rand(40, 2, dtype=F64)
    low[0], high[1] = -INF, INF
    network = (spread * torch.randn(20, 2, dtype=F64), torch.rand(20, dtype=F64))
    readout = torch.randn(4, 20, dtype=F64)
    parameters = [x.clone().requires_grad_() for x in (*network, readout, _t(0.8, 1.2), low, high)]

    def probability() -> tuple[Tensor, tuple[Tensor, ...]]:
        *family, scale, low, high = parameters
        law = SNEFY(*family, base=Gaussian(_t(0.1, -0.3), scale))
        value = law.interval_probability(low, high)
        return value, torch.autograd.grad(value.sum(), parameters)

    value, gradients = probability()
    monkeypatch.setattr(restricted, "_FAST", -1.0)
    expected, others = probability()
    assert_close(value, expected, rtol=1e-11, atol=0.0)
    for own, other in zip(gradients, others, strict=True):
        assert_close(own, other, rtol=1e-8, atol=1e-10 * float(other.abs().max()))
    law = SNEFY(*network, readout, base=Gaussian(_t(0.1, -0.3), _t(0.8, 1.2)))
    for k in (2, 17):
        mass = _by_cubature(law, low[k], high[k])
        assert value[k].item() == pytest.approx(mass, rel=1e-11)
