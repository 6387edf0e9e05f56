"""check_kernel: it accepts kernels that are right, and sees each kind of error."""

import copy
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import integrate as scipy_integrate
from scipy import stats
from torch import Tensor

from pyro_snefy import SNEFY
from pyro_snefy.activations import Activation, Cos
from pyro_snefy.bases import Gaussian, Poisson, UniformBox, UniformSphere
from pyro_snefy.kernels import Kernel, Pairwise, register_kernel, registry
from pyro_snefy.testing import check_kernel, integrate


@pytest.fixture(autouse=True)
def _clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what a test registers."""
    monkeypatch.setattr(registry, "_REGISTRY", copy.deepcopy(registry._REGISTRY))


class Square(Activation):
    def __call__(self, z: Tensor) -> Tensor:
        return z.square()


def _register(change: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Registers E[z_i^2 z_j^2] under a normal law, by Isserlis' theorem, with a change to it."""

    @register_kernel(Square, Gaussian)
    def _square(activation: Square, base: Gaussian, weight: Tensor) -> Kernel:
        c = base.quadratic(weight)
        shift = (weight * base.mean(weight).unsqueeze(-2)).sum(-1)

        def evaluate(bias: Tensor) -> Tensor:
            m = bias + shift
            second = m.square() + c.diagonal(dim1=-2, dim2=-1)
            cross = m.unsqueeze(-1) * m.unsqueeze(-2)
            value = second.unsqueeze(-1) * second.unsqueeze(-2) + 4 * cross * c + 2 * c.square()
            return change(value, bias)

        return Pairwise(evaluate)


def _gaussian(d: int) -> Gaussian:
    return Gaussian(torch.full((d,), 0.3), torch.full((d,), 1.2))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_a_right_kernel(d: int) -> None:
    _register(lambda value, bias: value)
    before = torch.random.get_rng_state()
    check_kernel(Square(), _gaussian(d))
    assert torch.equal(torch.random.get_rng_state(), before)


def _asymmetric(value: Tensor, bias: Tensor) -> Tensor:
    return value + 1e-3 * (bias.unsqueeze(-1) - bias.unsqueeze(-2))


def _no_gradient(value: Tensor, bias: Tensor) -> Tensor:
    return value.detach()


def _first_of_batch(value: Tensor, bias: Tensor) -> Tensor:
    return value if value.dim() == 2 else value.flatten(0, -3)[0].expand(value.shape)


WRONG: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "mass": (lambda value, bias: 1.00001 * value, "integrates to 0.99999"),
    "symmetry": (_asymmetric, "not symmetric"),
    "gradient": (_no_gradient, "gradient says"),
    "batch": (_first_of_batch, "of a batch is"),
    "sign": (lambda value, bias: -value, "log Z is -?(inf|nan)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel(name: str) -> None:
    change, message = WRONG[name]
    _register(change)
    with pytest.raises(AssertionError, match=f"Square.* on Gaussian.*{message}") as found:
        check_kernel(Square(), _gaussian(1))
    assert re.search("expected|not symmetric|log Z", str(found.value))


def test_a_wrong_kernel_by_monte_carlo() -> None:
    """An error of one half is far beyond five standard errors."""
    _register(lambda value, bias: 1.5 * value)
    with pytest.raises(AssertionError, match="5 standard errors"):
        check_kernel(Square(), _gaussian(4))
    draws = _gaussian(2).loc + 1.2 * torch.randn(20_000, 2, dtype=torch.float64)
    with pytest.raises(AssertionError, match="20000 draws"):
        check_kernel(Square(), _gaussian(2), events=draws)


def test_no_kernel() -> None:
    with pytest.raises(AssertionError, match="no kernel is registered"):
        check_kernel(Square(), UniformSphere(3))


def test_batch_of_bases() -> None:
    base = Gaussian(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"no batch shape, got \(2,\)"):
        check_kernel(Cos(), base)
    law = SNEFY(torch.randn(2, 4, 3), None, torch.randn(1, 4))
    with pytest.raises(ValueError, match=r"no batch shape, got \(2,\)"):
        integrate(law)


def test_integrals_against_scipy() -> None:
    weight = torch.tensor([[3.0], [-1.0]]).double()
    bias = torch.tensor([0.3, 1.0], dtype=torch.float64)
    readout = torch.tensor([[1.0, -0.5]]).double()
    law = SNEFY(
        weight, bias, readout, base=Gaussian(torch.ones(1).double(), torch.ones(1).double())
    )

    def density(x: float) -> float:
        return float((np.cos(3 * x + 0.3) - 0.5 * np.cos(1 - x)) ** 2 * stats.norm.pdf(x, 1))

    moments = [
        scipy_integrate.quad(lambda x, k=k: x**k * density(x), -12, 14, epsrel=1e-12, limit=500)[0]
        for k in range(3)
    ]
    value, error = integrate(law, lambda x: torch.cat([x**0, x, x**2], -1))
    assert value.numpy() == pytest.approx(np.array(moments) / moments[0], rel=1e-9)
    assert (error < 1e-6).all()


def test_sums_and_boxes() -> None:
    """Counts times an interval: one sum, one quadrature; and no rule for three coordinates."""
    weight, readout = torch.randn(3, 1).double(), torch.randn(1, 3).double()
    law = SNEFY(weight, None, readout, base=Poisson(torch.tensor(2.0).double()))
    (mean,), _ = integrate(law, lambda x: x.unsqueeze(-1))
    counts = np.arange(100)
    square = (np.cos(counts[:, None] * weight.numpy().T) @ readout.numpy().T)[:, 0] ** 2
    masses = square * stats.poisson.pmf(counts, 2.0)
    assert float(mean) == pytest.approx((counts * masses).sum() / masses.sum(), rel=1e-10)
    box = UniformBox(torch.zeros(3).double(), torch.ones(3).double())
    with pytest.raises(NotImplementedError, match="3 coordinates"):
        integrate(SNEFY(torch.randn(2, 3).double(), None, torch.randn(1, 2).double(), base=box))
