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

from pyro_snefy import SNEFY, Bias, autoregressive_snefy, conditional_snefy, point_process
from pyro_snefy.activations import Cos, Exp, ReLU, Sin, Snake
from pyro_snefy.bases import Discrete, Gaussian, Interval, UniformBox
from tests.cases import CASES, KINDS, Case, events

EVERY = pytest.mark.parametrize("case", KINDS, ids=str)
# The slowest script takes one case of each pair of types: other slopes and powers are traced alike.
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
    parameters, x = _parameters(case, batch=(3,)), events(case, 5)
    d = _build(case, parameters)
    assert d.batch_shape == (3,)
    assert d.event_shape == x.shape[1:]
    assert d.event_dim == d.support.event_dim == x.dim() - 1
    assert d.log_prob(x[0]).shape == (3,)
    assert d.log_prob(x[:3]).shape == (3,)
    assert d.log_normalizer.shape == d.condition_number.shape == (3,)
    log_prob = d.log_prob(x.unsqueeze(1))
    assert log_prob.shape == (5, 3)
    one = _build(case, {name: value[1] for name, value in parameters.items()})
    assert one.batch_shape == ()
    assert one.log_prob(x).shape == (5,)
    assert_close(one.log_prob(x), log_prob[:, 1])


@EVERY
def test_infer_shapes(case: Case) -> None:
    parameters = _parameters(case, batch=(3,))
    shapes = {name: value.shape for name, value in parameters.items()}
    batch_shape, event_shape = SNEFY.infer_shapes(**shapes, base=case.base())
    d = _build(case, parameters)
    assert (batch_shape, event_shape) == (d.batch_shape, d.event_shape)


@EVERY
def test_expand(case: Case) -> None:
    parameters, x = _parameters(case, batch=(3,)), events(case, 5)
    d = _build(case, parameters)
    expected = d.log_prob(x.unsqueeze(1))
    wide = d.expand((5, 3))
    assert type(wide) is SNEFY
    assert (wide.batch_shape, wide.event_shape) == ((5, 3), d.event_shape)
    assert d.batch_shape == (3,)
    for name in (*parameters, "base"):
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
    assert d.mask(False).log_prob(rows).tolist() == [0, 0, 0]


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
    volumes = [jacobian.reshape((x[0].numel(),) * 2).det().abs() for jacobian in jacobians]
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


def _check_elbos(case: Case, *elbos: Any) -> None:
    parameters = _parameters(case)
    x = _likely(case, _build(case, parameters), 6)
    model = _model(case, parameters)
    # Other rows and parameters in the second call: no constant may be left from the first one.
    for rows, factor in ((x, 1.0), (torch.cat([x[3:], x[3:]]), 1.05)):
        parameters = {name: factor * value for name, value in parameters.items()}
        for value in pyro.get_param_store().values():
            value.data.mul_(factor)
        loss, gradients = _loss_and_gradients(case, parameters, rows)
        for elbo in elbos:
            for value in pyro.get_param_store().values():
                value.grad = None
            assert float(elbo.loss_and_grads(model, _guide, rows)) == pytest.approx(loss, rel=1e-9)
            for name, gradient in gradients.items():
                assert_close(pyro.param(name).grad, gradient)
    # A step is constant between its jumps: on a finite set it has no gradient in weight and bias.
    flat = case.activation_name == "Step" and case.base_name.startswith("Discrete")
    for name in ["readout"] if flat else parameters:
        assert gradients[name].isfinite().all()
        assert gradients[name].abs().max() > 0


@EVERY
def test_elbo(case: Case) -> None:
    _check_elbos(case, Trace_ELBO(), TraceGraph_ELBO(), TraceEnum_ELBO(max_plate_nesting=1))


@EVERY
def test_jit_elbo(case: Case) -> None:
    # Traced and run as it is; how torch optimises traces is tested below, on fewer pairs.
    with torch.jit.optimized_execution(False):
        _check_elbos(case, JitTrace_ELBO(ignore_jit_warnings=True))


