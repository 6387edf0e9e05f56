"""Poisson processes, against reference values, quadrature, and statistics of exact draws."""

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS
from scipy import integrate, stats
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from pyro_snefy import SNEFY, PoissonProcess
from pyro_snefy.activations import Activation, Cis, Cos, Exp, ReLU, Snake
from pyro_snefy.bases import (
    Base,
    Discrete,
    Gaussian,
    Interval,
    Product,
    UniformBox,
    UniformSphere,
)

F64 = torch.float64
NAN, INF = torch.nan, torch.inf


def _t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


W, B = torch.tensor([[1.0, -0.5], [0.3, 2.0]], dtype=F64), _t(0.2, -1.0)
V = torch.tensor([[1.0, -0.7], [0.4, 0.9]], dtype=F64)
POINTS = torch.tensor([[0.0, 0.0], [0.5, -1.0], [1.2, 0.3]], dtype=F64)
PAD = torch.full((1, 2), NAN, dtype=F64)


def _normal() -> Gaussian:
    return Gaussian(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64))


def _process(**changes: Any) -> PoissonProcess:
    arguments: dict[str, Any] = {"readout": V, "base": _normal(), "rate": 5.0, **changes}
    return PoissonProcess(W, B, **arguments)


def _on_a_line(rate: float = 5.0, activation: Activation = Cos()) -> PoissonProcess:
    base = Interval(_t(0.0)[0], _t(4.0)[0])
    return PoissonProcess(W[:, :1], B, V, base=base, rate=rate, activation=activation)


def test_reference_values() -> None:
    process = _process()
    assert process.expected_count.item() == pytest.approx(6.182519180929842, rel=1e-14)
    found = process.expected_count_in(_t(-1.0, 0.0), _t(0.5, 2.0)).item()
    assert found == pytest.approx(1.602916213602329, rel=1e-14)
    assert process.log_prob(POINTS).item() == pytest.approx(-7.492928713216999, rel=1e-14)
    ordered = process.log_prob(POINTS).item() - math.lgamma(len(POINTS) + 1)
    assert ordered == pytest.approx(-9.284688182445054, rel=1e-14)
    assert process.log_prob(POINTS[:0]).item() == pytest.approx(-6.182519180929842, rel=1e-14)
    box = _process(base=UniformBox(_t(0.0, 0.0), _t(1.0, 2.0)))
    assert box.expected_count.item() == pytest.approx(7.982460131675877, rel=1e-14)
    found = box.expected_count_in(_t(0.2, 1.0), _t(0.5, 1.5)).item()
    assert found == pytest.approx(0.4744816021393, rel=1e-12)


def test_count_and_shape() -> None:
    """The log-likelihood is that of a Poisson count and of points from the density, without N!."""
    process = _process()
    count = process.expected_count
    ordered = process.density.log_prob(POINTS).sum() + dist.Poisson(count).log_prob(_t(3.0)[0])
    assert_close(process.log_prob(POINTS), ordered + math.lgamma(4))
    assert_close(process.intensity(POINTS), process.density.log_prob(POINTS).exp() * count)


@pytest.mark.parametrize("activation", [Cos(), Cis(), Exp(0.5), Snake(1.0), ReLU()], ids=str)
def test_expected_counts_by_quadrature(activation: Activation) -> None:
    process = _on_a_line(activation=activation)

    def mass(low: float, high: float) -> float:
        value, _ = integrate.quad(
            lambda x: float(process.intensity(_t(x)[0])), low, high, points=[10 / 3 - 2.5]
        )
        return value

    assert process.expected_count.item() == pytest.approx(mass(0, 4), rel=1e-8)
    found = process.expected_count_in(_t(0.3)[0], _t(1.7)[0]).item()
    assert found == pytest.approx(mass(0.3, 1.7), rel=1e-8)


