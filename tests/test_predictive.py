"""What is asked of the law of one coordinate: levels, regions, modes, scores."""

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import AffineTransform, TransformedDistribution
from torch.testing import assert_close

from pyro_snefy import SNEFY, bases, conditional_snefy
from pyro_snefy.activations import Activation, Cos, Erf, Exp, ReLU, Snake
from pyro_snefy.bases import (
    Base,
    Binomial,
    DirichletFamily,
    Gaussian,
    GaussianMixture,
    Geometric,
    Interval,
    Laplace,
    Mixture,
    PointMass,
    Poisson,
    Standardized,
    StudentT,
    UniformCube,
    UniformSphere,
)
from pyro_snefy.kernels.registry import check_closed_form, closed_form
from tests.cases import ACTIVATIONS
from tests.cases import BASES as CASE_BASES

F64 = torch.float64
NORMAL = Gaussian(0.0, 1.0, event_dim=0)


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


def _normal(loc: Tensor, scale: Tensor) -> SNEFY:
    """Normal laws themselves: one constant neuron."""
    base = Gaussian(loc, scale, event_dim=0)
    return SNEFY(loc.new_zeros(1, 1), loc.new_zeros(1), loc.new_ones(1, 1), base=base)


def _likelihood(rows: int, dtype: torch.dtype = F64) -> SNEFY:
    """The default likelihood with readouts that differ from row to row."""
    model = conditional_snefy((), 2).to(dtype)
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
        return model(torch.randn(rows, 2, dtype=dtype))


def test_lists_of_levels_come_before_the_batch() -> None:
    loc, scale = torch.tensor([0.0, 1.0, -2.0], dtype=F64), torch.tensor([1.0, 2.0, 0.5], dtype=F64)
    law = _normal(loc, scale)
    levels = [0.05, 0.5, 0.75, 0.95]
    expected = stats.norm(loc.numpy(), scale.numpy()).ppf(np.array(levels)[:, None])
    assert_close(law.icdf(levels), torch.as_tensor(expected), rtol=1e-9, atol=1e-12)
    assert_close(law.icdf(tuple(levels)), law.icdf(levels))
    assert_close(law.icdf(0.5), loc, rtol=0, atol=1e-9)
    each = torch.tensor([0.1, 0.2, 0.9], dtype=F64)  # a tensor: one level for each law
    assert_close(law.icdf(each), torch.as_tensor(stats.norm(loc, scale).ppf(each)))
    single = _normal(torch.tensor(0.0), torch.tensor(1.0))
    assert single.icdf(levels).shape == (4,)
    assert single.icdf(levels).dtype == torch.float32


def test_levels_of_marginals_and_censored_laws() -> None:
    joint = SNEFY(_randn(4, 2), _randn(5, 4), _randn(2, 4), activation=Snake())
    marginal = joint.marginal([1])
    found = marginal.icdf([0.1, 0.9])
    assert found.shape == (2, 5, 1)
    levels = torch.tensor([[0.1], [0.9]], dtype=F64).expand(2, 5)
    assert_close(marginal.cdf(found), levels, rtol=1e-9, atol=0)
    censored = _normal(torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64)).censored(low=-0.5)
    expected = torch.as_tensor(stats.norm.ppf([0.1, 0.9])).clamp(min=-0.5)
    assert_close(censored.icdf([0.1, 0.9]), expected.unsqueeze(-1).expand(2, 3))


@pytest.mark.parametrize("level", ["0.5", None, [[0.1], [0.2]], ["a"]])
def test_levels_are_numbers(level: Any) -> None:
    with pytest.raises(TypeError, match=r"list of numbers or a Tensor, got"):
        _normal(torch.zeros(2), torch.ones(2)).icdf(level)


def test_levels_that_do_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"batch shape \(2,\), got shape \(3,\)"):
        _normal(torch.zeros(2), torch.ones(2)).icdf(torch.tensor([0.1, 0.5, 0.9]))
    with pytest.raises(ValueError, match="probabilities between 0 and 1"):
        _normal(torch.zeros(2), torch.ones(2)).icdf([0.5, 1.5])


