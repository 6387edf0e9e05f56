"""Activations and bases from outside the package, with closed forms of their own."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Size, Tensor
from torch.distributions import constraints
from torch.testing import assert_close

from pyro_snefy import SNEFY
from pyro_snefy.activations import (
    Activation,
    Cis,
    Cos,
    Erf,
    Exp,
    FourierActivation,
    Identity,
    ReLU,
    Sin,
    Snake,
)
from pyro_snefy.bases import (
    Base,
    FourierBase,
    Gaussian,
    LaplaceBase,
    PointMass,
    Product,
    UniformBox,
    UniformSphere,
)
from pyro_snefy.bases import Mixture as MixtureOfBases
from pyro_snefy.kernels import (
    Features,
    Kernel,
    Pairwise,
    Separable,
    closed_form,
    kernel,
    register_kernel,
    registry,
)


@pytest.fixture(autouse=True)
def _clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what a test registers."""
    monkeypatch.setattr(registry, "_REGISTRY", copy.deepcopy(registry._REGISTRY))


# What a user might bring along ------------------------------------------------------------------


class Square(Activation):
    def __call__(self, z: Tensor) -> Tensor:
        return z.square()


def _square_on_gaussian(activation: Square, base: Gaussian, weight: Tensor) -> Kernel:
    """Moments of order four by Isserlis' theorem."""
    covariance = base.quadratic(weight)
    shift = (weight * base.mean(weight).unsqueeze(-2)).sum(-1)

    def evaluate(bias: Tensor) -> Tensor:
        mean = bias + shift
        second = mean.square() + covariance.diagonal(dim1=-2, dim2=-1)
        cross = mean.unsqueeze(-1) * mean.unsqueeze(-2)
        return (
            second.unsqueeze(-1) * second.unsqueeze(-2)
            + 4 * cross * covariance
            + 2 * covariance.square()
        )

    return Pairwise(evaluate)


class DoubleExponential(FourierBase, LaplaceBase):
    r"""The law with density :math:`e^{-|x - m| / s} / 2s`."""

    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        self.loc, self.scale = loc, scale
        super().__init__(torch.broadcast_shapes(loc.shape, scale.shape), Size(), 1)

    @property
    def support(self) -> Any:
        return constraints.real

    def log_density(self, x: Tensor) -> Tensor:
        return -(x - self.loc).abs() / self.scale - (2 * self.scale).log()

    def mean(self, like: Tensor) -> Tensor:
        return self.loc.unsqueeze(-1)

    def covariance(self, like: Tensor) -> Tensor:
        return 2 * self.scale.square()[..., None, None]

    def characteristic(self, omega: Tensor) -> tuple[Tensor, None]:
        square = (omega * self.scale[..., None, None]).square().squeeze(-1)
        return 1 / (1 + square), None

    def characteristic_moment(self, omega: Tensor) -> tuple[None, Tensor]:
        variance = self.scale.square()[..., None, None]
        return None, 2 * variance * omega / (1 + variance * omega.square()).square()

    def natural_constraint(self, scale: float) -> Any:
        bound = (1 / (2 * scale * self.scale))[..., None, None]
        return constraints.independent(constraints.interval(-bound, bound), 1)

    def log_partition(self, eta: Tensor) -> Tensor:
        eta = eta.squeeze(-1)
        return eta * self.loc.unsqueeze(-1) - torch.log1p(
            -(eta * self.scale.unsqueeze(-1)).square()
        )


class Logistic(LaplaceBase):
    r"""The standard logistic law, of which only the moment generating function is supplied."""

    def __init__(self) -> None:
        super().__init__(Size(), Size(), 1)

    @property
    def support(self) -> Any:
        return constraints.real

    def log_density(self, x: Tensor) -> Tensor:
        return -x - 2 * torch.nn.functional.softplus(-x)

    def natural_constraint(self, scale: float) -> Any:
        return constraints.independent(constraints.interval(-0.5 / scale, 0.5 / scale), 1)

    def log_partition(self, eta: Tensor) -> Tensor:
        return ((1 + eta).lgamma() + (1 - eta).lgamma()).squeeze(-1)


class Quadratic(Activation):
    def __call__(self, z: Tensor) -> Tensor:
        return z.square()


