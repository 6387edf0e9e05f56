"""Boxes with smeared edges: densities with all digits, and their limits, which have other names."""

import math

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_snefy import SNEFY
from pyro_snefy.activations import Activation, Cis, Cos, Exp, Sin, Snake
from pyro_snefy.bases import Gaussian, GaussianMixture, SmoothBox, SmoothBoxMixture, UniformBox
from pyro_snefy.numerics.segments import log_mean_density

F64 = torch.float64
WAVES_AND_EXP = [Cos(), Sin(), Cis(), Snake(1.0), Exp(0.5)]


def _t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


def _exact(a: float, b: float) -> tuple[float, float, float]:
    """The logarithm of the mean density between two points, and its derivatives."""
    if a + b < 0:  # in the upper tail, complements of the distribution function have digits
        value, first, second = _exact(-a, -b)
        return value, -first, -second
    with mpmath.workdps(60):
        low, high = mpmath.mpf(a), mpmath.mpf(b)
        if low == high:
            return float(mpmath.log(mpmath.npdf(low))), -a / 2, -a / 2
        root = mpmath.sqrt(2)
        mass = (mpmath.erfc(low / root) - mpmath.erfc(high / root)) / 2
        slopes = -mpmath.npdf(low) / mass, mpmath.npdf(high) / mass
        length = high - low
        value = mpmath.log(mass / length)
        return float(value), float(slopes[0] + 1 / length), float(slopes[1] - 1 / length)


LENGTHS = (0.0, 1e-9, 1e-3, 0.1, 0.25, 0.49, 0.51, 1.0, 3.0, 50.0, 3000.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("middle", [0.0, 1e-8, 0.5, 1.0, 3.0, 10.0, 100.0, 1000.0])
def test_mean_density(middle: float, length: float, dtype: torch.dtype) -> None:
    """Narrow and wide, in the middle and in both tails, with gradients in both points."""
    eps = torch.finfo(dtype).eps
    for sign in (1.0, -1.0):
        a = torch.tensor(sign * (middle - length / 2), dtype=dtype, requires_grad=True)
        b = torch.tensor(sign * (middle + length / 2), dtype=dtype, requires_grad=True)
        value = log_mean_density(a, b)
        slopes = torch.autograd.grad(value, (a, b))
        expected = _exact(a.item(), b.item())
        for found, exact in zip((value, *slopes), expected, strict=True):
            assert float(found.detach()) == pytest.approx(exact, rel=60 * eps, abs=60 * eps)


def test_gradients_of_mean_density() -> None:
    """Of both orders, where points are close and where they are not."""
    a = _t(0.3, -2.0, 1.0, 0.0, 4.0).requires_grad_()
    b = _t(0.35, 1.0, 1.0 + 1e-3, 5.0, 4.4).requires_grad_()
    assert torch.autograd.gradcheck(log_mean_density, (a, b))
    assert torch.autograd.gradgradcheck(log_mean_density, (a, b))


def _law(base: object, activation: Activation) -> SNEFY:
    torch.manual_seed(0)
    readout = _randn(2, 5)
    if isinstance(activation, Cis):
        readout = torch.complex(readout, _randn(2, 5))
    return SNEFY(0.7 * _randn(5, 2), _randn(5), readout, activation=activation, base=base)


@pytest.mark.parametrize("activation", WAVES_AND_EXP, ids=str)
def test_edges_that_meet(activation: Activation) -> None:
    """A box without an extent is a normal law, and a mixture of such boxes a mixture of those."""
    loc, scale, x = _t(0.3, -1.0), _t(0.5, 2.0), _randn(7, 2)
    box, normal = SmoothBox(loc, loc, scale), Gaussian(loc, scale)
    assert_close(_law(box, activation).log_prob(x), _law(normal, activation).log_prob(x))
    logits, locs = _t(0.2, -0.3), torch.stack([loc, -loc])
    boxes = SmoothBoxMixture(logits, locs, locs, torch.stack([scale, scale / 2]))
    normals = GaussianMixture(logits, locs, torch.stack([scale, scale / 2]))
    one, other = _law(boxes, activation), _law(normals, activation)
    assert_close(one.log_prob(x), other.log_prob(x))
    assert_close(one.mean, other.mean)
    assert_close(one.covariance_matrix, other.covariance_matrix)
    assert_close(
        one.conditional([1], x[:, 1:]).log_prob(x[:, :1]),
        other.conditional([1], x[:, 1:]).log_prob(x[:, :1]),
    )


@pytest.mark.parametrize("activation", WAVES_AND_EXP, ids=str)
def test_sharp_edges(activation: Activation) -> None:
    """Inside, a box with a tiny scale is a uniform law; its square is negligible."""
    low, high = _t(-1.0, 0.5), _t(0.5, 3.0)
    x = low + (high - low) * (0.01 + 0.98 * torch.rand(7, 2, dtype=F64))
    smooth, sharp = SmoothBox(low, high, _t(1e-7, 1e-7)), UniformBox(low, high)
    one, other = _law(smooth, activation), _law(sharp, activation)
    assert_close(one.log_prob(x), other.log_prob(x), rtol=0, atol=1e-9)
    assert_close(
        one.marginal([0]).cdf(x[:, :1]), other.marginal([0]).cdf(x[:, :1]), rtol=0, atol=1e-7
    )
    beyond = torch.stack([low - 1e-5, high + 1e-5])
    assert bool((one.log_prob(beyond) < -1000).all())


@pytest.mark.parametrize("activation", WAVES_AND_EXP, ids=str)
def test_edges_change_places(activation: Activation) -> None:
    low, high, scale, x = _t(-1.0, 0.5), _t(0.5, -3.0), _t(0.2, 0.1), _randn(7, 2)
    one = _law(SmoothBox(low, high, scale), activation)
    other = _law(SmoothBox(high, low, scale), activation)
    assert_close(one.log_prob(x), other.log_prob(x))
    assert_close(one.mean, other.mean)
    torch.manual_seed(0)
    first = one.sample((20,))
    torch.manual_seed(0)
    assert_close(first, other.sample((20,)))


def test_float32_far_from_the_origin() -> None:
    """Distances from edges are differences of near numbers, which float32 has exactly."""
    low, high, scale = torch.tensor([1000.0]), torch.tensor([1001.0]), torch.tensor([1e-3])
    x = torch.tensor([[1000.0], [1000.5], [1001.0], [999.995]])
    wide = SmoothBox(low.double(), high.double(), scale.double()).log_density(x.double())
    assert_close(SmoothBox(low, high, scale).log_density(x).double(), wide, rtol=1e-5, atol=1e-5)


def test_noise_is_a_larger_scale() -> None:
    """The density of a box plus noise, against an average over the noise."""
    box = SmoothBox(_t(-1.0), _t(2.0), _t(0.3))
    noise, x = 0.4, _t(-2.0, -0.5, 1.0, 2.3).unsqueeze(-1)
    nodes, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(60))
    density = box.log_density(x.unsqueeze(-2) - noise * nodes.unsqueeze(-1)).exp()
    expected = density @ (weights / math.sqrt(2 * math.pi))
    wider = SmoothBox(box.low, box.high, torch.hypot(box.scale, _t(noise)))
    assert_close(wider.log_density(x).exp(), expected, rtol=1e-9, atol=1e-12)
