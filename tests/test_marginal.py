"""Marginals, conditionals and missing values: against quadrature, and against each other."""

import itertools
import sys
from collections.abc import Callable

import numpy as np
import pyro
import pytest
import torch
from torch import Tensor

from pyro_snefy import SNEFY
from pyro_snefy.activations import (
    GELU,
    Activation,
    Cis,
    Cos,
    Erf,
    Exp,
    Identity,
    LeakyReLU,
    ReLU,
    Sin,
    Snake,
    Step,
)
from pyro_snefy.bases import (
    Base,
    DirichletFamily,
    Discrete,
    Gaussian,
    GaussianMixture,
    Interval,
    NormalFamily,
    Poisson,
    Product,
    SmoothBox,
    SmoothBoxMixture,
    Standardized,
    UniformBox,
    UniformCube,
    UniformSphere,
)
from pyro_snefy.distributions import Marginal
from pyro_snefy.kernels import closed_form

DOUBLE = {"dtype": torch.float64}
# The package has functions of these names, too.
kernel_module = sys.modules["pyro_snefy.kernels.kernel"]


def _base(name: str) -> Base:
    generator = torch.Generator().manual_seed(7)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, **DOUBLE)

    square = randn(3, 3)
    tril = torch.linalg.cholesky(square @ square.mT + torch.eye(3, **DOUBLE))
    scale = 0.5 + randn(3, 3).sigmoid()
    scalar = {"rate": torch.tensor(2.0, **DOUBLE), "low": torch.tensor(0.0, **DOUBLE)}
    bases = {
        "Gaussian": lambda: Gaussian(randn(3), scale[0]),
        "GaussianFull": lambda: Gaussian(randn(3), scale_tril=tril),
        "GaussianMixture": lambda: GaussianMixture(randn(3), randn(3, 3), scale),
        "UniformCube": lambda: UniformCube(3),
        "UniformBox": lambda: UniformBox(-torch.ones(3, **DOUBLE), torch.ones(3, **DOUBLE)),
        "SmoothBox": lambda: SmoothBox(-scale[0], scale[1], scale[2] / 2),
        "SmoothBoxMixture": lambda: SmoothBoxMixture(randn(3), randn(3, 3), randn(3, 3), scale / 2),
        "NormalFamily": lambda: NormalFamily(3),
        "Standardized": lambda: Standardized(
            Gaussian(randn(3), scale_tril=tril), randn(3), scale[1]
        ),
        "GaussianPoisson": lambda: Product(
            [Gaussian(randn(2), scale_tril=tril[:2, :2]), Poisson(scalar["rate"])]
        ),
        "MixtureDiscrete": lambda: Product(
            [
                GaussianMixture(randn(3), randn(3, 2), scale[:, :2]),
                Discrete(torch.arange(5.0, **DOUBLE), 2 * scale.flatten()[:5]),
            ]
        ),
        "CubeInterval": lambda: Product(
            [UniformCube(2), Interval(scalar["low"], scalar["low"] + 7)]
        ),
    }
    return bases[name]()


BASES = [
    "Gaussian",
    "GaussianFull",
    "GaussianMixture",
    "UniformCube",
    "UniformBox",
    "SmoothBox",
    "SmoothBoxMixture",
    "NormalFamily",
    "Standardized",
    "GaussianPoisson",
    "MixtureDiscrete",
    "CubeInterval",
]
ACTIVATIONS: list[Activation] = [
    Cos(),
    Sin(),
    Cis(),
    Snake(1.0),
    Identity(),
    Exp(0.5),
    Erf(),
    Step(),
    ReLU(2),
    LeakyReLU(0.2),
    GELU(),
]
PAIRS = [
    pytest.param(activation, name, id=f"{type(activation).__name__}-{name}")
    for activation, name in itertools.product(ACTIVATIONS, BASES)
    if closed_form(activation, _base(name), bias=True)
]


