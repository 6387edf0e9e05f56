"""Noisy observations and posteriors against quadrature, reference values and draws."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.autograd.profiler import profile
from torch.testing import assert_close

from pyro_snefy import SNEFY
from pyro_snefy.activations import GELU, Activation, Cis, Cos, Erf, Exp, ReLU, Sin, Snake
from pyro_snefy.bases import (
    Base,
    Gaussian,
    GaussianMixture,
    Poisson,
    Product,
    Standardized,
    StudentT,
    UniformCube,
    UniformSphere,
)
from pyro_snefy.distributions import Observed
from pyro_snefy.operations import noise
from tests.cases import ACTIVATIONS, LOC, SCALE, TRIL, Case
from tests.densities import LOG_DENSITIES, RULES, Array, kinked, legendre

F64 = torch.float64


def _t(values: Any) -> Tensor:
    return torch.tensor(values, dtype=F64)


WEIGHT = _t([[1.0, -0.5], [0.3, 2.0], [-1.2, 0.4]])
BIAS = _t([0.2, -1.0, 0.5])
READOUT = _t([[1.0, -0.7, 0.3], [0.4, 0.9, -0.2]])
MEAN, COVARIANCE = _t([0.3, -0.2]), _t([[1.0, 0.3], [0.3, 0.5]])
NOISE = _t([[0.2, -0.05], [-0.05, 0.4]])
NOISE_TRIL = torch.linalg.cholesky(NOISE)
Y = _t([0.7, -0.9])
NORMAL = Gaussian(MEAN, scale_tril=torch.linalg.cholesky(COVARIANCE))
MIXTURE = GaussianMixture(
    _t([0.3, -0.2]), _t([[0.3, -0.2], [-1.0, 0.5]]), _t([[1.0, 0.5], [0.7, 1.2]])
)


def _family(activation: Activation = Cos(), base: Base = NORMAL) -> SNEFY:
    return SNEFY(WEIGHT, BIAS, READOUT, activation=activation, base=base)


# Against numbers that were computed by quadrature, independently of this package ----------------


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (Cos(), -2.353570560747),
        (Snake(1.0), -2.210552882867),
        (Exp(), -3.148395833080),
        (Exp(0.5), -2.324833083919),
        (GELU(), -2.451138096675),
        (Erf(), -2.090262295194),
        (ReLU(), -2.346424442035),
    ],
    ids=str,
)
def test_reference(activation: Activation, expected: float) -> None:
    found = _family(activation).observed(scale_tril=NOISE_TRIL).log_prob(Y)
    assert_close(found, _t(expected), rtol=0, atol=2e-11)


def test_reference_of_a_matrix_and_a_mixture() -> None:
    line = _family().observed(_t([0.3]).sqrt(), matrix=_t([[1.0, 2.0]]))
    assert line.event_shape == (1,)
    assert_close(line.log_prob(_t([0.4])), _t(-2.192630157408082), rtol=0, atol=1e-13)
    mixed = _family(base=MIXTURE).observed(scale_tril=NOISE_TRIL)
    assert_close(mixed.log_prob(Y), _t(-2.622619182426161), rtol=0, atol=1e-13)


# Against quadrature, every activation -----------------------------------------------------------


def _numerator(case: Case, law: SNEFY, x: Array) -> Array:
    rows = x.reshape(len(x), -1)
    bias = np.zeros(len(law.weight)) if law.bias is None else law.bias.numpy()
    neurons = case.oracle_activation.value(rows @ law.weight.numpy().T + bias)
    square = (abs(neurons @ law.readout.numpy().T) ** 2).sum(-1)  # type: ignore[union-attr]
    return np.exp(LOG_DENSITIES[case.base_name](x)) * square


PLANE = ("Gaussian", "GaussianFull", "GaussianMixture")


@pytest.mark.parametrize("base", ["GaussianScalar", *PLANE])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_quadrature(activation: str, base: str) -> None:
    case = Case(activation, base)
    weight, bias, readout = case.parameters(n=3)
    assert bias is not None
    if case.activation.degree is not None:
        weight = _t([[0.9], [-1.4], [0.5]]) if base == "GaussianScalar" else weight
        if base != "GaussianScalar":
            weight = _t([[0.9, 0.0], [0.0, -1.4], [0.5, 0.0]])
    law = SNEFY(weight, bias, readout, activation=case.activation, base=case.base())
    smooth = case.activation.degree is None
    x, weights = RULES[base][1]() if smooth else kinked(weight, bias)
    numerator = weights * _numerator(case, law, x)
    if base == "GaussianScalar":
        y, scale = _t([-1.3, 0.2, 2.1]), _t([0.4, 0.7, 1.5])
        found = law.observed(scale).log_prob(y)
        densities = stats.norm.pdf(y.numpy()[:, None], x, scale.numpy()[:, None])
    else:
        y = _t([[0.7, -0.9], [-1.0, 0.4]])
        found = law.observed(scale_tril=NOISE_TRIL).log_prob(y)
        densities = np.stack(
            [stats.multivariate_normal.pdf(x, row.numpy(), NOISE.numpy()) for row in y]
        )
    expected = np.log((densities * numerator).sum(-1)) - np.log(numerator.sum())
    assert_close(found, _t(expected), rtol=0, atol=1e-9)


@pytest.mark.parametrize("base", PLANE)
def test_quadrature_with_a_matrix(base: str) -> None:
    """Fewer and more observations than coordinates, and noise with a diagonal covariance."""
    case = Case("Snake", base)
    law = case.distribution(n=3)
    x, weights = RULES[base][1]()
    numerator = weights * _numerator(case, law, x)
    for matrix, scale, y in (
        (_t([[1.0, 2.0]]), _t([0.5]), _t([0.4])),
        (_t([[1.0, 2.0], [0.5, -1.0], [0.0, 1.0]]), _t([0.5, 0.8, 1.1]), _t([0.4, -1.0, 0.3])),
        (None, _t([0.5, 0.8]), _t([0.4, -1.0])),
    ):
        image = x if matrix is None else x @ matrix.numpy().T
        density = stats.norm.pdf(y.numpy(), image, scale.numpy()).prod(-1)
        expected = np.log((density * numerator).sum()) - np.log(numerator.sum())
        found = law.observed(scale, matrix=matrix).log_prob(y)
        assert_close(found, _t(expected), rtol=0, atol=1e-9)


# Posteriors -------------------------------------------------------------------------------------


def _bases() -> dict[str, Base]:
    scalar = Gaussian(LOC[0], SCALE[0], event_dim=0)
    return {
        "scalar": scalar,
        "diagonal": Gaussian(LOC, SCALE),
        "full": Gaussian(LOC, scale_tril=TRIL),
        "mixture": MIXTURE,
        "scalar mixture": GaussianMixture(
            _t([0.3, -0.2]), MIXTURE.loc[:, 0], MIXTURE.scale[:, 0], event_dim=0
        ),
        "full mixture": GaussianMixture(
            _t([0.3, -0.2]), MIXTURE.loc, scale_tril=torch.stack([TRIL, 2 * TRIL])
        ),
        "moved": Standardized(Gaussian(LOC, scale_tril=TRIL), _t([1.0, -2.0]), _t([0.5, 3.0])),
        "moved twice": Standardized(Standardized(scalar, _t(1.0), _t(0.5)), _t(-2.0), _t(3.0)),
        "moved mixture": Standardized(MIXTURE, _t([1.0, -2.0]), _t([0.5, 3.0])),
        "product": Product([scalar, Gaussian(LOC[:1], SCALE[:1])]),
        "product of moved": Product([scalar, Standardized(scalar, _t(1.0), _t(0.5))]),
    }


@pytest.mark.parametrize("name", _bases())
@pytest.mark.parametrize("shape", ["scale", "scale_tril", "matrix"])
def test_bayes(name: str, shape: str) -> None:
    """p(x) p(y | x) = p(y) p(x | y), where p(y) is tested by quadrature above."""
    base = _bases()[name]
    d = base.num_statistics
    law = SNEFY(WEIGHT[:, :d], BIAS, READOUT, activation=Snake(0.7), base=base)
    arguments: dict[str, Tensor] = {"scale": _t([0.6, 1.1][:d])}
    covariance = arguments["scale"].square().diag()
    if not base.event_dim and shape == "scale":
        arguments["scale"] = arguments["scale"].squeeze(-1)
    if shape == "scale_tril":
        arguments = {"scale_tril": NOISE_TRIL[:d, :d]}
        covariance = NOISE_TRIL[:d, :d] @ NOISE_TRIL[:d, :d].mT
    matrix = torch.eye(d, dtype=F64)
    if shape == "matrix":
        matrix = _t([[1.0, 2.0], [0.5, -1.0], [0.3, 1.0]])[:, :d]
        arguments = {"scale": _t([0.6, 1.1, 0.9]), "matrix": matrix}
        covariance = arguments["scale"].square().diag()
    x = torch.randn(5, *base.event_shape, dtype=F64)
    rows = x.reshape(5, d)
    y = rows @ matrix.mT + torch.randn(5, len(matrix), dtype=F64)
    normal = torch.distributions.MultivariateNormal(rows @ matrix.mT, covariance)
    error = normal.log_prob(y)
    y = y.squeeze(-1) if not base.event_dim and shape != "matrix" else y
    posterior = law.posterior(y, **arguments)
    assert posterior.batch_shape == (5,) and posterior.event_shape == law.event_shape
    marginal = law.observed(**arguments).log_prob(y)
    assert_close(law.log_prob(x) + error, marginal + posterior.log_prob(x), rtol=0, atol=1e-11)


def test_posterior_of_a_normal_law() -> None:
    """A constant network leaves the conjugate update of a normal law, from textbooks."""
    law = SNEFY(torch.zeros(1, 2, dtype=F64), None, torch.ones(1, 1, dtype=F64), base=NORMAL)
    posterior = law.posterior(Y, scale_tril=NOISE_TRIL)
    precision = torch.linalg.inv(COVARIANCE) + torch.linalg.inv(NOISE)
    expected = torch.linalg.inv(precision)
    assert_close(posterior.covariance_matrix, expected, rtol=1e-12, atol=1e-12)
    information = torch.linalg.solve(COVARIANCE, MEAN) + torch.linalg.solve(NOISE, Y)
    assert_close(posterior.mean, expected @ information, rtol=1e-12, atol=1e-12)
    marginal = torch.distributions.MultivariateNormal(MEAN, COVARIANCE + NOISE).log_prob(Y)
    assert_close(law.observed(scale_tril=NOISE_TRIL).log_prob(Y), marginal, rtol=1e-12, atol=1e-12)


def test_no_noise_and_much_noise() -> None:
    """Tiny noise leaves the density itself; huge noise leaves the noise."""
    law = _family(Snake(1.0))
    y = _t([[0.7, -0.9], [2.0, 1.0]])
    assert_close(law.observed(1e-7).log_prob(y), law.log_prob(y), rtol=0, atol=1e-9)
    much = torch.distributions.Normal(_t(0.0), _t(1e6)).log_prob(y).sum(-1)
    assert_close(law.observed(1e6).log_prob(y), much, rtol=0, atol=1e-9)
    assert_close(law.posterior(y, 1e6).log_prob(y), law.log_prob(y), rtol=0, atol=1e-9)
    assert_close(law.posterior(y, 1e-6).mean, y, rtol=0, atol=1e-9)


def test_selection_is_a_marginal() -> None:
    """Without much noise, a matrix that selects coordinates gives marginals and conditionals."""
    law = _family(GELU())
    y, matrix = _t([[0.4], [-1.0]]), _t([[0.0, 1.0]])
    found = law.observed(1e-7, matrix=matrix).log_prob(y)
    assert_close(found, law.marginal([1]).log_prob(y), rtol=0, atol=1e-8)
    conditional = law.conditional([1], y)
    assert_close(
        law.posterior(y, 1e-7, matrix=matrix).mean[:, :1], conditional.mean, atol=1e-6, rtol=0
    )


# Batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [NORMAL, Gaussian(LOC, SCALE), MIXTURE], ids=str)
@pytest.mark.parametrize("activation", [Cos(), Exp(0.3), ReLU()], ids=str)
def test_rows_with_their_own_noise(
    activation: Activation, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = _family(activation, base)
    y, factors = torch.randn(7, 2, dtype=F64), torch.randn(7, 2, 2, dtype=F64).tril()
    factors.diagonal(dim1=-2, dim2=-1).abs_().add_(0.1)
    scales = torch.rand(7, 2, dtype=F64) + 0.1
    for arguments in ({"scale_tril": factors}, {"scale": scales}):
        name, values = next(iter(arguments.items()))
        rows = [
            law.observed(**{name: value}).log_prob(row)
            for value, row in zip(values, y, strict=True)
        ]
        found = law.observed(**arguments)
        assert found.batch_shape == (7,)
        assert_close(found.log_prob(y), torch.stack(rows), rtol=0, atol=1e-12)
        more = torch.stack([y, y.flip(0)])
        assert_close(found.log_prob(more)[0], torch.stack(rows), rtol=0, atol=1e-12)
        with monkeypatch.context() as patch:
            patch.setattr(noise, "_CHUNK", 2 * len(WEIGHT) ** 2)  # chunks of two rows or one
            patch.setattr(noise, "_KEPT", 0)
            y.requires_grad_()
            chunked = found.log_prob(y)
            gradient = torch.autograd.grad(chunked.sum(), y)[0]
            assert_close(found.log_prob(more)[0], torch.stack(rows), rtol=0, atol=1e-12)
        assert_close(chunked, torch.stack(rows), rtol=0, atol=1e-12)
        expected = torch.autograd.grad(found.log_prob(y).sum(), y)[0]
        assert_close(gradient, expected, rtol=1e-11, atol=1e-12)
        y = y.detach()


@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), ReLU()], ids=str)
def test_derivatives_of_chunks(activation: Activation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that are evaluated again have the derivatives of all rows at once."""
    values = (WEIGHT, BIAS, READOUT, MEAN, torch.rand(5, 2, dtype=F64) + 0.3)
    parameters = [x.clone().requires_grad_() for x in values]
    y = torch.randn(5, 2, dtype=F64)

    def log_probs(*parameters: Tensor) -> Tensor:
        *network, mean, scales = parameters
        base = Gaussian(mean, torch.ones(2, dtype=F64))
        law = SNEFY(*network, activation=activation, base=base)
        return law.observed(scales).log_prob(y)

    def derivatives() -> list[Tensor]:
        first = torch.autograd.grad(log_probs(*parameters).sum(), parameters, create_graph=True)
        total = sum((x.sin().sum() for x in first), start=torch.zeros((), dtype=F64))
        return [*first, *torch.autograd.grad(total, parameters)]

    expected = derivatives()
    tangents = tuple(torch.randn_like(x) for x in values)
    forward = torch.func.jvp(log_probs, values, tangents)[1]
    monkeypatch.setattr(noise, "_CHUNK", 2 * len(WEIGHT) ** 2)
    monkeypatch.setattr(noise, "_KEPT", 0)
    for found, value in zip(derivatives(), expected, strict=True):
        assert_close(found, value, rtol=1e-9, atol=1e-11)
    assert_close(torch.func.jvp(log_probs, values, tangents)[1], forward, rtol=1e-11, atol=1e-12)


