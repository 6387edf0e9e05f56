"""Distribution functions and quantiles against quadrature of independent densities."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from pyro_snefy import SNEFY, bases
from pyro_snefy.activations import Activation, Cos, Exp, LeakyReLU, ReLU, Snake, Step
from pyro_snefy.bases import Base
from pyro_snefy.kernels import closed_form
from pyro_snefy.operations.quantiles import line
from tests.cases import CASES, LOC, LOGITS, SCALE, TRIL, Case, _t
from tests.densities import LOG_DENSITIES, join, legendre, statistic

F64 = torch.float64
Array = NDArray[np.float64]

SCALAR = [case for case in CASES if case.base().event_shape == ()]
COUNTS = ("PoissonFamily", "Poisson", "Geometric", "DiscreteScalar", "MixtureCounts")
COUNTS += ("NegativeBinomial", "Binomial", "Bernoulli")
SMOOTH = [case for case in SCALAR if case.base_name not in COUNTS]
DISCRETE = [case for case in SCALAR if case.base_name in COUNTS]
ATOM = 0.5  # of the mixture in the catalogue
ENDS = {"Interval": [(-1.0, 1.5)], "Intervals": [(-1.0, 1.0), (2.0, 2.5)]}


ENDS["UniformAngle"] = [(-math.pi, math.pi)]
REACH = {name: 120.0 for name in ("Laplace", "Logistic")}
KINKS = {"Laplace": np.array([0.3])}


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


class Reference:
    """A random member of the family, and its density in NumPy."""

    def __init__(self, case: Case, scale: float = 1.0) -> None:
        self.case = case
        weight, bias, readout = case.parameters(scale=scale)
        self.law = SNEFY(weight, bias, readout, activation=case.activation, base=case.base())
        self.weight, self.readout = weight.numpy(), readout.numpy()
        self.bias = np.zeros(len(weight)) if bias is None else bias.numpy()
        self.log_normalizer = case.log_normalizer(weight, bias, readout.mH @ readout)

    def density(self, x: Array) -> Array:
        z = statistic(self.case.base_name, x) @ self.weight.T + self.bias
        square = (abs(self.case.oracle_activation.value(z) @ self.readout.T) ** 2).sum(-1)
        with np.errstate(divide="ignore"):
            log_density = LOG_DENSITIES[self.case.base_name](x) + np.log(square)
        return np.exp(log_density - self.log_normalizer)

    def cdf(self, x: float) -> float:
        """The distribution function by quadrature, between kinks."""
        if self.case.base_name == "GammaFamily":
            y, weights = legendre(-400.0, math.log(x), 2000)
            return float(self.density(np.exp(y)) @ (weights * np.exp(y)))
        if self.case.base_name == "StudentT":  # far into the tails
            y, weights = legendre(-14.0, math.asinh(x), 12000)
            return float(self.density(np.sinh(y)) @ (weights * np.cosh(y)))
        kinks = KINKS.get(self.case.base_name, np.empty(0))
        if self.case.base_name == "UniformAngle":
            angles = np.arctan2(*self.weight.T[::-1]) + np.pi * np.array(
                [[-1.5], [-0.5], [0.5], [1.5]]
            )
            kinks = angles.ravel()
        elif isinstance(self.case.activation, Step | ReLU | LeakyReLU):
            kinks = (-self.bias / self.weight[:, 0]).ravel()
        total = 0.0
        reach = REACH.get(self.case.base_name, 20.0)
        for low, high in ENDS.get(self.case.base_name, [(-reach, reach)]):
            high = min(high, x)
            if high <= low:
                continue
            inner = np.sort(kinks[(kinks > low) & (kinks < high)])
            edges = np.concatenate([[low], inner, [high]])
            points, weights = join(*[legendre(a, b, int(20 * reach)) for a, b in pairwise(edges)])
            total += float(self.density(points) @ weights)
        if self.case.base_name == "MixtureAtom" and x >= ATOM:
            total += float(self.density(np.array([ATOM]))[0])
        return total


LEVELS = _t(1e-3, 0.03, 0.2, 0.5, 0.77, 0.95, 0.999)
TAIL = 10.0 ** -torch.arange(4, 13, 2, dtype=F64)


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_distribution_function(case: Case) -> None:
    """To 1e-8, and to relative 1e-6 in the lower tail."""
    reference = Reference(case)
    x = reference.law.icdf(torch.cat([LEVELS, TAIL]))
    found = reference.law.cdf(x).numpy()
    expected = np.array([reference.cdf(float(value)) for value in x])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found[len(LEVELS) :], expected[len(LEVELS) :], rtol=1e-6, atol=0)
    if case.base_name != "MixtureAtom":  # an atom is the quantile of many levels
        # Beside the end of an interval, coordinates themselves have no more digits.
        rounding = reference.density(x.numpy()) * np.finfo(float).eps * 4
        if case.base_name == "UniformAngle":
            rounding = np.pi * rounding  # the end is at π, not near 1
        target = torch.cat([LEVELS, TAIL]).numpy()
        assert (abs(expected - target) <= 1e-9 * target + rounding).all()


@pytest.mark.parametrize("activation", ["Cos", "Snake", "Exp", "Erf", "ReLU", "GELU", "LeakyReLU"])
def test_large_weights(activation: str) -> None:
    """Densities that vary fast, or, for exponentials, far away from the base."""
    case = Case(activation, "GaussianScalar")
    reference = Reference(case, scale=3.0 if activation == "Exp" else 15.0)
    x = reference.law.icdf(torch.cat([LEVELS, TAIL]))
    found = reference.law.cdf(x).numpy()
    expected = np.array([reference.cdf(float(value)) for value in x])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_monotone(case: Case) -> None:
    law = case.distribution()
    low, high = law.icdf(_t(1e-9, 1 - 1e-9))
    x = torch.linspace(float(low), float(high), 1001, dtype=F64)
    x = x[law.support.check(x)]
    values = law.cdf(x)
    # Values are sums of panels before, which grow, and one in part, which has rounding errors.
    assert bool((values.diff() >= -4e-16).all())
    assert bool(((values >= 0) & (values <= 1)).all())
    q = torch.linspace(0, 1, 201, dtype=F64)
    quantiles = law.icdf(q)
    assert bool(law.support.check(quantiles).all())
    assert bool((quantiles.diff() >= -1e-14 * quantiles[1:].abs()).all())


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_round_trip(case: Case) -> None:
    law = case.distribution()
    x = law.sample((50,))
    back = law.icdf(law.cdf(x))
    # What is rounded of a probability is lost of a quantile, where there is hardly any density.
    lost = 1e-15 / law.log_prob(x).exp()
    assert bool(((back - x).abs() <= 1e-9 * x.abs() + lost).all())
    if case.base_name != "MixtureAtom":
        q = torch.rand(50, dtype=F64)
        assert_close(law.cdf(law.icdf(q)), q, rtol=0, atol=1e-9)


# ----------------------------------------------------------------------------------- discrete


def _points(case: Case) -> Array:
    if case.base_name == "DiscreteScalar":
        return np.array([-1.0, 0.0, 0.3, 2.0])
    return np.arange({"Binomial": 8.0, "Bernoulli": 2.0}.get(case.base_name, 60.0))


@pytest.mark.parametrize("case", DISCRETE, ids=str)
def test_steps(case: Case) -> None:
    """Sums of probabilities; quantiles are the first points with enough below them."""
    reference = Reference(case, scale=0.3 if case.activation_name == "Exp" else 1.0)
    law, points = reference.law, _points(case)
    total = reference.density(points).cumsum()
    found = law.cdf(torch.from_numpy(points)).numpy()
    np.testing.assert_allclose(found, total, rtol=1e-8, atol=1e-300)
    q = torch.rand(500, dtype=F64) * min(1.0, float(total[-1]))
    x = law.icdf(q).numpy()
    place = np.searchsorted(total, q.numpy())
    np.testing.assert_array_equal(x, points[place])
    draws = law.sample((100,))
    assert_close(law.icdf(law.cdf(draws) - 1e-9), draws, rtol=0, atol=0)


@pytest.mark.parametrize("activation", ["Cos", "Exp", "ReLU"])
def test_atom(activation: str) -> None:
    """All levels of an atom have it as their quantile, and no others."""
    reference = Reference(Case(activation, "MixtureAtom"))
    law = reference.law
    above = reference.cdf(ATOM)
    below = above - float(reference.density(np.array([ATOM]))[0])
    q = torch.linspace(below + 1e-9, above - 1e-9, 50, dtype=F64)
    assert bool((law.icdf(q) == ATOM).all())
    outside = law.icdf(torch.tensor([below - 1e-6, above + 1e-6], dtype=F64))
    assert outside[0] < ATOM < outside[1]
    either = law.cdf(_t(ATOM - 1e-12, ATOM))
    np.testing.assert_allclose(either.numpy(), [below, above], rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", SCALAR, ids=str)
def test_ends(case: Case) -> None:
    """Quantiles at zero and one have all the mass between them."""
    law = case.distribution(scale=0.3)
    low, high = law.icdf(_t(0.0, 1.0))
    assert not bool(torch.stack([low, high]).isnan().any())
    if case.base_name in ENDS:
        assert float(low) == ENDS[case.base_name][0][0]
        assert float(high) == pytest.approx(ENDS[case.base_name][-1][1], rel=1e-12)
    elif case.base_name == "DiscreteScalar":
        assert (float(low), float(high)) == (-1.0, 2.0)
    elif case.base_name in COUNTS:
        assert float(low) == 0.0
    else:
        assert float(law.cdf(low)) <= 1e-15
    assert float(law.cdf(high)) == pytest.approx(1.0, abs=1e-12)


def test_between_intervals() -> None:
    """Outside the support the distribution function is constant."""
    case = Case("Cos", "Intervals")
    weight, bias, readout = case.parameters()
    law = SNEFY(weight, bias, readout, base=case.base(), validate_args=False)
    inside = law.cdf(_t(1.0))
    assert_close(law.cdf(_t(-2.0, 1.2, 1.9, 3.0)), torch.cat([_t(0.0), inside, inside, _t(1.0)]))


# ------------------------------------------------------------------------- batches, marginals


@pytest.mark.parametrize(
    "base",
    [
        bases.Gaussian(_t(0.0, 2.0), _t(1.0, 0.3), event_dim=0),
        bases.Poisson(_t(1.0, 5.0)),
        bases.Standardized(bases.Gaussian(LOC[0], SCALE[0], event_dim=0), _t(0.0, 3.0), SCALE[1]),
    ],
    ids=lambda base: type(base).__name__,
)
@pytest.mark.parametrize("activation", [Cos(), Exp(0.5)], ids=str)
def test_batches(base: Base, activation: Activation) -> None:
    weight, bias, readout = _randn(3, 1), _randn(4, 1, 3), _randn(2, 1, 3)
    law = SNEFY(weight, bias, readout, activation=activation, base=base)
    assert law.batch_shape == (4, 2)
    q = torch.rand(5, 4, 2, dtype=F64)
    x = law.icdf(q)
    values = law.cdf(x)
    assert x.shape == values.shape == (5, 4, 2)
    assert law.icdf(_t(0.5)[0]).shape == (4, 2)
    for i in range(4):
        for j in range(2):
            own = base.map_batches(lambda t, rank, j=j: t[j] if t.dim() > rank else t)
            one = SNEFY(weight, bias[i, 0], readout[j], activation=activation, base=own)
            assert_close(one.icdf(q[:, i, j]), x[:, i, j], rtol=1e-10, atol=1e-10)
            assert_close(one.cdf(x[:, i, j]), values[:, i, j], rtol=1e-10, atol=1e-12)


JOINT: dict[str, Callable[[], Base]] = {
    "Gaussian": Case("Cos", "Gaussian").base,
    "GaussianFull": Case("Cos", "GaussianFull").base,
    "GaussianMixture": Case("Cos", "GaussianMixture").base,
    "UniformCube": lambda: bases.UniformCube(2),
    "UniformBox": Case("Cos", "UniformBox").base,
    "SmoothBox": Case("Cos", "SmoothBox").base,
    "SmoothBoxMixture": Case("Cos", "SmoothBoxMixture").base,
    "Standardized": lambda: bases.Standardized(
        bases.Gaussian(LOC, scale_tril=TRIL), _t(1.0, -1.0), _t(2.0, 0.3)
    ),
    "Product": lambda: bases.Product(
        [bases.Gaussian(LOC, scale_tril=TRIL), bases.Poisson(_t(2.0)[0])]
    ),
}


@pytest.mark.parametrize("k", [0, 1])
@pytest.mark.parametrize("activation", [Cos(), Snake(), Exp(), ReLU()], ids=str)
@pytest.mark.parametrize("name", JOINT)
def test_marginals(name: str, activation: Activation, k: int) -> None:
    """Against quadrature of their densities."""
    base = JOINT[name]()
    if not closed_form(activation, base, bias=True):
        pytest.skip("no closed form")
    n = 2 if isinstance(base, bases.GaussianMixture) else 3
    weight, bias, readout = _randn(n, base.num_statistics) * 0.6, _randn(n), _randn(2, n)
    law: Any = SNEFY(weight, bias, readout, activation=activation, base=base).marginal([k])
    x = law.icdf(_t(0.02, 0.4, 0.97))
    assert x.shape == (3, 1)
    low = {"UniformCube": 0.0, "UniformBox": (-1.0, 0.5)[k]}.get(name, -15.0)
    for value, probability in zip(x[:, 0], law.cdf(x), strict=True):
        if name == "UniformCube":  # what grows at the ends of the cube does not in other terms
            y, weights = legendre(-12.0, float(special.ndtri(float(value))), 300)
            points, weights = special.ndtr(y), weights * stats.norm.pdf(y)
        else:
            points, weights = legendre(low, float(value), 300)
        density = law.log_prob(torch.from_numpy(points).unsqueeze(-1)).exp().numpy()
        assert float(probability) == pytest.approx(density @ weights, abs=1e-8)
    assert_close(law.cdf(x), _t(0.02, 0.4, 0.97), rtol=0, atol=1e-9)


def test_marginal_of_counts() -> None:
    base = JOINT["Product"]()
    law: Any = SNEFY(_randn(3, 3), _randn(3), _randn(2, 3), base=base).marginal([2])
    counts = torch.arange(20, dtype=F64).unsqueeze(-1)
    assert_close(law.cdf(counts), law.log_prob(counts).exp().cumsum(0), rtol=1e-9, atol=1e-12)
    assert law.icdf(_t(0.5)).shape == (1, 1)


@pytest.mark.parametrize("activation", [Step(), ReLU(), LeakyReLU(0.2)], ids=str)
def test_kinks_that_meet(activation: Activation) -> None:
    """The density of a marginal in the plane has kinks where those of two neurons meet."""
    law: Any = SNEFY(_randn(5, 2), _randn(5), _randn(2, 5), activation=activation).marginal([0])
    assert float(line(law.joint._network, 0).upper[-1]) == pytest.approx(1.0, abs=1e-12)


def test_vectors_of_length_one() -> None:
    base = bases.Gaussian(_t(0.2), _t(1.1))
    scalar = bases.Gaussian(_t(0.2)[0], _t(1.1)[0], event_dim=0)
    parameters = _randn(3, 1), _randn(3), _randn(1, 3)
    vector, number = SNEFY(*parameters, base=base), SNEFY(*parameters, base=scalar)
    q = _t(0.1, 0.6)
    assert_close(vector.icdf(q), number.icdf(q).unsqueeze(-1))
    assert_close(vector.cdf(vector.icdf(q)), q)


def test_conditional_quantiles() -> None:
    """Intervals of a coordinate, given others: one for each row."""
    law = SNEFY(_randn(4, 3), _randn(4), _randn(2, 4))
    given = law.conditional([0, 2], _randn(6, 2))
    ends = given.icdf(_t(0.05, 0.95).unsqueeze(-1))
    assert ends.shape == (2, 6, 1)
    assert_close(given.cdf(ends), _t(0.05, 0.95).unsqueeze(-1).expand(2, 6), rtol=0, atol=1e-9)


# ---------------------------------------------------------------------------------- gradients

GRADIENTS: dict[str, Callable[[Tensor, Tensor], Base]] = {
    "Gaussian": lambda a, b: bases.Gaussian(a, b.exp(), event_dim=0),
    "GaussianMixture": lambda a, b: bases.GaussianMixture(
        LOGITS[:2], torch.stack([a, a + 1]).unsqueeze(-1), b.exp().expand(2, 1)
    ),
    "SmoothBox": lambda a, b: bases.SmoothBox(a.reshape(1), a.reshape(1) + 2, b.exp()),
    "UniformBox": lambda a, b: bases.UniformBox(a.reshape(1) - 1, a.reshape(1) + b.exp()),
}


@pytest.mark.parametrize("activation", [Cos(), Snake(), Exp(), ReLU(), Step()], ids=str)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, activation: Activation) -> None:
    """In values and probabilities, in all parameters, and in those of the base."""
    if not closed_form(activation, GRADIENTS[name](LOC[0], SCALE[0]), bias=True):
        pytest.skip("no closed form")
    parameters = [_randn(2, 1), _randn(2), _randn(1, 2), LOC[0].clone(), SCALE[0].log()]
    parameters = [tensor.requires_grad_() for tensor in parameters]

    def law(*tensors: Tensor) -> SNEFY:
        *own, a, b = tensors
        base = GRADIENTS[name](a, b)
        return SNEFY(*own, activation=activation, base=base, validate_args=False)

    def event(x: Tensor) -> Tensor:
        return x if name == "Gaussian" else x.unsqueeze(-1)

    q = _t(0.07, 0.6)
    with torch.no_grad():
        x = law(*parameters).icdf(q)
    x, q = x.clone().reshape(-1).requires_grad_(), q.requires_grad_()
    assert gradcheck(lambda x, *p: law(*p).cdf(event(x)), (x, *parameters), atol=1e-6)
    assert gradcheck(lambda q, *p: law(*p).icdf(q), (q, *parameters), atol=1e-6)
    d = law(*parameters)
    (slope,) = torch.autograd.grad(d.cdf(event(x)).sum(), x)
    assert_close(slope, d.log_prob(event(x)).exp().detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("activation", [Cos(), ReLU()], ids=str)
def test_gradients_of_marginals(activation: Activation) -> None:
    parameters = [t.requires_grad_() for t in (_randn(3, 2), _randn(3), _randn(1, 3))]
    x = _t(-0.4, 0.9).unsqueeze(-1).requires_grad_()

    def cdf(x: Tensor, *tensors: Tensor) -> Tensor:
        base = bases.Gaussian(LOC, scale_tril=TRIL)
        law: Any = SNEFY(*tensors, activation=activation, base=base, validate_args=False)
        return law.marginal([1]).cdf(x)

    assert gradcheck(cdf, (x, *parameters), atol=1e-6)


# --------------------------------------------------------------------------------- bad input


def test_single_precision() -> None:
    law = Case("Cos", "GaussianScalar").distribution(torch.float32)
    q = torch.rand(20)
    x = law.icdf(q)
    assert x.dtype == law.cdf(x).dtype == torch.float32
    assert_close(law.cdf(x), q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", [Case("Cos", "Gaussian"), Case("Cos", "UniformSphere")], ids=str)
def test_vectors_have_no_distribution_function(case: Case) -> None:
    law = case.distribution()
    with pytest.raises(NotImplementedError, match="marginal"):
        law.cdf(torch.nn.functional.normalize(torch.ones(law.event_shape, dtype=F64), dim=-1))
    with pytest.raises(NotImplementedError, match="marginal"):
        law.icdf(_t(0.5))


def test_several_coordinates_of_a_marginal() -> None:
    law: Any = SNEFY(_randn(4, 3), _randn(4), _randn(2, 4), activation=Snake()).marginal([0, 1])
    with pytest.raises(NotImplementedError, match="marginal"):
        law.cdf(_randn(2))


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_no_probability(q: float) -> None:
    law = Case("Cos", "GaussianScalar").distribution()
    with pytest.raises(ValueError, match="probabilities"):
        law.icdf(_t(0.5, q))


@pytest.mark.parametrize("name", ["GaussianScalar", "Interval", "Poisson"])
def test_nan_stays_nan(name: str) -> None:
    weight, bias, readout = Case("Cos", name).parameters(n=3)
    base = Case("Cos", name).base()
    d = SNEFY(weight, bias, readout, base=base, validate_args=False)
    x = torch.tensor([math.nan, 0.5, -math.inf, math.inf], dtype=F64)
    assert d.cdf(x).isnan().tolist() == [True, False, False, False]
    assert d.cdf(x)[2:].tolist() == pytest.approx([0.0, 1.0], abs=1e-12)
    q = torch.tensor([math.nan, 0.5, -0.1, 1.1], dtype=F64)
    assert d.icdf(q).isnan().tolist() == [True, False, True, True]
