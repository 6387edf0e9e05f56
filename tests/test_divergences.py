"""Distances between families, against quadrature, sums over draws and reference values."""

import math
import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_snefy import SNEFY, bases, divergences, product
from pyro_snefy.activations import Activation, Cis, Cos, Exp, ReLU, Sin, Snake
from pyro_snefy.bases import Base, Gaussian, GaussianMixture, Product, Standardized
from pyro_snefy.divergences import l2_distance, mmd, total_variation_bound
from pyro_snefy.operations import divergences as operations
from tests.cases import KINDS, Case
from tests.densities import grid, legendre

F64 = torch.float64


def _t(values: Any) -> Tensor:
    return torch.tensor(values, dtype=F64)


P = _t([[1.0], [-2.0], [0.5]]), _t([0.2, -1.0, 0.7]), _t([[1.0, -0.7, 0.3], [0.4, 0.9, -1.1]])
Q = _t([[0.8], [-1.5], [2.2]]), _t([0.0, 0.4, -0.3]), _t([[0.9, -0.2, 0.5], [0.1, 1.2, -0.4]])
ONE, TWO = (Gaussian(_t(m), _t(s), event_dim=0) for m, s in ((0.3, 0.8), (-0.4, 1.3)))


def _full(loc: list[float], covariance: list[list[float]]) -> Gaussian:
    return Gaussian(_t(loc), scale_tril=torch.linalg.cholesky(_t(covariance)))


PLANE = (
    _full([0.3, -0.2], [[1.0, 0.3], [0.3, 0.5]]),
    _full([-0.4, 0.1], [[0.7, -0.2], [-0.2, 1.1]]),
)


def test_reference_values() -> None:
    p, q, far = SNEFY(*P, base=ONE), SNEFY(*Q, base=ONE), SNEFY(*Q, base=TWO)
    assert_close(l2_distance(p, q).square(), _t(0.281244433630670), rtol=0, atol=1e-14)
    assert_close(mmd(p, far, 0.5).square(), _t(0.188545327357021), rtol=0, atol=1e-14)
    bound = math.sqrt(1 - 0.799919476390728**2)
    assert_close(total_variation_bound(p, q), _t(bound), rtol=0, atol=1e-14)
    assert total_variation_bound(p, q) >= 0.389044902362  # the distance itself
    assert_close(p.log_normalizer.exp(), _t(1.3614653792776106), rtol=0, atol=1e-14)
    assert_close(q.log_normalizer.exp(), _t(1.2535418795143531), rtol=0, atol=1e-14)
    found = operations.overlap(p._network, q._network, _t(0.0))
    assert_close(found, _t(0.422449833073478), rtol=0, atol=1e-14)
    found = operations.overlap(p._network, far._network, _t(0.0))
    assert_close(found, _t(0.283462919813757), rtol=0, atol=1e-14)
    found = operations.overlap(p._network, far._network, _t(0.25)) * math.sqrt(2 * math.pi * 0.25)
    assert_close(found, _t(0.333089088871922), rtol=0, atol=1e-14)


def test_reference_values_of_integrals() -> None:
    """Integrals without a closed form, and their bounds, by 400 panels of Gauss-Legendre nodes."""
    p, q = SNEFY(*P, base=ONE), SNEFY(*Q, base=ONE)
    nodes, weights = (_t(x) for x in legendre(-8.0, 8.0, 400))
    first, second = p.log_prob(nodes), q.log_prob(nodes)
    base = ONE.log_density(nodes)
    divergence = (weights * first.exp() * (first - base)).sum()
    assert_close(divergence, _t(0.235523566992181), rtol=0, atol=1e-10)
    affinity = (weights * ((first + second) / 2).exp()).sum()
    assert_close(affinity, _t(0.889859810179462), rtol=0, atol=1e-6)  # the integrand has kinks
    assert affinity >= 0.799919476390728
    distance = (weights * (first.exp() - second.exp()).abs()).sum() / 2
    assert_close(distance, _t(0.389044902362), rtol=0, atol=1e-4)
    # The χ² divergence from the base: the product of p and p has its integral as a normaliser.
    chi = (product(p, p).log_normalizer - 2 * p.log_normalizer).exp()
    assert_close(chi, _t(1.462064342429131), rtol=0, atol=1e-13)
    assert divergence <= chi.log()
    entropy = -(weights * first.exp() * first).sum()
    assert_close(entropy, _t(0.97046), rtol=0, atol=5e-6)
    collision = -operations.overlap(p._network, p._network, _t(0.0)).log()
    assert_close(collision, _t(0.6558), rtol=0, atol=5e-5)
    gaussian = (2 * math.pi * math.e * p.variance).log() / 2
    assert_close(gaussian, _t(1.1680), rtol=0, atol=5e-5)
    assert collision <= entropy <= gaussian


