"""Events that are observed up to bounds, against quadrature, draws and normal laws."""

import math

import numpy as np
import pyro
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from pyro_snefy import SNEFY, conditional_snefy
from pyro_snefy.activations import Activation, Cos, Exp, ReLU, Snake
from pyro_snefy.bases import Base, Gaussian, GaussianMixture, Poisson, Product, UniformBox

F64 = torch.float64
NAN = torch.nan
INF = torch.inf


def _t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


W1, B1 = _t(1.0, -2.0, 0.5).unsqueeze(-1), _t(0.2, -1.0, 0.7)
V1 = torch.tensor([[1.0, -0.7, 0.3], [0.4, 0.9, -1.1]], dtype=F64)
W2 = torch.tensor([[1.0, -0.5], [0.3, 2.0]], dtype=F64)
B2, V2 = _t(0.2, -1.0), torch.tensor([[1.0, -0.7], [0.4, 0.9]], dtype=F64)


def _scalar(activation: Activation = Cos()) -> SNEFY:
    base = Gaussian(_t(0.3)[0], _t(0.8)[0], event_dim=0)
    return SNEFY(W1, B1, V1, activation=activation, base=base)


def _normal(loc: Tensor, scale: Tensor) -> SNEFY:
    """A normal law: one constant neuron."""
    one = torch.ones(1, 1, dtype=F64)
    base = Gaussian(loc, scale, event_dim=0, validate_args=False)
    return SNEFY(0 * one, one[0] * 0, one, base=base)


@pytest.mark.parametrize("activation", [Cos(), Exp(), Snake(1.0), ReLU()], ids=str)
def test_total_mass(activation: Activation) -> None:
    latent = _scalar(activation)
    law = latent.censored(-0.5, 1.2)

    def mass(low: float, high: float) -> float:
        kinks = [x for x in (-1.4, -0.2) if low < x < high]
        value, _ = integrate.quad(
            lambda x: float(latent.log_prob(_t(x)[0]).exp()),
            low, high, points=kinks or None, epsabs=1e-12, epsrel=1e-12, limit=200,
        )  # fmt: skip
        return value

    below, above = law.log_prob(_t(-0.5, 1.2)).exp().tolist()
    assert below == pytest.approx(mass(-9, -0.5), rel=1e-9)
    assert above == pytest.approx(mass(1.2, 9), rel=1e-9)
    x = _t(-0.49, 0.0, 1.19)
    assert_close(law.log_prob(x), latent.log_prob(x))


def test_tobit() -> None:
    """The likelihood of a normal Tobit model, far in its tails too, by SciPy."""
    law = _normal(_t(0.0, 1.0, -3.0), _t(1.0, 2.0, 0.5)).censored(low=0.0, high=30.0)
    loc, scale = [0.0, 1.0, -3.0], [1.0, 2.0, 0.5]
    found = law.log_prob(torch.zeros(3, dtype=F64))
    assert_close(found, _t(*stats.norm.logcdf(0.0, loc, scale)), rtol=1e-12, atol=0.0)
    found = law.log_prob(torch.full((3,), 30.0, dtype=F64))
    assert_close(found, _t(*stats.norm.logsf(30.0, loc, scale)), rtol=1e-12, atol=0.0)
    found = law.log_prob(_t(0.7, 0.7, 0.7))
    assert_close(found, _t(*stats.norm.logpdf(0.7, loc, scale)), rtol=1e-12, atol=0.0)


def test_gradients() -> None:
    def log_prob(loc: Tensor, scale: Tensor, bound: Tensor) -> Tensor:
        return _normal(loc, scale).censored(low=bound).log_prob(bound.detach())

    inputs = (_t(0.3, 4.0), _t(0.8, 1.1), _t(-0.5, -2.0))
    assert gradcheck(log_prob, tuple(x.requires_grad_() for x in inputs))
    # Fifty standard deviations out.
    loc = _t(50.0).requires_grad_()
    _normal(loc, _t(1.0)).censored(low=0.0).log_prob(_t(0.0)).sum().backward()
    assert_close(loc.grad, _t(-50.02), rtol=1e-3, atol=0.0)


def test_sample_support_cdf() -> None:
    """Shares of 20,000 draws at the bounds: four standard deviations, a false alarm in 8,000.

    An error of at most 0.014 in a share is seen half of the time.
    """
    law = _scalar().censored(-0.5, 1.2)
    x = law.sample((20_000,))
    assert law.support.check(x).all()
    for bound in (-0.5, 1.2):
        p = law.log_prob(_t(bound)[0]).exp().item()
        share = (x == bound).double().mean().item()
        assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / len(x))
    assert_close(law.cdf(_t(-0.6, -0.5, 1.2, 2.0))[[0, 2, 3]], _t(0.0, 1.0, 1.0))
    assert_close(law.cdf(_t(-0.5)), law.log_prob(_t(-0.5)).exp())
    assert_close(law.cdf(_t(0.4)), _scalar().cdf(_t(0.4)))


