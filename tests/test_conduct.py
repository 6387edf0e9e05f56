"""One script on every pair of activation and base: what Pyro and torch expect of a distribution."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import transforms
from pyro.infer import (
    SVI,
    JitTrace_ELBO,
    JitTraceEnum_ELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    config_enumerate,
)
from torch import Tensor
from torch.distributions import MixtureSameFamily, transform_to
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_snefy import SNEFY
from pyro_snefy.activations import Cos, Exp, ReLU, Snake
from pyro_snefy.bases import Discrete, Gaussian, Interval
from tests.cases import CASES, Case, events

EVERY = pytest.mark.parametrize("case", CASES, ids=str)
# One for each way to a closed form: waves, complex waves, log-partition functions, bivariate
# normal laws, homogeneous neurons, piecewise polynomials.
ENGINES = pytest.mark.parametrize(
    "case",
    [
        Case("Snake", "UniformBox"),
        Case("Cis", "GaussianFull"),
        Case("Exp", "UniformSphere"),
        Case("ReLU", "GaussianFull"),
        Case("LeakyReLU", "UniformSphere"),
        Case("ReLU2", "Intervals"),
    ],
    ids=str,
)

Parameters = dict[str, Tensor]


def _parameters(case: Case, batch: tuple[int, ...] = ()) -> Parameters:
    # Eight neurons, so that some are active at every point of a finite set.
    weight, bias, readout = case.parameters(n=8, batch=batch)
    named = {"weight": weight, "bias": bias, "readout": readout}
    return {name: value for name, value in named.items() if value is not None}


def _build(case: Case, parameters: Parameters, **kwargs: Any) -> SNEFY:
    return SNEFY(**parameters, activation=case.activation, base=case.base(), **kwargs)


def _likely(case: Case, d: SNEFY, count: int) -> Tensor:
    # Events of positive density: rectifiers have holes in their support, and a loss of infinity
    # is nan in Pyro, whatever the distribution.
    x = events(case, 20 * count)
    x = x[d.log_prob(x) > -torch.inf][:count]
    assert len(x) == count
    return x


def _leaves(parameters: Parameters) -> Parameters:
    return {name: value.clone().requires_grad_() for name, value in parameters.items()}


# Shapes ----------------------------------------------------------------------------------------


@EVERY
def test_shapes(case: Case) -> None:
    d, x = _build(case, _parameters(case, batch=(3,))), events(case, 5)
    assert d.batch_shape == (3,)
    assert d.event_shape == x.shape[1:]
    assert d.event_dim == d.support.event_dim == x.dim() - 1
    assert d.log_prob(x[0]).shape == (3,)
    assert d.log_prob(x[:3]).shape == (3,)
    assert d.log_normalizer.shape == d.condition_number.shape == (3,)
    log_prob = d.log_prob(x.unsqueeze(1))
    assert log_prob.shape == (5, 3)
    for k in range(3):
        one = _build(case, {name: v[k] for name, v in zip(_names(d), _tensors(d), strict=True)})
        assert one.batch_shape == ()
        assert one.log_prob(x).shape == (5,)
        assert_close(one.log_prob(x), log_prob[:, k])


def _names(d: SNEFY) -> list[str]:
    return [name for name in ("weight", "bias", "readout") if getattr(d, name) is not None]


def _tensors(d: SNEFY) -> list[Tensor]:
    return [getattr(d, name) for name in _names(d)]


@EVERY
def test_infer_shapes(case: Case) -> None:
    parameters = _parameters(case, batch=(3,))
    shapes = {name: value.shape for name, value in parameters.items()}
    batch_shape, event_shape = SNEFY.infer_shapes(**shapes, base=case.base())
    d = _build(case, parameters)
    assert (batch_shape, event_shape) == (d.batch_shape, d.event_shape)


@EVERY
def test_expand(case: Case) -> None:
    d, x = _build(case, _parameters(case, batch=(3,))), events(case, 5)
    expected = d.log_prob(x.unsqueeze(1))
    wide = d.expand((5, 3))
    assert type(wide) is SNEFY
    assert (wide.batch_shape, wide.event_shape) == ((5, 3), d.event_shape)
    assert d.batch_shape == (3,)
    for name in (*_names(d), "base"):
        assert getattr(wide, name) is getattr(d, name)
    assert_close(wide.log_prob(x.unsqueeze(1)), expected)
    assert_close(wide.log_normalizer, d.log_normalizer.expand(5, 3))
    assert_close(d.expand_by((5,)).log_prob(x.unsqueeze(1)), expected)
    assert wide.shape((2,)) == (2, 5, 3, *d.event_shape)

    joint = d.to_event(1)
    assert (joint.batch_shape, joint.event_shape) == ((), (3, *d.event_shape))
    rows = x[:3]
    assert_close(joint.log_prob(rows), d.log_prob(rows).sum())

    mask = torch.tensor([True, False, True])
    masked = d.log_prob(rows) * mask
    masked[1] = 0  # where the density is zero too
    assert_close(d.mask(mask).log_prob(rows), masked)
    assert_close(d.mask(False).log_prob(rows), torch.zeros(3, dtype=torch.float64))


# Pyro ------------------------------------------------------------------------------------------


def _log_prob_sum(model: Callable[[], Any]) -> Tensor:
    return poutine.trace(model).get_trace().log_prob_sum()


@EVERY
def test_sites(case: Case) -> None:
    d = _build(case, _parameters(case))
    x = _likely(case, d, 5)
    log_prob = d.log_prob(x)
    mask = torch.tensor([True, False, True, True, False])

    def model() -> None:
        with pyro.plate("rows", 5):
            pyro.sample("x", d, obs=x)

    def latent() -> None:
        with pyro.plate("rows", 5):
            pyro.sample("x", d)

    def subsampled() -> None:
        with pyro.plate("rows", 50, subsample=torch.arange(5)):
            pyro.sample("x", d, obs=x)

    def nested() -> None:
        with pyro.plate("columns", 2, dim=-2), pyro.plate("rows", 5, dim=-1):
            pyro.sample("x", d, obs=x)

    def declared() -> None:
        with pyro.plate("rows", 5):
            pyro.sample("x", d.mask(mask), obs=x)
        pyro.sample("y", d.expand_by((5,)).to_event(1), obs=x)

    assert_close(_log_prob_sum(model), log_prob.sum())
    assert_close(_log_prob_sum(poutine.condition(latent, data={"x": x})), log_prob.sum())
    assert_close(_log_prob_sum(subsampled), 10 * log_prob.sum())
    assert_close(_log_prob_sum(nested), 2 * log_prob.sum())
    assert_close(_log_prob_sum(poutine.scale(model, scale=0.25)), log_prob.sum() / 4)
    assert_close(_log_prob_sum(poutine.mask(model, mask=mask)), log_prob[mask].sum())
    assert_close(_log_prob_sum(declared), log_prob[mask].sum() + log_prob.sum())


@EVERY
def test_mixture_same_family(case: Case) -> None:
    d, x = _build(case, _parameters(case, batch=(3,))), events(case, 5)
    logits = torch.randn(3, dtype=torch.float64)
    expected = (logits.log_softmax(-1) + d.log_prob(x.unsqueeze(1))).logsumexp(-1)
    for family in (dist.MixtureSameFamily, MixtureSameFamily):
        mixture = family(dist.Categorical(logits=logits), d)
        assert mixture.event_shape == d.event_shape
        assert_close(mixture.log_prob(x), expected)


def _is_flat(case: Case) -> bool:
    # Events of a law with a density on R^d, whose images under a bijection have one too.
    return case.base_name in (
        "Gaussian",
        "GaussianScalar",
        "GaussianFull",
        "GaussianMixture",
        "ProjectedGaussian",
        "NormalFamily",
    )


@pytest.mark.parametrize("case", [case for case in CASES if _is_flat(case)], ids=str)
def test_flow(case: Case) -> None:
    d = _build(case, _parameters(case))
    x = _likely(case, d, 4)
    shift = torch.randn(d.event_shape, dtype=torch.float64)
    affine = transforms.AffineTransform(shift, -1.5, event_dim=d.event_dim)
    layers: list[Any] = [affine, transforms.TanhTransform()]
    if d.event_dim:
        spline = transforms.Spline(d.event_shape[0], count_bins=4).double()
        layers = [spline, affine]
    flow = dist.TransformedDistribution(d, layers)
    assert (flow.batch_shape, flow.event_shape) == (d.batch_shape, d.event_shape)

    def forward(row: Tensor) -> Tensor:
        for layer in layers:
            row = layer(row)
        return row

    y = torch.stack([forward(row) for row in x]).detach()
    jacobians = [torch.autograd.functional.jacobian(forward, row) for row in x]
    volumes = [jacobian.reshape((row.numel(),) * 2).det().abs() for jacobian, row in zip(jacobians, x)]
    assert_close(flow.log_prob(y), d.log_prob(x) - torch.stack(volumes).log())

    def model() -> None:
        with pyro.plate("rows", 4):
            pyro.sample("y", flow, obs=y)

    assert_close(_log_prob_sum(model), flow.log_prob(y).sum())


def _model(case: Case, parameters: Parameters) -> Callable[[Tensor], None]:
    def model(x: Tensor) -> None:
        # Pyro hands the parameters back in their constrained form.
        d = _build(case, {name: pyro.param(name, v.clone()) for name, v in parameters.items()})
        with pyro.plate("rows", len(x)):
            pyro.sample("x", d, obs=x)

    return model


def _guide(x: Tensor) -> None:
    pass


def _loss_and_gradients(case: Case, parameters: Parameters, x: Tensor) -> tuple[float, Parameters]:
    leaves = _leaves(parameters)
    loss = -_build(case, leaves).log_prob(x).sum()
    loss.backward()
    gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return float(loss.detach()), gradients


def _check_elbo(case: Case, elbo: Any) -> None:
    parameters = _parameters(case)
    x = _likely(case, _build(case, parameters), 6)
    model = _model(case, parameters)
    # Rows in another order and of another weight: nothing may be left from the first call.
    for rows in (x, x.flip(0), torch.cat([x[:3], x[:3]])):
        loss, gradients = _loss_and_gradients(case, parameters, rows)
        pyro.clear_param_store()
        assert elbo.loss_and_grads(model, _guide, rows) == pytest.approx(loss, rel=1e-9)
        for name, gradient in gradients.items():
            found = pyro.param(name).grad
            assert found.isfinite().all()
            assert_close(found, gradient)
    assert gradients["readout"].abs().max() > 0
    # A step is constant between its jumps: on a finite set it has no gradient in weight and bias.
    if not (case.activation_name == "Step" and case.base_name.startswith("Discrete")):
        for name in parameters:
            assert gradients[name].abs().max() > 0


@EVERY
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceGraph_ELBO, TraceEnum_ELBO])
def test_elbo(case: Case, elbo: type) -> None:
    _check_elbo(case, elbo())


@EVERY
def test_svi(case: Case) -> None:
    parameters = _parameters(case)
    x = _likely(case, _build(case, parameters), 6)
    svi = SVI(_model(case, parameters), _guide, pyro.optim.Adam({"lr": 1e-4}), Trace_ELBO())
    before = svi.step(x)
    for _ in range(4):
        svi.step(x)
    assert svi.evaluate_loss(x) < before
