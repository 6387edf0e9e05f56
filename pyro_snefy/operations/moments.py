r"""Mean and covariance of squared neural families, from derivatives of closed forms.

A density that is tilted by :math:`e^{u \cdot x}` has a normaliser :math:`Z(u)`. The mean is
:math:`\nabla \log Z(0)`, and the covariance :math:`\nabla^2 \log Z(0)`. Every closed form of the
normaliser (arXiv:2305.13552) that can be tilted thus gives moments in closed form.
"""

__all__ = ["check_finite", "moments", "transform_of_waves"]

import math
from dataclasses import replace
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..activations import Activation, Cis, Cos, Exp, FourierActivation, Identity, Sin, Snake
from ..bases import (
    Base,
    Discrete,
    FourierBase,
    Gaussian,
    GaussianMixture,
    Interval,
    LaplaceBase,
    Mixture,
    Product,
    ProjectedGaussian,
    SmoothBox,
    SmoothBoxMixture,
    Standardized,
    UniformAngle,
    UniformBox,
    UniformCube,
    UniformSphere,
)
from ..kernels import Separable
from ..kernels.homogeneous import radial_moment
from ..kernels.piecewise import piecewise_moment
from ..network import Network
from ..numerics.hypergeometric import hyp0f1_deficit, hyp0f1_oscillating
from ..numerics.linalg import broadcast_shapes, concatenate, rows_matmul
from .affine import normal_coordinates
from .jets import Rows, as_complex, centres, independent_factors, sums_over_rows
from .shared_moments import shared_moments

Moments = tuple[Tensor, Tensor]


def moments(network: Network) -> Moments:
    r"""Computes mean and covariance of the events.

    Arguments:
        network: A network in float64.

    Returns:
        The mean, with shape :math:`(*, d)`, and the covariance, with shape :math:`(*, d, d)`; NaN
        where :math:`Z = 0`.
    """
    check_finite(network.activation, network.base, 2, "the variance")
    if any(isinstance(part, UniformAngle) for part in network.base.parts()):
        raise NotImplementedError(
            f"No closed form for the moments of {network.activation} on {network.base}: an angle "
            "has no mean; UniformSphere(2) has one, in the plane."
        )
    with torch.enable_grad():
        mean, covariance = _moments_of_rows(network.base, network)
    # A coordinate that is almost surely constant has a variance that rounding may make negative.
    below = covariance.diagonal(dim1=-2, dim2=-1).clamp(max=0)
    covariance = covariance - torch.diag_embed(below)
    with torch.no_grad():
        possible = network.log_normalizer() > -torch.inf
    mean = torch.where(possible[..., None], mean, torch.nan)
    covariance = torch.where(possible[..., None, None], covariance, torch.nan)
    if torch.is_grad_enabled() and any(x.requires_grad for x in network.tensors()):
        return mean, covariance
    return mean.detach(), covariance.detach()


def check_finite(activation: Activation, base: Base, order: int, name: str) -> None:
    r"""Raises unless :math:`\int |x|^k \sigma^2 d\mu` is finite.

    Arguments:
        activation: The activation :math:`\sigma`.
        base: The base.
        order: The order :math:`k`.
        name: What the integral is needed for.
    """
    order = order + 2 if isinstance(activation, Snake | Identity) else order
    for part in base.parts() if order else ():
        found = part.finite_moments()
        if found is not None and not (found > order).all():
            raise ValueError(
                f"SNEFY: expected {part} with df > {order}, where {name} with {activation} "
                f"is finite, got df = {found}."
            )


def _moments_of_rows(base: Base, network: Network) -> Moments:
    # Of rows that share their neurons, all at once.
    shared = shared_moments(base, network)
    return _moments(base, network) if shared is None else _centred(*shared)


@singledispatch
def _moments(base: Base, network: Network) -> Moments:
    # A base in a mixture may have no mass: its moments have no meaning then, but are finite.
    return _by_engine(base, network)


def _by_engine(base: Base, network: Network) -> Moments:
    if isinstance(network.activation, Exp) and _has_member_moments(base):
        return _members(base, network)
    wave = isinstance(network.activation, FourierActivation)
    if wave and isinstance(base, FourierBase) and not isinstance(base, Product):
        return _waves(base, network)
    raise NotImplementedError(
        f"No closed form for the moments of {network.activation} on {base}. Every pair with a "
        "closed form of the normaliser has one, except for bases whose event is not its statistic: "
        "UniformCube with bends, and products with such bases."
    )