def test_counts() -> None:
    """Of counts, ten stands for ten and more."""
    law = SNEFY(W1, B1, V1, base=Poisson(_t(6.0)[0]))
    x = torch.arange(100, dtype=F64)
    expected = law.log_prob(x[10:]).logsumexp(0)
    assert_close(law.censored(high=10.0).log_prob(_t(10.0)[0]), expected)


def test_batches_and_expand() -> None:
    law = _scalar().censored(low=_t(-1.0, 0.0, 0.5), high=2.0)
    assert law.batch_shape == (3,)
    wide = law.expand((4, 3))
    x = law.low.expand(4, 3)
    assert wide.log_prob(x).shape == (4, 3)
    assert_close(wide.log_prob(x)[1], law.log_prob(law.low))
    assert wide.sample((2,)).shape == (2, 4, 3)
    alone = _scalar().censored(low=0.0, high=2.0).log_prob(_t(0.0)[0])
    assert_close(law.log_prob(law.low)[1], alone)


def test_outside_the_bounds() -> None:
    law = _scalar().censored(low=0.0)
    with pytest.raises(ValueError, match="support"):
        law.log_prob(_t(-1.0))
    base = Gaussian(_t(0.0)[0], _t(1.0)[0], event_dim=0)
    unchecked = SNEFY(W1, B1, V1, base=base, validate_args=False).censored(low=0.0)
    assert unchecked.log_prob(_t(-1.0)) == -INF


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="expected low, high or both, got neither"):
        _scalar().censored()
    with pytest.raises(ValueError, match=r"low < high, got low 1.0 and high 0.0"):
        _scalar().censored(1.0, 0.0)
    with pytest.raises(ValueError, match=r"scalar events, got event_shape \(2,\)"):
        SNEFY(W2, B2, V2).censored(low=0.0)
    with pytest.raises(TypeError, match="low to be a number or a Tensor, got 'a'"):
        _scalar().censored(low="a")  # type: ignore[arg-type]
    base = Gaussian(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64))
    with pytest.raises(ValueError, match=r"bounds with shape \(\*, 2\), got \(3,\)"):
        SNEFY(W2, B2, V2, base=base).partially_observed(low=torch.zeros(3))


def test_in_a_model() -> None:
    """A conditional Tobit likelihood in a plate, with a bound for each row."""
    likelihood = conditional_snefy((), context_dim=2, hidden_dim=4, readout_dim=2, activation=Cos())
    context, bound = torch.randn(6, 2), torch.randn(6)
    y = torch.maximum(torch.randn(6), bound)

    def model() -> None:
        pyro.module("likelihood", likelihood)
        with pyro.plate("data", 6):
            pyro.sample("y", likelihood(context).censored(low=bound), obs=y)

    trace = pyro.poutine.trace(model).get_trace()
    total = trace.log_prob_sum()
    total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in likelihood.parameters())
    assert total.isfinite()


