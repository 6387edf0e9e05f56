"""Student's, Laplace's and logistic laws, more counts, and angles, against independent numbers."""

import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from pyro_snefy import SNEFY, fit, snefy
from pyro_snefy.activations import Activation, Cis, Cos, Exp, Identity, ReLU, Sin, Snake
from pyro_snefy.bases import (
    Base,
    Bernoulli,
    Binomial,
    FourierBase,
    Gaussian,
    Laplace,
    Logistic,
    Mixture,
    NegativeBinomial,
    PointMass,
    Product,
    Standardized,
    StudentT,
    UniformAngle,
    UniformSphere,
)
from pyro_snefy.learning.initialization import fit_base
from pyro_snefy.numerics.matern import matern
from pyro_snefy.testing import check_kernel

F64 = torch.float64


def _t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def _n(value: float) -> Tensor:
    return torch.tensor(value, dtype=F64)


WEIGHT, BIAS = _t(1.0, -2.0, 0.5).unsqueeze(-1), _t(0.2, -1.0, 0.7)
READOUT = torch.tensor([[1.0, -0.7, 0.3], [0.4, 0.9, -1.1]], dtype=F64)
PLANE = torch.tensor([[1.0, -0.5], [0.3, 2.0]], dtype=F64)
MATRIX = torch.tensor([[1.0, 0.4], [0.4, 2.0]], dtype=F64)


def _student(df: float) -> StudentT:
    return StudentT(_n(df), _n(0.3), _n(0.8), event_dim=0)


def _law(activation: Activation, base: Base, scale: float = 1.0) -> SNEFY:
    return SNEFY(scale * WEIGHT, BIAS, READOUT, activation=activation, base=base)


BASES: dict[str, Callable[[], Base]] = {
    "Cauchy": lambda: _student(1.0),
    "StudentT": lambda: _student(3.0),
    "Laplace": lambda: Laplace(_n(0.3), _n(0.8)),
    "Logistic": lambda: Logistic(_n(0.3), _n(0.8)),
    "NegativeBinomial": lambda: NegativeBinomial(_n(2.5), _n(0.7)),
    "NegativeBinomialSmall": lambda: NegativeBinomial(_n(0.3), _n(0.6)),
    "Binomial": lambda: Binomial(_n(7.0), _n(0.3)),
    "Bernoulli": lambda: Bernoulli(_n(0.3)),
}

# ---------------------------------------------------------------------------- Matérn functions


def _matern(p: float, square: float) -> mpmath.mpf:
    order, s = mpmath.mpf(p), mpmath.sqrt(mpmath.mpf(square))
    return 2 ** (1 - order) / mpmath.gamma(order) * s**order * mpmath.besselk(order, s)


ORDERS = (0.25, 0.5, 1.0, 1.001, 1.5, 2.0, 5.0, 40.0, 3000.0)


@pytest.mark.parametrize("order", ORDERS)
def test_matern(order: float) -> None:
    """Values and both derivatives, from tiny to large arguments, against mpmath."""
    for square in (1e-12, 1e-4, 0.3, 2.0, 50.0, 400.0):
        p, y = (_n(x).requires_grad_() for x in (order, square))
        value = matern(p, y)
        by_order, by_square = torch.autograd.grad(value, (p, y))
        with mpmath.workdps(40):
            s = mpmath.sqrt(square)
            slope = -((s / 2) ** (order - 1)) * mpmath.besselk(order - 1, s)
            slope = slope / (2 * mpmath.gamma(order))
            change = mpmath.diff(lambda x, y=square: _matern(x, y), order)
            expected = float(_matern(order, square))
        assert abs(float(value.detach()) - expected) <= 1e-14
        assert abs(float(by_square) / float(slope) - 1) <= 1e-11
        assert abs(float(by_order) - float(change)) <= 1e-12


def test_matern_at_zero() -> None:
    """The value is one; the derivative by the square is -1 / 4 (p - 1) where there is one."""
    order, zero = _t(1.5, 2.0, 7.0), torch.zeros(3, dtype=F64, requires_grad=True)
    value = matern(order, zero)
    assert_close(value, torch.ones_like(value), rtol=0, atol=0)
    (slope,) = torch.autograd.grad(value.sum(), zero)
    assert_close(slope, -0.25 / (order - 1))
    # A kink in the frequency has the gradient zero, by symmetry.
    omega = torch.zeros(2, dtype=F64, requires_grad=True)
    (gradient,) = torch.autograd.grad(matern(_t(0.5, 1.0), omega.square()).sum(), omega)
    assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=0)


