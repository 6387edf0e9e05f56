"""Every pair of activation and base with a closed form, for tests that run one script on each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_snefy import SNEFY, activations, bases
from pyro_snefy.activations import Activation
from pyro_snefy.bases import Base
from pyro_snefy.kernels import closed_form
from tests import oracle

ACTIVATIONS: dict[str, tuple[Activation, oracle.Activation]] = {
    "Cos": (activations.Cos(), oracle.activation("cos")),
    "Sin": (activations.Sin(), oracle.activation("sin")),
    "Cis": (activations.Cis(), oracle.activation("cis")),
    "Snake": (activations.Snake(1.5), oracle.activation("snake", 1.5)),
    "SnakeCentred": (activations.Snake(0.7, False), oracle.activation("snake", 0.7, False)),
    "Identity": (activations.Identity(), oracle.activation("identity")),
    "Exp": (activations.Exp(), oracle.activation("exp", 1.0)),
    "ExpHalf": (activations.Exp(0.5), oracle.activation("exp", 0.5)),
    "Erf": (activations.Erf(), oracle.activation("erf")),
    "Step": (activations.Step(), oracle.activation("step")),
    "ReLU": (activations.ReLU(), oracle.activation("relu", 1)),
    "ReLU2": (activations.ReLU(2), oracle.activation("relu", 2)),
    "ReLU3": (activations.ReLU(3), oracle.activation("relu", 3)),
    "LeakyReLU": (activations.LeakyReLU(0.2), oracle.activation("leaky", 0.2)),
    "GELU": (activations.GELU(), oracle.activation("gelu")),
    "Bump": (activations.Bump(), oracle.activation("bump")),
}


def _any(weight: Tensor) -> Tensor:
    return weight


def _normal_family(weight: Tensor) -> Tensor:
    linear, quadratic = weight.chunk(2, dim=-1)
    return torch.cat([linear, -quadratic.abs() - 0.1], dim=-1)


def _gamma_family(weight: Tensor) -> Tensor:
    return torch.stack([weight[..., 0].clamp(min=-0.4), weight[..., 1].abs() + 0.1], dim=-1)


def _dirichlet_family(weight: Tensor) -> Tensor:
    return weight.clamp(min=-0.4)


def _geometric(weight: Tensor) -> Tensor:
    return -weight.abs()


def _inside(weight: Tensor) -> Tensor:
    return weight.clamp(-1.0, 1.0) / 4  # of Laplace and logistic laws


@dataclass(frozen=True)
class BaseCase:
    """A base, made of float64 tensors, with the law of its statistic for the oracle."""

    build: Callable[[], Base]
    law: Callable[[], oracle.Law]
    natural: Callable[[Tensor], Tensor] = field(default=_any)  # weights that Exp is finite for


def _t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


LOC, SCALE = _t(0.3, -0.5), _t(0.8, 1.3)
TRIL = torch.tensor([[0.9, 0.0], [-0.6, 0.7]], dtype=torch.float64)
LOGITS = _t(0.2, -0.4, 0.5)
LOCS = torch.tensor([[0.0, 1.0], [-1.5, 0.2], [0.8, -0.7]], dtype=torch.float64)
SCALES = torch.tensor([[0.5, 1.0], [0.7, 0.4], [1.2, 0.6]], dtype=torch.float64)
LENGTHS = torch.tensor([[0.3, 1.2], [0.9, 0.5], [1.5, 0.1]], dtype=torch.float64)
POINTS = torch.tensor([[0.0, 1.0], [-1.0, 0.5], [2.0, 2.0], [0.3, -1.0]], dtype=torch.float64)
MASSES = _t(0.3, 0.1, 0.9, 0.4)


def _np(x: Tensor) -> Any:
    return x.detach().numpy()


def _eye(d: int) -> Any:
    return np.eye(d)


def _softmax(x: Tensor) -> Any:
    return _np(x.softmax(-1))


BASES: dict[str, BaseCase] = {
    "Gaussian": BaseCase(
        lambda: bases.Gaussian(LOC, SCALE),
        lambda: oracle.Gaussian(_np(LOC), _np(torch.diag(SCALE**2))),
    ),
    "GaussianScalar": BaseCase(
        lambda: bases.Gaussian(LOC[0], SCALE[0], event_dim=0),
        lambda: oracle.Gaussian(_np(LOC[:1]), _np(SCALE[:1, None] ** 2)),
    ),
    "GaussianFull": BaseCase(
        lambda: bases.Gaussian(LOC, scale_tril=TRIL),
        lambda: oracle.Gaussian(_np(LOC), _np(TRIL @ TRIL.T)),
    ),
    "GaussianMixture": BaseCase(
        lambda: bases.GaussianMixture(LOGITS, LOCS, SCALES),
        lambda: oracle.GaussianMixture(
            _softmax(LOGITS), _np(LOCS), _np(torch.diag_embed(SCALES**2))
        ),
    ),
    "UniformCube": BaseCase(
        lambda: bases.UniformCube(3), lambda: oracle.Gaussian(np.zeros(3), _eye(3))
    ),
    "UniformBox": BaseCase(
        lambda: bases.UniformBox(_t(-1.0, 0.5), _t(0.5, 3.0)),
        lambda: oracle.Box(np.array([-1.0, 0.5]), np.array([0.5, 3.0])),
    ),
    "SmoothBox": BaseCase(
        lambda: bases.SmoothBox(_t(-1.0, 0.5), _t(0.5, 3.0), _t(0.3, 0.8)),
        lambda: oracle.SmoothBox(np.array([-1.0, 0.5]), np.array([0.5, 3.0]), np.array([0.3, 0.8])),
    ),
    "SmoothBoxScalar": BaseCase(
        lambda: bases.SmoothBox(LOC[0], LOC[0] + 2, SCALE[0], event_dim=0),
        lambda: oracle.SmoothBox(_np(LOC[:1]), _np(LOC[:1] + 2), _np(SCALE[:1])),
    ),
    "SmoothBoxMixture": BaseCase(
        lambda: bases.SmoothBoxMixture(LOGITS, LOCS - LENGTHS, LOCS + LENGTHS, SCALES / 2),
        lambda: oracle.Mixture(
            _softmax(LOGITS),
            [
                oracle.SmoothBox(_np(loc - length), _np(loc + length), _np(scale / 2))
                for loc, length, scale in zip(LOCS, LENGTHS, SCALES, strict=True)
            ],
        ),
    ),
    "Interval": BaseCase(
        lambda: bases.Interval(_t(-1.0)[0], _t(1.5)[0]),
        lambda: oracle.Intervals(np.array([-1.0]), np.array([1.5])),
    ),
    "Intervals": BaseCase(
        lambda: bases.Interval(_t(-1.0, 2.0), _t(1.0, 2.5)),
        lambda: oracle.Intervals(np.array([-1.0, 2.0]), np.array([1.0, 2.5])),
    ),
    "UniformCircle": BaseCase(lambda: bases.UniformSphere(2), lambda: oracle.Sphere(2)),
    "UniformSphere": BaseCase(lambda: bases.UniformSphere(3), lambda: oracle.Sphere(3)),
    "UniformSphere7": BaseCase(lambda: bases.UniformSphere(7), lambda: oracle.Sphere(7)),
    "ProjectedGaussian": BaseCase(lambda: bases.ProjectedGaussian(4), lambda: oracle.Sphere(4)),
    "NormalFamily": BaseCase(
        lambda: bases.NormalFamily(2), lambda: oracle.NormalFamily(2), _normal_family
    ),
    "GammaFamily": BaseCase(bases.GammaFamily, oracle.GammaFamily, _gamma_family),
    "DirichletFamily": BaseCase(
        lambda: bases.DirichletFamily(3), lambda: oracle.DirichletFamily(3), _dirichlet_family
    ),
    "PoissonFamily": BaseCase(bases.PoissonFamily, oracle.poisson_family),
    "Poisson": BaseCase(lambda: bases.Poisson(_t(3.0)[0]), lambda: oracle.poisson(3.0)),
    "Geometric": BaseCase(
        lambda: bases.Geometric(_t(0.4)[0]), lambda: oracle.geometric(0.4), _geometric
    ),
    "StudentT": BaseCase(
        lambda: bases.StudentT(_t(8.0)[0], LOC[0], SCALE[0], event_dim=0),
        lambda: oracle.student_t(8.0, 0.3, 0.8),
    ),
    "Laplace": BaseCase(
        lambda: bases.Laplace(LOC[0], SCALE[0]), lambda: oracle.laplace(0.3, 0.8), _inside
    ),
    "Logistic": BaseCase(
        lambda: bases.Logistic(LOC[0], SCALE[0]), lambda: oracle.logistic(0.3, 0.8), _inside
    ),
    "NegativeBinomial": BaseCase(
        lambda: bases.NegativeBinomial(_t(2.5)[0], _t(0.6)[0]),
        lambda: oracle.negative_binomial(2.5, 0.6),
        _geometric,
    ),
    "Binomial": BaseCase(
        lambda: bases.Binomial(_t(7.0)[0], _t(0.3)[0]), lambda: oracle.binomial(7, 0.3)
    ),
    "Bernoulli": BaseCase(lambda: bases.Bernoulli(_t(0.3)[0]), lambda: oracle.binomial(1, 0.3)),
    "UniformAngle": BaseCase(bases.UniformAngle, lambda: oracle.Sphere(2)),
    "Discrete": BaseCase(
        lambda: bases.Discrete(POINTS, MASSES), lambda: oracle.Atoms(_np(POINTS), _np(MASSES))
    ),
    "DiscreteScalar": BaseCase(
        lambda: bases.Discrete(POINTS[:, 0], MASSES),
        lambda: oracle.Atoms(_np(POINTS[:, :1]), _np(MASSES)),
    ),
    "MixtureAtom": BaseCase(
        lambda: bases.Mixture(
            LOGITS[:2],
            [bases.Gaussian(LOC[0], SCALE[0], event_dim=0), bases.PointMass(_t(0.5)[0])],
        ),
        lambda: oracle.Mixture(
            _softmax(LOGITS[:2]),
            [
                oracle.Gaussian(_np(LOC[:1]), _np(SCALE[:1, None] ** 2)),
                oracle.Atoms(np.array([[0.5]]), np.ones(1)),
            ],
        ),
    ),
    "MixtureCounts": BaseCase(
        lambda: bases.Mixture(LOGITS[:2], [bases.Poisson(_t(3.0)[0]), bases.PointMass(_t(0.0)[0])]),
        lambda: oracle.Mixture(
            _softmax(LOGITS[:2]), [oracle.poisson(3.0), oracle.Atoms(np.zeros((1, 1)), np.ones(1))]
        ),
    ),
    "Product": BaseCase(
        lambda: bases.Product(
            [
                bases.Gaussian(LOC, scale_tril=TRIL),
                bases.Poisson(_t(2.0)[0]),
                bases.UniformBox(_t(-1.0), _t(0.5)),
            ]
        ),
        lambda: oracle.Product(
            [
                oracle.Gaussian(_np(LOC), _np(TRIL @ TRIL.T)),
                oracle.poisson(2.0),
                oracle.Box(np.array([-1.0]), np.array([0.5])),
            ]
        ),
    ),
}


@dataclass(frozen=True)
class Case:
    """A pair of activation and base, by their names."""

    activation_name: str
    base_name: str

    @property
    def activation(self) -> Activation:
        return ACTIVATIONS[self.activation_name][0]

    @property
    def oracle_activation(self) -> oracle.Activation:
        return ACTIVATIONS[self.activation_name][1]

    @property
    def law(self) -> oracle.Law:
        return BASES[self.base_name].law()

    @property
    def has_bias(self) -> bool:
        return closed_form(self.activation, self.base(), bias=True)

    def base(self, dtype: torch.dtype = torch.float64) -> Base:
        return BASES[self.base_name].build().map(lambda x: x.to(dtype))

    def natural(self, weight: Tensor) -> Tensor:
        """Weights moved to where the kernel is finite."""
        return BASES[self.base_name].natural(weight)

    def parameters(
        self, n: int = 4, m: int = 2, scale: float = 1.0, batch: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Random weight, bias and readout in float64."""
        weight = scale * torch.randn(*batch, n, self.base().num_statistics, dtype=torch.float64)
        bias = torch.randn(*batch, n, dtype=torch.float64)
        readout = torch.randn(*batch, m, n, dtype=torch.float64)
        if self.activation_name == "Cis":
            readout = torch.complex(readout, torch.randn_like(readout))
        return self.natural(weight), bias if self.has_bias else None, readout

    def distribution(self, dtype: torch.dtype = torch.float64, **kwargs: Any) -> SNEFY:
        """A random member of the family."""
        weight, bias, readout = self.parameters(**kwargs)
        readout = readout.to(dtype.to_complex() if readout.is_complex() else dtype)
        return SNEFY(
            weight.to(dtype),
            None if bias is None else bias.to(dtype),
            readout,
            activation=self.activation,
            base=self.base(dtype),
        )

    def log_normalizer(self, weight: Tensor, bias: Tensor | None, gram: Tensor) -> float:
        """The logarithm of the normalising constant, by the oracle."""
        b = np.zeros(len(weight)) if bias is None else _np(bias)
        return oracle.log_normalizer(self.oracle_activation, self.law, _np(weight), b, _np(gram))

    def __str__(self) -> str:
        return f"{self.activation_name}-{self.base_name}"


