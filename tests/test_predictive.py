"""What is asked of the law of one coordinate: levels, regions, modes, scores."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from pyro_snefy import SNEFY, conditional_snefy
from pyro_snefy.activations import Snake
from pyro_snefy.bases import Gaussian

F64 = torch.float64
NORMAL = Gaussian(0.0, 1.0, event_dim=0)


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


def _normal(loc: Tensor, scale: Tensor) -> SNEFY:
    """Normal laws themselves: one constant neuron."""
    base = Gaussian(loc, scale, event_dim=0)
    return SNEFY(loc.new_zeros(1, 1), loc.new_zeros(1), loc.new_ones(1, 1), base=base)


def _likelihood(rows: int, dtype: torch.dtype = F64) -> SNEFY:
    """The default likelihood with readouts that differ from row to row."""
    model = conditional_snefy((), 2).to(dtype)
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
        return model(torch.randn(rows, 2, dtype=dtype))


def test_lists_of_levels_come_before_the_batch() -> None:
    loc, scale = torch.tensor([0.0, 1.0, -2.0], dtype=F64), torch.tensor([1.0, 2.0, 0.5], dtype=F64)
    law = _normal(loc, scale)
    levels = [0.05, 0.5, 0.75, 0.95]
    expected = stats.norm(loc.numpy(), scale.numpy()).ppf(np.array(levels)[:, None])
    assert_close(law.icdf(levels), torch.as_tensor(expected), rtol=1e-9, atol=1e-12)
    assert_close(law.icdf(tuple(levels)), law.icdf(levels))
    assert_close(law.icdf(0.5), loc, rtol=0, atol=1e-9)
    each = torch.tensor([0.1, 0.2, 0.9], dtype=F64)  # a tensor: one level for each law
    assert_close(law.icdf(each), torch.as_tensor(stats.norm(loc, scale).ppf(each)))
    single = _normal(torch.tensor(0.0), torch.tensor(1.0))
    assert single.icdf(levels).shape == (4,)
    assert single.icdf(levels).dtype == torch.float32


def test_levels_of_marginals_and_censored_laws() -> None:
    joint = SNEFY(_randn(4, 2), _randn(5, 4), _randn(2, 4), activation=Snake())
    marginal = joint.marginal([1])
    found = marginal.icdf([0.1, 0.9])
    assert found.shape == (2, 5, 1)
    levels = torch.tensor([[0.1], [0.9]], dtype=F64).expand(2, 5)
    assert_close(marginal.cdf(found), levels, rtol=1e-9, atol=0)
    censored = _normal(torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64)).censored(low=-0.5)
    expected = torch.as_tensor(stats.norm.ppf([0.1, 0.9])).clamp(min=-0.5)
    assert_close(censored.icdf([0.1, 0.9]), expected.unsqueeze(-1).expand(2, 3))


@pytest.mark.parametrize("level", ["0.5", None, [[0.1], [0.2]], ["a"]])
def test_levels_are_numbers(level: Any) -> None:
    with pytest.raises(TypeError, match=r"list of numbers or a Tensor, got"):
        _normal(torch.zeros(2), torch.ones(2)).icdf(level)


def test_levels_that_do_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"batch shape \(2,\), got shape \(3,\)"):
        _normal(torch.zeros(2), torch.ones(2)).icdf(torch.tensor([0.1, 0.5, 0.9]))
    with pytest.raises(ValueError, match="probabilities between 0 and 1"):
        _normal(torch.zeros(2), torch.ones(2)).icdf([0.5, 1.5])
