"""Descriptions of squared neural families, whose `repr` is code, and strategies to draw them.

A strategy returns a description: a frozen value with a method `build`. What `repr` writes needs
`import torch` and `from pyro_snefy import SNEFY, activations, bases`, and nothing of the tests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import reject
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import transform_to

import pyro_snefy
from pyro_snefy import SNEFY
from pyro_snefy.bases import Base
from pyro_snefy.constraints import is_real
from pyro_snefy.kernels import closed_form

Shape = tuple[int, ...]

# Scales that are drawn; the first ones are what an example shrinks to.
WEIGHTS = (1.0, 0.1, 5.0, 1e-2, 1e-5, 1e-10, 50.0, 1e3)
BIASES = (1.0, 0.0, 1e-8, 30.0, 1e3)
READOUTS = (1.0, 1e-3, 1e-18, 1e18)
LOCATIONS = (1.0, 0.0, 1e-3, 30.0)
SPREADS = (1.0, 1e-3, 30.0)
LOGITS = (1.0, 0.0, 30.0, 1e3)
NATURAL = (1.0, 0.1, 3.0)  # of weights before they are moved to the natural parameter space


# Descriptions ------------------------------------------------------------------------------------


def _code(x: Any) -> str:
    """Numbers as code, infinities and NaN too."""
    if isinstance(x, tuple):
        return f"[{', '.join(map(_code, x))}]"
    if isinstance(x, float) and not math.isfinite(x):
        return f'float("{x}")'
    return repr(x)


def _tuples(x: Any) -> Any:
    return tuple(map(_tuples, x)) if isinstance(x, list) else x


@dataclass(frozen=True)
class Values:
    """A tensor."""

    data: Any  # numbers, in nested tuples
    dtype: str = "float64"

    @classmethod
    def of(cls, x: Tensor) -> "Values":
        return cls(_tuples(x.tolist()), str(x.dtype).removeprefix("torch."))

    def build(self) -> Tensor:
        return torch.tensor(self.data, dtype=getattr(torch, self.dtype))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # or else hypothesis shows the fields

    def __repr__(self) -> str:
        return f"torch.tensor({_code(self.data)}, dtype=torch.{self.dtype})"


@dataclass(frozen=True)
class Call:
    """A call of something public: of an activation, a base, or SNEFY itself."""

    function: str
    arguments: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def build(self, **more: Any) -> Any:
        function: Any = pyro_snefy
        for name in self.function.split("."):
            function = getattr(function, name)
        options = {name: _build(x) for name, x in self.options}
        return function(*map(_build, self.arguments), **options, **more)

    def replace(self, name: str, value: Any) -> "Call":
        """The same call with another value of an option."""
        options = tuple((key, value if key == name else x) for key, x in self.options)
        return Call(self.function, self.arguments, options)

    def option(self, name: str) -> Any:
        return dict(self.options).get(name)

    def names(self) -> set[str]:
        """The functions that are called, here and inside."""
        inside = [*self.arguments, *(x for _, x in self.options)]
        flat = [y for x in inside for y in (x if isinstance(x, tuple) else (x,))]
        return {self.function}.union(*(x.names() for x in flat if isinstance(x, Call)))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        inside = [_repr(x) for x in self.arguments]
        inside += [f"{name}={_repr(x)}" for name, x in self.options]
        return f"{self.function}({', '.join(inside)})"


def _build(x: Any) -> Any:
    if isinstance(x, tuple):
        return [_build(y) for y in x]
    return x.build() if isinstance(x, Values | Call) else x


def _repr(x: Any) -> str:
    return f"[{', '.join(map(_repr, x))}]" if isinstance(x, tuple) else repr(x)


def base(name: str, *arguments: Any, **options: Any) -> Call:
    return Call(f"bases.{name}", arguments, tuple(options.items()))


def activation(name: str, *arguments: Any) -> Call:
    return Call(f"activations.{name}", arguments)


def tensor(*data: Any, dtype: str = "float64") -> Values:
    """A vector of numbers, or a matrix of its rows."""
    return Values(data, dtype)


def number(x: float, dtype: str = "float64") -> Values:
    return Values(x, dtype)


def law(act: Call, base: Call, weight: Values, bias: Values | None, readout: Values) -> Call:
    """The description of a family, for examples written by hand."""
    options = {"bias": bias, "readout": readout, "activation": act, "base": base}
    return Call("SNEFY", (), (("weight", weight), *options.items()))


# Numbers -----------------------------------------------------------------------------------------


def _round(x: NDArray[Any]) -> NDArray[Any]:
    """Four digits are enough for a test, and short in print."""
    with np.errstate(divide="ignore"):
        power = 10.0 ** (3 - np.floor(np.log10(np.abs(x))))
    return np.where(x == 0, 0.0, np.round(x * np.where(x == 0, 1.0, power)) / power)


def _values(x: NDArray[Any], dtype: str) -> Values:
    return Values(_tuples(x.tolist()), dtype)


@st.composite
def numbers(
    draw: Any, shape: Shape, scales: Sequence[float] = (1.0,), *, positive: bool = False, dtype: str
) -> Values:
    """Normal variables times a scale, or log-normal ones."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    x = rng.standard_normal(shape)
    x = np.exp(x / 2) if positive else x
    return _values(_round(np.asarray(draw(st.sampled_from(scales)) * x)), dtype)