def _joint(activation: Activation, name: str, n: int = 4) -> SNEFY:
    base = _base(name)
    weight = torch.randn(n, base.num_statistics, **DOUBLE) / 2
    if name == "NormalFamily":
        linear, quadratic = weight.chunk(2, dim=-1)
        weight = torch.cat([linear, -quadratic.abs() - 0.1], dim=-1)
    bias, readout = torch.randn(n, **DOUBLE) + 0.5, torch.randn(2, n, **DOUBLE)
    if isinstance(activation, Cis):
        readout = torch.complex(readout, torch.randn_like(readout))
    return SNEFY(weight, bias, readout, activation=activation, base=base)


def _events(name: str, rows: int) -> Tensor:
    x = 0.9 * torch.rand(rows, 3, **DOUBLE) + 0.05
    if name in ("GaussianPoisson", "MixtureDiscrete"):
        x[:, 2] = torch.randint(5, (rows,)).double()
    return x


@pytest.mark.parametrize(("activation", "name"), PAIRS)
def test_chain_rule(activation: Activation, name: str) -> None:
    """log p(x) = log p(x1) + log p(x2 | x1), for a batch of values, in any order."""
    joint, x = _joint(activation, name), _events(name, 6)
    for dims in ([0], [2], [0, 1], [1, 0], [2, 0]):
        rest = [k for k in range(3) if k not in dims]
        marginal = joint.marginal(dims)
        conditional = joint.conditional(dims, x[:, dims])
        assert isinstance(conditional, SNEFY)
        assert conditional.batch_shape == (6,)
        total = marginal.log_prob(x[:, dims]) + conditional.log_prob(x[:, rest])
        torch.testing.assert_close(total, joint.log_prob(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("activation", "name"), PAIRS)
def test_nesting(activation: Activation, name: str) -> None:
    joint, x = _joint(activation, name), _events(name, 5)
    pair = joint.marginal([2, 0])
    nested = pair.conditional([0], x[:, [2]])
    expected = pair.log_prob(x[:, [2, 0]]) - joint.marginal([2]).log_prob(x[:, [2]])
    torch.testing.assert_close(nested.log_prob(x[:, [0]]), expected, rtol=1e-10, atol=1e-10)
    again = joint.conditional([1], x[:, [1]]).marginal([1])
    expected = joint.marginal([1, 2]).log_prob(x[:, [1, 2]])
    expected = expected - joint.marginal([1]).log_prob(x[:, [1]])
    torch.testing.assert_close(again.log_prob(x[:, [2]]), expected, rtol=1e-10, atol=1e-10)
    once = pair.marginal([1]).log_prob(x[:, [0]])
    torch.testing.assert_close(once, joint.marginal([0]).log_prob(x[:, [0]]))


def _integral(joint: SNEFY, name: str, kept: int, value: float) -> float:
    """The joint density integrated over the two other coordinates, by Gauss-Legendre."""
    rest = [k for k in range(3) if k != kept]
    nodes, weights = [], []
    for k in rest:
        if name in ("GaussianPoisson", "MixtureDiscrete") and k == 2:
            count = 5 if name == "MixtureDiscrete" else 60
            nodes.append(np.arange(count, dtype=float))
            weights.append(np.ones(count))
            continue
        ends = {"UniformCube": (0, 1), "UniformBox": (-1, 1), "SmoothBoxMixture": (-15, 15)}
        low, high = ends.get(name, (-30, 30))
        if name == "CubeInterval":
            low, high = (0, 7) if k == 2 else (0, 1)
        edges = np.linspace(low, high, 2 if high - low < 10 else 1 + (high - low) * 2 // 3)
        base_nodes, base_weights = np.polynomial.legendre.leggauss(160 if high - low < 10 else 20)
        middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
        nodes.append((middle[:, None] + half[:, None] * base_nodes).ravel())
        weights.append((half[:, None] * base_weights).ravel())
    grid = torch.zeros(len(nodes[0]), len(nodes[1]), 3, **DOUBLE)
    grid[..., kept] = value
    grid[..., rest[0]] = torch.from_numpy(nodes[0])[:, None]
    grid[..., rest[1]] = torch.from_numpy(nodes[1])
    density = joint.log_prob(grid).exp().numpy()
    return float(weights[0] @ density @ weights[1])


@pytest.mark.parametrize("name", [name for name in BASES if name != "UniformCube"])
@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), Exp(0.5), GELU()], ids=str)
def test_marginal_against_quadrature(activation: Activation, name: str) -> None:
    """Two coordinates integrated out of the joint density."""
    if not closed_form(activation, _base(name), bias=True):
        activation = Exp(0.5)
    joint = _joint(activation, name)
    for kept in (0, 2):
        value = float(_events(name, 1)[0, kept])
        marginal = joint.marginal([kept]).log_prob(torch.tensor([value], **DOUBLE))
        # The quantile function bends at the faces of a cube, where the rule is coarse.
        tolerance = 1e-3 if name == "CubeInterval" else 1e-8
        expected = np.log(_integral(joint, name, kept, value))
        assert float(marginal) == pytest.approx(expected, abs=tolerance)


