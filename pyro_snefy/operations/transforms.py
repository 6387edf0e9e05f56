r"""Characteristic functions, moment generating functions and Fisher information of networks."""

__all__ = ["characteristic", "fisher_information", "log_generating"]

from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from ..activations import Exp, FourierActivation
from ..bases import (
    Base,
    Discrete,
    FourierBase,
    Gaussian,
    GaussianMixture,
    LaplaceBase,
    Mixture,
    Product,
    Pushforward,
    Standardized,
)
from ..kernels.kernel import in_chunks
from ..network import Network
from ..numerics.forms import Readout
from ..numerics.linalg import affine, broadcast_shapes, rows_matmul, safe_logsumexp
from .affine import normal_coordinates
from .moments import transform_of_waves

# Entries of frequencies, for all pairs of neurons, that are held at once.
_CHUNK = 2**20


# Moment generating functions --------------------------------------------------------------------


def log_generating(network: Network, eta: Tensor) -> Tensor:
    r"""The logarithm of :math:`\int e^{\eta \cdot x} \|V \sigma(W t(x) + b)\|^2 \mu(dx)`.

    Arguments:
        network: The network, in float64.
        eta: The arguments :math:`\eta`, with shape :math:`(*, d)`.
    """
    return _log_generating(network.base, network, eta)


@singledispatch
def _log_generating(base: Base, network: Network, eta: Tensor) -> Tensor:
    activation = network.activation
    if isinstance(activation, Exp) and isinstance(base, LaplaceBase) and _is_own_statistic(base):
        # s (w_i + w_j) + η is a sum of weights s (w_i + η / 2s).
        weight = network.weight + (eta / (2 * activation.scale)).unsqueeze(-2)
        finite = base.weight_constraint(activation).check(weight)
        safe = torch.where(finite[..., None, None], weight, network.weight)
        value = replace(network, weight=safe).log_normalizer()
        return torch.where(finite, value, torch.inf)
    raise NotImplementedError(
        f"No closed form for the moment generating function of {activation} on {base}. There is "
        "one for every activation on Gaussian, GaussianMixture and Discrete, on Standardized and "
        "Product of Gaussians, and for Exp on bases with t(x) = x."
    )


def _is_own_statistic(base: Base) -> bool:
    parts = base.bases if isinstance(base, Mixture | Product) else ()
    own = type(base).statistic is Base.statistic or bool(parts)
    return own and not isinstance(base, Pushforward) and all(map(_is_own_statistic, parts))


@_log_generating.register
def _(base: Gaussian, network: Network, eta: Tensor) -> Tensor:
    # e^{η·x} N(x; m, C) = e^{η·m + η·Cη / 2} N(x; m + C η, C): a shift of the biases by W C η.
    image = rows_matmul(eta, base.covariance(eta))
    exponent = (eta * (base.mean(eta) + image / 2)).sum(-1)
    bias = affine(image, network.weight, network.bias)
    return exponent + replace(network, bias=bias).log_normalizer()


@_log_generating.register
def _(base: GaussianMixture, network: Network, eta: Tensor) -> Tensor:
    gaussians = base.gaussians
    values = _log_generating(gaussians, network.over(gaussians), eta.unsqueeze(-2))
    return safe_logsumexp(base.log_weights() + values)


@_log_generating.register
def _(base: Mixture, network: Network, eta: Tensor) -> Tensor:
    parts = [_log_generating(part, replace(network, base=part), eta) for part in base.bases]
    return safe_logsumexp(base.log_weights() + torch.stack(torch.broadcast_tensors(*parts), -1))


@_log_generating.register
def _(base: Discrete, network: Network, eta: Tensor) -> Tensor:
    return safe_logsumexp(_log_masses(base, network) + eta @ base.vectors.mT)


@_log_generating.register
def _(base: Standardized, network: Network, eta: Tensor) -> Tensor:
    loc, scale = (x if base.event_dim else x.unsqueeze(-1) for x in (base.loc, base.scale))
    inner = _log_generating(base.base, replace(network, base=base.base), scale * eta)
    return (eta * loc).sum(-1) + inner


@_log_generating.register
def _(base: Product, network: Network, eta: Tensor) -> Tensor:
    found = normal_coordinates(base)
    if found is None:
        return _log_generating.dispatch(Base)(base, network, eta)
    scale = 1.0 if found.scale is None else found.scale
    inner = _log_generating(found.base, replace(network, base=found.base), scale * eta)
    return inner if found.loc is None else (eta * found.loc).sum(-1) + inner


def _log_masses(base: Discrete, network: Network) -> Tensor:
    # log(μ(x) ‖V σ(W x + b)‖²) at all points, (*, K).
    points = base.points
    shape = points.shape[:1] + (1,) * len(network.batch_shape) + base.event_shape
    return network.log_square(points.reshape(shape)).movedim(0, -1) + base.masses.log()


# Characteristic functions -----------------------------------------------------------------------


def characteristic(network: Network, omega: Tensor) -> Tensor:
    r"""The characteristic function :math:`\mathbb{E}[e^{i \omega \cdot x}]`, complex.

    Arguments:
        network: The network, in float64.
        omega: The frequencies :math:`\omega`, with shape :math:`(*, d)`.
    """
    return _characteristic(network.base, network, omega)


@singledispatch
def _characteristic(base: Base, network: Network, omega: Tensor) -> Tensor:
    activation = network.activation
    if (
        isinstance(activation, FourierActivation)
        and isinstance(base, FourierBase)
        and _is_own_statistic(base)
    ):
        return _of_waves(base, network, omega)
    raise NotImplementedError(
        f"No closed form for the characteristic function of {activation} on {base}. There is one "
        "for Cos, Sin, Cis, Snake and Identity on bases with t(x) = x and a characteristic "
        "function, for Exp on Gaussian bases and their mixtures, and on Discrete."
    )