@st.composite
def rows(draw: Any, shape: Shape, scales: Sequence[float], *, dtype: str) -> NDArray[Any]:
    """Weights: independent neurons, equal or nearly equal ones, opposite ones, and zeros."""
    x = draw(numbers(shape, scales, dtype=dtype)).build().double().numpy()
    kind = draw(st.sampled_from(["any", "any", "equal", "close", "opposite", "zero"]))
    if shape[-2] > 1 and kind != "any":
        near = 1 + 1e-6 * (kind == "close")
        x[..., 1, :] = x[..., 0, :] * {"opposite": -1.0, "zero": 0.0}.get(kind, near)
    return x


batches = st.sampled_from([(), (2,), (2, 3), (1,)])


@st.composite
def sub(draw: Any, batch: Shape) -> Shape:
    """A shape that broadcasts to the batch shape."""
    shape = batch[draw(st.integers(0, len(batch))) :]
    return tuple(draw(st.sampled_from([size, 1])) for size in shape)


# Bases -------------------------------------------------------------------------------------------


@st.composite
def gaussians(draw: Any, d: int | None, batch: Shape, dtype: str) -> Call:
    event = () if d is None else (d,)
    loc = draw(numbers(draw(sub(batch)) + event, LOCATIONS, dtype=dtype))
    if d is not None and draw(st.booleans()):
        factor = draw(numbers((*draw(sub(batch)), d, d), SPREADS, dtype=dtype)).build().double()
        lower = factor.tril(-1) + torch.diag_embed(factor.diagonal(dim1=-2, dim2=-1).abs())
        lower = lower + 0.1 * torch.diag_embed(factor.abs().amax(-1))
        return base("Gaussian", loc, scale_tril=_values(_round(lower.numpy()), dtype))
    scale = draw(numbers(draw(sub(batch)) + event, SPREADS, positive=True, dtype=dtype))
    return base("Gaussian", loc, scale, **({"event_dim": 0} if d is None else {}))


@st.composite
def gaussian_mixtures(draw: Any, d: int, batch: Shape, dtype: str) -> Call:
    k = draw(st.integers(1, 3))
    return base(
        "GaussianMixture",
        draw(numbers((*draw(sub(batch)), k), LOGITS, dtype=dtype)),
        draw(numbers((*draw(sub(batch)), k, d), LOCATIONS, dtype=dtype)),
        draw(numbers((*draw(sub(batch)), k, d), SPREADS, positive=True, dtype=dtype)),
    )


