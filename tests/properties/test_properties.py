"""What holds of every family, for examples that hypothesis draws.

The error of a density is held against its condition number: the sum of the changes of its
logarithm when each number it is computed from changes by the unit of rounding. `_BUDGET` units are
allowed, for the number of operations in a row.
"""

import math
import resource
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, event, example, given, note
from hypothesis import strategies as st
from scipy import stats
from torch import Size, Tensor

from pyro_snefy import SNEFY, PoissonProcess, bases
from pyro_snefy.testing import integrate
from tests.properties import known
from tests.properties.events import events
from tests.properties.strategies import Call, Values, cast, laws, member

EPS = torch.finfo(torch.float64).eps
EPS32 = torch.finfo(torch.float32).eps
_BUDGET = 64.0
_QUADRATURE = 1e-6
# The false alarms of one test of 200 draws, which sees a distance of 0.23 between distribution
# functions half of the time.
_FALSE_ALARM = 1e-9
_SECONDS = 20.0  # for draws; most take milliseconds
_KILOBYTES = 1_000_000

seeds = st.integers(0, 2**16)


def _law(description: Call, largest: float = 1e6) -> SNEFY:
    """The family, if its normalising constant is positive, finite and not lost to cancellation."""
    note(repr(description))
    law = description.build()
    try:
        condition = law.condition_number
        assume(bool((condition < 1e-6 / EPS).all()))
        assume(bool((law.log_normalizer.abs() < largest).all()))
    except ValueError as error:
        assume("normalising constant" not in str(error))
        raise
    return law


def _one(law: SNEFY, seed: int) -> SNEFY:
    """A random member of a batch."""
    indices = list(np.ndindex(*law.batch_shape))
    return member(law, indices[seed % len(indices)])


def _amplification(law: SNEFY, x: Tensor) -> Tensor:
    """The square with absolute values of all terms, over the square: (N, 1), at least one."""
    z = law.base.statistic(x) @ law.weight.mT.double()
    z = z if law.bias is None else z + law.bias
    if law.activation.exponent is not None:
        z = z - z.amax(-1, keepdim=True)  # the ratio does not change
    neurons = law.activation(z)
    matrix: Any = law.gram if law.readout is None else law.readout
    size = neurons.abs() @ matrix.abs().mT
    neurons, matrix = (x.to(torch.result_type(neurons, matrix)) for x in (neurons, matrix))
    if law.readout is None:
        square = ((neurons @ matrix.mT) * neurons.conj()).sum(-1).real
        size = (size * neurons.abs()).sum(-1)
    else:
        square = (neurons @ matrix.mT).abs().square().sum(-1)
        size = size.square().sum(-1)
    ratio = torch.where(square > 0, size / torch.where(square > 0, square, 1.0), 0.0)
    return ratio.unsqueeze(-1)


