"""What bases do with their tensors, and draws of what samplers are made of."""

import pytest
import torch
from scipy import stats
from torch import Size, Tensor
from torch.testing import assert_close

from pyro_snefy import SNEFY, bases
from pyro_snefy.activations import Activation, Cos, Exp, Identity, ReLU, Snake
from pyro_snefy.bases import (
    Base,
    FourierBase,
    Gaussian,
    LaplaceBase,
    Pushforward,
    Standardized,
    StudentT,
)
from tests.cases import BASES

F64 = torch.float64


def _standardized() -> Base:
    inner = Gaussian(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64))
    return Standardized(inner, torch.ones(2, dtype=F64), 2 * torch.ones(2, dtype=F64))


BUILDERS = {name: case.build for name, case in BASES.items()} | {"Standardized": _standardized}
EVERY = pytest.mark.parametrize("name", BUILDERS)


@EVERY
def test_map_follows_the_order_of_tensors(name: str) -> None:
    base = BUILDERS[name]()
    seen: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        seen.append(x)
        return x

    base.map(note)
    assert [id(x) for x in seen] == [id(x) for _, x in base.tensors()]


@EVERY
def test_flatten_and_members(name: str) -> None:
    base = BUILDERS[name]()
    batch = Size((2, 3))
    many = base.map_batches(lambda x, rank: x.expand(batch + x.shape[x.dim() - rank :]))
    flat = many.flatten(batch)
    index = torch.tensor([4, 0, 4, 5])
    some = flat.members(index)
    for (_, before), (_, after) in zip(base.tensors(), some.tensors(), strict=True):
        assert_close(after, before.expand(after.shape))
    if any(True for _, _ in base.tensors()):
        assert some.batch_shape == (4,)
    assert base.flatten(batch).members(index).batch_shape == base.batch_shape


# Latent bases, through which a statistic is known ------------------------------------------------


def _scalar() -> Gaussian:
    return Gaussian(torch.tensor(0.3, dtype=F64), torch.tensor(1.2, dtype=F64), event_dim=0)


def _moved(loc: Tensor) -> Base:
    return Standardized(_scalar(), loc, torch.tensor(2.0, dtype=F64))


@EVERY
def test_events_are_mapped_to_those_of_the_latent_base(name: str) -> None:
    base = BUILDERS[name]()
    like = torch.zeros((), dtype=F64)
    assert base.latent(like) is base or isinstance(base, Pushforward)
    x = base.example(like).expand(base.event_shape)
    if name != "ProjectedGaussian":  # the radius is not a function of the direction
        assert_close(base.event(base.to_latent(x)), x)
        assert_close(base.latent(like).statistic(base.to_latent(x)), base.statistic(x))


def test_latent_base_of_a_product() -> None:
    """Factor by factor, with the batch dimensions of all factors."""
    loc = torch.tensor([1.0, -1.0], dtype=F64)
    poisson = bases.Poisson(torch.tensor(2.0, dtype=F64))
    product = bases.Product([bases.UniformCube(2), poisson, _moved(loc)])
    latent = product.latent(loc)
    assert isinstance(latent, bases.Product)
    assert [type(base) for base in latent.bases] == [Gaussian, bases.Poisson, Gaussian]
    assert latent.latent(loc) is latent
    assert [type(part) for part in product.parts()] == [bases.Product] + [
        type(base) for base in latent.bases
    ]
    x = torch.tensor([0.2, 0.7, 3.0, 0.5], dtype=F64)
    z = product.to_latent(x)
    assert z.shape == (2, 4)
    assert_close(product.event(z), x.expand(2, 4))
    assert_close(latent.statistic(z), product.statistic(x))


@pytest.mark.parametrize("base", [bases.UniformCube(1), bases.ProjectedGaussian(2)], ids=str)
def test_mixtures_have_one_statistic(base: Base) -> None:
    with pytest.raises(ValueError, match=f"one statistic.*got.*{type(base).__name__}"):
        bases.Mixture(torch.zeros(1), [base])


@pytest.mark.parametrize("base", [bases.GammaFamily(), bases.DirichletFamily(2)], ids=str)
def test_statistic_of_a_mixture(base: Base) -> None:
    x = base.example(torch.zeros(()))
    assert_close(bases.Mixture(torch.zeros(2), [base, base]).statistic(x), base.statistic(x))