def test_marginal_of_the_cube_against_monte_carlo() -> None:
    """False alarms: 6e-5; an error of 0.006 standard deviations of the joint density is seen."""
    joint = _joint(Cos(), "UniformCube")
    rest = torch.rand(400_000, 2, **DOUBLE)
    x = torch.cat([torch.full((len(rest), 1), 0.3, **DOUBLE), rest], dim=-1)
    density = joint.log_prob(x).exp()
    error = density.std() / len(rest) ** 0.5
    marginal = joint.marginal([0]).log_prob(torch.tensor([0.3], **DOUBLE)).exp()
    assert abs(marginal - density.mean()) < 4 * error


@pytest.mark.parametrize("activation", [Cos(), Sin(), Cis(), Exp(0.5)], ids=str)
@pytest.mark.parametrize(
    "name", ["Gaussian", "GaussianFull", "UniformBox", "SmoothBox", "GaussianPoisson"]
)
def test_marginal_is_a_snefy(activation: Activation, name: str) -> None:
    """Waves and exponentials stay what they are, so that their marginals have closed forms too."""
    joint = _joint(activation, name)
    marginal = joint.marginal([1])
    assert isinstance(marginal, SNEFY)
    assert not isinstance(joint.marginal([1]), Marginal)
    torch.testing.assert_close(
        marginal.log_normalizer, joint.log_normalizer, rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), ReLU(), Exp()], ids=str)
