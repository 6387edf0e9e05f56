"""Products of normal laws, which are normal, and mixtures of normal laws with full covariances."""

from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal
from torch.testing import assert_close

from pyro_snefy import SNEFY, snefy
from pyro_snefy.activations import GELU, Activation, Cos, Erf, Exp, LeakyReLU, ReLU, Snake, Step
from pyro_snefy.bases import (
    Base,
    Gaussian,
    GaussianMixture,
    Mixture,
    Poisson,
    Product,
    Standardized,
)
from pyro_snefy.kernels import closed_form
from pyro_snefy.sampling import pathwise
from tests.cases import ACTIVATIONS, LOC, SCALE, TRIL
from tests.oracle import GaussianMixture as OracleMixture
from tests.oracle import log_normalizer

F64 = torch.float64
BENDS = [Erf(), Step(), ReLU(), ReLU(2), LeakyReLU(0.2), GELU()]


def _t(values: Any) -> Tensor:
    return torch.tensor(values, dtype=F64)


SCALAR = Gaussian(_t(0.5), _t(2.0), event_dim=0)
PLANE = Gaussian(LOC, scale_tril=TRIL)


def _joint() -> Gaussian:
    covariance = torch.block_diag(TRIL @ TRIL.mT, _t([[4.0]]))
    return Gaussian(torch.cat([LOC, _t([0.5])]), scale_tril=torch.linalg.cholesky(covariance))


def _parameters(n: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(n, 3, dtype=F64),
        torch.randn(n, dtype=F64),
        torch.randn(2, n, dtype=F64),
    )


# Products ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [*BENDS, Cos(), Snake(), Exp(0.3)], ids=str)
def test_product_is_a_normal_law(activation: Activation) -> None:
    parameters, x = _parameters(), torch.randn(5, 3, dtype=F64)
    joint = SNEFY(*parameters, activation=activation, base=_joint())
    nested = Product([Product([PLANE]), Product([SCALAR])])
    for base in (Product([PLANE, SCALAR]), nested):
        law = SNEFY(*parameters, activation=activation, base=base)
        assert_close(law.log_prob(x), joint.log_prob(x), rtol=1e-10, atol=1e-10)
        assert_close(law.mean, joint.mean, rtol=1e-9, atol=1e-9)
        assert_close(law.covariance_matrix, joint.covariance_matrix, rtol=1e-9, atol=1e-9)
        some = law.marginal([2, 0]).log_prob(x[:, :2])
        assert_close(some, joint.marginal([2, 0]).log_prob(x[:, :2]), rtol=1e-9, atol=1e-9)
        given, expected = (y.conditional([1], x[:, :1]).log_prob(x[:, 1:]) for y in (law, joint))
        assert_close(given, expected, rtol=1e-9, atol=1e-9)


def test_diagonal_product() -> None:
    base = Product([SCALAR, Gaussian(LOC, SCALE)])
    latent = base.latent(LOC)
    assert isinstance(latent, Gaussian) and latent.scale_tril is None
    assert_close(latent.scale, torch.cat([_t([2.0]), SCALE]))


@pytest.mark.parametrize("activation", BENDS, ids=str)
def test_draws_of_a_product(activation: Activation) -> None:
    """False alarms: 1e-6 each. 4,000 draws see a shift of 0.08 standard deviations."""
    law = SNEFY(*_parameters(), activation=activation, base=Product([PLANE, SCALAR]))
    x = law.sample((4000,))
    error = (x.mean(0) - law.mean) / law.variance.sqrt() * 4000**0.5
    assert (error.abs() < stats.norm.isf(1e-6 / 6)).all()


def test_pathwise_gradients_of_a_product() -> None:
    """They depend on the law and on the draw, and not on how the base was made."""
    parameters, x = _parameters(), torch.randn(6, 3, dtype=F64)
    found = []
    for base in (Product([PLANE, SCALAR]), _joint()):
        weight = parameters[0].clone().requires_grad_()
        law = SNEFY(weight, *parameters[1:], activation=GELU(), base=base)
        assert law.has_rsample
        pathwise(law._network, x).square().sum().backward()
        found.append(weight.grad)
    assert_close(found[0], found[1], rtol=1e-8, atol=1e-8)