def _has_member_moments(base: Base) -> bool:
    # Log-partition functions give moments of the statistic: the event may be another variable.
    if isinstance(base, Mixture | Product):
        return all(_has_member_moments(part) for part in base.bases)
    return isinstance(base, LaplaceBase | UniformCube)


def _gradient(value: Tensor, argument: Tensor, differentiable: bool = True) -> Tensor:
    (gradient,) = torch.autograd.grad(
        value.sum(),
        argument,
        retain_graph=True,
        create_graph=differentiable,
        materialize_grads=True,
    )
    return gradient


def _jacobian(values: Tensor, argument: Tensor, network: Network) -> Tensor:
    # Gradients of the entries of vectors, (*, D, D). Each would hold as much memory as all values:
    # they have gradients of their own only if a parameter asks for them.
    needed = any(x.requires_grad for x in network.tensors())
    return torch.stack([_gradient(row, argument, needed) for row in values.unbind(-1)], dim=-2)


def _leaf(like: Tensor, *shape: int) -> Tensor:
    return like.new_zeros(shape).requires_grad_()


class _Widened(Gaussian):
    r"""A Gaussian base whose covariance :math:`C + H` has an increment :math:`H`."""

    def __init__(self, base: Gaussian, increment: Tensor) -> None:
        self.__dict__.update(base.__dict__)
        self.increment = increment

    def whiten(self, weight: Tensor) -> Tensor:
        white = super().whiten(weight)
        if self.num_statistics > 1:
            return white  # no factor of C + H: kernels of such bases take products
        return white * (1 + self.increment / self.covariance(weight)).sqrt()

    def quadratic(self, weight: Tensor) -> Tensor:
        product = super().quadratic(weight)
        if self.num_statistics == 1:
            return product
        return product + weight @ self.increment @ weight.mT


@_moments.register
def _gaussian(base: Gaussian, network: Network) -> Moments:
    r"""A shift of the mean :math:`m` tilts the density, and adds :math:`W u` to the biases.

    .. math:: \mathbb{E}[x] = m + C \nabla_m \log Z, \quad
        \mathrm{Cov}[x] = C + C (\nabla_m^2 \log Z) C
    """
    weight, batch = network.weight, network.batch_shape
    d = weight.shape[-1]
    shift = _leaf(weight, *batch, d)  # u
    bias = network.bias + rows_matmul(shift, weight.mT)
    kernel = network.kernel()
    if isinstance(kernel, Separable):
        slope = _gradient(kernel.log_normalizer(network.form, bias), shift)
        hessian = _jacobian(slope, shift, network)
    else:
        # The heat equation: a second derivative in the mean is a first one in the covariance.
        increment = _leaf(weight, *batch, d, d)
        network = replace(network, base=_Widened(base, increment), bias=bias)
        log_normalizer = network.log_normalizer()
        slope = _gradient(log_normalizer, shift)
        curvature = _gradient(log_normalizer, increment)
        hessian = curvature + curvature.mT - slope.unsqueeze(-1) * slope.unsqueeze(-2)
    covariance = base.covariance(weight)
    mean = base.mean(weight) + rows_matmul(slope, covariance)
    return mean, covariance + covariance @ hessian @ covariance


@_moments.register
def _discrete(base: Discrete, network: Network) -> Moments:
    points = base.points
    shape = points.shape[:1] + (1,) * len(network.batch_shape) + base.event_shape
    # Equal points have masses of their own.
    log_square = network.log_square(points.reshape(shape))
    return _mixed(
        log_square.movedim(0, -1) + base.masses.log(),
        base.vectors,
        points.new_zeros((1, base.num_statistics, base.num_statistics)),
    )


def _mixed(logits: Tensor, means: Tensor, covariances: Tensor) -> Moments:
    # Moments of a mixture, whose components are the last dimension of the logits.
    empty = (logits == -torch.inf).all(-1, keepdim=True)
    return _combined(logits.masked_fill(empty, 0.0).softmax(-1), means, covariances)


def _combined(shares: Tensor, means: Tensor, covariances: Tensor) -> Moments:
    # The law of total covariance, for shares (*, K) that add up to one.
    mean = (shares.unsqueeze(-1) * means).sum(-2)
    offsets = means - mean.unsqueeze(-2)
    spreads = covariances + offsets.unsqueeze(-1) * offsets.unsqueeze(-2)
    return mean, (shares[..., None, None] * spreads).sum(-3)