@pytest.mark.parametrize("name", ["Gaussian", "GaussianFull", "GaussianMixture"])
def test_moments_of_marginals(activation: Activation, name: str) -> None:
    joint = _joint(activation, name)
    marginal = joint.marginal([2, 0])
    torch.testing.assert_close(marginal.mean, joint.mean[[2, 0]], rtol=1e-9, atol=1e-9)
    covariance = joint.covariance_matrix[[2, 0]][:, [2, 0]]
    torch.testing.assert_close(marginal.covariance_matrix, covariance, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(marginal.variance, covariance.diagonal(), rtol=1e-9, atol=1e-9)


def test_total_expectation() -> None:
    """The mean is the mean of the conditional means, by quadrature over what is given."""
    joint = _joint(Snake(1.0), "GaussianFull")
    nodes, weights = np.polynomial.legendre.leggauss(400)
    x, w = torch.from_numpy(25 * nodes), torch.from_numpy(25 * weights)
    density = joint.marginal([1]).log_prob(x.unsqueeze(-1)).exp()
    mean = (w * density) @ joint.conditional([1], x.unsqueeze(-1)).mean
    torch.testing.assert_close(mean, joint.mean[[0, 2]], rtol=1e-8, atol=1e-8)


def test_batch_of_conditionals_is_a_loop() -> None:
    joint = _joint(Snake(1.0), "GaussianMixture")
    values, x = torch.randn(2, 5, 1, **DOUBLE), torch.randn(2, 5, 2, **DOUBLE)
    batch = joint.conditional([1], values)
    assert batch.batch_shape == (2, 5)
    for index in itertools.product(range(2), range(5)):
        one = joint.conditional([1], values[index])
        torch.testing.assert_close(batch.log_prob(x)[index], one.log_prob(x[index]))
        torch.testing.assert_close(batch.mean[index], one.mean)


def test_batched_joint() -> None:
    """Models of their own in a batch, as in a batch of contexts."""
    weight, bias = torch.randn(4, 3, **DOUBLE), torch.randn(5, 4, **DOUBLE)
    readout = torch.randn(5, 2, 4, **DOUBLE)
    joint = SNEFY(weight, bias, readout, activation=Snake(1.0))
    x = torch.randn(7, 5, 3, **DOUBLE)
    x[torch.rand(7, 5, 3) < 0.4] = torch.nan
    together = joint.partially_observed().log_prob(x)
    for k in range(5):
        one = SNEFY(weight, bias[k], readout[k], activation=Snake(1.0))
        alone = one.partially_observed().log_prob(x[:, k])
        torch.testing.assert_close(together[:, k], alone, rtol=1e-10, atol=1e-10)
        filled = torch.nan_to_num(x[:, k])
        total = one.marginal([1]).log_prob(filled[:, [1]])
        batched = joint.marginal([1]).log_prob(filled[:, None, [1]].expand(7, 5, 1))
        torch.testing.assert_close(batched[:, k], total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("activation", "name"), PAIRS)
def test_missing_values_are_marginals(activation: Activation, name: str) -> None:
    joint, x = _joint(activation, name), _events(name, 24)
    observed = torch.rand(24, 3) < 0.5
    observed[0], observed[1] = False, True
    values = torch.where(observed, x, torch.nan).requires_grad_()
    log_prob = joint.partially_observed().log_prob(values)
    expected = []
    for row, mask in zip(x, observed, strict=True):
        dims = mask.nonzero()[:, 0].tolist()
        expected.append(joint.marginal(dims).log_prob(row[dims]) if dims else torch.tensor(0.0))
    expected = torch.stack([value.double() for value in expected])
    torch.testing.assert_close(log_prob, expected, rtol=1e-10, atol=1e-10)
    assert log_prob[0] == 0
    finite = log_prob[log_prob.isfinite()].sum()
    (gradient,) = torch.autograd.grad(finite, values)
    assert gradient.isfinite().all()
    assert (gradient[~observed] == 0).all()


def test_gradients_with_missing_values() -> None:
    weight = torch.randn(3, 3, **DOUBLE, requires_grad=True)
    bias = torch.randn(3, **DOUBLE, requires_grad=True)
    readout = torch.randn(2, 3, **DOUBLE, requires_grad=True)
    loc = torch.randn(3, **DOUBLE, requires_grad=True)
    square = torch.randn(3, 3, **DOUBLE)
    tril = torch.linalg.cholesky(square @ square.mT + torch.eye(3, **DOUBLE)).requires_grad_()
    x = torch.randn(6, 3, **DOUBLE)
    x[torch.rand(6, 3) < 0.4] = torch.nan

    def function(*parameters: Tensor) -> Tensor:
        weight, bias, readout, loc, tril = parameters
        base = Gaussian(loc, scale_tril=tril.tril())
        joint = SNEFY(weight, bias, readout, activation=Cos(), base=base)
        return joint.partially_observed().log_prob(x)

    assert torch.autograd.gradcheck(function, (weight, bias, readout, loc, tril))


def test_missing_values_in_a_model() -> None:
    """A valid site in a model, subsampling included."""
    x = torch.randn(100, 3)
    x[torch.rand(100, 3) < 0.3] = torch.nan
    losses = []

    def model(x: Tensor) -> None:
        weight = pyro.param("weight", lambda: torch.randn(8, 3))
        bias = pyro.param("bias", lambda: torch.randn(8))
        readout = pyro.param("readout", lambda: torch.randn(2, 8))
        joint = SNEFY(weight, bias, readout, activation=Cos())
        with pyro.plate("rows", len(x), subsample_size=25) as rows:
            pyro.sample("x", joint.partially_observed(), obs=x[rows])

    optimizer = pyro.optim.Adam({"lr": 0.02})
    svi = pyro.infer.SVI(model, lambda *_: None, optimizer, pyro.infer.Trace_ELBO())
    for _ in range(200):
        losses.append(svi.step(x))
    assert all(np.isfinite(losses))
    assert np.mean(losses[-20:]) < np.mean(losses[:20])


@pytest.mark.parametrize("activation", [Snake(1.0), GELU(), Erf()], ids=str)
@pytest.mark.parametrize("name", ["Gaussian", "GaussianFull", "GaussianMixture"])
def test_chunks(activation: Activation, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are taken a few at a time give what they give together, gradients included."""
    joint, x = _joint(activation, name), torch.randn(2, 37, 3, **DOUBLE)
    parameters = (joint.weight, joint.bias, joint.readout)
    for parameter in parameters:
        parameter.requires_grad_()

    def evaluate() -> tuple[Tensor, ...]:
        log_prob = joint.conditional([0, 2], x[..., [0, 2]]).log_prob(x[..., [1]])
        return log_prob, *torch.autograd.grad(log_prob.sum(), parameters)

    together = evaluate()
    monkeypatch.setattr(kernel_module, "_CHUNK", 64)
    monkeypatch.setattr(kernel_module, "_ROWS", 64)
    torch.testing.assert_close(evaluate(), together, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["Gaussian", "GaussianFull", "GaussianMixture"])
def test_chunks_of_rows_with_gaps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bends take a few rows of each pattern at a time, so that memory is bounded."""
    joint, x = _joint(GELU(), name), torch.randn(60, 3, **DOUBLE)
    x[torch.arange(180).reshape(60, 3) % 9 == 0] = torch.nan
    patterns = len(x.isnan().unique(dim=0))

    def evaluate() -> tuple[Tensor, Tensor]:
        weight = joint.weight.detach().requires_grad_()
        law = SNEFY(weight, joint.bias, joint.readout, activation=GELU(), base=joint.base)
        log_prob = law.partially_observed().log_prob(x)
        return log_prob.detach(), *torch.autograd.grad(log_prob.sum(), weight)

    together, sizes = evaluate(), []
    recomputed = kernel_module.recomputed

    def recorded(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        sizes.append(rows.shape[:-1].numel())
        return recomputed(function, rows)

    monkeypatch.setattr(kernel_module, "recomputed", recorded)
    monkeypatch.setattr(kernel_module, "_CHUNK", 1)
    torch.testing.assert_close(evaluate(), together, rtol=1e-10, atol=1e-10)
    # One row of each pattern, in at most twice as many blocks, for each component.
    components = len(joint.base.logits) if isinstance(joint.base, GaussianMixture) else 1
    assert len(sizes) > 1 and max(sizes) <= 2 * patterns * components


def test_bad_arguments() -> None:
    joint = _joint(Cos(), "Gaussian")
    with pytest.raises(TypeError, match=r"try \[0\]"):
        joint.marginal(0)
    with pytest.raises(ValueError, match="dims"):
        joint.marginal([0, 0])
    with pytest.raises(ValueError, match="dims"):
        joint.marginal([3])
    with pytest.raises(ValueError, match="dims"):
        joint.marginal([])
    with pytest.raises(ValueError, match="values"):
        joint.conditional([0, 1], torch.zeros(3, **DOUBLE))
    with pytest.raises(ValueError, match="leave a coordinate"):
        joint.conditional([0, 1, 2], torch.zeros(3, **DOUBLE))
    scalar = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    with pytest.raises(ValueError, match="vector"):
        SNEFY(torch.randn(3, 1), torch.zeros(3), torch.randn(1, 3), base=scalar).marginal([0])
    with pytest.raises(ValueError, match="support"):
        _joint(Cos(), "UniformBox").marginal([0]).log_prob(torch.tensor([3.0], **DOUBLE))
    with pytest.raises(ValueError, match="support"):
        box = _joint(Cos(), "UniformBox").partially_observed()
        box.log_prob(torch.tensor([3.0, torch.nan, 0.0], **DOUBLE))


def test_negative_dims() -> None:
    joint, x = _joint(Cos(), "Gaussian"), torch.randn(4, 3, **DOUBLE)
    torch.testing.assert_close(
        joint.marginal([-1]).log_prob(x[:, [2]]), joint.marginal([2]).log_prob(x[:, [2]])
    )


# ----------------------------------------------------------------- values outside the support


OUTSIDE = [(Cos(), "UniformBox"), (Snake(1.0), "UniformBox"), (Exp(0.5), "UniformBox")]
OUTSIDE += [(Cos(), "GaussianPoisson"), (Exp(0.5), "GaussianPoisson"), (GELU(), "Gaussian")]


@pytest.mark.parametrize(("activation", "name"), OUTSIDE, ids=str)
@pytest.mark.parametrize("bad", [-3.5, torch.nan, torch.inf])
def test_conditions_outside_the_support(activation: Activation, name: str, bad: float) -> None:
    if name == "Gaussian" and bad == -3.5:
        bad = -torch.inf
    joint = _joint(activation, name)
    values = torch.tensor([[1.0], [bad]], **DOUBLE)
    with pytest.raises(ValueError, match="values in the support"):
        joint.conditional([2], values)
    loose = SNEFY(
        joint.weight,
        joint.bias,
        joint.readout,
        activation=activation,
        base=joint.base,
        validate_args=False,
    )
    given = loose.conditional([2], values)
    assert not given.log_normalizer[1].isfinite()
    log_prob = given.log_prob(torch.zeros(2, **DOUBLE))
    assert not log_prob[1].isfinite()
    assert log_prob[1] != torch.inf
    # The other member is as it is alone.
    alone = joint.conditional([2], values[0])
    torch.testing.assert_close(given.log_normalizer[0], alone.log_normalizer)
    torch.testing.assert_close(log_prob[0], alone.log_prob(torch.zeros(2, **DOUBLE)))


@pytest.mark.parametrize("activation", [Cos(), GELU()], ids=str)
@pytest.mark.parametrize(("shape", "target"), [((2, 1), (4, 3)), ((2, 4), (2, 2, 1)), ((3,), ())])
def test_expansions_that_do_not_fit(
    activation: Activation, shape: tuple[int, ...], target: tuple[int, ...]
) -> None:
    joint = SNEFY(torch.randn(*shape, 3, 2), None, torch.randn(1, 3), activation=activation)
    for law in (joint, joint.marginal([0]), joint.partially_observed()):
        with pytest.raises(RuntimeError, match="expands"):
            law.expand(torch.Size(target))
        assert law.expand(torch.Size((5, *shape))).batch_shape == (5, *shape)


def test_all_coordinates_of_a_sphere_in_another_order() -> None:
    joint = SNEFY(torch.randn(3, 3), None, torch.randn(1, 3), base=UniformSphere(3))
    x = joint.sample((4,))
    turned = joint.marginal([2, 0, 1]).log_prob(x[:, [2, 0, 1]])
    torch.testing.assert_close(turned, joint.log_prob(x))


# ---------------------------------------------------------------- shapes of events with holes


ROW_BASES = {
    "normal": lambda: Gaussian(torch.randn(4, 2, **DOUBLE), torch.ones(2, **DOUBLE)),
    "mixture": lambda: GaussianMixture(
        torch.randn(4, 3, **DOUBLE), torch.randn(3, 2, **DOUBLE), torch.ones(3, 2, **DOUBLE)
    ),
    "box": lambda: UniformBox(-5 - torch.rand(4, 2, **DOUBLE), 5 * torch.ones(2, **DOUBLE)),
    "smooth": lambda: SmoothBoxMixture(
        torch.randn(4, 3, **DOUBLE),
        torch.randn(3, 2, **DOUBLE),
        torch.ones(3, 2, **DOUBLE),
        torch.ones(1, 2, **DOUBLE),
    ),
    "one": lambda: Gaussian(torch.randn(2, **DOUBLE), torch.ones(2, **DOUBLE)),
}


ROWS = list(itertools.product([Cos(), Snake(1.0), Exp(0.5)], ROW_BASES))
ROWS += [(ReLU(), "normal"), (ReLU(), "mixture"), (ReLU(), "one")]


@pytest.mark.parametrize(("activation", "name"), ROWS, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 1), (1,), (3, 1), (2, 3, 4)], ids=str)
def test_shapes_of_missing_values(
    activation: Activation, name: str, shape: tuple[int, ...]
) -> None:
    """One event, none, and a batch of bases: each row by the law of its own member."""
    weight, bias = torch.randn(3, 2, **DOUBLE) / 2, torch.randn(3, **DOUBLE)
    readout = torch.randn(2, 3, **DOUBLE)
    base = ROW_BASES[name]()
    joint = SNEFY(weight, bias, readout, activation=activation, base=base)
    events = torch.tensor([[0.3, 1.0], [torch.nan, 1.0], [0.4, torch.nan], [torch.nan] * 2])
    whole = torch.broadcast_shapes(shape, joint.batch_shape)
    x = events.double()[torch.randint(4, shape)]
    log_prob = joint.partially_observed().log_prob(x)
    assert log_prob.shape == whole
    assert joint.partially_observed().impute(x, (2,)).shape == (2, *whole, 2)
    members = base.flatten(joint.batch_shape)
    rows = x.expand(*whole, 2).reshape(-1, 2)
    for k, (row, value) in enumerate(zip(rows, log_prob.flatten(), strict=True)):
        own = members.map_batches(lambda t, rank: t[k % 4] if t.dim() > rank else t)  # noqa: B023
        one = SNEFY(weight, bias, readout, activation=activation, base=own)
        dims = [i for i in range(2) if not row[i].isnan()]
        expected = one.marginal(dims).log_prob(row[dims]) if dims else torch.zeros((), **DOUBLE)
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("factor", [UniformSphere(3), DirichletFamily(3)], ids=str)
def test_factors_that_are_observed_as_a_whole(factor: Base) -> None:
    normal = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    weight, readout = torch.rand(3, 4), torch.rand(1, 3)
    joint = SNEFY(weight, None, readout, activation=Exp(), base=Product([normal, factor]))
    x = joint.sample((2,))
    holes = x.clone()
    holes[0, 1:], holes[1, 0] = torch.nan, torch.nan
    log_prob = joint.partially_observed().log_prob(holes)
    torch.testing.assert_close(log_prob[0], joint.marginal([0]).log_prob(x[0, :1]))
    torch.testing.assert_close(log_prob[1], joint.marginal([1, 2, 3]).log_prob(x[1, 1:]))
    holes[1, 2] = torch.nan
    for method in ("log_prob", "impute"):
        with pytest.raises(NotImplementedError, match=type(factor).__name__):
            getattr(joint.partially_observed(), method)(holes)
    # What is proposed instead of a distribution function of several coordinates exists.
    with pytest.raises(NotImplementedError, match=r"marginal\(\[k\]\) with k in \[0\]"):
        joint.cdf(x)
    assert 0 < joint.marginal([0]).cdf(x[0, :1]) < 1
    alone = SNEFY(weight[:, 1:], None, readout, activation=Exp(), base=factor)
    with pytest.raises(NotImplementedError, match=rf"{type(factor).__name__}.*no marginal laws"):
        alone.cdf(x[:, 1:])
