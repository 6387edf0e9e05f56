"""Draws of every pair against their densities, and the envelopes that they are drawn under.

Tests of p-values against FAILURE have this rate of false alarms; `tests/fit.py` says which errors
each of them sees. Kolmogorov-Smirnov tests see a distance of 0.022 between distribution functions
with 10,000 draws, and 0.016 with 20,000. A mean that is held to k standard errors has a rate of
false alarms of 6e-5 with k = 4 and 7e-6 with k = 4.5, and an error of k standard errors is seen
half of the time.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pyro
import pytest
import torch
from scipy import stats
from torch import Size, Tensor

from pyro_snefy import SNEFY, bases
from pyro_snefy.activations import (
    GELU,
    Activation,
    Bump,
    Cos,
    Erf,
    Exp,
    FourierActivation,
    Identity,
    LeakyReLU,
    ReLU,
    Sin,
    Snake,
    Step,
)
from pyro_snefy.bases import Base
from pyro_snefy.distributions import Marginal
from pyro_snefy.kernels import closed_form
from pyro_snefy.network import Network
from pyro_snefy.numerics.forms import Gram
from pyro_snefy.sampling import draw as exact
from pyro_snefy.sampling import samplers
from pyro_snefy.sampling.envelope import log_majorizer
from pyro_snefy.sampling.neurons import MixtureLaw
from pyro_snefy.sampling.samplers import NeuronSampler, PairSampler, Sampler
from pyro_snefy.sampling.sequential import sample_sequentially
from tests.cases import CASES, KINDS, LOC, LOCS, LOGITS, SCALE, SCALES, TRIL, Case, _t, events
from tests.fit import FAILURE, LEVELS, fit, gaps, neighbours, pooled, quantile_bins

F64 = torch.float64


def _seed(*names: object) -> None:
    pyro.set_rng_seed(crc32(" ".join(map(str, ("draws", *names))).encode()))


def _bent(case: Case) -> bool:
    return isinstance(case.activation, Step | ReLU | LeakyReLU)


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


# ------------------------------------------------------------------------------- every pair


def _count(case: Case, d: SNEFY) -> int:
    # Enough to see 0.05 in log Z. More than a second for 50,000 draws: neurons whose modes are
    # searched for, inversion, and what rejects most proposals.
    slow = case.activation_name in ("Erf", "GELU") or (_bent(case) and case.base_name == "Interval")
    return 20_000 if slow or float(d.acceptance_rate) < 0.4 else 50_000


def _assert_moments(d: SNEFY, x: Tensor) -> None:
    """Within four standard errors: 0.028 standard deviations with 20,000 draws, else 0.018."""
    with suppress(NotImplementedError):
        mean, variance = d.mean, d.variance
        deviation = (x - mean).square()
        error = 4 / len(x) ** 0.5
        assert ((x.mean(0) - mean).abs() <= error * variance.sqrt() + 1e-12).all()
        assert ((deviation.mean(0) - variance).abs() <= error * deviation.std(0) + 1e-12).all()


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_every_pair(case: Case) -> None:
    """Goodness of fit, and moments within four standard errors."""
    _seed(case)
    # Much of what exponentials of larger weights have on the cube would be rounded to its corners.
    corners = case.activation_name == "Exp" and case.base_name == "UniformCube"
    d = case.distribution(scale=0.5 if corners else 1.0)
    count = _count(case, d)
    x = d.sample((count,))
    assert x.shape == (count, *d.event_shape)
    assert bool(d.support.check(x).all())
    assert not x.requires_grad
    assert fit(d, x) > FAILURE
    _assert_moments(d, x)


OTHERS = [case for case in CASES if case not in KINDS and case.activation_name != "ExpHalf"]


@pytest.mark.parametrize(
    "case", [c for c in OTHERS if c.activation_name in ("Cis", "Exp")], ids=str
)
def test_other_sizes(case: Case) -> None:
    """Circles, several intervals and mixtures of counts."""
    _seed(case)
    d = case.distribution()
    x = d.sample((20_000,))
    if case.base_name == "UniformSphere7":  # neighbours are far away
        mean, error = d.mean, (d.variance / len(x)).sqrt()
        assert ((x.mean(0) - mean).abs() <= 4 * error).all()
    else:
        assert fit(d, x) > FAILURE
    _assert_moments(d, x)


# --------------------------------------------------------------------------------- dimensions

ENGINES = {"Cos": Cos(), "Snake": Snake(), "Exp": Exp(), "ReLU": ReLU()}


def _flat(name: str, d: int) -> Base:
    loc = torch.linspace(-0.5, 0.5, d, dtype=F64)
    if name == "Gaussian":
        return bases.Gaussian(loc, 1 + loc**2)
    if name == "UniformCube":
        return bases.UniformCube(d)
    return bases.UniformBox(loc - 1, loc + 1.5)


def _random(base: Base, activation: Activation, n: int = 6, m: int = 2) -> SNEFY:
    weight = _randn(n, base.num_statistics) / base.num_statistics**0.5
    return SNEFY(weight, _randn(n), _randn(m, n), activation=activation, base=base)


@pytest.mark.parametrize("d", [1, 2, 3, 10, 30])
@pytest.mark.parametrize("base", ["Gaussian", "UniformCube", "UniformBox"])
@pytest.mark.parametrize("activation", ENGINES)
def test_dimensions(activation: str, base: str, d: int) -> None:
    """Marginals of the first and of the last coordinate."""
    if not closed_form(ENGINES[activation], _flat(base, d), bias=True):
        pytest.skip("no closed form")
    _seed(activation, base, d)
    law = _random(_flat(base, d), ENGINES[activation])
    x = law.sample((20_000,))
    for k in {0, d - 1}:
        quantiles = law.marginal([k]).icdf(LEVELS)
        assert quantile_bins(quantiles.squeeze(-1), x[:, k]) > FAILURE


@pytest.mark.parametrize("d", [2, 3, 10, 30])
@pytest.mark.parametrize("activation", ["Cos", "Snake", "Exp"])
def test_dimensions_of_spheres(activation: str, d: int) -> None:
    """Neurons about one axis: the cosine to it has a density that is integrated numerically."""
    _seed(activation, "sphere", d)
    slope, bias, readout = 1.5 * _randn(4), _randn(4), _randn(2, 4)
    axis = torch.nn.functional.normalize(_randn(d), dim=-1)
    base = bases.UniformSphere(d)
    act = ENGINES[activation]
    law = SNEFY(slope.unsqueeze(-1) * axis, bias, readout, activation=act, base=base)
    x = law.sample((20_000,))
    angle = torch.linspace(0, math.pi, 20_001, dtype=F64)
    density = angle.sin() ** (d - 2)
    z = angle.cos().unsqueeze(-1) * slope + bias
    square = (act(z) @ readout.mT).square().sum(-1) * density
    total = torch.cumulative_trapezoid(square, angle)
    found = (x @ axis).clamp(-1, 1).arccos()
    quantiles = np.interp(LEVELS * total[-1], total, angle[1:])
    assert quantile_bins(torch.from_numpy(quantiles), found) > FAILURE
    across = x - (x @ axis).unsqueeze(-1) * axis
    across = torch.nn.functional.normalize(across, dim=-1)
    assert (across.mean(0).abs() <= 4.5 * across.std(0) / len(x) ** 0.5).all()


# ------------------------------------------------------------------------------------ batches


def _assert_members(law: Any, k: int = 0, count: int = 4000) -> None:
    """Draws of each member of a batch fit the marginal law of a coordinate of it."""
    x = law.sample((count,))
    assert x.shape == (count, *law.batch_shape, *law.event_shape)
    line = law.marginal([k]) if law.event_shape != (1,) and law.event_shape else law
    levels = LEVELS.reshape((-1,) + (1,) * len(law.batch_shape))
    quantiles = line.icdf(levels)
    if law.event_shape:
        x, quantiles = x[..., k], quantiles.squeeze(-1)
    rows = x.reshape(count, -1).unbind(-1)
    for row, bins in zip(rows, quantiles.reshape(len(LEVELS), -1).unbind(-1), strict=True):
        assert quantile_bins(bins, row) > FAILURE


BATCHES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Base]] = {
    "weights": ((3,), (), (), bases.Gaussian(LOC, SCALE)),
    "biases and readouts": ((), (4, 1), (3,), bases.Gaussian(LOC, scale_tril=TRIL)),
    "all": ((3,), (4, 1), (1,), bases.UniformBox(_t(-1.0, 0.5), _t(0.5, 3.0))),
    "Gaussian": ((), (), (), bases.Gaussian(torch.stack([LOC, LOC + 2, LOC - 3]), SCALE)),
    "Gaussian and biases": (
        (),
        (3,),
        (),
        bases.Gaussian(LOC, scale_tril=torch.stack([TRIL, 2 * TRIL]).unsqueeze(1)),
    ),
    "Standardized": (
        (),
        (),
        (2, 1),
        bases.Standardized(bases.Gaussian(LOC, SCALE), torch.stack([LOC, LOC + 2, LOC - 3]), SCALE),
    ),
    "GaussianMixture": (
        (),
        (),
        (),
        bases.GaussianMixture(
            torch.stack([LOGITS, -LOGITS]), torch.stack([LOCS, 2 * LOCS]), SCALES
        ),
    ),
    "GaussianMixture and weights": ((2,), (), (), bases.GaussianMixture(LOGITS, LOCS, SCALES)),
}


@pytest.mark.parametrize("activation", [Cos(), Snake(), Exp(), ReLU()], ids=str)
@pytest.mark.parametrize("name", BATCHES)
def test_batches(name: str, activation: Activation) -> None:
    weight, bias, readout, base = BATCHES[name]
    if not closed_form(activation, base, bias=True):
        pytest.skip("no closed form")
    _seed(name, activation)
    law = SNEFY(
        _randn(*weight, 3, 2),
        _randn(*bias, 3),
        _randn(*readout, 2, 3),
        activation=activation,
        base=base,
    )
    for shape in ((), (5,), (2, 3), (0,)):
        assert law.sample(shape).shape == (*shape, *law.batch_shape, 2)
    assert law.acceptance_rate.shape == law.batch_shape
    _assert_members(law, k=1)


@pytest.mark.parametrize(
    "base",
    [
        bases.Poisson(_t(1.0, 6.0)),
        bases.Geometric(_t(0.3, 0.7)),
        bases.Mixture(
            LOGITS[:2], [bases.Poisson(_t(1.0, 6.0)), bases.PointMass(torch.zeros((), dtype=F64))]
        ),
    ],
    ids=lambda base: type(base).__name__,
)
@pytest.mark.parametrize("activation", [Cos(), Snake(), Exp(0.3)], ids=str)
def test_batches_of_counts(base: Base, activation: Activation) -> None:
    _seed(base, activation)
    weight = -_randn(3, 1).abs()
    law = SNEFY(weight, _randn(3), _randn(2, 3), activation=activation, base=base)
    x = law.sample((10_000,))
    counts = torch.arange(200, dtype=F64)
    probs = law.log_prob(counts.unsqueeze(-1)).exp()
    for k in range(2):
        found = torch.bincount(x[:, k].long(), minlength=200).double()
        assert pooled(probs[:, k].numpy(), found.numpy()) > FAILURE


def _below(law: SNEFY, counts: Tensor) -> Tensor:
    r"""The probability of x < m for cosines on a geometric law: geometric series.

    2 cos a cos b = cos(a - b) + cos(a + b), and sum_{x<m} p r^x e^{i(ωx+φ)} is
    p e^{iφ} (1 - (r e^{iω})^m) / (1 - r e^{iω}).
    """
    assert isinstance(law.base, bases.Geometric) and law.bias is not None
    weight, bias, probs = law.weight[:, 0], law.bias, law.base.probs
    total = torch.zeros_like(counts)
    for sign in (-1.0, 1.0):
        omega = (weight[:, None] + sign * weight).unsqueeze(-1)
        phase = (bias[:, None] + sign * bias).unsqueeze(-1)
        ratio = (1 - probs) * torch.polar(torch.ones_like(omega), omega)
        power = torch.polar((counts * torch.log1p(-probs)).exp() * omega.pow(0), omega * counts)
        start = probs * torch.polar(torch.ones_like(phase), phase)
        series = (start * (1 - power) / (1 - ratio)).real / 2  # (n, n, counts)
        total += torch.einsum("ki,kj,ijc->c", law.readout, law.readout, series)
    return total


@pytest.mark.parametrize("weight", [0.3, math.pi - 1e-3, 40.0])
@pytest.mark.parametrize("probs", [0.6, 0.01, 1e-6])
def test_geometric_laws_of_any_rate(probs: float, weight: float) -> None:
    """Time and memory do not grow with the counts, of which there are 10^8 if probs is 1e-6.

    Up to twenty bins of 20,000 draws: FAILURE is the rate of false alarms. A chi-square test with
    20 equal bins sees an error of 18 % in the mass of one bin half of the time.
    """
    _seed("geometric", probs, weight)
    base = bases.Geometric(_t(probs)[0])
    near = _t(weight, weight * (1 + 0.1 * probs), 3 * probs)
    law = SNEFY(near[:, None], _t(1.5, 0.2, -0.4), _randn(2, 3), base=base)
    x = law.sample((20_000,))
    edges = torch.arange(1, 20, dtype=F64) / 20
    edges = (torch.log1p(-edges) / math.log1p(-probs)).ceil().unique()  # about 1/20 each
    ends = torch.cat([edges, _t(math.inf)])
    cumulative = _below(law, ends.clamp(max=200 / probs))
    masses = cumulative.diff(prepend=_t(0.0)) / cumulative[-1]
    found = torch.bincount(torch.searchsorted(edges, x, right=True), minlength=len(masses))
    assert pooled(masses.numpy(), found.double().numpy()) > FAILURE


@pytest.mark.parametrize("activation", [Cos(), Sin(), Snake(), Identity()], ids=str)
@pytest.mark.parametrize("rate", [0.05, 2.0, 1000.0])
def test_poisson_laws_of_any_rate(rate: float, activation: Activation) -> None:
    """Chi-square tests of 20,000 draws against all masses.

    FAILURE is the rate of false alarms. Relative errors of all masses, of either sign, are seen
    half of the time if they are 4 % with the rates 0.05 and 2, and 6 % with the rate 1000.
    """
    _seed("poisson", rate, activation)
    weight = _t(0.7, 0.01, 1e-3 - math.pi)[:, None]
    base = bases.Poisson(_t(rate)[0])
    law = SNEFY(weight, _t(1.5, 0.2, math.pi / 2), _randn(2, 3), activation=activation, base=base)
    assert fit(law, law.sample((20_000,))) > FAILURE


@pytest.mark.parametrize("activation", [Cos(), Sin()], ids=str)
@pytest.mark.parametrize("base", [bases.Poisson(_t(5.0)[0]), bases.Geometric(_t(0.2)[0])], ids=str)
def test_waves_that_are_small_at_every_count(base: Base, activation: Activation) -> None:
    """A wave with a weight near π that is zero at zero is small at every count."""
    bias = 1e-4 + (math.pi / 2 if isinstance(activation, Cos) else 0.0)
    law = SNEFY(
        _t(math.pi * (1 + 1e-5))[:, None], _t(bias), _t(1.0)[None], activation=activation, base=base
    )
    assert float(law.log_normalizer) < -15
    assert fit(law, law.sample((10_000,))) > FAILURE


def test_expanded() -> None:
    """Members of an expanded law are independent."""
    law = _random(bases.Gaussian(LOC, SCALE), Cos()).expand((2, 3))
    x = law.sample((4,))
    assert x.shape == (4, 2, 3, 2)
    assert len(x.flatten().unique()) == x.numel()
    _assert_members(law)


# ------------------------------------------------------------------------- trained parameters


def _moons(count: int) -> Tensor:
    angle = math.pi * torch.rand(count, dtype=F64)
    upper = torch.rand(count) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x, y], dim=-1) + 0.1 * _randn(count, 2)


def test_trained() -> None:
    data = _moons(1000)
    scale = data.std(0)
    base = bases.GaussianMixture(
        torch.zeros(4, dtype=F64), data[:4].clone(), scale.expand(4, 2).clone() / 2
    )
    leaves = [t.requires_grad_() for t in (2 * _randn(20, 2), _randn(20), _randn(2, 20))]
    tensors = [value.detach().clone().requires_grad_() for _, value in base.tensors()]
    optimizer = torch.optim.Adam(leaves + tensors, lr=0.02)

    def law() -> SNEFY:
        own = iter(tensors)
        return SNEFY(*leaves, base=base.map(lambda _: next(own)))

    for _ in range(300):
        optimizer.zero_grad()
        loss = -law().log_prob(data).mean()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 1.5  # a normal law has 2.0
    with torch.no_grad():
        d = law()
        x = d.sample((50_000,))
        assert fit(d, x) > FAILURE
        _assert_moments(d, x)


# -------------------------------------------------------------------------- tests of the tests


@pytest.mark.parametrize("error", [0.3, 0.9])
def test_a_wrong_shape_is_seen(error: float) -> None:
    """However large the error is: densities that are wrong by 1 + e and 1 - e."""
    x = torch.rand(50_000, dtype=F64)
    probs = torch.ones_like(x)
    assert gaps(x, probs) > FAILURE
    assert gaps(x, probs + error * (x - 0.5).sign()) < FAILURE


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("shift", [-0.05, 0.05])
def test_a_wrong_normalizer_is_seen(d: int, shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    law = _random(_flat("Gaussian", d), Cos())
    x = law.sample((100_000,))
    assert fit(law, x) > FAILURE
    right = SNEFY._checked_normalizer
    monkeypatch.setattr(
        SNEFY, "_checked_normalizer", lambda self, network: right(self, network) + shift
    )
    assert fit(law, x) < FAILURE


@pytest.mark.parametrize(
    "weight, bias, readout, activation",
    [
        (_t(1.0, 1.0), _t(-0.5, 0.5), _t(1.0, 1.0), Step()),
        (_t(0.8, -0.8), _t(0.0, 0.0), _t(1.0, -0.9), Exp()),
    ],
    ids=["neurons", "pairs"],
)
def test_a_wrong_envelope_is_seen(
    weight: Tensor,
    bias: Tensor,
    readout: Tensor,
    activation: Activation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = bases.Gaussian(_t(0.0)[0], _t(1.0)[0], event_dim=0)
    law = SNEFY(weight.unsqueeze(-1), bias, readout[None], activation=activation, base=base)
    # Where the envelope is tight, draws are too few by up to a tenth.
    bins = law.icdf(LEVELS[3::4])
    assert quantile_bins(bins, law.sample((200_000,))) > FAILURE
    for kind in (NeuronSampler, PairSampler):
        right = kind.log_acceptance
        monkeypatch.setattr(
            kind, "log_acceptance", lambda *args, right=right: right(*args) - math.log(0.9)
        )
    assert quantile_bins(bins, law.sample((200_000,))) < FAILURE


# ---------------------------------------------------------------------------------- envelopes


def _leaves(engine: Sampler | None) -> Iterator[NeuronSampler | PairSampler]:
    """The samplers by rejection that a sampler is made of."""
    if isinstance(engine, NeuronSampler | PairSampler):
        yield engine
    for inner in [getattr(engine, "inner", None), *getattr(engine, "parts", [])]:
        if inner is not None:
            yield from _leaves(inner)


def _broadly(base: Any, count: int) -> Tensor:
    """Points of a support, far out as well."""
    if isinstance(base, bases.Product):
        parts = [_broadly(part, count).reshape(count, -1) for part in base.bases]
        return torch.cat(parts, dim=-1)
    if isinstance(base, bases.Mixture):
        pick = torch.randint(len(base.bases), (count,))
        rows = torch.stack([_broadly(part, count) for part in base.bases])
        return rows[pick, torch.arange(count)]
    if isinstance(base, bases.UniformSphere | bases.ProjectedGaussian):
        return torch.nn.functional.normalize(_randn(count, *base.event_shape), dim=-1)
    if isinstance(base, bases.UniformBox):
        low, high = base.low.reshape(-1, *base.event_shape), base.high
        return low[0] + (high.reshape(-1, *base.event_shape) - low)[0] * torch.rand(
            count, *base.event_shape, dtype=F64
        )
    if isinstance(base, bases.DirichletFamily):
        return torch.distributions.Dirichlet(torch.full(base.event_shape, 0.4, dtype=F64)).sample(
            (count,)
        )
    if isinstance(base, bases.GammaFamily):
        return (3 * _randn(count)).exp()
    if isinstance(base, bases.Discrete):
        return base.points[torch.randint(len(base.points), (count,))]
    if base.is_discrete:
        return torch.randint(300, (count,)).double()
    wide = 10 ** (2 * torch.rand(count, dtype=F64) - 0.5)
    return _randn(count, *base.event_shape) * wide.reshape((count,) + (1,) * base.event_dim)


def _assert_envelope(d: SNEFY, count: int) -> int:
    _, engine = exact.prepare(d._network)
    found = 0
    for leaf in _leaves(engine):
        found += 1
        x = _broadly(leaf.network.base, count)
        member = torch.randint(len(leaf.acceptance), (count,))
        ratio = leaf.log_acceptance(x, member)
        # Where all neurons are zero, there is neither density nor envelope; the tails of GELU
        # underflow, far out.
        silent = ratio.isnan()
        assert bool((silent | (ratio <= 1e-12)).all())
        assert ratio[~silent].max() > -5  # not far above either
        if bool(silent.any()):
            assert isinstance(d.activation, ReLU | Step | GELU)
    return found


REJECTED = [case for case in KINDS if case.base_name != "Discrete"]


@pytest.mark.parametrize("case", REJECTED, ids=str)
def test_envelopes(case: Case) -> None:
    """The densities of all pairs are below their envelopes, at 10^5 points each."""
    _seed(case)
    found = _assert_envelope(case.distribution(), 100_000)
    assert found > 0 or (_bent(case) and case.base_name == "Interval")


@pytest.mark.parametrize(
    "case, m",
    [
        (Case("Cos", "Gaussian"), 1),
        (Case("Snake", "UniformBox"), 3),
        (Case("ReLU", "GaussianFull"), 20),
        (Case("GELU", "Gaussian"), 2),
        (Case("Exp", "UniformSphere"), 3),
    ],
    ids=str,
)
def test_envelopes_of_wide_networks(case: Case, m: int) -> None:
    """10^6 points below the envelopes of 20 neurons."""
    _seed(case, m)
    d = case.distribution(n=20, m=m)
    for _ in range(10):
        assert _assert_envelope(d, 100_000) == 1


@pytest.mark.parametrize(
    "activation", [Cos(), Sin(), Snake(), Snake(0.3), Snake(5.0, False), Identity()], ids=str
)
def test_bounds_of_activations(activation: FourierActivation) -> None:
    """Constants and slopes of the proposals for single neurons."""
    centre = 10 * _randn(1000, 1)
    z = centre + _randn(1000, 300) * 10 ** (4 * torch.rand(1000, 300, dtype=F64) - 3)
    for constant, slope in activation.bounds(centre):
        assert bool((activation(z).abs() <= constant + slope * (z - centre).abs() + 1e-12).all())


def _gram(kind: str, n: int, batch: tuple[int, ...]) -> Tensor:
    m = {"one": 1, "few": 3, "full": n}[kind]
    readout = _randn(*batch, m, n)
    return readout.mT @ readout


@pytest.mark.parametrize("batch", [(), (5,), (80,)], ids=str)
@pytest.mark.parametrize("norms", [(), (5,)], ids=str)
@pytest.mark.parametrize("kind", ["one", "few", "full"])
@pytest.mark.parametrize("n", [1, 2, 12])
def test_majorizer(n: int, kind: str, norms: tuple[int, ...], batch: tuple[int, ...]) -> None:
    """Diagonals are above matrices, and no worse than by row sums."""
    _seed(n, kind, norms, batch)
    if norms and batch:
        norms = batch
    gram, log_norm = _gram(kind, n, batch), 3 * _randn(*(norms or (1,)), n)
    log_diagonal = log_majorizer(Gram(gram), log_norm)
    # Rescaled, so that no entry is lost beside others.
    root = (-log_diagonal / 2).exp()
    scaled = gram * root.unsqueeze(-1) * root.unsqueeze(-2)
    assert float(torch.linalg.eigvalsh(scaled).max()) <= 1 + 1e-12
    total = (log_diagonal + log_norm).logsumexp(-1)
    row_sums = gram.abs().sum(-1).log()
    assert bool((total <= (row_sums + log_norm).logsumexp(-1) + 1e-12).all())
    if kind == "one":  # the optimum is known
        best = 2 * ((log_norm / 2).exp() * gram.diagonal(dim1=-2, dim2=-1).sqrt()).sum(-1).log()
        torch.testing.assert_close(total, best, rtol=1e-9, atol=1e-9)


def test_majorizer_of_many_readouts() -> None:
    """With many rows of a readout the optimum is far below the row sums."""
    gram, log_norm = _gram("full", 50, ()), torch.zeros(1, 50, dtype=F64)
    total = (log_majorizer(Gram(gram), log_norm) + log_norm).logsumexp(-1)
    assert float(total) < float(gram.abs().sum().log()) - 0.5


@pytest.mark.parametrize("special", ["zeros", "equal", "tiny", "dead"])
def test_majorizer_of_special_matrices(special: str) -> None:
    gram, log_norm = _gram("few", 6, ()), _randn(1, 6)
    if special == "zeros":
        gram[2], gram[:, 2] = 0.0, 0.0
    elif special == "equal":
        gram = torch.ones(6, 6, dtype=F64)
    elif special == "tiny":
        gram, log_norm[:, 1] = 1e-30 * gram, -500.0
    else:
        log_norm[:, 1] = -torch.inf
    log_diagonal = log_majorizer(Gram(gram), log_norm)
    assert not bool(log_diagonal.isnan().any())
    root = torch.where(gram.diagonal() > 0, (-log_diagonal / 2).exp(), 0.0)
    scaled = gram * root.unsqueeze(-1) * root.unsqueeze(-2)
    assert float(torch.linalg.eigvalsh(scaled).max()) <= 1 + 1e-12


# --------------------------------------------------------------------------------- acceptance


def _empirical(law: SNEFY, monkeypatch: pytest.MonkeyPatch, count: int = 40_000) -> Tensor:
    """The share of accepted proposals of each member, by simulation."""
    shares: list[Tensor] = []

    def simulate(propose: Any, law: Tensor, rate: Tensor, most: int) -> Tensor:
        x, accepted = propose(torch.arange(len(law), device=law.device))
        shares.append(accepted)
        return x

    monkeypatch.setattr(samplers, "rejection", simulate)
    law.sample((count,))
    (accepted,) = shares  # one law after the other
    return accepted.double().reshape(-1, count).mean(-1).reshape(law.batch_shape)


ACCEPTED = ["Cos-Gaussian", "Snake-UniformBox", "Sin-UniformSphere", "ReLU-GaussianFull"]
ACCEPTED += ["GELU-GaussianScalar", "LeakyReLU-UniformSphere", "Step-UniformCube", "Cos-Poisson"]
ACCEPTED += ["Exp-Gaussian", "Exp-UniformSphere", "Exp-GammaFamily", "Exp-Poisson", "Exp-Product"]


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("name", ACCEPTED)
def test_acceptance_rate(
    name: str, batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed forms against 40,000 proposals, within four standard errors: at most 0.01."""
    case = Case(*name.split("-"))
    _seed(name, batch)
    law = case.distribution(batch=batch)
    rate = law.acceptance_rate
    assert rate.shape == batch
    found = _empirical(law, monkeypatch)
    assert bool(((found - rate).abs() <= 4 * (rate * (1 - rate) / 40_000).sqrt() + 1e-12).all())


