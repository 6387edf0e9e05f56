r"""Tests for the pyro_snefy.numerics.bivariate module."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import mpmath as mp
import pytest
import torch
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev, jvp

from pyro_snefy import SNEFY
from pyro_snefy.activations import GELU, Activation, Bump, Erf, LeakyReLU, ReLU, Step
from pyro_snefy.bases import UniformSphere
from pyro_snefy.numerics.bivariate import (
    bump_moment,
    erf_moment,
    gelu_moment,
    half_normal_moments,
    leaky_relu_moment,
    relu_moment,
)

SLOPE = 0.1

# An independent reference: condition on the first variable, and integrate over it with mpmath.


def mp_pdf(x: mp.mpf) -> mp.mpf:
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def mp_cdf(x: mp.mpf) -> mp.mpf:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def mp_relu(p: int, z: mp.mpf) -> mp.mpf:
    return z**p if z > 0 else mp.mpf(0)


def mp_mean_relu(p: int, m: mp.mpf, s: mp.mpf) -> mp.mpf:
    if s == 0:
        return mp_relu(p, m)

    # The recursion cancels in the lower tail, the more so the higher p, but digits are cheap.
    with mp.workdps(60 + 5 * p):
        low, high = mp_cdf(m / s), m * mp_cdf(m / s) + s * mp_pdf(m / s)
        for k in range(2, p + 1):
            low, high = high, m * high + (k - 1) * s * s * low

        return high if p else low


def mp_leaky(z: mp.mpf) -> mp.mpf:
    return z if z > 0 else mp.mpf(SLOPE) * z


def mp_mean_leaky(m: mp.mpf, s: mp.mpf) -> mp.mpf:
    return mp.mpf(SLOPE) * m + (1 - mp.mpf(SLOPE)) * mp_mean_relu(1, m, s)


def mp_mean_erf(m: mp.mpf, s: mp.mpf) -> mp.mpf:
    return mp.erf(m / mp.sqrt(1 + 2 * s * s))


def mp_gelu(z: mp.mpf) -> mp.mpf:
    return z * mp_cdf(z)


def mp_mean_gelu(m: mp.mpf, s: mp.mpf) -> mp.mpf:
    t = mp.sqrt(1 + s * s)

    return m * mp_cdf(m / t) + s * s * mp_pdf(m / t) / t


def mp_bump(z: mp.mpf) -> mp.mpf:
    return mp.exp(-z * z / 2)


def mp_mean_bump(m: mp.mpf, s: mp.mpf) -> mp.mpf:
    return mp_bump(m / mp.sqrt(1 + s * s)) / mp.sqrt(1 + s * s)


@dataclass(frozen=True)
class Case:
    """An activation: its product moment, and mpmath's value and mean of it."""

    moment: Callable[..., Tensor]
    value: Callable[[mp.mpf], mp.mpf]
    mean: Callable[[mp.mpf, mp.mpf], mp.mpf]


CASES = {
    "step": Case(partial(relu_moment, 0), partial(mp_relu, 0), partial(mp_mean_relu, 0)),
    "relu": Case(partial(relu_moment, 1), partial(mp_relu, 1), partial(mp_mean_relu, 1)),
    "relu2": Case(partial(relu_moment, 2), partial(mp_relu, 2), partial(mp_mean_relu, 2)),
    "relu3": Case(partial(relu_moment, 3), partial(mp_relu, 3), partial(mp_mean_relu, 3)),
    "relu5": Case(partial(relu_moment, 5), partial(mp_relu, 5), partial(mp_mean_relu, 5)),
    "leaky": Case(partial(leaky_relu_moment, SLOPE), mp_leaky, mp_mean_leaky),
    "erf": Case(erf_moment, mp.erf, mp_mean_erf),
    "gelu": Case(gelu_moment, mp_gelu, mp_mean_gelu),
    "bump": Case(bump_moment, mp_bump, mp_mean_bump),
}
CONTINUOUS = [name for name in CASES if name != "step"]


