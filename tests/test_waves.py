"""Passes by hand of waves on Gaussian bases, against the generic kernels and autograd."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close

from pyro_snefy import SNEFY
from pyro_snefy.activations import Cos, Sin, Snake
from pyro_snefy.bases import Gaussian
from pyro_snefy.forms import Readout
from pyro_snefy.kernels import Separable, kernel
from pyro_snefy.kernels.waves import WaveGaussian
from pyro_snefy.linalg import take
from pyro_snefy.missing import _patterns

WAVES = pytest.mark.parametrize(
    "activation", [Cos(), Sin(), Snake(), Snake(0.7, offset=False)], ids=str
)


def _randn(*shape: int, factor: float = 1.0) -> Tensor:
    return (factor * torch.randn(shape, dtype=torch.float64)).requires_grad_()


def _normalizer(activation: Any, tensors: list[Tensor], full: bool, generic: bool) -> Tensor:
    weight, loc, scale, bias, readout = tensors
    base = Gaussian(loc, None if full else scale, scale_tril=scale if full else None)
    neurons = kernel(activation, base, weight)
    assert isinstance(neurons, WaveGaussian)
    if not generic:
        return neurons.log_normalizer(Readout(readout), bias)
    separable = Separable(neurons.blocks, neurons.features)
    return separable.log_normalizer(Readout(readout), bias)


@WAVES
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize(
    ("base", "bias"),
    [
        ((), ()),
        ((), (6,)),
        ((), (2, 3)),
        ((3,), ()),
        ((3,), (3,)),
        ((3,), (4, 1)),
        ((2, 1), (2, 5)),
        ((2, 1, 3), (2, 4, 1)),
        ((1,), (4,)),
    ],
    ids=str,
)
def test_generic(activation: Any, full: bool, base: tuple[int, ...], bias: tuple[int, ...]) -> None:
    n, d, m = 4, 2, 3
    scale = _randn(*base, d, d, factor=0.3) if full else _randn(*base, d)
    scale = scale.detach()
    scale = (scale.tril() + torch.eye(d).double() if full else scale.exp()).requires_grad_()
    tensors = [_randn(n, d), _randn(*base, d), scale, _randn(*bias, n), _randn(m, n)]
    value = _normalizer(activation, tensors, full, generic=False)
    expected = _normalizer(activation, tensors, full, generic=True)
    assert_close(value, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(value)
    for _ in range(2):  # what is saved for the gradient is not used up by it
        found = torch.autograd.grad(value, tensors, weights, retain_graph=True)
        for gradient, other in zip(
            found, torch.autograd.grad(expected, tensors, weights, retain_graph=True), strict=True
        ):
            assert_close(gradient, other, rtol=1e-10, atol=1e-10)


@WAVES
def test_row_means(activation: Any) -> None:
    """Means that differ from row to row, of laws with one covariance."""
    loc, scale = _randn(5, 2), torch.tensor([[0.9, 0.0], [-0.4, 0.7]]).double().requires_grad_()
    tensors = [_randn(3, 2), loc, scale, _randn(5, 3), _randn(2, 3)]
    value = _normalizer(activation, tensors, True, generic=False)
    expected = _normalizer(activation, tensors, True, generic=True)
    assert_close(value, expected, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad(value.sum(), tensors)
    for gradient, other in zip(found, torch.autograd.grad(expected.sum(), tensors), strict=True):
        assert_close(gradient, other, rtol=1e-10, atol=1e-10)


def _log_normalizers(
    activation: Any, parameters: list[Tensor], dtype: torch.dtype
) -> tuple[Tensor, tuple[Tensor, ...]]:
    leaves = [x.to(dtype).requires_grad_() for x in parameters]
    value = SNEFY(*leaves, activation=activation, validate_args=False).log_normalizer
    weights = torch.linspace(-1, 2, value.numel(), dtype=dtype).reshape(value.shape)
    return value, torch.autograd.grad(value, leaves, weights)


@WAVES
def test_single_precision(activation: Any) -> None:
    parameters = [torch.randn(8, 3), torch.randn(20, 8), torch.randn(4, 8)]
    value, gradients = _log_normalizers(activation, parameters, torch.float32)
    expected, others = _log_normalizers(activation, parameters, torch.float64)
    assert value.dtype == torch.float32
    assert_close(value.double(), expected, rtol=1e-6, atol=1e-6)
    for gradient, other in zip(gradients, others, strict=True):
        assert (gradient - other).abs().max() <= 1e-5 * other.abs().max()


@WAVES
def test_cancelling_rows(activation: Any) -> None:
    """Neurons that almost cancel in every row: a condition number of about 1e8."""
    weight = torch.tensor([[0.7], [0.7 + 2.0**-14]])
    bias = torch.linspace(-1, 1, 7).unsqueeze(-1).expand(7, 2)
    parameters = [weight, bias.contiguous(), torch.tensor([[1.0, -1.0]])]
    value, gradients = _log_normalizers(activation, parameters, torch.float32)
    expected, others = _log_normalizers(activation, parameters, torch.float64)
    assert_close(value.double(), expected, rtol=0, atol=2e-4)
    # Gradients are as large as the root of that number, and lose as much of single precision.
    for gradient, other in zip(gradients, others, strict=True):
        assert (gradient - other).abs().max() <= 1e-2 * other.abs().max()


@WAVES
def test_silent_readout(activation: Any) -> None:
    weight, bias, readout = _randn(3, 2), _randn(4, 3), torch.zeros(2, 3).double().requires_grad_()
    value = SNEFY(weight, bias, readout, activation=activation, validate_args=False).log_normalizer
    assert (value == -torch.inf).all()
    for gradient in torch.autograd.grad(value.sum(), (weight, bias, readout)):
        assert (gradient == 0).all()


@WAVES
def test_forward_mode(activation: Any) -> None:
    weight, bias, readout = _randn(3, 2), _randn(4, 3), _randn(2, 3)

    def log_normalizer(weight: Tensor) -> Tensor:
        d = SNEFY(weight, bias, readout, activation=activation, validate_args=False)
        return d.log_normalizer.sum()

    (gradient,) = torch.autograd.grad(log_normalizer(weight), weight)
    direction = torch.randn_like(weight)
    expected = (gradient * direction).sum()
    _, slope = torch.func.jvp(log_normalizer, (weight,), (direction,))
    assert_close(slope, expected)
    with forward_ad.dual_level():
        dual = log_normalizer(forward_ad.make_dual(weight.detach(), direction))
        assert_close(forward_ad.unpack_dual(dual).tangent, expected)


@pytest.mark.parametrize("dims", [[0], [2], [0, 1, 2, 3], [1, 3], [3, 1], [0, 1, 3]], ids=str)
def test_take(dims: list[int]) -> None:
    x = torch.randn(2, 4)
    assert torch.equal(take(x, dims), x[..., dims])


@pytest.mark.parametrize("d", [1, 3, 62, 63])
def test_patterns(d: int) -> None:
    observed = torch.rand(20, d) < 0.5
    observed[10:] = observed[:10]
    observed[0] = True
    patterns, pattern = _patterns(observed)
    assert torch.equal(patterns[pattern], observed)
    assert len(patterns) == len(observed.unique(dim=0))