class Arcsine(Base):
    r"""The law with density :math:`1 / \pi \sqrt{1 - x^2}` on :math:`(-1, 1)`."""

    MOMENTS = (1.0, 1 / 2, 3 / 8)  # of order 0, 2 and 4

    def __init__(self) -> None:
        super().__init__(Size(), Size(), 1)

    @property
    def support(self) -> Any:
        return constraints.interval(-1.0, 1.0)

    def log_density(self, x: Tensor) -> Tensor:
        return -(1 - x.square()).log() / 2 - math.log(math.pi)


def _quadratic_on_arcsine(activation: Quadratic, base: Arcsine, weight: Tensor) -> Kernel:
    """(w x + b)^2 = w^2 x^2 + 2 w b x + b^2: three functions of a single bias."""
    left, right = weight, weight.mT  # (*, n, 1) and (*, 1, n)
    one, two, four = base.MOMENTS
    return Separable(
        {
            (0, 0): four * left.square() * right.square(),
            (0, 2): two * left.square(),
            (1, 1): 4 * two * left * right,
            (2, 2): weight.new_full((1, 1), one),
        },
        lambda bias: Features(None, (None, bias, bias.square())),
    )


# Against quadrature -----------------------------------------------------------------------------


def _integral(function: Callable[[float], float], low: float, high: float, kinks: list) -> float:
    ends = [low, *kinks, high]
    pieces = itertools.pairwise(ends)
    return math.fsum(
        quad(function, a, b, epsabs=1e-12, epsrel=1e-12, limit=200)[0] for a, b in pieces
    )


def _check(
    activation: Activation,
    base: Base,
    *,
    low: float = -60.0,
    high: float = 60.0,
    kinks: tuple[float, ...] = (),
    scale: float = 0.4,
) -> SNEFY:
    """Normaliser against quadrature, the integral of the density against one."""
    weight = scale * (2 * torch.rand(4, 1, dtype=torch.float64) - 1)
    bias, readout = torch.randn(4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    parameters = [x.requires_grad_() for x in (weight, bias, readout)]
    d = SNEFY(*parameters, activation=activation, base=base)

    def integrand(x: float) -> float:
        with torch.no_grad():
            event = torch.tensor(x, dtype=torch.float64)
            neurons = activation(weight[:, 0] * event + bias)
            squares = (readout.to(neurons.dtype) @ neurons).abs().square()
            return float(squares.sum() * base.log_density(event).exp())

    def density(x: float) -> float:
        with torch.no_grad():
            return float(d.log_prob(torch.tensor(x, dtype=torch.float64)).exp())

    middle = [0.0, *kinks]
    expected = math.log(_integral(integrand, low, high, sorted(middle)))
    assert float(d.log_normalizer.detach()) == pytest.approx(expected, abs=1e-8)
    assert _integral(density, low, high, sorted(middle)) == pytest.approx(1, abs=1e-8)
    x = torch.tensor([0.1, 0.5], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda *p: SNEFY(*p, activation=activation, base=base).log_prob(x), parameters
    )
    return d


def test_own_activation() -> None:
    """Pair by pair, on a base of the package."""
    register_kernel(Square, Gaussian)(_square_on_gaussian)
    base = Gaussian(
        torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.8, dtype=torch.float64), event_dim=0
    )
    d = _check(Square(), base, low=-10.0, high=10.0)
    # What the package builds on a kernel comes with it.
    assert d.condition_number.detach() >= 1
    grid = torch.linspace(-10, 10, 20001, dtype=torch.float64)
    weights = d.log_prob(grid).exp() * (grid[1] - grid[0])
    assert_close(d.mean, (weights * grid).sum(), rtol=1e-6, atol=1e-8)
    assert_close(d.variance, (weights * (grid - d.mean).square()).sum(), rtol=1e-6, atol=1e-8)


WAVES = [Cos(), Sin(), Cis(), Snake(1.5), Snake(0.7, offset=False), Identity()]


@pytest.mark.parametrize("activation", [*WAVES, Exp(), Exp(0.5)], ids=str)
def test_own_fourier_base(activation: Activation) -> None:
    """Not a line of registration: the engines know what to do with the transforms."""
    base = DoubleExponential(
        torch.tensor(0.2, dtype=torch.float64), torch.tensor(0.6, dtype=torch.float64)
    )
    d = _check(activation, base, kinks=(0.2,))
    if isinstance(activation, Cos | Sin | Cis | Exp):
        moment = _integral(
            lambda x: x * float(d.log_prob(torch.tensor(x, dtype=torch.float64)).detach().exp()),
            -60.0,
            60.0,
            [0.0, 0.2],
        )
        assert float(d.mean.detach()) == pytest.approx(moment, abs=1e-8)


