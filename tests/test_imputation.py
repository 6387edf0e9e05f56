"""Draws of what is not observed, given what is."""

import math

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from pyro_snefy import SNEFY, bases
from pyro_snefy.activations import Cos, Exp, Snake
from pyro_snefy.bases import Base, Gaussian, GaussianMixture, Product, UniformBox

NAN = math.nan
F64 = torch.float64


def _base(name: str) -> Base:
    eye = torch.eye(3, dtype=F64)
    lower = eye + 0.5 * eye.roll(1, 0).tril()
    return {
        "diagonal": lambda: Gaussian(torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64)),
        "full": lambda: Gaussian(torch.zeros(3, dtype=F64), scale_tril=lower),
        "mixture": lambda: GaussianMixture(
            torch.zeros(2, dtype=F64), torch.randn(2, 3, dtype=F64), torch.ones(2, 3, dtype=F64)
        ),
        "box": lambda: UniformBox(-torch.ones(3, dtype=F64), torch.ones(3, dtype=F64)),
        "boxes": lambda: bases.SmoothBoxMixture(
            torch.zeros(2, dtype=F64),
            torch.randn(2, 3, dtype=F64),
            torch.randn(2, 3, dtype=F64),
            torch.full((2, 3), 0.2, dtype=F64),
        ),
        "product": lambda: Product(
            [
                Gaussian(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64)),
                bases.Poisson(torch.tensor(2.0, dtype=F64)),
            ]
        ),
    }[name]()


def _joint(name: str, activation: Cos | Exp | Snake) -> SNEFY:
    weight, bias = 0.7 * torch.randn(6, 3, dtype=F64), torch.randn(6, dtype=F64)
    readout = torch.randn(2, 6, dtype=F64)
    return SNEFY(weight, bias, readout, activation=activation, base=_base(name))


@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), Exp(0.5)], ids=str)
@pytest.mark.parametrize("name", ["diagonal", "full", "mixture", "box", "boxes", "product"])
def test_missing_coordinates_follow_their_conditional_law(
    name: str, activation: Cos | Exp | Snake
) -> None:
    """One coordinate missing: its draws against the distribution function given the others.

    1e-4 is the rate of false alarms; a distance of 0.035 between distribution functions is seen.
    """
    joint = _joint(name, activation)
    row = joint.sample().tolist()
    value = torch.tensor([row[0], NAN, row[2]], dtype=F64)
    x = joint.partially_observed().impute(value, (4000,))
    assert bool((x[:, [0, 2]] == value[[0, 2]]).all())
    law = joint.conditional([0, 2], value[[0, 2]])
    assert stats.kstest(law.cdf(x[:, [1]]).numpy(), "uniform").pvalue > 1e-4


def test_every_row_has_its_pattern() -> None:
    joint = _joint("diagonal", Cos())
    value = joint.sample((5, 4))
    value[0, 0, 1] = value[1, :, 0] = value[2, 2, :] = value[3, 1, 1:] = NAN
    x = joint.partially_observed().impute(value, (7, 2))
    assert x.shape == (7, 2, 5, 4, 3)
    assert not bool(x.isnan().any())
    seen = ~value.isnan()
    assert_close(x[..., seen], value[seen].expand(7, 2, -1), rtol=0, atol=0)
    assert bool((x[0, 0][~seen] != x[1, 0][~seen]).all())


def test_a_batch_of_laws() -> None:
    """Members far apart: what is drawn for a row is that of its own."""
    loc = torch.tensor([[-50.0, -50.0], [50.0, 50.0]], dtype=F64)
    base = Gaussian(loc, torch.ones(2, dtype=F64))
    joint = SNEFY(torch.randn(4, 2, dtype=F64), None, torch.randn(1, 4, dtype=F64), base=base)
    value = torch.tensor([NAN, 0.0], dtype=F64) + loc
    value[1] = NAN
    x = joint.partially_observed().impute(value)
    assert bool((x - loc).abs().max() < 10)
    assert float(x[0, 1]) == -50.0


def test_nothing_observed_is_a_draw_of_the_joint_law() -> None:
    """False alarms: 2e-5 for three means; an error of 0.064 standard deviations is seen."""
    joint = _joint("diagonal", Snake(1.0))
    x = joint.partially_observed().impute(torch.full((5000, 3), NAN, dtype=F64))
    error = (joint.variance / 5000).sqrt()
    assert bool(((x.mean(0) - joint.mean).abs() < 4.5 * error).all())


def test_samples_are_complete() -> None:
    joint = _joint("diagonal", Cos())
    torch.manual_seed(0)
    x = joint.partially_observed().sample((3,))
    torch.manual_seed(0)
    assert torch.equal(x, joint.sample((3,)))
