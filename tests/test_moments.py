"""Means and covariances against quadrature and sums."""

import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from pyro_snefy import SNEFY, bases
from pyro_snefy.activations import (
    GELU,
    Cis,
    Cos,
    Erf,
    Exp,
    GaussianActivation,
    Identity,
    LeakyReLU,
    ReLU,
    Sin,
    Snake,
    Step,
)
from pyro_snefy.bases import Base
from pyro_snefy.kernels import closed_form
from tests.cases import BASES, CASES, LOC, LOGITS, SCALE, TRIL, Case
from tests.densities import LOG_DENSITIES, RULES, Array, Rule, grid, join, legendre, statistic

# Here every activation has moments ...
EVERY = ("Gaussian", "GaussianScalar", "GaussianFull", "GaussianMixture", "Discrete")
EVERY += ("DiscreteScalar", "MixtureAtom")
# ... here no bend has, because the event is not the statistic ...
UNBENT = ("UniformCube",)
# ... and here none has.
NONE = ("UniformAngle",)
KINKED = ("Step", "ReLU", "ReLU2", "ReLU3", "LeakyReLU")


def _has_moments(case: Case) -> bool:
    bent = isinstance(case.activation, GaussianActivation)
    return case.base_name not in NONE and not (bent and case.base_name in UNBENT)


def _split(kinks: Array) -> Rule:
    # Quadrature is accurate between kinks, and only there.
    ends = np.concatenate([[-12.0], np.sort(kinks[abs(kinks) < 12]), [12.0]])
    rules = [legendre(a, b, panels=25) for a, b in pairwise(ends)]
    return join(*rules)


def _kinked(case: Case) -> tuple[Tensor, Tensor, Rule]:
    """Weights along the axes, biases, and a rule with all kinks at the ends of panels."""
    _, bias, _ = case.parameters(n=3)
    assert bias is not None
    if case.base().event_dim == 0:
        weight = torch.tensor([[0.9], [-1.4], [0.5]], dtype=torch.float64)
        rule = _split((-bias / weight[:, 0]).numpy())
        if case.base_name == "MixtureAtom":
            rule = join(rule, (np.array([0.5]), np.ones(1)))
        return weight, bias, rule
    weight = torch.tensor([[0.9, 0.0], [0.0, -1.4], [0.5, 0.0]], dtype=torch.float64)
    kinks = (-bias / weight.sum(-1)).numpy()
    return weight, bias, grid(_split(kinks[[0, 2]]), _split(kinks[[1]]))


def _integrate(
    case: Case, weight: Tensor, bias: Tensor | None, readout: Tensor, rule: Rule
) -> tuple[Array, Array]:
    points, weights = rule
    z = statistic(case.base_name, points) @ weight.numpy().T
    z = z if bias is None else z + bias.numpy()
    square = (abs(case.oracle_activation.value(z) @ readout.numpy().T) ** 2).sum(-1)
    mass = weights * np.exp(LOG_DENSITIES[case.base_name](points)) * square
    x = points.reshape(len(points), -1)
    mean = mass @ x / mass.sum()
    return mean, (mass * (x - mean).T) @ (x - mean) / mass.sum()


def _compare(d: SNEFY, mean: Array, covariance: Array) -> None:
    shape = d.event_shape
    np.testing.assert_allclose(d.mean.numpy(), mean.reshape(shape), rtol=1e-7, atol=1e-8)
    variance = np.diag(covariance).reshape(shape)
    np.testing.assert_allclose(d.variance.numpy(), variance, rtol=1e-7, atol=1e-8)
    if shape:
        np.testing.assert_allclose(d.covariance_matrix.numpy(), covariance, rtol=1e-7, atol=1e-8)
    else:
        with pytest.raises(NotImplementedError, match="variance"):
            d.covariance_matrix  # noqa: B018


# These have tests of their own, below: a rule has to end where neurons have kinks.
BENT = ("Interval", "Intervals", "UniformCircle", "UniformSphere", "UniformSphere7")
COMPARED = [
    case
    for case in CASES
    if _has_moments(case)
    and case.base_name in RULES
    and case.base_name != "ProjectedGaussian"
    and not (case.activation_name in KINKED and case.base_name in BENT)
]