@pytest.mark.parametrize("activation", [Exp(), Exp(0.5)], ids=str)
def test_own_laplace_base(activation: Activation) -> None:
    _check(activation, Logistic(), low=-80.0, high=80.0)
    bad = torch.tensor([[0.6 / activation.scale]])  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="weight"):
        SNEFY(bad, None, torch.ones(1, 1), activation=activation, base=Logistic())


def test_own_activation_on_own_base() -> None:
    register_kernel(Quadratic, Arcsine)(_quadratic_on_arcsine)
    base = Arcsine()
    weight, bias = torch.randn(4, 1, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    readout = torch.randn(2, 4, dtype=torch.float64)
    d = SNEFY(weight, bias, readout, activation=Quadratic(), base=base)
    # Gauss-Chebyshev quadrature is exact for the polynomials that these are.
    nodes = torch.as_tensor(np.polynomial.chebyshev.chebgauss(10)[0])
    neurons = (weight * nodes + bias.unsqueeze(-1)).square()
    expected = (readout @ neurons).square().sum(0).mean()
    assert_close(d.log_normalizer, expected.log())
    density = d.log_prob(nodes) - base.log_density(nodes)
    assert_close(density.exp().mean(), torch.ones((), dtype=torch.float64))
    # A batch of biases takes the separable path.
    biases = torch.randn(5, 4, dtype=torch.float64)
    batch = SNEFY(weight, biases, readout, activation=Quadratic(), base=base)
    one = SNEFY(weight, biases[2], readout, activation=Quadratic(), base=base)
    assert_close(batch.log_normalizer[2], one.log_normalizer)


def test_own_base_in_compositions() -> None:
    own = DoubleExponential(torch.tensor(0.2), torch.tensor(0.6))
    weight, readout = torch.randn(3, 3), torch.randn(1, 3)
    box = UniformBox(torch.zeros(2), torch.ones(2))
    joint = SNEFY(weight, None, readout, activation=Snake(), base=Product([own, box]))
    assert joint.log_prob(torch.full((3,), 0.5)).isfinite()
    mixture = MixtureOfBases(torch.zeros(2), [own, PointMass(torch.tensor(1.0))])
    inflated = SNEFY(weight[:, :1], None, readout, activation=Cos(), base=mixture)
    assert inflated.log_prob(torch.tensor(1.0)).isfinite()


# Dispatch ---------------------------------------------------------------------------------------


class Cosine(Cos):
    """A subclass, which has the kernel of its parent."""


class Narrow(Gaussian):
    """A subclass, which has the kernels of its parent."""


@pytest.fixture
def marked() -> Iterator[Callable[[str], Any]]:
    def build(mark: str) -> Any:
        def function(activation: Activation, base: Base, weight: Tensor) -> Kernel:
            result = Pairwise(lambda bias: bias)
            result.mark = mark  # type: ignore[attr-defined]
            return result

        return function

    yield build


def _mark(activation: Activation, base: Base) -> str | None:
    return getattr(kernel(activation, base, torch.ones(2, 1)), "mark", None)


def test_subclasses_inherit() -> None:
    base = Narrow(torch.zeros(1), torch.ones(1))
    parameters = torch.ones(2, 1), torch.zeros(2), torch.ones(1, 2)
    own = SNEFY(*parameters, activation=Cosine(), base=base)
    assert_close(own.log_normalizer, SNEFY(*parameters).log_normalizer)


def test_the_most_specific_pair_is_taken(marked: Callable[[str], Any]) -> None:
    plain, narrow = Gaussian(torch.zeros(1), torch.ones(1)), Narrow(torch.zeros(1), torch.ones(1))
    assert _mark(Cosine(), narrow) is None
    register_kernel(Cos, Narrow)(marked("base"))  # after a lookup, which must not be remembered
    assert _mark(Cos(), narrow) == "base"
    assert _mark(Cosine(), narrow) == "base"
    assert _mark(Cosine(), plain) is None
    # The activation decides first.
    register_kernel(Cosine, FourierBase)(marked("activation"))
    assert _mark(Cosine(), narrow) == "activation"
    assert _mark(Cosine(), plain) == "activation"
    register_kernel(Cosine, Narrow)(marked("both"))
    assert _mark(Cosine(), narrow) == "both"
    assert _mark(Cos(), narrow) == "base"
    assert _mark(Cos(), plain) is None
    # The later of two registrations holds.
    register_kernel(Cosine, Narrow)(marked("later"))
    assert _mark(Cosine(), narrow) == "later"


def test_the_decorator_returns_the_function(marked: Callable[[str], Any]) -> None:
    function = marked("one")
    assert register_kernel(Square, Gaussian)(function) is function


@pytest.mark.parametrize(
    ("activation", "base", "name"),
    [
        (Cos(), Gaussian, "activation"),
        (Gaussian, Gaussian, "activation"),
        ("Cos", Gaussian, "activation"),
        (Cos, Cos, "base"),
        (Cos, UniformSphere(2), "base"),
        (Cos, None, "base"),
    ],
)
def test_wrong_types(activation: Any, base: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"expected {name} to be a subclass"):
        register_kernel(activation, base)


def test_missing_pair() -> None:
    parameters = torch.ones(2, 1), torch.zeros(2), torch.ones(1, 2)
    base = Gaussian(torch.zeros(1), torch.ones(1))
    assert not closed_form(Square(), base, bias=True)
    with pytest.raises(NotImplementedError) as error:
        SNEFY(*parameters, activation=Square(), base=base)
    message = str(error.value)
    assert "Square on Gaussian" in message
    for name in ("Cos", "Snake", "Exp", "ReLU", "register_kernel"):
        assert name in message
    assert "Bases with one for Square: none" in message
    with pytest.raises(NotImplementedError, match="Square"):
        kernel(Square(), base, parameters[0])

    register_kernel(Square, UniformBox)(_square_on_gaussian)
    with pytest.raises(NotImplementedError, match="Bases with one for Square: UniformBox"):
        SNEFY(*parameters, activation=Square(), base=base)
    register_kernel(Square, Gaussian)(_square_on_gaussian)
    assert closed_form(Square(), base, bias=True)
    assert SNEFY(*parameters, activation=Square(), base=base).log_normalizer.isfinite()


def test_missing_base() -> None:
    with pytest.raises(NotImplementedError) as error:
        SNEFY(torch.ones(2, 1), None, torch.ones(1, 2), activation=Erf(), base=Logistic())
    message = str(error.value)
    assert "Erf on Logistic()" in message
    assert "Activations with one on Logistic: Exp" in message
    assert "Gaussian" in message and "Discrete" in message
    assert "UniformCube" in message  # a pushforward has the kernels of its latent base


def test_kernel_without_bias() -> None:
    def constant(activation: Square, base: Base, weight: Tensor) -> Kernel:
        matrix = weight @ weight.mT
        return Pairwise(lambda bias: matrix)

    register_kernel(Square, UniformSphere, bias=False)(constant)
    base, weight, readout = UniformSphere(2), torch.ones(2, 2), torch.ones(1, 2)
    assert closed_form(Square(), base, bias=False)
    assert not closed_form(Square(), base, bias=True)
    with pytest.raises(NotImplementedError, match="bias=None"):
        SNEFY(weight, torch.zeros(2), readout, activation=Square(), base=base)
    d = SNEFY(weight, None, readout, activation=Square(), base=base)
    assert_close(d.log_normalizer, torch.tensor(8.0).log())


def test_a_composition_needs_all_its_parts() -> None:
    own = Product([Gaussian(torch.zeros(1), torch.ones(1)), UniformSphere(2)])
    assert closed_form(Cos(), own, bias=True)
    assert not closed_form(ReLU(), own, bias=True)
    atom = PointMass(torch.tensor(0.0))
    normal = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    assert closed_form(ReLU(), MixtureOfBases(torch.zeros(2), [normal, atom]), bias=True)
    outside = DoubleExponential(torch.tensor(0.0), torch.tensor(1.0))
    mixture = MixtureOfBases(torch.zeros(2), [outside, atom])
    assert not closed_form(ReLU(), mixture, bias=True)
    with pytest.raises(NotImplementedError, match="ReLU"):
        SNEFY(torch.ones(2, 1), torch.zeros(2), torch.ones(1, 2), activation=ReLU(), base=mixture)


def test_an_engine_for_a_family_of_activations() -> None:
    """A kernel for an abstract activation serves all that derive from it."""

    class Wave(FourierActivation):
        pass

    class Triangle(Wave):
        def __call__(self, z: Tensor) -> Tensor:
            return z.sin().asin()

    base = Gaussian(torch.zeros(1), torch.ones(1))
    assert not closed_form(Triangle(), base, bias=True)
    register_kernel(Wave, Gaussian)(_square_on_gaussian)
    assert closed_form(Triangle(), base, bias=True)
    assert closed_form(Triangle(), Narrow(torch.zeros(1), torch.ones(1)), bias=True)
