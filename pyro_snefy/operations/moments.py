r"""Mean and covariance of squared neural families, from derivatives of closed forms."""

__all__ = ["moments"]

from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from ..activations import Activation, Exp, FourierActivation, Identity, Sin, Snake
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
    Pushforward,
    Standardized,
    UniformSphere,
)
from ..kernels import Separable
from ..kernels.homogeneous import radial_moment
from ..kernels.piecewise import piecewise_moment
from ..network import Network
from ..numerics.linalg import rows_matmul

Moments = tuple[Tensor, Tensor]


def moments(network: Network) -> Moments:
    r"""Computes mean and covariance of the events.

    Arguments:
        network: A network in float64.

    Returns:
        The mean, with shape :math:`(*, d)`, and the covariance, with shape :math:`(*, d, d)`.
    """
    with torch.enable_grad():
        mean, covariance = _moments(network.base, network)
    if torch.is_grad_enabled() and any(x.requires_grad for x in network.tensors()):
        return mean, covariance
    return mean.detach(), covariance.detach()


@singledispatch
def _moments(base: Base, network: Network) -> Moments:
    return _by_engine(base, network)


def _by_engine(base: Base, network: Network) -> Moments:
    if _has_moments(base):
        if isinstance(network.activation, Exp) and isinstance(base, LaplaceBase):
            return _members(base, network)
        wave = isinstance(network.activation, FourierActivation) and isinstance(base, FourierBase)
        if wave and _affordable(base, network.activation):
            return _waves(base, network)
    raise NotImplementedError(
        f"No closed form for the moments of {network.activation} on {base}. There is one wherever "
        "there is one for the normaliser, but for bases such as UniformCube, whose statistic has "
        "moments that are not those of the event, and for Snake and Identity on products and in "
        "more than three dimensions, where fourth derivatives are too many."
    )


def _affordable(base: Base, activation: Activation) -> bool:
    lines = isinstance(activation, Snake | Identity)
    return not lines or (base.num_statistics <= 3 and not isinstance(base, Product))


def _has_moments(base: Base) -> bool:
    # Transforms know the statistic alone, which says little of the events of a pushforward.
    if isinstance(base, Mixture | Product):
        return all(_has_moments(part) for part in base.bases)
    return not isinstance(base, Pushforward)