def _of_waves(base: FourierBase, network: Network, omega: Tensor) -> Tensor:
    # A wave cos θ is the real part of e^{iθ}: E[e^{iω·x} Re g] = (T(ω) + conj T(-ω)) / 2.
    shape = broadcast_shapes(omega.shape[:-1], network.batch_shape)
    omega = omega.expand(shape + omega.shape[-1:])

    def halves(rows: Tensor) -> Tensor:
        with torch.enable_grad():
            needed = rows.requires_grad
            rows = rows if needed else rows.detach().requires_grad_()
            values = [transform_of_waves(base, network, sign * rows).values for sign in (1, -1)]
        return (values[0] + values[1].conj()) / 2

    count = _CHUNK // (network.width**2 * omega.shape[-1])
    total = in_chunks(halves, omega, network.batch_shape, max(1, count))
    centre = (omega * base.mean(network.weight)).sum(-1)
    size = (-network.log_normalizer()).exp()
    result = total * size * torch.polar(torch.ones_like(centre), centre)
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in (omega, *network.tensors()))
    return result if tracked else result.detach()


@_characteristic.register
def _(base: Gaussian, network: Network, omega: Tensor) -> Tensor:
    if not isinstance(network.activation, Exp):
        return _characteristic.dispatch(Base)(base, network, omega)
    # A signed mixture of normal laws, with the means m + s C (w_i + w_j) and the covariance C.
    log_scale, matrix = network.kernel().matrix(network.bias)
    assert log_scale is not None
    log_scale = log_scale - network.log_normalizer().unsqueeze(-1) / 2
    image = rows_matmul(omega, base.covariance(omega))
    phase = network.activation.scale * rows_matmul(image, network.weight.mT)  # (*, n)
    shares = network.form.gram() * matrix
    waves = torch.polar(*torch.broadcast_tensors(log_scale.exp(), phase))
    total = (rows_matmul(waves, shares.to(waves.dtype)) * waves).sum(-1)
    centre = (omega * base.mean(omega)).sum(-1)
    return total * torch.polar((-(omega * image).sum(-1) / 2).exp(), centre)


@_characteristic.register
def _(base: GaussianMixture, network: Network, omega: Tensor) -> Tensor:
    if not isinstance(network.activation, Exp):
        return _characteristic.dispatch(Base)(base, network, omega)
    gaussians = base.gaussians
    components = network.over(gaussians)
    values = _characteristic(gaussians, components, omega.unsqueeze(-2))
    return (_shares(base, components.log_normalizer()) * values).sum(-1)


@_characteristic.register
def _(base: Mixture, network: Network, omega: Tensor) -> Tensor:
    parts = [replace(network, base=part) for part in base.bases]
    logs = torch.stack(torch.broadcast_tensors(*(part.log_normalizer() for part in parts)), -1)
    values = [_characteristic(part.base, part, omega) for part in parts]
    return (_shares(base, logs) * torch.stack(torch.broadcast_tensors(*values), -1)).sum(-1)


def _shares(base: Any, log_normalizers: Tensor) -> Tensor:
    return (base.log_weights() + log_normalizers).softmax(-1)


@_characteristic.register
def _(base: Discrete, network: Network, omega: Tensor) -> Tensor:
    phase = omega @ base.vectors.mT
    shares = _log_masses(base, network).softmax(-1)
    return (shares * torch.polar(torch.ones_like(phase), phase)).sum(-1)


@_characteristic.register
def _(base: Standardized, network: Network, omega: Tensor) -> Tensor:
    loc, scale = (x if base.event_dim else x.unsqueeze(-1) for x in (base.loc, base.scale))
    inner = _characteristic(base.base, replace(network, base=base.base), scale * omega)
    return _rotated(inner, (omega * loc).sum(-1))


@_characteristic.register
def _(base: Product, network: Network, omega: Tensor) -> Tensor:
    found = normal_coordinates(base)
    if found is None:
        return _characteristic.dispatch(Base)(base, network, omega)
    scale = 1.0 if found.scale is None else found.scale
    inner = _characteristic(found.base, replace(network, base=found.base), scale * omega)
    return inner if found.loc is None else _rotated(inner, (omega * found.loc).sum(-1))


def _rotated(values: Tensor, phase: Tensor) -> Tensor:
    return values * torch.polar(torch.ones_like(phase), phase)


# Fisher information -----------------------------------------------------------------------------


def fisher_information(network: Network) -> Tensor:
    r"""The Fisher information of a readout with one row :math:`v`, with shape :math:`(*, n, n)`.

    .. math:: I(v) = \frac{4}{Z} \left( K - \frac{K v v^\top K}{Z} \right)

    Arguments:
        network: The network, in float64.
    """
    readout = network.form.matrix if isinstance(network.form, Readout) else None
    if readout is None or readout.shape[-2] != 1 or network.activation.is_complex:
        if network.activation.is_complex:
            given = "a complex activation, whose square has two parts"
        else:
            given = "a gram" if readout is None else f"{readout.shape[-2]} rows"
        raise NotImplementedError(
            "The Fisher information is a closed form for a real readout with one row: only then "
            f"do the scores have the square of one function as a denominator. Got {given}."
        )
    log_scale, matrix = network.kernel().matrix(network.bias)
    log_normalizer = network.log_normalizer()
    if log_scale is None:
        kernel = matrix * (-log_normalizer).exp()[..., None, None]
    else:
        scale = (log_scale - log_normalizer.unsqueeze(-1) / 2).exp()
        kernel = scale.unsqueeze(-1) * matrix * scale.unsqueeze(-2)
    image = kernel @ readout.mT  # (*, n, 1)
    return 4 * (kernel - image @ image.mT)
