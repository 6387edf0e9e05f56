"""Families that are moved to a mean, as noise of hierarchical models."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.optim import ClippedAdam
from torch import Tensor
from torch.testing import assert_close

from pyro_snefy import SNEFY, snefy
from pyro_snefy.activations import Activation, Cos, Exp, ReLU
from pyro_snefy.bases import Gaussian, Interval, StudentT

F64 = torch.float64


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


@pytest.mark.parametrize("activation", [Cos(), Exp(), ReLU()], ids=str)
def test_the_law_is_moved(activation: Activation) -> None:
    base = Gaussian(0.7, 1.3, event_dim=0).map(Tensor.double)
    law = SNEFY(_randn(4, 1), _randn(4), _randn(2, 4), activation=activation, base=base)
    target = _randn(5)
    moved = law.with_mean(target)
    assert_close(moved.mean, target)
    assert_close(moved.variance, law.variance.expand(5))
    grid = torch.linspace(-80, 80, 160_001, dtype=F64).unsqueeze(-1)
    density = moved.log_prob(grid + target).exp()
    assert_close(torch.trapezoid(density * grid, grid, dim=0), torch.zeros(5, dtype=F64))
    x = _randn(7, 5)
    assert_close(moved.log_prob(x), law.log_prob(x - target + law.mean))


def test_the_mean_does_not_depend_on_a_location() -> None:
    """Two bases that differ by a location, with neurons that move along, are one law."""
    weight, bias, readout = _randn(4, 1), _randn(4), _randn(2, 4)
    laws = []
    for shift in (0.0, 5.0):
        base = Gaussian(0.3 + shift, 1.0, event_dim=0).map(Tensor.double)
        laws.append(SNEFY(weight, bias - shift * weight[:, 0], readout, base=base).with_mean(1.0))
    x = _randn(20)
    assert_close(laws[0].log_prob(x), laws[1].log_prob(x), rtol=1e-6, atol=1e-6)


def test_vectors_and_batches() -> None:
    law = SNEFY(_randn(4, 2), _randn(3, 4), _randn(2, 4))
    target = _randn(5, 3, 2)
    moved = law.with_mean(target)
    assert moved.batch_shape == (5, 3)
    assert_close(moved.mean, target)
    assert_close(law.with_mean(0.0).mean, torch.zeros(3, 2, dtype=F64))


def test_gradients_pass_through_the_mean() -> None:
    given = tuple(x.requires_grad_() for x in (_randn(3, 1), _randn(3), _randn(2, 3), _randn(2)))
    base = Gaussian(0.0, 1.0, event_dim=0).map(Tensor.double)

    def log_prob(weight: Tensor, bias: Tensor, readout: Tensor, mean: Tensor) -> Tensor:
        law = SNEFY(weight, bias, readout, base=base).with_mean(mean)
        return law.log_prob(torch.tensor([0.5, -0.3], dtype=F64))

    assert torch.autograd.gradcheck(log_prob, given)


def test_no_mean_to_move() -> None:
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match="Standardized: expected a base on the reals"):
        SNEFY(one, one[0], one, base=Interval(0.0, 1.0)).with_mean(0.0)
    with pytest.raises(ValueError, match="df > 2"):
        SNEFY(one, one[0], one, base=StudentT(1.5, 0.0, 1.0, event_dim=0)).with_mean(0.0)
    with pytest.raises(ValueError, match=r"mean with shape \(\*, 1\), got \(2,\)"):
        SNEFY(one, one[0], one).with_mean(torch.zeros(2))


def test_an_intercept_is_recovered() -> None:
    """Skewed noise beside an intercept and effects of groups: the intercept is the mean.

    Its standard error is 0.5 / √40 = 0.08; the band is five of them, and the start is zero.
    """
    pyro.clear_param_store()
    torch.manual_seed(4)
    groups, each, truth = 40, 25, 3.0
    effects = 0.5 * torch.randn(groups)
    noise = 0.6 * (dist.Exponential(1.0).sample((groups, each)) - 1)
    y = truth + effects.unsqueeze(-1) + noise
    family = snefy((), hidden_dim=8, readout_dim=2).initialize(y.flatten())

    def model() -> None:
        pyro.module("family", family)
        intercept = pyro.param("intercept", torch.tensor(0.0))
        with pyro.plate("groups", groups, dim=-2):
            effect = pyro.sample("effect", dist.Normal(0.0, 0.5).expand([1]))
            with pyro.plate("rows", each, dim=-1):
                pyro.sample("y", family().with_mean(intercept + effect), obs=y)

    svi = SVI(model, AutoDelta(model), ClippedAdam({"lr": 0.05, "lrd": 0.996}), Trace_ELBO())
    for _ in range(500):
        svi.step()
    assert abs(pyro.param("intercept").item() - truth) < 0.4
    pyro.clear_param_store()