def _gradient(value: Tensor, argument: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(
        value.sum(), argument, create_graph=True, materialize_grads=True
    )
    return gradient


def _leaf(like: Tensor, *shape: int) -> Tensor:
    return like.new_zeros(shape).requires_grad_()


class _Widened(Gaussian):
    r"""A Gaussian base whose covariance has an increment, known to the Gaussian engine."""

    def __init__(self, base: Gaussian, increment: Tensor) -> None:
        self.__dict__.update(base.__dict__)
        self.increment = increment

    def quadratic(self, weight: Tensor) -> Tensor:
        return super().quadratic(weight) + weight @ self.increment @ weight.mT


@_moments.register
def _gaussian(base: Gaussian, network: Network) -> Moments:
    r"""A shift of the mean is a shift of the biases, and tilts the density.

    .. math:: \mathbb{E}[x] = m + C \nabla_m \log Z, \quad
        \mathrm{Cov}[x] = C + C (\nabla_m^2 \log Z) C
    """
    weight, batch = network.weight, network.batch_shape
    bias = network.bias + _leaf(weight, *batch, weight.shape[-2])
    kernel = network.kernel()
    if isinstance(kernel, Separable):
        slope = rows_matmul(_gradient(kernel.log_normalizer(network.form, bias), bias), weight)
        hessian = torch.stack(
            [rows_matmul(_gradient(row, bias), weight) for row in slope.unbind(-1)], dim=-2
        )
    else:
        # By the heat equation a second derivative in the mean is a first one in the covariance.
        d = weight.shape[-1]
        increment = _leaf(weight, *batch, d, d)
        network = replace(network, base=_Widened(base, increment), bias=bias)
        log_normalizer = network.log_normalizer()
        slope = rows_matmul(_gradient(log_normalizer, bias), weight)
        curvature = _gradient(log_normalizer, increment)
        hessian = curvature + curvature.mT - slope.unsqueeze(-1) * slope.unsqueeze(-2)
    covariance = base.covariance(weight)
    mean = base.mean(weight) + rows_matmul(slope, covariance)
    return mean, covariance + covariance @ hessian @ covariance


@_moments.register
def _discrete(base: Discrete, network: Network) -> Moments:
    points = base.points
    shape = points.shape[:1] + (1,) * len(network.batch_shape) + base.event_shape
    log_density = network.log_density(points.reshape(shape))
    return _mixed(
        log_density.movedim(0, -1),
        base.vectors,
        points.new_zeros((1, base.num_statistics, base.num_statistics)),
    )


def _mixed(logits: Tensor, means: Tensor, covariances: Tensor) -> Moments:
    # Moments of a mixture, whose components are the last dimension of the logits.
    shares = logits.softmax(-1).unsqueeze(-1)  # (*, K, 1)
    mean = (shares * means).sum(-2)
    offsets = means - mean.unsqueeze(-2)
    spreads = covariances + offsets.unsqueeze(-1) * offsets.unsqueeze(-2)
    return mean, (shares.unsqueeze(-1) * spreads).sum(-3)


@_moments.register
def _gaussian_mixture(base: GaussianMixture, network: Network) -> Moments:
    components = network.over(base.gaussians)
    logits = base.log_weights() + components.log_normalizer()
    return _mixed(logits, *_moments(base.gaussians, components))


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
    shares = (block * _gradient(log_normalizer, block)).flatten(-2).unsqueeze(-1)  # (*, n^2, 1)
    eta = network.activation.scale * (weight.unsqueeze(-2) + weight.unsqueeze(-3))
    means, covariances = base.member_moments(eta.flatten(-3, -2))
    mean = (shares * means).sum(-2)
    offsets = means - mean.unsqueeze(-2)
    spreads = covariances + offsets.unsqueeze(-1) * offsets.unsqueeze(-2)
    return mean, (shares.unsqueeze(-1) * spreads).sum(-3)


@_moments.register
def _standardized(base: Standardized, network: Network) -> Moments:
    mean, covariance = _moments(base.base, replace(network, base=base.base))
    loc, scale = base.loc, base.scale
    if not base.event_dim:
        loc, scale = loc.unsqueeze(-1), scale.unsqueeze(-1)
    return loc + scale * mean, scale.unsqueeze(-1) * covariance * scale.unsqueeze(-2)


def _waves(base: Any, network: Network) -> Moments:
    r"""Neurons that are a line and a wave, :math:`\alpha + w \cdot x + \Re(r e^{i \omega x})`.

    Their products are polynomials, polynomials times waves, and waves of sums and differences of
    frequencies, whose integrals are derivatives of the characteristic function.
    """
    network = network.real()
    activation, weight, batch = network.activation, network.weight, network.batch_shape
    gram, centre = network.form.gram(), base.mean(weight)
    angle = network.bias + (weight * centre.unsqueeze(-2)).sum(-1)  # events are centred from here
    terms = []
    line = angle
    if isinstance(activation, Snake) and activation.offset:
        line = angle + 0.5 / activation.a
    if isinstance(activation, Snake | Identity):
        terms.append(_lines(gram, weight, line, _jets(base, weight[..., :1, :] * 0, batch, 4)))
    if not isinstance(activation, Identity):
        assert isinstance(activation, FourierActivation)
        frequency = activation.wave_frequency
        omega = frequency * weight
        phase = torch.polar(torch.ones_like(angle), frequency * angle)
        if isinstance(activation, Sin):
            phase = -1j * phase
        if isinstance(activation, Snake):
            phase = -phase / frequency
            level = (gram @ line.unsqueeze(-1)).squeeze(-1)
            jets = _jets(base, omega, batch, 3)
            terms.append(_lines_and_waves(level, gram @ weight, phase, jets))
        for sign, other in ((1, phase), (-1, phase.conj())):
            pairs = (omega.unsqueeze(-2) + sign * omega.unsqueeze(-3)).flatten(-3, -2)
            factor = (gram * phase.unsqueeze(-1) * other.unsqueeze(-2)).flatten(-2) / 2
            jets = _jets(base, pairs, batch, 2)
            terms.append([_real_sum(factor, jet, k) for k, jet in enumerate(jets)])
    mass, first, second = (sum(values[1:], values[0]) for values in zip(*terms, strict=True))
    offset = first / mass.unsqueeze(-1)
    square = offset.unsqueeze(-1) * offset.unsqueeze(-2)
    return centre + offset, second / mass[..., None, None] - square


def _jets(base: Any, omega: Tensor, batch: torch.Size, order: int) -> list[Tensor]:
    r"""The integrals of :math:`x^{\otimes k} e^{i \omega x}` for :math:`k` up to an order.

    Each is minus :math:`i` times the gradient of the one before.

    Arguments:
        base: The base.
        omega: The frequencies, with shape :math:`(*, E, D)`.
        batch: The batch shape of the results.
        order: The largest :math:`k`.

    Returns:
        Complex tensors, with shapes :math:`(*, E)`, :math:`(*, E, D)`, and so on.
    """
    omega = omega + _leaf(omega, *batch, *omega.shape[-2:])
    jets = [_parts(*base.characteristic(omega)), _parts(*base.characteristic_moment(omega))]
    while len(jets) <= order:
        real, imag = jets[-1]
        jets.append((_derivative(imag, omega), -_derivative(real, omega)))
    return [torch.complex(real, imag) for real, imag in jets]


def _parts(real: Tensor | None, imag: Tensor | None) -> tuple[Tensor, Tensor]:
    filler = imag if real is None else real
    assert filler is not None
    zeros = torch.zeros_like(filler)
    return zeros if real is None else real, zeros if imag is None else imag


def _derivative(values: Tensor, omega: Tensor) -> Tensor:
    # Derivatives of rows, (*, E, ...), in their own frequencies: (*, E, ..., D).
    if not values.requires_grad:  # an imaginary part that is zero
        return values.new_zeros(values.shape + omega.shape[-1:])
    rows = values.reshape((*omega.shape[:-1], -1)).unbind(-1)
    columns = torch.stack([_gradient(row, omega) for row in rows], dim=-2)
    return columns.reshape(values.shape + omega.shape[-1:])


def _real_sum(factor: Tensor, jet: Tensor, rank: int) -> Tensor:
    # The real part of a sum over frequencies: (*, E) against (*, E, ...), with rank dots.
    return (factor[(...,) + (None,) * rank] * jet).sum(-1 - rank).real


def _lines(gram: Tensor, weight: Tensor, line: Tensor, jets: list[Tensor]) -> list[Tensor]:
    # Products of lines: a quadratic polynomial, against moments of up to the fourth order.
    mass, _, second, third, fourth = (jet.real.select(-1 - k, 0) for k, jet in enumerate(jets))
    level = (gram @ line.unsqueeze(-1)).squeeze(-1)
    constant = (level * line).sum(-1)
    slope = (weight * level.unsqueeze(-1)).sum(-2)
    matrix = weight.mT @ gram @ weight
    return [
        constant * mass + (matrix * second).sum((-2, -1)),
        2 * torch.einsum("...ij,...j->...i", second, slope)
        + torch.einsum("...ij,...ijk->...k", matrix, third),
        constant[..., None, None] * second
        + 2 * torch.einsum("...i,...ijk->...jk", slope, third)
        + torch.einsum("...ij,...ijkl->...kl", matrix, fourth),
    ]


def _lines_and_waves(
    level: Tensor, slope: Tensor, phase: Tensor, jets: list[Tensor]
) -> list[Tensor]:
    # Each line of the sum meets each wave, twice.
    terms = []
    for rank in range(3):
        inner = slope.reshape(slope.shape[:-1] + (1,) * rank + slope.shape[-1:])
        value = level[(...,) + (None,) * rank] * jets[rank] + (inner * jets[rank + 1]).sum(-1)
        terms.append(2 * _real_sum(phase, value, rank))
    return terms


@_moments.register
def _sphere(base: UniformSphere, network: Network) -> Moments:
    degree = network.activation.degree
    if degree is None:
        return _by_engine(base, network)
    # As for the normaliser: events are those of a normal law, divided by a radius.
    d, weight = base.num_statistics, network.weight
    zeros = weight.new_zeros((d,))
    normal = Gaussian(zeros, zeros + 1, validate_args=False)
    mean, covariance = _gaussian(normal, replace(network, base=normal))
    second = covariance + mean.unsqueeze(-1) * mean.unsqueeze(-2)
    mean = mean * (radial_moment(d, 2 * degree) / radial_moment(d, 2 * degree + 1))
    second = second * (radial_moment(d, 2 * degree) / radial_moment(d, 2 * degree + 2))
    return mean, second - mean.unsqueeze(-1) * mean.unsqueeze(-2)


@_moments.register
def _projected(base: ProjectedGaussian, network: Network) -> Moments:
    # A direction, times an independent radius.
    sphere = base.latent(network.weight)
    mean, covariance = _moments(sphere, replace(network, base=sphere))
    second = covariance + mean.unsqueeze(-1) * mean.unsqueeze(-2)
    d = base.num_statistics
    mean = mean * radial_moment(d, 1)
    second = second * radial_moment(d, 2)
    return mean, second - mean.unsqueeze(-1) * mean.unsqueeze(-2)


@_moments.register
def _interval(base: Interval, network: Network) -> Moments:
    if network.activation.degree is None:
        return _by_engine(base, network)
    gram = network.form.gram()
    zeroth, first, second = (
        (gram * piecewise_moment(network.activation, base, network.weight, k)(network.bias)).sum(
            (-2, -1)
        )[..., None]
        for k in range(3)
    )
    mean = first / zeroth
    return mean, (second / zeroth - mean.square()).unsqueeze(-1)