@_moments.register(GaussianMixture)
@_moments.register(SmoothBoxMixture)
def _batched_mixture(base: GaussianMixture | SmoothBoxMixture, network: Network) -> Moments:
    components = network.over(base.components)
    logits = base.log_weights() + components.log_normalizer()
    return _mixed(logits, *_moments(base.components, components))


@_moments.register
def _mixture(base: Mixture, network: Network) -> Moments:
    parts = [replace(network, base=part) for part in base.bases]
    logits = torch.stack(torch.broadcast_tensors(*(part.log_normalizer() for part in parts)), -1)
    pairs = [_moments(part.base, part) for part in parts]
    means = torch.stack(torch.broadcast_tensors(*(mean for mean, _ in pairs)), -2)
    covariances = torch.stack(torch.broadcast_tensors(*(spread for _, spread in pairs)), -3)
    return _mixed(base.log_weights() + logits, means, covariances)


def _members(base: Any, network: Network) -> Moments:
    # A signed mixture of members of the exponential family, one for each pair of neurons.
    assert isinstance(network.activation, Exp)
    weight, n = network.weight, network.weight.shape[-2]
    kernel = network.kernel()
    assert isinstance(kernel, Separable)
    block = kernel.blocks[0, 0]
    block = block + _leaf(weight, *network.batch_shape, n, n)
    kernel = Separable({(0, 0): block}, kernel.features)
    log_normalizer = kernel.log_normalizer(network.form, network.bias)
    shares = (block * _gradient(log_normalizer, block)).flatten(-2)  # (*, n^2)
    eta = network.activation.scale * (weight.unsqueeze(-2) + weight.unsqueeze(-3))
    return _combined(shares, *base.member_moments(eta.flatten(-3, -2)))


@_moments.register
def _standardized(base: Standardized, network: Network) -> Moments:
    mean, covariance = _moments_of_rows(base.base, replace(network, base=base.base))
    loc, scale = base.loc, base.scale
    if not base.event_dim:
        loc, scale = loc.unsqueeze(-1), scale.unsqueeze(-1)
    return _moved(mean, covariance, loc, scale)


def _moved(mean: Tensor, covariance: Tensor, loc: Tensor, scale: Tensor) -> Moments:
    return loc + scale * mean, scale.unsqueeze(-1) * covariance * scale.unsqueeze(-2)


@_moments.register
def _product(base: Product, network: Network) -> Moments:
    found = normal_coordinates(base)
    if found is None:
        return _independent(base, network)
    mean, covariance = _moments(found.base, replace(network, base=found.base))
    if found.loc is None or found.scale is None:
        return mean, covariance
    return _moved(mean, covariance, found.loc, found.scale)


class Transform(NamedTuple):
    r"""A transform of a network, see :func:`transform_of_waves`.

    Arguments:
        values: :math:`T(u)`, with shape :math:`(*)`.
        slopes: :math:`-i \nabla T(u)`, with shape :math:`(*, D)`.
    """

    values: Tensor
    slopes: Tensor


def transform_of_waves(base: FourierBase, network: Network, shift: Tensor) -> Transform:
    r"""Integrates waves times :math:`e^{i u \cdot (x - c)}`, with the mean :math:`c` of the base.

    .. math:: T(u) = \int e^{i u \cdot (x - c)} g(x) \mu(dx), \quad
        \Re g(x) = \|V \sigma(W x + b)\|^2

    Products of neurons are polynomials, waves, and polynomials times waves. Each wave
    :math:`\cos \theta` stands for its :math:`e^{i \theta}` in :math:`g`.

    Arguments:
        base: The base, with :math:`t(x) = x`.
        network: The network, whose activation is a line plus a wave.
        shift: The frequencies :math:`u`, with shape :math:`(*, D)`; they require gradients.
    """
    parts = _Parts.of(base, network)
    activation, gram, weight = parts.activation, parts.gram, parts.weight
    linear = isinstance(activation, Snake | Identity)
    slow = _cancels(base, network)
    transforms = _excesses if slow else _transforms
    terms = []  # of T(u) and -i ∇T(u)
    if linear or slow:
        slope = weight if linear else torch.zeros_like(weight)
        terms.append(_lines(base, gram, slope, parts.value if slow else parts.line, shift))
    if isinstance(activation, Snake):
        values, slopes = transforms(base, parts.omega, shift)
        level = (gram @ parts.line.unsqueeze(-1)).squeeze(-1)
        terms.append(_lines_and_waves(level, gram @ weight, parts.phase, values, slopes, shift))
    for factor, pairs in parts.pairs():
        values, slopes = transforms(base, pairs, shift)
        terms.append(((factor * values).sum(-1), (factor.unsqueeze(-1) * slopes).sum(-2)))
    total, slope = (sum(values[1:], values[0]) for values in zip(*terms, strict=True))
    return Transform(total, slope)