def mp_moment(
    case: Case,
    means: tuple[float, float],
    variances: tuple[float, float],
    c: mp.mpf,
    det: mp.mpf,
    degree: int = 4,
) -> mp.mpf:
    (m1, m2), (v1, v2) = map(mp.mpf, means), map(mp.mpf, variances)
    if v1 == 0:
        return case.value(m1) * case.mean(m2, mp.sqrt(v2))

    s1 = mp.sqrt(v1)
    slope, s = c / s1, mp.sqrt(det / v1)

    # Breakpoints around the bend of either factor.
    points = {mp.mpf(k) for k in range(-40, 41, 4)}
    points |= {(k - m1) / s1 for k in (-8, -2, 0, 2, 8)}
    if slope != 0:
        points |= {(k * s - m2) / slope for k in (-30, -8, -3, 0, 3, 8, 30)}
        points |= {(k - m2) / slope for k in (-8, -2, 2, 8)}
    ends: list[mp.mpf] = []
    for point in sorted(points):
        if abs(point) <= 40 and (not ends or point - ends[-1] > mp.mpf(10) ** -20):
            ends.append(point)

    def integrand(e: mp.mpf) -> mp.mpf:
        return mp_pdf(e) * case.value(m1 + s1 * e) * case.mean(m2 + slope * e, s)

    # mpmath stops at an absolute error, so the integrand must be of order one.
    middles = ((left + right) / 2 for left, right in pairwise(ends))
    unit = max(abs(integrand(e)) for e in middles) or mp.mpf(1)

    return unit * mp.quad(
        lambda e: integrand(e) / unit, ends, maxdegree=degree, method="gauss-legendre"
    )


def relative_error(name: str, m1: float, m2: float, v1: float, v2: float, angle: float) -> float:
    """Returns the error of K12, relative to the geometric mean of K11 and K22."""

    case = CASES[name]
    with mp.workdps(30):
        # The float next to pi stands for pi.
        cos, sin = (-1, 0) if angle == math.pi else (mp.cos(angle), mp.sin(angle))
        scale = mp.sqrt(mp.mpf(v1) * mp.mpf(v2))
        expected = mp_moment(case, (m1, m2), (v1, v2), scale * cos, (scale * sin) ** 2)
        args = (m1, m2, v1, v2, scale * cos, angle)
        found = case.moment(*(torch.tensor(float(arg)) for arg in args))

    # The yardstick needs no digits.
    norms = (mp_moment(case, (m, m), (v, v), v, mp.mpf(0), 3) for m, v in ((m1, v1), (m2, v2)))

    return float(abs(found.item() - expected) / mp.sqrt(mp.fprod(norms)))


