"""Distribution functions of batches that share neurons and base, against quadrature."""

import pytest
import torch
from torch import Tensor

from pyro_snefy import SNEFY, conditional_snefy
from pyro_snefy.activations import Activation, Cis, Cos, Sin
from pyro_snefy.bases import Base, Gaussian, GaussianMixture, UniformBox
from pyro_snefy.operations import quantiles

HEAVY = GaussianMixture([0.0, -1.0, -2.0], [0.3], [1.0, 2.5, 8.0], event_dim=0)
NORMAL = Gaussian(0.5, 1.5, event_dim=0)
BASES = [HEAVY, NORMAL]
ROWS = 3


def _law(activation: Activation, base: Base, rows_of_bias: bool) -> SNEFY:
    n = 4
    weight = 2 * torch.randn(n, 1, dtype=torch.float64)
    bias = torch.randn((ROWS, n) if rows_of_bias else n, dtype=torch.float64)
    dtype = torch.complex128 if activation.is_complex else torch.float64
    readout = torch.randn(ROWS, 2, n, dtype=dtype)
    return SNEFY(weight, bias, readout, activation=activation, base=base.map(Tensor.double))


def _grid(scale: float = 90.0) -> Tensor:
    return torch.linspace(-scale, scale, 400_001, dtype=torch.float64)


@pytest.mark.parametrize("rows_of_bias", [False, True])
@pytest.mark.parametrize("base", BASES, ids=str)
@pytest.mark.parametrize("activation", [Cos(), Sin(), Cis()], ids=str)
def test_cdf_is_the_integral(activation: Activation, base: Base, rows_of_bias: bool) -> None:
    law = _law(activation, base, rows_of_bias)
    assert quantiles.shared_line(law._network) is not None
    grid = _grid()
    density = law.log_prob(grid.unsqueeze(-1)).exp()  # (G, rows)
    expected = torch.cumulative_trapezoid(density, grid, dim=0)
    at = torch.arange(150_000, 250_000, 9_973)
    torch.testing.assert_close(law.cdf(grid[at + 1].unsqueeze(-1)), expected[at], atol=1e-7, rtol=0)


@pytest.mark.parametrize("activation", [Cos(), Sin()], ids=str)
def test_quantiles_are_inverses(activation: Activation) -> None:
    law = _law(activation, HEAVY, rows_of_bias=True)
    q = torch.tensor([1e-12, 1e-4, 0.05, 0.5, 0.95, 1 - 1e-6], dtype=torch.float64).unsqueeze(-1)
    x = law.icdf(q)
    assert (x.diff(dim=0) > 0).all()
    torch.testing.assert_close(law.cdf(x), q.expand(x.shape), rtol=1e-9, atol=1e-15)


def test_lower_tail_has_digits() -> None:
    """Far below the bulk, where the mass is 1e-15, the ratio to a quadrature is one."""
    law = _law(Cos(), HEAVY, rows_of_bias=False)
    x = torch.tensor(-65.0, dtype=torch.float64)
    grid = torch.linspace(-110.0, -65.0, 200_001, dtype=torch.float64)
    expected = torch.trapezoid(law.log_prob(grid.unsqueeze(-1)).exp(), grid, dim=0)
    assert (expected < 1e-12).all()
    torch.testing.assert_close(law.cdf(x.expand(ROWS)), expected, rtol=1e-6, atol=0)


def test_gradients() -> None:
    torch.manual_seed(2)
    weight = torch.randn(3, 1, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    readout = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True)

    def law(weight: Tensor, bias: Tensor, readout: Tensor, logits: Tensor) -> SNEFY:
        scale = torch.tensor([1.0, 3.0], dtype=torch.float64)
        base = GaussianMixture(logits, scale.new_zeros(1), scale, event_dim=0)
        return SNEFY(weight, bias, readout, base=base)

    parameters = weight, bias, readout, logits
    assert torch.autograd.gradcheck(lambda x, *p: law(*p).cdf(x), (x, *parameters))
    assert torch.autograd.gradcheck(lambda q, *p: law(*p).icdf(q), (q, *parameters))


def test_others_have_lines_of_their_own() -> None:
    """Bounded supports, batches of weights, and single laws."""
    box = _law(Cos(), UniformBox([0.0], [1.0]), False)
    assert quantiles.shared_line(box._network) is None
    single = SNEFY(torch.randn(3, 1), torch.randn(3), torch.randn(2, 3), base=NORMAL)
    assert quantiles.shared_line(single._network) is None


def test_rows_of_a_likelihood() -> None:
    """A batch of contexts has the values of each context alone."""
    model = conditional_snefy((), 2).double()
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    context = torch.randn(5, 2, dtype=torch.float64)
    x = torch.randn(5, dtype=torch.float64)
    together = model(context).cdf(x)
    alone = torch.stack([model(c).cdf(y) for c, y in zip(context, x, strict=True)])
    torch.testing.assert_close(together, alone)
