"""Mixtures of two stretches of a density about its own centre, against the definition."""

import copy
import io
import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_snefy import SNEFY, conditional_snefy
from pyro_snefy.activations import Bump
from pyro_snefy.bases import Gaussian
from pyro_snefy.learning import Bias, ConditionalSNEFY
from pyro_snefy.learning.stretches import Stretches

F64 = torch.float64


def _likelihood(seed: int = 0, dtype: torch.dtype = F64) -> ConditionalSNEFY:
    """Two modes of different size, whose places and shapes depend on the context."""
    torch.manual_seed(seed)
    likelihood = conditional_snefy((), 2, hidden_dim=32, readout_dim=4, hidden_dims=(8,))
    with torch.no_grad():
        likelihood.readout.mul_(0.1)
        likelihood.readout[0, 12] += 1.0
        likelihood.readout[1, 18] += 0.5
        likelihood.net.layers[-1].weight.normal_(std=0.1)
        likelihood.loc.fill_(0.4)
        likelihood.scale.fill_(1.7)
    return likelihood.to(dtype)


def _centre(law: SNEFY) -> Tensor:
    """The mean of the third power of the density over the centres of the bumps."""
    loc, scale = law.base.loc, law.base.scale
    centres = -law.bias[1:] / law.weight[-1, 0]
    points = loc + scale * centres.unsqueeze(-1)  # (n, batch)
    share = (3 * law.log_prob(points)).softmax(0)
    return (share * points).sum(0)


def _stretched(law: SNEFY, x: Tensor, factor: float) -> Tensor:
    centre = _centre(law)
    return law.log_prob(centre + (x - centre) / factor) - math.log(factor)


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.5])
def test_one_stretch(factor: float) -> None:
    likelihood, context = _likelihood(), torch.randn(5, 2, dtype=F64)
    x = 3 * torch.randn(7, 5, dtype=F64)
    expected = _stretched(likelihood(context), x, factor)
    likelihood.stretches = Stretches(factor, 2 * factor, 1.0)
    assert_close(likelihood(context).log_prob(x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("near", "far"), [(0.5, 0.55), (0.5, 0.6), (0.6, 1.2), (1.0, 2.0)])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_two_stretches(near: float, far: float, share: float) -> None:
    """The distance in total variation, by a sum over a grid, and the flanks.

    The base is stretched at the centres of the bumps, and not between them. Flanks are where the
    bumps get to when they are stretched: beyond the reach of the basis that was learnt.
    """
    likelihood, context = _likelihood(), torch.randn(20, 2, dtype=F64)
    grid = torch.linspace(-25, 25, 20_001, dtype=F64).unsqueeze(-1)
    law = likelihood(context)
    expected = share * _stretched(law, grid, near).exp()
    expected = expected + (1 - share) * _stretched(law, grid, far).exp()
    likelihood.stretches = Stretches(near, far, share)
    stretched = likelihood(context)
    found = stretched.log_prob(grid).exp()
    step = (grid[1] - grid[0]).item()
    distance = 0.5 * (found - expected).abs().sum(0) * step
    assert distance.max() < 0.032
    # The reach of the basis is 3 before, and 3 b / a after.
    reached = (grid - stretched.base.loc).abs() / stretched.base.scale
    flanks = (reached > 3.0) & (reached < 2.7 * far / near) & (expected > 1e-4)
    assert ((found / expected).log()[flanks].abs() < 0.15).all()


def test_it_is_a_law() -> None:
    """It integrates to one, by a sum of 40,000 terms and the tails beyond, and has gradients."""
    likelihood = _likelihood()
    likelihood.stretches = Stretches(0.6, 1.4, 0.5)
    grid = torch.linspace(-20, 20, 40_001, dtype=F64)
    law = likelihood(torch.zeros(1, 2, dtype=F64))
    inside = law.log_prob(grid).exp().sum() * (grid[1] - grid[0])
    beyond = 1 - (law.cdf(grid[-1]) - law.cdf(grid[0]))
    assert (inside + beyond).item() == pytest.approx(1.0, abs=1e-6)
    law.log_prob(grid[::1000]).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in likelihood.net.parameters())


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_shapes_and_precision(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    likelihood, context = _likelihood(dtype=dtype), torch.randn((*shape, 2), dtype=dtype)
    likelihood.stretches = Stretches(0.5, 1.5, 0.5)
    law = likelihood(context)
    assert law.batch_shape == shape
    assert law.readout.shape == (*shape, 8, 92)  # 30 more bumps at each end
    x = torch.randn((4, *shape), dtype=dtype)
    log_prob = law.log_prob(x)
    assert log_prob.shape == (4, *shape)
    assert log_prob.dtype == dtype
    wide = copy.deepcopy(likelihood).double()
    expected = wide(context.double()).log_prob(x.double())
    assert_close(log_prob.double(), expected, rtol=1e-4, atol=1e-4)
    rows = torch.stack(
        [
            likelihood(c).log_prob(y)
            for c, y in zip(context.reshape(-1, 2), x[0].reshape(-1), strict=True)
        ]
    )
    assert_close(log_prob[0].reshape(-1), rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", [0.1, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("place", [1, 16, 31])
def test_bumps_of_any_width(precision: float, place: int) -> None:
    """No factor overflows, and nothing is lost, at the ends of the basis either."""
    likelihood = _likelihood()
    with torch.no_grad():
        likelihood.weight.mul_(precision)
        likelihood.bias.mul_(precision)
        likelihood.readout.zero_()
        likelihood.readout[0, place] = 1.0
    likelihood.stretches = Stretches(0.1, 1.0, 0.5)
    law = likelihood(torch.zeros(1, 2, dtype=F64))
    x = torch.linspace(-10, 10, 101, dtype=F64)
    assert law.log_prob(x).isfinite().all()
    assert law.readout.isfinite().all()


def test_a_readout_of_zeros() -> None:
    likelihood = _likelihood()
    with torch.no_grad():
        likelihood.readout.zero_()
        likelihood.net.layers[-1].weight.zero_()
        likelihood.readout[0, 0] = 1.0  # the base alone
    likelihood.stretches = Stretches(0.5, 1.5, 0.5)
    assert likelihood(torch.zeros(1, 2, dtype=F64)).log_prob(torch.zeros(1)).isfinite().all()


def test_neurons_that_stay_have_no_biases_of_contexts() -> None:
    base, net = Gaussian(torch.zeros(1), torch.ones(1)), torch.nn.Linear(1, 8)
    with pytest.raises(ValueError, match="expected no Bias among the heads"):
        ConditionalSNEFY(base, 1, net, 8, 2, Bump(), [Bias()], learn_neurons=False)


def test_saved_and_copied() -> None:
    likelihood, context, x = _likelihood(), torch.randn(5, 2, dtype=F64), torch.randn(5, dtype=F64)
    fresh = _likelihood(seed=1)
    assert fresh.load_state_dict(likelihood.state_dict())
    assert fresh.stretches is None
    likelihood.stretches = Stretches(0.5, 1.5, 0.6)
    expected = likelihood(context).log_prob(x)
    file = io.BytesIO()
    torch.save(likelihood.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    for other in (fresh, copy.deepcopy(likelihood)):
        assert torch.equal(other(context).log_prob(x), expected)
    assert "stretches=Stretches(near=0.5, far=1.5, share=0.6)" in repr(likelihood)