def test_batch_shapes() -> None:
    batch = SNEFY(torch.randn(3, 1, 4, 2), torch.randn(5, 4), torch.randn(2, 4))  # (3, 5)
    observed = batch.observed(torch.rand(5, 1) + 0.5, matrix=torch.randn(2, 1, 1, 1, 2))
    assert observed.batch_shape == (2, 3, 5) and observed.event_shape == (1,)
    assert observed.sample((4,)).shape == (4, 2, 3, 5, 1)
    assert observed.log_prob(torch.randn(1)).shape == (2, 3, 5)
    assert observed.log_prob(torch.randn(4, 2, 3, 5, 1)).shape == (4, 2, 3, 5)
    assert observed.expand((6, 2, 3, 5)).log_prob(torch.randn(5, 1)).shape == (6, 2, 3, 5)
    posterior = batch.posterior(torch.randn(7, 1, 1, 2), 0.5)
    assert posterior.batch_shape == (7, 3, 5)
    empty = batch.observed(0.5).log_prob(torch.randn(0, 3, 5, 2))
    assert empty.shape == (0, 3, 5)


def test_members_of_a_batch() -> None:
    weight, readout = torch.randn(3, 1, 4, 2, dtype=F64), torch.randn(2, 4, dtype=F64)
    bias, matrix = torch.randn(5, 4, dtype=F64), torch.randn(5, 1, 2, dtype=F64)
    observed = SNEFY(weight, bias, readout).observed(0.5, matrix=matrix)
    y = torch.randn(6, 3, 5, 1, dtype=F64)
    found = observed.log_prob(y)
    for i in range(3):
        for j in range(5):
            one = SNEFY(weight[i, 0], bias[j], readout).observed(0.5, matrix=matrix[j])
            assert_close(found[:, i, j], one.log_prob(y[:, i, j]), rtol=0, atol=1e-12)


