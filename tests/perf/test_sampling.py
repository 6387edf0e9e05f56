"""Time of exact draws, in ratios to something else of the same run, on one thread."""

import math
import time

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyro_snefy import SNEFY, conditional_snefy, fit, to_inference_data
from pyro_snefy.activations import Cos, Exp, LeakyReLU, Snake
from pyro_snefy.bases import Gaussian, GaussianMixture
from tests.perf.timing import medians

pytestmark = pytest.mark.perf


@pytest.fixture(autouse=True)
def _no_validation() -> None:
    pyro.enable_validation(False)


def _moons(count: int) -> Tensor:
    angle = math.pi * torch.rand(count)
    upper = torch.rand(count) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x - 0.5, y - 0.25], dim=-1) + 0.1 * torch.randn(count, 2)


def _trained(steps: int = 1500) -> SNEFY:
    """A model of two moons: 50 cosines on a mixture of 8 Gaussians."""
    n, k = 50, 8
    start = _moons(k)
    parameters = [
        torch.randn(n, 2),
        2 * math.pi * torch.rand(n),
        torch.randn(1, n) / n,
        torch.zeros(k),
        start,
        torch.full((k, 2), -0.5),
    ]
    parameters = [nn.Parameter(x) for x in parameters]

    def family() -> SNEFY:
        weight, bias, readout, logits, loc, log_scale = parameters
        base = GaussianMixture(logits, loc, log_scale.exp())
        return SNEFY(weight, bias, readout, activation=Cos(), base=base)

    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (-family().log_prob(_moons(512)).mean()).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        print(f"\nmoons, test log-likelihood {family().log_prob(_moons(20000)).mean():.3f}")
    return family()


@torch.no_grad()
def _gaussian_envelope(family: SNEFY, count: int, constant: float = 1000.0) -> Tensor:
    """Draws from N(0, 2I), accepted as if its density times a constant were an envelope."""
    proposal = torch.distributions.Normal(torch.zeros(2), math.sqrt(2.0))
    found: list[Tensor] = []
    while sum(map(len, found)) < count:
        x = proposal.sample((2**16,))
        ratio = family.log_prob(x) - proposal.log_prob(x).sum(-1) - math.log(constant)
        found.append(x[torch.rand(len(x)).log() <= ratio])
    return torch.cat(found)[:count]


def test_against_a_gaussian_envelope() -> None:
    torch.manual_seed(0)
    family = _trained()
    times = medians(
        {
            "ours": lambda: family.sample((1000,)),
            "Gaussian envelope": lambda: _gaussian_envelope(family, 1000),
        },
        seconds=20.0,
    )
    ratio = times["Gaussian envelope"] / times["ours"]
    rate = float(family.acceptance_rate.detach())
    print(
        f"1,000 draws {times['ours'] * 1e3:.1f} ms, {ratio:.0f}x faster (aim: 100x); "
        f"acceptance {rate:.3f}"
    )
    assert ratio >= 25


@pytest.mark.parametrize("m", [1, 16])
def test_single_draw(m: int) -> None:
    """One draw of a joint family takes at most 5 ms: models draw one event at a time."""
    pyro.enable_validation(True)
    torch.manual_seed(0)
    family = SNEFY(torch.randn(50, 2), torch.randn(50), torch.randn(m, 50), activation=Cos())
    times = medians({"draw": lambda: family.sample(())})
    rate = float(family.acceptance_rate)
    print(f"\nm={m}: one draw {times['draw'] * 1e3:.2f} ms (aim: 5 ms); acceptance {rate:.3f}")
    assert times["draw"] <= 5e-3


def test_gradient_of_one_draw() -> None:
    """Ten leaky rectifiers on three components in three dimensions: at most 5 s."""
    torch.manual_seed(0)
    base = GaussianMixture(torch.zeros(3), torch.randn(3, 3), torch.ones(3, 3))
    weight = torch.randn(10, 3, requires_grad=True)
    activation = LeakyReLU(0.2)
    family = SNEFY(weight, torch.randn(10), torch.randn(2, 10), activation=activation, base=base)
    x = family.rsample()
    start = time.process_time()
    x.sum().backward()
    taken = time.process_time() - start
    print(f"\nbackward pass of one draw {taken:.1f} s (aim: 5 s)")
    assert taken <= 5


def test_conditional() -> None:
    torch.manual_seed(0)
    base = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    likelihood = conditional_snefy(base, 5)
    context = torch.randn(20000, 5)
    with torch.no_grad():
        family = likelihood.condition(context)
        y = family.sample()
        times = medians(
            {"sample": family.sample, "log_prob": lambda: family.log_prob(y)}, seconds=10.0
        )
    ratio = times["sample"] / times["log_prob"]
    rate = family.acceptance_rate
    print(
        f"\n20,000 contexts: a draw each {times['sample']:.2f} s, log_prob "
        f"{times['log_prob'] * 1e3:.0f} ms, {ratio:.1f}x; acceptance {rate.mean():.3f}"
    )
    assert ratio <= 20


@pytest.mark.parametrize("m", [1, 50])
@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), Exp(0.5)], ids=str)
def test_dimension(activation: Cos | Snake | Exp, m: int) -> None:
    """The time of a draw does not grow with the dimension, but for that of its coordinates."""
    torch.manual_seed(0)
    n = 50
    families = {
        str(d): SNEFY(torch.randn(n, d), torch.randn(n), torch.randn(m, n), activation=activation)
        for d in (2, 10, 50)
    }
    draws = {d: (lambda family=family: family.sample((2000,))) for d, family in families.items()}
    times = medians(draws, seconds=8.0)
    rates = ", ".join(f"{float(family.acceptance_rate):.3f}" for family in families.values())
    figures = ", ".join(f"d={d} {t / 2000 * 1e6:.0f} µs" for d, t in times.items())
    print(f"\n{activation}, m={m}: {figures} a draw; acceptance {rates}")
    assert times["50"] <= 4 * times["2"]


def test_inference_data() -> None:
    """500 draws of 919 rows of the default likelihood, each with a law of its own: at most 8 s."""
    pyro.enable_validation(True)
    torch.manual_seed(0)
    rows, groups = 919, 85
    x, group = torch.randn(rows, 1), torch.randint(groups, (rows,))
    y = x[:, 0] + 0.3 * torch.randn(groups)[group] + 0.7 * torch.randn(rows)
    likelihood = conditional_snefy((), 2)
    context = torch.cat([x, torch.randn(groups)[group].unsqueeze(-1)], dim=-1)
    fit(likelihood.initialize(y, context), y, context, max_epochs=15, progress=False)

    def model(x: Tensor, group: Tensor, y: Tensor) -> None:
        pyro.module("likelihood", likelihood)
        with pyro.plate("groups", groups):
            effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", rows):
            own = effect[..., group].unsqueeze(-1)
            both = torch.cat([x.expand(own.shape), own], dim=-1)
            pyro.sample("y", likelihood.condition(both), obs=y)

    guide = AutoNormal(model, init_scale=0.3)
    to_inference_data(model, guide, x, group, y, num_samples=5)  # ArviZ takes long to import
    start = time.process_time()
    data = to_inference_data(model, guide, x, group, y, num_samples=500)
    taken = time.process_time() - start
    print(f"\n500 draws of 919 rows {taken:.1f} s (aim: 8 s)")
    assert data.posterior_predictive["y"].shape == (1, 500, rows)
    assert taken <= 8