def test_padding() -> None:
    process = _process()
    padded = torch.cat([POINTS[:2], PAD, POINTS[2:], PAD])
    assert_close(process.log_prob(padded), process.log_prob(POINTS))
    both = torch.stack([padded, PAD.expand(5, 2)])
    assert_close(process.log_prob(both)[1], -process.expected_count)
    weight = W.clone().requires_grad_()
    PoissonProcess(weight, B, V, base=_normal()).log_prob(both).sum().backward()
    assert weight.grad is not None and weight.grad.isfinite().all()


@pytest.mark.parametrize("changes", [{"rate": 0.0}, {"readout": 0 * V}], ids=["rate", "readout"])
def test_nothing_happens(changes: dict[str, Any]) -> None:
    process = _process(**changes)
    assert process.expected_count == 0
    assert process.log_prob(POINTS[:0]) == 0
    assert process.log_prob(PAD) == 0
    assert process.log_prob(POINTS) == -INF
    assert process.sample((3,)).shape == (3, 0, 2)
    assert process.expected_count_in(_t(-1.0, -1.0), _t(1.0, 1.0)) == 0
    assert (process.intensity(POINTS) == 0).all()
    line = PoissonProcess(
        W[:, :1],
        B,
        V if "rate" in changes else 0 * V,
        activation=ReLU(),
        base=Gaussian(_t(0.0)[0], _t(1.0)[0], event_dim=0),
        rate=changes.get("rate", 1.0),
    )
    assert line.expected_count_in(_t(0.0)[0], _t(1.0)[0]) == 0


def test_zero_intensity_at_a_point() -> None:
    """At cos(0) - cos(0) the intensity is zero: -inf, and gradients that are not NaN."""
    readout = torch.tensor([[1.0, -1.0]], dtype=F64).requires_grad_()
    process = PoissonProcess(W, torch.zeros(2, dtype=F64), readout, base=_normal())
    points = torch.zeros(1, 2, dtype=F64)
    found = process.log_prob(points)
    assert found == -INF
    found.backward()
    assert readout.grad is not None and not readout.grad.isnan().any()
    outside = _process(base=UniformBox(_t(0.0, 0.0), _t(1.0, 1.0)), validate_args=False)
    assert outside.log_prob(_t(2.0, 2.0).unsqueeze(0)) == -INF


def test_batches_and_expand() -> None:
    bias = torch.randn(3, 2, dtype=F64)
    rate = _t(1.0, 0.0, 4.0)
    process = PoissonProcess(W, bias, V, base=_normal(), rate=rate)
    assert process.batch_shape == (3,)
    assert process.event_dim == 2
    points = torch.randn(7, 3, 4, 2, dtype=F64)
    points[2, 1, 3] = NAN
    found = process.log_prob(points)
    assert found.shape == (7, 3)
    for k in range(3):
        alone = PoissonProcess(W, bias[k], V, base=_normal(), rate=rate[k])
        assert_close(found[:, k], alone.log_prob(points[:, k]))
    wide = process.expand((2, 3))
    assert wide.log_prob(points[0]).shape == (2, 3)
    assert wide.expected_count.shape == (2, 3)
    x = process.sample((50,))
    assert x.shape[:2] == (50, 3) and x.shape[-1] == 2
    assert x[:, 1].isnan().all()
    assert wide.sample().shape[:2] == (2, 3)
    assert process.log_prob(x).isfinite().all()
    models = PoissonProcess(torch.randn(3, 2, 2, dtype=F64), B, V, base=_normal())
    assert models.log_prob(points).shape == (7, 3)
    low = torch.rand(1000, 1, 2, dtype=F64) - 1
    assert process.expected_count_in(low, low + 0.5).shape == (1000, 3)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_dtypes(dtype: torch.dtype) -> None:
    box = UniformBox(torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype))
    process = PoissonProcess(W.to(dtype), B.to(dtype), V.to(dtype), base=box, rate=5.0)
    points = torch.rand(4, 2, dtype=dtype)
    for x in (
        process.log_prob(points),
        process.expected_count,
        process.intensity(points),
        process.sample(),
        process.expected_count_in(box.low, box.high),
    ):
        assert x.dtype == dtype


