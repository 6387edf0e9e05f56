"""The convex fit of the readout, and the certificate of how good a readout is."""

import math

import pytest
import scipy.optimize
import torch
from torch import Tensor, nn

from pyro_snefy import SNEFY, fit_readout, snefy
from pyro_snefy.activations import Cis, Cos, Exp, ReLU, Snake
from pyro_snefy.bases import (
    Gaussian,
    GaussianMixture,
    Interval,
    NormalFamily,
    PoissonFamily,
    UniformBox,
)
from pyro_snefy.learning.joint import JointSNEFY
from tests.cases import KINDS, Case, events


def _ring(rows: int) -> Tensor:
    angle = 2 * math.pi * torch.rand(rows, dtype=torch.float64)
    radius = 1.5 + 0.1 * torch.randn(rows, dtype=torch.float64)
    return radius.unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], dim=-1)


def _neurons(n: int) -> tuple[Tensor, Tensor]:
    weight = 2 * torch.randn(n, 2, dtype=torch.float64)
    weight[0] = 0.0
    return weight, 6 * torch.rand(n, dtype=torch.float64)


def _mean(d: SNEFY, x: Tensor) -> float:
    return d.log_prob(x).mean().item()


def _features_and_kernel(d: SNEFY, x: Tensor) -> tuple[Tensor, Tensor]:
    """φ(x), and K by its definition: Z of grams with one or two entries."""
    phi = d.activation(x @ d.weight.mT + d.bias)
    n = len(d.weight)
    kernel = torch.empty(n, n, dtype=torch.float64)
    eye = torch.eye(n, dtype=torch.float64)
    for i in range(n):
        for j in range(i + 1):
            row = (eye[i] + eye[j]).unsqueeze(0)
            z = SNEFY(d.weight, d.bias, row, activation=d.activation, base=d.base).log_normalizer
            kernel[i, j] = kernel[j, i] = z.exp()
    diagonal = kernel.diagonal() / 4
    kernel = (kernel - diagonal - diagonal.unsqueeze(-1)) / 2
    kernel.diagonal().copy_(diagonal)
    return phi, kernel


@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), ReLU()], ids=str)
def test_the_gap_bounds_every_other_readout(activation: object) -> None:
    """Readouts that fixed-point iterations find, M ← R M R in whitened coordinates."""
    x = _ring(400)
    weight, bias = _neurons(8)
    d = SNEFY(weight, bias, torch.randn(2, 8, dtype=torch.float64), activation=activation)
    phi, kernel = _features_and_kernel(d, x)
    root = torch.linalg.cholesky(kernel)
    psi = torch.linalg.solve_triangular(root, phi.mT, upper=False).mT
    m = torch.eye(8, dtype=torch.float64) / 8
    for _ in range(2000):
        q = ((psi @ m) * psi).sum(-1)
        r = (psi / q.unsqueeze(-1)).mT @ psi / len(x)
        m = r @ m @ r
        m = m / m.trace()
    gram = torch.linalg.solve_triangular(root.mT, m, upper=True)
    gram = torch.linalg.solve_triangular(root.mT, gram.mT, upper=True)
    best = SNEFY(weight, bias, gram=(gram + gram.mT) / 2, activation=activation)
    gain, gap = _mean(best, x) - _mean(d, x), d.readout_gap(x).item()
    assert 0.05 < gain <= gap
    assert -1e-9 < best.readout_gap(x) < 0.01
    # For any readout in between, too: the bound shrinks to zero with what is left to gain.
    mixed = 0.5 * d.readout.mT @ d.readout / d.log_normalizer.exp() + 0.5 * best.gram
    half = SNEFY(weight, bias, gram=mixed, activation=activation)
    assert _mean(best, x) - _mean(half, x) <= half.readout_gap(x) < gap


