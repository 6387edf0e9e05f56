r"""Tests for the pyro_snefy.numerics.hypergeometric module."""

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_snefy.numerics.hypergeometric import (
    _gauss_rule,
    _hankel_expansion,
    hyp0f1_deficit,
    hyp0f1_oscillating,
    log_hyp0f1,
)

DIMENSIONS = (2, 3, 4, 5, 10, 30, 50, 100)
FUNCTIONS = (log_hyp0f1, hyp0f1_oscillating, hyp0f1_deficit)

Transform = Callable[[float, Tensor], Tensor]


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(40):
        yield


def as_tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def positive_grid() -> Tensor:
    return torch.logspace(-12, 13, 36, dtype=torch.float64)


def oscillating_grid(order: float) -> Tensor:
    switch, _ = _hankel_expansion(order)
    kappas = [switch * x for x in (0.5, 0.9, 1 - 1e-9, 1 - 1e-15, 1, 1 + 1e-15, 1 + 1e-9, 1.1, 2)]
    kappas += [0, 1e-8, 1e-3, 0.1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 610, 1597, 4000]

    return as_tensor([kappa**2 for kappa in kappas])


def reference_log(order: float, y: float) -> mpmath.mpf:
    kappa = mpmath.sqrt(y)
    if kappa < 1:
        return mpmath.log(mpmath.hyp0f1(order, mpmath.mpf(y) / 4))

    return (
        mpmath.log(mpmath.besseli(order - 1, kappa))
        + mpmath.loggamma(order)
        - (order - 1) * mpmath.log(kappa / 2)
    )


def reference_ratio(order: float, y: float) -> mpmath.mpf:
    kappa = mpmath.sqrt(y)
    return mpmath.besseli(order, kappa) / mpmath.besseli(order - 1, kappa)


def reference_slope(order: float, y: float) -> mpmath.mpf:
    return reference_ratio(order, y) / (2 * mpmath.sqrt(y))


def reference_curvature(order: float, y: float) -> mpmath.mpf:
    # From the differential equation of Bessel, in the radius first.
    kappa, ratio = mpmath.sqrt(y), reference_ratio(order, y)
    radial = 1 - ratio**2 - (2 * order - 1) * ratio / kappa

    return (radial - ratio / kappa) / (4 * mpmath.mpf(y))


def reference_oscillating(order: float, y: float) -> mpmath.mpf:
    kappa = mpmath.sqrt(y)
    if kappa < 1:
        return mpmath.hyp0f1(order, -mpmath.mpf(y) / 4)

    return mpmath.gamma(order) * (2 / kappa) ** (order - 1) * mpmath.besselj(order - 1, kappa)


def absolute_error(values: Tensor, reference: Callable, order: float, y: Tensor) -> Tensor:
    pairs = zip(values.tolist(), y.tolist(), strict=True)
    return as_tensor([float(abs(value - reference(order, x))) for value, x in pairs])


def relative_error(values: Tensor, reference: Callable, order: float, y: Tensor) -> Tensor:
    pairs = zip(values.tolist(), y.tolist(), strict=True)
    return as_tensor([float(abs(value / reference(order, x) - 1)) for value, x in pairs])


def derivatives(function: Transform, order: float, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = y.clone().requires_grad_()
    value = function(order, y)
    (first,) = torch.autograd.grad(value.sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), y)

    return value.detach(), first.detach(), second


# --- accuracy --------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", (1, *DIMENSIONS, 65, 66, 67))
def test_log_hyp0f1_accuracy(dim: int):
    y = positive_grid()
    value, first, _ = derivatives(log_hyp0f1, dim / 2, y)

    # Relative, hence as tight near zero, where the value is y / 2d, as far away.
    assert relative_error(value, reference_log, dim / 2, y).max() < 3e-15
    assert relative_error(first, reference_slope, dim / 2, y).max() < 3e-15