def test_draws_have_the_statistics_of_the_process() -> None:
    """20,000 realisations: counts of a box have its mean, variance and void probability.

    Each figure is within 4.5 standard errors, a false alarm in 50,000 runs for all; an error of two
    per cent in the mean count of the box would be seen.
    """
    process = _process()
    x = process.sample((20_000,))
    low, high = _t(-1.0, 0.0), _t(0.5, 2.0)
    inside = ((x >= low) & (x <= high)).all(-1).sum(-1).double()
    expected = process.expected_count_in(low, high).item()
    n = len(x)
    assert abs(inside.mean().item() - expected) < 4.5 * math.sqrt(expected / n)
    spread = math.sqrt((expected + 2 * expected**2) / n)
    assert abs(inside.var().item() - expected) < 4.5 * spread
    void = math.exp(-expected)
    share = (inside == 0).double().mean().item()
    assert abs(share - void) < 4.5 * math.sqrt(void * (1 - void) / n)
    total = (~x[..., 0].isnan()).sum(-1).double().mean().item()
    assert abs(total - 6.182519180929842) < 4.5 * math.sqrt(6.18 / n)


def test_draws_of_a_batch() -> None:
    """Each member has its own points: mean counts of a half-plane, 4.5 standard errors.

    7e-6 is the rate of false alarms of each member. An error of 7 % in a mean count of one is seen
    half of the time, and a smaller one in a larger count.
    """
    rate = _t(3.0, 9.0)
    bias = torch.stack([B, B + 1.5])
    process = PoissonProcess(W, bias, V, base=_normal(), rate=rate)
    x = process.sample((4000,))
    inside = (x[..., 0] < 0.3).sum(-1).double().mean(0)
    expected = process.expected_count_in(_t(-INF, -INF), _t(0.3, INF))
    assert ((inside - expected).abs() < 4.5 * (expected / 4000).sqrt()).all()


def test_superposition_and_thinning() -> None:
    first = _process()
    second = PoissonProcess(
        torch.tensor([[0.7, 0.1], [-1.0, 0.4], [0.2, 0.2]], dtype=F64),
        None,
        torch.tensor([[0.5, 0.2, 1.0]], dtype=F64),
        base=_normal(),
        rate=2.0,
    )
    both = first.superpose(second)
    x = torch.randn(9, 2, dtype=F64)
    assert_close(both.intensity(x), first.intensity(x) + second.intensity(x), rtol=1e-13, atol=0.0)
    assert_close(both.expected_count, first.expected_count + second.expected_count)
    gram = _process(readout=None, gram=V.mT @ V).superpose(second)
    assert_close(gram.intensity(x), both.intensity(x))
    nothing = first.superpose(second.thin(0.0))
    assert_close(nothing.intensity(x), first.intensity(x))
    thinned = first.thin(0.3)
    assert_close(thinned.intensity(x), 0.3 * first.intensity(x))
    many = first.thin(_t(0.1, 0.2)).superpose(second)
    assert many.expected_count.shape == (2,)
    with pytest.raises(ValueError, match="same activation and base"):
        first.superpose(_process(base=UniformBox(_t(0.0, 0.0), _t(1.0, 1.0))))
    with pytest.raises(ValueError, match=r"probability p, got 1\.5"):
        first.thin(1.5)


@pytest.mark.parametrize("activation", [Cos(), ReLU()], ids=str)
def test_residuals_are_exponential(activation: Activation) -> None:
    """Time-rescaling: Kolmogorov-Smirnov with a false-alarm rate of 1e-5.

    Residuals of a process with twice the rate are rejected.
    """
    process = _on_a_line(rate=400.0, activation=activation)
    x = process.sample()
    found = process.residuals(x)
    assert found.shape == x.shape
    assert stats.kstest(found.numpy(), "expon").pvalue > 1e-5
    assert stats.kstest(process.thin(0.5).residuals(x).numpy(), "expon").pvalue < 1e-5
    last = process.expected_count_in(x.max(), _t(INF)[0])
    assert_close(found.sum() + last, process.expected_count)