class _Parts(NamedTuple):
    r"""Neurons :math:`l_i + w_i \cdot t + \Re p_i e^{i \omega_i \cdot t}` of the centred statistic.

    Only ``Snake`` and ``Identity`` have the line :math:`l_i + w_i \cdot t`.
    """

    activation: Activation
    gram: Tensor  # M, (*, n, n)
    weight: Tensor  # w, (*, n, D)
    line: Tensor  # l, (*, n)
    value: Tensor  # l + Re p without cancellation, (*, n)
    phase: Tensor  # p, complex, (*, n)
    omega: Tensor  # ω, (*, n, D)

    @classmethod
    def of(cls, base: FourierBase, network: Network) -> "_Parts":
        network = network.real()
        activation, weight = network.activation, network.weight
        angle = network.bias + (weight * base.mean(weight).unsqueeze(-2)).sum(-1)
        line = angle
        assert isinstance(activation, FourierActivation)
        frequency = activation.wave_frequency
        phase = torch.polar(torch.ones_like(angle), frequency * angle)
        if isinstance(activation, Sin):
            phase = -1j * phase
        if isinstance(activation, Snake):
            phase = -phase / frequency
            line = angle + 1 / frequency if activation.offset else angle
        value, gram, omega = activation(angle), network.form.gram(), frequency * weight
        return cls(activation, gram, weight, line, value, phase, omega)

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        # Coefficients, (*, n^2), and frequencies, (*, n^2, D), of the products of two waves.
        if isinstance(self.activation, Identity):
            return []
        found = []
        for sign, other in ((1, self.phase), (-1, self.phase.conj())):
            omega = (self.omega.unsqueeze(-2) + sign * self.omega.unsqueeze(-3)).flatten(-3, -2)
            factor = (self.gram * self.phase.unsqueeze(-1) * other.unsqueeze(-2)).flatten(-2) / 2
            found.append((factor, omega))
        return found

    def size(self) -> Tensor:
        # The sum of the absolute values of all coefficients of waves, (*).
        size = self.phase.abs()
        return (self.gram.abs() * size.unsqueeze(-1) * size.unsqueeze(-2)).sum((-2, -1))


def _waves(base: FourierBase, network: Network) -> Moments:
    r"""Neurons that are a line plus a wave, from derivatives of one characteristic function.

    .. math:: S(u) = \int e^{i u \cdot x} \|V \sigma(W x + b)\|^2 \mu(dx), \quad Z = S(0), \quad
        Z \, \mathbb{E}[x] = -i \nabla S(0), \quad Z \, \mathbb{E}[x x^\top] = -\nabla^2 S(0)
    """
    weight = network.weight
    if isinstance(base, UniformSphere) and isinstance(network.activation, Cos | Sin | Cis):
        return _radial(base, network)
    shift = _leaf(weight, *network.batch_shape, weight.shape[-1])  # u
    mass, slope = transform_of_waves(base, network, shift)
    second = _jacobian(slope.imag, shift, network)
    return _centred(_known(mass.real, base, network), slope.real, second, base.mean(weight))