@ENGINES
def test_jit_enumeration_elbo(case: Case) -> None:
    _check_elbos(case, JitTraceEnum_ELBO(max_plate_nesting=1, ignore_jit_warnings=True))


@ENGINES
def test_optimised_jit_elbo(case: Case) -> None:
    _check_elbos(case, JitTrace_ELBO(ignore_jit_warnings=True))


@pytest.mark.parametrize("elbo", [Trace_ELBO, JitTrace_ELBO])
@pytest.mark.parametrize("full", [False, True])
def test_learnable_base(elbo: Callable[..., Any], full: bool) -> None:
    """A base that is built inside of a model, from parameters."""
    weight, readout = torch.randn(5, 2).double(), torch.randn(2, 5).double()
    scale = torch.tensor([[0.9, 0.0], [-0.6, 0.7]]).double() if full else torch.ones(2).double()
    start = {"loc": torch.randn(2).double(), "scale_tril" if full else "scale": scale}
    x = torch.randn(6, 2).double()

    def model(x: Tensor) -> None:
        base = Gaussian(**{name: pyro.param(name, v.clone()) for name, v in start.items()})
        with pyro.plate("rows", len(x)):
            pyro.sample("x", SNEFY(weight, None, readout, activation=Snake(), base=base), obs=x)

    leaves = _leaves(start)
    d = SNEFY(weight, None, readout, activation=Snake(), base=Gaussian(**leaves))
    loss = -d.log_prob(x).sum()
    loss.backward()
    found = elbo(ignore_jit_warnings=True).loss_and_grads(model, _guide, x)
    assert float(found) == pytest.approx(float(loss.detach()), rel=1e-9)
    for name, leaf in leaves.items():
        assert_close(pyro.param(name).grad, leaf.grad)


@EVERY
def test_svi(case: Case) -> None:
    parameters = _parameters(case)
    x = _likely(case, _build(case, parameters), 6)
    svi = SVI(_model(case, parameters), _guide, pyro.optim.Adam({"lr": 1e-4}), Trace_ELBO())
    assert svi.step(x) > svi.evaluate_loss(x)


# Torch -----------------------------------------------------------------------------------------


@EVERY
def test_vmap_over_parameters(case: Case) -> None:
    parameters, x = _parameters(case, batch=(3,)), events(case, 4)

    def log_prob(parameters: Parameters) -> Tensor:
        return _build(case, parameters, validate_args=False).log_prob(x)

    batched = _build(case, parameters).log_prob(x.unsqueeze(1))
    assert_close(torch.func.vmap(log_prob, out_dims=1)(parameters), batched)


@EVERY
def test_vmap_over_bases(case: Case) -> None:
    parameters, x, base = _parameters(case), events(case, 4), case.base()
    # Points of a support stay where they are, so that events remain inside.
    tensors = [value for name, value in base.tensors() if "points" not in name]
    factors = torch.tensor([1.0, 1.1, 1.2], dtype=torch.float64)

    def log_prob(factor: Tensor, **kwargs: Any) -> Tensor:
        scaled = base.map(lambda t: t * factor if any(t is other for other in tensors) else t)
        d = SNEFY(**parameters, activation=case.activation, base=scaled, **kwargs)
        return d.log_prob(x)

    found = torch.func.vmap(lambda factor: log_prob(factor, validate_args=False))(factors)
    # A value that is outside of a smaller support has the density zero there.
    with pyro.validation_enabled(False):
        assert_close(found, torch.stack([log_prob(factor) for factor in factors]))


