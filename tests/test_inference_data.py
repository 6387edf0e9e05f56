"""InferenceData from SVI and from MCMC, and what ArviZ does with it."""

from functools import partial
from typing import Any

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from scipy import stats
from torch import Tensor

from pyro_snefy import SNEFY, conditional_snefy, snefy, to_inference_data
from pyro_snefy.bases import Gaussian

DRAWS = 120
NEW = int(az.__version__.partition(".")[0]) >= 1  # other names for the same things


def _groups(data: Any) -> set[str]:
    return set(data.children) if NEW else set(data.groups())


def _loo(data: Any, **options: Any) -> tuple[float, float, int]:
    """The expected log-density, the effective number of parameters, the number of rows."""
    found = az.loo(data, **options)
    values = (found.elpd, found.p) if NEW else (found.elpd_loo, found.p_loo)
    return *values, found.n_data_points


def _loo_pit(data: Any, name: str) -> np.ndarray:
    return az.loo_pit(data)[name].values if NEW else np.asarray(az.loo_pit(data, y=name))


def _check_plots(data: Any, name: str) -> None:
    if NEW:
        az.plot_ppc_dist(data, num_samples=10)
        az.plot_loo_pit(data)
    else:
        az.plot_ppc(data, num_pp_samples=10)
        az.plot_loo_pit(data, y=name)
    assert plt.get_fignums()
    plt.close("all")


def _linear(x: Tensor, y: Tensor) -> None:
    slope = pyro.sample("slope", dist.Normal(0.0, 3.0))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    mean = pyro.deterministic("mean", slope * x)
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(mean, scale), obs=y)


def _constant(x: Tensor, y: Tensor) -> None:
    loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(loc, scale), obs=y)


def _data() -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1, 1, 40)
    return x, 2 * x + 0.5 * torch.randn(40)


def _svi(model: object, *args: Tensor) -> AutoNormal:
    guide = AutoNormal(model, init_scale=0.1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), Trace_ELBO())
    for _ in range(250):
        svi.step(*args)
    return guide


def _mcmc(model: object, *args: Tensor) -> MCMC:
    mcmc = MCMC(NUTS(model), num_samples=DRAWS, warmup_steps=40, disable_progbar=True)
    mcmc.run(*args)
    return mcmc


FITS = pytest.mark.parametrize("method", [_svi, _mcmc], ids=["SVI", "MCMC"])


@FITS
def test_arviz(method: object) -> None:
    """Comparison prefers the true model, and predictions are calibrated."""
    x, y = _data()
    found = {
        model.__name__: to_inference_data(model, method(model, x, y), x, y, num_samples=DRAWS)
        for model in (_linear, _constant)
    }
    data = found["_linear"]
    assert _groups(data) >= {
        "posterior",
        "posterior_predictive",
        "log_likelihood",
        "observed_data",
    }
    assert data.log_likelihood["y"].dims == ("chain", "draw", "rows")
    assert data.posterior_predictive["y"].shape == (1, DRAWS, 40)
    np.testing.assert_array_equal(data.observed_data["y"], y)
    slope, scale = (data.posterior[name].values[0] for name in ("slope", "scale"))
    np.testing.assert_allclose(data.posterior["mean"].values[0], slope[:, None] * x.numpy())
    # The log-likelihood, written out.
    error = (y.numpy() - slope[:, None] * x.numpy()) / scale[:, None]
    expected = -0.5 * error**2 - np.log(scale[:, None]) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(data.log_likelihood["y"].values[0], expected, rtol=1e-4, atol=1e-4)
    _, parameters, rows = _loo(data)
    assert rows == 40
    assert 1.0 < parameters < 5.0  # two parameters
    table = az.compare(found)
    assert list(table.index) == ["_linear", "_constant"]
    assert 0.3 < _loo_pit(data, "y").mean() < 0.7
    _check_plots(data, "y")


def test_divergences_and_chains() -> None:
    x, y = _data()
    mcmc = _mcmc(_constant, x, y)
    data = to_inference_data(_constant, mcmc, x, y, predictive=False)
    assert "posterior_predictive" not in _groups(data)
    assert data.sample_stats["diverging"].shape == (1, DRAWS)
    mcmc.diagnostics = lambda: {"divergences": {"chain 0": [3, 7]}}
    data = to_inference_data(_constant, mcmc, x, y, predictive=False)
    assert np.flatnonzero(data.sample_stats["diverging"].values[0]).tolist() == [3, 7]


