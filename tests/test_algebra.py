"""Mixtures and products of families, against densities one by one, sums and reference values."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import pyro_snefy
from pyro_snefy import SNEFY, mixture, product
from pyro_snefy.activations import Activation, Cis, Cos, Exp, ReLU, Sin, Snake
from pyro_snefy.bases import Gaussian, Poisson, UniformSphere
from tests.cases import KINDS, Case, events
from tests.densities import legendre

F64 = torch.float64


def _t(values: Any) -> Tensor:
    return torch.tensor(values, dtype=F64)


def _pair(case: Case, grams: bool = False) -> tuple[SNEFY, SNEFY]:
    left, right = case.distribution(n=3, m=2), case.distribution(n=4, m=1)
    if grams:
        readout = right.readout
        assert readout is not None
        right = SNEFY(
            right.weight,
            right.bias,
            gram=readout.mH @ readout,
            activation=right.activation,
            base=right.base,
        )
    return left, right


@pytest.mark.parametrize("grams", [False, True])
@pytest.mark.parametrize("case", KINDS, ids=str)
def test_mixture(case: Case, grams: bool) -> None:
    parts, x = _pair(case, grams), events(case, 6)
    found = mixture([1.0, 3.0], parts)
    expected = (parts[0].log_prob(x).exp() + 3 * parts[1].log_prob(x).exp()) / 4
    assert_close(found.log_prob(x).exp(), expected, rtol=1e-9, atol=1e-12)


def test_mixture_of_a_batch() -> None:
    weights = torch.rand(2, 3, dtype=F64)
    parts = [
        SNEFY(torch.randn(*batch, n, 2, dtype=F64), None, torch.randn(1, n, dtype=F64))
        for n, batch in ((3, ()), (4, (2,)), (2, (5, 1)))
    ]
    found, x = mixture(weights, parts), torch.randn(6, 5, 2, 2, dtype=F64)
    assert found.batch_shape == (5, 2)
    shares = weights / weights.sum(-1, keepdim=True)
    terms = [part.log_prob(x).exp() * shares[:, k] for k, part in enumerate(parts)]
    assert_close(found.log_prob(x).exp(), sum(terms), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("activation", [Cos(), Exp()], ids=str)
def test_mixture_with_weights_of_zero(activation: Activation) -> None:
    parts = [
        SNEFY(torch.randn(3, 2), None, torch.randn(1, 3), activation=activation) for _ in range(2)
    ]
    x = torch.randn(4, 2)
    assert_close(mixture([0.0, 1.0], parts).log_prob(x), parts[1].log_prob(x))


def test_mixture_of_far_normalisers() -> None:
    """Constants e^300 apart, in float32: the biases of exponentials take them up."""
    parts = [
        SNEFY(torch.tensor([[w]]), torch.tensor([b]), torch.ones(1, 1), activation=Exp())
        for w, b in ((1.0, 150.0), (0.5, -150.0), (-1.0, 0.0))
    ]
    x = torch.tensor([[-1.0], [0.5], [2.0]])
    expected = torch.stack([part.log_prob(x) for part in parts]).exp().mean(0)
    assert_close(mixture([1.0, 1.0, 1.0], parts).log_prob(x).exp(), expected, rtol=1e-4, atol=1e-5)


def test_mixture_has_gradients() -> None:
    weights, tensors = _t([0.3, 0.7]), [torch.randn(2, 2, dtype=F64), torch.randn(1, 2, dtype=F64)]
    other = SNEFY(torch.randn(3, 2, dtype=F64), None, torch.randn(1, 3, dtype=F64))
    x = torch.randn(3, 2, dtype=F64)

    def log_prob(weights: Tensor, weight: Tensor, readout: Tensor) -> Tensor:
        own = SNEFY(weight, None, readout, validate_args=False)
        return mixture(weights, [own, other]).log_prob(x)

    inputs = [value.requires_grad_() for value in (weights, *tensors)]
    assert torch.autograd.gradcheck(log_prob, inputs)


WAVES = [Cos(), Sin(), Cis()]


@pytest.mark.parametrize("grams", [False, True])
@pytest.mark.parametrize(
    ("first", "second"),
    [*((a, b) for a in WAVES for b in WAVES), (Exp(), Exp()), (Exp(0.5), Exp(0.2))],
    ids=str,
)
def test_product(first: Activation, second: Activation, grams: bool) -> None:
    """Ratios of densities are ratios of squares; the constant is checked by quadrature."""
    base = Gaussian(_t(0.3), _t(0.8), event_dim=0)

    def family(activation: Activation, n: int, m: int, gram: bool) -> SNEFY:
        weight, bias = torch.randn(n, 1, dtype=F64), torch.randn(n, dtype=F64)
        readout = torch.randn(m, n, dtype=F64)
        if isinstance(activation, Cis):
            readout = torch.complex(readout, torch.randn(m, n, dtype=F64))
        matrix = {"gram": readout.mH @ readout} if gram else {"readout": readout}
        return SNEFY(weight, bias, activation=activation, base=base, **matrix)

    left, right = family(first, 3, 2, False), family(second, 2, 2, grams)
    nodes, weights = legendre(-10.0, 12.0)
    x = _t(nodes)
    log_product = left.log_prob(x) + right.log_prob(x) - base.log_density(x)
    log_mass = np.log((weights * log_product.exp().numpy()).sum())
    assert_close(
        product(left, right).log_prob(x[::40]), log_product[::40] - log_mass, rtol=1e-9, atol=1e-9
    )


def test_reference() -> None:
    base = Gaussian(_t([0.3, -0.2]), scale_tril=torch.linalg.cholesky(_t([[1.0, 0.3], [0.3, 0.5]])))
    left = SNEFY(
        _t([[1.0, -0.5], [0.3, 2.0], [-1.2, 0.4]]),
        _t([0.2, -1.0, 0.5]),
        _t([[1.0, -0.7, 0.3], [0.4, 0.9, -0.2]]),
        base=base,
    )
    right = SNEFY(_t([[0.6, 0.1], [-0.4, 1.1]]), _t([0.3, 0.1]), _t([[1.0, 0.5]]), base=base)
    found = product(left, right).log_normalizer
    assert_close(found, _t(0.782148793062601), rtol=0, atol=1e-12)


def test_product_on_counts_and_spheres() -> None:
    """Where densities can be summed, or integrated over all directions."""
    for base, points, masses in (
        (Poisson(_t(2.0)), torch.arange(60.0, dtype=F64), torch.ones(60, dtype=F64)),
        (UniformSphere(2), *_circle()),
    ):
        d = base.num_statistics
        left = SNEFY(torch.randn(3, d, dtype=F64), None, torch.randn(1, 3, dtype=F64), base=base)
        right = SNEFY(torch.randn(2, d, dtype=F64), None, torch.randn(2, 2, dtype=F64), base=base)
        found = product(left, right).log_prob(points).exp()
        assert_close((found * masses).sum(), _t(1.0), rtol=0, atol=1e-10)
        ratio = found / (left.log_prob(points) + right.log_prob(points)).exp()
        ratio = ratio * base.log_density(points).exp()
        assert_close(ratio[:9], ratio[:1].expand(9), rtol=1e-9, atol=0)


def _circle() -> tuple[Tensor, Tensor]:
    angle = torch.arange(200, dtype=F64) * torch.pi / 100
    return torch.stack([angle.cos(), angle.sin()], -1), torch.full(
        (200,), torch.pi / 100, dtype=F64
    )


def test_product_of_a_batch() -> None:
    left = SNEFY(torch.randn(5, 1, 3, 2), torch.randn(3), torch.randn(1, 3))
    right = SNEFY(torch.randn(2, 2), torch.randn(4, 2), torch.randn(2, 2))
    assert product(left, right).batch_shape == (5, 4)
    one = SNEFY(left.weight[2, 0], left.bias, left.readout)
    other = SNEFY(right.weight, right.bias[3], right.readout)  # type: ignore[index]
    x = torch.randn(7, 2)
    found = product(left, right).log_prob(x[:, None, None])[:, 2, 3]
    assert_close(found, product(one, other).log_prob(x), rtol=1e-4, atol=1e-4)


def _wave(**arguments: Any) -> SNEFY:
    return SNEFY(torch.randn(3, 2), None, torch.randn(1, 3), **arguments)


@pytest.mark.parametrize("combine", [lambda p, q: mixture([1.0, 1.0], [p, q]), product])
def test_different_bases(combine: Callable[[SNEFY, SNEFY], SNEFY]) -> None:
    other = Gaussian(torch.zeros(2), 2 * torch.ones(2))
    with pytest.raises(ValueError, match=r"one base, got Gaussian.* and Gaussian"):
        combine(_wave(), _wave(base=other))
    with pytest.raises(ValueError, match=r"one base, got Gaussian.* and UniformSphere"):
        combine(_wave(), _wave(base=UniformSphere(2)))
    with pytest.raises(ValueError, match="one dtype"):
        wide = SNEFY(torch.randn(3, 2, dtype=F64), None, torch.randn(1, 3, dtype=F64))
        combine(_wave(), wide)
    with pytest.raises(TypeError, match="expected squared neural families"):
        combine(_wave(), torch.zeros(3))  # type: ignore[arg-type]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"one activation, got Cos\(\), Sin\(\)"):
        mixture([1.0, 1.0], [_wave(), _wave(activation=Sin())])
    with pytest.raises(ValueError, match=r"weights with shape \(\*, 2\).*got \(3,\)"):
        mixture([1.0, 1.0, 1.0], [_wave(), _wave()])
    with pytest.raises(ValueError, match="not negative"):
        mixture([1.0, -1.0], [_wave(), _wave()])
    with pytest.raises(NotImplementedError, match=r"ReLU.*times Snake.*Cos, Sin"):
        product(_wave(activation=ReLU()), _wave(activation=Snake()))
    assert {"mixture", "product"} <= set(pyro_snefy.__all__)