def test_matern_second_derivatives() -> None:
    arguments = (_t(0.7, 1.5, 2.5, 6.0), _t(0.3, 0.5, 2.0, 0.01))
    inputs = [x.requires_grad_() for x in arguments]
    assert gradcheck(matern, inputs, check_forward_ad=True)
    assert gradgradcheck(matern, inputs)


# -------------------------------------------------------------------- characteristic functions

# At the frequencies 0.3, 1, 2.7, in units of the scale.
CHARACTERISTIC = {
    3.0: (0.903790159899039, 0.483357724596508, 0.0528553794375742),
    4.0: (0.921654940400953, 0.507519509132112, 0.0487887464831492),
    5.0: (0.930965342775005, 0.52399410883182, 0.0458156023350866),
}


@pytest.mark.parametrize("df", CHARACTERISTIC)
def test_characteristic_function_of_student(df: float) -> None:
    base = StudentT(_n(df), _n(0.0), _n(1.0), event_dim=0)
    real, imag = base.characteristic(_t(0.3, 1.0, 2.7).unsqueeze(-1))
    assert imag is None
    assert_close(real, _t(*CHARACTERISTIC[df]), rtol=1e-13, atol=0)


def test_characteristic_function_of_logistic() -> None:
    """Small and large frequencies too, where a quotient of sinh would fail."""
    omega = torch.tensor([0.3, 1.0, 2.7, 0.0, 1e-9, 300.0], dtype=F64, requires_grad=True)
    base = Logistic(_n(0.0), _n(1.0))
    real, _ = base.characteristic(omega.unsqueeze(-1))
    expected = [0.865980834437369, 0.272029054982133, 0.00351339918138959, 1.0, 1.0]
    assert_close(real[:5], _t(*expected), rtol=1e-13, atol=0)
    far = float(2 * math.pi * 300 * mpmath.exp(-math.pi * 300))
    assert_close(real[5], _n(far), rtol=1e-11, atol=0)
    (slope,) = torch.autograd.grad(real.sum(), omega)
    assert_close(slope[4], _n(-(math.pi**2) / 3 * 1e-9), rtol=1e-12, atol=0)
    _, moment = base.characteristic_moment(omega.unsqueeze(-1))
    assert_close(moment.squeeze(-1), -slope, rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("name", [name for name in BASES if name != "Cauchy"])
def test_moments_are_derivatives(name: str) -> None:
    """-i φ' by automatic differentiation, at small, moderate and large frequencies."""
    base = BASES[name]()
    assert isinstance(base, FourierBase)
    omega = _t(-3.0, 1e-7, 0.4, 2.0, 9.0).requires_grad_()
    real, imag = base.characteristic(omega.unsqueeze(-1))
    slope_real, slope_imag = base.characteristic_moment(omega.unsqueeze(-1))
    (by_real,) = torch.autograd.grad(real.sum(), omega, retain_graph=True)
    assert_close(slope_imag.squeeze(-1), -by_real, rtol=1e-10, atol=1e-13)
    if imag is not None:
        assert slope_real is not None
        (by_imag,) = torch.autograd.grad(imag.sum(), omega)
        assert_close(slope_real.squeeze(-1), by_imag, rtol=1e-10, atol=1e-13)


# ------------------------------------------------------------------------------ reference values

NORMALIZERS: list[tuple[Base, float, float | None]] = [
    (_student(3.0), 1.4769581803562, 30.9672460815159),
    (_student(5.0), 1.4383002687542, 22.2983167175764),
    (_student(1.0), 1.588703797961659, None),
    (Laplace(_n(0.3), _n(0.8)), 1.48965323269143, 24.0566486040688),
    (Logistic(_n(0.3), _n(0.8)), 1.56524459346603, 33.3169911685563),
    (Binomial(_n(7.0), _n(0.3)), 1.85342918683287, 95.0850651105763),
    # The 0.3 of the reference is the probability that ends a run: 1 - probs in torch.
    (NegativeBinomial(_n(2.5), _n(0.7)), 1.87756077554859, 631.584096225782),
]


@pytest.mark.parametrize(("base", "cos", "snake"), NORMALIZERS, ids=str)
def test_normalizers(base: Base, cos: float, snake: float | None) -> None:
    assert_close(_law(Cos(), base).log_normalizer.exp(), _n(cos), rtol=1e-13, atol=0)
    if snake is not None:
        found = _law(Snake(1.0), base).log_normalizer.exp()
        assert_close(found, _n(snake), rtol=1e-13, atol=0)


def test_binary_vectors() -> None:
    weight = torch.tensor([[1.0, -0.5, 2.0], [0.3, 2.0, -1.0], [0.7, 0.1, 0.4]], dtype=F64)
    base = Product([Bernoulli(_n(p)) for p in (0.2, 0.5, 0.7)])
    law = SNEFY(weight, BIAS, READOUT, base=base)
    assert_close(law.log_normalizer.exp(), _n(1.060123185000596), rtol=1e-13, atol=0)
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)), dtype=F64)
    joint = law.log_prob(every).exp()
    assert_close(joint.sum(), _n(1.0))
    first = every[:, 0] == 1
    assert_close(law.marginal([0]).log_prob(_t(1.0)).exp(), joint[first].sum())
    given = law.conditional([0], _t(1.0)).log_prob(every[first][:, 1:]).exp()
    assert_close(given, joint[first] / joint[first].sum())
    gaps = torch.tensor([1.0, torch.nan, torch.nan], dtype=F64)
    assert_close(law.partially_observed().log_prob(gaps).exp(), joint[first].sum())


