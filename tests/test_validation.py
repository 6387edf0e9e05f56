"""Bad input: each raises an error that says which, what was expected and what came."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import transform_to

from pyro_snefy import SNEFY, activations, bases
from pyro_snefy.activations import (
    GELU,
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
from pyro_snefy.bases import Base
from tests.cases import (
    BASES,
    CASES,
    KINDS,
    LOC,
    LOCS,
    LOGITS,
    MASSES,
    POINTS,
    SCALE,
    SCALES,
    TRIL,
    Case,
    events,
)

WEIGHT, BIAS, READOUT = torch.ones(4, 2), torch.ones(4), torch.ones(3, 4)


def _t(*values: float) -> Tensor:
    return torch.tensor(values)


def _scalar(value: float) -> Tensor:
    return torch.tensor(value)


# -------------------------------------------------------------------------------------- shapes

SHAPES = {
    "weight of one dimension": (
        {"weight": torch.ones(2)},
        ["weight", r"\(\*, n, D\)", r"\(2,\)"],
    ),
    "weight of another number of statistics": (
        {"weight": torch.ones(4, 3)},
        ["weight", "D=2", r"\(4, 3\)"],
    ),
    "bias too long": ({"bias": torch.ones(5)}, ["bias", "n=4", r"\(5,\)"]),
    "bias without dimensions": ({"bias": torch.tensor(0.0)}, ["bias", r"\(\*, n\)", r"\(\)"]),
    "readout of another number of neurons": (
        {"readout": torch.ones(3, 5)},
        ["readout", "n=4", r"\(3, 5\)"],
    ),
    "readout of one dimension": (
        {"readout": torch.ones(4)},
        ["readout", r"\(\*, m, n\)", r"\(4,\)"],
    ),
    "gram not square": (
        {"readout": None, "gram": torch.ones(3, 4)},
        ["gram", r"\(\*, n, n\)", r"\(3, 4\)"],
    ),
    "gram of another number of neurons": (
        {"readout": None, "gram": torch.eye(3)},
        ["gram", "n=4", r"\(3, 3\)"],
    ),
    "batches of bias and readout": (
        {"bias": torch.ones(3, 4), "readout": torch.ones(5, 3, 4)},
        ["batch shapes", r"bias: \(3,\)", r"readout: \(5,\)"],
    ),
    "batches of weight and base": (
        {"weight": torch.ones(3, 4, 2), "base": bases.Gaussian(torch.zeros(5, 2), torch.ones(2))},
        ["batch shapes", r"weight: \(3,\)", r"base: \(5,\)"],
    ),
    "both": ({"gram": torch.eye(4)}, ["readout", "gram", "exactly one", "both"]),
    "neither": ({"readout": None}, ["readout", "gram", "exactly one", "neither"]),
}


def _assert_raises(kind: type[Exception], words: list[str], function: Callable[[], Any]) -> None:
    with pytest.raises(kind) as error:
        function()
    for word in words:
        error.match(word)


@pytest.mark.parametrize("validate_args", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str, validate_args: bool) -> None:
    """They are checked even without validation: no sense can be made of them."""
    bad, words = SHAPES[name]
    base = bases.Gaussian(torch.zeros(2), torch.ones(2))
    given = {"weight": WEIGHT, "bias": BIAS, "readout": READOUT, "base": base, **bad}
    _assert_raises(ValueError, words, lambda: SNEFY(**given, validate_args=validate_args))


def test_no_neurons() -> None:
    """Of no neurons there is nothing to normalise."""
    with pytest.raises(ValueError, match="readout"):
        SNEFY(torch.ones(0, 2), None, torch.ones(1, 0))
    with pytest.raises(ValueError, match="readout"):
        SNEFY(torch.ones(4, 2), None, torch.ones(0, 4))


# --------------------------------------------------------------------------------------- types


@pytest.mark.parametrize("bad", ["cos", torch.cos, Cos, None], ids=type)
def test_activation_of_another_type(bad: Any) -> None:
    _assert_raises(
        TypeError,
        ["activation", "Activation"],
        lambda: SNEFY(WEIGHT, BIAS, READOUT, activation=bad),
    )


@pytest.mark.parametrize("bad", [2, torch.zeros(2), bases.UniformSphere], ids=str)
def test_base_of_another_type(bad: Any) -> None:
    _assert_raises(TypeError, ["base", "Base"], lambda: SNEFY(WEIGHT, BIAS, READOUT, base=bad))


@pytest.mark.parametrize("bad", [[[1.0, 2.0]], 3.0, "zeros"], ids=str)
@pytest.mark.parametrize("name", ["weight", "bias", "readout", "gram"])
def test_arguments_of_another_type(name: str, bad: Any) -> None:
    given: dict[str, Any] = {"weight": WEIGHT, "bias": BIAS, "readout": READOUT}
    if name == "gram":
        del given["readout"]
    words = [name, "Tensor", re.escape(repr(bad))]
    _assert_raises(TypeError, words, lambda: SNEFY(**{**given, name: bad}))


def test_no_weight() -> None:
    given: dict[str, Any] = {"weight": None, "readout": READOUT}
    _assert_raises(TypeError, ["weight", "Tensor", "None"], lambda: SNEFY(**given))


@pytest.mark.parametrize("name", ["weight", "bias", "readout"])
def test_mixed_dtypes(name: str) -> None:
    given = {"weight": WEIGHT, "bias": BIAS, "readout": READOUT}
    given[name] = given[name].double()
    words = ["readout" if name == "readout" else "bias", "float32", "float64", "like weight"]
    _assert_raises(ValueError, words, lambda: SNEFY(**given))


def test_integer_weight() -> None:
    words = ["weight", "floating point", "int64"]
    _assert_raises(ValueError, words, lambda: SNEFY(WEIGHT.long(), BIAS, READOUT))


@pytest.mark.parametrize("name", ["weight", "bias", "readout", "gram"])
def test_mixed_devices(name: str) -> None:
    given = {"weight": WEIGHT, "bias": BIAS, "readout": READOUT}
    if name == "gram":
        given["gram"] = torch.eye(4)
        del given["readout"]
    given[name] = given[name].to("meta")
    words = ["like weight", "cpu", "meta"] + ([name] if name != "weight" else [])
    _assert_raises(ValueError, words, lambda: SNEFY(**given, base=BASE))


BASE = bases.Gaussian(torch.zeros(2), torch.ones(2))


def test_base_of_another_dtype_or_device() -> None:
    double = BASE.map(lambda x: x.double())
    _assert_raises(
        ValueError, [r"base\.loc", "float64"], lambda: SNEFY(WEIGHT, BIAS, READOUT, base=double)
    )
    meta = BASE.map(lambda x: x.to("meta"))
    _assert_raises(
        ValueError, [r"base\.loc", "meta"], lambda: SNEFY(WEIGHT, BIAS, READOUT, base=meta)
    )
    nested = bases.Product([bases.UniformSphere(2), bases.Poisson(_scalar(2.0).double())])
    _assert_raises(
        ValueError,
        [r"base\.bases\[1\]\.rate", "float64"],
        lambda: SNEFY(torch.ones(4, 3), BIAS, READOUT, base=nested),
    )


@pytest.mark.parametrize("name", ["readout", "gram"])
def test_complex_needs_cis(name: str) -> None:
    matrix = torch.eye(4, dtype=torch.complex64)
    words = [name, "real", "complex64", "Cis"]
    _assert_raises(ValueError, words, lambda: SNEFY(WEIGHT, BIAS, **{name: matrix}))
    assert SNEFY(WEIGHT, BIAS, **{name: matrix}, activation=Cis()).log_normalizer.isfinite()
    words = ["weight", "real", "complex64"]
    _assert_raises(
        ValueError, words, lambda: SNEFY(WEIGHT * 1j, BIAS, READOUT * 1j, activation=Cis())
    )


# -------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["weight", "bias", "readout", "gram"])
def test_parameters_that_are_not_finite(name: str, bad: float) -> None:
    given = {"weight": WEIGHT.clone(), "bias": BIAS.clone(), "readout": READOUT.clone()}
    if name == "gram":
        given["gram"] = torch.eye(4)
        del given["readout"]
    given[name][..., 1] = bad
    _assert_raises(ValueError, [f"finite {name}", str(abs(bad))], lambda: SNEFY(**given))
    SNEFY(**given, validate_args=False)  # no questions asked


BUILDERS: dict[str, tuple[Callable[..., Base], dict[str, Tensor]]] = {
    "Gaussian": (bases.Gaussian, {"loc": LOC, "scale": SCALE}),
    "GaussianFull": (
        lambda loc, scale_tril, **kwargs: bases.Gaussian(loc, scale_tril=scale_tril, **kwargs),
        {"loc": LOC, "scale_tril": TRIL},
    ),
    "GaussianMixture": (bases.GaussianMixture, {"logits": LOGITS, "loc": LOCS, "scale": SCALES}),
    "UniformBox": (bases.UniformBox, {"low": -SCALE, "high": SCALE}),
    "SmoothBox": (bases.SmoothBox, {"low": -SCALE, "high": SCALE, "scale": SCALE}),
    "SmoothBoxMixture": (
        bases.SmoothBoxMixture,
        {"logits": LOGITS, "low": LOCS, "high": LOCS + 1, "scale": SCALES},
    ),
    "Interval": (bases.Interval, {"low": -SCALE[:1], "high": SCALE[:1]}),
    "Poisson": (bases.Poisson, {"rate": SCALE[:1]}),
    "Geometric": (bases.Geometric, {"probs": SCALE[:1]}),
    "Discrete": (bases.Discrete, {"points": POINTS, "masses": MASSES}),
    "Mixture": (
        lambda logits, **kwargs: bases.Mixture(
            logits, [bases.Poisson(_scalar(2.0)), bases.PointMass(_scalar(0.0))], **kwargs
        ),
        {"logits": LOGITS[:2]},
    ),
}
BASE_TENSORS = [(name, key) for name, (_, given) in BUILDERS.items() for key in given]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("name", "key"), BASE_TENSORS)
def test_base_parameters_that_are_not_finite(name: str, key: str, bad: float) -> None:
    build, given = BUILDERS[name]
    build(**given)
    tensor = given[key].clone()
    tensor[..., 0] = bad
    given = {**given, key: tensor}
    _assert_raises(ValueError, [key, "expected", "got", str(abs(bad))], lambda: build(**given))
    build(**given, validate_args=False)


def test_point_mass_that_is_not_finite() -> None:
    _assert_raises(ValueError, ["points", "nan"], lambda: bases.PointMass(_scalar(torch.nan)))


def test_gram() -> None:
    skew = torch.eye(4)
    skew[0, 1] = 0.5
    words = ["symmetric gram", r"0\.5"]
    _assert_raises(ValueError, words, lambda: SNEFY(WEIGHT, BIAS, gram=skew))
    indefinite = torch.diag(_t(1.0, 1.0, 1.0, -0.5))
    words = ["positive semi-definite gram", r"-0\.5"]
    _assert_raises(ValueError, words, lambda: SNEFY(WEIGHT, BIAS, gram=indefinite))
    batch = torch.stack([torch.eye(4), indefinite])
    _assert_raises(ValueError, words, lambda: SNEFY(WEIGHT, BIAS, gram=batch))
    for gram in (skew, indefinite):
        SNEFY(WEIGHT, BIAS, gram=gram, validate_args=False)
    hermitian = torch.eye(4, dtype=torch.complex64)
    hermitian[0, 1], hermitian[1, 0] = 0.5j, 0.5j
    words = ["Hermitian gram"]
    _assert_raises(ValueError, words, lambda: SNEFY(WEIGHT, BIAS, gram=hermitian, activation=Cis()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gram_up_to_rounding(dtype: torch.dtype) -> None:
    """What a matrix product makes of a readout is a gram, of any rank."""
    for rank in (1, 3, 40):
        readout = torch.randn(rank, 40, dtype=dtype)
        d = SNEFY(torch.randn(40, 2, dtype=dtype), gram=readout.mT @ readout)
        assert d.log_normalizer.isfinite()


# ------------------------------------------------------------------- the natural parameter space


def _natural(name: str, activation: Exp) -> tuple[Base, list[list[float]], list[list[float]]]:
    """A base, weights outside of its natural parameter space, and some just inside."""
    half = 0.5 / activation.scale
    bound = -float(torch.log1p(_scalar(-0.4))) / (2 * activation.scale)
    gamma, counts = bases.GammaFamily(), bases.Geometric(_scalar(0.4))
    return {
        "NormalFamily": (
            bases.NormalFamily(2),
            [[1.0, 1.0, -1.0, 0.5], [1.0, 1.0, 0.0, -1.0]],
            [[5.0, -5.0, -0.01, -9.0]],
        ),
        "GammaFamily": (
            gamma,
            [[-half, 1.0], [-half - 1, 1.0], [1.0, 0.0]],
            [[-half + 0.01, 0.01]],
        ),
        "DirichletFamily": (
            bases.DirichletFamily(3),
            [[1.0, 1.0, -half], [-9.0, 1.0, 1.0]],
            [[-half + 0.01, 0.0, 5.0]],
        ),
        "Geometric": (counts, [[bound + 1e-3], [9.0]], [[bound - 1e-3], [-9.0]]),
        "Mixture": (
            # the first of them takes any weight
            bases.Mixture(torch.zeros(2), [bases.Poisson(_scalar(1.0)), counts]),
            [[bound + 1e-3]],
            [[bound - 1e-3]],
        ),
        "MixtureOfTwo": (
            bases.Mixture(torch.zeros(2), [bases.Geometric(_scalar(0.9)), counts]),
            [[bound + 1e-3]],
            [[bound - 1e-3]],
        ),
        "Product": (
            bases.Product([bases.UniformSphere(2), gamma, counts]),
            [[0.0, 9.0, -half, 1.0, -1.0], [9.0, 0.0, 1.0, 1.0, 9.0]],
            [[9.0, -9.0, -half + 0.01, 0.01, bound - 1e-3]],
        ),
    }[name]


NATURAL = ["NormalFamily", "GammaFamily", "DirichletFamily", "Geometric"]
NATURAL += ["Mixture", "MixtureOfTwo", "Product"]


@pytest.mark.parametrize("activation", [Exp(), Exp(0.5), Exp(2.0)], ids=str)
@pytest.mark.parametrize("name", NATURAL)
def test_natural_parameters(name: str, activation: Exp) -> None:
    base, outside, inside = _natural(name, activation)
    given = {"activation": activation, "base": base}
    for row in outside:
        weight = torch.stack([_t(*inside[0]), _t(*row)])
        words = ["weight", "natural parameter space", type(base).__name__]
        _assert_raises(
            ValueError, words, lambda weight=weight: SNEFY(weight, None, torch.ones(1, 2), **given)
        )
        assert not base.weight_constraint(activation).check(weight)
    for row in inside:
        d = SNEFY(_t(*row).unsqueeze(0), None, torch.ones(1, 1), **given)
        assert d.arg_constraints["weight"].check(d.weight)
        assert d.log_normalizer.isfinite()


def test_natural_parameters_of_a_batch() -> None:
    """Each base of a batch has bounds of its own."""
    base = bases.Geometric(_t(0.1, 0.6))
    weight = torch.tensor([[[0.04]], [[0.4]]])
    given = {"activation": Exp(), "base": base}
    SNEFY(weight, None, torch.ones(1, 1), **given)
    with pytest.raises(ValueError, match="natural parameter space"):
        SNEFY(weight.flip(0), None, torch.ones(1, 1), **given)


@pytest.mark.parametrize("activation", [Cos(), Identity(), Snake()], ids=str)
def test_every_weight_is_good_for_a_wave(activation: Any) -> None:
    base = bases.Geometric(_scalar(0.4))
    d = SNEFY(
        torch.full((1, 1), 99.0), torch.ones(1), torch.ones(1, 1), activation=activation, base=base
    )
    assert d.log_normalizer.isfinite()


@pytest.mark.parametrize("activation", [Exp(), Exp(0.5)], ids=str)
@pytest.mark.parametrize("name", ["NormalFamily", "GammaFamily", "DirichletFamily", "Geometric"])
def test_transform_to_the_natural_parameter_space(name: str, activation: Exp) -> None:
    base, _, _ = _natural(name, activation)
    transform = transform_to(base.weight_constraint(activation))
    free = torch.randn(5, 3, base.num_statistics, requires_grad=True)
    weight = transform(free)
    assert weight.shape == free.shape
    d = SNEFY(weight, None, torch.ones(1, 3), activation=activation, base=base)
    (gradient,) = torch.autograd.grad(d.log_normalizer.sum(), free)
    assert gradient.isfinite().all()
    assert (gradient != 0).all()


def test_transform_to_the_natural_parameter_space_of_a_product() -> None:
    base, _, _ = _natural("Product", Exp())
    weight = transform_to(base.weight_constraint(Exp()))(torch.randn(3, 5))
    assert weight.shape == (3, 5)
    d = SNEFY(weight, None, torch.ones(1, 3), activation=Exp(), base=base)
    assert d.log_normalizer.isfinite()


# --------------------------------------------------------------------------------- Z that is 0

TWICE = torch.tensor([[1.0, -0.5], [1.0, -0.5]])
CANCEL = torch.tensor([[1.0, -1.0]])
ZERO: dict[str, dict[str, Any]] = {
    "readout": {"weight": TWICE, "readout": torch.zeros(3, 2)},
    "gram": {"weight": TWICE, "gram": torch.zeros(2, 2)},
    "one of a batch": {"weight": TWICE, "readout": torch.tensor([[[1.0, 1.0]], [[0.0, 0.0]]])},
    "sines of zero": {"weight": 0 * TWICE, "readout": CANCEL, "activation": Sin()},
    "identity of zero": {"weight": 0 * TWICE, "readout": CANCEL, "activation": Identity()},
    "rectified zero": {"weight": 0 * TWICE, "readout": CANCEL, "activation": ReLU()},
    "dead steps": {
        "weight": 0 * TWICE,
        "bias": _t(-1.0, 0.0),
        "readout": CANCEL,
        "activation": Step(),
    },
    "silent on every point": {
        "weight": -torch.ones(2, 1),
        "readout": CANCEL,
        "activation": ReLU(),
        "base": bases.Discrete(_t(1.0, 2.0), torch.ones(2)),
    },
    "silent on the interval": {
        "weight": -torch.ones(1, 1),
        "readout": torch.ones(1, 1),
        "activation": ReLU(),
        "base": bases.Interval(_scalar(0.0), _scalar(1.0)),
    },
}
EVERY: tuple[Any, ...] = (Cos(), Sin(), Snake(), Snake(3.0), Identity(), Exp(), Exp(0.5), Cis())
EVERY += (Erf(), Step(), ReLU(), ReLU(3), LeakyReLU(), GELU())
# Neurons that cancel leave rounding errors, of both signs for one activation or another.
for _activation in EVERY:
    for _bias in (-0.7, 0.1, 2.3):
        ZERO[f"{_activation} with bias {_bias} twice"] = {
            "weight": TWICE,
            "bias": _t(_bias, _bias),
            "readout": CANCEL,
            "activation": _activation,
        }
        ZERO[f"{_activation} with bias {_bias} twice, as a gram"] = {
            "weight": TWICE,
            "bias": _t(_bias, _bias),
            "gram": CANCEL.mT @ CANCEL,
            "activation": _activation,
        }


@pytest.mark.parametrize("name", ZERO)
def test_normalizer_that_is_zero(name: str) -> None:
    given = {"bias": None, "base": None, **ZERO[name]}
    argument = "gram" if "gram" in given else "readout"
    for use in (lambda d: d.log_normalizer, lambda d: d.log_prob(torch.ones(d.event_shape))):
        _assert_raises(ValueError, [argument], lambda use=use: use(SNEFY(**given)))
    for key in ("weight", "bias"):
        given[key] = None if given[key] is None else given[key].clone().requires_grad_()
    d = SNEFY(**given, validate_args=False)
    assert not d.log_normalizer.isnan().any()
    x = torch.ones(7, *(1,) * len(d.batch_shape), *d.event_shape).requires_grad_()
    log_prob = d.log_prob(x)
    # Of a readout the numerator is zero, too, and of a gram it is as small as the noise.
    if argument == "readout" and not d.batch_shape:
        assert (log_prob == -torch.inf).all()
    assert not log_prob.isnan().any()
    total = torch.where(log_prob.isfinite(), log_prob, 0.0).sum()
    if total.requires_grad:
        for gradient in torch.autograd.grad(total, (d.weight, x), materialize_grads=True):
            assert not gradient.isnan().any()


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_normalizer_of_cancelling_neurons(case: Case) -> None:
    weight, bias, _ = case.parameters(n=1)
    readout = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    both = None if bias is None else torch.cat([bias, bias])
    given = {"activation": case.activation, "base": case.base()}
    with pytest.raises(ValueError, match="readout"):
        SNEFY(torch.cat([weight, weight]), both, readout, **given).log_normalizer  # noqa: B018


@pytest.mark.parametrize("activation", EVERY, ids=str)
def test_one_bias_of_many_that_cancels(activation: Any) -> None:
    bias = torch.tensor([[0.3, 0.9], [0.4, 0.4], [-0.2, 0.3]], dtype=torch.float64)
    given = {"weight": TWICE.double(), "readout": CANCEL.double(), "activation": activation}
    with pytest.raises(ValueError, match="readout"):
        SNEFY(bias=bias, **given).log_normalizer  # noqa: B018
    assert SNEFY(bias=bias[[0, 2]], **given).log_normalizer.isfinite().all()


@pytest.mark.parametrize("activation", EVERY, ids=str)
def test_small_normalizers_are_no_zeros(activation: Any) -> None:
    """Neither small readouts nor neurons that nearly cancel are taken for zero."""
    weight = TWICE.double()
    for scale in (1.0, 1e-100):
        d = SNEFY(weight, None, scale * torch.ones(1, 2).double(), activation=activation)
        assert d.log_normalizer.isfinite()
    weight = torch.stack([weight[0], weight[0] * (1 + 1e-6)])
    bias = torch.tensor([0.3, 0.3 - 1e-6], dtype=torch.float64)
    assert SNEFY(weight, bias, CANCEL.double(), activation=activation).log_normalizer.isfinite()


# ------------------------------------------------------------------------------- no closed form


EXTENSION_POINTS = {"FourierActivation", "GaussianActivation", "FourierBase", "LaplaceBase"}


def _pairs() -> list[tuple[str, str]]:
    known = {(case.activation_name, case.base_name) for case in CASES}
    every = {case.activation_name for case in CASES}
    return sorted((a, b) for a in every for b in BASES if (a, b) not in known)


@pytest.mark.parametrize(("activation", "name"), _pairs())
def test_no_closed_form(activation: str, name: str) -> None:
    case = Case(activation, name)
    base = case.base()
    weight = torch.ones(2, base.num_statistics, dtype=torch.float64)
    readout = torch.ones(1, 2, dtype=torch.float64)
    kind = type(case.activation).__name__
    with pytest.raises(NotImplementedError) as error:
        SNEFY(weight, None, readout, activation=case.activation, base=base)
    error.match(rf"No closed form for {kind} on {type(base).__name__}")
    # What would work: another activation on this base, another base for this activation.
    activations_listed, bases_listed = str(error.value).split(". ")[1:3]
    # Student's law has no Laplace transform.
    assert ("Cos" if name == "StudentT" else "Exp") in activations_listed
    assert "Gaussian" in bases_listed or "FourierBase" in bases_listed
    assert "register_kernel" in str(error.value)
    # Names are those of public classes that can be built, each once, and they do work.
    found, others = (
        re.findall(r"\w+", x.partition(": ")[2]) for x in (activations_listed, bases_listed)
    )
    for names, module in ((found, activations), (others, bases)):
        assert len(set(names)) == len(names)
        assert not set(names) & EXTENSION_POINTS
        assert not [x for x in names if hasattr(module, x) and x not in module.__all__]
    for other in set(found) & set(activations.__all__):
        activation = getattr(activations, other)()
        SNEFY(weight, None, readout, activation=activation, base=base, validate_args=False)


@pytest.mark.parametrize("activation", [ReLU(), ReLU(2), LeakyReLU(), Step()], ids=str)
@pytest.mark.parametrize("base", [bases.UniformSphere(2), bases.ProjectedGaussian(2)], ids=str)
def test_no_bias_on_the_sphere(activation: Any, base: Base) -> None:
    SNEFY(WEIGHT, None, READOUT, activation=activation, base=base)
    words = [type(activation).__name__, type(base).__name__, "bias=None"]
    _assert_raises(
        NotImplementedError,
        words,
        lambda: SNEFY(WEIGHT, BIAS, READOUT, activation=activation, base=base),
    )


# ------------------------------------------------------------------------------------- supports

INSIDE_OUTSIDE: dict[str, tuple[list[Any], list[Any]]] = {
    "Gaussian": ([[0.0, -9.0]], [[0.0, torch.nan]]),
    "GaussianScalar": ([0.0, -9.0], [torch.nan]),
    "GaussianFull": ([[0.0, -9.0]], [[torch.nan, 0.0]]),
    "GaussianMixture": ([[0.0, -9.0]], [[torch.nan, 0.0]]),
    "UniformCube": (
        [[0.5, 0.1, 0.9], [0.0, 1.0, 0.5]],
        [[0.5, 0.5, 1.1], [-0.1, 0.5, 0.5], [torch.nan, 0.5, 0.5]],
    ),
    "UniformBox": (
        [[0.0, 1.0], [-1.0, 3.0]],
        [[0.6, 1.0], [0.0, 0.4], [0.0, torch.nan], [-torch.inf, 1.0]],
    ),
    "SmoothBox": ([[0.0, -9.0]], [[0.0, torch.nan]]),
    "SmoothBoxScalar": ([0.0, -9.0], [torch.nan]),
    "SmoothBoxMixture": ([[0.0, -9.0]], [[torch.nan, 0.0]]),
    "Interval": ([-1.0, 0.0, 1.5], [-1.1, 1.6, torch.nan, torch.inf]),
    "Intervals": ([-1.0, 0.0, 2.2], [-1.1, 1.5, 2.6, torch.nan]),
    "UniformCircle": ([[0.6, -0.8]], [[0.6, 0.81], [0.0, 0.0], [torch.nan, 1.0]]),
    "UniformSphere": ([[0.0, 0.6, -0.8]], [[0.1, 0.6, 0.8], [torch.nan, 1.0, 0.0]]),
    "UniformSphere7": ([[0.0] * 6 + [1.0]], [[0.0] * 7, [1.0] * 7]),
    "ProjectedGaussian": ([[0.0, 3.0, -4.0, 1.0]], [[0.0, 3.0, -4.0, torch.nan]]),
    "NormalFamily": ([[0.0, -9.0]], [[0.0, torch.nan]]),
    "GammaFamily": ([1e-9, 3.0], [0.0, -1.0, torch.nan]),
    "DirichletFamily": (
        [[0.2, 0.3, 0.5]],
        [[0.2, 0.3, 0.6], [-0.1, 0.6, 0.5], [torch.nan, 0.5, 0.5]],
    ),
    "PoissonFamily": ([0.0, 7.0], [-1.0, 0.5, torch.nan]),
    "Poisson": ([0.0, 7.0], [-1.0, 0.5, torch.nan]),
    "Geometric": ([0.0, 7.0], [-1.0, 0.5, torch.nan]),
    "StudentT": ([0.0, -9.0, 1e30], [torch.nan]),
    "Laplace": ([0.0, -9.0], [torch.nan]),
    "Logistic": ([0.0, -9.0], [torch.nan]),
    "NegativeBinomial": ([0.0, 7.0], [-1.0, 0.5, torch.nan]),
    "Binomial": ([0.0, 7.0], [-1.0, 8.0, 0.5, torch.nan]),
    "Bernoulli": ([0.0, 1.0], [-1.0, 2.0, 0.5, torch.nan]),
    "UniformAngle": ([0.0, 3.1, -torch.pi], [3.2, torch.pi, torch.nan]),
    "Discrete": ([[0.0, 1.0], [2.0, 2.0]], [[0.0, 2.0], [9.0, 9.0], [torch.nan, 1.0]]),
    "DiscreteScalar": ([0.0, -1.0], [0.5, torch.nan]),
    "MixtureAtom": ([0.5, -9.0], [torch.nan]),
    "MixtureCounts": ([0.0, 7.0], [-1.0, 0.5, torch.nan]),
    "Product": (
        [[0.0, -9.0, 3.0, 0.2]],
        [[0.0, 0.0, 0.5, 0.0], [0.0, 0.0, 1.0, 0.6], [torch.nan, 0.0, 1.0, 0.0]],
    ),
}


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_support(case: Case) -> None:
    weight, bias, readout = case.parameters(n=3)
    given = {"activation": case.activation, "base": case.base()}
    inside, outside = (
        torch.tensor(points, dtype=torch.float64) for points in INSIDE_OUTSIDE[case.base_name]
    )
    d = SNEFY(weight, bias, readout, **given)
    assert d.support.event_dim == len(d.event_shape)
    assert d.support.is_discrete == (d.base.is_discrete or case.base_name in MIXED)
    assert d.support.check(inside).all()
    assert not d.support.check(outside).any()
    assert not d.log_prob(inside).isnan().any()
    for x in outside:
        with pytest.raises(ValueError, match="support"):
            d.log_prob(x)
    weight.requires_grad_()
    d = SNEFY(weight, bias, readout, **given, validate_args=False)
    x = torch.cat([inside, outside]).requires_grad_()
    log_prob = d.log_prob(x)
    assert (log_prob[len(inside) :] == -torch.inf).all()
    # Products of more rows may be summed in another order.
    torch.testing.assert_close(log_prob[: len(inside)], d.log_prob(inside), rtol=1e-14, atol=1e-14)
    total = torch.where(log_prob.isfinite(), log_prob, 0.0).sum()
    if total.requires_grad:
        for gradient in torch.autograd.grad(total, (weight, x), materialize_grads=True):
            assert gradient.isfinite().all()


# Bases with atoms among continuous events, in some coordinates or at some points.
MIXED = ("MixtureAtom", "Product")


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.activation_name in ("Cos", "Exp", "ReLU")], ids=str
)
def test_infinity(case: Case) -> None:
    """No support has it; the reals of torch do, and it is not worth an error there."""
    weight, bias, readout = case.parameters(n=3)
    weight.requires_grad_()
    given = {"activation": case.activation, "base": case.base(), "validate_args": False}
    d = SNEFY(weight, bias, readout, **given)
    for sign in (-1, 1):
        x = events(case, 2).clone()
        x.view(2, -1)[1, -1] = sign * torch.inf
        x.requires_grad_()
        log_prob = d.log_prob(x)
        assert log_prob[1] == -torch.inf
        total = torch.where(log_prob.isfinite(), log_prob, 0.0).sum()
        for gradient in torch.autograd.grad(total, (weight, x), materialize_grads=True):
            assert gradient.isfinite().all()


@pytest.mark.parametrize("activation", [Cos(), Exp(), ReLU()], ids=str)
def test_infinity_that_is_observed(activation: Any) -> None:
    d = SNEFY(torch.randn(4, 2), BIAS, READOUT, activation=activation)
    x = torch.tensor([[torch.inf, torch.nan], [1.0, -torch.inf], [0.5, torch.nan]])
    log_prob = d.partially_observed().log_prob(x)
    assert (log_prob[:2] == -torch.inf).all()
    torch.testing.assert_close(log_prob[2], d.marginal([0]).log_prob(x[2, :1]))


def test_far_events() -> None:
    """Where the square of an event overflows the density is zero, and no gradient is NaN."""
    x = torch.tensor([[1e25, 0.0], [0.3, 0.2]], requires_grad=True)
    for base in (BASE, bases.GaussianMixture(torch.zeros(2), torch.zeros(2, 2), torch.ones(2, 2))):
        log_prob = SNEFY(WEIGHT, BIAS, READOUT, base=base).log_prob(x)
        assert log_prob[0] == -torch.inf
        (gradient,) = torch.autograd.grad(log_prob[1], x)
        assert gradient.isfinite().all()


def test_value_of_another_shape() -> None:
    d = SNEFY(WEIGHT, BIAS, READOUT)
    with pytest.raises(ValueError):
        d.log_prob(torch.zeros(3))
    with pytest.raises(ValueError):
        SNEFY(torch.ones(3, 4, 2), BIAS, READOUT).log_prob(torch.zeros(5, 2))


def test_single_precision_on_the_sphere() -> None:
    """A unit vector of single precision is on the sphere in double precision, too."""
    x = torch.nn.functional.normalize(torch.randn(100, 3), dim=-1)
    base = bases.UniformSphere(3)
    d = SNEFY(torch.ones(4, 3).double(), None, READOUT.double(), base=base)
    assert d.log_prob(x.double()).isfinite().all()


# ------------------------------------------------------------------------------ arg_constraints


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_arg_constraints(case: Case) -> None:
    d = case.distribution(n=3)
    given = {"weight", "readout"} | ({"bias"} if case.has_bias else set())
    assert set(d.arg_constraints) == given
    for name, constraint in d.arg_constraints.items():
        assert constraint.check(getattr(d, name)).shape == ()
        assert constraint.check(getattr(d, name))
        assert not constraint.check(torch.full_like(getattr(d, name), torch.nan))


def test_arg_constraints_of_a_gram() -> None:
    d = SNEFY(WEIGHT, gram=torch.eye(4))
    assert set(d.arg_constraints) == {"weight", "gram"}
    assert d.arg_constraints["gram"].check(torch.eye(4))
    assert not d.arg_constraints["gram"].check(-torch.eye(4))


# ------------------------------------------------------------------------ arguments of the parts

PARTS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "Snake of zero": (lambda: Snake(0.0), ["Snake", "a > 0", "0.0"]),
    "Snake of NaN": (lambda: Snake(float("nan")), ["Snake", "a > 0", "nan"]),
    "Exp of a negative scale": (lambda: Exp(-1.0), ["Exp", "scale > 0", "-1.0"]),
    "Exp of infinity": (lambda: Exp(float("inf")), ["Exp", "scale > 0", "inf"]),
    "ReLU to the zeroth": (lambda: ReLU(0), ["ReLU", "power >= 1", "0"]),
    "ReLU to a fraction": (lambda: ReLU(1.5), ["ReLU", "integer power", "1.5"]),  # type: ignore[arg-type]
    "LeakyReLU of NaN": (lambda: LeakyReLU(float("nan")), ["LeakyReLU", "negative_slope", "nan"]),
    "Gaussian of both": (
        lambda: bases.Gaussian(LOC, SCALE, scale_tril=TRIL),
        ["Gaussian", "exactly one", "scale_tril"],
    ),
    "Gaussian of neither": (lambda: bases.Gaussian(LOC), ["Gaussian", "exactly one", "scale_tril"]),
    "Gaussian with matrices as events": (
        lambda: bases.Gaussian(LOCS, SCALES, event_dim=2),
        ["Gaussian", "event_dim 0 or 1", "2"],
    ),
    "Gaussian without dimensions": (
        lambda: bases.Gaussian(LOC[0], SCALE[0]),
        ["Gaussian", r"\(\*, d\)", r"\(\)", "event_dim=0"],
    ),
    "Gaussian with a scale of another shape": (
        lambda: bases.Gaussian(torch.zeros(2), torch.ones(3)),
        ["Gaussian", "scale", r"\(2,\)", r"\(3,\)"],
    ),
    "Gaussian with a factor of another shape": (
        lambda: bases.Gaussian(torch.zeros(2), scale_tril=torch.ones(3, 2)),
        ["Gaussian", "scale_tril", r"\(\*, d, d\)", r"\(3, 2\)"],
    ),
    "Gaussian scalar with a factor": (
        lambda: bases.Gaussian(torch.zeros(2), scale_tril=TRIL.float(), event_dim=0),
        ["Gaussian", "scale_tril", "scalar"],
    ),
    "Gaussian with a negative scale": (
        lambda: bases.Gaussian(LOC, -SCALE),
        ["Gaussian", "scale", "GreaterThan|positive", "-0.8"],
    ),
    "Gaussian with an upper factor": (
        lambda: bases.Gaussian(LOC, scale_tril=TRIL.mT),
        ["Gaussian", "scale_tril", "LowerCholesky"],
    ),
    "GaussianMixture of another shape": (
        lambda: bases.GaussianMixture(torch.zeros(4), LOCS, SCALES),
        ["GaussianMixture", r"\(\*, K\)", r"\(4,\)", r"\(3, 2\)"],
    ),
    "GaussianMixture of vectors": (
        lambda: bases.GaussianMixture(LOGITS, LOC, SCALE),
        ["GaussianMixture", r"\(\*, K, d\)", r"\(2,\)"],
    ),
    "GaussianMixture with a negative scale": (
        lambda: bases.GaussianMixture(LOGITS, LOCS, -SCALES),
        ["GaussianMixture", "scale"],
    ),
    "UniformSphere of one dimension": (
        lambda: bases.UniformSphere(1),
        ["UniformSphere", "d >= 2", "1"],
    ),
    "UniformSphere of a fraction": (
        lambda: bases.UniformSphere(2.5),  # type: ignore[arg-type]
        ["UniformSphere", "integer", "2.5"],
    ),
    "ProjectedGaussian of one dimension": (
        lambda: bases.ProjectedGaussian(1),
        ["ProjectedGaussian", "d >= 2", "1"],
    ),
    "UniformCube of none": (lambda: bases.UniformCube(0), ["UniformCube", "d >= 1", "0"]),
    "NormalFamily of none": (lambda: bases.NormalFamily(0), ["NormalFamily", "d >= 1", "0"]),
    "DirichletFamily of one": (
        lambda: bases.DirichletFamily(1),
        ["DirichletFamily", "d >= 2", "1"],
    ),
    "SmoothBox with a negative scale": (
        lambda: bases.SmoothBox(LOC, LOC, -SCALE),
        ["SmoothBox", "scale"],
    ),
    "SmoothBox of another shape": (
        lambda: bases.SmoothBox(torch.zeros(2), torch.ones(3), torch.ones(2)),
        ["SmoothBox", "low and high and scale", r"\(2,\)", r"\(3,\)"],
    ),
    "SmoothBox of matrices": (
        lambda: bases.SmoothBox(LOC, LOC, SCALE, event_dim=2),
        ["SmoothBox", "event_dim 0 or 1", "got 2"],
    ),
    "SmoothBoxMixture of matrices": (
        lambda: bases.SmoothBoxMixture(LOGITS, LOCS, LOCS, SCALES, event_dim=2),
        ["SmoothBoxMixture", "event_dim 0 or 1", "got 2"],
    ),
    "SmoothBoxMixture of another shape": (
        lambda: bases.SmoothBoxMixture(torch.zeros(4), LOCS, LOCS, SCALES),
        ["SmoothBoxMixture", r"\(\*, K\)", r"\(4,\)", r"\(3, 2\)"],
    ),
    "UniformBox upside down": (
        lambda: bases.UniformBox(SCALE, -SCALE),
        ["UniformBox", "low < high", "1.3"],
    ),
    "UniformBox of another shape": (
        lambda: bases.UniformBox(torch.zeros(2), torch.ones(3)),
        ["UniformBox", "low and high", r"\(2,\)", r"\(3,\)"],
    ),
    "UniformBox without dimensions": (
        lambda: bases.UniformBox(_scalar(0.0), _scalar(1.0)),
        ["UniformBox", r"\(\*, d\)", r"\(\)"],
    ),
    "Interval upside down": (
        lambda: bases.Interval(_scalar(1.0), _scalar(0.0)),
        ["Interval", "low < high"],
    ),
    "Interval of another shape": (
        lambda: bases.Interval(torch.zeros(2), torch.ones(3)),
        ["Interval", r"\(2,\)", r"\(3,\)"],
    ),
    "Intervals that overlap": (
        lambda: bases.Interval(_t(0.0, 0.5), _t(1.0, 2.0)),
        ["Interval", "disjoint", "0.5"],
    ),
    "Poisson of a negative rate": (
        lambda: bases.Poisson(_scalar(-1.0)),
        ["Poisson", "rate", "-1"],
    ),
    "Geometric of probability one": (
        lambda: bases.Geometric(_scalar(1.0)),
        ["Geometric", "probs < 1", "1"],
    ),
    "Geometric of probability zero": (
        lambda: bases.Geometric(_scalar(0.0)),
        ["Geometric", "0 < probs", "0"],
    ),
    "Geometric of probability two": (
        lambda: bases.Geometric(_scalar(2.0)),
        ["Geometric", "probs", "2"],
    ),
    "Discrete of other numbers": (
        lambda: bases.Discrete(torch.zeros(3), torch.ones(4)),
        ["Discrete", r"\(K,\)", r"\(3,\)", r"\(4,\)"],
    ),
    "Discrete of negative masses": (
        lambda: bases.Discrete(POINTS, -MASSES),
        ["Discrete", "masses", "-0.3"],
    ),
    "PointMass of a matrix": (
        lambda: bases.PointMass(torch.zeros(2, 2)),
        ["PointMass", r"\(d,\)", r"\(2, 2\)"],
    ),
    "Mixture of another number": (
        lambda: bases.Mixture(torch.zeros(3), [BASE, BASE]),
        ["Mixture", r"\(\*, 2\)", r"\(3,\)"],
    ),
    "Mixture of nothing": (lambda: bases.Mixture(torch.zeros(0), []), ["Mixture", "at least one"]),
    "Mixture of other spaces": (
        lambda: bases.Mixture(torch.zeros(2), [BASE, bases.UniformSphere(3)]),
        ["Mixture", "one event shape", "3"],
    ),
    "Mixture of other batches": (
        lambda: bases.Mixture(torch.zeros(3, 2), [bases.Poisson(torch.ones(5))] * 2),
        ["Mixture", "batch shapes", r"\(3,\)", r"\(5,\)"],
    ),
    "Product of other batches": (
        lambda: bases.Product([bases.Poisson(torch.ones(3)), bases.Poisson(torch.ones(5))]),
        ["Product", "batch shapes", r"\(3,\)", r"\(5,\)"],
    ),
    "Product of nothing": (lambda: bases.Product([]), ["Product", "at least one"]),
}


@pytest.mark.parametrize("name", PARTS)
def test_arguments_of_parts(name: str) -> None:
    build, words = PARTS[name]
    _assert_raises(ValueError, words, build)


@pytest.mark.parametrize("bad", [BASE, None, [bases.Poisson, BASE], ["Gaussian"]], ids=str)
def test_compositions_of_other_types(bad: Any) -> None:
    _assert_raises(TypeError, ["Product", "bases"], lambda: bases.Product(bad))
    _assert_raises(TypeError, ["Mixture", "bases"], lambda: bases.Mixture(torch.zeros(2), bad))


def test_point_mass_alone() -> None:
    """It is for mixtures, but no harm alone."""
    d = SNEFY(torch.ones(1, 1), None, torch.ones(1, 1), base=bases.PointMass(_scalar(0.5)))
    torch.testing.assert_close(d.log_prob(_scalar(0.5)), _scalar(0.0))


def test_every_activation_is_tested() -> None:
    kinds = {type(case.activation) for case in CASES}
    public = {getattr(activations, name) for name in activations.__all__}
    abstract = {
        activations.Activation,
        activations.FourierActivation,
        activations.GaussianActivation,
    }
    assert public - abstract == kinds
