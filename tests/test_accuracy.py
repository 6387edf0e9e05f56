"""Normalising constants of every pair against quadrature and sums."""

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_snefy import SNEFY
from pyro_snefy.activations import Exp, ReLU
from pyro_snefy.bases import UniformSphere
from tests import oracle
from tests.cases import CASES, Case


def _gram(readout: Tensor) -> Tensor:
    return readout.mH @ readout


def _compare(case: Case, weight: Tensor, bias: Tensor | None, readout: Tensor) -> None:
    d = SNEFY(weight, bias, readout, activation=case.activation, base=case.base())
    expected = case.log_normalizer(weight, bias, _gram(readout))
    if expected < np.log(np.finfo(np.float64).tiny):  # neurons that are never active, to float64
        with pytest.raises(ValueError, match="readout"):
            d.log_normalizer  # noqa: B018
        return
    # Relative in Z, up to the digits that cancellation takes from any computation of it.
    tolerance = 1e-9 + 1e-15 * float(d.condition_number)
    assert abs(float(d.log_normalizer) - expected) <= tolerance * max(1.0, abs(expected))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_random(case: Case) -> None:
    for scale in (0.3, 1.5):
        _compare(case, *case.parameters(n=3, scale=scale))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_neuron(case: Case) -> None:
    _compare(case, *case.parameters(n=1, m=1))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_degenerate_weights(case: Case) -> None:
    """Zero, equal and opposite weights."""
    weight, bias, readout = case.parameters(n=4)
    weight[1] = weight[0]
    weight[2] = -weight[0]
    weight[3] = 0
    _compare(case, case.natural(weight), bias, readout)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_large_weights(case: Case) -> None:
    """Weights of norm 30 where an oracle can follow, some orthogonal, some close to each other."""
    weight, bias, readout = case.parameters(n=3)
    weight[1] = weight[0] + 1e-3 * torch.randn_like(weight[0])
    weight = 30 * torch.nn.functional.normalize(weight, dim=-1)
    if case.base_name == "PoissonFamily" or (
        case.activation_name.startswith("Exp")
        and case.base_name in ("Poisson", "MixtureCounts", "Product")
    ):
        weight = weight / 10  # a mean count of e^60 has no sum to compare with
    if case.base_name.startswith("SmoothBox"):
        weight = weight / 3  # faster waves take the rule of the oracle half a minute
    _compare(case, case.natural(weight), bias, readout)


@pytest.mark.parametrize("case", [case for case in CASES if case.has_bias], ids=str)
def test_large_biases(case: Case) -> None:
    weight, _, readout = case.parameters(n=3)
    bias = torch.tensor([20.0, -20.0, 0.0], dtype=torch.float64)
    _compare(case, weight, bias, readout)
    _compare(case, weight[:1], bias[1:2], readout[:, :1])


@pytest.mark.parametrize("d", [2, 3, 5, 20])
@pytest.mark.parametrize("kappa", [1e2, 1e4, 1e6])
def test_concentrated_on_the_sphere(d: int, kappa: float) -> None:
    weight = torch.randn(3, d, dtype=torch.float64)
    weight = kappa / 2 * torch.nn.functional.normalize(weight, dim=-1)
    weight[2] = -weight[0]
    readout = torch.randn(2, 3, dtype=torch.float64)
    bias = torch.randn(3, dtype=torch.float64)
    model = SNEFY(weight, bias, readout, activation=Exp(), base=UniformSphere(d))
    expected = oracle.log_normalizer(
        "exp", oracle.Sphere(d), weight.numpy(), bias.numpy(), (readout.mT @ readout).numpy()
    )
    assert float(model.log_normalizer) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("power", [1, 2, 5])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_deep_tails(power: int, d: int) -> None:
    """A neuron that is almost never active still has its relative accuracy."""
    weight = torch.nn.functional.normalize(torch.randn(2, d, dtype=torch.float64), dim=-1)
    bias = torch.full((2,), -20.0, dtype=torch.float64)
    readout = torch.eye(2, dtype=torch.float64)
    model = SNEFY(weight, bias, readout, activation=ReLU(power))
    law = oracle.Gaussian(np.zeros(d), np.eye(d))
    activation = oracle.activation("relu", power)
    expected = oracle.log_normalizer(activation, law, weight.numpy(), bias.numpy(), np.eye(2))
    assert float(model.log_normalizer) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gram_is_readout_squared(case: Case) -> None:
    weight, bias, readout = case.parameters()
    d = SNEFY(weight, bias, readout, activation=case.activation, base=case.base())
    g = SNEFY(weight, bias, gram=_gram(readout), activation=case.activation, base=case.base())
    torch.testing.assert_close(d.log_normalizer, g.log_normalizer, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_condition_number(case: Case) -> None:
    weight, bias, readout = case.parameters(n=3)
    d = SNEFY(weight, bias, readout, activation=case.activation, base=case.base())
    zeros = np.zeros(3) if bias is None else bias.numpy()
    kernel = oracle.kernel_matrix(case.oracle_activation, case.law, weight.numpy(), zeros)
    gram = _gram(readout).numpy()
    expected = np.abs(gram * kernel).sum() / np.real(gram.conj() * kernel).sum()
    assert float(d.condition_number) == pytest.approx(expected, rel=1e-7)


def test_condition_number_of_nothing() -> None:
    readout = torch.zeros(1, 4)
    d = SNEFY(torch.randn(4, 2), None, readout, activation=Exp(), validate_args=False)
    assert d.condition_number == torch.inf
