"""Counts with exposures, against a Poisson regression by Newton's method."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_snefy import BaseHead, conditional_snefy, fit
from pyro_snefy.bases import Base, Bernoulli, Binomial, Geometric, NegativeBinomial, Poisson


def _poisson_regression(x: Tensor, y: Tensor, exposure: Tensor) -> Tensor:
    """The coefficients of log rate = β_0 + β·x + log e, by Newton's method."""
    design = torch.cat([torch.ones_like(x[:, :1]), x], dim=-1).double()
    beta = torch.zeros(design.shape[-1], dtype=torch.float64)
    beta[0] = (y.sum() / exposure.sum()).log()
    for _ in range(50):
        rate = exposure * (design @ beta).exp()
        hessian = design.mT @ (rate.unsqueeze(-1) * design)
        beta = beta + torch.linalg.solve(hessian, design.mT @ (y - rate))
    return beta


def _linear(base: Base, context_dim: int = 2) -> Any:
    """A rate whose logarithm is linear in the context; one neuron, a constant, is a plain base."""
    model = conditional_snefy(
        base,
        context_dim,
        hidden_dim=1,
        readout_dim=1,
        net=nn.Linear(context_dim, 1),
        heads=[BaseHead()],
        exposure=1,
    )
    nn.init.zeros_(model.net.weight)
    nn.init.zeros_(model.net.bias)
    return model


def _constant(model: Any) -> Any:
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    model.weight.requires_grad_(False)
    model.bias.requires_grad_(False)
    return model


def test_rates_are_those_of_a_poisson_regression() -> None:
    torch.manual_seed(1)
    x, exposure = torch.randn(400, 1), torch.rand(400) * 9 + 0.5
    y = torch.poisson(exposure * (0.3 + 0.6 * x[:, 0]).exp())
    context = torch.cat([x, exposure.unsqueeze(-1)], dim=-1)
    model = _linear(Poisson(1.0)).initialize(y, context)
    _constant(model)
    optimizer = torch.optim.LBFGS(
        model.net.parameters(), max_iter=100, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -model(context).log_prob(y).mean()
        value.backward()
        return value

    optimizer.step(loss)
    beta = _poisson_regression(x, y, exposure)
    new = torch.tensor([[-1.0, 1.0], [0.0, 1.0], [1.5, 1.0], [1.5, 4.0]])
    found = model(new).base.rate
    expected = new[:, 1] * (beta[0] + beta[1] * new[:, 0].double()).exp()
    assert_close(found.double(), expected, rtol=2e-3, atol=0)
    assert abs(beta[1] - 0.6) < 0.1


def test_fit_passes_exposures() -> None:
    """With a rate of two, exposures of 1 and 10 have means of 2 and 20."""
    torch.manual_seed(2)
    exposure = torch.where(torch.rand(600) < 0.5, 1.0, 10.0)
    y = torch.poisson(2.0 * exposure)
    context = torch.stack([torch.randn(600), exposure], dim=-1)
    model = conditional_snefy(Poisson(1.0), 2, hidden_dim=4, hidden_dims=(8,), exposure=1)
    model.initialize(y, context)
    before = -model(context).log_prob(y).mean().item()
    fit(model, y, context, max_epochs=5, progress=False)
    assert -model(context).log_prob(y).mean().item() <= before + 1e-6
    means = model(torch.tensor([[0.0, 1.0], [0.0, 10.0]])).mean
    assert_close(means, torch.tensor([2.0, 20.0]), rtol=0.25, atol=0)


def test_bases_of_each_row() -> None:
    context = torch.tensor([[0.3, 2.0], [0.3, 5.0]])
    negative = conditional_snefy(NegativeBinomial(3.0, 0.4), 2, exposure=1)(context).base
    mean = negative.total_count * negative.probs / (1 - negative.probs)
    assert_close(mean[1] / mean[0], torch.tensor(2.5))
    assert_close(negative.total_count[0], negative.total_count[1])
    trials = conditional_snefy(Binomial(4, 0.4), 2, exposure=1)(context)
    assert_close(trials.base.total_count, torch.tensor([2.0, 5.0]))
    assert trials.log_prob(torch.tensor([2.0, 5.0])).isfinite().all()
    # The network does not see exposures: the odds of all rows are the same.
    assert_close(trials.base.probs[0], trials.base.probs[1])


def test_first_rates_are_per_exposure() -> None:
    exposure = torch.full((200,), 8.0)
    y = torch.poisson(torch.full((200,), 16.0))
    context = torch.stack([torch.randn(200), exposure], dim=-1)
    for base, found in ((Poisson(1.0), "rate"), (Binomial(50, 0.5), "probs")):
        counts = y if found == "rate" else (y / 4).round().clamp(max=8)
        model = conditional_snefy(base, 2, exposure=1).initialize(counts, context)
        value = getattr(model.base(), found).item()
        assert value == pytest.approx(counts.mean().item() / 8, rel=1e-3)


@pytest.mark.parametrize("exposure", [-1, 2, 0.5])
def test_bad_columns(exposure: Any) -> None:
    with pytest.raises(ValueError, match="from 0 to 1, got"):
        conditional_snefy(Poisson(1.0), 2, exposure=exposure)


def test_bad_exposures() -> None:
    with pytest.raises(NotImplementedError, match="Binomial base for exposures, got Geometric"):
        conditional_snefy(Geometric(0.5), 2, exposure=1)
    with pytest.raises(NotImplementedError, match="Binomial base for exposures, got Bernoulli"):
        conditional_snefy(Bernoulli(0.5), 2, exposure=1)
    model = conditional_snefy(Poisson(1.0), 2, exposure=1)
    with pytest.raises(ValueError, match="positive exposures"):
        model.initialize(torch.ones(3), torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0]]))
