"""Characteristic and moment generating functions, and Fisher information, by quadrature."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_snefy import SNEFY, bases
from pyro_snefy.activations import (
    GELU,
    Activation,
    Cis,
    Cos,
    Erf,
    Exp,
    FourierActivation,
    ReLU,
    Snake,
)
from pyro_snefy.bases import Base, Gaussian, Product, Standardized
from tests.cases import KINDS, Case
from tests.densities import LOG_DENSITIES, RULES, Array, kinked, statistic

F64 = torch.float64


def _t(values: Any) -> Tensor:
    return torch.tensor(values, dtype=F64)


# P1 and P2 are the parameters of the reference values.
P1 = _t([[1.0], [-2.0], [0.5]]), _t([0.2, -1.0, 0.7]), _t([[1.0, -0.7, 0.3], [0.4, 0.9, -1.1]])
P2 = _t([[1.0, -0.5], [0.3, 2.0]]), _t([0.2, -1.0]), _t([[1.0, -0.7], [0.4, 0.9]])
SCALAR = Gaussian(_t(0.3), _t(0.8), event_dim=0)
PLANE = Gaussian(_t([0.3, -0.2]), scale_tril=torch.linalg.cholesky(_t([[1.0, 0.3], [0.3, 0.5]])))

NORMAL = ("Gaussian", "GaussianScalar", "GaussianFull", "GaussianMixture")
FINITE = ("Discrete", "DiscreteScalar")
# Here the statistic is another variable than the event.
OTHER = ("UniformCube", "ProjectedGaussian", "NormalFamily", "GammaFamily", "DirichletFamily")
OTHER += ("UniformAngle",)


def _has_characteristic(case: Case) -> bool:
    if case.base_name in FINITE:
        return True
    if isinstance(case.activation, FourierActivation):
        return case.base_name not in OTHER
    return isinstance(case.activation, Exp) and case.base_name in (*NORMAL, "MixtureAtom")


def _has_generating(case: Case) -> bool:
    if case.base_name in (*NORMAL, *FINITE, "MixtureAtom"):
        return True
    return isinstance(case.activation, Exp) and case.base_name not in OTHER


def _law(case: Case) -> tuple[SNEFY, Array, Array]:
    """A family, with points and what its mass at each of them is, up to a common factor."""
    build, rule = RULES[case.base_name]
    base = build()
    weight, bias, readout = case.parameters(n=3, scale=0.5)
    points, weights = rule()
    if case.activation.degree is not None and case.base_name in (*NORMAL, "MixtureAtom"):
        assert bias is not None
        weight = _t([[0.9, 0.0], [0.0, -1.4], [0.5, 0.0]])
        weight = weight if base.event_dim else weight.sum(-1, keepdim=True)
        smooth = kinked(weight, bias)
        points, weights = smooth
        if case.base_name == "MixtureAtom":
            points, weights = np.append(points, 0.5), np.append(weights, 1.0)
    law = SNEFY(weight, bias, readout, activation=case.activation, base=base)
    z = statistic(case.base_name, points) @ weight.numpy().T
    z = z if bias is None else z + bias.numpy()
    square = (abs(case.oracle_activation.value(z) @ readout.numpy().T) ** 2).sum(-1)
    return law, points, weights * np.exp(LOG_DENSITIES[case.base_name](points)) * square


def _arguments(law: SNEFY) -> Tensor:
    return 0.4 * torch.randn(4, *law.event_shape, dtype=F64)


# The rule of the product has a million points: one wave will do.
QUADRATURE = [
    case
    for case in KINDS
    if case.base_name in RULES and (case.base_name != "Product" or case.activation_name == "Snake")
]


@pytest.mark.parametrize(
    "case", [case for case in QUADRATURE if _has_characteristic(case)], ids=str
)
def test_characteristic_function(case: Case) -> None:
    law, points, mass = _law(case)
    omega = 3 * _arguments(law)
    rows = points.reshape(len(points), -1) @ omega.reshape(4, -1).numpy().T
    expected = mass @ np.exp(1j * rows) / mass.sum()
    found = law.characteristic_function(omega)
    assert_close(found, torch.as_tensor(expected), rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", [case for case in QUADRATURE if _has_generating(case)], ids=str)
def test_moment_generating_function(case: Case) -> None:
    law, points, mass = _law(case)
    eta = _arguments(law)
    eta = -eta.abs() if case.base_name == "Geometric" else eta
    rows = points.reshape(len(points), -1) @ eta.reshape(4, -1).numpy().T
    expected = mass @ np.exp(rows) / mass.sum()
    found = law.moment_generating_function(eta)
    assert_close(found, torch.as_tensor(expected), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_refusals(case: Case) -> None:
    law = case.distribution(n=3)
    argument = -torch.rand(law.event_shape, dtype=F64)
    base = case.base()
    base = base.bases[0] if isinstance(base, bases.Mixture) else base  # the part that has none
    name = rf"{type(case.activation).__name__}.*{type(base).__name__}"
    for has, function in (
        (_has_characteristic(case), law.characteristic_function),
        (_has_generating(case), law.moment_generating_function),
    ):
        if has:
            assert function(argument).isfinite()
        else:
            with pytest.raises(NotImplementedError, match=name):
                function(argument)


def test_infinite_moment_generating_function() -> None:
    """E[e^{ηx}] of a geometric law is infinite for η ≥ -log(1 - p)."""
    law = SNEFY(_t([[0.0]]), None, _t([[1.0]]), activation=Exp(), base=bases.Geometric(_t(0.4)))
    eta = _t([-1.0, 0.0, 0.5, 0.6])
    expected = [0.4 / (1 - 0.6 * np.exp(x)) for x in (-1.0, 0.0, 0.5)] + [np.inf]
    assert_close(law.moment_generating_function(eta), _t(expected), rtol=1e-12, atol=0)


def test_reference_values() -> None:
    law = SNEFY(*P1, base=SCALAR)
    found = law.moment_generating_function(_t(0.7))
    assert_close(found, _t(1.639999844513119), rtol=0, atol=1e-14)
    expected = torch.tensor(0.458499764226524 + 0.492574292921634j, dtype=torch.complex128)
    assert_close(law.characteristic_function(_t(1.3)), expected, rtol=0, atol=1e-14)
    one = SNEFY(P1[0], P1[1], _t([[1.0, -0.7, 0.3]]), base=SCALAR)
    fisher = [[0.66684146, 1.17670877, 0.52284895], [1.17670877, 2.1097354, 1.00035336]]
    fisher.append([0.52284895, 1.00035336, 0.591328])
    assert_close(one.fisher_information, _t(fisher), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("activation", "expected"),
    [(Snake(1.0), 1.500188542839809), (GELU(), 1.87698758446486), (Erf(), 1.414097068989606)],
    ids=str,
)
def test_reference_values_of_the_plane(activation: Activation, expected: float) -> None:
    law = SNEFY(*P2, activation=activation, base=PLANE)
    found = law.moment_generating_function(_t([0.4, -0.3]))
    assert_close(found, _t(expected), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "base",
    [
        Standardized(PLANE, _t([1.0, -2.0]), _t([0.5, 3.0])),
        Product([SCALAR, Standardized(SCALAR, _t(1.0), _t(0.5))]),
        Product([SCALAR, SCALAR]),
    ],
    ids=str,
)
@pytest.mark.parametrize("activation", [Snake(0.7), Exp(0.4)], ids=str)
def test_moved_bases(base: Base, activation: Activation) -> None:
    """Transforms at small arguments, from moments: E[e^{sη·x}] = 1 + s η·E[x] + O(s²)."""
    law = SNEFY(*P2, activation=activation, base=base)
    eta, step = _t([0.4, -0.3]), 1e-4
    up, down = (law.moment_generating_function(sign * step * eta) for sign in (1, -1))
    assert_close((up - down) / (2 * step), eta @ law.mean, rtol=1e-6, atol=1e-6)
    slope = (law.characteristic_function(step * eta).imag) / step
    assert_close(slope, eta @ law.mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), Exp(0.5)], ids=str)
def test_derivatives_are_moments(activation: Activation) -> None:
    law = SNEFY(*P2, activation=activation, base=PLANE)
    zero = torch.zeros(2, dtype=F64)
    hessian = torch.func.hessian(lambda x: law.moment_generating_function(x).log())(zero)
    assert_close(hessian, law.covariance_matrix, rtol=1e-9, atol=1e-9)
    omega = zero.clone().requires_grad_()
    (slope,) = torch.autograd.grad(law.characteristic_function(omega).imag, omega)
    assert_close(slope, law.mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), Exp(0.5)], ids=str)
def test_gradients(activation: Activation) -> None:
    point = _t([[0.3, -0.8], [1.0, 0.2]])

    def values(weight: Tensor, bias: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
        law = SNEFY(weight, bias, P2[2], activation=activation, base=PLANE, validate_args=False)
        transform = law.characteristic_function(point)
        return torch.view_as_real(transform), law.moment_generating_function(point)

    inputs = [x.clone().requires_grad_() for x in (P2[0], P2[1], point)]
    assert torch.autograd.gradcheck(values, inputs)


@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), Exp(0.5)], ids=str)
def test_batches(activation: Activation) -> None:
    weight, bias = torch.randn(3, 1, 4, 2, dtype=F64), torch.randn(5, 4, dtype=F64)
    law = SNEFY(weight, bias, torch.randn(1, 4, dtype=F64), activation=activation)
    point = torch.randn(6, 1, 1, 2, dtype=F64)
    for name in ("characteristic_function", "moment_generating_function"):
        found = getattr(law, name)(point)
        assert found.shape == (6, 3, 5)
        assert getattr(law, name)(point[0, 0, 0]).shape == (3, 5)
        one = SNEFY(weight[1, 0], bias[3], law.readout, activation=activation)
        expected = getattr(one, name)(point[:, 0, 0])
        assert_close(found[:, 1, 3], expected, rtol=1e-11, atol=1e-12)
    assert law.fisher_information.shape == (3, 5, 4, 4)


def test_float32() -> None:
    law = SNEFY(torch.randn(4, 2), torch.randn(4), torch.randn(1, 4))
    wide = SNEFY(law.weight.double(), law.bias.double(), law.readout.double())  # type: ignore
    point = torch.randn(5, 2)
    found = law.characteristic_function(point)
    assert found.dtype == torch.complex64
    assert_close(
        found.to(torch.complex128), wide.characteristic_function(point), rtol=1e-5, atol=1e-6
    )
    assert law.moment_generating_function(point).dtype == torch.float32
    assert law.fisher_information.dtype == torch.float32


@pytest.mark.parametrize("activation", [Cos(), ReLU(), Exp(0.4)], ids=str)
def test_fisher_information(activation: Activation) -> None:
    """The covariance of the score ∂ log p / ∂v, by quadrature; scores by automatic derivatives."""
    weight, bias = _t([[0.9], [-1.4], [0.5]]), _t([0.2, -1.0, 0.7])
    readout = _t([[1.0, -0.7, 0.3]])
    points, weights = kinked(weight, bias)
    x = _t(points)

    def log_prob(readout: Tensor) -> Tensor:
        law = SNEFY(weight, bias, readout, activation=activation, base=SCALAR, validate_args=False)
        return law.log_prob(x)

    scores = torch.func.jacrev(log_prob)(readout).squeeze(-2).nan_to_num()
    mass = _t(weights) * log_prob(readout).exp()
    expected = scores.mT @ (mass.unsqueeze(-1) * scores)
    law = SNEFY(weight, bias, readout, activation=activation, base=SCALAR)
    assert_close(law.fisher_information, expected, rtol=1e-7, atol=1e-8)
    image = law.fisher_information @ readout.mT
    assert_close(image, torch.zeros_like(image), rtol=0, atol=1e-12)


def test_bad_arguments() -> None:
    law = SNEFY(torch.randn(4, 2), None, torch.randn(2, 4))
    for name in ("characteristic_function", "moment_generating_function"):
        with pytest.raises(ValueError, match=r"with shape \(\*, 2\), got \(3,\)"):
            getattr(law, name)(torch.zeros(3))
    with pytest.raises(NotImplementedError, match=r"one row.*Got 2 rows"):
        _ = law.fisher_information
    with pytest.raises(NotImplementedError, match="Got a gram"):
        _ = SNEFY(torch.randn(4, 2), None, gram=torch.eye(4)).fisher_information
    with pytest.raises(NotImplementedError, match="complex"):
        _ = SNEFY(torch.randn(4, 2), None, torch.randn(1, 4), activation=Cis()).fisher_information