def test_enumeration() -> None:
    """Batches of different numbers of trials have no common support."""
    law = _law(Cos(), Binomial(_t(3.0, 3.0), _t(0.2, 0.7)))
    assert law.enumerate_support().shape == (4, 2)
    assert not _law(Cos(), Binomial(_t(3.0, 4.0), _n(0.2))).has_enumerate_support


def _plane(df: float = 3.0) -> SNEFY:
    base = StudentT(_n(df), _t(0.1, -0.2), scale_tril=torch.linalg.cholesky(MATRIX))
    return SNEFY(PLANE, BIAS[:2], READOUT[:, :2], base=base)


def test_student_in_the_plane() -> None:
    law = _plane()
    assert_close(law.log_normalizer.exp(), _n(1.271489190279338), rtol=1e-13, atol=0)
    found = law.marginal([0]).log_prob(_t(0.6)) + law.log_normalizer
    assert_close(found.exp(), _n(0.36451123), rtol=1e-7, atol=0)


# ----------------------------------------------------------------------------------- densities


def test_densities() -> None:
    """Log-densities against SciPy."""
    x = _t(-3.0, 0.1, 40.0)
    y = torch.stack([x, x.flip(0)], dim=-1)
    plane = _plane(2.5).base
    full = stats.multivariate_t.logpdf(y.numpy(), [0.1, -0.2], MATRIX.numpy(), df=2.5)
    assert_close(plane.log_density(y), torch.as_tensor(full))
    for df in (0.3, 3.0, 1e6):
        own = stats.t.logpdf(x.numpy(), df, 0.3, 0.8)
        assert_close(_student(df).log_density(x), torch.as_tensor(own), rtol=1e-9, atol=1e-9)
    with mpmath.workdps(40):  # SciPy loses digits here
        ratio = mpmath.log(mpmath.gamma(5e5 + mpmath.mpf(0.5)) / mpmath.gamma(5e5))
        constant = float(ratio - mpmath.log(mpmath.pi * 10**6 * mpmath.mpf("0.64")) / 2)
    assert_close(_student(1e6).log_density(_n(0.3)), _n(constant), rtol=1e-14, atol=0)
    single = _student(1e4).map(Tensor.float).log_density(x.float())
    own = stats.t.logpdf(x.numpy(), 1e4, 0.3, 0.8)
    assert_close(single.double(), torch.as_tensor(own), rtol=1e-4, atol=1e-6)


