"""Waves on Gaussian bases, in batches of all kinds, against the rule for all Fourier bases."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close

from pyro_snefy import SNEFY
from pyro_snefy.activations import Cos, Sin, Snake
from pyro_snefy.bases import FourierBase, Gaussian
from pyro_snefy.kernels import Separable, kernel
from pyro_snefy.numerics.forms import Readout
from pyro_snefy.numerics.linalg import take
from pyro_snefy.operations.missing import patterns_of

WAVES = pytest.mark.parametrize(
    "activation", [Cos(), Sin(), Snake(), Snake(0.7, offset=False)], ids=str
)


def _randn(*shape: int, factor: float = 1.0) -> Tensor:
    return (factor * torch.randn(shape, dtype=torch.float64)).requires_grad_()


def _normalizer(activation: Any, tensors: list[Tensor], full: bool, generic: bool) -> Tensor:
    weight, loc, scale, bias, readout = tensors
    base = Gaussian(loc, None if full else scale, scale_tril=scale if full else None)
    neurons = kernel(activation, base, weight, FourierBase if generic else None)
    assert isinstance(neurons, Separable)
    if not generic:
        return neurons.log_normalizer(Readout(readout), bias)
    _, matrix = neurons.matrix(bias)
    return ((readout.mT @ readout) * matrix).sum((-2, -1)).log()


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


def _rows(rows: int, full: bool, n: int = 4, d: int = 2, m: int = 3) -> tuple[list[Tensor], Tensor]:
    """Weights, means, factors of covariances, biases and readouts, and an event for each row."""
    factor = 0.3 * torch.randn(d, d).double().tril() + torch.eye(d).double()
    scale = (factor if full else factor.diagonal().exp()).clone().requires_grad_()
    return [_randn(n, d), _randn(d), scale, _randn(rows, n), _randn(m, n)], _randn(rows, d)


def _law(activation: Any, tensors: list[Tensor]) -> SNEFY:
    weight, loc, scale, bias, readout = tensors
    full = scale.dim() == 2
    base = Gaussian(loc, None if full else scale, scale_tril=scale if full else None)
    return SNEFY(weight, bias, readout, activation=activation, base=base)


@WAVES
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_events_in_rows(activation: Any, full: bool) -> None:
    """An event for each bias, where square and normaliser are one function."""
    tensors, x = _rows(6, full)
    d = _law(activation, tensors)
    value = d.log_prob(x)
    # The same one row after the other, where they are two.
    each = [_law(activation, [*tensors[:3], b, tensors[4]]) for b in tensors[3]]
    expected = torch.stack([law.log_prob(row) for law, row in zip(each, x, strict=True)])
    assert_close(value, expected, rtol=1e-12, atol=1e-12)
    leaves, weights = [*tensors, x], torch.randn_like(value)
    for _ in range(2):  # what is saved for the gradient is not used up by it
        found = torch.autograd.grad(value, leaves, weights, retain_graph=True)
        for gradient, other in zip(
            found, torch.autograd.grad(expected, leaves, weights, retain_graph=True), strict=True
        ):
            assert_close(gradient, other, rtol=1e-10, atol=1e-10)


@WAVES
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_derivatives_of_rows(activation: Any, full: bool) -> None:
    tensors, x = _rows(2, full, n=3, m=2)

    def log_prob(*tensors: Tensor) -> Tensor:
        *parameters, x = tensors
        if full:  # gradcheck moves zeros, too
            parameters[2] = parameters[2].tril()
        return _law(activation, parameters).log_prob(x)

    assert torch.autograd.gradcheck(log_prob, (*tensors, x))
    assert torch.autograd.gradgradcheck(log_prob, (*tensors, x))


@WAVES
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("bias", [(), (5,), (2, 5)], ids=str)
def test_readouts_in_rows(activation: Any, full: bool, bias: tuple[int, ...]) -> None:
    """A readout for each row, against the generic kernel."""
    (weight, loc, scale, _, _), _ = _rows(1, full)
    tensors = [weight, loc, scale, _randn(*bias, 4), _randn(5, 3, 4)]
    value = _normalizer(activation, tensors, full, generic=False)
    expected = _normalizer(activation, tensors, full, generic=True)
    assert_close(value, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(value)
    found = torch.autograd.grad(value, tensors, weights)
    for gradient, other in zip(found, torch.autograd.grad(expected, tensors, weights), strict=True):
        assert_close(gradient, other, rtol=1e-9, atol=1e-9)


@WAVES
@pytest.mark.parametrize("gram", [False, True], ids=["readout", "gram"])
def test_forms_in_other_dimensions(activation: Any, gram: bool) -> None:
    """Batches of readouts and of biases that broadcast, as many readouts as a snake has parts."""
    weight, bias, form = _randn(4, 1), _randn(3, 4), _randn(2, 1, 5, 4)
    matrices = form.mT @ form if gram else form
    name = "gram" if gram else "readout"
    base = Gaussian(torch.tensor(0.3).double(), torch.tensor(1.2).double(), event_dim=0)
    d = SNEFY(weight, bias, activation=activation, base=base, **{name: matrices})
    assert d.batch_shape == (2, 3)
    for j in range(2):
        for k in range(3):
            one = {name: matrices[j, 0]}
            law = SNEFY(weight, bias[k], activation=activation, base=base, **one)
            assert_close(d.log_normalizer[j, k], law.log_normalizer, rtol=1e-12, atol=1e-12)


def _assert_single_precision(activation: Any, parameters: list[Tensor], x: Tensor) -> None:
    # Log-densities and gradients in float32 are those in float64, to 1e-5.
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [y.to(dtype).requires_grad_() for y in parameters]
        value = SNEFY(*leaves, activation=activation).log_prob(x.to(dtype))
        assert value.dtype == dtype
        found.append([value, *torch.autograd.grad(value.sum(), leaves)])
    for single, double in zip(*found, strict=True):
        assert (single - double).abs().max() <= 1e-5 * double.abs().max().clamp(min=1)


@WAVES
def test_readouts_in_rows_in_single_precision(activation: Any) -> None:
    """Neurons without weights, too, which do not fluctuate."""
    weight = torch.cat([torch.zeros(2, 3), torch.randn(6, 3)])
    parameters, x = [weight, torch.randn(20, 8), torch.randn(20, 4, 8)], torch.randn(20, 3)
    _assert_single_precision(activation, parameters, x)


@WAVES
def test_second_derivatives_of_readouts_in_rows(activation: Any) -> None:
    tensors, x = [_randn(3, 1), _randn(2, 3), _randn(2, 2, 3)], _randn(2, 1)

    def log_prob(*tensors: Tensor) -> Tensor:
        return SNEFY(*tensors[:3], activation=activation, validate_args=False).log_prob(tensors[3])

    assert torch.autograd.gradcheck(log_prob, (*tensors, x))
    assert torch.autograd.gradgradcheck(log_prob, (*tensors, x))


@WAVES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rows_integrate_to_one(activation: Any, dtype: torch.dtype) -> None:
    grid = torch.linspace(-12, 12, 4001, dtype=dtype)
    weight, readout = torch.randn(5, 1, dtype=dtype), torch.randn(2, 5, dtype=dtype)
    bias = torch.randn(3, 1, 5, dtype=dtype).expand(3, len(grid), 5)
    base = Gaussian(torch.tensor(0.3, dtype=dtype), torch.tensor(1.4, dtype=dtype), event_dim=0)
    d = SNEFY(weight, bias, readout, activation=activation, base=base)
    mass = torch.trapezoid(d.log_prob(grid.expand(3, -1)).exp(), grid)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-9
    assert_close(mass, torch.ones_like(mass), rtol=tolerance, atol=tolerance)


@WAVES
def test_rows_in_single_precision(activation: Any) -> None:
    parameters, x = [torch.randn(8, 3), torch.randn(20, 8), torch.randn(4, 8)], torch.randn(20, 3)
    _assert_single_precision(activation, parameters, x)


@WAVES
def test_rows_in_chunks(activation: Any) -> None:
    rows, n = 5000, 64  # more than are held at once
    weight, readout = torch.randn(n, 2).double(), torch.randn(3, n).double()
    bias, x = torch.randn(rows, n).double(), torch.randn(rows, 2).double()
    found = []
    for pieces in (1, 10):
        leaves = [y.clone().requires_grad_() for y in (weight, readout)]
        value = torch.cat(
            [
                SNEFY(leaves[0], b, leaves[1], activation=activation, validate_args=False).log_prob(
                    y
                )
                for b, y in zip(bias.chunk(pieces), x.chunk(pieces), strict=True)
            ]
        )
        found.append([value, *torch.autograd.grad(value.sum(), leaves)])
    for whole, pieces_ in zip(*found, strict=True):
        assert_close(whole, pieces_, rtol=1e-9, atol=1e-9)


@WAVES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rows_of_zeros(activation: Any, dtype: torch.dtype) -> None:
    """Without a readout, and where all neurons are zero."""
    weight, bias = _randn(3, 2).to(dtype), _randn(4, 3).to(dtype)
    leaves = [y.detach().requires_grad_() for y in (weight, bias, torch.zeros(2, 3, dtype=dtype))]
    x = torch.randn(4, 2, dtype=dtype)
    value = SNEFY(*leaves, activation=activation, validate_args=False).log_prob(x)
    assert (value == -torch.inf).all()
    for gradient in torch.autograd.grad(value.sum(), leaves):
        assert (gradient == 0).all()
    if isinstance(activation, Sin):
        bias = torch.cat([torch.zeros(1, 3, dtype=dtype), bias.detach()[1:]]).requires_grad_()
        leaves = [leaves[0], bias, torch.ones(2, 3, dtype=dtype).requires_grad_()]
        value = SNEFY(*leaves, activation=activation).log_prob(x * torch.arange(4).unsqueeze(-1))
        assert value[0] == -torch.inf and value[1:].isfinite().all()
        for gradient in torch.autograd.grad(value.sum(), leaves):
            assert gradient.isfinite().all()


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
    patterns, pattern = patterns_of(observed)
    assert torch.equal(patterns[pattern], observed)
    assert len(patterns) == len(observed.unique(dim=0))