@st.composite
def smooth_boxes(draw: Any, d: int | None, batch: Shape, dtype: str) -> Call:
    event = () if d is None else (d,)
    several = draw(st.booleans())
    shape = (draw(st.integers(1, 3)), *event) if several else event
    low, high = (
        draw(numbers((*draw(sub(batch)), *shape), LOCATIONS, dtype=dtype)) for _ in range(2)
    )
    scale = draw(numbers((*draw(sub(batch)), *shape), SPREADS, positive=True, dtype=dtype))
    options = {} if event else {"event_dim": 0}
    if not several:
        return base("SmoothBox", low, high, scale, **options)
    logits = draw(numbers((*draw(sub(batch)), shape[0]), LOGITS, dtype=dtype))
    return base("SmoothBoxMixture", logits, low, high, scale, **options)


@st.composite
def boxes(draw: Any, d: int, batch: Shape, dtype: str) -> Call:
    shape = (*draw(sub(batch)), d)
    low = draw(numbers(shape, LOCATIONS, dtype=dtype)).build()
    high = low + draw(numbers(shape, (1.0, 1e-3, 10.0), positive=True, dtype=dtype)).build()
    return base("UniformBox", Values.of(low), Values.of(high))


@st.composite
def intervals(draw: Any, batch: Shape, dtype: str) -> Call:
    k = draw(st.sampled_from([0, 1, 2]))
    lengths = draw(numbers((*draw(sub(batch)), 2 * max(k, 1)), positive=True, dtype=dtype)).build()
    ends = lengths.cumsum(-1)
    low, high = ends[..., ::2], ends[..., 1::2]
    if k == 0 and low.dim() == 1:
        low, high = low[0], high[0]
    return base("Interval", Values.of(low), Values.of(high))


@st.composite
def discretes(draw: Any, d: int | None, batch: Shape, dtype: str) -> Call:
    k = draw(st.integers(1, 3))
    points = draw(numbers((k,) if d is None else (k, d), LOCATIONS, dtype=dtype)).build()
    if k > 1 and draw(st.booleans()):
        points[1] = points[0]  # equal points add their masses
    masses = draw(numbers((*draw(sub(batch)), k), (1.0, 1e-6), positive=True, dtype=dtype))
    return base("Discrete", Values.of(points), masses)


@st.composite
def point_masses(draw: Any, d: int | None, dtype: str) -> Call:
    return base("PointMass", draw(numbers(() if d is None else (d,), LOCATIONS, dtype=dtype)))


@st.composite
def poissons(draw: Any, batch: Shape, dtype: str) -> Call:
    return base(
        "Poisson", draw(numbers(draw(sub(batch)), (2.0, 0.01, 50.0), positive=True, dtype=dtype))
    )


@st.composite
def geometrics(draw: Any, batch: Shape, dtype: str) -> Call:
    probs = draw(numbers(draw(sub(batch)), dtype=dtype)).build().sigmoid()
    return base("Geometric", Values.of(probs))


@st.composite
def student_ts(draw: Any, d: int | None, batch: Shape, dtype: str) -> Call:
    described = draw(gaussians(d, batch, dtype))
    df = draw(numbers(draw(sub(batch)), (3.0, 0.5, 30.0), positive=True, dtype=dtype))
    return Call("bases.StudentT", (df, *described.arguments), described.options)


@st.composite
def location_scales(draw: Any, batch: Shape, dtype: str) -> Call:
    name = draw(st.sampled_from(["Laplace", "Logistic"]))
    loc = draw(numbers(draw(sub(batch)), LOCATIONS, dtype=dtype))
    return base(name, loc, draw(numbers(draw(sub(batch)), SPREADS, positive=True, dtype=dtype)))


@st.composite
def trials(draw: Any, batch: Shape, dtype: str) -> Call:
    name = draw(st.sampled_from(["NegativeBinomial", "Binomial", "Bernoulli"]))
    probs = Values.of(draw(numbers(draw(sub(batch)), dtype=dtype)).build().sigmoid())
    if name == "Bernoulli":
        return base(name, probs)
    count = draw(numbers(draw(sub(batch)), (2.0, 0.3, 20.0), positive=True, dtype=dtype))
    return base(name, Values.of(count.build().ceil()) if name == "Binomial" else count, probs)