BASES = {
    "Gaussian": lambda: Gaussian(_t(0.3, -0.5), _t(0.8, 1.3)),
    "GaussianMixture": lambda: GaussianMixture(
        _t(0.3, -0.2),
        torch.tensor([[0.3, -0.2], [-1.0, 0.5]], dtype=F64),
        torch.tensor([[1.0, 0.5], [0.7, 1.2]], dtype=F64),
    ),
    "UniformBox": lambda: UniformBox(_t(-2.0, -2.0), _t(2.0, 2.0)),
    "Product": lambda: Product([Gaussian(_t(0.1), _t(0.9)), UniformBox(_t(-2.0), _t(2.0))]),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("activation", [Cos(), Exp(0.5)], ids=str)
def test_vectors_with_bounds(base: str, activation: Activation) -> None:
    """Each kind of row against the integral of the joint density over what is not known."""
    made: Base = BASES[base]()
    law = SNEFY(W2, B2, V2, activation=activation, base=made)
    bounded = law.partially_observed(low=_t(-0.6, -0.8), high=_t(0.9, INF))
    rows = torch.tensor(
        [[0.1, 0.2], [-0.6, 0.2], [0.9, 0.2], [NAN, -0.8], [0.9, -0.8], [NAN, NAN], [0.3, NAN]],
        dtype=F64,
    )
    found = bounded.log_prob(rows)
    reach = 2.0 if base == "UniformBox" else 12.0
    wide = 2.0 if base in ("UniformBox", "Product") else 12.0

    def integral(x: tuple[float, float], y: tuple[float, float]) -> float:
        sides, weights = [], []
        for a, b in (x, y):
            if a == b:
                sides.append(_t(a))
                weights.append(_t(1.0))
                continue
            panels = torch.linspace(a, b, 25, dtype=F64)
            nodes, w = (torch.as_tensor(v) for v in _LEGENDRE)
            half = (panels[1] - panels[0]) / 2
            sides.append((panels[:-1, None] + half + half * nodes).flatten())
            weights.append((half * w).expand(24, -1).flatten())
        value = law.log_prob(torch.cartesian_prod(*sides)).exp()
        return float(weights[0] @ value.reshape(len(sides[0]), -1) @ weights[1])

    everywhere, down = (-reach, reach), (-wide, -0.8)
    expected = _t(
        integral((0.1, 0.1), (0.2, 0.2)),
        integral((-reach, -0.6), (0.2, 0.2)),
        integral((0.9, reach), (0.2, 0.2)),
        integral(everywhere, down),
        integral((0.9, reach), down),
        1.0,
        integral((0.3, 0.3), (-wide, wide)),
    )
    assert_close(found, expected.log(), rtol=1e-9, atol=1e-9)
    by_row = law.partially_observed(low=_t(-0.6, -0.8).expand(7, 2), high=_t(0.9, INF).expand(7, 2))
    assert by_row.batch_shape == (7,)
    assert_close(by_row.log_prob(rows), found)


_LEGENDRE = np.polynomial.legendre.leggauss(10)


def test_bounds_of_a_batch() -> None:
    base = Gaussian(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64))
    bias = torch.randn(3, 2, dtype=F64)
    rows = torch.tensor([[0.0, 0.4], [NAN, 0.0], [0.0, 0.0]], dtype=F64)
    found = SNEFY(W2, bias, V2, base=base).partially_observed(low=0.0).log_prob(rows)
    for k in range(3):
        alone = SNEFY(W2, bias[k], V2, base=base).partially_observed(low=0.0)
        assert_close(found[k], alone.log_prob(rows[k]))


def test_gradients_of_bounded_vectors() -> None:
    rows = torch.tensor([[-0.6, 0.2], [NAN, -0.8], [0.9, NAN]], dtype=F64)

    def log_prob(weight: Tensor, bias: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        base = Gaussian(loc, scale, validate_args=False)
        law = SNEFY(weight, bias, V2, base=base, validate_args=False)
        return law.partially_observed(_t(-0.6, -0.8), _t(0.9, INF)).log_prob(rows)

    inputs = (W2.clone(), B2.clone(), _t(0.3, -0.5), _t(0.8, 1.3))
    assert gradcheck(log_prob, tuple(x.requires_grad_() for x in inputs))


def test_scalars_with_missing_values() -> None:
    law = _scalar(ReLU())
    found = law.partially_observed(low=-0.5).log_prob(_t(NAN, -0.5, 0.4))
    censored = law.censored(low=-0.5)
    expected = torch.stack([_t(0.0)[0], *censored.log_prob(_t(-0.5, 0.4))])
    assert_close(found, expected)
    assert_close(law.partially_observed().log_prob(_t(NAN, 0.4))[1], law.log_prob(_t(0.4)[0]))
    drawn = law.partially_observed().impute(_t(NAN, 0.4), (5,))
    assert drawn.shape == (5, 2)
    assert drawn.isfinite().all() and (drawn[:, 1] == 0.4).all()


def test_bounded_conduct() -> None:
    base = Gaussian(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64))
    law = SNEFY(W2, B2, V2, base=base).partially_observed(low=0.0)
    assert law.expand((3,)).log_prob(torch.rand(3, 2, dtype=F64)).shape == (3,)
    assert (law.sample((100,)) >= 0).all()
    with pytest.raises(ValueError, match="support"):
        law.log_prob(_t(-1.0, 0.5))
    with pytest.raises(NotImplementedError, match="no draws from beyond"):
        law.impute(_t(0.0, NAN))
    bent = SNEFY(W2, B2, V2, activation=ReLU(), base=base).partially_observed(low=0.0)
    with pytest.raises(NotImplementedError, match=r"ReLU.*Gaussian"):
        bent.log_prob(_t(0.0, NAN))


def test_another_default_device() -> None:
    """Tensors are made where the parameters are."""
    base = Gaussian(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64))
    scalar, vector = _scalar(), SNEFY(W2, B2, V2, base=base)
    rows = torch.tensor([[0.0, 0.4], [NAN, 0.0]], dtype=F64)
    x = _t(0.0, 0.5)

    def values() -> tuple[Tensor, Tensor]:
        bounded = vector.partially_observed(low=0.0)
        return scalar.censored(low=0.0).log_prob(x), bounded.log_prob(rows)

    expected = values()
    with torch.device("meta"):
        assert_close(values(), expected)