@pytest.mark.parametrize("case", COMPARED, ids=str)
def test_moments(case: Case) -> None:
    weight, bias, readout = case.parameters(n=3, scale=0.5)
    if case.activation_name in KINKED and not case.base().is_discrete:
        weight, bias, rule = _kinked(case)
    else:
        rule = RULES[case.base_name][1]()
    if case.base_name == "DirichletFamily":
        weight = weight.abs()  # no poles on the boundary
    d = SNEFY(weight, bias, readout, activation=case.activation, base=case.base())
    _compare(d, *_integrate(case, weight, bias, readout, rule))


@pytest.mark.parametrize("activation", KINKED)
def test_bends_on_intervals(activation: str) -> None:
    case = Case(activation, "Intervals")
    weight, bias, readout = case.parameters(n=3)
    assert bias is not None
    d = SNEFY(weight, bias, readout, activation=case.activation, base=case.base())
    kinks = (-bias / weight[:, 0]).numpy()
    rules = []
    for low, high in ((-1.0, 1.0), (2.0, 2.5)):
        inner = np.sort(kinks[(kinks > low) & (kinks < high)])
        rules += [legendre(a, b) for a, b in pairwise([low, *inner, high])]
    x, weights = join(*rules)
    density = weights * d.log_prob(torch.from_numpy(x)).exp().numpy()
    mean = density @ x
    assert float(d.mean) == pytest.approx(mean, rel=1e-9)
    assert float(d.variance) == pytest.approx(density @ (x - mean) ** 2, rel=1e-9)


@pytest.mark.parametrize("activation", KINKED)
def test_bends_on_the_circle(activation: str) -> None:
    case = Case(activation, "UniformCircle")
    weight, bias, readout = case.parameters(n=3)
    d = SNEFY(weight, bias, readout, activation=case.activation, base=case.base())
    edge = np.arctan2(-weight[:, 0].numpy(), weight[:, 1].numpy()) % np.pi
    angles = np.sort(np.concatenate([[0.0], edge, edge + np.pi, [2 * np.pi]]))
    angle, weights = join(*(legendre(a, b) for a, b in pairwise(angles)))
    x = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    density = weights * d.log_prob(torch.from_numpy(x)).exp().numpy()
    mean = density @ x
    np.testing.assert_allclose(d.mean.numpy(), mean, rtol=1e-9, atol=1e-12)
    covariance = (x - mean).T @ (density[:, None] * (x - mean))
    np.testing.assert_allclose(d.covariance_matrix.numpy(), covariance, rtol=1e-9, atol=1e-12)


RADIAL = ["Cos", "Snake", "Identity", "Exp", "ReLU", "ReLU3", "Step", "LeakyReLU"]


@pytest.mark.parametrize("activation", RADIAL)
@pytest.mark.parametrize("base", ["ProjectedGaussian", "UniformSphere7"])
def test_radial_moments_by_monte_carlo(activation: str, base: str) -> None:
    """Means and second moments of 200,000 weighted draws of the base, to five standard errors.

    6e-7 is the rate of false alarms of one number. An error of 0.011 standard deviations of the
    weighted terms is seen half of the time.
    """
    case = Case(activation, base)
    weight, bias, readout = case.parameters(n=3, scale=0.7)
    d = SNEFY(weight, bias, readout, activation=case.activation, base=case.base())
    x = torch.randn(200_000, *d.event_shape, dtype=torch.float64)
    if base == "UniformSphere7":
        x = x / x.norm(dim=-1, keepdim=True)
    ratio = (d.log_prob(x) - d.base.log_density(x)).exp().unsqueeze(-1)  # of mean one
    second = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)
    expected = d.covariance_matrix + d.mean.unsqueeze(-1) * d.mean.unsqueeze(-2)
    for values, exact in ((x, d.mean), (second, expected.flatten())):
        error = (ratio * (values - exact)).std(0) / len(x) ** 0.5
        assert ((ratio * (values - exact)).mean(0).abs() < 5 * error).all()