def test_reference_values_of_the_plane() -> None:
    weight, bias = _t([[1.0, -0.5], [0.3, 2.0]]), _t([0.2, -1.0])
    p = SNEFY(weight, bias, _t([[1.0, -0.7], [0.4, 0.9]]), base=PLANE[0])
    q = SNEFY(_t([[0.6, 0.1], [-0.4, 1.1]]), _t([0.3, 0.1]), _t([[1.0, 0.5]]), base=PLANE[1])
    found = operations.overlap(p._network, q._network, _t(0.0))
    assert_close(found, _t(0.120950016834285), rtol=0, atol=1e-14)
    found = operations.overlap(p._network, q._network, _t(0.36)) * 2 * math.pi * 0.36
    assert_close(found, _t(0.213761702371101), rtol=0, atol=1e-14)


def test_sharp_bound() -> None:
    """Exponentials with readouts that are positive: the affinity itself."""
    base = Gaussian(_t(0.0), _t(1.0), event_dim=0)
    p = SNEFY(_t([[0.5], [-1.0]]), None, _t([[1.0, 0.4]]), activation=Exp(), base=base)
    q = SNEFY(_t([[0.2], [0.9]]), None, _t([[0.3, 0.8]]), activation=Exp(), base=base)
    expected = math.sqrt(1 - 0.7566818970673281**2)
    assert_close(total_variation_bound(p, q), _t(expected), rtol=0, atol=1e-13)


# Against quadrature -----------------------------------------------------------------------------


def _bases() -> dict[str, Base]:
    mixture = GaussianMixture(_t([0.3, -0.2]), _t([[0.3], [-1.0]]), _t([[1.0], [0.7]]))
    return {
        "one": Gaussian(_t([0.3]), _t([0.8])),
        "two": Gaussian(_t([-0.4]), scale_tril=_t([[1.3]])),
        "mixture": mixture,
        "moved": Standardized(Gaussian(_t([0.3]), _t([0.8])), _t([1.0]), _t([0.6])),
        "moved mixture": Standardized(mixture, _t([-0.5]), _t([0.8])),
        "product": Product([Standardized(ONE, _t(0.2), _t(1.1))]),
    }


def _family(activation: Activation, base: Base, n: int, m: int) -> SNEFY:
    weight = 0.7 * torch.randn(n, base.num_statistics, dtype=F64)
    readout = torch.randn(m, n, dtype=F64)
    if isinstance(activation, Cis):
        readout = torch.complex(readout, torch.randn(m, n, dtype=F64))
    bias = torch.randn(n, dtype=F64)
    return SNEFY(weight, bias, readout, activation=activation, base=base)