def test_residuals_with_padding() -> None:
    process = _on_a_line()
    x = _t(2.0, NAN, 0.5, 3.0)
    found = process.residuals(torch.stack([x, x.flip(0)]))
    assert found[:, 3].isnan().all() and found[:, :3].isfinite().all()
    assert_close(found[0, 1], process.expected_count_in(_t(0.5)[0], _t(2.0)[0]))
    with pytest.raises(NotImplementedError, match="one coordinate"):
        _process().residuals(POINTS)


def test_gradients() -> None:
    points = torch.cat([POINTS, PAD])

    def log_prob(weight: Tensor, bias: Tensor, readout: Tensor, rate: Tensor) -> Tensor:
        process = PoissonProcess(
            weight, bias, readout, base=_normal(), rate=rate, validate_args=False
        )
        return process.log_prob(points)

    inputs = (W.clone(), B.clone(), V.clone(), _t(5.0)[0])
    assert gradcheck(log_prob, tuple(x.requires_grad_() for x in inputs))


def test_rate_at_its_optimum() -> None:
    """The derivative in the rate is N / rate - Z: it vanishes where the expected count is N."""
    rate = (3 * 5.0 / _process().expected_count).requires_grad_()
    process = _process(rate=rate)
    assert process.expected_count.item() == pytest.approx(3.0)
    process.log_prob(POINTS).backward()
    assert rate.grad is not None and abs(rate.grad.item()) < 1e-12


def test_minibatches_are_unbiased() -> None:
    """The mean over all batches of one point, the plate's scaling included, is the whole."""
    process = _process()

    def model(rows: Tensor) -> None:
        with pyro.plate("points", 3, subsample=rows):
            pyro.factor("intensity", process.log_intensity(POINTS[rows]))
        pyro.factor("count", -process.expected_count)

    found = [
        pyro.poutine.trace(model).get_trace(torch.tensor([k])).log_prob_sum() for k in range(3)
    ]
    assert_close(torch.stack(found).mean(), process.log_prob(POINTS))


def test_conjugate_posterior_of_the_rate() -> None:
    """NUTS against Gamma(a + N, b + Z), by 300 draws: its mean, and half of its spread.

    With twelve seeds, these were worth 62 to 130 independent draws, 112 in the median. The bound of
    the mean is 4.5 standard errors of 62 draws and 6.1 of 112: false alarms have a rate of 5e-6 to
    1e-9, and a bias of 0.58 standard deviations is seen half of the time. Spreads deviated by 5 %.
    """
    unit = _process(rate=1.0).expected_count.item()

    def model() -> None:
        rate = pyro.sample("rate", dist.Gamma(_t(2.0)[0], _t(0.5)[0]))
        pyro.sample("points", _process(rate=rate), obs=POINTS)

    mcmc = MCMC(NUTS(model), num_samples=300, warmup_steps=100, disable_progbar=True)
    mcmc.run()
    exact = stats.gamma(2 + 3, scale=1 / (0.5 + unit))
    draws = mcmc.get_samples()["rate"]
    assert abs(draws.mean().item() - exact.mean()) < 5 * exact.std() / math.sqrt(75)
    assert draws.std().item() == pytest.approx(exact.std(), rel=0.5)


def test_in_a_plate() -> None:
    """Realisations of a batch, each with the context of its row."""
    bias = torch.randn(5, 2, dtype=F64)
    process = PoissonProcess(W, bias, V, base=_normal())
    x = process.sample()

    def model() -> None:
        with pyro.plate("realisations", 5):
            pyro.sample("points", process, obs=x)

    trace = pyro.poutine.trace(model).get_trace()
    assert_close(trace.log_prob_sum(), process.log_prob(x).sum())