@EVERY
def test_func_grad(case: Case) -> None:
    parameters = _parameters(case)
    x = _likely(case, _build(case, parameters), 4)

    def log_prob(parameters: Parameters, row: Tensor) -> Tensor:
        return _build(case, parameters, validate_args=False).log_prob(row)

    each = torch.func.vmap(torch.func.grad(log_prob), in_dims=(None, 0))(parameters, x)
    _, expected = _loss_and_gradients(case, parameters, x)
    for name, gradient in each.items():
        zero = torch.zeros_like(parameters[name])
        assert gradient.shape == (4, *zero.shape)
        assert_close(gradient.sum(0), -expected.get(name, zero))


@pytest.mark.parametrize("activation", [Cos(), ReLU(1)], ids=str)
def test_func_grad_of_many_rows(activation: Any) -> None:
    """More rows than are held at once, which hooks of autograd would evaluate again."""
    weight, readout = torch.randn(40, 2).double(), torch.randn(2, 40).double()
    bias = torch.randn(8000 if isinstance(activation, Cos) else 800, 40).double()

    def total(weight: Tensor, readout: Tensor) -> Tensor:
        return SNEFY(weight, bias, readout, activation=activation).log_normalizer.sum()

    leaves = [x.clone().requires_grad_() for x in (weight, readout)]
    expected = torch.autograd.grad(total(*leaves), leaves)
    for found, gradient in zip(
        torch.func.grad(total, (0, 1))(weight, readout), expected, strict=True
    ):
        assert_close(found, gradient)


@pytest.mark.parametrize(
    "case",
    [
        Case("Cis", "GaussianFull"),
        Case("Snake", "GaussianScalar"),
        Case("Exp", "UniformSphere"),
        Case("ReLU", "GaussianMixture"),
    ],
    ids=str,
)
def test_compile(case: Case) -> None:
    parameters = _parameters(case)
    x, base = _likely(case, _build(case, parameters), 4), case.base()

    def loss(parameters: Parameters, x: Tensor) -> Tensor:
        d = SNEFY(**parameters, activation=case.activation, base=base, validate_args=False)
        return -d.log_prob(x).sum()

    # The whole graph, forwards and backwards, without the need of a C++ compiler.
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for factor in (1.0, 1.05):
        scaled = {name: factor * value for name, value in parameters.items()}
        expected, gradients = _loss_and_gradients(case, scaled, x)
        leaves = _leaves(scaled)
        value = compiled(leaves, x)
        value.backward()
        assert float(value.detach()) == pytest.approx(expected, rel=1e-9)
        for name, gradient in gradients.items():
            assert_close(leaves[name].grad, gradient)


@EVERY
def test_copies(case: Case) -> None:
    d, x = _build(case, _parameters(case)), events(case, 4)
    for copied in (pickle.loads(pickle.dumps(d)), copy.deepcopy(d)):
        assert copied.weight is not d.weight
        assert (copied.activation, copied.batch_shape) == (d.activation, d.batch_shape)
        assert torch.equal(copied.log_prob(x), d.log_prob(x))


@EVERY
def test_repr(case: Case) -> None:
    text = repr(_build(case, _parameters(case)))
    assert text.startswith("SNEFY(")
    assert case.activation.__class__.__name__ in text
    assert case.base().__class__.__name__ in text
    assert "weight" in text and len(text) < 300 and "\n" not in text


def test_repr_of_derived_laws() -> None:
    """Laws that are derived from another name it."""
    joint = SNEFY(torch.randn(8, 2), torch.zeros(8), torch.randn(2, 8), activation=ReLU())
    assert repr(joint.marginal([1])) == f"Marginal({joint}, dims=[1])"
    assert repr(joint.partially_observed()) == f"PartiallyObserved({joint})"
    bounded = repr(joint.partially_observed(low=torch.zeros(2)))
    assert bounded == f"PartiallyObserved({joint}, low: (2,), high: (2,))"
    noise = repr(joint.observed(torch.ones(4, 2)))
    assert noise == f"Observed({joint.expand((4,))}, scale: (4, 2))"
    matrix = repr(joint.observed(scale_tril=torch.eye(1), matrix=torch.ones(1, 2)))
    assert matrix == f"Observed({joint}, scale_tril: (1, 1), matrix: (1, 2))"
    scalar = SNEFY(torch.randn(8, 1), readout=torch.randn(2, 8), base=Gaussian(0, 1, event_dim=0))
    assert repr(scalar.censored(low=0.0)) == f"Censored({scalar}, low: (), high: ())"