def _region_mass(law: Any, low: Tensor, high: Tensor) -> Tensor:
    """The probability of intervals by differences of the distribution function, NaN being none."""
    none = low.isnan()
    upper, lower = (law.cdf(torch.where(none, 0.0, x)) for x in (high, low))
    none = none.squeeze(-1) if law.event_shape else none
    return torch.where(none, 0.0, upper - lower).sum(0)


def _check_region(law: Any, level: float, grid: Tensor) -> None:
    """The mass is the level, and densities inside are not below densities outside."""
    low, high = law.highest_density_region(level)  # (k, batch)
    shape = law.batch_shape
    assert low.shape == high.shape == (len(low), *shape)
    assert_close(
        _region_mass(law, low, high), torch.full(shape, level, dtype=F64), rtol=0, atol=1e-9
    )
    x = grid.reshape(-1, *(1,) * len(shape)).expand(-1, *shape)
    inside = ((x.unsqueeze(0) >= low.unsqueeze(1)) & (x.unsqueeze(0) <= high.unsqueeze(1))).any(0)
    density = law.log_prob(x).exp()
    least = torch.where(inside, density, torch.inf).amin(0)
    most = torch.where(inside, 0.0, density).amax(0)
    assert bool((least >= most * (1 - 1e-7)).all())
    assert bool(inside.any(0).all() and (~inside).any(0).all())


def test_region_of_a_normal_law() -> None:
    loc, scale = torch.tensor([0.0, 3.0], dtype=F64), torch.tensor([1.0, 0.1], dtype=F64)
    low, high = _normal(loc, scale).highest_density_region([0.5, 0.95])
    z = torch.as_tensor(stats.norm.ppf([0.75, 0.975])).unsqueeze(-1)
    assert low.shape == (1, 2, 2)
    assert_close(low[0], loc - z * scale, rtol=1e-9, atol=0)
    assert_close(high[0], loc + z * scale, rtol=1e-9, atol=0)


@pytest.mark.parametrize("activation", [Cos(), Snake(), Exp(), ReLU(), Erf()], ids=str)
@pytest.mark.parametrize("level", [0.2, 0.9])
def test_regions_of_one_law(activation: Activation, level: float) -> None:
    torch.manual_seed(3)
    base = GaussianMixture([0.0, -1.0], [0.0, 2.0], [1.0, 0.5], event_dim=0).map(Tensor.double)
    law = SNEFY(1.5 * _randn(5, 1), _randn(5), _randn(2, 5), activation=activation, base=base)
    _check_region(law, level, torch.linspace(-20, 20, 40_001, dtype=F64))


@pytest.mark.parametrize("base", [StudentT(3.0, 0.0, 1.0, event_dim=0), Laplace(0.3, 1.0)], ids=str)
def test_regions_of_heavy_tails(base: Base) -> None:
    torch.manual_seed(4)
    law = SNEFY(1.5 * _randn(4, 1), _randn(3, 4), _randn(2, 4), base=base.map(Tensor.double))
    _check_region(law, 0.95, torch.linspace(-30, 30, 60_001, dtype=F64))


def test_regions_of_rows_of_a_likelihood() -> None:
    torch.manual_seed(5)
    law = _likelihood(20)
    _check_region(law, 0.8, torch.linspace(-60, 60, 60_001, dtype=F64))
    low, high = law.highest_density_region([0.3, 0.8])
    base = law.base.map(lambda x: _row(x, 7))
    alone = SNEFY(law.weight, law.bias, law.readout[7], activation=law.activation, base=base)
    one_low, one_high = alone.highest_density_region(0.8)
    kept = ~low[:, 1, 7].isnan()
    assert_close(low[kept, 1, 7], one_low, rtol=1e-8, atol=1e-8)
    assert_close(high[kept, 1, 7], one_high, rtol=1e-8, atol=1e-8)


def _row(x: Tensor, row: int) -> Tensor:
    return x[row] if x.shape == (20,) else x