@pytest.mark.parametrize("d", [2, 3, 7, 12])
def test_von_mises_fisher(d: int) -> None:
    """One exponential neuron on a sphere of any dimension: an integral over heights."""
    weight = torch.randn(1, d, dtype=torch.float64)
    model = SNEFY(
        weight, None, torch.ones(1, 1).double(), activation=Exp(), base=bases.UniformSphere(d)
    )
    kappa = 2 * float(weight.norm())
    angle, weights = legendre(0.0, np.pi)
    mass = weights * np.exp(kappa * np.cos(angle)) * np.sin(angle) ** (d - 2)
    first, second = (mass @ np.cos(angle) ** k / mass.sum() for k in (1, 2))
    unit = 2 * weight[0].numpy() / kappa
    along = np.outer(unit, unit)
    across = (1 - second) / (d - 1) * (np.eye(d) - along)
    _compare(model, first * unit, (second - first**2) * along + across)


@pytest.mark.parametrize("activation", [Cos(), Sin(), Exp()], ids=str)
def test_sphere_in_seven_dimensions(activation: Any) -> None:
    """Neurons that see two coordinates only, whose law has a density in the disc."""
    weight = torch.zeros(2, 7, dtype=torch.float64)
    weight[:, :2] = torch.randn(2, 2)
    bias, readout = torch.randn(2, dtype=torch.float64), torch.randn(1, 2, dtype=torch.float64)
    d = SNEFY(weight, bias, readout, activation=activation, base=bases.UniformSphere(7))
    polar, weights = grid(legendre(0.0, 1.0, 20), legendre(0.0, 2 * np.pi, 20))
    radius, angle = polar.T
    x = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    neurons = activation(torch.as_tensor(x) @ weight[:, :2].T + bias) @ readout[0]
    mass = weights * radius * (1 - radius**2) ** 1.5 * neurons.numpy() ** 2
    mass /= mass.sum()
    mean = np.zeros(7)
    mean[:2] = mass @ x
    covariance = np.diag(np.full(7, mass @ (1 - radius**2) / 5))
    covariance[:2, :2] = (mass * (x - mean[:2]).T) @ (x - mean[:2])
    _compare(d, mean, covariance)


# ------------------------------------------------------------------------ compositions of bases


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_mixture_inside_a_product() -> None:
    """Moments of independent parts of an exponential model are their own."""
    atom = bases.PointMass(_scalar(0.5))
    normal = bases.Gaussian(LOC[0], SCALE[0], event_dim=0)
    parts: list[Base] = [
        bases.Mixture(LOGITS[:2], [normal, atom]),
        bases.Mixture(LOGITS[1:], [bases.GammaFamily(), bases.GammaFamily()]),
        bases.Gaussian(LOC, scale_tril=TRIL),
    ]
    weight = torch.tensor([[0.4, 0.7, 1.2, 0.3, -0.2]], dtype=torch.float64)
    readout = torch.ones(1, 1, dtype=torch.float64)
    d = SNEFY(weight, None, readout, activation=Exp(), base=bases.Product(parts))
    pieces = weight.split([1, 2, 2], dim=-1)
    alone = [
        SNEFY(w, None, readout, activation=Exp(), base=base)
        for w, base in zip(pieces, parts, strict=True)
    ]
    mean = torch.cat([torch.atleast_1d(part.mean) for part in alone])
    torch.testing.assert_close(d.mean, mean)
    variance = torch.cat([torch.atleast_1d(part.variance) for part in alone])
    torch.testing.assert_close(d.variance, variance)
    assert d.covariance_matrix[0, 1:].abs().max() < 1e-12


def test_standardized() -> None:
    loc, scale = torch.tensor([3.0, -1.0]).double(), torch.tensor([2.0, 0.5]).double()
    weight, bias, readout = (torch.randn(*shape).double() for shape in ((3, 2), (3,), (1, 3)))
    base = bases.Gaussian(LOC, scale_tril=TRIL)
    for activation in (Cos(), Snake(), ReLU()):
        plain = SNEFY(weight, bias, readout, activation=activation, base=base)
        moved = bases.Standardized(base, loc, scale)
        d = SNEFY(weight, bias, readout, activation=activation, base=moved)
        torch.testing.assert_close(d.mean, loc + scale * plain.mean)
        covariance = torch.diag(scale) @ plain.covariance_matrix @ torch.diag(scale)
        torch.testing.assert_close(d.covariance_matrix, covariance)


