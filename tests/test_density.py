"""Densities of every pair: values, total mass, batches and shapes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor

from pyro_snefy import SNEFY, bases
from pyro_snefy.activations import Cis, Cos, Exp, Identity, LeakyReLU, ReLU, Sin, Snake, Step
from pyro_snefy.bases import Base
from tests.cases import (
    BASES,
    CASES,
    LOC,
    LOCS,
    LOGITS,
    MASSES,
    POINTS,
    SCALE,
    SCALES,
    TRIL,
    Case,
    events,
)

Array = NDArray[np.float64]
Density = Callable[[Array], Array]

# --------------------------------------------------------------------------- values, with SciPy


def _np(x: Tensor) -> Any:
    return x.detach().numpy()


def _normal(x: Array, loc: Tensor, scale: Tensor) -> Array:
    return stats.norm.logpdf(x, _np(loc), _np(scale)).sum(-1)


def _full(x: Array) -> Array:
    return stats.multivariate_normal.logpdf(x, _np(LOC), _np(TRIL @ TRIL.T))


def _gaussian_mixture(x: Array) -> Array:
    parts = [_normal(x, loc, scale) for loc, scale in zip(LOCS, SCALES, strict=True)]
    return special.logsumexp(np.stack(parts), 0, b=special.softmax(_np(LOGITS))[:, None])


def _atom_weights() -> Any:
    return special.softmax(_np(LOGITS[:2]))


def _mixture_atom(x: Array) -> Array:
    smooth = np.log(_atom_weights()[0]) + stats.norm.logpdf(x, 0.3, 0.8)
    return np.where(x == 0.5, np.log(_atom_weights()[1]), smooth)


def _mixture_counts(x: Array) -> Array:
    weights = _atom_weights()
    return np.log(weights[0] * stats.poisson.pmf(x, 3.0) + weights[1] * (x == 0))


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
}


def _statistic(name: str, x: Array) -> Array:
    return STATISTICS[name](x) if name in STATISTICS else x.reshape(len(x), -1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_prob(case: Case) -> None:
    weight, bias, readout = case.parameters(n=3)
    x = events(case, 20)
    z = _statistic(case.base_name, _np(x)) @ _np(weight).T
    z = z if bias is None else z + _np(bias)
    square = (abs(case.oracle_activation.value(z) @ _np(readout).T) ** 2).sum(-1)
    with np.errstate(divide="ignore"):  # rectified neurons can all be silent
        expected = LOG_DENSITIES[case.base_name](_np(x)) + np.log(square)
    expected -= case.log_normalizer(weight, bias, readout.mH @ readout)
    for form in ({"readout": readout}, {"gram": readout.mH @ readout}):
        d = SNEFY(weight, bias, activation=case.activation, base=case.base(), **form)
        np.testing.assert_allclose(_np(d.log_prob(x)), expected, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------ the total mass


def _legendre(low: float, high: float, panels: int = 200) -> tuple[Array, Array]:
    nodes, weights = np.polynomial.legendre.leggauss(8)
    ends = np.linspace(low, high, panels + 1)
    half = np.diff(ends)[:, None] / 2
    centres = (ends[1:] + ends[:-1])[:, None] / 2
    return (centres + half * nodes).ravel(), (half * weights).ravel()


def _grid(*rules: tuple[Array, Array]) -> tuple[Array, Array]:
    points = np.meshgrid(*(rule[0] for rule in rules), indexing="ij")
    weights = np.meshgrid(*(rule[1] for rule in rules), indexing="ij")
    return np.stack([x.ravel() for x in points], -1), np.prod([w.ravel() for w in weights], 0)


def _line(reach: float, step: float) -> tuple[Array, Array]:
    # Equal weights are spectrally accurate for what decays at both ends.
    points = np.arange(-reach, reach, step)
    return points, np.full_like(points, step)


def _circle(count: int) -> tuple[Array, Array]:
    return 2 * np.pi * np.arange(count) / count, np.full(count, 2 * np.pi / count)


def _counts(count: int) -> tuple[Array, Array]:
    return np.arange(count, dtype=float), np.ones(count)


def _join(*rules: tuple[Array, Array]) -> tuple[Array, Array]:
    return np.concatenate([rule[0] for rule in rules]), np.concatenate([rule[1] for rule in rules])


def _plane() -> tuple[Array, Array]:
    return _grid(_line(14.0, 0.05), _line(14.0, 0.05))


def _cube() -> tuple[Array, Array]:
    z, weights = _grid(*[_line(8.0, 0.3)] * 3)
    return special.ndtr(z), weights * np.exp(stats.norm.logpdf(z).sum(-1))


def _on_circle() -> tuple[Array, Array]:
    angle, weights = _circle(4000)
    return np.stack([np.cos(angle), np.sin(angle)], -1), weights


def _on_sphere() -> tuple[Array, Array]:
    # Heights on the sphere have constant surface measure.
    points, weights = _grid(_legendre(-1.0, 1.0, 60), _circle(400))
    height, angle = points.T
    radius = np.sqrt(1 - height**2)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), height], -1), weights


def _polar() -> tuple[Array, Array]:
    points, weights = _grid(_legendre(0.0, 12.0, 20), _circle(500))
    radius, angle = points.T
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1), weights * radius


def _half_line() -> tuple[Array, Array]:
    y, weights = _line(80.0, 0.02)
    return np.exp(y), weights * np.exp(y)


def _simplex() -> tuple[Array, Array]:
    # A stick, broken twice.
    y, weights = _grid(_line(60.0, 0.15), _line(60.0, 0.15))
    (first, second), (rest, other) = special.expit(y).T, special.expit(-y).T
    weights = weights * first * rest * rest * second * other
    return np.stack([first, rest * second, rest * other], -1), weights


# With a measure where densities are with respect to: a rule to integrate it with.
RULES: dict[str, tuple[Callable[[], Base], Callable[[], tuple[Array, Array]]]] = {
    "Gaussian": (BASES["Gaussian"].build, _plane),
    "GaussianScalar": (BASES["GaussianScalar"].build, lambda: _legendre(-12.0, 12.0)),
    "GaussianFull": (BASES["GaussianFull"].build, _plane),
    "GaussianMixture": (BASES["GaussianMixture"].build, _plane),
    "UniformCube": (BASES["UniformCube"].build, _cube),
    "UniformBox": (
        BASES["UniformBox"].build,
        lambda: _grid(_legendre(-1.0, 0.5, 20), _legendre(0.5, 3.0, 20)),
    ),
    "Interval": (BASES["Interval"].build, lambda: _legendre(-1.0, 1.5)),
    "Intervals": (
        BASES["Intervals"].build,
        lambda: _join(_legendre(-1.0, 1.0), _legendre(2.0, 2.5)),
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
    "Discrete": (BASES["Discrete"].build, lambda: (_np(POINTS), np.ones(4))),
    "DiscreteScalar": (BASES["DiscreteScalar"].build, lambda: (_np(POINTS[:, 0]), np.ones(4))),
    "MixtureAtom": (
        BASES["MixtureAtom"].build,
        lambda: _join(_legendre(-12.0, 12.0), (np.array([0.5]), np.ones(1))),
    ),
    "MixtureCounts": (BASES["MixtureCounts"].build, lambda: _counts(300)),
    "Product": (
        BASES["Product"].build,
        lambda: _grid(
            _line(9.0, 0.3), _line(9.0, 0.3), _counts(30), _legendre(-1.0, 0.5, panels=1)
        ),
    ),
}

MASS_CASES = [case for case in CASES if case.base_name in RULES]
MASS_CASES = [
    case
    for case in MASS_CASES
    if case.activation_name in ("Cis", "Exp", "ReLU2")
    # Rectifiers are not smooth enough for the rules in three dimensions.
    and not (case.activation_name == "ReLU2" and case.base_name == "UniformCube")
]


@pytest.mark.parametrize("case", MASS_CASES, ids=str)
def test_total_mass(case: Case) -> None:
    build, rule = RULES[case.base_name]
    base = build()
    weight = torch.randn(3, base.num_statistics, dtype=torch.float64) / 2
    if case.base_name == "DirichletFamily":
        weight = weight.abs()  # no poles on the boundary
    weight = case.natural(weight)
    _, bias, readout = case.parameters(n=3)
    points, weights = rule()
    d = SNEFY(weight, bias, readout, activation=case.activation, base=base)
    mass = _np(d.log_prob(torch.as_tensor(points)).exp()) @ weights
    assert mass == pytest.approx(1.0, abs=1e-6)


# ----------------------------------------------------------------------------------- batches

# Rows of a batch of bases differ by these factors, which keep every tensor where it belongs.
FACTORS = torch.tensor([0.8, 1.0, 1.2], dtype=torch.float64)
Scaling = Callable[[Tensor], Tensor]


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _atom(f: Scaling) -> Base:
    atom = bases.PointMass(_scalar(0.5))
    return bases.Mixture(f(LOGITS[:2]), [bases.Gaussian(f(LOC[0]), f(SCALE[0]), event_dim=0), atom])


def _counted(f: Scaling) -> Base:
    return bases.Mixture(
        f(LOGITS[:2]), [bases.Poisson(f(_scalar(3.0))), bases.PointMass(_scalar(0))]
    )


def _product(f: Scaling) -> Base:
    gaussian = bases.Gaussian(f(LOC), scale_tril=f(TRIL))
    low, high = torch.tensor([[-1.0], [0.5]], dtype=torch.float64)
    return bases.Product([gaussian, bases.Poisson(f(_scalar(2.0))), bases.UniformBox(low, f(high))])


SCALED: dict[str, Callable[[Scaling], Base]] = {
    "Gaussian": lambda f: bases.Gaussian(f(LOC), f(SCALE)),
    "GaussianScalar": lambda f: bases.Gaussian(f(LOC[0]), f(SCALE[0]), event_dim=0),
    "GaussianFull": lambda f: bases.Gaussian(f(LOC), scale_tril=f(TRIL)),
    "GaussianMixture": lambda f: bases.GaussianMixture(f(LOGITS), f(LOCS), f(SCALES)),
    "UniformBox": lambda f: bases.UniformBox(f(-SCALE), f(SCALE)),
    "Interval": lambda f: bases.Interval(f(-SCALE[:1]), f(SCALE[:1])),
    "Intervals": lambda f: bases.Interval(f(SCALE - 1), f(SCALE - 0.7)),
    "Poisson": lambda f: bases.Poisson(f(_scalar(3.0))),
    "Geometric": lambda f: bases.Geometric(f(_scalar(0.4))),
    "Discrete": lambda f: bases.Discrete(POINTS, f(MASSES)),
    "DiscreteScalar": lambda f: bases.Discrete(POINTS[:, 0], f(MASSES)),
    "MixtureAtom": _atom,
    "MixtureCounts": _counted,
    "Product": _product,
}


def _stacked(x: Tensor) -> Tensor:
    return FACTORS.reshape(-1, *(1,) * x.dim()) * x


def _row(k: int) -> Scaling:
    return lambda x: FACTORS[k] * x


def _event(name: str, base: Base) -> Tensor:
    """An event in the support of every row of a batch of bases."""
    if isinstance(base, bases.Interval):
        return base.low[..., 0].amax() + 0.1
    if isinstance(base, bases.Product):
        return torch.tensor([0.4, -0.2, 2.0, 0.1], dtype=torch.float64)
    return events(Case("Cos", name), 1)[0] if name != "UniformBox" else LOC


@pytest.mark.parametrize("case", [case for case in CASES if case.base_name in SCALED], ids=str)
def test_batch_of_bases(case: Case) -> None:
    """A batch of bases, and one of each parameter, against a loop over rows."""
    build = SCALED[case.base_name]
    weight, _, _ = case.parameters(n=3, batch=(2, 1))
    _, bias, _ = case.parameters(n=3, batch=(3,))
    _, _, readout = case.parameters(n=3, batch=(2, 3))
    base = build(_stacked)
    assert base.batch_shape == (3,)
    d = SNEFY(weight, bias, readout, activation=case.activation, base=base)
    x = _event(case.base_name, base)
    assert d.batch_shape == d.log_normalizer.shape == d.condition_number.shape == (2, 3)
    log_prob = d.log_prob(x)
    assert log_prob.shape == (2, 3)
    for i, k in ((0, 0), (1, 0), (1, 2)):
        row = SNEFY(
            weight[i, 0],
            None if bias is None else bias[k],
            readout[i, k],
            activation=case.activation,
            base=build(_row(k)),
        )
        torch.testing.assert_close(d.log_normalizer[i, k], row.log_normalizer, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(log_prob[i, k], row.log_prob(x), rtol=1e-9, atol=1e-9)


# Each argument alone has the batch, then all of them, of shapes that have to broadcast.
BATCHES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((3,), (), ()),
    ((), (3,), ()),
    ((), (), (3,)),
    ((2, 1), (3,), (1, 1)),
]


@pytest.mark.parametrize("form", ["readout", "gram"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_batch_of_parameters(case: Case, form: str) -> None:
    # Rectified neurons on a few points can all be silent, which validation would not accept.
    given = {"activation": case.activation, "base": case.base(), "validate_args": False}
    for shapes in BATCHES:
        weight, _, _ = case.parameters(n=3, batch=shapes[0])
        _, bias, _ = case.parameters(n=3, batch=shapes[1])
        _, _, readout = case.parameters(n=3, batch=shapes[2])
        matrix = readout if form == "readout" else readout.mH @ readout
        d = SNEFY(weight, bias, **given, **{form: matrix})
        batch = torch.broadcast_shapes(shapes[0], *([] if bias is None else [shapes[1]]), shapes[2])
        x = events(case, 5).reshape(5, *(1,) * len(batch), *d.event_shape)
        log_prob = d.log_prob(x)
        assert d.batch_shape == d.log_normalizer.shape == batch
        assert log_prob.shape == (5, *batch)
        # The last of all rows, which is not where a wrong order of dimensions would leave it.
        last = weight.expand(*batch, -1, -1).reshape(-1, *weight.shape[-2:])[-1]
        matrix = matrix.expand(*batch, -1, -1).reshape(-1, *matrix.shape[-2:])[-1]
        bias = None if bias is None else bias.expand(*batch, -1).reshape(-1, 3)[-1]
        row = SNEFY(last, bias, **given, **{form: matrix})
        torch.testing.assert_close(
            d.log_normalizer.reshape(-1)[-1], row.log_normalizer, rtol=1e-9, atol=1e-9
        )
        torch.testing.assert_close(
            log_prob.reshape(5, -1)[:, -1],
            row.log_prob(x.reshape(5, *d.event_shape)),
            rtol=1e-9,
            atol=1e-9,
        )


def test_events_broadcast_with_the_batch() -> None:
    d = SNEFY(torch.randn(3, 4, 2), torch.randn(4), torch.randn(2, 4))
    assert d.log_prob(torch.randn(2)).shape == (3,)
    assert d.log_prob(torch.randn(3, 2)).shape == (3,)
    assert d.log_prob(torch.randn(7, 1, 2)).shape == (7, 3)
    x = torch.randn(7, 3, 2)
    torch.testing.assert_close(d.log_prob(x)[4, 2], d.log_prob(x[4, 2])[2])


# ----------------------------------------------------------------------------- expand, shapes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_expand(case: Case) -> None:
    d = case.distribution(batch=(3,), n=2)
    e = d.expand(torch.Size((4, 3)))
    assert type(e) is SNEFY
    assert e is not d
    assert (d.batch_shape, e.batch_shape, e.event_shape) == ((3,), (4, 3), d.event_shape)
    for name in ("weight", "bias", "readout", "gram", "base"):
        assert getattr(e, name) is getattr(d, name)
    assert e.log_normalizer.shape == (4, 3)
    assert e.log_normalizer.stride(0) == 0  # computed once
    x = events(case, 3)
    assert e.log_prob(x).shape == (4, 3)
    assert torch.equal(e.log_prob(x), d.log_prob(x).expand(4, 3))
    assert torch.equal(e.expand((5, 4, 3)).log_normalizer[1, 2], d.log_normalizer)


@pytest.mark.parametrize("value", [True, False])
def test_expand_keeps_validation(value: bool) -> None:
    d = SNEFY(torch.randn(4, 2), None, torch.randn(1, 4), validate_args=value).expand((3,))
    x = torch.full((2,), torch.nan)
    if value:
        with pytest.raises(ValueError, match="support"):
            d.log_prob(x)
    else:
        assert torch.equal(d.log_prob(x), torch.full((3,), -torch.inf))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_infer_shapes(case: Case) -> None:
    for batch in ((), (2,), (3, 1)):
        weight, bias, readout = case.parameters(batch=batch)
        base = SCALED[case.base_name](_stacked) if case.base_name in SCALED else case.base()
        shapes = {"weight": weight.shape, "readout": readout.shape}
        if bias is not None:
            shapes["bias"] = bias.shape
        if batch == (2,) and base.batch_shape:
            continue  # it does not broadcast with the base
        d = SNEFY(weight, bias, readout, activation=case.activation, base=base)
        assert SNEFY.infer_shapes(**shapes, base=base) == (d.batch_shape, d.event_shape)


def test_infer_shapes_without_base() -> None:
    weight, gram = torch.randn(5, 4, 3), torch.eye(4).expand(2, 1, 4, 4)
    d = SNEFY(weight, gram=gram)
    assert d.shape() == (2, 5, 3)
    inferred = SNEFY.infer_shapes(weight=weight.shape, gram=gram.shape)
    assert inferred == (d.batch_shape, d.event_shape)


# ------------------------------------------------------------------------------- other inputs


@pytest.mark.parametrize("activation", [Cos(), Exp(0.5), Identity()], ids=str)
def test_integer_counts(activation: Any) -> None:
    """Counts come as integers, too."""
    base = bases.Poisson(_scalar(2.0))
    weight, bias = -torch.rand(3, 1, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    readout = torch.randn(2, 3, dtype=torch.float64)
    d = SNEFY(weight, bias, readout, activation=activation, base=base)
    counts = torch.arange(6)
    log_prob = d.log_prob(counts)
    assert log_prob.dtype == torch.float64
    assert torch.equal(log_prob, d.log_prob(counts.double()))


def test_integer_points() -> None:
    base = bases.Discrete(torch.arange(4.0), torch.ones(4))
    d = SNEFY(torch.randn(3, 1), None, torch.randn(2, 3), activation=Step(), base=base)
    assert torch.equal(d.log_prob(torch.arange(4)), d.log_prob(torch.arange(4.0)))


def test_complex_readout_has_a_real_density() -> None:
    """A common phase of the readout is no part of the law; conjugation is."""
    weight, bias = torch.randn(3, 2, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    readout = torch.randn(2, 3, dtype=torch.complex128)
    x = torch.randn(9, 2, dtype=torch.float64)
    d = SNEFY(weight, bias, readout, activation=Cis())
    assert d.log_prob(x).dtype == d.log_normalizer.dtype == torch.float64
    turned = SNEFY(weight, bias, 1j * readout, activation=Cis())
    torch.testing.assert_close(turned.log_prob(x), d.log_prob(x))
    conjugate = SNEFY(weight, bias, readout.conj(), activation=Cis())
    assert not torch.allclose(conjugate.log_prob(x), d.log_prob(x))
    mirrored = SNEFY(-weight, -bias, readout.conj(), activation=Cis())
    torch.testing.assert_close(mirrored.log_prob(x), d.log_prob(x))


def test_cis_with_a_real_readout_is_cos_with_sin() -> None:
    weight, bias = torch.randn(3, 2, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    readout = torch.randn(2, 3, dtype=torch.float64)
    x = torch.randn(9, 2, dtype=torch.float64)
    cis, cos, sin = (SNEFY(weight, bias, readout, activation=f) for f in (Cis(), Cos(), Sin()))
    both = torch.stack([cos.log_normalizer, sin.log_normalizer])
    torch.testing.assert_close(cis.log_normalizer, both.logsumexp(0))
    shares = torch.stack([cos.log_prob(x), sin.log_prob(x)]) + both.log_softmax(0).unsqueeze(-1)
    torch.testing.assert_close(cis.log_prob(x), shares.logsumexp(0))


@pytest.mark.parametrize("activation", [Cos(), Snake(2.0), Exp(), ReLU(), LeakyReLU()], ids=str)
def test_scale_of_the_readout_is_no_part_of_the_law(activation: Any) -> None:
    """Not even where its square underflows or overflows."""
    weight, bias, readout = torch.randn(3, 2), torch.randn(3), torch.randn(2, 3)
    x = torch.randn(9, 2)
    d = SNEFY(weight, bias, readout, activation=activation)
    for scale in (1e-30, 1e30):
        scaled = SNEFY(weight, bias, scale * readout, activation=activation)
        torch.testing.assert_close(scaled.log_prob(x), d.log_prob(x), rtol=1e-4, atol=1e-4)


def test_default_base_is_standard_normal() -> None:
    weight, bias, readout = torch.randn(3, 2), torch.randn(3), torch.randn(2, 3)
    x = torch.randn(9, 2)
    base = bases.Gaussian(torch.zeros(2), torch.ones(2))
    explicit = SNEFY(weight, bias, readout, activation=Cos(), base=base)
    assert torch.equal(SNEFY(weight, bias, readout).log_prob(x), explicit.log_prob(x))
    zeros = SNEFY(weight, torch.zeros(3), readout)
    assert torch.equal(SNEFY(weight, None, readout).log_prob(x), zeros.log_prob(x))