@pytest.mark.parametrize(
    "parts",
    [
        [bases.DirichletFamily(3), bases.UniformSphere(3)],
        [bases.NormalFamily(1), bases.Gaussian(torch.zeros(2), torch.ones(2)).marginal([0])],
        [
            bases.Product([bases.GammaFamily(), bases.NormalFamily(1)]),
            bases.Product([bases.NormalFamily(1), bases.GammaFamily()]),
        ],
    ],
    ids=str,
)
def test_mixtures_of_other_statistics(parts: list[Base]) -> None:
    names = f"one statistic.*got.*{type(parts[0]).__name__}.*{type(parts[1]).__name__}"
    with pytest.raises(ValueError, match=names):
        bases.Mixture(torch.zeros(2), parts)


def test_mixture_of_a_product_and_a_vector() -> None:
    """Both have t(x) = x, whatever the factors."""
    parts = [bases.Product([_normal(0.0, 1.0)] * 2), Gaussian([0.0, 0.0], [1.0, 1.0])]
    x = torch.tensor([0.3, -0.4])
    mixture = bases.Mixture(torch.zeros(2), parts)
    assert_close(mixture.log_density(x), parts[1].log_density(x))
    assert_close(mixture.statistic(x), x)


# Sums of measures of several dimensions ----------------------------------------------------------


def _normal(loc: float, scale: float, dtype: torch.dtype | None = None) -> Gaussian:
    return Gaussian(torch.tensor(loc, dtype=dtype), torch.tensor(scale, dtype=dtype), event_dim=0)


def _inflated() -> Base:
    """Half a standard normal law, half an atom at zero."""
    atom = bases.PointMass(torch.tensor(0.0, dtype=F64))
    return bases.Mixture(torch.zeros(2, dtype=F64), [_normal(0.0, 1.0, F64), atom])


def test_nested_mixture_is_normalised() -> None:
    """The mass on the atom and, by the trapezoidal rule, around it."""
    torch.manual_seed(0)
    base = bases.Mixture(torch.zeros(2, dtype=F64), [_inflated(), _normal(0.0, 0.5, F64)])
    weight, bias, readout = (torch.randn(*shape, dtype=F64) for shape in ((5, 1), (5,), (2, 5)))
    law = SNEFY(weight, bias, readout, base=base)
    step = 1e-3
    grid = torch.arange(-12.0, 12.0, step, dtype=F64) + step / 2  # beside the atom
    diffuse = law.log_prob(grid).exp().sum() * step
    atom = law.log_prob(torch.tensor(0.0, dtype=F64)).exp()
    assert_close(diffuse + atom, torch.tensor(1.0, dtype=F64), atol=1e-9, rtol=0)


def test_products_of_mixtures_in_a_mixture() -> None:
    """At a point, the terms with the most atomic coordinates make the density."""
    diffuse = Gaussian(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64))
    one = bases.Product([_inflated(), _normal(0.0, 1.0, F64)])
    both = bases.Product([_inflated(), _inflated()])
    base = bases.Mixture(torch.zeros(3, dtype=F64), [one, both, diffuse])
    u, v = 0.7, -1.2
    x = torch.tensor([[0.0, 0.0], [0.0, v], [u, 0.0], [u, v]], dtype=F64)
    f, g = stats.norm.pdf(u), stats.norm.pdf(v)
    # Shares of a third. In `one`, half is on the line x_1 = 0. In `both`, a quarter each is on the
    # origin, on either axis and on the plane.
    expected = [1 / 4, (1 / 2 + 1 / 4) * g, f / 4, (1 / 2 + 1 / 4 + 1) * f * g]
    assert_close(base.log_density(x).exp(), torch.tensor(expected, dtype=F64) / 3)


def test_sphere_in_a_mixture() -> None:
    """A density in space gives no mass to a sphere."""
    parts = [bases.UniformSphere(3), Gaussian(torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64))]
    base = bases.Mixture(torch.zeros(2, dtype=F64), parts)
    x = torch.tensor([[0.6, 0.0, 0.8], [0.6, 0.0, 0.0]], dtype=F64)
    inside = stats.norm.pdf(0.6) * stats.norm.pdf(0) ** 2
    expected = torch.tensor([1 / (4 * torch.pi), inside], dtype=F64) / 2
    assert_close(base.log_density(x).exp(), expected)


# Numbers and lists in place of tensors -----------------------------------------------------------

