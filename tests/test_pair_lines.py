"""Distribution functions and quantiles of a coordinate of bumps on normal laws."""

import pyro
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from pyro_snefy import SNEFY, conditional_snefy
from pyro_snefy.activations import Bump
from pyro_snefy.bases import Gaussian, GaussianMixture
from pyro_snefy.learning import ConditionalSNEFY
from pyro_snefy.operations.pair_lines import PairLine
from pyro_snefy.operations.quantiles import distribution, line

F64 = torch.float64
BASES = {
    "normal": lambda d: Gaussian(torch.randn(d), 0.5 + torch.rand(d)),
    "oblique": lambda d: Gaussian(torch.randn(d), scale_tril=_factors(1, d)[0]),
    "mixture": lambda d: GaussianMixture(torch.randn(3), torch.randn(3, d), 0.5 + torch.rand(3, d)),
    "oblique mixture": lambda d: GaussianMixture(
        torch.randn(3), torch.randn(3, d), scale_tril=_factors(3, d)
    ),
    "one mean": lambda d: GaussianMixture(
        torch.randn(3), torch.randn(1, d), torch.tensor([[1.0], [10.0], [100.0]])
    ),
}


def _factors(count: int, d: int) -> Tensor:
    return torch.eye(d) + 0.5 * torch.randn(count, d, d).tril(-1)


def _law(base: str, d: int = 2, n: int = 4, batch: tuple[int, ...] = (3,)) -> SNEFY:
    pyro.set_rng_seed(0)
    weight = torch.cat([torch.zeros(1, d), torch.randn(n - 1, d)])  # a constant neuron, too
    readout = torch.randn(*batch, 2, n)
    return SNEFY(weight, torch.randn(n), readout, activation=Bump(), base=BASES[base](d))


def _default(d: int = 2) -> ConditionalSNEFY:
    pyro.set_rng_seed(0)
    likelihood = conditional_snefy(d, 2, hidden_dims=(16,))
    with torch.no_grad():
        likelihood.readout.normal_()
        for parameter in likelihood.net.parameters():
            parameter.normal_(std=0.3)
    return likelihood


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("d", "dim"), [(2, 0), (2, 1), (3, 1)])
def test_against_a_quadrature_of_the_density(base: str, d: int, dim: int) -> None:
    network = _law(base, d)._network.to(F64).latent()
    found, expected = distribution(network, dim), line(network, dim)
    assert isinstance(found, PairLine)
    x = torch.tensor([-5.0, -1.0, 0.0, 0.4, 3.0, 200.0], dtype=F64).unsqueeze(-1).expand(-1, 3)
    assert_close(found.cdf(x), expected.cdf(x), rtol=1e-11, atol=1e-13)
    q = torch.tensor([0.001, 0.1, 0.5, 0.9, 0.999], dtype=F64).unsqueeze(-1).expand(-1, 3)
    assert_close(found.icdf(q), expected.icdf(q), rtol=1e-9, atol=1e-9)
    assert_close(found.cdf(found.icdf(q)), q, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dim", [0, 1])
def test_the_default_of_vectors(dim: int) -> None:
    """Against 100,000 draws: a deviation of five standard errors has a probability below 1e-6."""
    law = _default()(torch.zeros(2))
    with torch.no_grad():
        draws = law.sample((100_000,))[:, dim]
        marginal = law.marginal([dim])
        for q in (0.01, 0.3, 0.9):
            x = marginal.icdf(torch.tensor(q))
            assert marginal.cdf(x).item() == pytest.approx(q, abs=1e-5)
            error = 5 * (q * (1 - q) / 100_000) ** 0.5
            assert (draws <= x).double().mean().item() == pytest.approx(q, abs=error)


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_shapes(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    likelihood = _default().to(dtype)
    marginal = likelihood(torch.randn(*batch, 2, dtype=dtype)).marginal([1])
    x = torch.randn(*batch, 1, dtype=dtype)
    found = marginal.cdf(x)
    assert found.shape == batch
    assert found.dtype == dtype
    several = marginal.icdf([0.1, 0.5, 0.9])
    assert several.shape == (3, *batch, 1)
    assert (several.diff(dim=0) > 0).all()


@pytest.mark.parametrize("base", ["normal", "mixture"])
def test_digits_in_the_lower_tail(base: str) -> None:
    network = _law(base, n=16)._network.to(F64).latent()
    x = torch.tensor([-14.0, -10.0, -6.0], dtype=F64).unsqueeze(-1).expand(-1, 3)
    found, expected = distribution(network, 0).cdf(x), line(network, 0).cdf(x)
    assert expected.max() < 1e-5
    assert_close(found, expected, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("size", [1e-170, 1e-100, 1e100, 1e170])
def test_readouts_of_any_size(size: float) -> None:
    readout, zeros = torch.randn(2, 1, 3, dtype=F64), torch.zeros(2, dtype=F64)
    weight, bias = torch.randn(3, 2, dtype=F64), torch.randn(3, dtype=F64)
    base = Gaussian(zeros, zeros + 1.0)
    laws = (
        SNEFY(weight, bias, factor * readout, activation=Bump(), base=base)
        for factor in (1.0, size)
    )
    expected, found = (law.marginal([0]).cdf(torch.zeros(2, 1, dtype=F64)) for law in laws)
    assert_close(found, expected)


def test_gradients() -> None:
    pyro.set_rng_seed(0)
    weight, bias = torch.randn(3, 2, dtype=F64), torch.randn(3, dtype=F64)
    readout, x = torch.randn(2, 2, 3, dtype=F64), torch.randn(2, 1, dtype=F64)
    tril = _factors(2, 2).to(F64)
    inputs = (weight, bias, readout, tril, x)
    for tensor in inputs:
        tensor.requires_grad_()

    def marginal(*tensors: Tensor) -> SNEFY:
        weight, bias, readout, tril, _ = tensors
        base = GaussianMixture(
            torch.zeros(2, dtype=F64), torch.zeros(1, 2, dtype=F64), scale_tril=tril.tril()
        )
        return SNEFY(weight, bias, readout, activation=Bump(), base=base).marginal([1])

    assert gradcheck(lambda *tensors: marginal(*tensors).cdf(tensors[-1]), inputs)
    q = torch.tensor([0.2, 0.7], dtype=F64)
    assert gradcheck(lambda *tensors: marginal(*tensors).icdf(q), inputs)


def test_the_ends() -> None:
    marginal = _default()(torch.zeros(3, 2)).marginal([0])
    assert_close(marginal.icdf([0.0, 1.0])[:, 0, 0], torch.tensor([-torch.inf, torch.inf]))
    assert_close(marginal.cdf(torch.tensor([[-1e9], [1e9], [0.0]]))[:2], torch.tensor([0.0, 1.0]))