# ----------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("activation", "name"),
    [
        (Cos(), "Gaussian"),
        (ReLU(), "GaussianFull"),
        (GELU(), "GaussianMixture"),
        (Exp(), "GammaFamily"),
        (Exp(), "UniformSphere"),
        (Cis(), "UniformBox"),
        (Sin(), "Poisson"),
        (Erf(), "Discrete"),
        (Identity(), "GaussianScalar"),
        (ReLU(), "MixtureAtom"),
        (Cos(), "Product"),
        (Exp(), "Product"),
        (Snake(), "Product"),
        (Identity(), "UniformCube"),
        (Exp(), "UniformCube"),
        (Exp(), "Intervals"),
    ],
    ids=str,
)
def test_batch(activation: Any, name: str) -> None:
    """Rows of a batch are what they are alone, and stay so when it is expanded."""
    base = BASES[name].build()
    weight = BASES[name].natural(torch.randn(2, 1, 3, base.num_statistics).double() / 2)
    bias, readout = torch.randn(4, 3).double(), torch.randn(2, 3).double()
    d = SNEFY(weight, bias, readout, activation=activation, base=base)
    row = SNEFY(weight[1, 0], bias[2], readout, activation=activation, base=base)
    e = d.expand((5, 2, 4))
    assert d.mean.shape == d.variance.shape == (2, 4, *d.event_shape)
    assert e.mean.shape == e.variance.shape == (5, 2, 4, *d.event_shape)
    torch.testing.assert_close(e.mean[3, 1, 2], row.mean)
    torch.testing.assert_close(e.variance[3, 1, 2], row.variance)
    if d.event_shape:
        assert d.covariance_matrix.shape == (2, 4, *d.event_shape * 2)
        assert e.covariance_matrix.shape == (5, 2, 4, *d.event_shape * 2)
        torch.testing.assert_close(e.covariance_matrix[3, 1, 2], row.covariance_matrix)


@pytest.mark.parametrize("activation", [Cos(), Snake(), Exp(), ReLU(), Erf()], ids=str)
def test_batch_of_readouts_and_bases(activation: Any) -> None:
    loc, scale = torch.randn(4, 2).double(), torch.rand(4, 2).double() + 0.5
    weight, readout = torch.randn(3, 2).double(), torch.randn(5, 1, 2, 3).double()
    d = SNEFY(weight, None, readout, activation=activation, base=bases.Gaussian(loc, scale))
    base = bases.Gaussian(loc[2], scale[2])
    row = SNEFY(weight, None, readout[3, 0], activation=activation, base=base)
    assert d.mean.shape == (5, 4, 2)
    torch.testing.assert_close(d.mean[3, 2], row.mean)
    torch.testing.assert_close(d.covariance_matrix[3, 2], row.covariance_matrix)


def test_single_precision() -> None:
    d = SNEFY(torch.randn(3, 2), torch.randn(3), torch.randn(1, 3), activation=Exp())
    assert d.mean.dtype == d.variance.dtype == d.covariance_matrix.dtype == torch.float32


# ------------------------------------------------------------------------------ no closed form


@pytest.mark.parametrize("case", [case for case in CASES if not _has_moments(case)], ids=str)
def test_no_closed_form(case: Case) -> None:
    d = case.distribution(n=2)
    for name in ("mean", "variance"):
        with pytest.raises(NotImplementedError) as error:
            getattr(d, name)
        assert type(case.activation).__name__ in str(error.value)
        # of a composition, the part that lacks it
        parts = [case.base(), *case.base().parts(), *getattr(case.base(), "bases", ())]
        assert any(type(part).__name__ in str(error.value) for part in parts)


def test_no_closed_form_in_a_product() -> None:
    """The moments of a statistic are not those of the event, however deep it is hidden."""
    base = bases.Product([bases.ProjectedGaussian(2), bases.Poisson(torch.tensor(2.0))])
    assert closed_form(Exp(), base, bias=True)
    d = SNEFY(torch.randn(2, 3), None, torch.ones(1, 2), activation=Exp(), base=base)
    with pytest.raises(NotImplementedError, match=r"Exp.*Product"):
        d.mean  # noqa: B018


# ------------------------------------------------------------------------ independent factors


