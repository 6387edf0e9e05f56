r"""Integrals of products of two squared networks, for distances between their laws.

The square of a network is a sum of waves, or of exponentials (:class:`Spectrum`). Integrals of a
product of two squares are then double sums over pairs of terms. They take :math:`O(n^4)` time, and
bounded memory.
"""

__all__ = ["affinity_bound", "overlap"]

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..activations import Cos, Exp, Sin
from ..bases import Base, Gaussian, GaussianMixture
from ..network import Network
from ..numerics.forms import Readout
from ..numerics.hyperbolic import damped_hyperbolic
from ..numerics.linalg import broadcast_shapes
from ..numerics.recompute import recomputed
from .affine import normal_coordinates

# Pairs of terms that are held at once.
_CHUNK = 2**20


class Spectrum(NamedTuple):
    r"""The square of a network over its normalising constant, as a sum of terms.

    .. math:: \frac{\|V \sigma(W x + b)\|^2}{Z} = \sum_a A_a \cos(\nu_a \cdot x + \beta_a)
        \quad \text{or} \quad \sum_a A_a e^{\nu_a \cdot x + \beta_a}

    Arguments:
        frequency: :math:`\nu`, with shape :math:`(*, A, D)`.
        phase: :math:`\beta`, with shape :math:`(*, A)`.
        amplitude: :math:`A`, with shape :math:`(*, A)`.
    """

    frequency: Tensor
    phase: Tensor
    amplitude: Tensor


class _Coupling(NamedTuple):
    # The joint law of x and y given x - y = ε, for normal laws in batches (*): the log-density of
    # x - y at ε = 0, means (*, D), and covariances (*, D, D).
    log_density: Tensor
    mean: tuple[Tensor, Tensor]
    own: tuple[Tensor, Tensor]
    cross: Tensor


def overlap(left: Network, right: Network, variance: Tensor) -> Tensor:
    r"""The integral :math:`\int \int p(x) q(y) \, \mathcal{N}(x - y; 0, v I) \, dx \, dy`.

    For :math:`v = 0` it is :math:`\int p(x) q(x) \, dx`.

    Arguments:
        left, right: Networks in float64, of cosines and sines or of exponentials, on normal bases
            and their mixtures.
        variance: The variance :math:`v`, a number.
    """
    left, right = _in_events(left), _in_events(right)
    waves = all(isinstance(x.activation, Cos) for x in (left, right))
    if not waves and not all(isinstance(x.activation, Exp) for x in (left, right)):
        raise NotImplementedError(
            f"No closed form for the overlap of {left.activation} and {right.activation}. Expected "
            "two of Cos, Sin and Cis, or Exp twice."
        )
    spectra = [_waves(x) if waves else _exponentials(x) for x in (left, right)]
    (first, one), (second, other) = (_components(x.base) for x in (left, right))
    coupling = _couple(_apart(first, -1), _apart(second, -2), variance)  # (*, K, L)
    spectra = [
        Spectrum(_beside(x.frequency, 2), _beside(x.phase, 1), _beside(x.amplitude, 1))
        for x in spectra
    ]
    terms = _wave_terms if waves else _exponential_terms
    values = terms(spectra[0], spectra[1], coupling)
    log_weights = one.unsqueeze(-1) + other.unsqueeze(-2) + coupling.log_density
    return (log_weights.exp() * values).sum((-2, -1))


def _beside(x: Tensor, rank: int) -> Tensor:
    # With two dimensions of length one, for components, between batch dimensions and the others.
    return x if x.dim() == rank else x[(..., None, None) + (slice(None),) * rank]


def _in_events(network: Network) -> Network:
    # The network on the law of its events, x = l + s u, with cosines for all waves.
    base = network.base
    found = normal_coordinates(base)
    if found is None:
        raise NotImplementedError(
            f"No closed form for the overlap of families on {base}: expected Gaussian or "
            "GaussianMixture bases, Standardized of these, or Product of Gaussians."
        )
    if isinstance(network.activation, Sin):
        network = replace(network, activation=Cos(), bias=network.bias - torch.pi / 2)
    network = replace(network.real(), base=found.base)
    if found.loc is None or found.scale is None:
        return network
    loc, scale = found.loc, found.scale
    weight = network.weight / scale.unsqueeze(-2)
    bias = network.bias - (weight * loc.unsqueeze(-2)).sum(-1)
    return Network.of(
        network.activation, _moved(found.base, loc, scale), weight, bias, network.form
    )