NUMBERS = {
    "Gaussian": (Gaussian, ([0.0, 1.0], [1.0, 2.0]), {}),
    "GaussianScalar": (Gaussian, (0.0, 1.0), {"event_dim": 0}),
    "GaussianMixture": (
        bases.GaussianMixture,
        ([0.0, 1.0], [[0.0, 0.0], [1.0, 1.0]], [[1.0, 1.0], [2.0, 2.0]]),
        {},
    ),
    "UniformBox": (bases.UniformBox, ([0.0, 0.0], [1.0, 2.0]), {}),
    "SmoothBox": (bases.SmoothBox, ([0.0, 0.0], [1.0, 2.0], 0.1), {}),
    "SmoothBoxMixture": (
        bases.SmoothBoxMixture,
        ([0.0, 1.0], [0.0, 2.0], [1.0, 3.0], 0.1),
        {"event_dim": 0},
    ),
    "Interval": (bases.Interval, (0.0, 1.0), {}),
    "Intervals": (bases.Interval, ([0.0, 2.0], [1.0, 3.0]), {}),
    "Poisson": (bases.Poisson, (2.0,), {}),
    "Geometric": (bases.Geometric, (0.5,), {}),
    "Discrete": (bases.Discrete, ([0, 1], [1, 2]), {}),
    "PointMass": (bases.PointMass, (0.0,), {}),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_in_place_of_tensors(name: str) -> None:
    build, values, options = NUMBERS[name]
    expected = build(*(torch.tensor(x, dtype=torch.get_default_dtype()) for x in values), **options)
    found = build(*values, **options)
    assert (found.batch_shape, found.event_shape) == (expected.batch_shape, expected.event_shape)
    for (_, a), (_, b) in zip(found.tensors(), expected.tensors(), strict=True):
        assert_close(a, b, rtol=0, atol=0)
    double = torch.tensor(values[0], dtype=F64)  # numbers take the dtype of a tensor beside them
    assert {x.dtype for _, x in build(double, *values[1:], **options).tensors()} == {F64}


def test_numbers_in_place_of_other_tensors() -> None:
    normal = _normal(0.0, 1.0)
    assert_close(bases.Mixture([0.0, 0.0], [normal, normal]).logits, torch.zeros(2))
    moved = Standardized(normal, 0.5, 2.0).log_density(torch.tensor(1.5))
    assert_close(moved, torch.tensor(stats.norm.logpdf(1.5, 0.5, 2.0), dtype=moved.dtype))
    full = Gaussian([0.0, 1.0], scale_tril=[[1.0, 0.0], [0.5, 2.0]])
    assert_close(full.covariance(full.loc), torch.tensor([[1.0, 0.5], [0.5, 4.25]]))
    # As in torch.distributions.Normal, one scale serves all coordinates.
    assert_close(Gaussian(torch.zeros(3), 2.0).covariance(torch.zeros(3)), 4 * torch.eye(3))


def test_partial_of_a_standardized_base() -> None:
    """One factor moved, or all coordinates at once: against the marginal law."""
    torch.manual_seed(0)
    weight, bias, readout = (torch.randn(*s, dtype=F64) for s in ((4, 3), (4,), (2, 4)))
    inner = Gaussian(torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64))
    whole = Standardized(inner, torch.randn(3, dtype=F64), torch.rand(3, dtype=F64) + 0.5)
    poisson = bases.Poisson(torch.tensor(2.0, dtype=F64))
    product = bases.Product([_moved(torch.tensor(1.0, dtype=F64)), poisson, _scalar()])
    row = torch.tensor([[0.7, 2.0, torch.nan]], dtype=F64)
    for base in (whole, product):
        law = SNEFY(weight, bias, readout, base=base)
        expected = law.marginal([0, 1]).log_prob(row[:, :2])
        assert_close(law.partially_observed().log_prob(row), expected)


# Draws of a member of the exponential family, tested by their statistics --------------------------

# Means are held to 4.5 standard errors: 7e-6 is the rate of false alarms, and an error of 0.0225
# standard deviations is seen half of the time.
COUNT = 40_000


def _natural(name: str, base: Base) -> Tensor:
    torch.manual_seed(3)
    return BASES[name].natural(0.7 * torch.randn(base.num_statistics, dtype=F64))


def _latent(name: str) -> Base:
    return BASES[name].build().latent(torch.zeros((), dtype=F64))


