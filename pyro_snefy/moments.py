r"""Mean and covariance of squared neural families, from derivatives of closed forms."""

__all__ = ["moments"]

import math
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from .activations import Activation, Cis, Cos, Exp, LeakyReLU, ReLU, Sin, Step
from .bases import (
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
    Standardized,
    UniformSphere,
)
from .bases.bounded import Pushforward
from .kernels import Separable
from .kernels.pieces import piecewise_moment
from .linalg import broadcast_shapes, rows_matmul
from .network import Network

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
    tensors = [network.weight, network.bias, network.form.matrix]
    tensors += [value for _, value in network.base.tensors()]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return mean, covariance
    return mean.detach(), covariance.detach()


@singledispatch
def _moments(base: Base, network: Network) -> Moments:
    return _by_engine(base, network)


def _by_engine(base: Base, network: Network) -> Moments:
    if _has_moments(base):
        if isinstance(network.activation, Exp) and isinstance(base, LaplaceBase):
            return _members(base, network)
        if isinstance(network.activation, Cos | Sin | Cis) and isinstance(base, FourierBase):
            return _waves(base, network)
    raise NotImplementedError(
        f"No closed form for the moments of {network.activation} on {base}. There is one for "
        "every activation on Gaussian, GaussianMixture and Discrete bases, for Exp on exponential "
        "families, and for every activation but Snake and Identity on bases whose statistic is "
        "the event itself."
    )


def _has_moments(base: Base) -> bool:
    # Transforms know the statistic alone, which says little of the events of a pushforward.
    if isinstance(base, Mixture | Product):
        return all(_has_moments(part) for part in base.bases)
    return not isinstance(base, Pushforward)


def _batch(network: Network) -> torch.Size:
    return broadcast_shapes(
        network.weight.shape[:-2],
        network.bias.shape[:-1],
        network.form.matrix.shape[:-2],
        network.base.batch_shape,
    )