def _cube(panels: int) -> Rule:
    # Points x of (0, 1) with a normal t, which is cut at ±9.
    t, weights = legendre(-9.0, 9.0, panels)
    return special.ndtr(t), weights * stats.norm.pdf(t)


def _hidden() -> dict[str, tuple[Base, Rule]]:
    """Products with factors whose event is not their statistic, and rules for them."""
    counts = np.arange(40.0), stats.poisson.pmf(np.arange(40.0), 2.0)
    t, weights = legendre(-9.0, 9.0, 20)
    normal = t, weights * stats.norm.pdf(t)
    poisson = bases.Poisson(_scalar(2.0))
    moved = bases.Standardized(
        bases.Gaussian(_scalar(0.0), _scalar(1.0), event_dim=0), _scalar(1.0), _scalar(0.5)
    )
    # Polar coordinates of the plane: the statistic of a projected law is the angle.
    radius, share = legendre(0.0, 9.0, 10)
    angle = 2 * np.pi * np.arange(60) / 60
    rings = radius, share * radius * np.exp(-(radius**2) / 2)
    triples, mass = grid(rings, (angle, np.full(60, 1 / 60)), counts)
    radius, angle, count = triples.T
    points = np.column_stack([radius * np.cos(angle), radius * np.sin(angle), count])
    return {
        "cube": (bases.Product([bases.UniformCube(1), poisson]), grid(_cube(20), counts)),
        "moved": (bases.Product([poisson, moved]), grid(counts, (1 + 0.5 * t, normal[1]))),
        "projected": (bases.Product([bases.ProjectedGaussian(2), poisson]), (points, mass)),
    }