def _moved(base: Gaussian | GaussianMixture, loc: Tensor, scale: Tensor) -> Base:
    gaussians = base
    if isinstance(base, GaussianMixture):
        gaussians, loc, scale = base.gaussians, loc.unsqueeze(-2), scale.unsqueeze(-2)
    assert isinstance(gaussians, Gaussian)
    place = loc + scale * gaussians.mean(loc)
    tril = gaussians.scale_tril
    own = scale * gaussians.factor if tril is None else None
    full = None if tril is None else scale.unsqueeze(-1) * tril
    if isinstance(base, GaussianMixture):
        return GaussianMixture(base.logits, place, own, scale_tril=full, validate_args=False)
    return Gaussian(place, own, scale_tril=full, validate_args=False)


def _components(base: Base) -> tuple[Gaussian, Tensor]:
    # The components of a mixture with their log-weights, or a Gaussian as the only one.
    if isinstance(base, GaussianMixture):
        return base.gaussians, base.log_weights()
    assert isinstance(base, Gaussian)
    mean = base.mean(base.loc).unsqueeze(-2)
    if base.scale_tril is None:
        one = Gaussian(mean, base.factor.unsqueeze(-2), validate_args=False)
    else:
        one = Gaussian(mean, scale_tril=base.scale_tril.unsqueeze(-3), validate_args=False)
    return one, mean.new_zeros((1,))


def _apart(base: Gaussian, dim: int) -> Gaussian:
    # With one more batch dimension, behind the components or before them.
    return base.map_batches(lambda x, rank: x.unsqueeze(dim - rank))


def _couple(left: Gaussian, right: Gaussian, variance: Tensor) -> _Coupling:
    like = left.loc
    means = left.mean(like), right.mean(like)
    first, second = left.covariance(like), right.covariance(like)
    eye = torch.eye(first.shape[-1], dtype=like.dtype, device=like.device)
    factor = torch.linalg.cholesky(first + second + variance * eye)
    offset = (means[0] - means[1]).unsqueeze(-1)  # (*, D, 1)
    law = Gaussian(torch.zeros_like(like), scale_tril=factor, validate_args=False)
    solved = torch.cholesky_solve(offset, factor)
    gains = [torch.cholesky_solve(c, factor) for c in (first, second)]  # S⁻¹ C
    return _Coupling(
        law.log_density(offset.squeeze(-1)),
        (
            means[0] - (first @ solved).squeeze(-1),
            means[1] + (second @ solved).squeeze(-1),
        ),
        (first - first @ gains[0], second - second @ gains[1]),
        first @ gains[1],
    )


def _pairs(network: Network) -> tuple[Tensor, Tensor, Tensor]:
    # All pairs i ≤ j of neurons, and M_ij / Z, halved for i = j: twice their sum is the square.
    n = network.width
    i, j = torch.triu_indices(n, n, device=network.weight.device)
    gram = network.form.gram() * (-network.log_normalizer()).exp()[..., None, None]
    return i, j, gram[..., i, j] * torch.where(i == j, 0.5, 1.0).to(gram.dtype)


def _waves(network: Network) -> Spectrum:
    # 2 cos z_i cos z_j = cos(z_i - z_j) + cos(z_i + z_j).
    i, j, amplitude = _pairs(network)
    weight, bias = network.weight, network.bias
    frequency = [weight[..., i, :] + sign * weight[..., j, :] for sign in (-1, 1)]
    phase = [bias[..., i] + sign * bias[..., j] for sign in (-1, 1)]
    return Spectrum(torch.cat(frequency, -2), torch.cat(phase, -1), torch.cat([amplitude] * 2, -1))


def _exponentials(network: Network) -> Spectrum:
    # The normalising constant goes to the phases, where nothing overflows.
    assert isinstance(network.activation, Exp)
    scale, n = network.activation.scale, network.width
    i, j = torch.triu_indices(n, n, device=network.weight.device)
    weight, bias = scale * network.weight, scale * network.bias
    phase = bias[..., i] + bias[..., j] - network.log_normalizer().unsqueeze(-1)
    amplitude = network.form.gram()[..., i, j] * torch.where(i == j, 1.0, 2.0).to(weight.dtype)
    return Spectrum(weight[..., i, :] + weight[..., j, :], phase, amplitude)


def _squares(rows: Tensor, matrix: Tensor) -> Tensor:
    return ((rows @ matrix) * rows).sum(-1)