def test_product_of_moved_laws() -> None:
    moved = Standardized(Gaussian(_t(0.0), _t(1.0), event_dim=0), _t(0.5), _t(2.0))
    weight, bias, readout = _parameters()
    law = SNEFY(weight, bias, readout, activation=ReLU(), base=Product([PLANE, moved]))
    # The statistic of the moved coordinate is (x - 0.5) / 2.
    scaled = weight / _t([1.0, 1.0, 2.0])
    joint = SNEFY(scaled, bias - 0.5 * scaled[:, 2], readout, activation=ReLU(), base=_joint())
    x = torch.randn(5, 3, dtype=F64)
    assert_close(law.log_prob(x), joint.log_prob(x), rtol=1e-10, atol=1e-10)
    assert_close(law.mean, joint.mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("activation", [ReLU(), Cos()], ids=str)
def test_product_in_a_mixture(activation: Activation) -> None:
    parameters, logits = _parameters(), _t([0.3, -0.4])
    mixed = Mixture(logits, [Product([PLANE, SCALAR]), _joint()])
    law = SNEFY(*parameters, activation=activation, base=mixed)
    joint = SNEFY(*parameters, activation=activation, base=_joint())
    assert_close(law.log_normalizer, joint.log_normalizer, rtol=1e-10, atol=1e-10)
    assert law.sample((10,)).shape == (10, 3)


def test_other_products_have_no_bends() -> None:
    base = Product([PLANE, Poisson(_t(2.0))])
    assert not closed_form(ReLU(), base, bias=True)
    with pytest.raises(NotImplementedError, match=r"ReLU on Product.*Gaussian"):
        SNEFY(*_parameters(), activation=ReLU(), base=base)


# Mixtures with full covariances -----------------------------------------------------------------

LOGITS, LOCS = _t([0.3, -0.2, 0.1]), torch.stack([LOC, LOC + 1, -LOC])
TRILS = torch.stack([TRIL, _t([[0.5, 0.0], [0.4, 1.1]]), _t([[1.2, 0.0], [-0.3, 0.4]])])


def _mixture() -> GaussianMixture:
    return GaussianMixture(LOGITS, LOCS, scale_tril=TRILS)


def test_density() -> None:
    torch_law = MixtureSameFamily(
        Categorical(logits=LOGITS), MultivariateNormal(LOCS, scale_tril=TRILS)
    )
    x = torch.randn(7, 2, dtype=F64)
    assert_close(_mixture().log_density(x), torch_law.log_prob(x), rtol=1e-12, atol=1e-12)
    assert_close(_mixture().mean(x), torch_law.mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["Cos", "Snake", "Exp", "ReLU", "GELU"])
def test_normalizer(name: str) -> None:
    activation, oracle = ACTIVATIONS[name]
    weight, bias = torch.randn(3, 2, dtype=F64), torch.randn(3, dtype=F64)
    readout = torch.randn(2, 3, dtype=F64)
    law = SNEFY(weight, bias, readout, activation=activation, base=_mixture())
    covariances = (TRILS @ TRILS.mT).numpy()
    same = OracleMixture(LOGITS.softmax(-1).numpy(), LOCS.numpy(), covariances)
    expected = log_normalizer(
        oracle, same, weight.numpy(), bias.numpy(), (readout.mT @ readout).numpy()
    )
    assert_close(law.log_normalizer, _t(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("activation", [Cos(), Exp(0.4), GELU()], ids=str)
def test_conduct(activation: Activation) -> None:
    """The chain rule, missing values, moments and draws; 4,000 draws, false alarms 1e-6.

    An error of 0.08 standard deviations in the mean of the draws is seen half of the time.
    """
    weight, bias = torch.randn(3, 2, dtype=F64), torch.randn(3, dtype=F64)
    law = SNEFY(weight, bias, torch.randn(1, 3, dtype=F64), activation=activation, base=_mixture())
    x = torch.randn(5, 2, dtype=F64)
    marginal = law.marginal([1]).log_prob(x[:, 1:])
    conditional = law.conditional([1], x[:, 1:]).log_prob(x[:, :1])
    assert_close(marginal + conditional, law.log_prob(x), rtol=1e-9, atol=1e-9)
    rows = torch.stack([x[:, 0] * torch.nan, x[:, 1]], -1)
    assert_close(law.partially_observed().log_prob(rows), marginal, rtol=1e-9, atol=1e-9)
    draws = law.sample((4000,))
    error = (draws.mean(0) - law.mean) / law.variance.sqrt() * 4000**0.5
    assert (error.abs() < stats.norm.isf(1e-6 / 4)).all()
    assert law.marginal([0]).cdf(law.marginal([0]).icdf(_t(0.3)).unsqueeze(-1)) == pytest.approx(
        0.3
    )


@pytest.mark.parametrize("name", ["mixture", "normal law"])
@pytest.mark.parametrize("activation", [Cos(), Snake(), Exp(0.4), Erf()], ids=str)
def test_gaps_in_rows(activation: Activation, name: str) -> None:
    """Rows of all patterns at once, against sums of the joint density over a line."""
    base = _mixture() if name == "mixture" else PLANE
    weight, bias = torch.randn(3, 2, dtype=F64), torch.randn(3, dtype=F64)
    law = SNEFY(weight, bias, torch.randn(2, 3, dtype=F64), activation=activation, base=base)
    x = torch.randn(6, 2, dtype=F64)
    gaps = torch.tensor([[0, 0], [0, 1], [1, 0], [0, 1], [1, 0], [1, 1]]).bool()
    line = torch.arange(-40, 40, 0.02, dtype=F64)
    expected = law.log_prob(x)
    for row, dim in ((1, 1), (2, 0), (3, 1), (4, 0)):
        points = x[row].repeat(len(line), 1)
        points[:, dim] = line
        expected[row] = (law.log_prob(points).exp().sum() * 0.02).log()
    expected[5] = 0.0
    found = law.partially_observed().log_prob(torch.where(gaps, torch.nan, x))
    assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("components", [1, 3])
def test_coordinates_that_nearly_determine_each_other(components: int) -> None:
    """Marginal and conditional laws in float32, and rows with gaps, at correlations of 1 - 5e-7.

    The differences of the coordinates are 1e-3, so that float32 has four digits of them: errors of
    white coordinates are 1e-4, and errors of exponents a few times that.
    """
    tril = _t([[1.0, 0.0, 0.0], [1.0, 1e-3, 0.0], [-1.0, 1e-3, 1e-3]])
    loc = torch.randn(components, 3, dtype=F64) * 1e-3
    base = GaussianMixture(torch.zeros(components, dtype=F64), loc, scale_tril=tril.unsqueeze(0))
    weight, bias = torch.randn(5, 3, dtype=F64), torch.randn(5, dtype=F64)
    readout = torch.randn(2, 5, dtype=F64)
    wide = SNEFY(weight, bias, readout, base=base)
    narrow = SNEFY(
        weight.float(), bias.float(), readout.float(), base=base.map(lambda value: value.float())
    )
    x = (torch.randn(8, 3, dtype=F64) @ tril.mT).float()
    rows = torch.where(torch.arange(24).reshape(8, 3) % 5 == 0, torch.nan, x)
    pairs = [
        (
            law.partially_observed().log_prob(rows.to(law.weight)),
            law.marginal([0, 2]).log_prob(x[:, [0, 2]].to(law.weight)),
            law.conditional([1], x[:, [1]].to(law.weight)).log_prob(x[:, [0, 2]].to(law.weight)),
        )
        for law in (wide, narrow)
    ]
    for expected, found in zip(*pairs, strict=True):
        assert_close(found.double(), expected, rtol=0, atol=5e-3)


def test_learning() -> None:
    base = GaussianMixture(
        torch.zeros(2), torch.randn(2, 2), scale_tril=torch.eye(2).repeat(2, 1, 1)
    )
    x = torch.randn(200, 2) @ torch.tensor([[1.0, 0.8], [0.0, 0.3]]) + 5
    module = snefy(base, 6, 2).initialize(x)
    loss = -module().log_prob(x).mean()
    assert loss.isfinite()
    loss.backward()
    gradients = [p.grad for p in module.parameters() if p.requires_grad]
    assert all(g is not None and g.isfinite().all() for g in gradients)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of scale and scale_tril"),
        ({"scale": torch.ones(2, 2), "scale_tril": torch.eye(2)}, "exactly one"),
        ({"scale_tril": torch.eye(3).repeat(2, 1, 1)}, "scale_tril"),
        ({"scale_tril": torch.ones(2, 2, 2)}, "scale_tril to be finite and to satisfy"),
    ],
)
def test_bad_arguments(arguments: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GaussianMixture(torch.zeros(2), torch.zeros(2, 2), **arguments)


def test_batches() -> None:
    base: Base = GaussianMixture(
        torch.zeros(4, 1, 2), torch.randn(2, 3), scale_tril=torch.eye(3)[None]
    )
    assert base.batch_shape == (4, 1) and base.event_shape == (3,)