def _cases() -> Iterator[Case]:
    for activation in ACTIVATIONS:
        for base in BASES:
            case = Case(activation, base)
            if closed_form(case.activation, case.base(), bias=False):
                yield case


CASES = list(_cases())

# One case for each pair of types, where the parameters of activation and base are all the same to
# a test; bases of several shapes stay, those of several sizes do not.
_SIZES = ("UniformCircle", "UniformSphere7", "Intervals", "DiscreteScalar", "MixtureCounts")
KINDS = list(
    {
        (type(case.activation), case.base_name): case
        for case in reversed(CASES)
        if case.base_name not in _SIZES
    }.values()
)[::-1]


def events(case: Case, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random events of the support of a base."""
    base = case.base(dtype)
    return _events(base, count).to(dtype)


def _events(base: Base, count: int) -> Tensor:
    if isinstance(base, bases.Mixture):
        halves = [_events(part, count) for part in base.bases]
        pick = torch.arange(count).reshape((count,) + (1,) * base.event_dim) % 2 == 0
        return torch.where(pick, halves[0], halves[1])
    if isinstance(base, bases.Product):
        pieces = [_events(part, count).reshape(count, -1) for part in base.bases]
        return torch.cat(pieces, dim=-1)
    if isinstance(base, bases.UniformAngle):
        return 6 * torch.rand(count) - 3
    if isinstance(base, bases.Binomial):
        return torch.randint(int(base.total_count) + 1, (count,)).double()
    if isinstance(base, bases.UniformSphere):
        return torch.nn.functional.normalize(torch.randn(count, *base.event_shape), dim=-1)
    if isinstance(base, bases.UniformCube):
        return torch.rand(count, *base.event_shape)
    if isinstance(base, bases.UniformBox):
        return base.low + (base.high - base.low) * torch.rand(count, *base.event_shape)
    if isinstance(base, bases.Interval):
        pick = torch.randint(len(base.low), (count,))
        return base.low[pick] + (base.high - base.low)[pick] * torch.rand(count)
    if isinstance(base, bases.DirichletFamily):
        return torch.distributions.Dirichlet(torch.ones(base.event_shape)).sample((count,))
    if isinstance(base, bases.GammaFamily):
        return torch.rand(count) + 0.1
    if isinstance(base, bases.Discrete):
        return base.points[torch.randint(len(base.points), (count,))]
    if base.is_discrete:
        return torch.randint(5, (count,)).double()
    return torch.randn(count, *base.event_shape)