@pytest.mark.parametrize("level", [0.5, 0.8])
def test_intervals_of_a_region_have_valleys_between_them(level: float) -> None:
    torch.manual_seed(1)
    likelihood = conditional_snefy((), 2, hidden_dims=()).double().requires_grad_(False)
    torch.nn.init.normal_(likelihood.net.layers[-1].weight)
    law = likelihood(torch.randn(400, 2).double())
    low, high = law.highest_density_region(level)
    left, right = high[:-1], low[1:]  # (k - 1, 400): the ends of what is between two intervals
    between = right.isfinite()
    assert between.any()
    height, *ends = (
        law.log_prob(torch.where(between, x, 0.0)) for x in ((left + right) / 2, left, right)
    )
    assert (height < torch.minimum(*ends))[between].all()


def test_region_on_the_unit_interval() -> None:
    """The statistic is not the event: densities are compared in events."""
    torch.manual_seed(6)
    law = SNEFY(_randn(4, 1), _randn(4), _randn(2, 4), base=UniformCube(1))
    low, high = law.highest_density_region(0.7)
    assert low.shape == (len(low), 1)
    assert _region_mass(law, low, high) == pytest.approx(0.7, abs=1e-8)
    x = torch.linspace(1e-4, 1 - 1e-4, 5_000, dtype=F64)
    inside = ((x >= low) & (x <= high)).any(0)
    density = law.log_prob(x.unsqueeze(-1))
    assert density[inside].min() >= density[~inside].max() - 1e-6


def test_region_of_a_marginal() -> None:
    joint = SNEFY(_randn(4, 2), _randn(4), _randn(2, 4), activation=ReLU())
    marginal = joint.marginal([1])
    low, high = marginal.highest_density_region(0.6)
    assert _region_mass(marginal, low, high).item() == pytest.approx(0.6, abs=1e-8)
    x = torch.linspace(-6, 6, 3_000, dtype=F64)
    density = marginal.log_prob(x.unsqueeze(-1))
    inside = ((x >= low) & (x <= high)).any(0)
    assert density[inside].min() >= density[~inside].max() - 1e-6
    assert marginal.mode.shape == (1,)
    assert marginal.log_prob(marginal.mode) >= density.max() - 1e-12


@pytest.mark.parametrize("base", [Poisson(4.0), Binomial(9, 0.4), Geometric(0.2)], ids=str)
def test_regions_of_counts_are_the_fewest_points(base: Base) -> None:
    torch.manual_seed(7)
    law = SNEFY(_randn(4, 1), _randn(3, 4), _randn(2, 4), base=base.map(Tensor.double))
    x = torch.arange(10 if isinstance(base, Binomial) else 200, dtype=F64)
    masses = law.log_prob(x.unsqueeze(-1)).exp()  # (K, batch)
    low, high = law.highest_density_region(0.8)
    inside = ((x[:, None] >= low[:, None]) & (x[:, None] <= high[:, None])).any(0)
    for mass, kept in zip(masses.T, inside.T, strict=True):
        ordered = mass.sort(descending=True).values
        fewest = int((ordered.cumsum(0) < 0.8).sum()) + 1
        assert int(kept.sum()) == fewest
        assert_close(mass[kept].sum(), ordered[:fewest].sum())
    assert_close(law.mode, masses.argmax(0).double())


def test_region_of_a_constant_density() -> None:
    """No threshold has the mass: the region is the whole interval."""
    base = Interval(0.0, 2.0).map(Tensor.double)
    one = torch.ones(1, 1, dtype=F64)
    low, high = SNEFY(0 * one, 0 * one[0], one, base=base).highest_density_region(0.5)
    assert_close(torch.cat([low, high]), torch.tensor([0.0, 2.0], dtype=F64))


@pytest.mark.parametrize("level", [0.0, 1.0, [0.5, 1.0]])
def test_levels_of_regions(level: Any) -> None:
    with pytest.raises(ValueError, match="both excluded"):
        _normal(torch.zeros(2), torch.ones(2)).highest_density_region(level)