def neuron_pairs(W: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Returns the arguments of a moment for every pair of neurons, on x ~ N(0, I)."""

    gram = W @ W.mT
    v = gram.diagonal(dim1=-2, dim2=-1)
    norm = W.detach().norm(dim=-1, keepdim=True)
    u = W.detach() / torch.where(norm > 0, norm, 1.0)
    less = (u[..., :, None, :] - u[..., None, :, :]).norm(dim=-1)
    more = (u[..., :, None, :] + u[..., None, :, :]).norm(dim=-1)
    angle = torch.where(
        less < more,
        2 * torch.asin(torch.clamp(less / 2, max=1)),
        math.pi - 2 * torch.asin(torch.clamp(more / 2, max=1)),
    )

    return b[..., :, None], b[..., None, :], v[..., :, None], v[..., None, :], gram, angle


def kernel(name: str, W: Tensor, b: Tensor) -> Tensor:
    return CASES[name].moment(*neuron_pairs(W, b))


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(default)


PAIRS = [
    (0.3, -0.7, 1.0, 2.0, 1.1),
    (-20.0, -20.0, 4.0, 5.0, 0.4),
    (20.0, -3.0, 900.0, 9000.0, 2.6),
    (-20.0, -20.0, 900.0, 900.0, 1e-6),
    (1.0, -1.0 + 1e-6, 1.0, 1.0, math.pi - 1e-7),
    (-3.0, -6.0, 1.0, 4.0, 0.0),
    (-2.0, 2.5, 9.0, 9.0, math.pi),
    (1.5, -2.0, 0.0, 3.0, 1.0),
]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_moment_against_mpmath(name: str, pair: tuple[float, ...]) -> None:
    assert relative_error(name, *pair) < 1e-11


@pytest.mark.parametrize("pair", PAIRS[:6], ids=str)
@pytest.mark.parametrize("power", [13, 16, 20])
def test_high_powers(power: int, pair: tuple[float, ...]) -> None:
    """Every term is positive for acute angles, so that float64 keeps its relative precision."""

    m1, m2, v1, v2, angle = pair
    case = Case(partial(relu_moment, power), partial(mp_relu, power), partial(mp_mean_relu, power))
    with mp.workdps(30):
        cos, sin, scale = mp.cos(angle), mp.sin(angle), mp.sqrt(mp.mpf(v1) * mp.mpf(v2))
        expected = mp_moment(case, (m1, m2), (v1, v2), scale * cos, (scale * sin) ** 2, 6)
    found = case.moment(*(torch.tensor(float(x)) for x in (m1, m2, v1, v2, scale * cos, angle)))

    if angle < math.pi / 2:
        assert abs(found.item() - expected) < 1e-13 * expected
    else:  # terms of both signs, each below the geometric mean of K11 and K22
        norms = (mp_moment(case, (m, m), (v, v), v, mp.mpf(0), 3) for m, v in ((m1, v1), (m2, v2)))
        assert abs(found.item() - expected) < 1e-14 * mp.sqrt(mp.fprod(norms))


@pytest.mark.parametrize("power", [13, 20, 25])
def test_high_powers_in_a_density(power: int) -> None:
    W, V = torch.randn(3, 2), torch.randn(2, 3)

    # On the circle, the density integrates to one by the trapezoidal rule.
    turn = 2 * math.pi * torch.arange(2000) / 2000
    x = torch.stack([turn.cos(), turn.sin()], dim=-1)
    d = SNEFY(W, readout=V, activation=ReLU(power), base=UniformSphere(2))
    assert d.log_prob(x).exp().mean() * 2 * math.pi == pytest.approx(1.0, rel=1e-10)

    # On a Gaussian line, it does so by the same rule.
    x = torch.linspace(-40.0, 40.0, 8001)
    d = SNEFY(W[:, :1], V[0], V, activation=ReLU(power))
    assert d.log_prob(x.unsqueeze(-1)).exp().sum() * 0.01 == pytest.approx(1.0, rel=1e-10)


@pytest.mark.parametrize("gap", [0.0, 1e-10, 1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("h", [-30.0, -3.0, 0.0, 10.0])
def test_parallel_steps(h: float, gap: float) -> None:
    """Perfect correlation has a closed form, for whatever distance between the bounds."""

    one, low, high = (torch.tensor(x) for x in (1.0, h, h + gap))
    zero, pi = torch.tensor(0.0), torch.tensor(math.pi)

    for h1, h2 in ((low, high), (high, low)):
        expected = torch.special.erfc(-low / 2**0.5) / 2
        found = relu_moment(0, h1, h2, one, one, one, zero)
        assert torch.allclose(found, expected, rtol=1e-10, atol=0.0)

    # Opposite steps overlap between their bounds, if at all.
    expected = (torch.erf(high / 2**0.5) - torch.erf(low / 2**0.5)) / 2
    found = relu_moment(0, high, -low, one, one, -one, pi)
    assert found >= 0 and torch.allclose(found, expected, rtol=0.0, atol=1e-12)
    assert 0 <= relu_moment(0, low, -high, one, one, -one, pi) < 1e-12


@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 10])
def test_half_normal_moment(k: int) -> None:
    hs = torch.tensor([-37.0, -20.0, -5.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 8.0, 30.0])
    s = 3.0
    found = half_normal_moments(k, hs * s, torch.full_like(hs, s * s))[k]

    for h, value in zip(hs.tolist(), found.tolist(), strict=True):
        with mp.workdps(60):
            expected = mp_mean_relu(k, mp.mpf(h * s), mp.mpf(s))
        assert abs(value - expected) <= 3e-12 * expected


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_half_normal_gradient(k: int) -> None:
    m = torch.tensor([-20.0, -2.0, -0.1, 0.0, 0.5, 4.0], requires_grad=True)
    v = torch.tensor([9.0, 1.0, 2.0, 1.0, 0.3, 1.0], requires_grad=True)

    assert torch.autograd.gradcheck(
        lambda m, v: half_normal_moments(k, m, v)[k],
        (m, v),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )


@pytest.mark.parametrize("name", CASES)
def test_constant_neurons(name: str) -> None:
    """Without variance a moment is a product of values, and its gradient is finite."""

    case = CASES[name]
    W = torch.zeros(5, 2)
    W[3:] = torch.tensor([[1.0, 2.0], [1e-3, 0.0]])
    W.requires_grad_()
    b = torch.tensor([0.0, 1.5, -2.0, 0.5, 0.0], requires_grad=True)

    K = kernel(name, W, b)
    values = torch.tensor([float(case.value(mp.mpf(x))) for x in b[:3].tolist()])
    assert torch.allclose(K[:3, :3], torch.outer(values, values), rtol=1e-13, atol=1e-300)

    for grad in torch.autograd.grad(K.sum(), (W, b)):
        assert grad.isfinite().all()


@pytest.mark.parametrize("name", CASES)
def test_extremes_are_finite(name: str) -> None:
    W = torch.tensor([[1e-120], [1e-90], [1e-8], [-1.0], [300.0], [-300.0], [0.0]])
    b = torch.tensor([0.0, 1e-9, 20.0, -20.0, -60.0])
    W, b = W.repeat(len(b), 1).requires_grad_(), b.repeat_interleave(len(W)).requires_grad_()

    K = kernel(name, W, b)
    assert K.isfinite().all()
    assert (K.diagonal() >= 0).all()
    assert torch.allclose(K, K.mT, rtol=1e-9, atol=1e-12 * K.max().item())

    for grad in torch.autograd.grad(K.sum(), (W, b)):
        assert grad.isfinite().all()


WEIGHTS = {
    "generic": [[0.5, -1.0], [1.2, 0.3], [-0.4, 0.8]],
    "line": [[0.7], [-1.3], [2.0]],
    "duplicate": [[0.5, -1.0], [0.5, -1.0], [1.0, 0.2]],
    "opposite": [[0.5, -1.0], [-0.5, 1.0], [1.0, -2.0]],
}


# The kernel of a step has a kink where weights are parallel.
SMOOTH = [
    (name, weight)
    for name in CASES
    for weight in WEIGHTS
    if name != "step" or weight in ("generic", "line")
]


@pytest.mark.parametrize(("name", "weight"), SMOOTH)
def test_gradient(name: str, weight: str) -> None:
    W = torch.tensor(WEIGHTS[weight], requires_grad=True)
    b = torch.tensor([0.3, -0.9, 0.8], requires_grad=True)

    def function(W: Tensor, b: Tensor) -> Tensor:
        return kernel(name, W, b)

    assert torch.autograd.gradcheck(
        function,
        (W, b),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )


@pytest.mark.parametrize("name", CONTINUOUS)
def test_curvature_in_the_bias(name: str) -> None:
    """The second derivatives with respect to means give the covariance of a Snefy."""

    W = torch.tensor(WEIGHTS["generic"])
    b = torch.tensor([0.3, -0.9, 0.8], requires_grad=True)

    assert torch.autograd.gradgradcheck(
        lambda b: kernel(name, W, b), (b,), check_fwd_over_rev=True, check_batched_grad=True
    )


def test_curvature_of_equal_steps() -> None:
    """The diagonal of the kernel of a step is smooth, in spite of the kink beside it."""

    W, b = torch.tensor(WEIGHTS["generic"]), torch.tensor([0.3, -0.9, 0.8])
    found = jacrev(jacrev(lambda b: kernel("step", W, b).diagonal().sum()))(b)
    s = W.norm(dim=-1)
    expected = -b / s**3 * torch.exp(-((b / s) ** 2) / 2) / math.sqrt(2 * math.pi)
    assert torch.allclose(found, expected.diag(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_forward_mode(name: str) -> None:
    """Forward mode agrees with backward mode, in every combination of the two."""

    W, b = torch.tensor(WEIGHTS["generic"]), torch.tensor([0.3, -0.9, 0.8])

    def total(W: Tensor, b: Tensor) -> Tensor:
        return (kernel(name, W, b) * torch.arange(9.0).reshape(3, 3)).sum()

    dW, db = torch.randn(3, 2), torch.randn(3)
    _, slope = jvp(total, (W, b), (dW, db))
    gW, gb = jacrev(total, argnums=(0, 1))(W, b)
    assert torch.allclose(slope, (gW * dW).sum() + (gb * db).sum(), rtol=1e-12)

    expected = jacrev(jacrev(total, argnums=1), argnums=1)(W, b)
    for outer, inner in ((jacfwd, jacrev), (jacrev, jacfwd), (jacfwd, jacfwd)):
        found = outer(inner(total, argnums=1), argnums=1)(W, b)
        assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "activation", [Erf(), Step(), ReLU(), ReLU(2), LeakyReLU(0.1), GELU(), Bump()], ids=repr
)
def test_forward_mode_of_a_density(activation: Activation) -> None:
    W, b, V = torch.randn(3, 2), torch.randn(3), torch.randn(2, 3)
    x = torch.randn(20, 2)
    x = x[(x @ W.mT + b > 0).any(-1)][:4]  # where a rectifier has a density

    def log_prob(W: Tensor, b: Tensor) -> Tensor:
        return SNEFY(W, b, V, activation=activation).log_prob(x)

    def total(W: Tensor, b: Tensor) -> Tensor:
        return log_prob(W, b).sum()

    jacobian = jacfwd(log_prob, argnums=(0, 1))(W, b)
    gradient = torch.autograd.functional.jacobian(log_prob, (W, b))
    for found, expected in zip(jacobian, gradient, strict=True):
        assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)

    curvature = hessian(total, argnums=(0, 1))(W, b)
    twice = torch.autograd.functional.hessian(total, (W, b))
    for row, other in zip(curvature, twice, strict=True):
        for found, expected in zip(row, other, strict=True):
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bumps_far_out(dtype: torch.dtype) -> None:
    """Bumps of 1e-870 have a logarithm: p = N(x; 0, 1) e^{-z^2} / E[e^{-z^2}] for one neuron."""
    w, b, x = 2.0, 1.0, torch.tensor([0.0, 10.0, 30.0], dtype=dtype)
    d = SNEFY(*(torch.tensor(v, dtype=dtype) for v in ([[w]], [b], [[3.0]])), activation=Bump())
    found = d.log_prob(x.unsqueeze(-1))
    with mp.workdps(30):
        mass = mp.quad(lambda t: mp_pdf(t) * mp_bump(w * t + b) ** 2, [-mp.inf, -1, 0, mp.inf])
        expected = [float(mp.log(mp_pdf(t) / mass) - (w * t + b) ** 2) for t in x.tolist()]
    assert torch.allclose(found.double(), torch.tensor(expected), rtol=3 * torch.finfo(dtype).eps)


def test_step_gradient_is_split_between_equal_bounds() -> None:
    h1, h2 = (torch.tensor(-0.7, requires_grad=True) for _ in range(2))
    one = torch.tensor(1.0, requires_grad=True)
    K = relu_moment(0, h1, h2, torch.tensor(1.0), torch.tensor(1.0), one, torch.tensor(0.0))
    g1, g2, gc = torch.autograd.grad(K, (h1, h2, one))

    assert torch.allclose(g1, torch.exp(-h1 * h1 / 2) / math.sqrt(8 * math.pi))
    assert torch.equal(g1, g2)
    assert gc == 0


@pytest.mark.parametrize("name", CASES)
def test_broadcasting(name: str) -> None:
    W, b = torch.randn(4, 3), torch.randn(5, 4)
    m1, m2, v1, v2, c, angle = neuron_pairs(W, b)
    K = CASES[name].moment(m1, m2, v1, v2, c, angle)
    assert K.shape == (5, 4, 4)

    for i, j in ((0, 0), (1, 3), (2, 1)):
        args = (b[2, i], b[2, j], v1[i, 0], v2[0, j], c[i, j], angle[i, j])
        assert torch.allclose(CASES[name].moment(*args), K[2, i, j], rtol=1e-12, atol=1e-14)


# The nodes are constants of the trace, as they should be.
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_transforms(name: str) -> None:
    W, b = torch.randn(3, 2), torch.randn(4, 3)

    def function(W: Tensor, b: Tensor) -> Tensor:
        return kernel(name, W, b)

    expected = torch.stack([function(W, row) for row in b])

    batched = torch.func.vmap(function, in_dims=(None, 0))(W, b)
    assert torch.allclose(batched, expected, rtol=1e-13)

    traced = torch.jit.trace(function, (W + 1, b[0]))
    assert torch.allclose(traced(W, b[1]), expected[1], rtol=1e-13)

    total = torch.func.grad(lambda W, b: function(W, b).sum(), argnums=(0, 1))
    grads = torch.func.vmap(total, in_dims=(None, 0))(W, b)
    W, b = W.requires_grad_(), b.requires_grad_()
    again = torch.autograd.grad(function(W, b).sum(), (W, b))
    assert torch.allclose(grads[0].sum(0), again[0], rtol=1e-10)
    assert torch.allclose(grads[1], again[1], rtol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_is_on_the_device_of_the_inputs(name: str) -> None:
    args = [arg.detach() for arg in neuron_pairs(torch.randn(3, 2), torch.randn(3))]
    for arg in args[:5]:
        arg.requires_grad_()

    # A factory that forgets the device lands on meta, and meets a tensor that is not there.
    with torch.device("meta"):
        K = CASES[name].moment(*args)
        grads = torch.autograd.grad(K.sum(), args[:5])

    assert {x.device.type for x in (K, *grads)} == {"cpu"}