def _sharing(activation: Activation, rows_of_bias: bool, d: int = 0, rows: int = 3) -> SNEFY:
    """Laws that share neurons and a mixture, with a readout and perhaps a bias each."""
    event = (d,) if d else ()
    scale = _t([0.7, 2.0, 8.0]).reshape((3,) + (1,) * len(event)).expand(3, *event)
    base = bases.GaussianMixture(_randn(3), _randn(3, *event), scale, event_dim=len(event))
    bias = _randn(*([rows] if rows_of_bias else []), 5)
    readout = _randn(rows, 2, 5)
    return SNEFY(_randn(5, d or 1), bias, readout, activation=activation, base=base)


SHARING = [(Cos(), True), (Sin(), True), (Cos(), False), (Bump(), False), (Snake(1.0), False)]
SHARING += [(ReLU(), False), (GELU(), False)]


@pytest.mark.parametrize(("activation", "rows_of_bias"), SHARING, ids=str)
def test_draws_of_laws_that_share_a_mixture(
    activation: Activation, rows_of_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel for all laws. Draws are compared with distribution functions by quadrature."""
    _seed("sharing", activation, rows_of_bias)
    law = _sharing(activation, rows_of_bias)
    _, engine = exact.prepare(law._network)
    assert isinstance(engine, NeuronSampler) and isinstance(engine.law, MixtureLaw)
    assert engine.kernel is None or engine.kernel.matrix(law.bias)[1].dim() == 2
    x = law.sample((10_000,))
    for row, pit in zip(x.unbind(-1), law.cdf(x).unbind(-1), strict=True):
        assert len(row.unique()) > 9_000
        assert stats.kstest(pit.numpy(), "uniform").pvalue > FAILURE
    rate = law.acceptance_rate
    found = _empirical(law, monkeypatch)
    assert bool(((found - rate).abs() <= 4 * (rate * (1 - rate) / 40_000).sqrt()).all())


def test_draws_of_vectors_that_share_a_mixture() -> None:
    """Both coordinates, by the distribution functions of the marginals."""
    _seed("sharing vectors")
    law = _sharing(Bump(), False, d=2)
    assert isinstance(exact.prepare(law._network)[1], NeuronSampler)
    x = law.sample((10_000,))
    for k in range(2):
        pit = law.marginal([k]).cdf(x[..., k : k + 1])
        for row in pit.unbind(-1):
            assert stats.kstest(row.numpy(), "uniform").pvalue > FAILURE


def test_quantiles_where_proposals_of_shared_laws_are_rejected() -> None:
    """Below one acceptance in 64, a table of quantiles serves all laws.

    Laws beside them, whose proposals are accepted, are drawn by rejection.
    """
    _seed("sharing", "rejected")
    weight = _randn(4, 1).repeat(2, 1) + 0.02 * _randn(8, 1)
    signs = torch.cat([torch.ones(4), -torch.ones(4)]).double()
    half = _randn(1, 1, 4).repeat(1, 1, 2)
    readout = torch.cat([half * signs, half.abs() * torch.eye(8)[0].double() + 1e-3])
    base = bases.GaussianMixture(_t([0.0, -1.0]), _t([0.0]), _t([1.0, 4.0]), event_dim=0)
    law = SNEFY(weight, torch.zeros(8, dtype=F64), readout, base=base)
    rates = law.acceptance_rate
    assert rates[0] < 1 / 64 < rates[1]
    x = law.sample((10_000,))
    for pit in law.cdf(x).unbind(-1):
        assert stats.kstest(pit.numpy(), "uniform").pvalue > FAILURE


def test_acceptance_rate_of_mixtures() -> None:
    """Tries per draw are those of the components, weighted by their shares of the mass.

    Acceptances of 0.3 or more have standard errors of at most 0.5 % with 100,000 proposals: 3 %
    are six of them, with a rate of false alarms of 2e-9. An error of 3 % is seen half of the time.
    """
    law = Case("Cos", "GaussianMixture").distribution()
    _, engine = exact.prepare(law._network)
    assert isinstance(engine, samplers.MixtureSampler)
    (inner,) = engine.parts
    assert isinstance(inner, NeuronSampler)
    share = engine.log_weights.softmax(-1)[0]
    members = torch.arange(len(share)).repeat_interleave(100_000)
    accepted = (
        torch.rand(len(members)) < inner.log_acceptance(inner.propose(members), members).exp()
    )
    found = accepted.double().reshape(len(share), -1).mean(-1)
    assert 1 / float((share / found).sum()) == pytest.approx(float(law.acceptance_rate), rel=0.03)


@pytest.mark.parametrize("d", [2, 10, 50])
@pytest.mark.parametrize(
    "activation, m, least",
    [(Cos(), 1, 0.025), (Cos(), 50, 0.25), (Exp(), 1, 0.3), (Exp(), 50, 0.6)],
    ids=str,
)
def test_acceptance_of_random_networks(
    activation: Activation, m: int, least: float, d: int
) -> None:
    """Medians over 20 networks of 50 neurons: the dimension makes no difference."""
    rates = []
    for seed in range(20):
        pyro.set_rng_seed(seed)
        law = SNEFY(_randn(50, d), _randn(50), _randn(m, 50), activation=activation)
        rates.append(float(law.acceptance_rate))
    assert float(np.median(rates)) >= least


# -------------------------------------------------------------------------------- edge cases

NEURONS = {
    "Cos": Cos(),
    "Sin": Sin(),
    "Snake": Snake(1.5),
    "Identity": Identity(),
    "Exp": Exp(),
    "Erf": Erf(),
    "Step": Step(),
    "ReLU": ReLU(),
    "ReLU3": ReLU(3),
    "LeakyReLU": LeakyReLU(0.2),
    "GELU": GELU(),
}


@pytest.mark.parametrize("weight", [0.03, 1.0, 20.0])
@pytest.mark.parametrize("bias", [-4.0, -0.5, 0.0, 2.0])
@pytest.mark.parametrize("activation", NEURONS)
def test_one_neuron(activation: str, bias: float, weight: float) -> None:
    """Proposals for single neurons, slowly and fast varying, about their zeros and far away."""
    if weight < 1 and bias < -1 and activation in ("Step", "ReLU", "ReLU3"):
        pytest.skip("dead: see below")
    base = bases.Gaussian(_t(0.1)[0], _t(0.9)[0], event_dim=0)
    _seed(activation, bias, weight)
    law = SNEFY(
        _t(weight)[None], _t(bias), _t(1.0)[None], activation=NEURONS[activation], base=base
    )
    assert float(law.acceptance_rate) == pytest.approx(1.0, abs=1e-9)
    assert fit(law, law.sample((10_000,))) > FAILURE


@pytest.mark.parametrize("activation", ["Step", "ReLU", "ReLU3", "GELU"])
@pytest.mark.parametrize("bias", [-8.0, -20.0])
def test_tail_of_one_neuron(activation: str, bias: float) -> None:
    """Beyond -b the law is almost exponential, with the rate -b and the power of the neuron."""
    base = bases.Gaussian(_t(0.0)[0], _t(1.0)[0], event_dim=0)
    law = SNEFY(_t(1.0)[None], _t(bias), _t(1.0)[None], activation=NEURONS[activation], base=base)
    x = law.sample((20_000,)).numpy()
    # The density on a grid, with no normaliser.
    u = np.linspace(-12.0, 30.0, 400_001)
    z = u + bias
    if activation == "GELU":
        log_square = 2 * (np.log(np.abs(z), where=z != 0, out=np.full_like(z, -1e9)))
        log_square += 2 * stats.norm.logcdf(z)
    else:
        power = {"Step": 0, "ReLU": 1, "ReLU3": 3}[activation]
        log_z = np.log(z, where=z > 0, out=np.full_like(z, -1e9))
        log_square = np.where(z > 0, 2 * power * log_z, -np.inf)
    log_density = log_square - u**2 / 2
    mass = np.exp(log_density - log_density.max()).cumsum()
    quantiles = np.interp(LEVELS.numpy(), mass / mass[-1], u)
    assert quantile_bins(torch.from_numpy(quantiles), torch.from_numpy(x)) > FAILURE


@pytest.mark.parametrize("activation", ["Cos", "Snake", "Exp", "Erf", "ReLU", "GELU"])
def test_constant_and_equal_neurons(activation: str) -> None:
    """Neurons without weight, and neurons that are equal."""
    weight, bias, readout = _randn(5, 2), _randn(5), _randn(2, 5)
    weight[0], bias[0] = 0.0, 1.0
    weight[2], bias[2] = weight[1], bias[1]
    base = bases.Gaussian(LOC, SCALE)
    law = SNEFY(weight, bias, readout, activation=NEURONS[activation], base=base)
    assert fit(law, law.sample((20_000,))) > FAILURE


@pytest.mark.parametrize("activation", ["Cos", "Exp", "ReLU"])
def test_constant_networks(activation: str) -> None:
    """All weights are zero: the law is the base."""
    base = bases.Gaussian(LOC, SCALE)
    law = SNEFY(
        torch.zeros(3, 2, dtype=F64),
        torch.ones(3, dtype=F64),
        _randn(1, 3),
        activation=NEURONS[activation],
        base=base,
    )
    x = law.sample((10_000,))
    for k in range(2):
        normal = stats.norm(float(LOC[k]), float(SCALE[k]))
        assert stats.kstest(x[:, k].numpy(), normal.cdf).pvalue > FAILURE


def test_dead_neurons() -> None:
    """Rectified neurons that are silent where there is any mass to speak of."""
    weight, bias, readout = _randn(4, 2), _t(0.5, -20.0, 0.2, -60.0), _randn(2, 4)
    base = bases.Gaussian(LOC, SCALE)
    law = SNEFY(weight, bias, readout, activation=ReLU(), base=base)
    x = law.sample((20_000,))
    assert fit(law, x) > FAILURE
    alive = SNEFY(weight[::2], bias[::2], readout[:, ::2], activation=ReLU(), base=base)
    assert fit(alive, x) > FAILURE


@pytest.mark.parametrize("m", [1, 3])
def test_neurons_that_are_dead_on_a_component(m: int) -> None:
    """No mass on one component of a mixture: draws are those of the other component."""
    weight, bias, readout = _randn(4, 1).abs() + 0.5, _randn(4), _randn(m, 4)
    loc, scale = _t(4.0, -4.0)[:, None], _t(0.05, 0.05)[:, None]
    base = bases.GaussianMixture(_t(0.0, 0.0), loc, scale)
    law = SNEFY(weight, bias, readout, activation=ReLU(), base=base)
    x = law.sample((20_000,))
    assert float(law.acceptance_rate) > 0
    alive = replace(law._network, base=bases.Gaussian(loc[0], scale[0]))
    assert fit(SNEFY._from_network(alive, True), x) > FAILURE


def test_dead_neurons_in_a_batch() -> None:
    """A member of a batch whose neurons are all far out, beside one where they are not."""
    base = bases.Gaussian(_t(0.0)[0], _t(1.0)[0], event_dim=0)
    bias = torch.tensor([[0.5, -0.2], [-9.0, -10.0]], dtype=F64)
    law = SNEFY(_t(1.0, 1.0)[:, None], bias, _t(1.0, 0.5)[None], activation=ReLU(), base=base)
    _assert_members(law)


@pytest.mark.parametrize("d", [2, 3, 8])
def test_narrow_von_mises_fisher_law(d: int) -> None:
    """With κ = 10^4, directions are normal about the mode, and their cosines as in the law."""
    weight = torch.zeros(1, d, dtype=F64)
    weight[0, -1] = 1e4
    law = SNEFY(weight, None, _t(1.0)[None], activation=Exp(0.5), base=bases.UniformSphere(d))
    x = law.sample((20_000,))
    assert bool(law.support.check(x).all())
    # 2κ(1 - cos) is chi-squared with d - 1 degrees of freedom, to about 1/κ.
    assert stats.kstest(1e4 * x[:, :-1].square().sum(-1).numpy(), "chi2", (d - 1,)).pvalue > FAILURE
    assert bool((x[:, -1] > 0.99).all())


def test_exponential_neurons_with_large_weights() -> None:
    """Weights whose exponentials overflow in float64."""
    weight = 40 * _randn(4, 2)
    base = bases.Gaussian(LOC, SCALE)
    law = SNEFY(weight, _randn(4), _randn(2, 4), activation=Exp(), base=base)
    x = law.sample((20_000,))
    assert bool(x.isfinite().all())
    assert fit(law, x) > FAILURE


@pytest.mark.parametrize("name", ["Gaussian", "UniformSphere", "Poisson", "Discrete", "Product"])
def test_no_draw_without_mass(name: str) -> None:
    """A density of zero, here the difference of equal neurons, has no draws, and says so."""
    case = Case("Cos", name)
    weight, bias = torch.ones(2, case.base().num_statistics, dtype=F64), _t(0.3, 0.3)
    law = SNEFY(weight, bias, _t(1.0, -1.0)[None], activation=Cos(), base=case.base())
    with pytest.raises(ValueError, match="readout"):
        law.log_prob(events(case, 2))
    with pytest.raises(ValueError, match="readout"):
        law.sample((3,))


ENGINE = ("Cis", "Snake", "Exp", "ReLU", "GELU")


@pytest.mark.parametrize("case", [c for c in KINDS if c.activation_name in ENGINE], ids=str)
def test_dtype_device_and_seed(case: Case) -> None:
    """Draws are where the parameters are, of their dtype, in the support, and reproducible."""
    _seed(case)
    law = case.distribution(torch.float32)
    pyro.set_rng_seed(3)
    expected = law.sample((40,))
    pyro.set_rng_seed(3)
    with torch.device("meta"):
        found = law.sample((40,))
    assert found.device == expected.device
    assert torch.equal(found, expected)
    assert found.dtype == law.acceptance_rate.dtype == torch.float32
    assert bool(law.support.check(found).all())
    assert bool(law.log_prob(found).isfinite().all())
    other = law.sample((40,))
    assert case.base().is_discrete or not torch.equal(other, expected)


def test_no_gradients() -> None:
    weight = _randn(3, 2).requires_grad_()
    law = SNEFY(weight, _randn(3), _randn(1, 3))
    assert not law.sample((2,)).requires_grad
    assert not law.marginal([0]).sample((2,)).requires_grad


# --------------------------------------------------------------------------- small acceptance


def _cancelling(base: Base, difference: float, activation: Activation = Cos()) -> SNEFY:
    """Two neurons that are almost equal, of which the difference is read."""
    weight = torch.ones(2, base.num_statistics, dtype=F64)
    weight[1, 0] += difference
    return SNEFY(weight, _t(0.3, 0.3), _t(1.0, -1.0)[None], activation=activation, base=base)


@pytest.mark.parametrize("activation", [Cos(), Exp(), ReLU()], ids=str)
@pytest.mark.parametrize("d", [1, 2])
def test_hopeless_acceptance(d: int, activation: Activation) -> None:
    """Draws are exact where nothing would be accepted: here of the derivative of a neuron.

    Three means to four standard errors, 0.09 standard deviations with 2000 draws and 0.23 with 300.
    """
    base = bases.Gaussian(torch.zeros(d, dtype=F64), torch.ones(d, dtype=F64))
    law = _cancelling(base, 1e-4, activation)
    assert float(law.acceptance_rate) < 1e-7
    count = 300 if isinstance(activation, ReLU) else 2000
    x = law.sample((count,)).numpy()
    total = x.sum(-1) + 0.3
    slope = {Cos: np.sin(total), Exp: np.exp(total), ReLU: (total > 0).astype(float)}
    # E_p[f] = E[f (x_0 σ')²] / E[(x_0 σ')²], by another simulation that has weights.
    u = np.random.default_rng(0).standard_normal((1_000_000, d))
    other = u.sum(-1) + 0.3
    slopes = {Cos: np.sin(other), Exp: np.exp(other), ReLU: (other > 0).astype(float)}
    assert bool((slope[type(activation)] != 0).all())
    weights = (u[:, 0] * slopes[type(activation)]) ** 2
    weights /= weights.sum()
    for f in (lambda v: v[:, 0], lambda v: v[:, -1] ** 2, lambda v: np.sin(v.sum(-1))):
        mean = weights @ f(u)
        error = np.hypot(f(x).std() / count**0.5, ((weights * (f(u) - mean)) ** 2).sum() ** 0.5)
        assert abs(f(x).mean() - mean) < 4 * error


def test_hopeless_and_good_members_of_a_batch() -> None:
    base = bases.Gaussian(_t(0.0, 0.0), _t(1.0, 1.0))
    weight = torch.tensor([[1.0, 1.0], [1.0 + 1e-4, 1.0]], dtype=F64)
    readout = torch.tensor([[[1.0, -1.0]], [[1.0, 1.0]]], dtype=F64)
    law = SNEFY(weight, _t(0.3, 0.3), readout, base=base)
    rate = law.acceptance_rate
    assert rate[0] < 1e-7 and rate[1] > 0.9
    _assert_members(law, count=2000)


def test_no_acceptance_in_a_batch() -> None:
    """A member whose rate is zero in floating point does not stop the others."""
    base = bases.Gaussian(_t(0.0, 0.0), _t(1.0, 1.0))
    weight = torch.tensor([[1.0, 1.0], [1.0 + 1e-9, 1.0]], dtype=F64)
    readout = torch.tensor([[[1.0, -1.0]], [[1.0, 1.0]]], dtype=F64)
    law = SNEFY(weight, _t(0.3, 0.3), readout, base=base, validate_args=False)
    x = law.sample((100,))
    assert bool(x[:, 1].isfinite().all())


def test_rejection_where_coordinates_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of proposals cost less than the bivariate integrals of ten neurons.

    The first coordinate of 400 draws in ten bins: FAILURE is the rate of false alarms. An error of
    76 % in the mass of one bin is seen half of the time: a gross error, such as another law.
    """

    def fail(*_: object) -> Tensor:
        raise AssertionError("one coordinate at a time")

    monkeypatch.setattr(exact, "sample_sequentially", fail)
    pyro.set_rng_seed(1)
    weight, bias, readout = _randn(5, 2), _randn(5), _randn(1, 5)
    near = weight + 0.04 * _randn(5, 2)
    law = SNEFY(
        torch.cat([weight, near]),
        bias.repeat(2),
        torch.cat([readout, -readout], -1),
        activation=Erf(),
    )
    assert 1e-4 < float(law.acceptance_rate) < 1e-3
    bins = law.marginal([0]).icdf(LEVELS[3::4])
    assert quantile_bins(bins.squeeze(-1), law.sample((400,))[:, 0]) > FAILURE


@pytest.mark.parametrize("activation", [Cos(), Exp()], ids=str)
def test_memory_of_proposals(activation: Activation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and forms are gathered for 64 MB of proposals at a time, or for a single one."""
    law = SNEFY(_randn(3, 40, 50) / 7, _randn(3, 40), _randn(3, 40, 40), activation=activation)
    sizes = []
    kind = PairSampler if isinstance(activation, Exp) else NeuronSampler
    right = kind.propose
    monkeypatch.setattr(
        kind, "propose", lambda self, member: (sizes.append(len(member)), right(self, member))[1]
    )
    assert law.sample((2000,)).shape == (2000, 3, 50)
    assert len(sizes) > 1 and max(sizes) * (40 * 50 + 40 * 40) <= 2**23


def test_one_kernel_for_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks, normaliser and envelope share one kernel."""
    law = SNEFY(_randn(5, 2), _randn(5), _randn(3, 5), validate_args=True)
    right, calls = Network.kernel, []
    monkeypatch.setattr(Network, "kernel", lambda self: (calls.append(self), right(self))[1])
    law.sample()
    assert len(calls) == 1


def test_envelope_of_few_draws() -> None:
    """The ascent is not worth its price for one draw, and the other envelope has the same law.

    400 draws in ten bins: FAILURE is the rate of false alarms, and an error of 76 % in the mass of
    one bin is seen half of the time.
    """
    law = SNEFY(_randn(20, 1), _randn(20), _randn(20, 20))
    rates = [exact.prepare(law._network, draws)[1].acceptance for draws in (1, math.inf)]
    assert rates[0] < rates[1] == law.acceptance_rate
    x = torch.stack([law.sample() for _ in range(400)])
    assert quantile_bins(law.icdf(LEVELS[3::4]).squeeze(-1), x.squeeze(-1)) > FAILURE


@pytest.mark.parametrize("activation", [Cos(), Exp()], ids=str)
def test_nothing_can_be_afforded(activation: Activation) -> None:
    law = _cancelling(bases.UniformSphere(3), 1e-4, activation)
    rate = float(law.acceptance_rate)
    assert rate < 1e-7
    with pytest.raises(NotImplementedError, match=f"acceptance_rate {rate:.2g}"):
        law.sample((2,))


def test_nothing_can_be_afforded_on_a_product() -> None:
    """Neurons that almost cancel, on factors without a characteristic function."""
    base = bases.Product([bases.GammaFamily(), bases.NormalFamily(1)])
    weight = _t([0.5, -1.0, 0.3, -0.5]) + 1e-4 * torch.randn(8, base.num_statistics).double()
    readout = torch.randn(1, 8).double()
    readout = readout - readout.mean()
    law = SNEFY(weight, None, readout, activation=Exp(), base=base, validate_args=False)
    with pytest.raises(NotImplementedError, match="GammaFamily"):
        law.sample((3,))


def test_small_acceptance_on_the_sphere() -> None:
    """Slow, but not hopeless: there is no other way.

    Two means of 200 draws to four standard errors, which are 0.28 standard deviations.
    """
    law = _cancelling(bases.UniformSphere(3), 0.09)
    assert 1e-5 < float(law.acceptance_rate) < 1e-3
    x = law.sample((200,))
    u = torch.nn.functional.normalize(_randn(400_000, 3), dim=-1)
    weights = law.log_prob(u).exp()
    weights /= weights.sum()
    for f in (lambda v: v[:, 0].abs(), lambda v: v[:, 1]):
        mean = weights @ f(u)
        assert abs(f(x).mean() - mean) < 4 * f(x).std() / 200**0.5


# --------------------------------------------------------------- one coordinate after the other


SEQUENTIAL: dict[str, tuple[Base, Activation]] = {
    "Gaussian": (bases.Gaussian(LOC, SCALE), Cos()),
    "GaussianFull": (bases.Gaussian(LOC, scale_tril=TRIL), Snake()),
    "GaussianExp": (bases.Gaussian(LOC, scale_tril=TRIL), Exp()),
    "GaussianReLU": (bases.Gaussian(LOC, scale_tril=TRIL), ReLU()),
    "GaussianMixture": (bases.GaussianMixture(LOGITS, LOCS, SCALES), Cos()),
    "GaussianMixtureExp": (bases.GaussianMixture(LOGITS, LOCS, SCALES), Exp(0.5)),
    "UniformCube": (bases.UniformCube(3), Sin()),
    "UniformCubeReLU": (bases.UniformCube(2), ReLU()),
    "UniformBox": (bases.UniformBox(_t(-1.0, 0.5), _t(0.5, 3.0)), Snake()),
    "Standardized": (
        bases.Standardized(bases.Gaussian(LOC, SCALE), _t(1.0, -2.0), _t(3.0, 0.5)),
        Cos(),
    ),
    "StandardizedMixture": (
        bases.Standardized(
            bases.GaussianMixture(LOGITS, LOCS, SCALES), _t(1.0, -2.0), _t(3.0, 0.5)
        ),
        Exp(0.5),
    ),
    "NormalFamily": (bases.NormalFamily(2), Exp()),
    "Product": (
        bases.Product([bases.Gaussian(LOC, scale_tril=TRIL), bases.Poisson(_t(2.0)[0])]),
        Cos(),
    ),
    "ProductExp": (
        bases.Product([bases.Poisson(_t(2.0)[0]), bases.UniformBox(_t(-1.0), _t(0.5))]),
        Exp(0.5),
    ),
}


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_one_coordinate_after_the_other(name: str) -> None:
    """Inversion and rejection draw from the same law, which is that of the marginals.

    Of 1500 draws, a distance of 0.06 between distribution functions is seen, of 300 draws 0.13.
    """
    _seed(name)
    base, activation = SEQUENTIAL[name]
    weight, bias, readout = _randn(4, base.num_statistics) * 0.7, _randn(4), _randn(2, 4)
    if name == "NormalFamily":
        weight[:, 2:] = -0.1 - weight[:, 2:].abs()
    law = SNEFY(weight, bias, readout, activation=activation, base=base)
    count = 300 if isinstance(activation, ReLU) else 1500
    network = law._network
    first = network.from_latent(sample_sequentially(network.latent(), Size((count,))))
    second = law.sample((20_000,))
    assert bool(law.support.check(first).all())
    directions = torch.cat(
        [torch.eye(law.event_shape[0], dtype=F64), _randn(2, law.event_shape[0])]
    )
    for u in directions:
        assert stats.ks_2samp((first @ u).numpy(), (second @ u).numpy()).pvalue > FAILURE
    for k in range(law.event_shape[0]):
        line = law.marginal([k])
        if name.startswith("Product") and bool((first[:, k] == first[:, k].round()).all()):
            counts = torch.arange(40, dtype=F64)
            probs = line.log_prob(counts.unsqueeze(-1)).exp()
            found = torch.bincount(first[:, k].long(), minlength=40).double()
            assert pooled(probs.numpy(), found.numpy()) > FAILURE
        else:
            assert quantile_bins(line.icdf(LEVELS).squeeze(-1), first[:, k]) > FAILURE


# ---------------------------------------------------------------- marginals and conditionals


@pytest.mark.parametrize("activation", [Cos(), Snake(), Exp(), ReLU()], ids=str)
def test_marginals(activation: Activation) -> None:
    """Draws of pairs of coordinates, in any order."""
    _seed("marginals", activation)
    base = bases.Gaussian(_t(0.3, -0.5, 0.1), scale_tril=(torch.eye(3, dtype=F64) + 0.3).tril())
    law = _random(base, activation, n=4)
    pair: Any = law.marginal([2, 0])
    assert isinstance(pair, Marginal) == isinstance(activation, Snake | ReLU)
    x = pair.sample((20_000,))
    assert x.shape == (20_000, 2)
    for place, k in enumerate([2, 0]):
        bins = law.marginal([k]).icdf(LEVELS).squeeze(-1)
        assert quantile_bins(bins, x[:, place]) > FAILURE
    assert neighbours(x, pair.log_prob(x).exp(), 2) > FAILURE


@pytest.mark.parametrize("activation", [Cos(), Snake(), Exp(), ReLU()], ids=str)
@pytest.mark.parametrize("name", ["Gaussian", "GaussianMixture", "UniformCube", "UniformBox"])
def test_conditionals(name: str, activation: Activation) -> None:
    """One law for each value of what is given."""
    base = Case("Cos", name).base()
    if not closed_form(activation, base, bias=True):
        pytest.skip("no closed form")
    _seed("conditionals", name, activation)
    law = _random(base, activation, n=4)
    values = torch.tensor([[0.3], [0.2], [0.4]], dtype=F64)
    given: Any = law.conditional([0], values)
    assert given.batch_shape == (3,)
    _assert_members(given, count=3000)