def test_no_region_of_atoms_beside_a_density() -> None:
    base = Mixture([0.0, 0.0], [PointMass(0.0), NORMAL])
    law = SNEFY(torch.randn(3, 1), torch.randn(3), torch.randn(1, 3), base=base)
    with pytest.raises(NotImplementedError, match="do not compare"):
        law.highest_density_region(0.5)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_mode_is_the_highest_point(dtype: torch.dtype) -> None:
    torch.manual_seed(8)
    law = _likelihood(30, dtype)
    grid = torch.linspace(-30, 30, 60_001, dtype=dtype).unsqueeze(-1)
    mode = law.mode
    assert mode.shape == (30,) and mode.dtype == dtype
    highest = law.log_prob(grid).max(0)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert bool((law.log_prob(mode) >= highest.values - tolerance).all())
    near = (law.log_prob(mode) < highest.values + 1e-3).all()
    assert bool(near)


def test_modes_at_a_kink_and_at_an_end() -> None:
    one = torch.ones(1, 1, dtype=F64)
    kink = SNEFY(0 * one, 0 * one[0], one, base=Laplace(0.75, 1.0).map(Tensor.double))
    assert kink.mode.item() == pytest.approx(0.75, abs=1e-12)
    box = Interval(-1.0, 2.0).map(Tensor.double)
    assert SNEFY(one, 0 * one[0], one, activation=Exp(), base=box).mode.item() == pytest.approx(2.0)


def _crps_by_trapezoids(law: Any, y: Tensor, low: float, high: float, count: int) -> Tensor:
    """The integral of (F - 1)^2 over a fine grid of distribution functions, itself trapezoids."""
    scores = []
    for start, end, one in ((low, y, 0.0), (y, high, 1.0)):
        share = torch.linspace(0, 1, count, dtype=F64)
        share = share.reshape(-1, *(1,) * y.dim())
        grid = start + (end - start) * share
        below = torch.linspace(0, 1, 4 * count, dtype=F64).reshape(-1, *(1,) * y.dim())
        tail = low + (grid[0] - low) * below
        first = torch.trapezoid(law.log_prob(tail).exp(), tail, dim=0)
        density = law.log_prob(grid).exp()
        inner = torch.cumulative_trapezoid(density, grid, dim=0)
        distribution = first + torch.cat([torch.zeros_like(inner[:1]), inner])
        scores.append(torch.trapezoid((distribution - one).square(), grid, dim=0))
    return scores[0] + scores[1]