def test_repr_of_modules() -> None:
    """Modules name their base, activation, heads and sizes."""
    box = UniformBox(torch.zeros(2), torch.ones(2))
    text = repr(point_process(box, hidden_dim=7, readout_dim=5, activation=Sin()))
    for part in ("UniformBox(", "hidden_dim=7", "readout_dim=5", "Sin()"):
        assert part in text
    text = repr(autoregressive_snefy(3, context_dim=2, hidden_dim=7, readout_dim=5))
    for part in ("GaussianMixture(", "dim=3", "context_dim=2", "hidden_dim=7", "readout_dim=5"):
        assert part in text
    text = repr(conditional_snefy(2, 3, hidden_dim=7, readout_dim=5, heads=[Bias()]))
    for part in ("GaussianMixture(", "hidden_dim=7", "readout_dim=5", "Cos()", "heads=[Bias()]"):
        assert part in text


@EVERY
def test_constrained_parameters(case: Case) -> None:
    """What `pyro.param(..., constraint=d.arg_constraints[...])` needs."""
    parameters = _parameters(case)
    d = _build(case, parameters)
    assert set(d.arg_constraints) == set(parameters)
    for name, constraint in d.arg_constraints.items():
        value = parameters[name]
        assert constraint.check(value).all()
        assert constraint.event_dim == {"weight": 2, "bias": 1, "readout": 2}[name]
        if not value.is_complex():
            free = torch.randn_like(transform_to(constraint).inv(value))
            assert constraint.check(transform_to(constraint)(free)).all()


# Enumeration -----------------------------------------------------------------------------------

_TRIALS = {"Binomial": 7, "Bernoulli": 1}
FINITE = [case for case in CASES if case.base_name.startswith("Discrete")]
FINITE += [case for case in CASES if case.base_name in _TRIALS]


@pytest.mark.parametrize("case", FINITE, ids=str)
def test_enumerate_support(case: Case) -> None:
    d = _build(case, _parameters(case, batch=(3,)))
    assert d.has_enumerate_support
    trials = _TRIALS.get(case.base_name)
    points = torch.arange(trials + 1).double() if trials else case.base().points
    narrow, wide = d.enumerate_support(expand=False), d.enumerate_support()
    assert narrow.shape == (len(points), 1, *d.event_shape)
    assert wide.shape == (len(points), 3, *d.event_shape)
    assert torch.equal(narrow.squeeze(1), points)
    assert_close(d.log_prob(wide).logsumexp(0), torch.zeros(3, dtype=torch.float64))


def test_enumerated_points_are_distinct() -> None:
    points = torch.tensor([1.0, 0.0, 1.0], requires_grad=True)
    base = Discrete(points, torch.tensor([0.2, 0.5, 0.3]))
    d = SNEFY(torch.ones(2, 1), torch.tensor([0.0, 1.0]), torch.ones(1, 2), base=base)
    support = d.enumerate_support()
    assert support.tolist() == [1, 0]
    assert_close(d.log_prob(support).logsumexp(0), torch.tensor(0.0))
    support.sum().backward()
    assert points.grad.tolist() == [1, 1, 0]


@pytest.mark.parametrize("case", [case for case in CASES if case not in FINITE], ids=str)
def test_infinite_support(case: Case) -> None:
    d = _build(case, _parameters(case))
    assert not d.has_enumerate_support
    with pytest.raises(NotImplementedError, match="finite"):
        d.enumerate_support()


