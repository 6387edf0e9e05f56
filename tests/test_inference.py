"""Families inside models: latent variables, weights with priors, random effects."""

import math
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.nn import PyroModule, PyroSample
from pyro.ops.stats import effective_sample_size
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_snefy import SNEFY, SphereReparam, conditional_snefy, to_inference_data
from pyro_snefy.activations import Activation, Cos, Exp
from pyro_snefy.bases import (
    Base,
    DirichletFamily,
    Discrete,
    Gaussian,
    Product,
    UniformCube,
    UniformSphere,
)
from pyro_snefy.learning.joint import JointSNEFY

OBSERVED = torch.tensor([0.9, 0.2, 0.4])
NOISE = {"space": 1.0, "cube": 0.3, "simplex": 0.3, "sphere": 0.3}

# Events, as they are under a law that is known: the base, or for the simplex the uniform law.
LATENTS = {
    "space": (
        Gaussian(torch.zeros(3), torch.ones(3)),
        Cos(),
        lambda shape: torch.randn(*shape, 3),
        1.0,
    ),
    "cube": (UniformCube(3), Cos(), lambda shape: torch.rand(*shape, 3), 1.0),
    "simplex": (
        DirichletFamily(3),
        Exp(0.5),
        lambda shape: dist.Dirichlet(torch.ones(3)).sample(shape),
        0.5,
    ),
    "sphere": (
        UniformSphere(3),
        Exp(0.5),
        lambda shape: nn.functional.normalize(torch.randn(*shape, 3), dim=-1),
        4 * math.pi,
    ),
}


def _prior(base: Base, activation: Activation) -> SNEFY:
    weight = torch.tensor([[2.0, 0.0, 0.0], [0.5, 1.5, 0.0], [0.0, 0.3, 3.0]])
    readout = torch.tensor([[1.0, -0.4, 0.2], [0.0, 0.7, 0.6]])
    return SNEFY(weight, torch.tensor([0.1, 0.2, 0.7]), readout, activation=activation, base=base)


def _model(name: str) -> Callable[[], None]:
    base, activation, *_ = LATENTS[name]
    prior = _prior(base, activation)

    def model() -> None:
        x = pyro.sample("x", prior)
        pyro.sample("y", dist.Normal(x, NOISE[name]).to_event(1), obs=OBSERVED)

    return model


