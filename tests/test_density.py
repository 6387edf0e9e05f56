"""Densities of every pair: values, total mass, batches and shapes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_snefy import SNEFY, bases
from pyro_snefy.activations import Cis, Cos, Exp, Identity, LeakyReLU, ReLU, Sin, Snake, Step
from pyro_snefy.bases import Base
from tests.cases import (
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
from tests.densities import LOG_DENSITIES, RULES, statistic


def _np(x: Tensor) -> Any:
    return x.detach().numpy()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_prob(case: Case) -> None:
    weight, bias, readout = case.parameters(n=3)
    x = events(case, 20)
    z = statistic(case.base_name, _np(x)) @ _np(weight).T
    z = z if bias is None else z + _np(bias)
    square = (abs(case.oracle_activation.value(z) @ _np(readout).T) ** 2).sum(-1)
    with np.errstate(divide="ignore"):  # rectified neurons can all be silent
        expected = LOG_DENSITIES[case.base_name](_np(x)) + np.log(square)
    expected -= case.log_normalizer(weight, bias, readout.mH @ readout)
    for form in ({"readout": readout}, {"gram": readout.mH @ readout}):
        d = SNEFY(weight, bias, activation=case.activation, base=case.base(), **form)
        np.testing.assert_allclose(_np(d.log_prob(x)), expected, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------ the total mass

MASS_CASES = [
    case
    for case in CASES
    if case.base_name in RULES
    and case.activation_name in ("Cis", "Exp", "ReLU2")
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
    "SmoothBox": lambda f: bases.SmoothBox(f(-SCALE), f(LOC), f(SCALE)),
    "SmoothBoxScalar": lambda f: bases.SmoothBox(f(LOC[0]), f(SCALE[0]), f(SCALE[1]), event_dim=0),
    "SmoothBoxMixture": lambda f: bases.SmoothBoxMixture(
        f(LOGITS), f(LOCS), f(LOCS + 1), f(SCALES)
    ),
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


# Batch shapes of weight, bias and matrix: of one of them alone, and some that have to broadcast.
Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
BATCHES: dict[str, list[Shapes]] = {
    "readout": [((3,), (), ()), ((2, 1), (3,), (1, 1))],
    "gram": [((), (3,), ()), ((), (2, 1), (3,))],
}


@pytest.mark.parametrize("form", ["readout", "gram"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_batch_of_parameters(case: Case, form: str) -> None:
    # Rectified neurons on a few points can all be silent, which validation would not accept.
    given = {"activation": case.activation, "base": case.base(), "validate_args": False}
    for shapes in BATCHES[form]:
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
