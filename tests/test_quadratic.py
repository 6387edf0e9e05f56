"""Quadratic forms of rows, and damped hyperbolic functions, with derivatives of all kinds."""

import mpmath
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_snefy.numerics.hyperbolic import damped_hyperbolic, scaled_remainders
from pyro_snefy.numerics.quadratic import quadratic, trace

F64 = torch.float64


def _matrix(*shape: int) -> Tensor:
    factor = torch.randn(shape, dtype=F64)
    return factor @ factor.mT


def _symmetric(rows: Tensor, matrix: Tensor) -> Tensor:
    # Differences of gradcheck are taken in single entries; the form is of symmetric matrices.
    return quadratic(rows, (matrix + matrix.mT) / 2)


SHAPES = pytest.mark.parametrize(
    ("rows", "matrix"),
    [
        ((4,), (4, 4)),
        ((5, 4), (4, 4)),
        ((2, 3, 4), (4, 4)),
        ((4,), (3, 4, 4)),
        ((5, 4), (3, 1, 4, 4)),
        ((3, 5, 4), (3, 1, 4, 4)),
        ((2, 5, 4), (5, 4, 4)),
        ((2, 1, 4), (3, 4, 4)),
        ((0, 4), (4, 4)),
    ],
    ids=str,
)


@SHAPES
def test_values(rows: tuple[int, ...], matrix: tuple[int, ...]) -> None:
    x, a = torch.randn(rows, dtype=F64), _matrix(*matrix)
    expected = torch.einsum("...i,...ij,...j->...", x, a, x)
    assert_close(quadratic(x, a), expected, rtol=1e-13, atol=1e-13)
    single = quadratic(x.float(), a)
    assert single.dtype == F64
    wide = x.float().double()
    assert_close(single, torch.einsum("...i,...ij,...j->...", wide, a, wide), rtol=2e-6, atol=0)


@SHAPES
def test_sums_of_rows(rows: tuple[int, ...], matrix: tuple[int, ...]) -> None:
    """Three rows in place of each row, and the sum of their forms."""
    a = _matrix(*matrix)
    x = torch.randn((*rows[:-1], 3, 4), dtype=F64)
    for rows_, tolerance in ((x, 1e-13), (x.float(), 2e-6)):
        leaves = [y.detach().requires_grad_() for y in (rows_, a)]
        wide = [y.detach().double().requires_grad_() for y in (rows_, a)]
        value = trace(*leaves)
        expected = torch.einsum("...ki,...ij,...kj->...", wide[0], wide[1], wide[0])
        assert_close(value, expected, rtol=tolerance, atol=tolerance)
        weights = torch.randn(value.shape, dtype=F64)
        found = torch.autograd.grad((weights * value).sum(), leaves)
        exact = torch.autograd.grad((weights * expected).sum(), wide)
        for gradient, reference in zip(found, exact, strict=True):
            reference = reference.to(gradient.dtype)
            assert_close(gradient, reference, rtol=20 * tolerance, atol=20 * tolerance)