@pytest.mark.parametrize("dim", (2, 3, 10, 100))
def test_log_hyp0f1_second_derivative(dim: int):
    y = positive_grid()[3::4]
    _, _, second = derivatives(log_hyp0f1, dim / 2, y)

    with mpmath.workdps(100):  # the formula cancels near zero
        assert relative_error(second, reference_curvature, dim / 2, y).max() < 1e-14


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_oscillating_accuracy(dim: int):
    order = dim / 2
    y = oscillating_grid(order)
    value, first, second = derivatives(hyp0f1_oscillating, order, y)

    def slope(order: float, x: float) -> mpmath.mpf:
        return -reference_oscillating(order + 1, x) / (4 * order)

    def curvature(order: float, x: float) -> mpmath.mpf:
        return reference_oscillating(order + 2, x) / (16 * order * (order + 1))

    assert absolute_error(value, reference_oscillating, order, y).max() < 1e-14
    assert absolute_error(first, slope, order, y).max() < 1e-14 / (4 * order)
    assert absolute_error(second, curvature, order, y).max() < 1e-14 / (16 * order)


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_deficit_accuracy(dim: int):
    order = dim / 2
    y = torch.cat([oscillating_grid(order), torch.logspace(-300, -1, 30, dtype=torch.float64)])
    y = y[y > 0]

    def reference(order: float, x: float) -> mpmath.mpf:
        if x < 1e-30:
            return mpmath.mpf(x) / (4 * order)
        with mpmath.workdps(80):
            return 1 - reference_oscillating(order, x)

    value, first, _ = derivatives(hyp0f1_deficit, order, y)
    assert relative_error(value, reference, order, y).max() < 2e-14
    assert torch.equal(first, -derivatives(hyp0f1_oscillating, order, y)[1])


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_at_zero(dim: int):
    a = dim / 2
    zero = torch.zeros(1, dtype=torch.float64)

    value, first, second = derivatives(log_hyp0f1, a, zero)
    assert value.item() == 0
    assert first.item() == pytest.approx(1 / (4 * a), rel=1e-14)
    assert second.item() == pytest.approx(-1 / (16 * a**2 * (a + 1)), rel=1e-13)

    value, first, second = derivatives(hyp0f1_oscillating, a, zero)
    assert value.item() == pytest.approx(1, rel=1e-15)
    assert first.item() == pytest.approx(-1 / (4 * a), rel=1e-14)
    assert second.item() == pytest.approx(1 / (16 * a * (a + 1)), rel=1e-14)


def test_elementary_cases():
    y = as_tensor([1e-2, 1.0, 10.0, 300.0])
    kappa = y.sqrt()

    torch.testing.assert_close(log_hyp0f1(0.5, y), kappa.cosh().log())
    torch.testing.assert_close(log_hyp0f1(1.0, y), kappa + torch.special.i0e(kappa).log())
    torch.testing.assert_close(log_hyp0f1(1.5, y), (kappa.sinh() / kappa).log())
    torch.testing.assert_close(hyp0f1_oscillating(1.0, y), torch.special.bessel_j0(kappa))
    torch.testing.assert_close(hyp0f1_oscillating(1.5, y), kappa.sin() / kappa)


@pytest.mark.parametrize("dim", (2, 3, 7))
def test_uniform_sphere(dim: int):
    # The definition, without any Bessel function: x_1 = cos(angle) has density sin^(d - 2).
    omega = 4.0

    def expectation(function: Callable) -> mpmath.mpf:
        def density(angle):
            return mpmath.sin(angle) ** (dim - 2)

        total = mpmath.quad(density, [0, mpmath.pi])
        return (
            mpmath.quad(lambda t: function(t) * density(t), [0, mpmath.pi / 2, mpmath.pi]) / total
        )

    laplace = expectation(lambda t: mpmath.exp(omega * mpmath.cos(t)))
    fourier = expectation(lambda t: mpmath.cos(omega * mpmath.cos(t)))
    y = as_tensor([omega**2])

    assert log_hyp0f1(dim / 2, y).item() == pytest.approx(float(mpmath.log(laplace)), rel=1e-14)
    assert hyp0f1_oscillating(dim / 2, y).item() == pytest.approx(float(fourier), abs=1e-15)