@_moments.register(SmoothBox)
@_moments.register(UniformBox)
@_moments.register(UniformCube)
def _independent(base: Base, network: Network) -> Moments:
    r"""Neurons that are a line plus a wave, on independent factors of the base.

    With lines :math:`l_i = a_i + w_i \cdot t` and waves :math:`\Re p_i e^{i \omega_i \cdot t}`,

    .. math:: \|V \sigma\|^2 = \sum_{ij} M_{ij} \left( l_i l_j
        + 2 l_i \Re p_j e^{i \omega_j \cdot t}
        + \tfrac{1}{2} \Re (p_i p_j e^{i (\omega_i + \omega_j) \cdot t}
        + p_i \bar{p}_j e^{i (\omega_i - \omega_j) \cdot t}) \right).
    """
    factors = independent_factors(base)
    if factors is None or not isinstance(network.activation, FourierActivation):
        return _by_engine(base, network)
    latent = network.latent().base
    assert isinstance(latent, FourierBase)
    parts = _Parts.of(latent, network)
    activation, gram, weight, phase = parts.activation, parts.gram, parts.weight, parts.phase
    level = (gram @ parts.line.unsqueeze(-1)).squeeze(-1)
    waves = [Rows(pairs, torch.zeros_like(pairs), [factor]) for factor, pairs in parts.pairs()]
    if isinstance(activation, Snake):
        waves.append(Rows(parts.omega, gram @ weight, [2 * phase * level, 2 * phase]))
    slow = _cancels(latent, network)
    linear = isinstance(activation, Snake | Identity)
    rows = [row for wave in waves for row in _excess_rows(latent, wave)] if slow else waves
    if linear or slow:
        slope = weight if linear else torch.zeros_like(weight)
        rows += _line_rows(gram, slope, parts.value if slow else parts.line)
    sums = [sums_over_rows(factors, row) for row in rows]
    mass, first, second = (sum(x[1:], x[0]).real for x in zip(*sums, strict=True))
    return _centred(_known(mass, latent, network), first, second, centres(factors, weight))


def _known(mass: Tensor, base: FourierBase, network: Network) -> Tensor:
    # NaN where fewer than three digits are left of a sum of waves.
    if not _cancels(base, network):
        return mass
    with torch.no_grad():
        waves = _Parts.of(base, network).pairs()
        sizes = [torch.where(_slow_rows(base, omega), 0.0, c.abs()).sum(-1) for c, omega in waves]
        error = torch.finfo(mass.dtype).eps * sum(sizes[1:], sizes[0]) * base.mass(network.weight)
    return torch.where(error > 1e-3 * mass.abs(), torch.nan, mass)


def _line_rows(gram: Tensor, weight: Tensor, line: Tensor) -> list[Rows]:
    # Products of lines: a + 2 s·t + t·Qt, where 2 t_k t_l = ((t_k + t_l)² - (t_k - t_l)²) / 2.
    d = weight.shape[-1]
    level = (gram @ line.unsqueeze(-1)).squeeze(-1)
    square = weight.mT @ gram @ weight
    linear = 2 * (weight * level.unsqueeze(-1)).sum(-2, keepdim=True)
    constant = (level * line).sum(-1, keepdim=True)
    rows = [Rows(torch.zeros_like(linear), linear, [constant, torch.ones_like(constant)])]
    i, j = torch.triu_indices(d, d, offset=1, device=weight.device)
    eye = torch.eye(d, dtype=weight.dtype, device=weight.device)
    direction = torch.cat([eye, eye[i] + eye[j], eye[i] - eye[j]])
    cross = square[..., i, j]
    halves = torch.cat([2 * square.diagonal(dim1=-2, dim2=-1), cross, -cross], dim=-1)
    zeros = torch.zeros_like(halves)
    rows.append(Rows(torch.zeros_like(direction), direction, [zeros, zeros, halves]))
    return rows


def _radial(base: UniformSphere, network: Network) -> Moments:
    # ∫ x xᵀ e^{iω·x} μ(dx) = F_1 I / d - F_2 ω ωᵀ / d (d + 2), where F_k = 0F1(d/2 + k; -|ω|²/4):
    # no derivatives by each coordinate. Deficits 1 - F_k do not cancel.
    d, parts = base.num_statistics, _Parts.of(base, network)
    factors, frequencies = zip(*parts.pairs(), strict=True)
    factor, omega = torch.cat(factors, dim=-1), torch.cat(frequencies, dim=-2)
    square = omega.square().sum(-1)
    constant = (parts.value.unsqueeze(-2) @ parts.gram @ parts.value.unsqueeze(-1))[..., 0, 0]
    short, less = ((factor.real * hyp0f1_deficit(d / 2 + k, square)).sum(-1) for k in (0, 1))
    slope = factor.imag * hyp0f1_oscillating(d / 2 + 1, square)
    bent = factor.real * hyp0f1_oscillating(d / 2 + 2, square)
    first = -(slope.unsqueeze(-1) * omega).sum(-2) / d
    second = (constant - less)[..., None, None] * base.covariance(omega)  # I / d
    second = second - (omega.mT * bent.unsqueeze(-2)) @ omega / (d * (d + 2))
    return _centred(constant - short, first, second, base.mean(omega))