def _gradient(value: Tensor, argument: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(
        value.sum(), argument, create_graph=True, materialize_grads=True
    )
    return gradient


def _leaf(like: Tensor, *shape: int) -> Tensor:
    return like.new_zeros(shape).requires_grad_()


def _jacobian(rows: Tensor, argument: Tensor) -> Tensor:
    # d rows_k / d argument_l for independent rows, (*, K, L).
    return torch.stack([_gradient(row, argument) for row in rows.unbind(-1)], dim=-2)


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
    weight, batch = network.weight, _batch(network)
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
        network = network._replace(base=_Widened(base, increment), bias=bias)
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
    shape = points.shape[:1] + (1,) * len(_batch(network)) + base.event_shape
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
    components = Network(
        network.activation,
        base.gaussians,
        network.weight.unsqueeze(-3),
        network.bias.unsqueeze(-2),
        network.form.unsqueeze(),
    )
    logits = base.log_weights() + components.log_normalizer()
    return _mixed(logits, *_moments(base.gaussians, components))


@_moments.register
def _mixture(base: Mixture, network: Network) -> Moments:
    parts = [network._replace(base=part) for part in base.bases]
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
    block = block + _leaf(weight, *_batch(network), n, n)
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
    mean, covariance = _moments(base.base, network._replace(base=base.base))
    loc, scale = base.loc, base.scale
    if not base.event_dim:
        loc, scale = loc.unsqueeze(-1), scale.unsqueeze(-1)
    return loc + scale * mean, scale.unsqueeze(-1) * covariance * scale.unsqueeze(-2)


def _waves(base: Any, network: Network) -> Moments:
    r"""Products of neurons are waves, whose moments are derivatives of characteristic functions.

    .. math:: 2 \cos z_i \cos z_j = \cos(z_i - z_j) + \cos(z_i + z_j)
    """
    network = network.real()
    weight, batch = network.weight, _batch(network)
    centre = base.mean(weight)
    angle = network.bias + (weight * centre.unsqueeze(-2)).sum(-1)
    gram = network.form.gram().flatten(-2)
    totals = []
    for sign in (-1, 1):
        pairs = (weight.unsqueeze(-2) + sign * weight.unsqueeze(-3)).flatten(-3, -2)
        omega = pairs + _leaf(weight, *batch, *pairs.shape[-2:])  # (*, n^2, D)
        beta = (angle.unsqueeze(-1) + sign * angle.unsqueeze(-2)).flatten(-2)
        factor = -gram if sign == 1 and isinstance(network.activation, Sin) else gram
        cos, sin = factor * beta.cos(), factor * beta.sin()
        zeroth_real, zeroth_imag = base.characteristic(omega)
        first_real, first_imag = base.characteristic_moment(omega)
        # Each transform is minus i times the gradient of the one before.
        second_real = _jacobian(first_imag, omega)
        second_imag = None if first_real is None else -_jacobian(first_real, omega)
        totals.append(
            (
                _wave(zeroth_real, zeroth_imag, cos, sin, rank=0),
                _wave(first_real, first_imag, cos, sin, rank=1),
                _wave(second_real, second_imag, cos, sin, rank=2),
            )
        )
    mass, first, second = (minus + plus for minus, plus in zip(*totals, strict=True))
    offset = first / mass.unsqueeze(-1)
    square = offset.unsqueeze(-1) * offset.unsqueeze(-2)
    return centre + offset, second / mass[..., None, None] - square


def _wave(real: Tensor | None, imag: Tensor | None, cos: Tensor, sin: Tensor, rank: int) -> Tensor:
    # The sum over pairs of the real parts of a transform times phases.
    index = (...,) + (None,) * rank
    terms = [x * p[index] for x, p in ((real, cos), (imag, -sin)) if x is not None]
    return torch.stack(torch.broadcast_tensors(*terms)).sum(0).sum(-1 - rank)


@_moments.register
def _sphere(base: UniformSphere, network: Network) -> Moments:
    degree = _degree(network.activation)
    if degree is None:
        return _by_engine(base, network)
    # As for the normaliser: events are those of a normal law, divided by a radius.
    d, weight = base.num_statistics, network.weight
    zeros = weight.new_zeros((d,))
    normal = Gaussian(zeros, zeros + 1, validate_args=False)
    mean, covariance = _gaussian(normal, network._replace(base=normal))
    second = covariance + mean.unsqueeze(-1) * mean.unsqueeze(-2)
    mean = mean * _radius(d, 2 * degree, 2 * degree + 1)
    second = second * _radius(d, 2 * degree, 2 * degree + 2)
    return mean, second - mean.unsqueeze(-1) * mean.unsqueeze(-2)


@_moments.register
def _projected(base: ProjectedGaussian, network: Network) -> Moments:
    # A direction, times an independent radius.
    sphere = base.latent(network.weight)
    mean, covariance = _moments(sphere, network._replace(base=sphere))
    second = covariance + mean.unsqueeze(-1) * mean.unsqueeze(-2)
    d = base.num_statistics
    mean = mean / _radius(d, 0, 1)
    second = second / _radius(d, 0, 2)
    return mean, second - mean.unsqueeze(-1) * mean.unsqueeze(-2)


def _degree(activation: Activation) -> int | None:
    if isinstance(activation, ReLU):
        return activation.power
    return {Step: 0, LeakyReLU: 1}.get(type(activation))


def _radius(d: int, numerator: int, denominator: int) -> float:
    # E[r^a] / E[r^b] of the norm of a standard normal vector.
    logs = [k / 2 * math.log(2) + math.lgamma((d + k) / 2) for k in (numerator, denominator)]
    return math.exp(logs[0] - logs[1])


@_moments.register
def _interval(base: Interval, network: Network) -> Moments:
    degree = _degree(network.activation)
    if degree is None:
        return _by_engine(base, network)
    gram = network.form.gram()
    zeroth, first, second = (
        (
            gram
            * piecewise_moment(network.activation, base, network.weight, degree, k)(network.bias)
        ).sum((-2, -1))[..., None]
        for k in range(3)
    )
    mean = first / zeroth
    return mean, (second / zeroth - mean.square()).unsqueeze(-1)
