"""Moments of batches that share neurons and base, against sums over fine grids."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_snefy import SNEFY, conditional_snefy
from pyro_snefy.activations import GELU, Activation, Bump, Cis, Cos, Erf, ReLU, Sin
from pyro_snefy.bases import Base, Gaussian, GaussianMixture, Laplace, Logistic, Standardized
from pyro_snefy.operations.shared_moments import shared_moments

F64 = torch.float64
ROWS = 3
CONCENTRIC = GaussianMixture([0.0, -1.0, -2.0], [0.3], [1.0, 2.5, 8.0], event_dim=0)
APART = GaussianMixture([0.0, -1.0], [-1.0, 2.0], [1.0, 2.5], event_dim=0)
NORMAL = Gaussian(0.5, 1.5, event_dim=0)
BASES = [CONCENTRIC, APART, NORMAL, Laplace(0.5, 1.0), Logistic(-0.5, 0.7)]


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


def _expected(law: SNEFY, reach: float = 110.0) -> tuple[Tensor, Tensor]:
    """Mean and variance by trapezoids; a kink at 0.5 is on the grid."""
    grid = torch.linspace(-reach, reach, 440_001, dtype=F64).unsqueeze(-1)
    density = law.log_prob(grid).exp() * (2 * reach / 440_000)
    mean = (density * grid).sum(0)
    return mean, (density * (grid - mean).square()).sum(0)


@pytest.mark.parametrize("base", BASES, ids=str)
@pytest.mark.parametrize(
    ("activation", "rows_of_bias"), [(Cos(), False), (Cos(), True), (Sin(), True), (Cis(), False)]
)
def test_moments_are_integrals(activation: Activation, base: Base, rows_of_bias: bool) -> None:
    torch.manual_seed(1)
    n, dtype = 4, torch.complex128 if activation.is_complex else F64
    law = SNEFY(
        2 * _randn(n, 1),
        _randn(ROWS, n) if rows_of_bias else _randn(n),
        torch.randn(ROWS, 2, n, dtype=dtype),
        activation=activation,
        base=base.map(Tensor.double),
    )
    assert shared_moments(law.base, law._network) is not None
    mean, variance = _expected(law)
    assert_close(law.mean, mean, rtol=1e-7, atol=1e-7)
    assert_close(law.variance, variance, rtol=1e-6, atol=0)


@pytest.mark.parametrize("base", [CONCENTRIC, APART, NORMAL], ids=str)
@pytest.mark.parametrize("activation", [Bump(), Erf(), GELU(), ReLU(2)], ids=str)
def test_moments_of_bends(activation: Activation, base: Base) -> None:
    torch.manual_seed(1)
    readout = _randn(ROWS, 2, 4)
    law = SNEFY(
        _randn(4, 1), _randn(4), readout, activation=activation, base=base.map(Tensor.double)
    )
    assert shared_moments(law.base, law._network) is not None
    mean, variance = _expected(law)
    assert_close(law.mean, mean, rtol=1e-7, atol=1e-7)
    assert_close(law.variance, variance, rtol=1e-6, atol=0)
    (gradient,) = torch.autograd.grad(
        SNEFY(
            law.weight, law.bias, readout.requires_grad_(), activation=activation, base=law.base
        ).mean.sum(),
        readout,
    )
    assert gradient.isfinite().all() and bool((gradient != 0).any())


def test_rows_with_locations_and_scales() -> None:
    loc, scale = _randn(ROWS), torch.rand(ROWS, dtype=F64) + 0.5
    base = Standardized(CONCENTRIC.map(Tensor.double), loc, scale)
    law = SNEFY(_randn(4, 1), _randn(4), _randn(ROWS, 2, 4), base=base)
    mean, variance = _expected(law)
    assert_close(law.mean, mean, rtol=1e-8, atol=1e-8)
    assert_close(law.variance, variance, rtol=1e-8, atol=0)


def test_far_tails_keep_their_digits() -> None:
    """The widest component of the default base has 4,096 times the scale of the first."""
    torch.manual_seed(2)
    model = conditional_snefy((), 2, hidden_dim=8).double()
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
        law = model(_randn(2, 2))
        latent = SNEFY(law.weight, law.bias, law.readout, base=law.base.base)
        total = torch.zeros(3, 2, dtype=F64)
        for start in range(-50_000, 50_000, 5_000):  # waves of at most 16 radians per unit
            grid = torch.arange(0, 5_000, 0.05, dtype=F64).unsqueeze(-1) + start
            density = 0.05 * latent.log_prob(grid).exp()
            total += torch.stack([(density * grid**k).sum(0) for k in range(3)])
        mean = total[1] / total[0]
        assert_close(latent.mean, mean, rtol=0, atol=1e-6)
        assert_close(latent.variance, total[2] / total[0] - mean.square(), rtol=1e-9, atol=0)


def test_gradients() -> None:
    torch.manual_seed(3)
    given = (_randn(3, 1), _randn(2, 3), _randn(2, 2, 3), _randn(2))

    def moments(weight: Tensor, bias: Tensor, readout: Tensor, logits: Tensor) -> Tensor:
        scale = torch.tensor([1.0, 3.0], dtype=F64)
        base = GaussianMixture(logits, scale.new_zeros(1), scale, event_dim=0)
        law = SNEFY(weight, bias, readout, base=base)
        return torch.stack([law.mean, law.variance])

    assert torch.autograd.gradcheck(moments, tuple(x.requires_grad_() for x in given))


def test_others_have_formulas_of_their_own() -> None:
    """Single laws, vectors and batches of weights."""
    base = NORMAL.map(Tensor.double)
    single = SNEFY(_randn(3, 1), _randn(3), _randn(2, 3), base=base)
    weights = SNEFY(_randn(2, 3, 1), _randn(3), _randn(2, 3), base=base)
    vectors = SNEFY(_randn(3, 2), _randn(3), _randn(5, 2, 3))
    for law in (single, weights, vectors):
        assert shared_moments(law.base, law._network) is None
