"""Modules of Poisson processes: first values, fits, priors, contexts."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroSample
from pyro.nn.module import to_pyro_module_
from torch import Tensor
from torch.testing import assert_close

from pyro_snefy import PoissonProcess, fit, point_process
from pyro_snefy.activations import Cos, Exp
from pyro_snefy.bases import Gaussian, GaussianMixture, Interval, UniformBox, UniformSphere
from pyro_snefy.learning import ConditionalPointProcess, PointProcess

NAN = torch.nan


def _window() -> UniformBox:
    return UniformBox(torch.zeros(2), torch.ones(2))


def _points(count: int = 400) -> Tensor:
    return torch.rand(count, 2).pow(torch.tensor([2.0, 1.0]))


def test_module() -> None:
    model = point_process(_window(), hidden_dim=6)
    assert isinstance(model, PointProcess)
    process = model()
    assert isinstance(process, PoissonProcess)
    assert process.readout is not None and process.readout.shape == (4, 6)
    names = {name for name, _ in model.named_parameters()}
    assert names == {"raw_rate", "density.weight", "density.bias", "density.readout"}
    process.log_prob(_points()).backward()
    for p in model.parameters():
        assert p.grad is not None and p.grad.isfinite().all()
    other = point_process(_window(), hidden_dim=6)
    other.load_state_dict(model.state_dict())
    x = _points(5)
    assert_close(other().log_prob(x), model().log_prob(x))


@pytest.mark.parametrize("base", [2, _window()], ids=["plane", "window"])
def test_initialize(base: object) -> None:
    """The expected count starts at the number of points, and the density near the base."""
    x = _points()
    model = point_process(base, hidden_dim=10).initialize(x)  # type: ignore[call-overload]
    assert model().expected_count.item() == pytest.approx(400, rel=1e-5)


def test_a_dimension_finds_a_mixture() -> None:
    """Clusters that are far apart are no normal law: the module may find them, as `snefy` does."""
    centres = 20.0 * torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    x = centres[torch.arange(600) % 4] + torch.randn(600, 2)
    model = point_process(2, hidden_dim=4).initialize(x)
    process = model()
    assert isinstance(process.base, GaussianMixture)
    assert process.expected_count.item() == pytest.approx(600, rel=1e-5)
    # The law of the clusters has log(4) + log(2 pi e) nats, a single normal law more than 7.
    assert -process.density.log_prob(x).mean().item() < math.log(8 * math.pi * math.e) + 0.3
    given = point_process(Gaussian(torch.zeros(2), torch.ones(2)), hidden_dim=4).initialize(x)
    assert isinstance(given().base, Gaussian)


def test_fit_is_maximum_likelihood() -> None:
    """After a fit the expected count is N, and the likelihood beats a homogeneous process.

    None of six other seeds failed. A gain that is wrong by 0.15 nats a point is seen.
    """
    x = _points(1000)
    model = point_process(_window(), hidden_dim=12).initialize(x)
    history = fit(model, x, max_epochs=15, lr=2e-2, progress=False)
    assert len(history.validation_nll) == 15
    process = model()
    assert process.expected_count.item() == pytest.approx(1000, rel=1e-4)
    homogeneous = 1000 * math.log(1000) - 1000
    # x_0 is the square of a uniform variable: its density has 0.31 nats a point.
    gain = (process.log_prob(x).item() - homogeneous) / 1000
    assert 0.15 < gain < 0.45


def test_several_realisations() -> None:
    """Padded realisations: all points, and the mean count."""
    x = torch.full((3, 50, 2), NAN)
    counts = (20, 50, 5)
    for k, count in enumerate(counts):
        x[k, :count] = _points(count)
    model = point_process(_window(), hidden_dim=6).initialize(x)
    assert model.points(x).shape == (75, 2)
    fit(model, x, max_epochs=2, progress=False)
    process = model()
    assert process.expected_count.item() == pytest.approx(25, rel=1e-4)
    assert process.log_prob(x).shape == (3,)
    # No other rate is better.
    best = process.log_prob(x).sum()
    for factor in (0.97, 1.03):
        assert process._with(rate=process.rate * factor).log_prob(x).sum() < best


@pytest.mark.parametrize(
    ("base", "x"),
    [
        (UniformSphere(3), torch.nn.functional.normalize(torch.randn(60, 3), dim=-1)),
        (Interval(0.0, 1.0), torch.rand(60)),
        ((), torch.randn(60)),
    ],
    ids=["sphere", "interval", "line"],
)
def test_other_spaces(base: object, x: Tensor) -> None:
    model = point_process(base, hidden_dim=5).initialize(x)  # type: ignore[call-overload]
    fit(model, x, max_epochs=2, progress=False)
    assert model().expected_count.item() == pytest.approx(60, rel=1e-4)
    assert model().log_prob(x).isfinite()


def test_svi_with_subsampled_points() -> None:
    """Points in the plate, the expected count once: SVI on minibatches finds N.

    None of six other seeds failed. An error of 5 % is seen half of the time.
    """
    x = _points(300)
    model = point_process(_window(), hidden_dim=4).initialize(x)
    with torch.no_grad():
        model.raw_rate.add_(0.3)

    def likelihood() -> None:
        process = model()
        pyro.module("process", model)
        with pyro.plate("points", len(x), subsample_size=50) as rows:
            pyro.factor("intensity", process.log_intensity(x[rows]))
        pyro.factor("count", -process.expected_count)

    adam = pyro.optim.ClippedAdam({"lr": 0.03, "lrd": 0.98})
    svi = pyro.infer.SVI(likelihood, lambda: None, adam, pyro.infer.Trace_ELBO())
    for _ in range(150):
        svi.step()
    # The standard error of a count of 300 is 17; gradients of minibatches add some noise.
    assert model().expected_count.item() == pytest.approx(300, rel=0.05)


def test_prior_on_the_rate() -> None:
    x = _points(100)
    model = point_process(_window(), hidden_dim=4).initialize(x)
    to_pyro_module_(model)
    model.rate = PyroSample(dist.Gamma(2.0, 0.1))
    trace = pyro.poutine.trace(lambda: pyro.sample("x", model(), obs=x)).get_trace()
    assert "rate" in trace.nodes
    assert trace.log_prob_sum().isfinite()


def _contextual(rows: int) -> tuple[Tensor, Tensor]:
    """Points in [0, c] with the count Poisson(10 + 30 c)."""
    context = torch.rand(rows, 1)
    counts = torch.poisson(10 + 30 * context[:, 0]).long()
    x = torch.rand(rows, int(counts.max())) * context
    x[torch.arange(x.shape[1]) >= counts.unsqueeze(-1)] = NAN
    return x, context


def test_context() -> None:
    """Counts and places that depend on a context, against the truth: within a fifth.

    None of six other seeds failed. An error of 20 % is seen half of the time.
    """
    x, context = _contextual(200)
    model = point_process(
        Interval(0.0, 1.0), 12, 3, Cos(), context_dim=1, hidden_dims=(32,)
    ).initialize(x, context)
    assert isinstance(model, ConditionalPointProcess)
    start = model(context).log_prob(x).mean()
    fit(model, x, context, max_epochs=20, lr=2e-2, batch_size=512, progress=False)
    process = model(torch.tensor([[0.3], [0.9]]))
    assert process.batch_shape == (2,)
    assert_close(process.expected_count, torch.tensor([19.0, 37.0]), rtol=0.2, atol=0.0)
    assert model(context).log_prob(x).mean() > start + 1
    inside = (
        process.expected_count_in(torch.tensor(0.0), torch.tensor(0.35)) / process.expected_count
    )
    assert inside[0] > 0.8 and 0.25 < inside[1] < 0.55
    assert process.sample((4,)).shape[:2] == (4, 2)


def test_context_in_a_plate() -> None:
    x, context = _contextual(6)
    model = point_process(Interval(0.0, 1.0), 4, context_dim=1, hidden_dims=())

    def likelihood() -> None:
        pyro.module("process", model)
        with pyro.plate("realisations", 6):
            pyro.sample("points", model.condition(context), obs=x)

    pyro.poutine.trace(likelihood).get_trace().log_prob_sum().backward()
    for p in model.parameters():
        assert p.grad is not None and p.grad.isfinite().all()


def test_bad_input() -> None:
    model = point_process(_window(), hidden_dim=4)
    with pytest.raises(ValueError, match=r"shape \(N, 2\) or \(R, N, 2\), got \(2,\)"):
        model.initialize(torch.zeros(2))
    with pytest.raises(ValueError, match="at least one point"):
        model.initialize(torch.full((3, 2), NAN))
    with pytest.raises(ValueError, match="base_or_dim"):
        point_process("plane")  # type: ignore[call-overload]
    conditional = point_process(_window(), hidden_dim=4, context_dim=1)
    with pytest.raises(ValueError, match="one context for each realisation, got 2 and 3"):
        conditional.initialize(torch.rand(3, 4, 2), torch.rand(2, 1))


def test_exponentials() -> None:
    """Another activation, on the sphere, with weights under a constraint."""
    x = torch.nn.functional.normalize(torch.randn(80, 3) + 1, dim=-1)
    model = point_process(UniformSphere(3), 5, 2, Exp()).initialize(x)
    fit(model, x, max_epochs=2, progress=False)
    assert model().log_prob(x).isfinite()