@pytest.mark.parametrize("activation", [Cos(), Cis(), Snake(0.8), Identity()], ids=str)
@pytest.mark.parametrize("name", _hidden())
def test_events_that_are_no_statistics(name: str, activation: Any) -> None:
    base, (points, mass) = _hidden()[name]
    weight, bias = torch.randn(3, base.num_statistics).double(), torch.randn(3).double()
    readout = torch.randn(2, 3).double()
    d = SNEFY(weight, bias, readout, activation=activation, base=base)
    x = torch.as_tensor(points)
    mass = mass * (d.log_prob(x) - base.log_density(x)).exp().numpy()
    assert mass.sum() == pytest.approx(1.0, abs=1e-9)
    mean = mass @ points / mass.sum()
    covariance = (mass * (points - mean).T) @ (points - mean) / mass.sum()
    np.testing.assert_allclose(d.mean.numpy(), mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(d.covariance_matrix.numpy(), covariance, rtol=1e-8, atol=1e-8)


def test_exponentials_on_a_cube_in_a_product() -> None:
    base, (points, mass) = _hidden()["cube"]
    weight, readout = 0.5 * torch.randn(3, 2).double(), torch.randn(2, 3).double()
    d = SNEFY(weight, None, readout, activation=Exp(), base=base)
    x = torch.as_tensor(points)
    mass = mass * (d.log_prob(x) - base.log_density(x)).exp().numpy()
    mean = mass @ points
    covariance = (mass * (points - mean).T) @ (points - mean)
    np.testing.assert_allclose(d.mean.numpy(), mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(d.covariance_matrix.numpy(), covariance, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("activation", [Snake(1.0), Identity()], ids=str)
@pytest.mark.parametrize(
    "base",
    [
        bases.UniformBox(torch.zeros(7).double(), torch.ones(7).double()),
        bases.UniformCube(7),
        bases.Product([bases.Poisson(_scalar(2.0))] * 7),
    ],
    ids=str,
)
def test_many_dimensions(base: Base, activation: Any) -> None:
    """Neurons that see two of seven coordinates: the others keep the moments of the base."""
    weight = torch.zeros(3, 7).double()
    weight[:, [2, 5]] = torch.randn(3, 2).double()
    bias, readout = torch.randn(3).double(), torch.randn(2, 3).double()
    d = SNEFY(weight, bias, readout, activation=activation, base=base)
    pair = base.marginal([2, 5])
    two = SNEFY(weight[:, [2, 5]], bias, readout, activation=activation, base=pair)
    plain = SNEFY(torch.zeros(1, 7).double(), None, torch.ones(1, 1).double(), base=base)
    mean, covariance = plain.mean.clone(), plain.covariance_matrix.clone()
    mean[[2, 5]] = two.mean
    covariance[[[2], [5]], [2, 5]] = two.covariance_matrix
    torch.testing.assert_close(d.mean, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(d.covariance_matrix, covariance, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------------------- gradients


def test_no_gradient_without_need() -> None:
    for name in EVERY:
        d = Case("Cos", name).distribution()
        assert not d.mean.requires_grad
        assert not d.variance.requires_grad
    weight = torch.randn(3, 2, requires_grad=True)
    d = SNEFY(weight, None, torch.randn(1, 3))
    assert d.mean.requires_grad
    with torch.no_grad():
        assert not d.mean.requires_grad


@pytest.mark.parametrize("name", ["Gaussian", "GaussianFull", "GaussianMixture", "UniformBox"])
@pytest.mark.parametrize("activation", [Cos(), Sin(), Exp()], ids=str)
def test_gradient_of_the_mean(activation: Any, name: str) -> None:
    base = BASES[name].build()
    inputs = tuple(
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 2), (2,), (1, 2))
    )

    def moments(weight: Tensor, bias: Tensor, readout: Tensor) -> tuple[Tensor, Tensor]:
        d = SNEFY(weight, bias, readout, activation=activation, base=base)
        return d.mean, d.covariance_matrix

    assert torch.autograd.gradcheck(moments, inputs, fast_mode=True)


@pytest.mark.parametrize("activation", [Snake(), Identity(), Cis()], ids=str)
def test_gradient_of_the_mean_of_separable_kernels(activation: Any) -> None:
    weight = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    readout = torch.randn(2, 3, dtype=torch.float64)

    def mean(weight: Tensor) -> Tensor:
        return SNEFY(weight, None, readout, activation=activation).mean

    assert torch.autograd.gradcheck(mean, (weight,), fast_mode=True)


@pytest.mark.parametrize("name", ["UniformSphere", "Gaussian"])
def test_gradients_of_steps_with_opposite_weights(name: str) -> None:
    """Their product is zero everywhere, and the gradient of its mean is not.

    The normaliser has a kink here, with opposite slopes on its sides: symmetric differences have
    errors of their length.
    """
    zeros = torch.zeros(3, dtype=torch.float64)
    normal = bases.Gaussian(zeros, zeros + 1)
    base = normal if name == "Gaussian" else bases.UniformSphere(3)
    axis = torch.tensor([0.9, -0.4, 0.3], dtype=torch.float64)
    readout = torch.tensor([[0.8, -1.3]], dtype=torch.float64)

    def moments(weight: Tensor) -> Tensor:
        d = SNEFY(weight, None, readout, activation=Step(), base=base)
        return torch.cat([d.mean, d.variance])

    weight, step = torch.stack([axis, -2 * axis]), 1e-5
    found = torch.autograd.functional.jacobian(moments, weight)
    for index in np.ndindex(2, 3):
        change = torch.zeros_like(weight)
        change[index] = step
        slope = (moments(weight + change) - moments(weight - change)) / (2 * step)
        torch.testing.assert_close(found[(slice(None), *index)], slope, rtol=0, atol=1e-4)


@pytest.mark.parametrize("activation", [Step(), ReLU(), ReLU(2), LeakyReLU(0.1)], ids=str)
@pytest.mark.parametrize("factor", [1.0, -2.0])
def test_gradients_with_parallel_weights(activation: Any, factor: float) -> None:
    """Correlations of one and minus one, against differences."""
    weight = torch.tensor([[0.9, -0.4], [0.3, 0.7]], dtype=torch.float64)
    weight = torch.cat([weight, factor * weight[:1]]).requires_grad_()
    bias = torch.tensor([0.3, -0.5, 0.9], dtype=torch.float64, requires_grad=True)
    readout = torch.tensor([[0.8, -1.3, 0.5]], dtype=torch.float64, requires_grad=True)

    def moments(weight: Tensor, bias: Tensor, readout: Tensor) -> tuple[Tensor, Tensor]:
        d = SNEFY(weight, bias, readout, activation=activation)
        return d.mean, d.variance

    assert torch.autograd.gradcheck(moments, (weight, bias, readout))


# ------------------------------------------------------------------- parts without mass, and size


def _zero_inflated(activation: Any, atom: float, **gradient: bool) -> SNEFY:
    loc, scale, point, logits = (
        torch.tensor(x, dtype=torch.float64) for x in (0.4, 1.3, atom, [0.3, -0.2])
    )
    base = bases.Mixture(logits, [bases.Gaussian(loc, scale, event_dim=0), bases.PointMass(point)])
    weight = torch.tensor([[0.9], [-1.7]], dtype=torch.float64, **gradient)
    readout = torch.tensor([[1.1, 0.6]], dtype=torch.float64)
    return SNEFY(weight, None, readout, activation=activation, base=base)


@pytest.mark.parametrize("activation", [Sin(), Identity(), ReLU(), Step(), Erf()], ids=str)
def test_a_part_without_mass(activation: Any) -> None:
    """Neurons that vanish at the atom: its moments have no meaning, and count for nothing."""
    d = _zero_inflated(activation, 0.0, requires_grad=True)
    x, weights = join(legendre(-12.0, 0.0, panels=50), legendre(0.0, 12.4, panels=50))
    neurons = d.activation(torch.from_numpy(x)[:, None] * d.weight[:, 0].detach())
    square = (neurons @ torch.tensor([[1.1], [0.6]], dtype=torch.float64)).square()[:, 0].numpy()
    mass = weights * square * np.exp(-((x - 0.4) ** 2) / (2 * 1.3**2))
    mean = mass @ x / mass.sum()
    assert d.mean.item() == pytest.approx(mean, rel=1e-9, abs=1e-12)
    assert d.variance.item() == pytest.approx(mass @ (x - mean) ** 2 / mass.sum(), rel=1e-9)
    (gradient,) = torch.autograd.grad(d.mean + d.variance, d.weight)
    assert gradient.isfinite().all()


def test_moments_of_nothing() -> None:
    point = bases.Discrete(torch.zeros(1), torch.ones(1))
    readout = torch.ones(1, 2)
    d = SNEFY(torch.ones(2, 1), None, readout, activation=Sin(), base=point, validate_args=False)
    assert d.mean.isnan()
    assert d.variance.isnan()


@pytest.mark.parametrize("activation", [Cos(), Sin(), Cis()], ids=str)
def test_waves_on_a_sphere_of_many_dimensions(activation: Any) -> None:
    """Weights along one axis: the cosine to it has the density (1 - t^2)^((d - 3) / 2)."""
    d, axis = 100, 7
    weight, bias = torch.zeros(2, d, dtype=torch.float64), torch.tensor([0.4, -1.1]).double()
    weight[:, axis] = torch.tensor([9.0, -14.0])
    readout = torch.tensor([[0.8, 1.3]], dtype=torch.float64)
    law = SNEFY(weight, bias, readout, activation=activation, base=bases.UniformSphere(d))
    t, weights = legendre(-1.0, 1.0, panels=50)
    neurons = activation(torch.from_numpy(t)[:, None] * weight[:, axis] + bias)
    square = (neurons @ readout.to(neurons.dtype).mT).abs().square()[:, 0].numpy()
    mass = weights * square * (1 - t**2) ** ((d - 3) / 2)
    mean, second = mass @ t / mass.sum(), mass @ t**2 / mass.sum()
    expected = torch.zeros(d, dtype=torch.float64)
    expected[axis] = mean
    torch.testing.assert_close(law.mean, expected, rtol=1e-10, atol=1e-12)
    across = torch.full((d,), (1 - second) / (d - 1), dtype=torch.float64)
    across[axis] = second - mean**2
    torch.testing.assert_close(law.covariance_matrix, across.diag(), rtol=1e-10, atol=1e-12)


def test_the_mean_of_many_pairs_is_cheap() -> None:
    """One derivative of a sum over pairs, and no matrix for each pair."""
    weight, readout = torch.randn(40, 100), torch.randn(1, 40, dtype=torch.complex64)
    d = SNEFY(weight, None, readout, activation=Cis(), base=bases.UniformSphere(100))
    start = time.process_time()
    assert d.mean.isfinite().all()
    assert time.process_time() - start < 4