def test_counts_have_the_parameters_of_torch() -> None:
    x = torch.arange(8, dtype=F64)
    count, probs = _n(2.5), _n(0.7)
    theirs: torch.distributions.Distribution
    theirs = torch.distributions.NegativeBinomial(count, probs)
    assert_close(NegativeBinomial(count, probs).log_density(x), theirs.log_prob(x))
    theirs = torch.distributions.Binomial(7, probs)
    assert_close(Binomial(7, probs).log_density(x), theirs.log_prob(x))
    theirs = torch.distributions.Bernoulli(probs)
    assert_close(Bernoulli(probs).log_density(x[:2]), theirs.log_prob(x[:2]))


# -------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("name", BASES)
def test_check_kernel(name: str) -> None:
    check_kernel(Cos(), BASES[name](), repeats=1)


@pytest.mark.parametrize("activation", [Cos(), Sin(), Cis()], ids=str)
def test_student_vectors(activation: Activation) -> None:
    check_kernel(activation, _plane(1.5).base, repeats=1)


@pytest.mark.parametrize("activation", [Snake(1.0), Identity()], ids=str)
def test_infinite_normalizers(activation: Activation) -> None:
    """E[x²] is infinite for df ≤ 2, alone and inside other bases."""
    inner = _student(2.0)
    weight, two = torch.ones(1, 2, dtype=F64), torch.ones(1, 1, dtype=F64)
    product = Product([inner, Gaussian(_n(0.0), _n(1.0), event_dim=0)])
    mixture = Mixture(_t(0.0, 0.0), [inner, PointMass(_n(0.0))])
    moved = Standardized(inner, _n(0.0), _n(1.0))
    for base in (inner, product, mixture, moved):
        columns = weight[:, : base.num_statistics]
        with pytest.raises(ValueError, match=r"df > 2.*Z.*got df"):
            SNEFY(columns, None, two, activation=activation, base=base)
        assert SNEFY(columns, None, two, base=base).log_normalizer.isfinite()
    assert _law(activation, _student(2.5)).log_normalizer.isfinite()


def test_moments_that_do_not_exist() -> None:
    for law in (_law(Cos(), _student(2.0)), _law(Snake(1.0), _student(4.0))):
        for name in ("mean", "variance"):
            with pytest.raises(ValueError, match=r"variance.*df"):
                getattr(law, name)
    with pytest.raises(ValueError, match="df > 2"):
        _plane(1.5).covariance_matrix  # noqa: B018
    with pytest.raises(NotImplementedError, match="UniformAngle"):
        SNEFY(PLANE, base=UniformAngle(), readout=READOUT[:, :2]).mean  # noqa: B018


def test_moments_of_student() -> None:
    """Against quadrature of x and x² to where their tails are below 1e-7."""
    x, step = torch.linspace(-3000, 3000, 1_200_001, dtype=F64), 6000 / 1_200_000
    for law in (_law(Cos(), _student(5.0)), _law(Snake(1.0), _student(7.0))):
        mass = law.log_prob(x).exp() * step
        mean = (mass * x).sum()
        assert_close(law.mean, mean, rtol=1e-6, atol=0)
        assert_close(law.variance, (mass * (x - mean).square()).sum(), rtol=1e-6, atol=0)
    law = _plane(5.0)
    draws = law.sample((100_000,))
    error = (draws.var(0) / len(draws)).sqrt()
    assert bool(((draws.mean(0) - law.mean).abs() <= 4.5 * error).all())


@pytest.mark.parametrize("name", ["Laplace", "Logistic", "NegativeBinomial"])
def test_domain_of_exponentials(name: str) -> None:
    """Weights on the boundary of the domain are refused; transforms lead inside."""
    base = BASES[name]()
    bound = -math.log(0.7) / 2 if name == "NegativeBinomial" else 0.5 / 0.8
    constraint = base.weight_constraint(Exp())
    values = torch.tensor([0.999, 1.0, 1.001], dtype=F64) * bound
    assert [bool(constraint.check(x.reshape(1, 1))) for x in values] == [True, False, False]
    with pytest.raises(ValueError, match="natural parameter space"):
        SNEFY(values[1].reshape(1, 1), readout=READOUT[:1, :1], activation=Exp(), base=base)
    free = torch.randn(50, 1, dtype=F64)
    moved = torch.distributions.transform_to(constraint)(free)
    assert bool(constraint.check(moved).all())


# --------------------------------------------------------------------- marginals and conditionals