@pytest.mark.parametrize("activation", [Cos(), Cis(), Snake(1.0), Exp()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_fit_readout_reaches_the_optimum(activation: object, dtype: torch.dtype) -> None:
    """Certified, and no worse than what BFGS finds from other starts."""
    x = _ring(500).to(dtype)
    base = GaussianMixture(torch.zeros(2), torch.randn(2, 2), torch.ones(2, 2))
    module = snefy(base, 8, 8, activation).to(dtype)
    before = module().readout_gap(x).item()
    gap = fit_readout(module, x, tolerance=1e-6)
    precision = 1e-4 if dtype == torch.float32 else 1e-9
    assert before > 0.05
    assert gap < 1e-6
    assert module().readout_gap(x).item() == pytest.approx(gap, abs=precision)
    law = module()
    if isinstance(activation, Cis):
        return

    def loss(flat: object) -> tuple[float, object]:
        readout = torch.tensor(flat).reshape(8, 8).requires_grad_()
        other = SNEFY(
            law.weight.detach().double(),
            law.bias.detach().double(),
            readout,
            activation=activation,
            base=law.base.map(lambda t: t.detach().double()),
        )
        value = -other.log_prob(x.double()).mean()
        value.backward()
        assert readout.grad is not None
        return value.item(), readout.grad.flatten().numpy()

    found = scipy.optimize.minimize(
        loss,
        torch.randn(64).double().numpy(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 60},
    )
    assert _mean(law, x) > -found.fun - max(gap, precision)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_every_family(case: Case) -> None:
    """The gain of the fit is what the certificates say: gap before - gap after at the most."""
    x = events(case, 60)
    module = snefy(case.base(), 5, 3, case.activation).double().initialize(x)
    nn.init.normal_(module.readout)
    before, start = module().readout_gap(x).item(), _mean(module(), x)
    gap = fit_readout(module, x)
    gain = _mean(module(), x) - start
    assert math.isfinite(before)
    assert -1e-9 <= gain <= before + 1e-9
    assert 0 <= gap < before + 1e-6 or before < 1e-6
    assert module().readout_gap(x).item() == pytest.approx(gap, abs=1e-6)


def test_rows_are_appended_where_few_rows_are_stuck() -> None:
    """One row cannot have the density of a ring without zeros; the module keeps its shape."""
    x = _ring(500)
    weight, bias = _neurons(16)
    one, many = (JointSNEFY(_normal(), 16, m, Cos(), False).double() for m in (1, 8))
    for module in (one, many):
        module.weight.data.copy_(weight)
        module.bias.data.copy_(bias)
    assert fit_readout(one, x) > 0.1
    assert fit_readout(many, x, tolerance=1e-6) < 1e-6
    assert one.readout.shape == (1, 16)
    assert _mean(one(), x) < _mean(many(), x)


def _normal() -> Gaussian:
    return Gaussian(torch.zeros(2), torch.ones(2))


def test_weights_are_repetitions() -> None:
    """An event with weight 2 is two events."""
    x = _ring(100)
    weights = torch.randint(0, 4, (100,))
    one = snefy(2, 10, 6).double()
    other = snefy(2, 10, 6).double()
    other.load_state_dict(one.state_dict())
    fit_readout(one, x, weights=weights, tolerance=1e-7)
    fit_readout(other, x.repeat_interleave(weights, 0), tolerance=1e-7)
    torch.testing.assert_close(one().log_prob(x), other().log_prob(x), rtol=0, atol=2e-2)
    score = (one().log_prob(x) - other().log_prob(x)) * weights
    assert abs(score.sum() / weights.sum()) < 1e-6


def test_the_base_is_the_optimum_where_it_is_the_truth() -> None:
    """With every point of a finite sample space, frequencies are the optimum."""
    law = torch.distributions.Poisson(torch.tensor(3.0, dtype=torch.float64))
    x = torch.arange(40, dtype=torch.float64)
    d = SNEFY(
        torch.tensor([[math.log(3.0)]], dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
        torch.ones(1, 1, dtype=torch.float64),
        activation=Exp(0.5),
        base=PoissonFamily(),
    )
    torch.testing.assert_close(d.log_prob(x), law.log_prob(x))
    assert d.readout_gap(x) == pytest.approx(0.0, abs=1e-12)  # one neuron has one readout


def test_batches() -> None:
    """Each member of a batch has the bound that it has alone."""
    weight, bias = _neurons(6)
    biases = bias + torch.randn(3, 1, dtype=torch.float64)
    readout = torch.randn(3, 2, 6, dtype=torch.float64)
    base = Gaussian(torch.randn(3, 2).double(), torch.ones(2).double())
    x = torch.randn(50, 3, 2, dtype=torch.float64)
    found = SNEFY(weight, biases, readout, base=base).readout_gap(x)
    assert found.shape == (3,)
    for k in range(3):
        part = Gaussian(base.loc[k], base.scale)
        alone = SNEFY(weight, biases[k], readout[k], base=part).readout_gap(x[:, k])
        torch.testing.assert_close(found[k], alone)
    shared = SNEFY(weight, biases, readout).readout_gap(x[:, :1])
    torch.testing.assert_close(shared[0], SNEFY(weight, biases[0], readout[0]).readout_gap(x[:, 0]))


def test_features_that_would_overflow() -> None:
    """exp(w x) at weights and places where it has no float64."""
    base = NormalFamily(1)
    x = 300 + torch.randn(200, 1, dtype=torch.float64)
    module = snefy(base, 6, 6, Exp()).double()
    weight = torch.tensor([300.0, -0.5]) + torch.linspace(-2, 2, 6).unsqueeze(-1) * torch.tensor(
        [1.0, 0.0]
    )
    module.assign("weight", weight.double() / 2)
    assert fit_readout(module, x) < 1e-4
    assert module().log_prob(x).isfinite().all()


def test_an_event_of_density_zero_leaves_everything_to_gain() -> None:
    base = Interval(torch.tensor(-1.0).double(), torch.tensor(1.0).double())
    weight = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    readout = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    d = SNEFY(weight, torch.zeros(2).double(), readout, activation=ReLU(), base=base)
    assert d.readout_gap(torch.tensor([0.5, -0.5], dtype=torch.float64)) == math.inf


def test_a_ridge() -> None:
    """The optimum of the penalised likelihood, by BFGS on features and a kernel from elsewhere."""
    x, ridge = _ring(200), 0.7
    module = snefy(Gaussian(torch.zeros(2), torch.ones(2)), 6, 6, Cos()).double()
    plain = fit_readout(module, x, tolerance=1e-7)
    free = module.readout.detach().clone()
    gap = fit_readout(module, x, ridge=ridge, tolerance=1e-7)
    law = module()
    assert max(plain, gap) < 1e-7
    phi, kernel = _features_and_kernel(law, x)
    kernel = (kernel + ridge * torch.diag(kernel.diagonal())).detach()

    def loss(readout: Tensor) -> Tensor:
        squares = (phi.detach() @ readout.mT).square().sum(-1)
        return (readout @ kernel * readout).sum().log() - squares.log().mean()

    def value_and_slope(flat: object) -> tuple[float, object]:
        readout = torch.tensor(flat).reshape(6, 6).requires_grad_()
        value = loss(readout)
        (slope,) = torch.autograd.grad(value, readout)
        return value.item(), slope.flatten().numpy()

    found = scipy.optimize.minimize(
        value_and_slope, torch.randn(36).double().numpy(), jac=True, method="L-BFGS-B"
    )
    assert law.readout is not None
    assert loss(law.readout).item() < found.fun + 1e-6
    assert loss(law.readout) < loss(free) - 1e-3  # another optimum than without a ridge


def test_bad_arguments() -> None:
    box = UniformBox(torch.zeros(2), torch.ones(2))
    module, x = snefy(box, 4), torch.rand(9, 2)
    with pytest.raises(ValueError, match=r"x with shape \(N, 2\) and N >= 1, got \(9, 3\)"):
        module().readout_gap(torch.rand(9, 3))
    with pytest.raises(ValueError, match="support"):
        module().readout_gap(x + 1)
    with pytest.raises(TypeError, match="made by snefy"):
        fit_readout(nn.Linear(2, 2), x)
    with pytest.raises(ValueError, match="tolerance > 0, got 0"):
        fit_readout(module, x, tolerance=0.0)
    with pytest.raises(ValueError, match="ridge >= 0, got -1"):
        fit_readout(module, x, ridge=-1.0)
    with pytest.raises(ValueError, match=r"weights with shape \(9,\), got \(3,\)"):
        fit_readout(module, x, weights=torch.ones(3))
    with pytest.raises(ValueError, match="weights >= 0"):
        fit_readout(module, x, weights=-torch.ones(9))
    x[3, 1] = math.nan
    with pytest.raises(ValueError, match="without NaN, got 1"):
        fit_readout(module, x)