@pytest.mark.parametrize(
    ("base", "columns"),
    [
        (UniformSphere(3), 3),
        (Product([UniformSphere(3), Interval(_t(0.0)[0], _t(1.0)[0])]), 4),
        (
            Product([UniformBox(_t(0.0, 0.0), _t(1.0, 2.0)), Discrete(_t(0.0, 1.0), _t(0.5, 0.5))]),
            3,
        ),
        (Gaussian(torch.zeros(4, dtype=F64), torch.ones(4, dtype=F64)), 4),
    ],
    ids=["sphere", "sphere and time", "plane and marks", "space"],
)
def test_other_spaces(base: Base, columns: int) -> None:
    weight, readout = torch.randn(6, columns, dtype=F64), torch.randn(2, 6, dtype=F64)
    process = PoissonProcess(weight, torch.zeros(6, dtype=F64), readout, base=base, rate=4.0)
    x = process.sample((20,))
    assert process.support.check(x).all()
    assert process.log_prob(x).isfinite().all()
    assert_close(
        process.log_prob(x[0]),
        process.intensity(x[0][~x[0, :, 0].isnan()]).log().sum() - process.expected_count,
    )


def test_marks() -> None:
    """The counts of both marks add up, and each has its own."""
    base = Product([UniformBox(_t(0.0, 0.0), _t(1.0, 2.0)), Discrete(_t(0.0, 1.0), _t(0.5, 0.5))])
    weight = torch.randn(6, 3, dtype=F64)
    process = PoissonProcess(weight, None, torch.randn(2, 6, dtype=F64), base=base)
    low = torch.tensor([[-INF, -INF, 0.0], [-INF, -INF, 1.0]], dtype=F64)
    high = torch.tensor([[INF, INF, 0.0], [INF, INF, 1.0]], dtype=F64)
    counts = process.expected_count_in(low, high)
    assert_close(counts.sum(), process.expected_count)
    assert (counts > 0).all()


def test_density() -> None:
    law = _process().density
    assert isinstance(law, SNEFY)
    assert_close(law.log_normalizer.exp() * 5, _process().expected_count)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="rate >= 0, got"):
        _process(rate=-1.0)
    with pytest.raises(ValueError, match="finite weight"):
        PoissonProcess(W * NAN, B, V, base=_normal())
    with pytest.raises(TypeError, match="base to be a Base, got None"):
        PoissonProcess(W, B, V, base=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"shape \(\*, N, 2\), got \(2,\)"):
        _process().log_prob(torch.zeros(2, dtype=F64))
    with pytest.raises(ValueError, match="points in the support"):
        _process(base=UniformBox(_t(0.0, 0.0), _t(1.0, 1.0))).log_prob(POINTS)
    half = torch.tensor([[0.3, NAN]], dtype=F64)
    with pytest.raises(ValueError, match="rows of NaN"):
        _process().log_prob(half)
    with pytest.raises(ValueError, match="positive semi-definite gram"):
        _process(readout=None, gram=-torch.eye(2, dtype=F64))
    with pytest.raises(ValueError, match=r"broadcasts with the batch shape \(3,\), got \(2,\)"):
        PoissonProcess(W, torch.zeros(3, 2, dtype=F64), V, base=_normal(), rate=_t(1.0, 2.0))
    with pytest.raises(NotImplementedError, match=r"ReLU.*Gaussian"):
        _process(activation=ReLU()).expected_count_in(_t(0.0, 0.0), _t(1.0, 1.0))
    assert set(_process().arg_constraints) == {"weight", "bias", "readout", "rate"}


def test_another_default_device() -> None:
    """Tensors are made where the parameters are."""
    process = _process()
    expected = process.log_prob(POINTS)
    with torch.device("meta"):
        process = PoissonProcess(W, B, V, base=process.base, rate=5.0)
        assert_close(process.log_prob(POINTS), expected)
        assert process.sample((3,)).device == W.device
        assert process.thin(0.5).superpose(process).expected_count.device == W.device


def test_nothing_waits_for_the_device() -> None:
    """With validation off, no number is read on the host."""
    process = _process(validate_args=False)
    with torch.autograd.profiler.profile() as found:
        process.log_prob(POINTS)
    names = {event.name for event in found.function_events}
    assert not names & {"aten::item", "aten::_local_scalar_dense", "aten::nonzero"}