def test_crps_of_normal_laws() -> None:
    """Gneiting, Raftery, Westveld and Goldman (2005): s (z (2 Φ(z) - 1) + 2 φ(z) - 1 / √π)."""
    loc, scale = torch.tensor([0.0, 3.0], dtype=F64), torch.tensor([1.0, 0.1], dtype=F64)
    y = torch.tensor([[0.0, 3.05], [-2.5, 4.0], [40.0, -7.0]], dtype=F64)
    z = ((y - loc) / scale).numpy()
    closed = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi)
    expected = scale * torch.as_tensor(closed)
    assert_close(_normal(loc, scale).crps(y), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("activation", [Cos(), Snake(), Exp(), ReLU(), Erf()], ids=str)
def test_crps_against_trapezoids(activation: Activation) -> None:
    torch.manual_seed(9)
    base = GaussianMixture([0.0, -1.0], [0.0, 1.0], [1.0, 0.5], event_dim=0).map(Tensor.double)
    law = SNEFY(_randn(4, 1), _randn(3, 4), _randn(2, 4), activation=activation, base=base)
    y = _randn(3)
    expected = _crps_by_trapezoids(law, y, -20.0, 20.0, 20_001)
    assert_close(law.crps(y), expected, rtol=1e-6, atol=0)


def test_crps_of_long_tails() -> None:
    """Panels do not resolve the waves in tails that are longer than 512 panels."""
    torch.manual_seed(10)
    base = GaussianMixture([0.0, -2.0, -4.0], [0.0], [1.0, 16.0, 256.0], event_dim=0)
    law = SNEFY(2 * _randn(6, 1), _randn(6), _randn(2, 2, 6), base=base.map(Tensor.double))
    grid = torch.linspace(-3_072, 3_072, 614_401, dtype=F64)  # y is on it
    density = law.log_prob(grid.unsqueeze(-1)).exp()
    mass = torch.cumulative_trapezoid(density, grid, dim=0)
    distribution = torch.nn.functional.pad(mass.mT, (1, 0))  # (rows, G)
    at = torch.tensor([307_300, 330_000])
    place = torch.arange(len(grid))
    below = torch.where(place <= at[:, None], distribution, 0.0).square()
    above = torch.where(place >= at[:, None], 1 - distribution, 0.0).square()
    ends = [x.gather(-1, at[:, None]).squeeze(-1) for x in (below, above)]
    expected = 0.01 * (below.sum(-1) + above.sum(-1) - (ends[0] + ends[1]) / 2)
    assert_close(law.crps(grid[at]), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("base", [Poisson(4.0), Binomial(9, 0.4), Geometric(0.2)], ids=str)
def test_crps_of_counts_is_a_sum(base: Base) -> None:
    law = SNEFY(_randn(4, 1), _randn(3, 4), _randn(2, 4), base=base.map(Tensor.double))
    x = torch.arange(10 if isinstance(base, Binomial) else 300, dtype=F64)
    distribution = law.log_prob(x.unsqueeze(-1)).exp().cumsum(0)
    y = torch.tensor([0.0, 3.0, 8.0], dtype=F64)
    expected = (distribution - (x.unsqueeze(-1) >= y).double()).square().sum(0)
    assert_close(law.crps(y), expected, rtol=1e-10, atol=0)


def test_crps_beside_an_atom() -> None:
    """Half an atom at zero, half a standard normal law."""
    base = Mixture([0.0, 0.0], [PointMass(0.0), NORMAL]).map(Tensor.double)
    law = SNEFY(torch.zeros(1, 1, dtype=F64), None, torch.ones(1, 1, dtype=F64), base=base)
    grid = torch.linspace(-15, 15, 600_001, dtype=F64)
    distribution = 0.5 * torch.special.ndtr(grid) + 0.5 * (grid >= 0)
    expected = torch.trapezoid((distribution - (grid >= 0.7).double()).square(), grid)
    assert law.crps(torch.tensor(0.7, dtype=F64)).item() == pytest.approx(expected.item(), abs=1e-4)


def test_crps_of_marginals_and_cubes() -> None:
    joint = SNEFY(_randn(4, 2), _randn(4), _randn(2, 4), activation=ReLU())
    marginal, y = joint.marginal([0]), torch.tensor([0.4], dtype=F64)
    grid = torch.linspace(-12, 12, 4_001, dtype=F64).unsqueeze(-1)
    jump = (grid.squeeze(-1) >= 0.4).double()
    expected = torch.trapezoid((marginal.cdf(grid) - jump).square(), dx=24 / 4_000)
    assert marginal.crps(y).item() == pytest.approx(expected.item(), abs=5e-3)
    uniform = SNEFY(0 * _randn(1, 1), None, torch.ones(1, 1, dtype=F64), base=UniformCube(1))
    assert uniform.crps(y).item() == pytest.approx((0.4**3 + 0.6**3) / 3, rel=1e-9)


def test_crps_has_gradients() -> None:
    torch.manual_seed(11)
    weight, bias, readout = _randn(3, 1), _randn(2, 3), _randn(2, 2, 3)
    loc, y = _randn(2), _randn(2)

    def score(*tensors: Tensor) -> Tensor:
        weight, bias, readout, loc, y = tensors
        base = Standardized(NORMAL.map(Tensor.double), loc, loc.new_full((2,), 0.7))
        return SNEFY(weight, bias, readout, base=base).crps(y)

    given = tuple(x.requires_grad_() for x in (weight, bias, readout, loc, y))
    assert torch.autograd.gradcheck(score, given)


def test_crps_needs_a_mean() -> None:
    base = StudentT(1.0, 0.0, 1.0, event_dim=0)
    law = SNEFY(torch.randn(3, 1), torch.randn(3), torch.randn(1, 3), base=base)
    with pytest.raises(ValueError, match="the CRPS"):
        law.crps(torch.tensor(0.0))


def test_log_cdf_has_digits() -> None:
    x = torch.tensor([-11.0, -5.0, 0.0, 3.0])
    found = _normal(torch.tensor(0.0), torch.tensor(1.0)).log_cdf(x)
    assert found.dtype == torch.float32
    assert_close(found.double(), torch.as_tensor(stats.norm.logcdf(x)), rtol=1e-6, atol=1e-9)
    marginal = SNEFY(_randn(4, 2), _randn(4), _randn(2, 4), activation=ReLU()).marginal([0])
    x = _randn(3, 1)
    assert_close(marginal.log_cdf(x), marginal.cdf(x).log())


def test_entropy_says_what_to_do() -> None:
    """The hint works: on a normal law, to six standard errors (false alarms: 2e-9)."""
    d = _normal(torch.tensor(0.0), torch.tensor(2.0))
    joint = SNEFY(_randn(4, 2), _randn(4), _randn(2, 4), activation=ReLU())
    for law in (d, joint.marginal([0])):
        with pytest.raises(NotImplementedError, match=r"log_prob\(d.sample"):
            law.entropy()
    draws = -d.log_prob(d.sample((10_000,)))
    expected = stats.norm(scale=2.0).entropy()
    assert abs(draws.mean(0).item() - expected) < 6 * draws.std().item() / 100


def test_affine_transforms_of_a_law() -> None:
    law = _normal(torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64))
    moved = TransformedDistribution(law, [AffineTransform(1.0, -2.0)])
    y = torch.tensor([-1.0, 0.5, 4.0], dtype=F64)
    assert_close(moved.cdf(y), torch.as_tensor(stats.norm(1.0, 2.0).cdf(y)))
    q = torch.tensor([0.1, 0.5, 0.8], dtype=F64)
    assert_close(moved.icdf(q), torch.as_tensor(stats.norm(1.0, 2.0).ppf(q)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("base", [UniformSphere(3), DirichletFamily(3), UniformCube(2)], ids=str)
def test_hints_of_coordinates_lead_somewhere(base: Base) -> None:
    activation = Exp()
    weight, readout = torch.rand(4, base.num_statistics), torch.randn(1, 4)
    law = SNEFY(weight, torch.zeros(4), readout, activation=activation, base=base)
    with pytest.raises(NotImplementedError) as error:
        law.cdf(law.sample())
    found = re.search(r"k in \[(.*)\]", str(error.value))
    if found is None:
        assert "has no marginal laws" in str(error.value)
        with pytest.raises(NotImplementedError):
            law.marginal([0]).log_prob(torch.tensor([0.5]))
    for k in map(int, found.group(1).split(",") if found else ()):
        assert law.marginal([k]).icdf(0.5).shape == (1,)


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*(_subclasses(below) for below in kind.__subclasses__()))


@pytest.mark.parametrize("bias", [False, True])
def test_refused_pairs_list_bases_that_work(bias: bool) -> None:
    """Every class that an error names is public, and has a closed form with the activation."""
    refused = 0
    abstract = {"Base", "FourierBase", "LaplaceBase", "Pushforward"}
    ours = {kind.__name__ for kind in _subclasses(Base) if kind.__module__.startswith("pyro_snefy")}
    hidden = (ours - set(bases.__all__)) | abstract
    for (activation, _), case in itertools.product(ACTIVATIONS.values(), CASE_BASES.values()):
        if closed_form(activation, case.build(), bias):
            continue
        with pytest.raises(NotImplementedError) as error:
            check_closed_form(activation, case.build(), bias)
        found = re.search(r"Bases with one for \w+: ([\w, ]+)\.", str(error.value))
        if found is None:
            assert "pass bias=None" in str(error.value)
            continue
        refused += 1
        names = found.group(1).split(", ")
        built = {type(other.build()).__name__: other.build() for other in CASE_BASES.values()}
        for name in names:
            assert name not in hidden
            # A composition has a closed form where its parts have one.
            if name in built and name not in ("Mixture", "Product"):
                assert closed_form(activation, built[name], bias)
    assert refused > 20