def _wave_terms(left: Spectrum, right: Spectrum, coupling: _Coupling) -> Tensor:
    # E[cos X cos Y] of normal X, Y with means β, γ, variances v, w and covariance c:
    # e^{-(v + w) / 2} (cosh c cos β cos γ + sinh c sin β sin γ).
    sides = []
    for spectrum, mean, own in zip((left, right), coupling.mean, coupling.own, strict=True):
        angle = spectrum.phase + (spectrum.frequency @ mean.unsqueeze(-1)).squeeze(-1)
        waves = spectrum.amplitude.unsqueeze(-2) * torch.stack([angle.cos(), angle.sin()], -2)
        sides.append((waves, _squares(spectrum.frequency, own) / 2))
    (first, half), (second, other) = sides
    image = right.frequency @ coupling.cross.mT  # (*, B, D)

    def some(rows: Tensor) -> Tensor:
        phase = left.frequency[..., rows, :] @ image.mT  # (*, A', B)
        damping = half[..., rows].unsqueeze(-1) + other.unsqueeze(-2)
        products = torch.stack(damped_hyperbolic(*torch.broadcast_tensors(phase, damping)), -3)
        right_sums = (products @ second.unsqueeze(-1)).squeeze(-1)  # (*, 2, A')
        return (first[..., rows] * right_sums).sum((-2, -1))

    return _in_chunks(some, half.shape[-1], other)


def _exponential_terms(left: Spectrum, right: Spectrum, coupling: _Coupling) -> Tensor:
    # E[e^{X + Y}] = e^{β + v} e^{γ + w} e^{-(v + w - 2c) / 2}, and the last factor is at most one.
    sides = []
    for spectrum, mean, own in zip((left, right), coupling.mean, coupling.own, strict=True):
        square = _squares(spectrum.frequency, own)
        mean_of = (spectrum.frequency @ mean.unsqueeze(-1)).squeeze(-1)
        sides.append((spectrum.phase + mean_of + square, square / 2, spectrum.amplitude))
    (log_first, half, first), (log_second, other, second) = sides
    largest = [x.detach().amax(-1, keepdim=True) for x in (log_first, log_second)]
    first = first * (log_first - largest[0]).exp()
    second = second * (log_second - largest[1]).exp()
    image = right.frequency @ coupling.cross.mT

    def some(rows: Tensor) -> Tensor:
        phase = left.frequency[..., rows, :] @ image.mT
        damping = half[..., rows].unsqueeze(-1) + other.unsqueeze(-2)
        right_sums = ((phase - damping).exp() @ second.unsqueeze(-1)).squeeze(-1)
        return (first[..., rows] * right_sums).sum(-1)

    total = _in_chunks(some, half.shape[-1], other)
    return total * (largest[0] + largest[1]).squeeze(-1).exp()


def _in_chunks(function: Callable[[Tensor], Tensor], count: int, other: Tensor) -> Tensor:
    # Sums a function of some terms of one spectrum, beside all terms (*, B) of the other.
    size = max(1, _CHUNK // other.numel())
    chunks = torch.arange(count, device=other.device).split(size)
    if len(chunks) == 1:
        return function(chunks[0])
    return sum((recomputed(function, rows) for rows in chunks[1:]), recomputed(function, chunks[0]))


def affinity_bound(left: Network, right: Network) -> Tensor:
    r"""A lower bound of :math:`\int \sqrt{p q}`, for networks of one activation on one base.

    .. math:: F = \frac{\|V_1 K_{12} V_2^\top\|_*}{\sqrt{Z_1 Z_2}} \leq \int \sqrt{p(x) q(x)} \, dx

    Here :math:`\|\cdot\|_*` is the nuclear norm: the largest :math:`\int f^\top U g \, d\mu` of all
    orthogonal :math:`U`, where :math:`\|f\|^2` and :math:`\|g\|^2` are the squares.

    Arguments:
        left, right: Networks in float64.
    """
    left, right = left.real(), right.real()
    n = left.width
    both = replace(
        left,
        weight=_stacked(left.weight, right.weight, 2),
        bias=_stacked(left.bias, right.bias, 1),
    )
    log_scale, matrix = both.kernel().matrix(both.bias)
    first, second = _root(left), _root(right)
    logs = [-network.log_normalizer() / 2 for network in (left, right)]
    if log_scale is None:
        factors = [log.unsqueeze(-1).exp() for log in logs]
    else:
        scales = log_scale[..., :n], log_scale[..., n:]
        factors = [(s + log.unsqueeze(-1)).exp() for s, log in zip(scales, logs, strict=True)]
    first, second = first * factors[0].unsqueeze(-2), second * factors[1].unsqueeze(-2)
    image = first @ matrix[..., :n, n:] @ second.mT
    return torch.linalg.matrix_norm(image, ord="nuc").clamp(max=1.0)


def _stacked(left: Tensor, right: Tensor, rank: int) -> Tensor:
    batch = broadcast_shapes(left.shape[: left.dim() - rank], right.shape[: right.dim() - rank])
    pair = [x.expand(batch + x.shape[x.dim() - rank :]) for x in (left, right)]
    return torch.cat(pair, dim=-rank)


def _root(network: Network) -> Tensor:
    # A readout V with VᵀV = M.
    if isinstance(network.form, Readout):
        return network.form.matrix
    values, vectors = torch.linalg.eigh(network.form.gram())
    return values.clamp(min=0).sqrt().unsqueeze(-1) * vectors.mT