@pytest.mark.parametrize("dim", (250, 1000))
def test_large_dimension(dim: int):
    y = as_tensor([0.0, 1.0, 1e2, 1e4, 1e6])
    value = hyp0f1_oscillating(dim / 2, y)

    assert absolute_error(value, reference_oscillating, dim / 2, y).max() < 1e-14
    assert relative_error(log_hyp0f1(dim / 2, y[1:]), reference_log, dim / 2, y[1:]).max() < 3e-15


def test_gauss_rule_moments():
    for dim in DIMENSIONS:
        switch, _ = _hankel_expansion(dim / 2)
        rule = _gauss_rule(dim / 2, switch)
        assert sum(w for _, w in rule) == pytest.approx(1, rel=1e-15)
        assert sum(w * s**2 for s, w in rule) == pytest.approx(1 / dim, rel=1e-13)
        assert sum(w * s**4 for s, w in rule) == pytest.approx(3 / (dim * (dim + 2)), rel=1e-13)


# --- shape of the functions ------------------------------------------------------------------


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_log_hyp0f1_shape(dim: int):
    kappa = torch.linspace(0, 60, 301, dtype=torch.float64)
    value = log_hyp0f1(dim / 2, kappa**2)

    assert (value.diff() > 0).all()
    assert (value.diff(n=2) > 0).all()  # a cumulant generating function is convex
    assert (value <= kappa**2 / (2 * dim)).all()  # sub-Gaussian
    assert (value <= kappa).all()

    # Concave in y, and the slope has its limits.
    _, first, second = derivatives(log_hyp0f1, dim / 2, kappa**2)
    assert (second < 0).all()
    assert (first > 0).all() and (first <= 1 / (2 * dim) + 1e-16).all()


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_oscillating_is_bounded(dim: int):
    y = torch.linspace(0, 70, 501, dtype=torch.float64).square()
    assert (hyp0f1_oscillating(dim / 2, y).abs() <= 1 + 1e-15).all()


@pytest.mark.parametrize("dim", (2, 3, 100))
def test_differential_equations(dim: int):
    a = dim / 2
    y = torch.linspace(0, 40, 201, dtype=torch.float64).square()

    value, first, second = derivatives(hyp0f1_oscillating, a, y)
    residual = 4 * (y * second + a * first) + value
    assert (residual.abs() < 1e-14 * (1 + y / (4 * a * (a + 1)))).all()  # 1e-14 for each function

    _, first, second = derivatives(log_hyp0f1, a, y)
    residual = 4 * (y * (second + first**2) + a * first) - 1
    assert residual.abs().max() < 2e-14