def test_conditional_of_student() -> None:
    """p(x_2 | x_1) p(x_1) = p(x), for rows of values, one base for each."""
    law, x = _plane(), torch.randn(6, 2, dtype=F64)
    joint = law.log_prob(x)
    for one, other in ((0, 1), (1, 0)):
        conditional = law.conditional([one], x[:, [one]])
        assert conditional.batch_shape == (6,)
        found = conditional.log_prob(x[:, [other]]) + law.marginal([one]).log_prob(x[:, [one]])
        assert_close(found, joint)


def test_marginal_of_student() -> None:
    """The other coordinate summed out, by a rule on a stretched line."""
    u = torch.linspace(-14, 14, 40_001, dtype=F64)
    other = u.sinh()
    x = torch.stack([torch.full_like(other, 0.6), other], dim=-1)
    total = (_plane().log_prob(x).exp() * u.cosh()).sum() * (u[1] - u[0])
    assert_close(_plane().marginal([0]).log_prob(_t(0.6)).exp(), total, rtol=1e-6, atol=0)


def test_distribution_function_of_a_marginal() -> None:
    """Shares of 20,000 draws from the joint law, within 4.5 standard errors.

    7e-6 is the rate of false alarms of each of three. A difference of at most 0.016 is seen half of
    the time.
    """
    law = _plane()
    marginal = law.marginal([0])
    torch.manual_seed(0)
    draws = law.sample((20_000,))[:, 0]
    edges = _t(-2.0, 0.5, 4.0)
    for edge, level in zip(edges, marginal.cdf(edges.unsqueeze(-1)), strict=True):
        error = float(level * (1 - level) / len(draws)) ** 0.5
        assert abs(float((draws <= edge).double().mean() - level)) <= 4.5 * error
    ends = marginal.cdf(_t(-1e6, 1e6).unsqueeze(-1))
    assert_close(ends, _t(0.0, 1.0), rtol=0, atol=1e-10)


def test_diagonal_student() -> None:
    """A diagonal scale is a scale_tril, though coordinates are dependent."""
    loc, scale = _t(0.1, -0.2, 0.5), _t(1.0, 2.0, 0.5)
    bases = [StudentT(_n(3.0), loc, scale), StudentT(_n(3.0), loc, scale_tril=scale.diag())]
    weight = torch.randn(3, 3, dtype=F64)
    laws = [SNEFY(weight, BIAS, READOUT, base=base) for base in bases]
    x = torch.randn(5, 3, dtype=F64)
    assert_close(laws[0].log_prob(x), laws[1].log_prob(x))
    given = [law.conditional([0, 2], x[:, [0, 2]]).log_prob(x[:, [1]]) for law in laws]
    assert_close(given[0], given[1])
    alone = laws[0].base.conditional([0, 2], x[:, [0, 2]])
    assert isinstance(alone, StudentT)
    assert float(alone.df) == 5.0
    assert alone.batch_shape == (5,)


def test_missing_values() -> None:
    base = Product([_plane().base, UniformAngle(), Laplace(_n(0.3), _n(0.8))])
    law = SNEFY(torch.randn(3, 5, dtype=F64), BIAS, READOUT, base=base)
    x = torch.tensor([0.5, -0.3, 1.0, 2.0], dtype=F64)
    for gaps in ([0], [1, 2], [2], [3], [0, 2, 3]):
        kept = [k for k in range(4) if k not in gaps]
        row = x.clone()
        row[gaps] = torch.nan
        expected = law.marginal(kept).log_prob(x[kept])
        assert_close(law.partially_observed().log_prob(row), expected)


# -------------------------------------------------------------------------------------- samples


@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), Exp(0.1)], ids=str)
@pytest.mark.parametrize("name", BASES)
def test_draws(name: str, activation: Activation) -> None:
    """Kolmogorov's test of 20,000 draws, 1e-5 false alarms: sees a difference of 0.03."""
    base = BASES[name]()
    if isinstance(base, StudentT) and not isinstance(activation, Cos):
        pytest.skip("infinite normaliser or no closed form")
    law = _law(activation, base)
    torch.manual_seed(2)
    x = law.sample((20_000,))
    u = law.cdf(x)
    if base.is_discrete:  # uniform after a random share of each step
        u = u - torch.rand_like(u) * law.log_prob(x).exp()
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-5