def test_standardized_rows() -> None:
    """A location and a scale for each row, as conditional families have, and shared noise."""
    loc, scale = torch.randn(4, dtype=F64), torch.rand(4, dtype=F64) + 0.3
    inner = Gaussian(_t(0.0), _t(1.0), event_dim=0)
    law = SNEFY(WEIGHT[:, :1], BIAS, READOUT, base=Standardized(inner, loc, scale))
    y = torch.randn(4, dtype=F64)
    same = SNEFY(
        WEIGHT[:, :1] / scale[:, None, None],
        BIAS - WEIGHT[:, 0] * (loc / scale)[:, None],
        READOUT,
        base=Gaussian(loc, scale, event_dim=0),
    )
    assert_close(law.observed(0.4).log_prob(y), same.observed(0.4).log_prob(y), rtol=0, atol=1e-12)
    posterior = law.posterior(y, 0.4)
    assert isinstance(posterior.base, Standardized)
    assert_close(posterior.mean, same.posterior(y, 0.4).mean, rtol=0, atol=1e-12)


# Draws, moments, gradients, precision -----------------------------------------------------------


def test_draws() -> None:
    """False alarms: 1e-6. 20,000 draws see a shift of 0.035 standard deviations."""
    observed = _family().observed(scale_tril=NOISE_TRIL, matrix=_t([[1.0, 0.5], [0.3, -2.0]]))
    x = observed.sample((20_000,))
    standard = torch.linalg.solve(
        torch.linalg.cholesky(observed.covariance_matrix), (x - observed.mean).mT
    )
    bound = stats.norm.isf(1e-6 / 8) / 20_000**0.5
    assert (standard.mean(-1).abs() < bound).all()
    # Fourth moments of a law with at most twice the tails of a normal one.
    assert ((standard @ standard.mT / 20_000 - torch.eye(2)).abs() < 2.5 * bound).all()