@st.composite
def mixtures(draw: Any, d: int | None, batch: Shape, dtype: str, depth: int = 2) -> Call:
    """Mixtures of what has the statistic t(x) = x: continuous, discrete or both, nested too."""
    kinds = [
        gaussians(d, batch, dtype),
        point_masses(d, dtype),
        discretes(d, batch, dtype),
    ]
    if d is None:
        kinds += [poissons(batch, dtype), geometrics(batch, dtype), intervals(batch, dtype)]
        kinds += [location_scales(batch, dtype), trials(batch, dtype)]
        kinds += [smooth_boxes(None, batch, dtype)]
    else:
        kinds += [gaussian_mixtures(d, batch, dtype), boxes(d, batch, dtype)]
        kinds += [smooth_boxes(d, batch, dtype)]
    if depth > 1:
        kinds.append(mixtures(d, batch, dtype, depth - 1))
    parts = tuple(draw(st.lists(st.one_of(kinds), min_size=1, max_size=3)))
    logits = draw(numbers((*draw(sub(batch)), len(parts)), LOGITS, dtype=dtype))
    return base("Mixture", logits, parts)


@st.composite
def standardized(draw: Any, d: int | None, batch: Shape, dtype: str) -> Call:
    kinds = [gaussians(d, (), dtype), student_ts(d, (), dtype)]
    if d is not None:
        kinds += [gaussian_mixtures(d, (), dtype), st.just(base("NormalFamily", d))]
        kinds += [st.just(base("ProjectedGaussian", d))] if d > 1 else []
    event = () if d is None else (d,)
    loc = draw(numbers(draw(sub(batch)) + event, LOCATIONS, dtype=dtype))
    scale = draw(numbers(draw(sub(batch)) + event, SPREADS, positive=True, dtype=dtype))
    return base("Standardized", draw(st.one_of(kinds)), loc, scale)


def scalar_bases(batch: Shape, dtype: str) -> st.SearchStrategy[Call]:
    return st.one_of(
        gaussians(None, batch, dtype),
        intervals(batch, dtype),
        smooth_boxes(None, batch, dtype),
        poissons(batch, dtype),
        geometrics(batch, dtype),
        student_ts(None, batch, dtype),
        location_scales(batch, dtype),
        trials(batch, dtype),
        st.just(base("UniformAngle")),
        discretes(None, batch, dtype),
        mixtures(None, batch, dtype),
        standardized(None, batch, dtype),
        st.just(base("GammaFamily")),
        st.just(base("PoissonFamily")),
    )


def vector_bases(d: int, batch: Shape, dtype: str) -> st.SearchStrategy[Call]:
    kinds = [
        gaussians(d, batch, dtype),
        gaussian_mixtures(d, batch, dtype),
        student_ts(d, batch, dtype),
        boxes(d, batch, dtype),
        smooth_boxes(d, batch, dtype),
        discretes(d, batch, dtype),
        mixtures(d, batch, dtype),
        standardized(d, batch, dtype),
        st.just(base("UniformCube", d)),
        st.just(base("NormalFamily", d)),
    ]
    if d > 1:
        kinds += [
            st.just(base(name, d))
            for name in ("UniformSphere", "ProjectedGaussian", "DirichletFamily")
        ]
    return st.one_of(kinds)


@st.composite
def products(draw: Any, batch: Shape, dtype: str, depth: int = 2) -> Call:
    kinds = [scalar_bases(batch, dtype), vector_bases(1, batch, dtype)]
    kinds += [products(batch, dtype, depth - 1)] if depth > 1 else [vector_bases(2, batch, dtype)]
    return base("Product", tuple(draw(st.lists(st.one_of(kinds), min_size=1, max_size=2))))


@st.composite
def every_base(draw: Any, batch: Shape, dtype: str, coordinates: str = "any") -> Call:
    """A base with "one" coordinate, "several", or "any" number."""
    one = [scalar_bases(batch, dtype), vector_bases(1, batch, dtype)]
    several = [vector_bases(2, batch, dtype), products(batch, dtype)]
    more = [vector_bases(3, batch, dtype)]
    kinds = {"one": one, "several": several + more, "any": one + several}[coordinates]
    return draw(draw(st.sampled_from(kinds)))


# Families ----------------------------------------------------------------------------------------