@pytest.mark.parametrize("df", [0.4, 2.2, 5.0])
def test_squares_of_student(df: float) -> None:
    """Along the weight, v²/(1 + v²/ν)^{(ν + 1)/2} is the density: v² / ν has a beta prime law.

    Kolmogorov's test of 20,000 draws, 1e-5 false alarms: a difference of 0.018 is seen.
    """
    base = StudentT(_n(df + 2), _t(0.0, 0.0), scale_tril=torch.linalg.cholesky(MATRIX))
    weight = _t(0.5, -1.0)
    torch.manual_seed(0)
    v = base.sample_square(weight.expand(20_000, -1)) @ weight
    square = v.square() / ((df + 2) * (weight @ MATRIX @ weight))
    assert stats.kstest(square.numpy(), stats.betaprime(1.5, df / 2).cdf).pvalue > 1e-5


@pytest.mark.parametrize("activation", [Cos(), Exp(0.5), ReLU()], ids=str)
def test_angles(activation: Activation) -> None:
    """The same law as on the circle, with densities by the angle; draws by Kolmogorov's test.

    20,000 draws and 1e-5 false alarms: a difference of 0.018 is seen.
    """
    bias = None if isinstance(activation, ReLU) else BIAS[:2]
    arguments = {"readout": READOUT[:, :2], "activation": activation}
    law = SNEFY(2 * PLANE, bias, base=UniformAngle(), **arguments)
    circle = SNEFY(2 * PLANE, bias, base=UniformSphere(2), **arguments)
    assert law.event_shape == ()
    angle = torch.linspace(-3.1, 3.1, 9, dtype=F64)
    points = torch.stack([angle.cos(), angle.sin()], dim=-1)
    assert_close(law.log_prob(angle), circle.log_prob(points))
    torch.manual_seed(0)
    draws = law.sample((20_000,))
    assert bool(law.support.check(draws).all())
    assert stats.kstest(law.cdf(draws).numpy(), "uniform").pvalue > 1e-5
    assert_close(law.cdf(_t(-math.pi, math.nextafter(math.pi, 0))), _t(0.0, 1.0))


# ------------------------------------------------------------------------ distribution functions


@pytest.mark.parametrize("df", [0.7, 1.0, 3.0, 40.0, 1e4])
def test_far_tails(df: float) -> None:
    """Mass between two values of a tail, by quadrature; round trips of quantiles."""
    law = _law(Cos(), _student(df))
    nodes, weights = (torch.as_tensor(x) for x in np.polynomial.legendre.leggauss(16))
    for low, high in ((-60.0, -12.0), (-9.0, -4.0), (3.0, 15.0), (20.0, 80.0)):
        edges = torch.linspace(low, high, 201, dtype=F64)
        half = (edges[1] - edges[0]) / 2
        x = (edges[:-1] + half).unsqueeze(-1) + half * nodes
        mass = (law.log_prob(x).exp() * weights).sum() * half
        assert_close(law.cdf(_n(high)) - law.cdf(_n(low)), mass, rtol=1e-11, atol=1e-14)
    q = _t(1e-9, 1e-4, 0.3, 0.99, 1 - 1e-7)
    assert_close(law.cdf(law.icdf(q)), q, rtol=1e-10, atol=0)
    assert_close(law.cdf(_t(-torch.inf, torch.inf)), _t(0.0, 1.0), rtol=0, atol=1e-14)


def test_cauchy_without_waves() -> None:
    """Constant neurons leave the base: its distribution function is in SciPy."""
    law = SNEFY(torch.zeros(2, 1, dtype=F64), BIAS[:2], READOUT[:, :2], base=_student(1.0))
    x = _t(-1e8, -50.0, 0.3, 2.0, 1e6)
    expected = stats.cauchy.cdf(x.numpy(), 0.3, 0.8)
    assert_close(law.cdf(x), torch.as_tensor(expected), rtol=1e-12, atol=0)