@pytest.mark.parametrize("name", _bases())
def test_moments(name: str) -> None:
    """Mass, mean and variance of a line through events, by quadrature of its density."""
    base = _bases()[name]
    d = base.num_statistics
    law = SNEFY(WEIGHT[:, :d], BIAS, READOUT, base=base)
    observed = law.observed(1.0, matrix=_t([[0.7, -0.4]])[:, :d])
    y, weights = legendre(-40.0, 40.0, 300)
    density = weights * observed.log_prob(_t(y)[:, None]).exp().numpy()
    assert_close(_t(density.sum()), _t(1.0), rtol=0, atol=1e-9)
    mean = (density * y).sum()
    assert_close(observed.mean, _t([mean]), rtol=0, atol=1e-8)
    assert_close(observed.variance, _t([(density * (y - mean) ** 2).sum()]), rtol=0, atol=1e-7)


@pytest.mark.parametrize("base", [NORMAL, Gaussian(LOC, SCALE), MIXTURE], ids=str)
def test_gradients(base: Base) -> None:
    names = [name for name, _ in base.tensors()]

    def log_prob(weight: Tensor, bias: Tensor, factor: Tensor, y: Tensor, *own: Tensor) -> Tensor:
        values = iter(own)
        moved = base.map(lambda _: next(values))
        law = SNEFY(weight, bias, READOUT, base=moved, validate_args=False)
        return law.observed(scale_tril=factor).log_prob(y)

    tensors = [value.tril() if name == "scale_tril" else value for name, value in base.tensors()]
    assert len(names) == len(tensors)
    arguments = [WEIGHT, BIAS, NOISE_TRIL.expand(2, 2, 2), torch.stack([Y, -Y]), *tensors]
    assert torch.autograd.gradcheck(
        log_prob, [x.clone().requires_grad_() for x in arguments], atol=1e-6
    )


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_float32(scale: float) -> None:
    wide = _family(Snake(1.0))
    narrow = SNEFY(
        WEIGHT.float(),
        BIAS.float(),
        READOUT.float(),
        activation=Snake(1.0),
        base=NORMAL.map(Tensor.float),
    )
    y = torch.randn(10, 2)
    found = narrow.observed(scale).log_prob(y)
    assert found.dtype == torch.float32
    assert_close(found.double(), wide.observed(scale).log_prob(y.double()), rtol=1e-5, atol=1e-5)
    posterior = narrow.posterior(y, scale)
    assert posterior.mean.dtype == torch.float32
    expected = wide.posterior(y.double(), scale).mean
    assert_close(posterior.mean.double(), expected, rtol=1e-4, atol=1e-4)


