"""Training in mixed precision, and on another device than the default one."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_snefy import SNEFY, conditional_snefy, fit, snefy
from pyro_snefy.activations import Activation, Cos, Exp, Sin, Snake
from pyro_snefy.bases import (
    Base,
    Discrete,
    Gaussian,
    GaussianMixture,
    Interval,
    Mixture,
    NormalFamily,
    PointMass,
    Product,
    UniformBox,
    UniformSphere,
)
from pyro_snefy.network import Network

Rule = tuple[Base, Tensor, Tensor]  # a base, nodes in its support, and their masses
WIDE = (torch.float32, torch.float64)


def _scalar() -> Gaussian:
    return Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)


def _sphere(rows: int) -> Tensor:
    return nn.functional.normalize(torch.randn(rows, 3) + torch.tensor([1.0, 0.0, 0.0]), dim=-1)


def _mixture() -> GaussianMixture:
    return GaussianMixture(torch.zeros(2), torch.randn(2, 2), torch.ones(2, 2))


# Modules, with events and contexts to train them on.
MODULES: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor | None]]] = {
    "Cos": lambda: (snefy(2, 16, 2), 1 + 2 * torch.randn(400, 2), None),
    "mixture": lambda: (snefy(_mixture(), 8, 2), 1 + 2 * torch.randn(400, 2), None),
    "sphere": lambda: (snefy(UniformSphere(3), 6, activation=Exp()), _sphere(400), None),
    "family": lambda: (
        snefy(NormalFamily(2), 6, 1, activation=Exp(0.5)),
        1 + 2 * torch.randn(400, 2),
        None,
    ),
    "conditional": lambda: (
        conditional_snefy(_scalar(), 2, 8, 4, Snake(1.0), hidden_dims=(16,)),
        torch.randn(400),
        torch.randn(400, 2),
    ),
}
ALL = pytest.mark.parametrize("name", MODULES)


def _law(module: nn.Module, context: Tensor | None):  # type: ignore[no-untyped-def]
    return module() if context is None else module(context)


@pytest.mark.parametrize("activation", [Cos(), Snake(1.0)], ids=str)
@pytest.mark.parametrize("readout", [(3, 8), (50, 3, 8)], ids=["one readout", "readouts"])
def test_normalizers_of_rows(activation: Activation, readout: tuple[int, ...]) -> None:
    """Squares may be rounded to bfloat16, normalisers are not."""
    tensors = [torch.randn(8, 2), torch.randn(50, 8), torch.randn(readout)]
    law, x = SNEFY(*tensors, activation=activation), torch.randn(50, 2)
    normalizer = law.log_normalizer
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = law.log_prob(x)
        square = Network.build(activation, law.base, *tensors, None).log_square(x)
    assert value.dtype == torch.float32
    expected = law.base.log_density(x) + square - normalizer
    assert_close(value, expected.to(value.dtype), rtol=1e-5, atol=1e-5)


@ALL
def test_autocast(name: str) -> None:
    """Matrix products of the network are rounded to bfloat16; the normaliser is not."""
    module, x, context = MODULES[name]()
    exact = _law(module, context).log_normalizer
    with torch.autocast("cpu", dtype=torch.bfloat16):
        law = _law(module, context)
        assert law.log_prob(x).dtype in WIDE
        assert law.log_normalizer.dtype in WIDE
        if context is None:  # with a context, the network before it is rounded
            assert_close(law.log_normalizer, exact, rtol=0, atol=0)
        history = fit(module, x, context, max_epochs=6, lr=2e-2, progress=False)
        after = _law(module, context).log_normalizer
    assert after.isfinite().all()
    assert min(history.validation_nll) < history.train_nll[0]
    assert all(parameter.dtype == torch.float32 for parameter in module.parameters())


def test_autocast_rounds_at_all() -> None:
    """And the log-density is right to the precision of bfloat16 nevertheless."""
    module, x = snefy(2, 16, 2, Cos()), torch.randn(400, 2)
    exact = module().log_prob(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = module().log_prob(x)
    assert not torch.equal(rounded, exact)
    assert (rounded - exact).abs().mean() < 0.05


@ALL
def test_another_default_device(name: str) -> None:
    """One switch moves a model: no tensor of a training step is made on the default device.

    Those of the meta device hold no numbers, and fail when they meet others.
    """
    module, x, context = MODULES[name]()
    state = copy.deepcopy(module.state_dict())

    def step() -> dict[str, Tensor]:
        module.load_state_dict(state)
        for parameter in module.parameters():
            parameter.grad = None
        if context is None:
            module.initialize(x)
        else:
            module.initialize(x, context)

        def model(x: Tensor) -> None:
            pyro.module("module", module)
            with pyro.plate("rows", len(x), device=x.device):
                pyro.sample("x", _law(module, context), obs=x)

        elbo = Trace_ELBO()
        loss = elbo.loss_and_grads(model, lambda x: None, x)
        gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
        pyro.clear_param_store()
        fit(module, x, context, max_epochs=1, batch_size=100, progress=False)
        return gradients | dict(module.state_dict()) | {"loss": torch.tensor(loss, device="cpu")}

    pyro.set_rng_seed(1)
    expected = {name: value.clone() for name, value in step().items()}
    pyro.set_rng_seed(1)
    with torch.device("meta"):
        found = step()
    for key, value in expected.items():
        assert found[key].device == x.device, key
        assert_close(found[key], value, rtol=0, atol=0)


def test_svi_with_subsampling_on_another_default_device() -> None:
    module, x, _ = MODULES["mixture"]()

    def model(x: Tensor) -> None:
        pyro.module("module", module)
        with pyro.plate("rows", len(x), subsample_size=50, device=x.device) as rows:
            pyro.sample("x", module(), obs=x[rows])

    svi = SVI(model, lambda x: None, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    with torch.device("meta"):
        losses = [svi.step(x) for _ in range(3)]
    assert all(torch.tensor(losses).isfinite())


def _double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _segment(low: float, high: float) -> tuple[Tensor, Tensor]:
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(60))
    return (low + high + (high - low) * nodes) / 2, weights / 2


def _square() -> Rule:
    (x, p), (y, q) = _segment(-1, 2), _segment(0.5, 1)
    base = UniformBox(_double(-1, 0.5), _double(2, 1))
    return base, torch.cartesian_prod(x, y), torch.cartesian_prod(p, q).prod(-1)


def _circle() -> Rule:
    angle = torch.arange(90).double() * (2 * math.pi / 90)
    return (
        UniformSphere(2),
        torch.stack([angle.cos(), angle.sin()], -1),
        torch.ones(90).double() / 90,
    )


def _points() -> Rule:
    points, masses = _double(-1, 0.3, 2), _double(0.5, 1, 2)
    return Discrete(points, masses), points.unsqueeze(-1), masses


def _parts() -> Rule:
    x, p = _segment(1, 4)
    z, q = (torch.from_numpy(x) for x in np.polynomial.hermite_e.hermegauss(180))
    normal = Gaussian(*_double(-2, 0.5), event_dim=0)
    base = Mixture(
        torch.zeros(3).double(), [Interval(*_double(1, 4)), normal, PointMass(_double(0.5)[0])]
    )
    nodes = torch.cat([x, 0.5 * z - 2, _double(0.5)]).unsqueeze(-1)
    return base, nodes, torch.cat([3 * p, q / q.sum(), _double(1)]) / 3


def _pairs() -> Rule:
    (first, x, p), (second, y, q) = _parts(), _points()
    nodes = torch.cat([x.repeat_interleave(3, 0), y.repeat(len(x), 1)], -1)
    return Product([first, second]), nodes, torch.cartesian_prod(p, q).prod(-1)


@pytest.mark.parametrize("rule", [_square, _circle, _points, _parts, _pairs])
@pytest.mark.parametrize("activation", [Sin(), Snake(1.0), Snake(3.0)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6, 1e-9])
def test_waves_of_tiny_weights_on_other_bases(
    activation: Activation, scale: float, rule: Callable[[], Rule]
) -> None:
    """log Z against the sum of squares of a quadrature rule, which does not cancel."""
    torch.manual_seed(0)
    base, nodes, masses = rule()
    weight = scale * torch.randn(3, nodes.shape[-1]).double()
    readout = torch.randn(2, 3).double()
    squares = (activation(nodes @ weight.mT) @ readout.mT).square().sum(-1)
    expected = (masses * squares).sum().log()
    law = SNEFY(weight, None, readout, activation=activation, base=base)
    assert law.condition_number < 100
    rows = SNEFY(weight, torch.zeros(2, 3).double(), readout, activation=activation, base=base)
    for found in (law.log_normalizer, *rows.log_normalizer):
        assert_close(found, expected, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("activation", [Sin(), Snake(1.0), Snake(3.0)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6, 1e-8])
def test_tiny_weights_without_bias(activation: Activation, scale: float) -> None:
    """Densities integrate to one up to κ eps. κ is small on normal laws."""
    torch.manual_seed(0)
    weight, readout = scale * torch.randn(3, 1).double(), torch.randn(2, 3).double()
    one = torch.ones(1).double()
    nodes = torch.linspace(-12, 12, 20_001).double()
    law = SNEFY(weight, None, readout, activation=activation, base=Gaussian(0 * one, one))
    mass = torch.trapezoid(law.log_prob(nodes.unsqueeze(-1)).exp(), nodes)
    assert law.condition_number < 100
    assert abs(float(mass) - 1) < 1e-11
    box = UniformBox(-one, one)
    law = SNEFY(weight, None, readout, activation=activation, base=box, validate_args=False)
    points, weights = (
        torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(200)
    )  # exact for products of such waves
    mass = (law.log_prob(points.unsqueeze(-1)).exp() * weights).sum()
    budget = 4 * torch.finfo(torch.float64).eps * float(law.condition_number)
    assert abs(float(mass) - 1) < budget + 1e-13  # the rounding of the quadrature itself