def _centred(mass: Tensor, first: Tensor, second: Tensor, centre: Tensor) -> Moments:
    # From moments about a centre that are not normalised.
    mass = torch.where(mass == 0, 1.0, mass)
    offset = first / mass.unsqueeze(-1)
    square = offset.unsqueeze(-1) * offset.unsqueeze(-2)
    return centre + offset, second / mass[..., None, None] - square


def _transforms(base: FourierBase, omega: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    # φ(ω + u) and -i ∇φ(ω + u), complex, with shapes (*, E) and (*, E, D).
    omega = omega + shift.unsqueeze(-2)
    return as_complex(*base.characteristic(omega)), as_complex(*base.characteristic_moment(omega))


def _cancels(base: FourierBase, network: Network) -> bool:
    # Whether sums of waves would lose more than three digits.
    if isinstance(network.activation, Identity):
        return False
    with torch.no_grad():
        size = _Parts.of(base, network).size() * base.mass(network.weight)
        return bool((size.log() - network.log_normalizer() > math.log(1e3)).any())


# Gauss's rules on [0, 1]: what the finer one integrates, and the coarser one too.
_FINE, _COARSE = (
    tuple(x.tolist() for x in ((nodes + 1) / 2, weights / 2))
    for nodes, weights in map(np.polynomial.legendre.leggauss, (8, 6))
)


def _slow_rows(base: FourierBase, omega: Tensor) -> Tensor:
    # Where Gauss's rules integrate s -> ω·t e^{isω·t} to all digits, (*, E). Derivatives of order
    # four in s, after two by ω, are moments of order six.
    tails = (part.finite_moments() for part in base.parts())
    if not all(df is None or bool((df > 6).all()) for df in tails):
        return torch.zeros_like(omega[..., 0], dtype=torch.bool)
    with torch.no_grad():
        still = torch.zeros_like(omega)
        fine, coarse = (_chords(base, omega, still, *rule) for rule in (_FINE, _COARSE))
        return (fine - coarse).abs() <= 1e-12 * fine.imag.abs()


def _chords(
    base: FourierBase, omega: Tensor, shift: Tensor, nodes: list[float], weights: list[float]
) -> Tensor:
    # ∫_0^1 ω·(-i∇φ)(sω + u) ds, complex, (*, E).
    places = torch.cat([node * omega + shift for node in nodes], dim=-2)
    slopes = as_complex(*base.characteristic_moment(places)).chunk(len(nodes), dim=-2)
    terms = [share * (omega * x).sum(-1) for share, x in zip(weights, slopes, strict=True)]
    return sum(terms[1:], terms[0])


def _excesses(base: FourierBase, omega: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    r"""As :func:`_transforms`, less the same without a wave.

    .. math:: e^{i \omega \cdot t} - 1 = i \int_0^1 (\omega \cdot t) e^{i s \omega \cdot t} ds

    For low frequencies, the integral by Gauss's rule has the digits that the difference would lose.
    """
    batch = broadcast_shapes(base.batch_shape, omega.shape[:-2], shift.shape[:-1])
    leaf = _leaf(omega, *batch, *omega.shape[-2:])
    chords = _chords(base, omega, leaf + shift.unsqueeze(-2), *_FINE)
    slopes = torch.complex(_gradient(chords.real, leaf), _gradient(chords.imag, leaf))
    fast = _transforms(base, omega, shift)
    still = _transforms(base, torch.zeros_like(omega[..., :1, :]), shift)
    slow = _slow_rows(base, omega)
    return (
        torch.where(slow, 1j * chords, fast[0] - still[0]),
        torch.where(slow.unsqueeze(-1), slopes, fast[1] - still[1]),
    )


def _excess_rows(base: FourierBase, rows: Rows) -> list[Rows]:
    # As _excesses: e^{iω·t} - 1 in place of e^{iω·t}.
    omega, direction, coefficients = rows
    slow = _slow_rows(base, omega)
    fast = [torch.where(slow, 0.0, c) for c in coefficients]
    found = [
        _joined([Rows(omega, direction, fast), Rows(0 * omega, direction, [-c for c in fast])])
    ]
    own = [torch.where(slow, 1j * c, 0.0) for c in coefficients]
    zero = torch.zeros_like(own[0])
    steps = list(zip(*_FINE, strict=True))
    found.append(_joined([Rows(s * omega, omega, [zero, a * own[0]]) for s, a in steps]))
    if len(own) == 1:
        return found
    # 2 (v·t) (ω·t) = ((v + ω)·t)² / 2 - ((v - ω)·t)² / 2, with vectors of the same length.
    length, other = omega.norm(dim=-1), direction.norm(dim=-1)
    ratio = torch.where((length > 0) & (other > 0), length / other, 1.0)
    moved = direction * ratio.unsqueeze(-1)
    crossed = own[1] / (2 * ratio)
    for sign in (1, -1):
        both = moved + sign * omega
        terms = [Rows(s * omega, both, [zero, zero, sign * a * crossed]) for s, a in steps]
        found.append(_joined(terms))
    return found


def _joined(rows: list[Rows]) -> Rows:
    # The sum of functions, with the same number of coefficients.
    frequencies, directions, coefficients = zip(*rows, strict=True)
    joint = [concatenate(x) for x in zip(*coefficients, strict=True)]
    return Rows(
        concatenate([x.mT for x in frequencies]).mT,
        concatenate([x.mT for x in directions]).mT,
        joint,
    )


def _slope(value: Tensor, shift: Tensor) -> Tensor:
    # -i times the gradient of a complex function of u: (*) to (*, D).
    return torch.complex(_gradient(value.imag, shift), -_gradient(value.real, shift))


def _lines(
    base: FourierBase, gram: Tensor, weight: Tensor, line: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    # Products of lines: a + 2 s·x + x·Mx.
    values, slopes = _transforms(base, torch.zeros_like(weight[..., :1, :]), shift)
    values, slopes = values.squeeze(-1), slopes.squeeze(-2)
    level = (gram @ line.unsqueeze(-1)).squeeze(-1)
    constant = (level * line).sum(-1)
    linear = (weight * level.unsqueeze(-1)).sum(-2)
    image = ((weight.mT @ gram @ weight) * slopes.unsqueeze(-2)).sum(-1)  # M times -i ∇φ
    bent = 2 * (linear * slopes).sum(-1)
    for k, row in enumerate(image.unbind(-1)):
        bent = bent + _slope(row, shift)[..., k]
    return constant * values + bent, constant.unsqueeze(-1) * slopes + _slope(bent, shift)


def _lines_and_waves(
    level: Tensor, slope: Tensor, phase: Tensor, values: Tensor, slopes: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    # Each wave meets the sum of all lines, a + s·x, twice.
    flat, phase = 2 * phase * level, 2 * phase
    bent = (phase * (slope * slopes).sum(-1)).sum(-1)
    first = (flat.unsqueeze(-1) * slopes).sum(-2) + _slope(bent, shift)
    return (flat * values).sum(-1) + bent, first


@_moments.register
def _sphere(base: UniformSphere, network: Network) -> Moments:
    degree = network.activation.degree
    if degree is None:
        return _by_engine(base, network)
    # A normal vector is r x, where the square of the network is proportional to r^(2 degree).
    d, weight = base.num_statistics, network.weight
    zeros = weight.new_zeros((d,))
    normal = Gaussian(zeros, zeros + 1, validate_args=False)
    moments = [radial_moment(d, 2 * degree + k) for k in range(3)]
    mean, covariance = _gaussian(normal, replace(network, base=normal))
    return _times_radius(mean, covariance, moments[0] / moments[1], moments[0] / moments[2])


@_moments.register
def _projected(base: ProjectedGaussian, network: Network) -> Moments:
    d, sphere = base.num_statistics, base.latent(network.weight)
    mean, covariance = _moments(sphere, replace(network, base=sphere))
    return _times_radius(mean, covariance, radial_moment(d, 1), radial_moment(d, 2))


def _times_radius(mean: Tensor, covariance: Tensor, first: float, second: float) -> Moments:
    # Moments of r x, where r is independent of x, from E[r] and E[r^2].
    square = mean.unsqueeze(-1) * mean.unsqueeze(-2)
    return first * mean, second * (covariance + square) - first**2 * square


@_moments.register
def _interval(base: Interval, network: Network) -> Moments:
    if network.activation.degree is None:
        return _by_engine(base, network)
    gram, weight = network.form.gram(), network.weight
    kernels = (piecewise_moment(network.activation, base, weight, k) for k in range(3))
    zeroth, first, second = ((gram * k(network.bias)).sum((-2, -1)) for k in kernels)
    return _centred(zeroth, first[..., None], second[..., None, None], weight.new_zeros(()))