def _expected(name: str, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Moments of the posterior by importance sampling from the base, with the evidence."""
    base, activation, draw, area = LATENTS[name]
    x = draw((200_000,))
    log_weight = _prior(base, activation).log_prob(x) + math.log(area)
    if name == "space":
        log_weight = log_weight - dist.Normal(0.0, 1.0).log_prob(x).sum(-1)
    log_weight = log_weight + dist.Normal(x, NOISE[name]).log_prob(OBSERVED).sum(-1)
    evidence = log_weight.logsumexp(0) - math.log(len(x))
    return (log_weight.softmax(0).unsqueeze(-1) * function(x)).sum(0), evidence


def _nuts(model: Callable[[], None], start: Tensor, draws: int = 100) -> dict[str, Tensor]:
    strategy = init_to_value(values={"x": start, "x_normal": start})
    kernel = NUTS(model, init_strategy=strategy, max_plate_nesting=0, max_tree_depth=3)
    mcmc = MCMC(kernel, num_samples=draws, warmup_steps=40, disable_progbar=True)
    with pyro.validation_enabled(False):
        mcmc.run()
    return mcmc.get_samples()


@pytest.mark.parametrize("name", LATENTS)
def test_nuts_on_a_latent(name: str) -> None:
    """First and second moments of the posterior, within Monte Carlo error.

    7e-6 is the rate of false alarms of each of the six. An error of 4.5 standard errors is seen
    half of the time: 0.45 standard deviations if 100 draws were independent.
    """
    draw = LATENTS[name][2]
    model = _model(name)
    if name == "sphere":
        model = pyro.poutine.reparam(model, {"x": SphereReparam()})
    samples = _nuts(model, draw(()), 300 if name == "cube" else 100)
    x = samples["x"] if "x" in samples else nn.functional.normalize(samples["x_normal"], dim=-1)
    values = torch.cat([x, x.square()], dim=-1)
    error = values.std(0) / effective_sample_size(values.unsqueeze(0)).clamp(max=len(x)).sqrt()
    expected, _ = _expected(name, lambda x: torch.cat([x, x.square()], dim=-1))
    assert ((values.mean(0) - expected).abs() < 4.5 * error).all()
    # The test can tell the posterior from the base, and from the likelihood.
    for other in (draw((10_000,)), OBSERVED + NOISE[name] * torch.randn(10_000, 3)):
        moments = torch.cat([other, other.square()], dim=-1).mean(0)
        assert ((moments - expected).abs() > 4.5 * error).any()


def test_autoguide_on_the_sphere() -> None:
    """The bound is one, and the mean is that of the posterior, which is not far from normal.

    One of six other seeds failed. An error of 0.15 in the mean is seen half of the time, and one of
    0.4 nats in the evidence.
    """
    draw = LATENTS["sphere"][2]
    model = pyro.poutine.reparam(_model("sphere"), {"x": SphereReparam()})
    expected, evidence = _expected("sphere", lambda x: x)
    start = init_to_value(values={"x": draw(())})
    guide = AutoNormal(model, init_loc_fn=start)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.99}), Trace_ELBO())
    with pyro.validation_enabled(False):
        losses = [svi.step() for _ in range(300)]
    bound = -torch.tensor(losses[-100:]).mean()
    assert evidence - 0.4 < bound < evidence + 0.05
    z = Predictive(guide, num_samples=2000, return_sites=["x_normal"])()["x_normal"]
    assert (nn.functional.normalize(z, dim=-1).mean(0) - expected).abs().max() < 0.15


def test_reparam_keeps_the_evidence() -> None:
    """In a batch of directions, declared as one event: the auxiliary law has a density still."""
    base, activation, *_ = LATENTS["sphere"]
    prior = _prior(base, activation)

    def model() -> None:
        pyro.sample("x", prior.expand((2,)).to_event(1))

    reparameterised = pyro.poutine.reparam(model, {"x": SphereReparam()})
    z = torch.randn(20_000, 2, 3)
    log_joint = []
    for row in z[:5]:
        conditioned = pyro.poutine.condition(reparameterised, {"x_normal": row})
        trace = pyro.poutine.trace(conditioned).get_trace()
        log_joint.append(trace.log_prob_sum() - dist.Normal(0.0, 1.0).log_prob(row).sum())
        assert_close(trace.nodes["x"]["value"], nn.functional.normalize(row, dim=-1))
    ratio = prior.log_prob(nn.functional.normalize(z, dim=-1)).sum(-1) + 2 * math.log(4 * math.pi)
    assert_close(torch.stack(log_joint), ratio[:5], rtol=1e-4, atol=1e-4)
    assert_close(ratio.exp().mean(), torch.tensor(1.0), rtol=0.1, atol=0.0)


def test_reparam_of_other_laws_and_of_none() -> None:
    def model(law: dist.TorchDistribution, obs: Tensor | None = None) -> Tensor:
        return pyro.sample("x", law, obs=obs)

    handler = pyro.poutine.reparam(model, {"x": SphereReparam()})
    x = handler(dist.ProjectedNormal(torch.ones(3)))
    assert_close(x.norm(), torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"unit sphere at the site x, got Normal"):
        handler(dist.Normal(torch.zeros(3), 1.0).to_event(1))
    base, activation, draw, _ = LATENTS["sphere"]
    with pytest.raises(NotImplementedError, match="x, which is observed"):
        handler(_prior(base, activation), draw(()))


def test_sphere_latent_in_inference_data() -> None:
    model = pyro.poutine.reparam(_model("sphere"), {"x": SphereReparam()})
    z = torch.randn(10, 3)
    data = to_inference_data(model, {"x_normal": z}, predictive=False)
    found = torch.tensor(data.posterior["x"].values[0])
    assert_close(found, nn.functional.normalize(z, dim=-1))
    assert list(data.log_likelihood.data_vars) == ["y"]  # the factor is none


def _location(loc_prior: float) -> JointSNEFY:
    """One exponential neuron on a standard normal base is a normal law with the mean w."""
    base = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    module = PyroModule[JointSNEFY](base, 1, 1, Exp(0.5), False)
    module.weight = PyroSample(dist.Normal(torch.zeros(1, 1), loc_prior).to_event(2))
    return module


def _rows(module: nn.Module) -> Callable[[Tensor], None]:
    def model(x: Tensor) -> None:
        law = module()
        with pyro.plate("rows", len(x)):
            pyro.sample("x", law, obs=x)

    return model


def _conjugate(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    precision = len(x) + scale**-2
    return x.sum() / precision, torch.tensor(precision**-0.5)


def test_nuts_over_weights() -> None:
    """The conjugate posterior, by 150 draws.

    With twelve seeds, these were worth 34 to 121 independent draws, 73 in the median. The bound of
    the mean is 3.7 standard errors of 34 draws and 5.4 of 73: false alarms have a rate of 2e-4 to
    7e-8, and an error of 0.63 standard deviations is seen half of the time. Standard deviations
    had the mean 0.99 and the spread 0.12: the range is 2.3 of these on one side, 1 % of false
    alarms, and errors of 30 and 40 % are seen half of the time.
    """
    x = 1.5 + torch.randn(20)
    mcmc = MCMC(
        NUTS(_rows(_location(2.0)), max_plate_nesting=1),
        num_samples=150,
        warmup_steps=50,
        disable_progbar=True,
    )
    with pyro.validation_enabled(False):
        mcmc.run(x)
    weight = mcmc.get_samples()["weight"].flatten()
    mean, scale = _conjugate(x, 2.0)
    assert (weight.mean() - mean).abs() < 4 * scale / math.sqrt(40)
    assert 0.7 < weight.std() / scale < 1.4


def test_autoguide_over_weights() -> None:
    """None of six other seeds failed. An error of half a standard deviation is seen."""
    x = 1.5 + torch.randn(20)
    model = _rows(_location(2.0))
    guide = AutoNormal(model)
    optimizer = pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.99})
    svi = SVI(model, guide, optimizer, Trace_ELBO(num_particles=2))
    with pyro.validation_enabled(False):
        for _ in range(200):
            svi.step(x)
    samples = Predictive(guide, num_samples=2000, return_sites=["weight"])(x)["weight"].flatten()
    mean, scale = _conjugate(x, 2.0)
    assert (samples.mean() - mean).abs() < 0.5 * scale
    assert 0.75 < samples.std() / scale < 1.3


def test_autoguide_over_all_parameters() -> None:
    """Thirty neurons with priors explain two clusters better than a normal law does.

    None of six other seeds failed. A fit that gains less than 0.4 nats a row is seen.
    """
    x = torch.cat([torch.randn(150) * 0.3 - 2, torch.randn(150) * 0.3 + 2])
    base = Gaussian(x.mean(), x.std(), event_dim=0)
    module = PyroModule[JointSNEFY](base, 30, 4, Cos(), False)
    module.weight = PyroSample(dist.Normal(torch.zeros(30, 1), 2.0).to_event(2))
    module.bias = PyroSample(dist.Normal(torch.zeros(30), 3.0).to_event(1))
    module.readout = PyroSample(dist.Normal(torch.zeros(4, 30), 1.0).to_event(2))
    model = _rows(module)
    guide = AutoNormal(model, init_scale=0.05)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.03}), Trace_ELBO())
    with pyro.validation_enabled(False):
        for _ in range(300):
            svi.step(x)
    data = to_inference_data(model, guide, x, num_samples=20, predictive=False)
    density = torch.tensor(data.log_likelihood["x"].values[0]).logsumexp(0) - math.log(20)
    normal = dist.Normal(x.mean(), x.std()).log_prob(x).mean()
    assert density.mean() > normal + 0.4


def test_enumeration_of_discrete_latents() -> None:
    """The bound is the exact evidence, and its gradient that of the evidence."""
    points = torch.tensor([-1.0, 0.5, 2.0])
    base = Discrete(points, torch.ones(3))
    weight = torch.tensor([[1.0], [0.3]], requires_grad=True)
    readout = torch.tensor([[1.0, 0.5]])
    y = torch.tensor([0.3, 1.8, -0.7, 0.1])

    @config_enumerate
    def model() -> None:
        law = SNEFY(weight, readout=readout, activation=Exp(), base=base)
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", law)
            pyro.sample("y", dist.Normal(z, 0.7), obs=y)

    elbo = TraceEnum_ELBO(max_plate_nesting=1)
    loss = elbo.differentiable_loss(model, lambda: None)
    neurons = (points.unsqueeze(-1) * weight[:, 0]).exp() @ readout[0]
    shares = neurons**2 / (neurons**2).sum()
    likelihood = dist.Normal(points, 0.7).log_prob(y.unsqueeze(-1)).exp()
    expected = -(likelihood @ shares).log().sum()
    assert_close(loss, expected)
    found, exact = (torch.autograd.grad(value, weight)[0] for value in (loss, expected))
    assert_close(found, exact, rtol=1e-4, atol=1e-5)


def test_hierarchical_regression() -> None:
    """Effects of groups are found, and make held-out rows more likely.

    Three of six other seeds failed, since 200 steps end in another optimum from some starts: the
    test tells what the seed of the suite finds. A gain below 0.5 nats a row is seen.
    """
    groups, rows = 8, 400
    effects = torch.linspace(-2, 2, groups)[torch.randperm(groups)]
    group, x = torch.arange(rows) % groups, torch.rand(rows)
    # Two branches about the effect of the group.
    branch = torch.where(torch.rand(rows) < 0.5, 0.6 + x, -0.6 - x)
    y = effects[group] + branch + 0.15 * torch.randn(rows)
    train = torch.arange(rows) < 320
    base = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    likelihood = conditional_snefy(base, 2, 8, 3, hidden_dims=(16,))
    likelihood.initialize(y, torch.stack([x, torch.zeros(rows)], dim=-1))

    def model(x: Tensor, group: Tensor, y: Tensor) -> Tensor:
        pyro.module("likelihood", likelihood)
        with pyro.plate("groups", groups):
            effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
        context = torch.stack([x, effect[group]], dim=-1)
        with pyro.plate("rows", len(x)):
            law = likelihood.condition(context)
            pyro.sample("y", law, obs=y)
        return law.log_prob(y)

    start = init_to_value(values={"effect": torch.zeros(groups)})
    guide = AutoNormal(model, init_loc_fn=start, init_scale=0.05)
    optimizer = pyro.optim.ClippedAdam({"lr": 0.02, "lrd": 0.1 ** (1 / 200)})
    svi = SVI(model, guide, optimizer, Trace_ELBO())
    with pyro.validation_enabled(False):
        for _ in range(200):
            svi.step(x[train], group[train], y[train])
    effect = guide.median()["effect"].detach()
    with torch.no_grad():
        known = pyro.poutine.condition(model, {"effect": effect})
        score = known(x[~train], group[~train], y[~train]).mean()
    # The entropy of two branches given the effects, and the best normal law without them.
    assert score < -(math.log(2) + math.log(0.15) + (1 + math.log(2 * math.pi)) / 2) + 0.15
    assert score > dist.Normal(y.mean(), y.std()).log_prob(y).mean() + 0.5
    correlation = torch.corrcoef(torch.stack([effect, effects]))[0, 1].abs()
    assert correlation > 0.9


def test_latent_product_with_a_simplex() -> None:
    """The error names the factor, and its remedy works."""
    base = Product([Gaussian(torch.zeros(1), torch.ones(1)), DirichletFamily(2)])
    prior = _prior(base, Exp(0.5))

    def joint() -> None:
        pyro.sample("x", prior)

    def apart() -> None:
        share = pyro.sample("share", prior.marginal([1, 2]))
        pyro.sample("x", prior.conditional([1, 2], share))

    settings = {"num_samples": 4, "warmup_steps": 2, "disable_progbar": True}
    with pytest.raises(NotImplementedError, match=r"factor 1, Simplex.*marginal"):
        MCMC(NUTS(joint), **settings).run()
    mcmc = MCMC(NUTS(apart), **settings)
    mcmc.run()
    assert mcmc.get_samples()["share"].shape == (4, 2)