def _integral(
    law: SNEFY, function: Any = None, breaks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    try:
        value, error = integrate(law, function, breaks=breaks)
    except NotImplementedError:
        assume(False)
        raise
    assume(bool((error <= 1e-3 * value.abs().clamp(min=1e-300)).all()) or function is not None)
    return value, error


def _poles_are_weak(law: SNEFY) -> bool:
    """Whether densities grow less than x^-0.8 at an edge, as quadrature can follow."""
    families = (bases.DirichletFamily, bases.GammaFamily)
    if not any(isinstance(part, families) for part in law.base.parts()):
        return True
    return bool((2 * (law.activation.exponent or 0.0) * law.weight > -0.8).all())


@given(laws(), seeds)
@example(known.NESTED_ATOMS, 0)
@example(known.TINY_SIN, 0)
@example(known.TINY_SNAKE, 0)
@example(known.TINY_SIN_ON_A_BOX, 0)
@example(known.TINY_SNAKE_ON_A_MIXTURE, 0)
@example(known.TINY_SIN_ON_COUNTS, 0)
def test_mass_is_one(description: Call, seed: int) -> None:
    """log Z is the logarithm of the integral, unless the square itself cancels.

    The sensitivity is the integral with absolute values of all terms over the integral. The square
    is computed from parameters, and so has errors of as many units; log Z is allowed the same.
    """
    note(repr(description))
    loose = description.build(validate_args=False)
    law = _one(loose, seed)
    assume(_poles_are_weak(law))
    x = events(law, seed, 20)
    largest = law._network.log_density(x).amax()
    assume(bool(largest.isfinite()))

    def log_density(x: Tensor) -> Tensor:
        value = law._network.log_density(x) - largest
        return torch.where(law.base.contains(x), value, -torch.inf)

    def values(x: Tensor) -> Tensor:
        return torch.cat([torch.ones(len(x), 1), _amplification(law, x)], -1)

    try:
        (mass, absolute), (error, _) = integrate(law, values, log_density=log_density)
    except NotImplementedError:
        assume(False)
        raise
    assume(0 < float(mass) < math.inf and float(error) <= 1e-4 * float(mass))
    sensitivity = float(absolute / mass)
    allowed = _QUADRATURE + 10 * float(error / mass) + _BUDGET * EPS * sensitivity
    assume(allowed < 1e-3 and sensitivity < 1e9)
    event(f"quadrature, {type(law.base).__name__}")
    expected = float(mass.log() + largest)
    allowed += 4 * EPS * abs(expected)
    found = float(law.log_normalizer)
    assert abs(found - expected) <= allowed, f"log Z = {found!r}, expected {expected!r}"
    assert description.build().log_normalizer.shape == loose.batch_shape  # with validation too


@given(laws(), seeds)
@example(known.HUGE_RATE, 0)
def test_refusals_are_right(description: Call, seed: int) -> None:
    """Only normalising constants that are zero, infinite or lost to cancellation are refused."""
    note(repr(description))
    law = description.build()
    try:
        assert law.log_normalizer.isfinite().all()
        return
    except ValueError as error:
        assert "normalising constant" in str(error)
    unchecked = description.build(validate_args=False)
    bad = ~(unchecked.condition_number < 1e-3 / EPS) | ~unchecked.log_normalizer.isfinite()
    assert bad.any(), f"condition number {unchecked.condition_number}, {unchecked.log_normalizer=}"


@given(laws("several"), seeds)
def test_chain_rule(description: Call, seed: int) -> None:
    """log p(x) = log p(x_A) + log p(x_B | x_A)."""
    law = _law(description)
    d = law.event_shape[0]
    assume(d > 1)
    rng = np.random.default_rng(seed)
    order = rng.permutation(d).tolist()
    cut = int(rng.integers(1, d))
    given_dims, others = order[:cut], sorted(order[cut:])
    x = events(law, seed)
    try:
        marginal = law.marginal(given_dims)
        conditional = law.conditional(given_dims, x[..., given_dims])
    except NotImplementedError:
        assume(False)
        raise
    whole = law.log_prob(x)
    assume(bool((whole > -500).all()))
    first, second = marginal.log_prob(x[..., given_dims]), conditional.log_prob(x[..., others])
    condition = law.condition_number + conditional.condition_number
    assume(bool((condition < 1e-4 / EPS).all()))
    allowed = _BUDGET * EPS * (condition + _condition(law, x)) + 1e-9 * (1 + whole.abs())
    difference = (whole - first - second).abs()
    assert (difference <= allowed).all(), f"dims {given_dims}: {whole} != {first} + {second}"


@given(laws(), seeds)
def test_noise(description: Call, seed: int) -> None:
    """log p(x) + log p(y | x) = log p(y) + log p(x | y), for noise from tiny to large."""
    law = _law(description)
    rng = np.random.default_rng(seed)
    x = events(law, seed)
    scale = torch.as_tensor(10 ** rng.uniform(-3, 3, law.event_shape))
    y = x + scale * torch.as_tensor(rng.normal(size=x.shape))
    try:
        observed, posterior = law.observed(scale), law.posterior(y, scale)
    except NotImplementedError:
        assume(False)
        raise
    error = torch.distributions.Normal(x, scale).log_prob(y)
    error = error.sum(-1) if law.event_shape else error
    joint = law.log_prob(x) + error
    assume(bool((joint > -500).all()))
    condition = law.condition_number + posterior.condition_number
    assume(bool((condition < 1e-4 / EPS).all()))
    found = observed.log_prob(y) + posterior.log_prob(x)
    # Distances from the centres, in standard deviations, are squared in all four terms.
    allowed = _BUDGET * EPS * (condition + _condition(law, x)) + 1e-8 * (1 + joint.abs())
    assert ((found - joint).abs() <= allowed).all(), f"noise {scale}: {found} != {joint}"


@given(laws("several"), seeds)
@example(known.ON_A_CIRCLE, 1)
def test_partially_observed(description: Call, seed: int) -> None:
    """NaN for what is not observed is the marginal law of the rest."""
    law = _law(description)
    d = law.event_shape[0]
    rng = np.random.default_rng(seed)
    x = events(law, seed)
    mask = torch.as_tensor(rng.integers(0, 2, x.shape[-1:]).astype(bool))
    dims = mask.nonzero().flatten().tolist()
    rows = torch.where(mask, x, torch.nan)
    try:
        found = law.partially_observed().log_prob(rows)
        expected = law.marginal(dims).log_prob(x[..., dims]) if dims else torch.zeros(x.shape[:-1])
    except NotImplementedError:
        assume(False)
        raise
    assume(bool((expected > -500).all()))
    allowed = 1e-8 * (1 + expected.abs()) + _BUDGET * EPS * (
        law.condition_number + _condition(law, x)
    )
    if dims and len(dims) < d:
        rest = law.conditional(dims, x[..., dims]).condition_number
        assume(bool((rest < 1e-4 / EPS).all()))
        allowed = allowed + _BUDGET * EPS * rest
    assert ((found - expected).abs() <= allowed).all(), f"dims {dims}: {found} != {expected}"


@given(laws(), seeds)
def test_batch_is_a_loop(description: Call, seed: int) -> None:
    law = _law(description)
    assume(law.batch_shape)
    x = events(law, seed)
    log_prob, log_normalizer = law.log_prob(x), law.log_normalizer
    assert log_prob.shape == log_normalizer.shape == law.batch_shape
    for index in np.ndindex(*law.batch_shape):
        alone = member(law, index)
        allowed = (
            _BUDGET * EPS * (float(alone.condition_number) + float(alone.log_normalizer.abs()))
        )
        difference = float((log_normalizer[index] - alone.log_normalizer).abs())
        assert difference <= allowed, f"log Z of {index}: {difference:.2g} > {allowed:.2g}"
        expected = alone.log_prob(x[index])
        if expected > -500:
            allowed += _BUDGET * EPS * float(_condition(alone, x[index]))
            difference = float((log_prob[index] - expected).abs())
            assert difference <= allowed, f"log p of {index}: {difference:.2g} > {allowed:.2g}"


@given(laws(), seeds)
@example(known.ALMOST_SURE, 0)
def test_moments_of_a_batch(description: Call, seed: int) -> None:
    law = _law(description)
    assume(law.batch_shape)
    try:
        mean, variance = law.mean, law.variance
    except NotImplementedError:
        assume(False)
    except ValueError as error:  # tails that are too heavy
        assume("df >" not in str(error))
        raise
    for index in np.ndindex(*law.batch_shape):
        alone = member(law, index)
        size = alone.variance.sqrt() + alone.mean.abs()
        allowed = 1e-7 + 1e3 * EPS * alone.condition_number
        assert ((mean[index] - alone.mean).abs() <= allowed * size).all(), index
        assert ((variance[index] - alone.variance).abs() <= allowed * size.square()).all(), index


@given(laws(), seeds)
@example(known.PLAIN, 0)
def test_expand(description: Call, seed: int) -> None:
    law = _law(description)
    larger = law.expand((4, *law.batch_shape))
    assert larger.batch_shape == (4, *law.batch_shape)
    assert larger.event_shape == law.event_shape
    x = events(law, seed)
    log_prob = law.log_prob(x)
    assert torch.equal(larger.log_prob(x), log_prob.expand(larger.batch_shape))
    assert torch.equal(larger.log_normalizer, law.log_normalizer.expand(larger.batch_shape))
    wrong = (*law.batch_shape[:-1], law.batch_shape[-1] + 1) if law.batch_shape else None
    if wrong is not None and law.batch_shape[-1] > 1:
        with pytest.raises((ValueError, RuntimeError)):
            law.expand(wrong)
        with pytest.raises((ValueError, RuntimeError)):
            law.expand(law.batch_shape[1:])


@given(laws("one", batch=()), seeds)
@example(known.MIXTURE_INSIDE, 0)
@example(known.TINY_SIN_ON_STUDENT, 0)
def test_distribution_function(description: Call, seed: int) -> None:
    """The distribution function is the integral of the density, and its quantiles invert it."""
    law = _law(description)
    x = events(law, seed, 5).reshape(5, *law.event_shape)
    x = x.sort(0).values
    try:
        found = law.cdf(x)
    except NotImplementedError:
        assume(False)
        raise
    assert ((found >= 0) & (found <= 1 + 1e-9)).all(), found
    assert (found.diff() >= -1e-12).all(), f"not monotone: {found}"
    flat = x.reshape(-1)
    expected, error = _integral(law, lambda y: (y.reshape(-1, 1) <= flat).to(y.dtype), flat)
    (mass,), _ = _integral(law)
    allowed = 2 * _QUADRATURE + 10 * error + (mass - 1).abs()
    assert ((found - expected).abs() <= allowed).all(), f"cdf({x}) = {found}, expected {expected}"
    q = torch.as_tensor(np.random.default_rng(seed).uniform(0.001, 0.999, 5))
    quantile = law.icdf(q)
    back = law.cdf(quantile)
    note(f"q={q} icdf={quantile} cdf={back}")
    assert law.base.contains(quantile).all(), f"icdf({q}) = {quantile} is not in the support"
    assert (back >= q - 1e-7).all(), f"cdf(icdf({q})) = {back}"
    if not _has_atoms(law.base):
        room = 4 * EPS * quantile.reshape(-1).abs() * law.log_prob(quantile).exp()
        # The least number of the support stands for all quantiles that underflow.
        least = (quantile == law.icdf(torch.zeros_like(q))).reshape(-1)
        assert ((back <= q + 1e-7 + room) | least).all(), f"cdf(icdf({q})) = {back}"


@given(laws("one", batch=()), seeds)
@example(known.TINY_SIN, 0)
@example(known.TINY_SIN_ON_A_CUBE, 0)
def test_intervals(description: Call, seed: int) -> None:
    """The probability of an interval is a difference of distribution functions."""
    law = _law(description)
    assume(not _has_atoms(law.base))
    low, high = events(law, seed, 2).sort(0).values
    try:
        found = law.interval_probability(low, high)
        expected = law.cdf(high) - law.cdf(low)
    except NotImplementedError:
        assume(False)
        raise
    allowed = 1e-9 + _BUDGET * EPS * law.condition_number
    assert ((found - expected).abs() <= allowed).all(), f"{found} != {expected}, [{low}, {high}]"


@given(laws("one", batch=()), seeds)
def test_censoring(description: Call, seed: int) -> None:
    """Values at a bound have the mass beyond it, and values between bounds their density."""
    law = _law(description)
    assume(not law.event_shape and not law.base.is_discrete and not _has_atoms(law.base))
    low, x, high = events(law, seed, 3).sort(0).values
    assume(bool(low < x) and bool(x < high))
    try:
        censored = law.censored(low, high)
        found = torch.stack([censored.log_prob(value).exp() for value in (low, high)])
        expected = torch.stack([law.cdf(low), 1 - law.cdf(high)])
    except NotImplementedError:
        assume(False)
        raise
    allowed = 1e-9 + _BUDGET * EPS * law.condition_number
    assert ((found - expected).abs() <= allowed).all(), f"{found} != {expected}, [{low}, {high}]"
    assert censored.log_prob(x) == law.log_prob(x)


@given(laws(batch=()), seeds)
def test_point_processes(description: Call, seed: int) -> None:
    """The likelihood of points is the one of their number times the densities of each."""
    law = _law(description, largest=30.0)
    rate, points = 2.0, events(law, seed, 3)
    process = PoissonProcess(
        law.weight,
        law.bias,
        law.readout,
        gram=law.gram,
        activation=law.activation,
        base=law.base,
        rate=rate,
    )
    densities = law.log_prob(points)
    assume(bool(densities.isfinite().all()))
    mean = rate * law.log_normalizer.exp()
    expected = densities.sum() + 3 * mean.log() - mean
    # The mean is as large as e^30, and a sum of numbers of its size is rounded to its precision.
    allowed = _BUDGET * EPS * (densities.abs().sum() + (1 + mean) * (1 + law.condition_number))
    found = process.log_prob(points)
    assert (found - expected).abs() <= allowed, f"{found} != {expected}"


@given(laws("several", batch=()), seeds)
@example(known.TINY_SNAKE_ON_CUBES, 0)
def test_slabs(description: Call, seed: int) -> None:
    """Bounds on one coordinate give its marginal distribution function."""
    law = _law(description)
    x = events(law, seed, 1)[0]
    k = seed % len(x)
    high = torch.full_like(x, torch.inf)
    high[k] = x[k]
    try:
        found = law.interval_probability(torch.full_like(x, -torch.inf), high)
        expected = law.marginal([k]).cdf(x[k : k + 1])
    except NotImplementedError:
        assume(False)
        raise
    allowed = 1e-9 + _BUDGET * EPS * law.condition_number
    assert ((found - expected).abs() <= allowed).all(), f"{found} != {expected}, x_{k} <= {x[k]}"


def _has_atoms(base: Any) -> bool:
    if isinstance(base, bases.Mixture | bases.Product):
        return any(_has_atoms(part) for part in base.bases)
    return base.is_discrete


@given(laws("one", batch=()), seeds)
@example(known.MIXTURE_INSIDE, 0)
def test_derivative_of_the_distribution_function(description: Call, seed: int) -> None:
    law = _law(description)
    assume(not _has_atoms(law.base))
    x = events(law, seed, 3).requires_grad_()
    try:
        (slope,) = torch.autograd.grad(law.cdf(x).sum(), x)
    except NotImplementedError:
        assume(False)
    density = law.log_prob(x.detach()).exp()
    # Panels end where no mass is left that float64 would see.
    middle = law.icdf(torch.tensor(0.5, dtype=torch.float64))
    allowed = 1e-6 * density + 1e-12 * law.log_prob(middle).exp()
    assert ((slope.reshape(-1) - density.reshape(-1)).abs() <= allowed).all(), (slope, density)


@given(laws(batch=()), seeds)
@example(known.TINY_SIN_ON_A_BOX, 0)
@example(known.TINY_SNAKE_ON_A_MIXTURE, 0)
@example(known.TINY_SIN_ON_COUNTS, 0)
@example(known.TINY_SNAKE_ON_A_PRODUCT, 0)
@example(known.MASSLESS_PART, 0)
@example(known.DEAD_PART, 0)
@example(known.EQUAL_POINTS, 0)
def test_moments(description: Call, seed: int) -> None:
    law = _law(description)
    tails = [part.finite_moments() for part in law.base.parts()]
    # Quadrature of second moments ends too early in heavier tails.
    assume(all(df is None or bool((df > 12).all()) for df in tails))
    try:
        mean, variance = law.mean.reshape(-1), law.variance.reshape(-1)
    except NotImplementedError:
        assume(False)
        raise
    assert mean.isfinite().all(), f"mean {mean}"
    assert (variance >= 0).all(), f"variance {variance}"
    assume(_poles_are_weak(law))
    d = len(mean)

    def powers(x: Tensor) -> Tensor:
        x = x.reshape(-1, d)
        one = _amplification(law, x.reshape(-1, *law.event_shape))
        return torch.cat([torch.ones_like(one), one, x.abs(), (x - mean).square(), x], -1)

    value, error = _integral(law, powers)
    mass = value[0]  # of log Z there is a test of its own
    assume(float(error[0]) <= 1e-3 * float(mass))
    _, sensitivity, size, spread, centre = (value / mass).split([1, 1, d, d, d])
    *_, wrong_spread, wrong_centre = (10 * error / mass).split([1, 1, d, d, d])
    scale = spread.sqrt()
    share = _QUADRATURE + 1e4 * EPS * sensitivity
    allowed = wrong_centre + share * (scale + 1e-6 * size) + EPS * _BUDGET * size
    assert ((mean - centre).abs() <= allowed).all(), f"mean {mean}, expected {centre}"
    allowed = wrong_spread + share * spread + EPS * 1e4 * sensitivity * (size + scale).square()
    assert ((variance - spread).abs() <= allowed).all(), f"variance {variance}, expected {spread}"


def _parameters(law: SNEFY) -> dict[str, Tensor]:
    own = {name: getattr(law, name) for name in ("weight", "bias", "readout", "gram")}
    return {name: x for name, x in own.items() if x is not None} | {
        f"base.{name}": x for name, x in law.base.tensors()
    }


def _leaves(law: SNEFY) -> tuple[SNEFY, dict[str, Tensor]]:
    """The same family made of leaves."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in _parameters(law).items()}
    inner = iter([x for name, x in leaves.items() if name.startswith("base.")])
    own = law.base.map(lambda _: next(inner))
    tensors = {name: x for name, x in leaves.items() if not name.startswith("base.")}
    family = SNEFY(activation=law.activation, base=own, validate_args=False, **tensors)
    return family, leaves


def _condition(law: SNEFY, x: Tensor) -> Tensor:
    """The condition number of the log-density at each event, by the numbers it is made of.

    The normalising constant is left out: it has a condition number of its own.
    """
    copy, leaves = _leaves(law)
    x = x.detach().clone().requires_grad_()
    density = copy._network.log_density(x)
    total = torch.zeros_like(density.detach())
    shape = density.shape
    for k in range(density.numel()):
        gradients = torch.autograd.grad(
            density.reshape(-1)[k],
            [x, *leaves.values()],
            retain_graph=True,
            materialize_grads=True,
            allow_unused=True,
        )
        parts = zip(gradients, [x, *leaves.values()], strict=True)
        total.reshape(-1)[k] = sum(float((g.abs() * y.abs()).detach().sum()) for g, y in parts)
    total = torch.where(total.isfinite(), total, torch.inf)
    return (total + density.detach().abs()).reshape(shape)


@given(laws(), seeds)
def test_gradients_are_finite(description: Call, seed: int) -> None:
    law = _law(description)
    law, leaves = _leaves(law)
    x = events(law, seed)
    log_prob = law.log_prob(x)
    assume(bool((log_prob > -500).all()))
    for name, value in {"log_prob": log_prob, "log_normalizer": law.log_normalizer}.items():
        if not value.requires_grad:
            continue
        gradients = torch.autograd.grad(
            value.sum(), list(leaves.values()), retain_graph=True, allow_unused=True
        )
        for key, gradient in zip(leaves, gradients, strict=True):
            found = gradient is None or bool(gradient.isfinite().all())
            assert found, f"the gradient of {name} by {key} is {gradient}"


@given(laws(dtype="float32"), seeds)
@example(known.STEEP_FLOAT32, 0)
@example(known.GRAM_OF_ROWS, 0)
@example(known.TINY_SIN_FLOAT32, 0)
def test_float32(description: Call, seed: int) -> None:
    """What float32 adds is at most 64 eps times the condition number of the log-density."""
    single = _law(description)
    double = cast(single, torch.float64)
    x = events(double, seed)
    x = single.base.cast(x, torch.float32)
    expected = double.log_prob(x.double())
    assume(bool((expected > -80).all() & (expected < 80).all()))
    log_normalizer = double.log_normalizer
    allowed = 4 * EPS32 * (1 + log_normalizer.abs())
    difference = (single.log_normalizer - log_normalizer).abs()
    assert (difference <= allowed).all(), f"log Z: {single.log_normalizer} != {log_normalizer}"
    condition = _condition(double, x.double()) + double.condition_number + log_normalizer.abs()
    allowed = _BUDGET * EPS32 * condition
    steady = allowed < 0.1  # beyond, rounding of the arguments is no small change
    found = single.log_prob(x)
    note(f"x={x} found={found} expected={expected} allowed={allowed}")
    assert not found.isnan().any()
    assert (((found - expected).abs() <= allowed) | ~steady).all()


@given(laws(), seeds)
def test_scale_of_the_readout(description: Call, seed: int) -> None:
    """The readout is known up to a factor: log Z moves by 2 log c, the density does not."""
    law = _law(description)
    name = "readout" if law.gram is None else "gram"
    factor = 2.0**-30
    other = description.replace(name, Values.of(getattr(law, name) * factor)).build()
    shift = (2 if law.gram is None else 1) * math.log(factor)
    allowed = _BUDGET * EPS * (law.condition_number + law.log_normalizer.abs() + abs(shift))
    assert ((other.log_normalizer - law.log_normalizer - shift).abs() <= allowed).all()
    x = events(law, seed)
    expected = law.log_prob(x)
    assume(bool((expected > -500).all()))
    assert ((other.log_prob(x) - expected).abs() <= allowed + EPS * _BUDGET * expected.abs()).all()


@given(laws(), seeds)
@example(known.HUGE_RATES, 0)
@example(known.HEAVY_TAILS, 0)
def test_draws(description: Call, seed: int) -> None:
    """Draws are in the support, in bounded time and memory, and follow the law."""
    law = _law(description, math.inf)
    torch.manual_seed(seed)
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        x = law.sample((200,))
    except NotImplementedError:
        assume(False)
        raise
    seconds = time.monotonic() - start
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert x.shape == Size((200,)) + law.batch_shape + law.event_shape
    assert seconds <= _SECONDS and kilobytes <= _KILOBYTES, f"{seconds:.1f} s, {kilobytes} kB"
    assert law.base.contains(x).all(), f"outside: {x[~law.base.contains(x)][:3]}"
    if law.event_shape.numel() != 1 or law.batch_shape or _has_atoms(law.base):
        return
    try:
        uniform = law.cdf(x).reshape(-1)
    except NotImplementedError:
        return
    result = stats.kstest(uniform.numpy(), "uniform")
    event("draws against the distribution function")
    assert result.pvalue >= _FALSE_ALARM, f"Kolmogorov-Smirnov: {result.statistic:.3f}"


# Arguments that are not valid --------------------------------------------------------------------


@st.composite
def corrupted(draw: Any) -> tuple[Call, str, float]:
    """A family with one number replaced: valid, at an end of its range, outside, or NaN."""
    description = draw(laws(batch=()))
    name = draw(st.sampled_from([key for key, x in description.options if isinstance(x, Values)]))
    value = description.option(name).build()
    # Seven in ten stay as they are.
    kind = draw(st.integers(0, 9))
    bad = {7: 0.0, 8: math.inf, 9: math.nan}.get(kind)
    if bad is not None:
        value.reshape(-1)[draw(st.integers(0, value.numel() - 1))] = bad
    return description.replace(name, Values.of(value)), name, 1.0 if bad is None else bad


@given(corrupted(), seeds)
def test_bad_arguments(case: tuple[Call, str, float], seed: int) -> None:
    """Either an answer, or an error that names the argument."""
    description, name, bad = case
    note(repr(description))
    try:
        law = description.build()
        log_normalizer = law.log_normalizer
    except ValueError as error:
        message = str(error)
        assert name in message or "readout" in message or "gram" in message, message
        return
    assert math.isfinite(bad), f"{name} with {bad} was accepted"
    assert log_normalizer.isfinite().all()
    assume(bool((law.condition_number < 1e-6 / EPS).all()))
    x = events(law, seed)
    log_prob = law.log_prob(x)
    assert not log_prob.isnan().any() and (log_prob < torch.inf).all(), log_prob


@given(laws(batch=()), seeds, st.sampled_from([math.inf, -math.inf, math.nan, 1e300, -1e300]))
@example(known.LINEAR, 0, 1e300)
@example(known.TWO_LINES, 0, 1e300)
def test_bad_events(description: Call, seed: int, bad: float) -> None:
    """Outside the support: an error with validation, and minus infinity without."""
    law = _law(description)
    x = events(law, seed).clone()
    x.reshape(-1)[0] = bad
    inside = law.base.contains(x)
    loose = description.build(validate_args=False)
    value = loose.log_prob(x)
    if not inside:
        assert value == -torch.inf, value
        if math.isnan(bad):
            with pytest.raises(ValueError, match="value"):
                law.log_prob(x)
    else:
        assert not value.isnan() and value < torch.inf, value


@given(laws("one", batch=()), seeds)
@example(known.PLAIN_SCALAR, 0)
def test_bad_arguments_of_distribution_functions(description: Call, seed: int) -> None:
    law, loose = _law(description), description.build(validate_args=False)
    x = events(law, seed).clone()
    try:
        loose.cdf(x)
    except NotImplementedError:
        assume(False)
    for bad in (-0.5, 1.5, math.nan):
        with pytest.raises(ValueError, match="robabilit"):
            law.icdf(torch.tensor(bad, dtype=x.dtype))
    ends = law.icdf(torch.tensor([0.0, 1.0], dtype=x.dtype)).reshape(-1)
    assert not ends.isnan().any() and ends[0] <= ends[1], ends
    for bad, expected in ((math.inf, 1.0), (-math.inf, 0.0), (math.nan, math.nan)):
        value = loose.cdf(torch.full_like(x, bad))
        close = torch.allclose(value, torch.full_like(value, expected), atol=1e-6, equal_nan=True)
        assert close, f"cdf({bad}) = {value}, expected {expected}"
