"""Mixtures of normal laws about one mean, against sums over their components and quadrature."""

import pytest
import torch
from torch import Tensor

from pyro_snefy import SNEFY, BaseHead, conditional_snefy
from pyro_snefy.activations import (
    GELU,
    Activation,
    Cis,
    Cos,
    Erf,
    Exp,
    Identity,
    ReLU,
    Sin,
    Snake,
)
from pyro_snefy.bases import Base, GaussianMixture, NegativeBinomial, Poisson
from pyro_snefy.kernels.kernel import Separable

F64 = torch.float64
LOGITS = torch.tensor([0.0, -1.0, -2.0], dtype=F64)
SCALE = torch.tensor([1.0, 2.5, 4.0], dtype=F64)
ACTIVATIONS = [Cos(), Sin(), Cis(), Snake(1.0), Identity(), Exp(), GELU(), Erf(), ReLU()]


def _scalar() -> GaussianMixture:
    return GaussianMixture(LOGITS, torch.tensor([0.3], dtype=F64), SCALE, event_dim=0)


def _parameters(d: int, rows: tuple[int, ...] = ()) -> tuple[Tensor, Tensor, Tensor]:
    weight = 0.4 * torch.randn(4, d, dtype=F64)
    return weight, torch.randn(*rows, 4, dtype=F64), torch.randn(*rows, 2, 4, dtype=F64)


@pytest.mark.parametrize("rows", [(), (3,)], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_scalar_densities_integrate_to_one(activation: Activation, rows: tuple[int, ...]) -> None:
    law = SNEFY(*_parameters(1, rows), activation=activation, base=_scalar())
    reach = 150.0 if isinstance(activation, Exp) else 60.0
    x = torch.linspace(-reach, reach, 400_001, dtype=F64)
    density = law.log_prob(x.reshape(-1, *[1] * len(rows))).exp()
    mass = torch.trapezoid(density, x, dim=0)
    torch.testing.assert_close(mass, torch.ones(rows, dtype=F64), rtol=1e-8, atol=0)


@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), GELU()], ids=str)
def test_one_mean_or_three_equal_ones(activation: Activation) -> None:
    """A shared mean is the same law as equal means, which other kernels serve."""
    loc = torch.tensor([[0.3, -0.2]], dtype=F64)
    shared = GaussianMixture(LOGITS, loc, SCALE.unsqueeze(-1))
    apart = GaussianMixture(LOGITS, loc.expand(3, 2), SCALE.unsqueeze(-1).expand(3, 2))
    assert shared.is_concentric
    assert not apart.is_concentric
    parameters = _parameters(2)
    one, other = (SNEFY(*parameters, activation=activation, base=b) for b in (shared, apart))
    x = 3 * torch.randn(7, 2, dtype=F64)
    torch.testing.assert_close(one.log_prob(x), other.log_prob(x))
    torch.testing.assert_close(one.mean, other.mean)
    torch.testing.assert_close(one.covariance_matrix, other.covariance_matrix)
    for method in (lambda law: law.marginal([1]), lambda law: law.conditional([0], x[:, :1])):
        torch.testing.assert_close(method(one).log_prob(x[:, 1:]), method(other).log_prob(x[:, 1:]))
    x[::2, 0] = torch.nan
    torch.testing.assert_close(
        one.partially_observed().log_prob(x), other.partially_observed().log_prob(x)
    )


def test_rows_of_biases_meet_one_set_of_blocks() -> None:
    """Phases are shared, so there is no block of cosines with sines, and none for components."""
    law = SNEFY(*_parameters(1), base=_scalar())
    kernel = law._network.kernel()
    assert isinstance(kernel, Separable)
    assert set(kernel.blocks) == {(0, 0), (1, 1)}
    assert all(block.shape == (4, 4) for block in kernel.blocks.values())


def test_gradients() -> None:
    weight, bias, readout = (x.requires_grad_() for x in _parameters(1, (2,)))
    logits, scale = LOGITS.clone().requires_grad_(), SCALE.clone().requires_grad_()
    loc = torch.tensor([0.3], dtype=F64, requires_grad=True)
    x = torch.tensor([0.5, -4.0], dtype=F64, requires_grad=True)

    def log_prob(*tensors: Tensor) -> Tensor:
        weight, bias, readout, logits, loc, scale, x = tensors
        base = GaussianMixture(logits, loc, scale, event_dim=0)
        return SNEFY(weight, bias, readout, base=base).log_prob(x)

    assert torch.autograd.gradcheck(log_prob, (weight, bias, readout, logits, loc, scale, x))


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="event_dim 1, or 0 with scale"):
        GaussianMixture(LOGITS, torch.zeros(3, 2), SCALE.expand(2, 3).mT, event_dim=2)
    with pytest.raises(ValueError, match="exactly one of scale and scale_tril"):
        GaussianMixture(LOGITS, torch.zeros(3, 2))


def test_outliers_cost_few_nats() -> None:
    """A row a thousand scales away costs the default a few nats, and a normal law 500,000."""
    law = conditional_snefy((), 2)(torch.zeros(1, 2))
    assert law.log_prob(torch.tensor([1000.0])) > -40


def test_first_values_know_the_tails() -> None:
    """With 20 % of outliers, the first weights of the wide components are 20 % in all."""
    x = torch.randn(4000)
    x[:800] *= 300
    model = conditional_snefy((), 1)
    model.initialize(x, torch.randn(4000, 1))
    shares = model.base().log_weights().exp()
    assert 0.15 < shares[3:].sum() < 0.25  # scales of 64 and more
    light = conditional_snefy((), 1)
    light.initialize(torch.randn(4000), torch.randn(4000, 1))
    before = conditional_snefy((), 1).base().log_weights()
    torch.testing.assert_close(light.base().log_weights()[3:], before[3:], atol=0.2, rtol=0)


@pytest.mark.parametrize(
    ("base", "mean"),
    [
        (Poisson(2.0), lambda base: base.rate),
        (NegativeBinomial(3.0, 0.4), lambda b: b.total_count * b.probs / (1 - b.probs)),
    ],
    ids=["Poisson", "NegativeBinomial"],
)
def test_a_base_for_each_context(base: Base, mean: object) -> None:
    """Masses add up to one for each context, and the base follows the network."""
    model = conditional_snefy(base, 2, 6, 3).double()
    assert any(isinstance(head, BaseHead) for head in model.heads)
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    law = model(torch.randn(5, 2, dtype=F64))
    means = mean(law.base)  # type: ignore[operator]
    assert means.shape == (5,)
    assert means.unique().numel() == 5
    counts = torch.arange(400.0, dtype=F64).unsqueeze(-1)
    total = law.log_prob(counts).exp().sum(0)
    torch.testing.assert_close(total, torch.ones(5, dtype=F64))


def test_rows_in_batches() -> None:
    model = conditional_snefy((), 2)
    x, context = torch.randn(100), torch.randn(100, 2)
    torch.testing.assert_close(model.log_prob(x, context, batch_size=7), model(context).log_prob(x))
    with pytest.raises(ValueError, match="one context for each row"):
        model.log_prob(x[:3], context)