def test_another_default_device() -> None:
    for base in _bases().values():
        d = base.num_statistics
        law = SNEFY(WEIGHT[:, :d], BIAS, READOUT, base=base)
        y, matrix = _t([[0.3, 0.4, -0.2]]), _t([[1.0, 2.0], [0.5, -1.0], [0.3, 1.0]])[:, :d]
        with torch.device("meta"):
            value = law.observed(0.3, matrix=matrix).log_prob(y)
            mean = law.posterior(y, 0.3, matrix=matrix).mean
        assert value.device == mean.device == y.device


def test_no_waiting_for_the_device() -> None:
    """With validation off, neither a density nor its gradient looks at numbers."""
    weight = WEIGHT.clone().requires_grad_()
    law = SNEFY(weight, BIAS, READOUT, base=NORMAL, validate_args=False)
    y, factors = torch.stack([Y, -Y]), NOISE_TRIL.expand(2, 2, 2)
    with profile() as run:
        law.observed(scale_tril=factors).log_prob(y).sum().backward()
        law.observed(1.0, matrix=WEIGHT[:1]).log_prob(y[:, :1]).sum().backward()
        law.posterior(y, scale_tril=factors).log_prob(y).sum().backward()
    names = {event.name() for event in run.kineto_results.events()}
    assert names.isdisjoint({"aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero"})
    assert "aten::linalg_solve_triangular" in names  # the profiler saw what was done


