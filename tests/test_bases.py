"""What bases do with their tensors, and draws of what samplers are made of."""

import pytest
import torch
from scipy import stats
from torch import Size, Tensor
from torch.testing import assert_close

from pyro_snefy import SNEFY, bases
from pyro_snefy.bases import (
    Base,
    FourierBase,
    Gaussian,
    LaplaceBase,
    Pushforward,
    Standardized,
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

COUNT = 40_000


def _natural(name: str, base: Base) -> Tensor:
    torch.manual_seed(3)
    return BASES[name].natural(0.7 * torch.randn(base.num_statistics, dtype=F64))


@pytest.mark.parametrize("name", BASES)
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


@pytest.mark.parametrize("name", [k for k in BASES if isinstance(BASES[k].build(), FourierBase)])
def test_squares_tilt_the_base(name: str) -> None:
    """Under v² μ, E[1/v²] is μ(Ω) over the integral of v²: compare draws of both laws."""
    base = BASES[name].build()
    assert isinstance(base, FourierBase)
    torch.manual_seed(1)
    weight = torch.randn(base.num_statistics, dtype=F64)
    rows = weight.expand(COUNT, -1)
    like = weight.unsqueeze(0)
    centre = base.mean(like)
    variance = weight @ base.covariance(like) @ weight
    tilted = base.statistic(base.sample_square(rows)) - centre
    v = tilted @ weight
    # E[f v²] / E[v²] for a bounded f, by draws from the base.
    assert isinstance(base, LaplaceBase)
    plain = (base.statistic(base.sample_member(torch.zeros_like(rows))) - centre) @ weight
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
    """The cosine to the axis against its density, integrated numerically."""
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
