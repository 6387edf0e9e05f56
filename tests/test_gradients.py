"""Gradients of every pair against finite differences."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from pyro_snefy import SNEFY, bases
from pyro_snefy.activations import Exp, FourierActivation, LeakyReLU, ReLU, Step
from pyro_snefy.bases import Base, Mixture, Product
from tests.cases import CASES, KINDS, Case, events

# Central differences with this step are right to about 1e-9, far below the tolerances. The fast
# mode compares one random projection of the Jacobian, and not its entries one by one.
CHECK: dict[str, Any] = {"eps": 1e-6, "atol": 1e-6, "rtol": 1e-5, "fast_mode": True}


class Problem:
    """A member of a family as a function of all tensors that it is differentiable in."""

    def __init__(
        self,
        case: Case,
        weight: Tensor,
        bias: Tensor | None,
        matrix: Tensor,
        form: str = "readout",
        points: bool = True,
    ) -> None:
        self.case, self.base, self.form = case, case.base(), form
        tensors = {"weight": weight, "matrix": matrix}
        if bias is not None:
            tensors["bias"] = bias
        # An event is on an atom or not: moving the atom moves the event off.
        self.names = [
            name for name, _ in self.base.tensors() if points or not name.endswith("points")
        ]
        tensors |= {name: x for name, x in self.base.tensors() if name in self.names}
        self.keys = tuple(tensors)
        self.inputs = tuple(x.detach().clone().requires_grad_() for x in tensors.values())

    def distribution(self, *inputs: Tensor) -> SNEFY:
        given = dict(zip(self.keys, inputs, strict=True))
        own = {id(x): given.get(name, x) for name, x in self.base.tensors()}
        matrix = given["matrix"]
        if self.form == "gram":
            matrix = (matrix + matrix.mH) / 2  # finite differences leave the symmetric matrices
        return SNEFY(
            given["weight"],
            given.get("bias"),
            activation=self.case.activation,
            base=self.base.map(lambda x: own[id(x)]),
            validate_args=False,
            **{self.form: matrix},
        )

    def log_normalizer(self, *inputs: Tensor) -> Tensor:
        return self.distribution(*inputs).log_normalizer

    def assert_finite(self) -> None:
        """Where there is a kink there is no gradient, but neither is there a NaN."""
        value = self.log_normalizer(*self.inputs)
        assert value.isfinite()
        gradients = torch.autograd.grad(value, self.inputs, materialize_grads=True)
        for key, gradient in zip(self.keys, gradients, strict=True):
            assert gradient.isfinite().all(), key


def _onto_support(base: Base, x: Tensor) -> Tensor:
    # Finite differences leave a curved support.
    if isinstance(base, bases.UniformSphere):
        return x / x.norm(dim=-1, keepdim=True)
    if isinstance(base, bases.DirichletFamily):
        return x / x.sum(-1, keepdim=True)
    return x


def _continuous(base: Base) -> Tensor:
    """Which coordinates of an event are continuous, off the atoms."""
    if isinstance(base, Product):
        return torch.cat([_continuous(part).reshape(-1) for part in base.bases])
    if isinstance(base, Mixture):
        return _continuous(base.bases[0])
    return torch.full(base.event_shape, not base.is_discrete)


def _events(problem: Problem, count: int) -> Tensor:
    """Events of positive density, where the density is differentiable if it is anywhere."""
    x = events(problem.case, 200)
    if problem.case.base_name == "MixtureAtom":
        x = x[x != 0.5]
    x = x[problem.distribution(*problem.inputs).log_prob(x).isfinite()]
    assert len(x) >= count
    return x[:count]


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_log_prob(case: Case) -> None:
    """In the parameters, those of the base included, and in the events."""
    problem = Problem(case, *case.parameters(n=2), points=False)
    x = _events(problem, 2)
    moves = _continuous(problem.base)

    def log_prob(*tensors: Tensor) -> Tensor:
        d = problem.distribution(*tensors[1:])
        return d.log_prob(_onto_support(d.base, torch.where(moves, tensors[0], x)))

    assert gradcheck(log_prob, (x.clone().requires_grad_(), *problem.inputs), **CHECK)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_log_normalizer(case: Case) -> None:
    weight, bias, readout = case.parameters(n=3)
    problem = Problem(case, weight, bias, readout.mH @ readout, "gram")
    assert gradcheck(problem.log_normalizer, problem.inputs, **CHECK)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_one_neuron(case: Case) -> None:
    weight, bias, readout = case.parameters(n=1, m=1)
    # One rectified neuron on a few points can be silent: not with a positive bias and point.
    problem = Problem(case, weight, None if bias is None else bias.abs(), readout)
    assert gradcheck(problem.log_normalizer, problem.inputs, **CHECK)


def _kinked_in_norm(case: Case) -> bool:
    # A homogeneous neuron without bias is a multiple of |w|, as a function of its weight.
    return isinstance(case.activation, LeakyReLU | Step) or case.activation == ReLU()


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_degenerate_weights(case: Case) -> None:
    """Zero, equal and opposite weights, with biases that differ: differentiable with a bias."""
    weight, bias, readout = case.parameters(n=4)
    weight[1] = weight[0]
    weight[2] = -weight[0]
    weight[3] = 0
    problem = Problem(case, case.natural(weight), bias, readout)
    if bias is None and _kinked_in_norm(case):
        problem.assert_finite()
    else:
        assert gradcheck(problem.log_normalizer, problem.inputs, **CHECK)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_equal_neurons(case: Case) -> None:
    """Weights and biases that are equal, and a pair that is opposite."""
    weight, bias, readout = case.parameters(n=3)
    weight[1] = weight[0]
    weight[2] = -weight[0]
    if bias is not None:
        bias[1] = bias[0]
        bias[2] = -bias[0]
    problem = Problem(case, case.natural(weight), bias, readout)
    if isinstance(case.activation, Step):
        problem.assert_finite()  # an overlap of half-spaces falls off on both sides
    else:
        assert gradcheck(problem.log_normalizer, problem.inputs, **CHECK)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_silent_bias(case: Case) -> None:
    """Weights and biases that are zero: finite, kinks or not."""
    weight, bias, readout = case.parameters(n=3)
    weight[0] = 0
    if bias is not None:
        bias[0] = 0
    Problem(case, case.natural(weight), bias, readout).assert_finite()


SMOOTH = [
    case
    for case in CASES
    if isinstance(case.activation, FourierActivation | Exp)
    # the same as others, but for constants and dimensions
    and case.activation_name not in ("SnakeCentred", "ExpHalf")
    and case.base_name not in ("GaussianScalar", "Interval", "UniformCircle", "DiscreteScalar")
]


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_second_derivatives(case: Case) -> None:
    weight, bias, readout = case.parameters(n=3, m=1)
    weight[1] = -weight[0]  # no pole at a frequency of zero
    problem = Problem(case, case.natural(weight), bias, readout)
    assert gradgradcheck(problem.log_normalizer, problem.inputs, **CHECK)


# ------------------------------------------------------------------------------- zero density


@pytest.mark.parametrize("activation", [ReLU(), ReLU(2), Step()], ids=str)
@pytest.mark.parametrize("form", ["readout", "gram"])
def test_zero_density(activation: Any, form: str) -> None:
    """An event at which every neuron is silent poisons no other."""
    weight = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    bias = torch.tensor([0.5, -0.2], dtype=torch.float64, requires_grad=True)
    matrix = torch.eye(2, dtype=torch.float64).requires_grad_()
    x = torch.tensor([[1.0, 1.0], [-3.0, -1.0], [2.0, -0.5]], dtype=torch.float64)
    x.requires_grad_()

    def gradients(value: Tensor) -> tuple[Tensor, ...]:
        d = SNEFY(weight, bias, activation=activation, **{form: matrix})
        log_prob = d.log_prob(value)
        keep = log_prob > -torch.inf
        assert keep.tolist() == [bool(row[0] > 0) for row in value]
        # as a loss that sums over all rows, whatever it does with infinities
        return torch.autograd.grad(
            torch.where(keep, log_prob, 0.0).sum(), (weight, bias, matrix, x)
        )

    poisoned = gradients(x)
    for gradient in poisoned:
        assert gradient.isfinite().all()
    for gradient, other in zip(poisoned[:3], gradients(x[[0, 2]])[:3], strict=True):
        torch.testing.assert_close(gradient, other)
    assert (poisoned[3][1] == 0).all()


@pytest.mark.parametrize("form", ["readout", "gram"])
def test_gradient_of_zero_density(form: str) -> None:
    """The sum with its infinity has a gradient without NaN, too."""
    weight = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    matrix = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[-1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    d = SNEFY(weight, activation=ReLU(), **{form: matrix})
    log_prob = d.log_prob(x)
    assert log_prob[0] == -torch.inf
    for gradient in torch.autograd.grad(log_prob.sum(), (weight, matrix, x)):
        assert not gradient.isnan().any()