# Bad arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base",
    [
        UniformCube(2),
        UniformSphere(2),
        StudentT(4.0, torch.zeros(2), torch.ones(2)),
        Product([Gaussian([0.0], [1.0]), Poisson(2.0)]),
    ],
    ids=str,
)
def test_other_bases(base: Base) -> None:
    law = SNEFY(torch.randn(3, 2), None, torch.randn(1, 3), base=base)
    for call in (lambda: law.observed(0.1), lambda: law.posterior(torch.zeros(2), 0.1)):
        with pytest.raises(NotImplementedError, match=rf"{type(base).__name__}.*GaussianMixture"):
            call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of scale and scale_tril, got neither"),
        ({"scale": 1.0, "scale_tril": torch.eye(2)}, "got both"),
        ({"scale": torch.ones(3)}, r"scale with shape \(\*, 2\), got \(3,\)"),
        ({"scale_tril": torch.ones(3)}, r"scale_tril with shape \(\*, 2, 2\), got \(3,\)"),
        ({"scale": torch.tensor([1.0, -1.0])}, "scale to be finite and to satisfy"),
        ({"scale_tril": torch.ones(2, 2)}, "scale_tril to be finite and to satisfy"),
        ({"scale": 1.0, "matrix": torch.ones(2)}, r"matrix with shape \(\*, e, 2\), got \(2,\)"),
        ({"scale": 1.0, "matrix": torch.full((1, 2), torch.nan)}, "finite matrix"),
        (
            {"scale": torch.ones(3, 1), "matrix": torch.ones(2, 1, 2)},
            r"broadcast against each other, got \(\), \(3,\), \(2,\)",
        ),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    law = SNEFY(torch.randn(3, 2), None, torch.randn(1, 3))
    with pytest.raises(ValueError, match=message):
        law.observed(**arguments)
    with pytest.raises(ValueError, match=message):
        law.posterior(torch.zeros(2), **arguments)