# --- derivatives -----------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dim", (2, 3, 10))
def test_gradcheck(function: Transform, dim: int):
    # In the frequency, as used: the origin is then an inner point.
    omega = as_tensor([[0.0, 0.0], [0.3, -0.5], [2.0, 1.0], [15.0, -10.0]]).requires_grad_()

    def in_frequency(omega: Tensor) -> Tensor:
        return function(dim / 2, omega.square().sum(dim=-1))

    assert torch.autograd.gradcheck(in_frequency, omega, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(in_frequency, omega)


def test_log_hyp0f1_is_analytic_at_zero():
    y = as_tensor([0.0, 1e-6, 1.0]).requires_grad_()

    assert torch.autograd.gradcheck(lambda y: log_hyp0f1(1.5, y), y)
    assert torch.autograd.gradgradcheck(lambda y: log_hyp0f1(1.5, y), y)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dim", DIMENSIONS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_finite(function: Transform, dim: int, dtype: torch.dtype):
    tiny = [0.0, -1e-18, 5e-324, 1e-300, 1e-38, 1e-20]
    y = torch.tensor([*tiny, *(10.0**k for k in range(-10, 18))], dtype=dtype)

    for result in derivatives(function, dim / 2, y):
        assert result.dtype == dtype
        assert result.isfinite().all()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dim", (2, 3, 30))
def test_single_precision(function: Transform, dim: int):
    y = torch.logspace(-6, 3, 50, dtype=torch.float32)
    torch.testing.assert_close(
        function(dim / 2, y), function(dim / 2, y.double()).float(), rtol=2e-6, atol=2e-6
    )


@pytest.mark.parametrize("function", FUNCTIONS)
def test_backward_keeps_only_the_argument(function: Transform):
    y = torch.rand(100, dtype=torch.float64, requires_grad=True)
    kept: list[Tensor] = []

    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        function(1.5, y)

    assert {x.data_ptr() for x in kept} == {y.data_ptr()}


# --- transforms ------------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("order", (1.0, 1.5, 5.0))
def test_vmap(function: Transform, order: float):
    y = torch.logspace(-3, 6, 12, dtype=torch.float64).reshape(3, 4)
    value, first, second = derivatives(function, order, y)

    def scalar(y: Tensor) -> Tensor:
        return function(order, y)

    grad = torch.func.grad(scalar)
    for transform, expected in (
        (torch.vmap(torch.vmap(scalar)), value),
        (torch.vmap(torch.vmap(grad), in_dims=1, out_dims=1), first),
        (torch.vmap(torch.vmap(torch.func.grad(grad))), second),
    ):
        torch.testing.assert_close(transform(y), expected, rtol=1e-13, atol=1e-15)

    hessian = torch.func.hessian(lambda y: scalar(y).sum())(y[0])
    torch.testing.assert_close(hessian, second[0].diag(), rtol=1e-12, atol=1e-15)

    twice = torch.func.jacfwd(torch.func.jacfwd(lambda y: scalar(y).sum()))(y[0])
    torch.testing.assert_close(twice, second[0].diag(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_jit_trace(function: Transform):
    y = as_tensor([0.0, 0.5, 30.0])
    traced = torch.jit.trace(lambda y: function(1.0, y), (y,))

    other = as_tensor([1e-3, 100.0, 1e6]).requires_grad_()  # the other side of each switch
    torch.testing.assert_close(traced(other), function(1.0, other))

    (actual,) = torch.autograd.grad(traced(other).sum(), other)
    (expected,) = torch.autograd.grad(function(1.0, other).sum(), other)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_compile(function: Transform, monkeypatch: pytest.MonkeyPatch):
    # The compiler switches the validation of distributions off for the whole process.
    monkeypatch.setattr(Distribution, "_validate_args", Distribution._validate_args)

    def in_frequency(omega: Tensor) -> Tensor:
        return function(omega.shape[-1] / 2, omega.square().sum(dim=-1))

    compiled = torch.compile(in_frequency, fullgraph=True, backend="eager")

    # The second size is where the compiler begins to replace numbers by symbols.
    for dim in (2, 3):
        omega = as_tensor([0.0, 0.5, 5.0, 1e3]).unsqueeze(-1).repeat(1, dim).requires_grad_()
        torch.testing.assert_close(compiled(omega), in_frequency(omega))

        (actual,) = torch.autograd.grad(compiled(omega).sum(), omega)
        (expected,) = torch.autograd.grad(in_frequency(omega).sum(), omega)
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_device(function: Transform):
    # Whatever is made on the default device, instead of that of the argument, fails.
    y = as_tensor([0.0, 1.0, 1e3])
    expected = derivatives(function, 1.0, y)

    with torch.device("meta"):
        actual = derivatives(function, 1.0, y)

    for a, b in zip(actual, expected, strict=True):
        assert a.device == y.device
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", ((), (0,), (2, 1, 3)))
def test_shapes(function: Transform, shape: tuple[int, ...]):
    y = torch.rand(shape, dtype=torch.float64)

    for result in derivatives(function, 1.5, y):
        assert result.shape == shape
        assert result.dtype == y.dtype


@pytest.mark.parametrize("function", FUNCTIONS)
def test_circle_is_not_mixed_up_with_sphere(function: Transform):
    # Constants are cached for each order.
    y = as_tensor([2.0])
    first, second = function(1.0, y), function(1.5, y)

    assert not math.isclose(first.item(), second.item(), rel_tol=1e-3)
    assert torch.equal(first, function(1.0, y))