@pytest.mark.parametrize("second", _bases())
@pytest.mark.parametrize("first", _bases())
@pytest.mark.parametrize(
    ("left", "right"), [(Cos(), Sin()), (Cis(), Cos()), (Exp(0.6), Exp(0.4))], ids=str
)
def test_quadrature(left: Activation, right: Activation, first: str, second: str) -> None:
    p, q = _family(left, _bases()[first], 3, 2), _family(right, _bases()[second], 2, 1)
    nodes, weights = legendre(-12.0, 12.0, 60)
    x = _t(nodes).unsqueeze(-1)
    difference = (p.log_prob(x).exp() - q.log_prob(x).exp()).numpy()
    expected = math.sqrt((weights * difference**2).sum())
    assert_close(l2_distance(p, q), _t(expected), rtol=1e-7, atol=1e-9)
    kernel = np.exp(-((nodes[:, None] - nodes) ** 2) / (2 * 0.7**2))
    mass = weights * difference
    expected = math.sqrt(mass @ kernel @ mass)
    assert_close(mmd(p, q, 0.7), _t(expected), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("activation", [Cos(), Exp(0.3)], ids=str)
def test_quadrature_in_the_plane(activation: Activation) -> None:
    p, q = _family(activation, PLANE[0], 3, 1), _family(activation, PLANE[1], 2, 2)
    points, weights = grid(legendre(-9.0, 9.0, 25), legendre(-9.0, 9.0, 25))
    x = _t(points)
    difference = (p.log_prob(x).exp() - q.log_prob(x).exp()).numpy()
    expected = math.sqrt((weights * difference**2).sum())
    assert_close(l2_distance(p, q), _t(expected), rtol=1e-8, atol=1e-9)


def test_mmd_is_what_noise_makes_of_l2() -> None:
    """E k(x, y) is the density of x plus noise of variance ℓ², at draws y.

    False alarms: 1e-6. 40,000 draws see an error of 0.025 standard deviations of k.
    """
    p, q = SNEFY(*P, base=ONE), SNEFY(*Q, base=TWO)
    values = p.observed(0.5).log_prob(q.sample((40_000,))).exp()
    found = operations.overlap(p._network, q._network, _t(0.25))
    assert abs(values.mean() - found) < 5 * values.std() / 200


# Properties -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_total_variation_is_bounded(case: Case) -> None:
    """Every pair of activation and base; the distance is estimated from draws of the first.

    TV = E_p[(1 - q / p)_+]. False alarms: 1e-6 for each of 400 draws, of values in [0, 1].
    """
    p, q = case.distribution(n=3), case.distribution(n=4)
    bound = total_variation_bound(p, q)
    assert 0 <= bound <= 1
    assert total_variation_bound(p, p) < 1e-5
    x = p.sample((400,))
    distance = (1 - (q.log_prob(x) - p.log_prob(x)).exp()).clamp(min=0).mean()
    assert distance - math.sqrt(math.log(1e6) / 800) <= bound


def test_bound_of_close_families() -> None:
    """Close families have close affinities: 1 - F is their squared Hellinger distance."""
    p = SNEFY(P[0], P[1], P[2][:1], base=ONE)
    q = SNEFY(P[0], P[1], P[2][:1] + _t([[0.0, 1e-4, 0.0]]), base=ONE)
    nodes, weights = legendre(-12.0, 12.0)
    x = _t(nodes)
    roots = (p.log_prob(x) / 2).exp() - (q.log_prob(x) / 2).exp()
    hellinger = (_t(weights) * roots.square()).sum() / 2
    bound = total_variation_bound(p, q).square() / 2
    assert_close(bound, hellinger, rtol=0.02, atol=0)


def test_grams() -> None:
    p, q = SNEFY(*P, base=ONE), SNEFY(*Q, base=ONE)
    gram = SNEFY(Q[0], Q[1], gram=Q[2].mT @ Q[2], base=ONE)
    for distance in (l2_distance, total_variation_bound, lambda a, b: mmd(a, b, 0.3)):
        assert_close(distance(p, gram), distance(p, q), rtol=1e-11, atol=1e-12)


def test_batches() -> None:
    p = SNEFY(torch.randn(3, 1, 4, 2, dtype=F64), None, torch.randn(1, 4, dtype=F64))
    base = GaussianMixture(
        _t([0.0, 1.0]), torch.randn(5, 2, 2, dtype=F64), torch.ones(2, 2, dtype=F64)
    )
    q = SNEFY(torch.randn(3, 2, dtype=F64), None, torch.randn(1, 3, dtype=F64), base=base)
    one = SNEFY(p.weight[1, 0], None, p.readout)
    member = GaussianMixture(base.logits, base.loc[4], base.scale)
    other = SNEFY(q.weight, None, q.readout, base=member)
    for distance in (l2_distance, lambda a, b: mmd(a, b, 0.3)):
        assert distance(p, q).shape == (3, 5)
        assert_close(distance(p, q)[1, 4], distance(one, other), rtol=1e-11, atol=1e-12)
    r = SNEFY(torch.randn(5, 4, 2, dtype=F64), None, torch.randn(1, 4, dtype=F64))
    assert total_variation_bound(p, r).shape == (3, 5)
    single = SNEFY(r.weight[2], None, r.readout)
    expected = total_variation_bound(one, single)
    assert_close(total_variation_bound(p, r)[1, 2], expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("activation", [Cos(), Exp(0.4)], ids=str)
def test_chunks_and_gradients(activation: Activation, monkeypatch: pytest.MonkeyPatch) -> None:
    q = _family(activation, ONE, 2, 1)

    def distances(weight: Tensor, bias: Tensor, loc: Tensor) -> tuple[Tensor, ...]:
        base = Gaussian(loc, _t(0.8), event_dim=0, validate_args=False)
        p = SNEFY(weight, bias, P[2], activation=activation, base=base, validate_args=False)
        return l2_distance(p, q), mmd(p, q, 0.5)

    inputs = [x.clone().requires_grad_() for x in (0.5 * P[0], P[1], _t(0.3))]
    whole = distances(*inputs)
    with monkeypatch.context() as patch:
        patch.setattr(operations, "_CHUNK", 12)
        assert_close(distances(*inputs), whole, rtol=1e-12, atol=1e-13)
        assert torch.autograd.gradcheck(distances, inputs)


def test_far_exponentials_in_float32() -> None:
    p = SNEFY(torch.tensor([[9.0]]), torch.tensor([50.0]), torch.ones(1, 1), activation=Exp())
    q = SNEFY(torch.tensor([[9.5]]), torch.tensor([-50.0]), torch.ones(1, 1), activation=Exp())
    # N(18, 1) and N(19, 1): ∫ (p - q)² = (1 - e^{-1/4}) / √π.
    expected = math.sqrt((1 - math.exp(-0.25)) / math.sqrt(math.pi))
    found = l2_distance(p, q)
    assert found.dtype == torch.float32
    assert_close(found.double(), _t(expected), rtol=1e-5, atol=1e-6)


def test_equal_families_have_gradients() -> None:
    weight = P[0].clone().requires_grad_()
    p = SNEFY(weight, *P[1:], base=ONE)
    l2_distance(p, p).backward()
    assert weight.grad is not None and weight.grad.isfinite().all()


def test_memory() -> None:
    """With 64 neurons there are 17 million pairs of terms for each overlap; a chunk is 8 MB."""
    p, q = (SNEFY(torch.randn(64, 2), torch.randn(64), torch.randn(4, 64)) for _ in range(2))
    p.log_normalizer, q.log_normalizer  # noqa: B018
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    operations.overlap(p._network.to(F64), q._network.to(F64), _t(0.0))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 250_000  # kilobytes; all pairs at once are 139 MB in each tensor


# Bad arguments ----------------------------------------------------------------------------------


def test_other_families() -> None:
    wave = SNEFY(torch.randn(3, 2), None, torch.randn(1, 3))
    box = bases.UniformBox(torch.zeros(2), torch.ones(2))
    distances: list[Callable[[SNEFY, SNEFY], Tensor]] = [l2_distance, lambda p, q: mmd(p, q, 1.0)]
    for distance in distances:
        for activation in (Snake(), ReLU(), Exp()):
            other = SNEFY(torch.randn(3, 2), None, torch.randn(1, 3), activation=activation)
            with pytest.raises(
                NotImplementedError, match=rf"{type(activation).__name__}.*Exp twice"
            ):
                distance(wave, other)
        with pytest.raises(NotImplementedError, match=r"UniformBox.*GaussianMixture"):
            distance(wave, SNEFY(torch.randn(3, 2), None, torch.randn(1, 3), base=box))
    with pytest.raises(ValueError, match=r"one activation on one base, got .*UniformBox"):
        total_variation_bound(wave, SNEFY(torch.randn(3, 2), None, torch.randn(1, 3), base=box))


def test_bad_arguments() -> None:
    wave = SNEFY(torch.randn(3, 2), None, torch.randn(1, 3))
    line = SNEFY(torch.randn(3, 1), None, torch.randn(1, 3))
    for name in divergences.__all__:
        extra = (1.0,) if name == "mmd" else ()
        distance = getattr(divergences, name)
        with pytest.raises(TypeError, match="expected q to be a SNEFY"):
            distance(wave, torch.zeros(2), *extra)
        with pytest.raises(ValueError, match=r"events of one shape, got \(2,\) and \(1,\)"):
            distance(wave, line, *extra)
    for length in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="length_scale"):
            mmd(wave, wave, length)