def test_family_as_a_likelihood() -> None:
    """Random effects in a plate of their own, coordinates by name."""
    family = snefy(Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0), 6)
    group = torch.arange(30) % 3

    def model(y: Tensor) -> None:
        with pyro.plate("groups", 3):
            shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        law = family()
        base = Gaussian(shift[group], torch.ones(30), event_dim=0)
        law = SNEFY(law.weight, law.bias, law.readout, base=base)
        with pyro.plate("rows", 30):
            pyro.sample("y", law, obs=y)

    y = torch.randn(30)
    samples = {"shift": torch.randn(7, 3)}
    data = to_inference_data(
        model, samples, y, predictive=False, coords={"groups": ["a", "b", "c"]}
    )
    assert data.posterior["shift"].dims == ("chain", "draw", "groups")
    assert (
        data.posterior["shift"].sel(groups="b").values[0].tolist()
        == samples["shift"][:, 1].tolist()
    )
    law = family()
    for draw in range(7):
        base = Gaussian(samples["shift"][draw, group], torch.ones(30), event_dim=0)
        expected = SNEFY(law.weight, law.bias, law.readout, base=base).log_prob(y)
        found = torch.tensor(data.log_likelihood["y"].values[0, draw])
        torch.testing.assert_close(found, expected.detach())


def test_predictions_of_a_conditional_family() -> None:
    """A likelihood that is a SNEFY: draws of it are calibrated, and ArviZ can draw them.

    1e-3 is the rate of false alarms of each test; a distance of 0.14 from calibration is seen.
    """
    base = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    x = torch.linspace(-1, 1, 200).unsqueeze(-1)
    likelihood = conditional_snefy(base, 1, hidden_dim=8, readout_dim=4, hidden_dims=(16,))

    def model(x: Tensor, y: Tensor) -> None:
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", likelihood.condition(x + 0.01 * shift), obs=y)

    with torch.no_grad():
        y = likelihood.condition(x).sample()  # the truth is the model
    samples = {"shift": 0.1 * torch.randn(100)}
    data = to_inference_data(model, samples, x, y)
    assert data.posterior_predictive["y"].shape == (1, 100, 200)
    below = (data.posterior_predictive["y"].values[0] < y.numpy()).mean(0)
    assert stats.kstest(below, "uniform").pvalue > 1e-3
    assert stats.kstest(_loo_pit(data, "y"), "uniform").pvalue > 1e-3
    _check_plots(data, "y")


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_without_latents() -> None:
    """A maximum likelihood fit: every draw is the same."""
    family = snefy(1, 4)

    def model(x: Tensor) -> None:
        with pyro.plate("rows", len(x)):
            pyro.sample("x", family(), obs=x)

    x = torch.randn(20, 1)
    data = to_inference_data(model, lambda *_: None, x, num_samples=30, predictive=False)
    draws = data.log_likelihood["x"].values[0].sum(-1)
    expected = family().log_prob(x).sum().item()
    np.testing.assert_allclose(draws, expected, rtol=1e-4)
    if not NEW:  # which takes no draws that are all the same
        elpd, *_ = _loo(data, reff=1.0)
        assert elpd == pytest.approx(expected, rel=1e-4)


def test_masked_rows_have_no_likelihood() -> None:
    def model(x: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 3), pyro.poutine.mask(mask=torch.tensor([True, False, True])):
            pyro.sample("x", dist.Normal(loc, 1.0), obs=x)

    data = to_inference_data(model, {"loc": torch.zeros(2)}, torch.ones(3))
    assert data.log_likelihood["x"].values[0, :, 1].tolist() == [0.0, 0.0]
    assert (data.log_likelihood["x"].values[0, :, 0] < -1).all()


def test_errors() -> None:
    x, y = _data()
    with pytest.raises(ValueError, match="none of \\['scale'\\]"):
        to_inference_data(_constant, {"loc": torch.zeros(5)}, x, y)
    with pytest.raises(TypeError, match="posterior to be an MCMC"):
        to_inference_data(_constant, 3, x, y)

    def subsampled(x: Tensor) -> None:
        with pyro.plate("rows", len(x), subsample_size=5) as rows:
            pyro.sample("x", dist.Normal(0.0, 1.0), obs=x[rows])

    with pytest.raises(ValueError, match="plate rows with 5 of 40"):
        to_inference_data(subsampled, lambda x: None, x)