@pytest.mark.parametrize("activation", [Cos(), Sin(), Snake(1.0), Identity()], ids=str)
def test_distribution_function_has_gradients(activation: Activation) -> None:
    def cdf(df: Tensor, loc: Tensor, scale: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        base = StudentT(df, loc, scale, event_dim=0)
        return SNEFY(weight, BIAS, READOUT, activation=activation, base=base).cdf(x)

    tensors = (_n(3.5), _n(0.3), _n(0.8), WEIGHT.clone(), _t(-30.0, 0.2, 9.0))
    assert gradcheck(cdf, [x.requires_grad_() for x in tensors])


# ------------------------------------------------------------------------- batches and gradients


@pytest.mark.parametrize("df", [1.0, 3.0, 8.5])
def test_gradients_of_student(df: float) -> None:
    """Also where two weights are equal, and by the degrees of freedom."""

    def log_normalizer(df: Tensor, tril: Tensor, weight: Tensor) -> Tensor:
        base = StudentT(df, _t(0.1, -0.2), scale_tril=tril.tril())
        return SNEFY(weight, BIAS, READOUT, base=base, validate_args=False).log_normalizer

    weight = torch.tensor([[1.0, -0.5], [0.3, 2.0], [0.3, 2.0]], dtype=F64)
    tensors = [_n(df), torch.linalg.cholesky(MATRIX), weight]
    tensors = [x.clone().requires_grad_() for x in tensors]
    gradients = torch.autograd.grad(log_normalizer(*tensors), tensors)
    assert all(bool(x.isfinite().all()) for x in gradients)
    if df > 2:  # there is a kink at equal weights otherwise
        assert gradcheck(log_normalizer, tensors)
    distinct = torch.tensor([[1.0, -0.5], [0.3, 2.0], [-0.7, 0.4]], dtype=F64)
    assert gradcheck(log_normalizer, [*tensors[:2], distinct.requires_grad_()])


def test_batches() -> None:
    """A batch of degrees of freedom, locations and scales is a loop over its members."""
    df, loc, scale = _t(0.7, 3.0, 40.0), torch.randn(2, 1, dtype=F64), _n(0.8)
    base = StudentT(df, loc, scale, event_dim=0)
    assert base.batch_shape == (2, 3)
    law, x = _law(Cos(), base), torch.randn(2, 3, dtype=F64)
    found, levels = law.log_prob(x), law.cdf(x)
    for i, j in itertools.product(range(2), range(3)):
        alone = _law(Cos(), StudentT(df[j], loc[i, 0], scale, event_dim=0))
        assert_close(found[i, j], alone.log_prob(x[i, j]))
        assert_close(levels[i, j], alone.cdf(x[i, j]))
    assert law.sample((5,)).shape == (5, 2, 3)
    vectors = StudentT(df, torch.zeros(3, 2, dtype=F64), torch.ones(2, dtype=F64))
    assert (vectors.batch_shape, vectors.event_shape) == ((3,), (2,))


def test_parts() -> None:
    """Inside mixtures, and moved and stretched."""
    inner = StudentT(_n(3.0), _n(0.0), _n(1.0), event_dim=0)
    moved = _law(Cos(), Standardized(inner, _n(0.3), _n(0.8)))
    plain = SNEFY(WEIGHT / 0.8, BIAS - 0.3 / 0.8 * WEIGHT[:, 0], READOUT, base=_student(3.0))
    x = _t(-30.0, 0.2, 5.0)
    assert_close(moved.log_prob(x), plain.log_prob(x))
    assert_close(moved.cdf(x), plain.cdf(x))
    mixture = Mixture(_t(0.3, -0.2, 0.1), [inner, Laplace(_n(1.0), _n(0.5)), PointMass(_n(0.0))])
    law = _law(Cos(), mixture)
    # In a mixture, panels end where a mass of about 1e-10 is left.
    assert_close(law.cdf(_t(-1e6, 1e6)), _t(0.0, 1.0), rtol=0, atol=1e-9)
    torch.manual_seed(0)
    draws = law.sample((20_000,))
    levels = law.cdf(_t(-2.0, 1.0))
    for edge, level in zip((-2.0, 1.0), levels, strict=True):
        error = float(level * (1 - level) / len(draws)) ** 0.5
        assert abs(float((draws <= edge).double().mean() - level)) <= 4.5 * error


def test_float32() -> None:
    for name, build in BASES.items():
        base = build().map(Tensor.float)
        law = SNEFY(WEIGHT.float(), BIAS.float(), READOUT.float(), base=base)
        x = law.sample((100,))
        assert x.dtype == torch.float32, name
        expected = _law(Cos(), build()).log_prob(x.double())
        assert_close(law.log_prob(x).double(), expected, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------- learning


def test_first_values() -> None:
    """Parameters from 20,000 events, within 10 % or 0.1.

    With twenty seeds, no estimate had a spread of more than a fifth of its bound, which is that of
    ``total_count``: 6e-7 is the rate of false alarms. A bias of 10 % is seen half of the time.
    """
    torch.manual_seed(0)
    theirs = torch.distributions
    pairs: list[tuple[Base, Tensor, dict[str, float]]] = [
        (_student(3.0), theirs.StudentT(3.0, 5.0, 2.0).sample((20_000,)), {"loc": 5, "scale": 2}),
        (Laplace(0.0, 1.0), theirs.Laplace(5.0, 2.0).sample((20_000,)), {"loc": 5, "scale": 2}),
        (
            Logistic(0.0, 1.0),
            torch.as_tensor(stats.logistic.rvs(5, 2, 20_000, random_state=0)),
            {"loc": 5, "scale": 2},
        ),
        (
            NegativeBinomial(1.0, 0.5),
            theirs.NegativeBinomial(3.0, _n(0.7)).sample((20_000,)),
            {"total_count": 3, "probs": 0.7},
        ),
        (Binomial(7.0, 0.5), theirs.Binomial(7, _n(0.3)).sample((20_000,)), {"probs": 0.3}),
        (Bernoulli(0.5), theirs.Bernoulli(_n(0.3)).sample((20_000,)), {"probs": 0.3}),
    ]
    for base, x, expected in pairs:
        found = dict(fit_base(base.map(Tensor.double), x.double()).tensors())
        for name, value in expected.items():
            assert abs(float(found[name]) - value) <= 0.1 * max(1.0, value), (base, name)
    covariance = theirs.MultivariateNormal(torch.zeros(2, dtype=F64), MATRIX).sample((20_000,))
    heavy = covariance * (3 / theirs.Chi2(_n(3.0)).sample((20_000, 1))).sqrt() + _t(1.0, -2.0)
    fitted = fit_base(_plane().base, heavy)
    assert isinstance(fitted, StudentT)
    assert_close(fitted.loc, _t(1.0, -2.0), rtol=0, atol=0.1)
    assert_close(fitted.matrix(), MATRIX, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    "base",
    [StudentT(3.0, 0.0, 1.0, event_dim=0), Laplace(0.0, 1.0), NegativeBinomial(2.0, 0.5)],
    ids=str,
)
def test_fit(base: Base) -> None:
    """Parameters of the base are learnt, the degrees of freedom too."""
    torch.manual_seed(0)
    x = torch.distributions.NegativeBinomial(3.0, torch.tensor(0.6)).sample((500,))
    module = snefy(base, 4, 2)
    module.initialize(x)
    before = {name: value.clone() for name, value in module().base.tensors()}
    history = fit(module, x, max_epochs=3, progress=False)
    assert min(history.validation_nll) < math.inf
    module().log_prob(x).mean().backward()
    assert all(bool(p.grad.isfinite().all()) for p in module.parameters() if p.grad is not None)
    assert set(before) == {name for name, _ in module().base.tensors()}


# ------------------------------------------------------------------------------------ bad input


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"StudentT: expected df.*got"):
        StudentT(-1.0, 0.0, 1.0, event_dim=0)
    with pytest.raises(ValueError, match="StudentT: expected exactly one of scale and scale_tril"):
        StudentT(3.0, torch.zeros(2))
    with pytest.raises(ValueError, match=r"StudentT: expected loc .*event_dim=0"):
        StudentT(3.0, 0.0, 1.0)
    with pytest.raises(
        ValueError, match="StudentT: expected df and loc and scale_tril with shapes"
    ):
        StudentT(3.0, torch.zeros(2), scale_tril=torch.eye(3))
    with pytest.raises(ValueError, match="Laplace: expected scale"):
        Laplace(0.0, -1.0)
    with pytest.raises(ValueError, match="Logistic: expected loc and scale with shapes"):
        Logistic(torch.zeros(2), torch.ones(3))
    with pytest.raises(ValueError, match="NegativeBinomial: expected 0 < probs < 1"):
        NegativeBinomial(2.0, 1.0)
    with pytest.raises(ValueError, match="Binomial: expected total_count to be natural"):
        Binomial(2.5, 0.5)
    with pytest.raises(ValueError, match="Bernoulli: expected 0 < probs < 1"):
        Bernoulli(0.0)
