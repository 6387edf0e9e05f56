"""Single precision of every pair: what comes of the same parameters in double precision."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_snefy import SNEFY, bases
from pyro_snefy.activations import (
    GELU,
    Activation,
    Bump,
    Cos,
    Erf,
    Exp,
    Identity,
    LeakyReLU,
    ReLU,
    Sin,
    Snake,
)
from tests import oracle
from tests.cases import KINDS, Case, events

EPS = torch.finfo(torch.float32).eps


def _cast(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype.to_complex() if x.is_complex() else dtype)


def _pair(case: Case, weight: Tensor, bias: Tensor | None, readout: Tensor) -> tuple[SNEFY, SNEFY]:
    """The same member in both precisions: double precision takes what single could represent."""
    rounded = [_cast(x, torch.float32) for x in (weight, bias, readout)]
    base = case.base(torch.float32)
    # Neurons that are never active have no normaliser, in either precision.
    given = {"activation": case.activation, "validate_args": False}
    single = SNEFY(*rounded, base=base, **given)
    wide = [_cast(x, torch.float64) for x in rounded]
    return single, SNEFY(*wide, base=base.map(lambda x: x.double()), **given)


def _assert_close(single: SNEFY, double: SNEFY) -> None:
    value, expected = single.log_normalizer, double.log_normalizer
    assert value.dtype == torch.float32
    if expected == -torch.inf:
        assert value == -torch.inf
        return
    # Large logarithms have no more digits than the dtype.
    tolerance = 2e-4 + EPS * (double.condition_number + expected.abs())
    assert (value - expected).abs() <= tolerance


def _gradients(d: SNEFY) -> list[Tensor]:
    tensors = [d.weight, d.bias, d.readout]
    leaves = [x.detach().clone().requires_grad_() for x in tensors if x is not None]
    weight, bias, readout = leaves if d.bias is not None else (leaves[0], None, leaves[1])
    copy = SNEFY(weight, bias, readout, activation=d.activation, base=d.base, validate_args=False)
    return list(torch.autograd.grad(copy.log_normalizer, leaves, materialize_grads=True))


def _assert_finite(single: SNEFY, double: SNEFY) -> None:
    # What overflows in single precision is what does not fit into it.
    largest = torch.finfo(torch.float32).max
    assert single.log_normalizer.isfinite() == (double.log_normalizer.abs() < largest)
    for value, expected in zip(_gradients(single), _gradients(double), strict=True):
        assert expected.isfinite().all()
        assert (value.isfinite() | (expected.abs() > largest)).all()


def _check(case: Case, weight: Tensor, bias: Tensor | None, readout: Tensor) -> None:
    single, double = _pair(case, weight, bias, readout)
    _assert_close(single, double)
    _assert_finite(single, double)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_random(case: Case) -> None:
    for scale in (0.3, 2.0):
        _check(case, *case.parameters(n=5, scale=scale))


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_log_prob(case: Case) -> None:
    single, double = _pair(case, *case.parameters(n=8))
    x = events(case, 50, torch.float32)
    value, expected = single.log_prob(x), double.log_prob(x.double())
    assert value.dtype == torch.float32
    # Preactivations round, and then the sum over the neurons loses what cancels in it. Their
    # slopes and sizes are of order one, apart from powers of rectifiers and exponentials.
    assert torch.equal(value == -torch.inf, expected == -torch.inf)
    finite = expected > -torch.inf
    value, expected = value[finite], expected[finite]
    log_base = double.base.log_density(x[finite].double())
    lost = (expected + double.log_normalizer - log_base).neg().exp()
    tolerance = 2e-4 + EPS * (double.condition_number + expected.abs() + 1e3 * lost.sqrt())
    assert ((value - expected).abs() <= tolerance).all()


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_degenerate_weights(case: Case) -> None:
    weight, bias, readout = case.parameters(n=4)
    weight[1] = weight[0]
    weight[2] = -weight[0]
    weight[3] = 0
    _check(case, case.natural(weight), bias, readout)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_large_weights(case: Case) -> None:
    weight, bias, readout = case.parameters(n=4)
    weight = 30 * torch.nn.functional.normalize(weight, dim=-1)
    _check(case, case.natural(weight), bias, readout)


@pytest.mark.parametrize("case", [case for case in KINDS if case.has_bias], ids=str)
def test_large_biases(case: Case) -> None:
    weight, _, readout = case.parameters(n=4)
    bias = torch.tensor([20.0, -20.0, 1.0, 0.0], dtype=torch.float64)
    _check(case, weight, bias, readout)
    _check(case, weight[:1], bias[1:2], readout[:, :1])


# ---------------------------------------------------------------------------- ill conditioning


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_cancelling_neurons(case: Case) -> None:
    """Neurons that are nearly equal, read with opposite signs: a derivative, almost.

    A normaliser in single precision would be noise, of either sign.
    """
    weight, bias, _ = case.parameters(n=1)
    nearly = weight * (1 + 1e-5)  # still in every natural parameter space
    readout = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    if case.activation_name == "Cis":
        readout = readout * (1 + 1j)
    weight = torch.cat([weight, nearly])
    bias = None if bias is None else torch.cat([bias, bias])
    single, double = _pair(case, weight, bias, readout)
    _assert_finite(single, double)
    value, expected = single.log_normalizer, double.log_normalizer
    if expected == -torch.inf:
        assert value == -torch.inf
        return
    # The condition number is about 1e10: no part of it is left in the error.
    assert (value - expected).abs() <= 2e-4 + EPS * expected.abs()


@pytest.mark.parametrize(
    ("activation", "name"),
    [
        (Cos(), "cos"),
        (Sin(), "sin"),
        (Snake(), "snake"),
        (Exp(), "exp"),
        (Identity(), "identity"),
        (Erf(), "erf"),
        (ReLU(), "relu"),
    ],
    ids=str,
)
def test_near_singular_kernel(activation: object, name: str) -> None:
    """A condition number of 1e8 and more, against quadrature of what is integrated."""
    weight = torch.tensor([[0.7], [0.7 + 2.0**-14]])
    bias = torch.tensor([0.3, 0.3])
    readout = torch.tensor([[1.0, -1.0]])
    d = SNEFY(weight, bias, readout, activation=activation)
    assert d.condition_number >= 1e8
    x, weights = _legendre(-12.0, 12.0)
    sigma = oracle.activation(name).value
    neurons = sigma(x[:, None] * weight.double().numpy()[:, 0] + bias.double().numpy())
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    square = (neurons[:, 0] - neurons[:, 1]) ** 2
    expected = float(np.log(weights @ (square * density)))
    assert float(d.log_normalizer) == pytest.approx(expected, abs=2e-4)
    # The density is what it is, not its error.
    y = torch.tensor([[1.5]])
    assert d.log_prob(y).isfinite().all()


def _legendre(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(8)
    ends = np.linspace(low, high, 2001)
    half = np.diff(ends)[:, None] / 2
    centres = (ends[1:] + ends[:-1])[:, None] / 2
    return (centres + half * nodes).ravel(), (half * weights).ravel()


@pytest.mark.parametrize("d", [2, 3, 10])
@pytest.mark.parametrize("kappa", [0.0, 1e2, 1e6])
def test_concentrated_on_the_sphere(d: int, kappa: float) -> None:
    weight = kappa / 2 * torch.nn.functional.normalize(torch.randn(3, d), dim=-1)
    bias, readout = torch.randn(3), torch.randn(2, 3)
    base = bases.UniformSphere(d)
    single = SNEFY(weight, bias, readout, activation=Exp(), base=base)
    double = SNEFY(weight.double(), bias.double(), readout.double(), activation=Exp(), base=base)
    _assert_close(single, double)
    _assert_finite(single, double)
    # At its mode the density is that of a member: differences of 1e6 come right.
    x = torch.nn.functional.normalize(weight[:1] + 1e-3, dim=-1)
    error = (single.log_prob(x) - double.log_prob(x.double())).abs()
    assert (error <= 2e-4 + EPS * kappa).all()


def test_powers_do_not_overflow() -> None:
    """The eighth power of 1e5 is beyond float32, its logarithm is not: x^16 φ(x) / E[(x)_+^16]."""
    base = bases.Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    d = SNEFY(torch.ones(1, 1), None, torch.ones(1, 1), activation=ReLU(8), base=base)
    x = np.array([1e-4, 0.5, 3.0, 1e2, 1e5])
    moment = np.prod(np.arange(1.0, 16.0, 2.0)) / 2  # half of the moment of a normal variable
    expected = 16 * np.log(x) - x**2 / 2 - np.log(2 * np.pi) / 2 - np.log(moment)
    value = torch.tensor(x, dtype=torch.float32, requires_grad=True)
    log_prob = d.log_prob(value)
    np.testing.assert_allclose(log_prob.detach().numpy(), expected, rtol=1e-6, atol=1e-5)
    (gradient,) = torch.autograd.grad(log_prob.sum(), value)
    np.testing.assert_allclose(gradient.numpy(), 16 / x - x, rtol=1e-6)
    assert float(d.log_prob(torch.tensor(-1.0))) == -np.inf


def test_large_readouts_of_lines_do_not_overflow() -> None:
    """The scale of a readout has no effect: x^2 φ(x)."""
    base = bases.Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    readout = torch.full((1, 1), 1e35)
    d = SNEFY(torch.ones(1, 1), None, readout, activation=Identity(), base=base)
    x = np.array([1e-4, 0.5, 3.0, 1e4, -1e4])
    expected = 2 * np.log(abs(x)) - x**2 / 2 - np.log(2 * np.pi) / 2
    log_prob = d.log_prob(torch.tensor(x, dtype=torch.float32))
    np.testing.assert_allclose(log_prob.numpy(), expected, rtol=1e-6, atol=3e-5)


LINES = [Identity(), Snake(), Snake(2.0, offset=False), ReLU(), LeakyReLU(), GELU()]


@pytest.mark.parametrize("scale", [1e35, 1e-35])
@pytest.mark.parametrize("activation", LINES, ids=str)
def test_readouts_of_any_scale(activation: Activation, scale: float) -> None:
    """The scale of a readout with two rows has no effect, where its products leave float32 too."""
    weight, readout = torch.tensor([[1.0], [0.5]]), torch.tensor([[1.0, 2.0], [0.5, -1.0]])
    d = SNEFY(weight, None, scale * readout, activation=activation)
    exact = SNEFY(weight.double(), None, readout.double(), activation=activation)
    x = torch.tensor([[1e-3], [0.5], [1e4], [-1e4]], requires_grad=True)
    found, expected = d.log_prob(x), exact.log_prob(x.double())
    torch.testing.assert_close(found, expected.float(), rtol=1e-6, atol=1e-4)
    dead = expected == -torch.inf
    slopes = torch.autograd.grad(found[~dead].sum(), x)[0]
    wide = torch.autograd.grad(expected[~dead].sum(), x)[0]
    torch.testing.assert_close(slopes, wide, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("form", ["readout", "gram"])
@pytest.mark.parametrize("dtype, far", [(torch.float64, 1e300), (torch.float32, 1e37)], ids=str)
@pytest.mark.parametrize("activation", [*LINES, ReLU(2), ReLU(3)], ids=str)
def test_squares_beyond_the_largest_number(
    activation: Activation, dtype: torch.dtype, far: float, form: str
) -> None:
    r"""Far out a neuron is w^p x^p: log ||V w^p||^2 + 2 p log x is finite where x^{2p} is not."""
    weight = torch.tensor([[1.0], [0.5]], dtype=dtype)
    readout = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=dtype)
    matrix = {"readout": readout, "gram": readout.mT @ readout}[form]
    d = SNEFY(weight, None, activation=activation, **{form: matrix})
    x = torch.tensor([far], dtype=dtype)
    assert d.log_prob(x) == -torch.inf
    power = activation.degree or 1
    line = readout.double().numpy() @ weight.double().numpy() ** power
    expected = np.log((line**2).sum()) + 2 * power * np.log(float(x))
    assert float(d._network.log_square(x)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("activation", [Cos(), Sin(), Snake(1.5), Identity()], ids=str)
@pytest.mark.parametrize("readouts", [False, True], ids=["one readout", "readouts"])
@pytest.mark.parametrize("name", ["UniformSphere", "UniformBox", "Poisson"])
def test_rows_of_waves_on_other_bases(activation: Activation, readouts: bool, name: str) -> None:
    """Rows of biases in float32 against float64, where bases are not normal."""
    torch.manual_seed(0)
    base: Any = {
        "UniformSphere": bases.UniformSphere(2),
        "UniformBox": bases.UniformBox(-torch.ones(2), torch.ones(2)),
        "Poisson": bases.Poisson(torch.tensor(2.0)),
    }[name]
    d = base.num_statistics
    tensors = [torch.randn(5, d), torch.randn(7, 5), torch.randn((7, 3, 5) if readouts else (3, 5))]
    single = SNEFY(*tensors, activation=activation, base=base)
    wide = [x.double() for x in tensors]
    double = SNEFY(*wide, activation=activation, base=base.map(Tensor.double))
    x = torch.ones(2) / 2**0.5 if d == 2 else torch.tensor(3.0)
    found, expected = single.log_prob(x), double.log_prob(x.double())
    assert found.dtype == torch.float32
    assert ((found - expected).abs() <= 2e-5 * expected.abs().clamp(min=1)).all()


@pytest.mark.parametrize("rows", [False, True], ids=["one bias", "rows of biases"])
@pytest.mark.parametrize("base", ["Gaussian", "GaussianMixture"])
def test_small_neurons_beside_large_ones(base: str, rows: bool) -> None:
    """A readout of the smallest neuron alone: log Z is its own, not a ridge's."""
    law = {
        "Gaussian": bases.Gaussian(0.0, 1.0, event_dim=0),
        "GaussianMixture": bases.GaussianMixture([0.0, -1.0], [0.0], [1.0, 2.0], event_dim=0),
    }[base]
    weight = torch.tensor([[1.0], [1e-7], [1e-12], [2.0]])
    readout = torch.eye(4)[:, None]
    bias = torch.zeros((4, 4) if rows else (4,))
    single = SNEFY(weight, bias, readout, activation=Sin(), base=law)
    found = single._network.log_normalizer()
    expected = single._network.to(torch.float64).log_normalizer()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    # K_ii = E[sin(w t)^2], which is w^2 E[t^2] for the smallest weights.
    second = float(law.covariance(weight).squeeze())
    exact = torch.tensor([1e-14, 1e-24], dtype=torch.float64).log() + np.log(second)
    torch.testing.assert_close(found[1:3], exact, rtol=0, atol=1e-6)


def test_rows_of_bumps() -> None:
    """A readout for each row, of bumps that overlap, of a constant, and of bumps far from all."""
    torch.manual_seed(0)
    base = bases.GaussianMixture([0.0, -2.0, -4.0], [0.0], [1.0, 4.0, 16.0], event_dim=0)
    centre = torch.cat([torch.zeros(1), torch.linspace(-3, 3, 15), torch.tensor([40.0])])
    weight = torch.full((17, 1), 2.0)
    weight[0] = 0.0
    readout = torch.randn(64, 4, 17)
    readout[:17] = torch.eye(17)[:, None]
    leaf = readout.requires_grad_()
    single = SNEFY(weight, -weight[:, 0] * centre, leaf, activation=Bump(), base=base)
    wide = single._network.to(torch.float64)
    found, expected = single._network.log_normalizer(), wide.log_normalizer()
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    (gradient,) = torch.autograd.grad(found.sum(), leaf, retain_graph=True)
    (reference,) = torch.autograd.grad(expected.sum(), leaf)
    scale = reference.abs().amax((-2, -1), keepdim=True)
    torch.testing.assert_close(gradient / scale, reference / scale, rtol=0, atol=1e-4)