def test_bad_observations() -> None:
    law = SNEFY(torch.randn(3, 2), None, torch.randn(1, 3))
    with pytest.raises(ValueError, match=r"y with shape \(\*, 2\), got \(3,\)"):
        law.posterior(torch.zeros(3), 0.1)
    with pytest.raises(ValueError, match="y to be finite"):
        law.posterior(torch.tensor([0.0, torch.inf]), 0.1)
    with pytest.raises(ValueError):
        law.observed(0.1).log_prob(torch.zeros(3))
    quiet = SNEFY(law.weight, None, law.readout, validate_args=False).observed(0.1)
    assert quiet.log_prob(torch.tensor([0.0, torch.inf])) == -torch.inf
    scalar = SNEFY(torch.randn(3, 1), None, torch.randn(1, 3), base=Gaussian(0.0, 1.0, event_dim=0))
    with pytest.raises(NotImplementedError, match="variance"):
        _ = Observed(scalar, 0.1).covariance_matrix
    assert scalar.observed(0.1).mean.shape == ()


# The sum of a family and normal noise is a family -------------------------------------------------

CLOSED = [Cos(), Sin(), Cis(), Exp(), Exp(0.5)]


@pytest.mark.parametrize("activation", CLOSED, ids=str)
def test_sum_of_numbers(activation: Activation) -> None:
    """∫ p(x) N(y; x, s²) dx by a sum over a grid, which has all digits for such functions."""
    base = Gaussian(_t(0.3), _t(0.8), event_dim=0)
    law = SNEFY(WEIGHT[:, :1], BIAS, READOUT, activation=activation, base=base)
    x, y, scale = torch.linspace(-12, 12, 4001, dtype=F64), torch.linspace(-3, 3, 7, dtype=F64), 0.6
    error = torch.distributions.Normal(x, scale).log_prob(y.unsqueeze(-1))
    expected = (law.log_prob(x) + error).logsumexp(-1) + (x[1] - x[0]).log()
    found = law.observed(scale).as_snefy()
    assert isinstance(found, SNEFY)
    assert found.event_shape == ()
    assert_close(found.log_prob(y), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("activation", CLOSED, ids=str)
@pytest.mark.parametrize("matrix", [None, _t([[1.0, 2.0]]), _t([[1, 0], [0.5, -1], [2, 0.3]])])
def test_sum_of_vectors(activation: Activation, matrix: Tensor | None) -> None:
    """With any matrix; its cdf, marginals and draws are those of a family."""
    e = 2 if matrix is None else len(matrix)
    observed = _family(activation).observed(0.1 + torch.rand(e, dtype=F64), matrix=matrix)
    found, y = observed.as_snefy(), torch.randn(20, e, dtype=F64)
    assert_close(found.log_prob(y), observed.log_prob(y), rtol=1e-10, atol=1e-10)
    assert_close(found.mean, observed.mean)
    assert_close(found.covariance_matrix, observed.covariance_matrix)


def test_sum_of_a_batch() -> None:
    """A noise for each row, batches of families, float32 and gradients."""
    weight = torch.randn(4, 1, 3, 2, dtype=F64, requires_grad=True)
    law = SNEFY(weight, BIAS, READOUT, base=NORMAL)
    scale = (0.1 + torch.rand(5, 2, dtype=F64)).requires_grad_()
    observed, y = law.observed(scale), torch.randn(6, 4, 5, 2, dtype=F64)
    found = observed.as_snefy()
    assert found.batch_shape == (4, 5)
    assert_close(found.log_prob(y), observed.log_prob(y), rtol=1e-10, atol=1e-10)
    gradients = [
        torch.autograd.grad(law.log_prob(y).sum(), (weight, scale)) for law in (found, observed)
    ]
    assert_close(*gradients, rtol=1e-8, atol=1e-8)
    single = SNEFY(*(x.float() for x in (WEIGHT, BIAS, READOUT)), base=NORMAL.map(Tensor.float))
    found = single.observed(0.5).as_snefy()
    assert found.weight.dtype == torch.float32
    assert_close(
        found.log_prob(Y.float()), _family().observed(0.5).log_prob(Y).float(), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("law", [_family(GELU()), _family(Cos(), MIXTURE)], ids=str)
def test_no_sum(law: SNEFY) -> None:
    with pytest.raises(NotImplementedError, match="expected Cos, Sin, Cis or Exp on a Gaussian"):
        law.observed(0.5).as_snefy()