def test_samples_as_arrays() -> None:
    x, y = _data()
    samples = {"loc": np.random.default_rng(0).normal(size=9), "scale": np.full(9, 0.5)}
    data = to_inference_data(_constant, samples, x, y)
    expected = stats.norm(samples["loc"][:, None], 0.5).logpdf(y.numpy())
    np.testing.assert_allclose(data.log_likelihood["y"].values[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("posterior", "num_samples", "message"),
    [
        (MCMC(NUTS(_constant), num_samples=3), 10, "an MCMC that has run"),
        ({"loc": torch.zeros(4), "scale": torch.ones(4)}, 0, "integer num_samples >= 1, got 0"),
        ({"loc": torch.zeros(4), "scale": torch.ones(5)}, 10, r"'loc': \(4,\), 'scale': \(5,\)"),
        ({"loc": torch.zeros(()), "scale": torch.ones(5)}, 10, r"'loc': \(\)"),
    ],
    ids=["MCMC", "draws", "lengths", "scalar"],
)
def test_posteriors_that_are_none(posterior: object, num_samples: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_inference_data(_constant, posterior, *_data(), num_samples=num_samples)


def _effects(calls: list[int], indexed: bool, group: Tensor, y: Tensor | None = None) -> None:
    calls.append(1)
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("groups", 3):
        effect = pyro.sample("effect", dist.Normal(mu, 0.1))
    mean = effect[group] if indexed else effect[..., group]
    with pyro.plate("rows", len(group)):
        mean = pyro.deterministic("mean", mean)
        pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


@pytest.mark.parametrize(("indexed", "runs"), [(False, 8), (True, 103)], ids=["pass", "loop"])
def test_draws_in_one_pass(indexed: bool, runs: int) -> None:
    """A model for batches runs a few times, any other model twice a draw; the results agree.

    Means of 50 predictions of 60 rows have a standard error of 0.0091, and standard deviations one
    of 0.0065: false alarms have a rate of 4e-8, and errors of 0.05 are seen half of the time.
    """
    calls: list[int] = []
    group = torch.arange(60) % 3
    y = torch.randn(60)
    samples = {"mu": torch.randn(50), "effect": torch.randn(50, 3)}
    data = to_inference_data(partial(_effects, calls, indexed), samples, group, y)
    assert len(calls) <= runs
    mean = samples["effect"][:, group].numpy()
    np.testing.assert_allclose(data.posterior["mean"].values[0], mean)
    expected = stats.norm(mean, 0.5).logpdf(y.numpy())
    np.testing.assert_allclose(data.log_likelihood["y"].values[0], expected, rtol=1e-4, atol=1e-4)
    error = data.posterior_predictive["y"].values[0] - mean
    assert error.shape == (50, 60)
    assert abs(error.mean()) < 0.05
    assert abs(error.std() - 0.5) < 0.05


def test_a_model_that_mixes_draws_is_run_for_each() -> None:
    """`mean()` over a batch of draws has the right shape and the wrong value."""

    def model(y: Tensor) -> None:
        with pyro.plate("groups", 4):
            effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 5):
            pyro.sample("y", dist.Normal(effect.mean(), 1.0), obs=y)

    samples, y = {"effect": torch.randn(9, 4)}, torch.randn(5)
    data = to_inference_data(model, samples, y, predictive=False)
    mean = samples["effect"].mean(-1, keepdim=True).numpy()
    expected = stats.norm(mean, 1.0).logpdf(y.numpy())
    np.testing.assert_allclose(data.log_likelihood["y"].values[0], expected, rtol=1e-5)


def test_new_inputs_are_predicted() -> None:
    """Scalar latents have no dimension of their own; rows without observations are predictions."""
    model = partial(_effects, [], False)
    group = torch.arange(30) % 3
    guide = AutoNormal(model)
    guide(group, torch.randn(30))
    data = to_inference_data(model, guide, group[:7], num_samples=20)
    assert _groups(data) == {"posterior", "predictions"}
    assert data.posterior["mu"].dims == ("chain", "draw")
    assert data.posterior["effect"].dims == ("chain", "draw", "groups")
    assert data.predictions["y"].dims == ("chain", "draw", "rows")
    assert data.predictions["y"].shape == (1, 20, 7)


def test_arviz_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """ArviZ 1.x takes one dict of groups."""

    def from_dict(data: dict[str, dict[str, np.ndarray]], *, dims: object, **labels: object):
        return data, dims, labels

    monkeypatch.setattr(az, "__version__", "1.3.0")
    monkeypatch.setattr(az, "from_dict", from_dict)
    samples = {"loc": torch.zeros(5), "scale": torch.ones(5)}
    groups, dims, labels = to_inference_data(_constant, samples, *_data(), coords={"rows": [1]})
    assert set(groups) == {"posterior", "log_likelihood", "posterior_predictive", "observed_data"}
    assert groups["posterior_predictive"]["y"].shape == (1, 5, 40)
    assert dims["y"] == ["rows"]
    assert labels == {"coords": {"rows": [1]}, "pred_coords": {"rows": [1]}, "pred_dims": dims}