@pytest.mark.parametrize("name", [k for k in BASES if isinstance(_latent(k), LaplaceBase)])
def test_members_have_the_mean_of_their_family(name: str) -> None:
    base = BASES[name].build()
    latent = base.latent(torch.zeros((), dtype=F64))
    assert isinstance(latent, LaplaceBase)
    torch.manual_seed(0)
    eta = _natural(name, base)
    if name == "Geometric":
        eta = -eta.abs()
    eta.requires_grad_()
    (mean,) = torch.autograd.grad(latent.log_partition(eta.unsqueeze(0)).sum(), eta)
    x = base.event(latent.sample_member(eta.detach().expand(COUNT, -1)))
    statistic = base.statistic(x)
    error = statistic.std(0) / COUNT**0.5
    assert ((statistic.mean(0) - mean).abs() < 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("name", [k for k in BASES if isinstance(_latent(k), FourierBase)])
def test_squares_tilt_the_base(name: str) -> None:
    """Under v² μ, E[1/v²] is μ(Ω) over the integral of v²: compare draws of both laws."""
    outer, base = BASES[name].build(), _latent(name)
    assert isinstance(base, FourierBase)
    torch.manual_seed(1)
    weight = torch.randn(base.num_statistics, dtype=F64)
    rows = weight.expand(COUNT, -1)
    like = weight.unsqueeze(0)
    centre = base.mean(like)
    variance = weight @ base.covariance(like) @ weight
    tilted = outer.statistic(outer.event(base.sample_square(rows))) - centre
    v = tilted @ weight
    # E[f v²] / E[v²] for a bounded f, by draws from the base.
    assert isinstance(base, LaplaceBase | StudentT)
    drawn = outer.event(base.sample_member(torch.zeros_like(rows)))
    plain = (outer.statistic(drawn) - centre) @ weight
    assert_close(plain.square().mean(), variance, rtol=0.05, atol=0)
    edges = torch.quantile(v, torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=F64))
    for edge in edges:
        share = (v < edge).double()
        weighted = (plain < edge) * plain.square() / variance
        error = (share.var() / COUNT + weighted.var() / COUNT).sqrt()
        assert (share.mean() - weighted.mean()).abs() <= 4.5 * error


@pytest.mark.parametrize("kappa", [0.0, 0.5, 10.0, 1e4])
@pytest.mark.parametrize("d", [2, 3, 10])
def test_von_mises_fisher(d: int, kappa: float) -> None:
    """The cosine to the axis against its density, integrated numerically.

    1e-4 is the rate of false alarms; a distance of 0.016 between distribution functions is seen.
    """
    torch.manual_seed(0)
    axis = torch.nn.functional.normalize(torch.randn(d, dtype=F64), dim=0)
    x = bases.UniformSphere(d).sample_member((kappa * axis).expand(20_000, -1))
    assert_close(x.norm(dim=-1), torch.ones(len(x), dtype=F64))
    cosine = x @ axis
    # 1 - cos θ on a grid in θ that resolves the peak
    theta = torch.linspace(0, min(torch.pi, 20 / max(kappa, 1e-9) ** 0.5), 20_001, dtype=F64)
    log_density = kappa * (theta.cos() - 1) + (d - 2) * theta.sin().clamp(min=1e-300).log()
    density = log_density.exp()
    steps = (density[1:] + density[:-1]) / 2
    cdf = torch.cat([torch.zeros(1, dtype=F64), steps.cumsum(0)]) / steps.sum()
    angle = torch.acos(cosine.clamp(-1, 1))
    place = torch.searchsorted(theta, angle).clamp(1, len(theta) - 1)
    share = (angle - theta[place - 1]) / (theta[place] - theta[place - 1])
    uniform = cdf[place - 1] + share * (cdf[place] - cdf[place - 1])
    assert stats.kstest(uniform.numpy(), "uniform").pvalue > 1e-4


@pytest.mark.parametrize("activation", [Cos(), Snake(), Identity(), Exp(0.3), ReLU()], ids=str)
def test_one_number_for_all_coordinates(activation: Activation) -> None:
    """A tensor of length one is broadcast to the coordinates of an event, as by torch."""
    torch.manual_seed(0)
    parameters = [torch.randn(shape, dtype=F64) for shape in ((3, 2), (3,), (2, 3))]
    x, loc, scale = torch.randn(4, 2, dtype=F64), torch.zeros(2, dtype=F64), torch.full((1,), 2.0)
    short = bases.Gaussian(loc, scale.double())
    long = bases.Gaussian(loc, scale.double().expand(2))
    found, expected = (
        SNEFY(*parameters, activation=activation, base=base) for base in (short, long)
    )
    assert_close(found.log_prob(x), expected.log_prob(x))
    assert_close(found.mean, expected.mean)
    assert_close(found.covariance_matrix, expected.covariance_matrix)
    assert found.sample((5,)).shape == (5, 2)