@pytest.mark.parametrize("case", FINITE, ids=str)
@pytest.mark.parametrize("elbo", [TraceEnum_ELBO, JitTraceEnum_ELBO])
def test_enumerated_latent(case: Case, elbo: Callable[..., Any]) -> None:
    parameters = _parameters(case)
    y = torch.randn(5, *case.base().event_shape, dtype=torch.float64)

    def log_joint(d: SNEFY) -> Tensor:
        z = d.enumerate_support().unsqueeze(1)  # (K, 1, *event)
        noise = dist.Normal(z, 0.7).to_event(d.event_dim)
        return d.log_prob(z) + noise.log_prob(y)  # (K, 5)

    @config_enumerate
    def model(y: Tensor) -> None:
        d = _build(case, {name: pyro.param(name, v.clone()) for name, v in parameters.items()})
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", d)
            pyro.sample("y", dist.Normal(z, 0.7).to_event(d.event_dim), obs=y)

    leaves = _leaves(parameters)
    expected = -log_joint(_build(case, leaves)).logsumexp(0).sum()
    expected.backward()
    losses = elbo(max_plate_nesting=1, ignore_jit_warnings=True)
    found = float(losses.loss_and_grads(model, _guide, y))
    assert found == pytest.approx(float(expected.detach()), rel=1e-9)
    for name, leaf in leaves.items():
        if leaf.grad is not None:
            assert_close(pyro.param(name).grad, leaf.grad)


@pytest.mark.parametrize("case", FINITE, ids=str)
def test_enumerated_guide(case: Case) -> None:
    prior, posterior = _parameters(case), _parameters(case)
    y = torch.randn(5, *case.base().event_shape, dtype=torch.float64)
    d, q = _build(case, prior), _build(case, posterior)

    def model(y: Tensor) -> None:
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", d)
            pyro.sample("y", dist.Normal(z, 0.7).to_event(d.event_dim), obs=y)

    @config_enumerate
    def guide(y: Tensor) -> None:
        with pyro.plate("rows", len(y)):
            pyro.sample("z", q)

    z = d.enumerate_support().unsqueeze(1)
    log_p = d.log_prob(z) + dist.Normal(z, 0.7).to_event(d.event_dim).log_prob(y)
    log_q = q.log_prob(z)
    expected = (log_q.exp() * (log_q.clamp(min=-1e300) - log_p.clamp(min=-1e300))).sum()
    loss = TraceEnum_ELBO(max_plate_nesting=1).loss(model, guide, y)
    assert loss == pytest.approx(float(expected), rel=1e-9)


# Plates ----------------------------------------------------------------------------------------


class _Largest(TorchDispatchMode):
    """The largest number of elements of any tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else [out]:
            # A view with a stride of zero repeats what is there, and makes nothing.
            if isinstance(value, Tensor) and 0 not in value.stride():
                self.numel = max(self.numel, value.numel())
        return out


@pytest.mark.parametrize("activation", [Cos(), Snake(), Exp(0.5), ReLU()], ids=str)
@pytest.mark.parametrize("base", ["Gaussian", "Interval"])
def test_a_plate_makes_one_kernel(activation: Any, base: str) -> None:
    rows, n, d = 5000, 64, 2 if base == "Gaussian" else 1
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((n, d), (n,), (4, n))]
    law: Any = Gaussian(torch.zeros(d), torch.ones(d))
    x = torch.rand(rows, d) - 0.5
    if base == "Interval":
        law, x = Interval(torch.tensor(-1.0), torch.tensor(1.0)), x.squeeze(-1)

    def model() -> None:
        with pyro.plate("rows", rows):
            pyro.sample("x", SNEFY(*leaves, activation=activation, base=law), obs=x)

    with _Largest() as largest:
        _log_prob_sum(model).backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)
    # Features of all rows are made, and kernels of one network: never a kernel for each row.
    assert rows * n <= largest.numel <= rows * n * 2
