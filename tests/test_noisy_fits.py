"""Fits of rows with errors of measurement: the module learns the law without the noise."""

import math
from collections.abc import Callable

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions.transforms import spline
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_snefy import autoregressive_snefy, conditional_snefy, fit, snefy
from pyro_snefy.bases import Gaussian, UniformBox

TRUTH = dist.MixtureSameFamily(
    dist.Categorical(torch.tensor([0.6, 0.4])),
    dist.Normal(torch.tensor([-1.0, 1.2]), torch.tensor([0.3, 0.4])),
)


def noisy(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of the truth with errors, each of its own size, and these sizes."""
    torch.manual_seed(seed)
    noise = 0.3 + 0.7 * torch.rand(count)
    return TRUTH.sample((count,)) + noise * torch.randn(count), noise


def divergence(module: nn.Module) -> float:
    """KL(truth | module), by the trapezoidal rule, whose error is far below 1e-6."""
    t = torch.linspace(-8, 8, 4001)
    log_p = TRUTH.log_prob(t)
    with torch.no_grad():
        gap = log_p - module().log_prob(t)
    return torch.trapezoid(log_p.exp() * gap, t).item()


def test_deconvolution() -> None:
    """4,000 rows with errors as large as the peaks.

    The law of the rows, by quadrature, is 0.327 from the truth: a fit that ignores the errors ends
    there. Fits of two samples that knew them ended between 0.01 and 0.09. One of six other seeds
    failed. A fit that ends at 0.15 is seen half of the time.
    """
    x, noise = noisy(4000)
    modules = [snefy((), hidden_dim=16).initialize(x) for _ in range(2)]
    fit(modules[0], x, noise=noise, max_epochs=40, progress=False)
    fit(modules[1], x, max_epochs=40, progress=False)
    aware, ignorant = map(divergence, modules)
    assert ignorant > 0.25
    assert aware < 0.15


def test_vectors_and_contexts() -> None:
    """A law that the context moves: its scale 0.2 is found under errors of 0.5 and 1.

    None of six other seeds failed. An error of 0.35 in the mean is seen half of the time.
    """
    torch.manual_seed(0)
    context = torch.randn(2000, 1)
    noise = torch.tensor([0.5, 1.0]).expand(2000, 2)
    x = context + 0.2 * torch.randn(2000, 2) + noise * torch.randn(2000, 2)
    base = Gaussian(torch.zeros(2), torch.ones(2))
    module = conditional_snefy(base, 1, 4, 1, hidden_dims=(16,)).initialize(x, context)
    fit(module, x, context, noise=noise, max_epochs=25, progress=False)
    test = torch.linspace(-1.5, 1.5, 7).unsqueeze(-1)
    with torch.no_grad():
        law = module(test)
        variance = law.variance.mean(0)
    # Without the noise, 0.04 for both; with it, 0.29 and 1.04.
    assert (variance < torch.tensor([0.15, 0.4])).all()
    torch.testing.assert_close(law.mean, test.expand(7, 2), atol=0.35, rtol=0)


def test_the_loss_is_the_likelihood_of_the_observations() -> None:
    x, noise = noisy(300)
    module = snefy((), hidden_dim=4)
    score = -module().observed(noise).log_prob(x).double().mean().item()
    history = fit(
        module, x, noise=noise, validation=0, max_epochs=1, batch_size=300, lr=1e-9, progress=False
    )
    assert history.train_nll[0] == pytest.approx(score, rel=1e-5)


def test_validation_rows_have_noise_of_their_own() -> None:
    x, noise = noisy(300)
    y, errors = noisy(100, seed=1)
    module = snefy((), hidden_dim=4)
    score = -module().observed(errors).log_prob(y).double().mean().item()
    options = {"max_epochs": 1, "lr": 1e-9, "progress": False}
    history = fit(module, x, noise=noise.numpy(), validation=(y, None, errors), **options)
    assert history.validation_nll[0] == pytest.approx(score, rel=1e-5)
    with pytest.raises(ValueError, match=r"a share or \(x, context, noise\), got 2 parts"):
        fit(module, x, noise=noise, validation=y, **options)
    with pytest.raises(ValueError, match=r"a share, x or \(x, context\), got 3 parts"):
        fit(module, x, validation=(y, None, errors), **options)


def test_weights_beside_noise() -> None:
    """Rows of weight zero have no influence, whatever their noise."""
    x, noise = noisy(200)
    results = []
    for size in (0.1, 5.0):
        torch.manual_seed(0)
        module = snefy((), hidden_dim=4).double()
        errors = torch.cat([noise[:100], torch.full((100,), size)]).double()
        weights = torch.arange(200) < 100
        fit(
            module,
            x.double(),
            weights=weights.double(),
            noise=errors,
            validation=0,
            max_epochs=2,
            progress=False,
        )
        results.append(module().log_prob(torch.zeros(())).item())
    assert results[0] == pytest.approx(results[1], abs=1e-9)


class Flow(nn.Module):
    """A law without a closed form for noise."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = spline(2)

    def forward(self) -> dist.TorchDistribution:
        base = dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1)
        return dist.TransformedDistribution(base, [self.transform])


X = torch.randn(20, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: fit(snefy(2), X, noise=torch.ones(20)),
            ValueError,
            r"shape \(20, 2\) of x, got \(20,\)",
        ),
        (
            lambda: fit(snefy(2), X, noise=torch.zeros(20, 2)),
            ValueError,
            "noise > 0 and finite, got 0.0",
        ),
        (lambda: fit(snefy(2), X, noise=X * math.nan), ValueError, "finite, got nan and 40"),
        (lambda: fit(snefy(2), X, noise="1"), TypeError, "noise to be a Tensor"),
        (
            lambda: fit(snefy(2), X.log(), noise=torch.ones(20, 2)),
            ValueError,
            "x without NaN beside noise",
        ),
        (
            lambda: fit(snefy(2), DataLoader(TensorDataset(X)), noise=np.ones((20, 2))),
            ValueError,
            "no noise beside a DataLoader",
        ),
        (lambda: fit(Flow(), X, noise=torch.ones(20, 2)), ValueError, "no method observed"),
        (
            lambda: fit(autoregressive_snefy(2), X, noise=torch.ones(20, 2)),
            ValueError,
            "Autoregressive has no method observed",
        ),
        (
            lambda: fit(
                snefy(UniformBox(-9 * torch.ones(2), 9 * torch.ones(2))),
                X,
                noise=torch.ones(20, 2),
            ),
            NotImplementedError,
            "No closed form for noisy observations",
        ),
    ],
)
def test_bad_noise(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