ACTIVATIONS = [
    activation("Cos"),
    activation("Sin"),
    activation("Cis"),
    activation("Snake", 1.5),
    activation("Snake", 0.3, False),
    activation("Identity"),
    activation("Exp", 1.0),
    activation("Exp", 0.5),
    activation("Erf"),
    activation("Step"),
    activation("ReLU", 1),
    activation("ReLU", 2),
    activation("ReLU", 8),
    activation("LeakyReLU", 0.2),
    activation("LeakyReLU", -0.5),
    activation("GELU"),
    activation("Bump"),
]


@st.composite
def laws(
    draw: Any, coordinates: str = "any", batch: Shape | None = None, dtype: str = "float64"
) -> Call:
    """A family whose arguments all are valid, though its neurons may cancel each other."""
    shape = draw(batches) if batch is None else batch
    described = draw(every_base(shape, dtype, coordinates))
    built: Base = described.build()
    possible = [x for x in ACTIVATIONS if closed_form(x.build(), built, bias=False)]
    tails = [part.finite_moments() for part in built.parts()]
    if any(bool((df <= 2.5).any()) for df in tails if df is not None):
        possible = [x for x in possible if x.function.split(".")[1] in ("Cos", "Sin", "Cis")]
    if not possible:  # tails too heavy for the activations of another factor
        reject()
    act = draw(st.sampled_from(possible))
    sigma = act.build()
    n, m = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    constraint = built.weight_constraint(sigma)
    real = is_real(constraint)
    scales = WEIGHTS if real else NATURAL
    own = draw(sub(shape)) if real else shape  # bounds may differ from member to member
    size = (*own, n, built.num_statistics)
    weight = torch.as_tensor(draw(rows(size, scales, dtype=dtype)))
    if not real:
        try:
            weight = transform_to(constraint)(weight)
        except NotImplementedError:  # the intersection of two half-lines
            reject()
    options: dict[str, Any] = {"weight": _values(_round(weight.numpy()), dtype)}
    if closed_form(sigma, built, bias=True) and draw(st.integers(0, 3)):
        options["bias"] = draw(numbers((*draw(sub(shape)), n), BIASES, dtype=dtype))
    options |= draw(readouts(draw(sub(shape)), m, n, sigma.is_complex, dtype))
    return Call("SNEFY", (), (*options.items(), ("activation", act), ("base", described)))


@st.composite
def readouts(
    draw: Any, batch: Shape, m: int, n: int, is_complex: bool, dtype: str
) -> dict[str, Values]:
    matrix = draw(numbers((*batch, m, n), READOUTS, dtype=dtype)).build()
    if is_complex and draw(st.booleans()):
        matrix = torch.complex(matrix, matrix.roll(1, -1))
    if draw(st.integers(0, 3)):
        return {"readout": Values.of(matrix)}
    return {"gram": Values.of(matrix.mH @ matrix)}


# What is built -----------------------------------------------------------------------------------


def member(law: SNEFY, index: Shape) -> SNEFY:
    """One member of a batch, from its own tensors."""
    ranks = {"weight": 2, "bias": 1, "readout": 2, "gram": 2}
    tensors = {
        name: None if x is None else _pick(x, rank, law, index)
        for name, rank in ranks.items()
        for x in [getattr(law, name)]
    }
    own = law.base.map_batches(lambda x, rank: _pick(x, rank, law, index))
    return SNEFY(activation=law.activation, base=own, validate_args=False, **tensors)


def _pick(x: Tensor, rank: int, law: SNEFY, index: Shape) -> Tensor:
    event = x.shape[x.dim() - rank :]
    return x.expand(law.batch_shape + event)[index] if x.dim() > rank else x


def cast(law: SNEFY, dtype: torch.dtype) -> SNEFY:
    """The same family in another dtype."""

    def to(x: Tensor | None) -> Any:
        return None if x is None else x.to(dtype.to_complex() if x.is_complex() else dtype)

    tensors = {name: to(getattr(law, name)) for name in ("weight", "bias", "readout", "gram")}
    # What is positive semi-definite up to the rounding of float32 is not in float64.
    return SNEFY(activation=law.activation, base=law.base.map(to), validate_args=False, **tensors)