@SHAPES
def test_derivatives(rows: tuple[int, ...], matrix: tuple[int, ...]) -> None:
    inputs = torch.randn(rows, dtype=F64).requires_grad_(), _matrix(*matrix).requires_grad_()
    if not inputs[0].numel():
        return
    assert torch.autograd.gradcheck(_symmetric, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(_symmetric, inputs, check_fwd_over_rev=True)


def test_second_derivatives_of_all_kinds() -> None:
    a, x = _matrix(4, 4), torch.randn(4, dtype=F64)

    def log_form(x: Tensor) -> Tensor:
        return quadratic(x, a).log()

    q, ax = x @ a @ x, a @ x
    expected = 2 * a / q - 4 * torch.outer(ax, ax) / q**2
    jacfwd, jacrev = torch.func.jacfwd, torch.func.jacrev
    for first in (jacfwd, jacrev):
        for second in (jacfwd, jacrev):
            assert_close(second(first(log_form))(x), expected, rtol=1e-12, atol=1e-12)


def test_vmap() -> None:
    x, a = torch.randn(7, 5, 4, dtype=F64), _matrix(7, 4, 4)
    expected = torch.stack([quadratic(row, matrix) for row, matrix in zip(x, a, strict=True)])
    assert_close(torch.func.vmap(quadratic)(x, a), expected)
    gradient = torch.func.grad(lambda x, a: quadratic(x, a).sum())
    assert_close(torch.func.vmap(gradient)(x, a), 2 * x @ a)


def test_compiler_and_tracer() -> None:
    a = _matrix(4, 4)

    def total(x: Tensor) -> Tensor:
        return quadratic(x, a).sum()

    x = torch.randn(5, 4, requires_grad=True)
    expected = total(x)
    (gradient,) = torch.autograd.grad(expected, x)
    compiled = torch.compile(total, fullgraph=True)
    traced = torch.jit.trace(total, (torch.randn(5, 4),))
    for function in (compiled, traced):
        value = function(x)
        assert_close(value, expected)
        assert_close(torch.autograd.grad(value, x)[0], gradient)


@pytest.mark.parametrize("power", [2, 4, 6])
def test_single_precision_loses_the_root_of_the_condition_number(power: int) -> None:
    """Nearly parallel columns, read with opposite signs: κ = Σ|x_i A_ij x_j| / q = 4·10^power."""
    gap = 10 ** (-power / 2)
    factor = torch.tensor([[1.0, 0.0], [1.0, gap]], dtype=F64)
    matrix, rows = factor @ factor.mT, torch.tensor([1.0, -1.0])
    exact = gap**2
    kappa = float(matrix.sum() / exact)
    for value in (quadratic(rows, matrix), trace(rows.unsqueeze(-2), matrix)):
        error = abs(float(value) / exact - 1)
        assert error <= 4 * torch.finfo(torch.float32).eps * kappa**0.5
        # The ridge is what is left of the error for rows that float32 has exactly.
        assert error <= 4e-12 * kappa + 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_singular_matrices(unit: float) -> None:
    """Matrices of rank one, with rounding errors that make some eigenvalues negative."""
    u = torch.randn(30, dtype=F64)
    noise = torch.randn(30, 30, dtype=F64)
    matrix = unit * (torch.outer(u, u) + 1e-16 * (noise + noise.mT))
    rows = torch.randn(50, 30)
    root = unit**0.5 * (rows.double() @ u).abs()
    # Rounding of the sum u.x in float32, and a ridge of 1e-12.
    size = unit**0.5 * (rows.double().abs() @ u.abs())
    bound = 2 * torch.finfo(torch.float32).eps * size + 2e-6 * unit**0.5 * rows.norm(dim=-1)
    for value in (quadratic(rows, matrix), trace(rows.unsqueeze(-2), matrix, unit)):
        assert ((value.clamp(min=0).sqrt() - root).abs() <= bound).all()


def test_zero_rows() -> None:
    x = torch.zeros(3, 4, requires_grad=True)
    value = quadratic(x, _matrix(4, 4))
    assert (value == 0).all()
    assert (torch.autograd.grad(value.sum(), x)[0] == 0).all()


POINTS = [0.0, 1e-300, 1e-12, 1e-5, 0.3, 1.0, 20.0, 49.0, 800.0]


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("excess", [0.0, 1e-3, 2.0])
def test_damped_hyperbolic(sign: float, excess: float) -> None:
    p = sign * torch.tensor(POINTS, dtype=F64)
    s = p.abs() + excess
    with mpmath.workdps(60):
        pairs = [(mpmath.mpf(float(a)), mpmath.mpf(float(b))) for a, b in zip(p, s, strict=True)]
        cosh = [float(mpmath.cosh(a) * mpmath.exp(-b)) for a, b in pairs]
        sinh = [float(mpmath.sinh(a) * mpmath.exp(-b)) for a, b in pairs]
    found = damped_hyperbolic(p, s)
    # The difference |p| - s is rounded like s.
    tolerance = 4e-16 * (1 + s.max().item())
    for value, expected in zip(found, (cosh, sinh), strict=True):
        assert_close(value, torch.tensor(expected, dtype=F64), rtol=tolerance, atol=0)


def test_derivatives_of_damped_hyperbolic() -> None:
    p = torch.tensor([0.0, -0.4, 1.7, 3.0], dtype=F64, requires_grad=True)
    s = (p.detach().abs() + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(damped_hyperbolic, (p, s), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(damped_hyperbolic, (p, s))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("excess", [0.0, 1e-3, 2.0, -9.0])
def test_remainders(sign: float, excess: float) -> None:
    p = sign * torch.tensor(POINTS, dtype=F64)
    t = -p.abs() - excess
    with mpmath.workdps(400):
        pairs = [(mpmath.mpf(float(a)), mpmath.mpf(float(b))) for a, b in zip(p, t, strict=True)]
        even = [float((mpmath.cosh(a) - 1) * mpmath.exp(b)) for a, b in pairs]
        odd = [float((mpmath.sinh(a) - a) * mpmath.exp(b)) for a, b in pairs]
    found = scaled_remainders(p, t)
    tolerance = 8e-16 * (1 + t.abs().max().item())
    assert_close(found[0], torch.tensor(even, dtype=F64), rtol=tolerance, atol=0)
    error = (found[1] - torch.tensor(odd, dtype=F64)).abs()
    # The difference sinh p - p is rounded like p.
    assert (
        error <= tolerance * torch.tensor(odd, dtype=F64).abs() + 4e-16 * p.abs() * t.exp()
    ).all()


def test_derivatives_of_remainders() -> None:
    p = torch.tensor([0.0, -0.4, 1.7, 3.0, 1e-5], dtype=F64, requires_grad=True)
    t = (-p.detach().abs() - 0.1).requires_grad_()
    assert torch.autograd.gradcheck(scaled_remainders, (p, t), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(scaled_remainders, (p, t))
