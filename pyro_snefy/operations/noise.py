r"""Noisy linear observations of events with normal bases.

.. math:: y = H x + \varepsilon, \quad \varepsilon \sim \mathcal{N}(0, S)

Given :math:`y`, a normal base :math:`\mathcal{N}(m, C)` becomes
:math:`\mathcal{N}(\hat{m}, \hat{C})` (Kalman 1960), and the network on it stays as it is:

.. math:: p(y) = \mathcal{N}(y; H m, H C H^\top + S) \, \frac{Z(\hat{m}, \hat{C})}{Z(m, C)}, \quad
    G = C H^\top (H C H^\top + S)^{-1}, \quad \hat{m} = m + G (y - H m), \quad
    \hat{C} = (I - G H) C (I - G H)^\top + G S G^\top

The normaliser :math:`Z` is that of Tsuchida, Ong and Sejdinovic, arXiv:2305.13552.
"""

__all__ = ["Observation", "check_observable", "log_numerator", "observed_network", "posterior"]

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Size, Tensor

from ..bases import Base, Gaussian, GaussianMixture, Standardized
from ..bases.base import flatten_batch
from ..network import Network
from ..numerics.linalg import affine, broadcast_shapes, rows_matmul, safe_logsumexp
from ..numerics.recompute import by_rows, recomputed_by_rows
from .affine import Coordinates, normal_coordinates
from .marginals import integrated

# Entries of kernel matrices that are evaluated at once when every row has a covariance of its own.
# Larger chunks leave the cache: twice as slow.
_CHUNK = 2**17
# With more entries than these, chunks are evaluated again in the backward pass.
_KEPT = 2**21


class Observation(NamedTuple):
    r"""How :math:`y = H x + \varepsilon` comes from :math:`x`.

    Arguments:
        noise: The law of :math:`\varepsilon`, a vector of length :math:`e`, with mean zero.
        matrix: The matrix :math:`H`, with shape :math:`(*, e, D)`, or None for the identity.
    """

    noise: Gaussian
    matrix: Tensor | None

    @property
    def batch_shape(self) -> Size:
        """The common batch shape of noise and matrix."""
        own = Size() if self.matrix is None else self.matrix.shape[:-2]
        return broadcast_shapes(self.noise.batch_shape, own)

    def map_batches(self, function: Callable[[Tensor, int], Tensor]) -> "Observation":
        """The same observation with the batch dimensions of its tensors changed."""
        matrix = None if self.matrix is None else function(self.matrix, 2)
        return Observation(self.noise.map_batches(function), matrix)

    def apply(self, x: Tensor) -> Tensor:
        r"""The rows :math:`H x` for rows :math:`x`, with shape :math:`(*, D)`."""
        return x if self.matrix is None else rows_matmul(x, self.matrix.mT)


class _Update(NamedTuple):
    # The normal law given y: log N(y; Hm, HCHᵀ + S), m̂ (*, D), and the root of Ĉ, (*, D) if Ĉ is
    # diagonal, or else its Cholesky factor (*, D, D).
    log_density: Tensor
    mean: Tensor
    factor: Tensor
    is_diagonal: bool

    def gaussian(self, mean: Tensor, event_dim: int = 1) -> Gaussian:
        # The law with the covariance Ĉ and another mean, of a vector or of a number.
        if not event_dim:
            factor = self.factor.squeeze(-1)
            factor = factor if self.is_diagonal else factor.squeeze(-1)
            return Gaussian(mean.squeeze(-1), factor, event_dim=0, validate_args=False)
        if self.is_diagonal:
            return Gaussian(mean, self.factor, validate_args=False)
        return Gaussian(mean, scale_tril=self.factor, validate_args=False)


def check_observable(base: Base) -> Coordinates:
    """The normal coordinates of a base; raises if it has none."""
    found = normal_coordinates(base)
    if found is None:
        raise NotImplementedError(
            f"No closed form for noisy observations of events with the base {base}: expected a "
            "Gaussian, a GaussianMixture, a Standardized of one of these, or a Product of "
            "Gaussians."
        )
    return found


def log_numerator(network: Network, observation: Observation, y: Tensor) -> Tensor:
    r"""The log-density of observations, plus :math:`\log Z`, in float64.

    If all rows share their covariances, rows differ in their biases alone. Otherwise each row has
    a kernel of its own, and rows are evaluated in chunks.

    Arguments:
        network: The network of the events :math:`x`.
        observation: How :math:`y` comes from :math:`x`.
        y: The observations, with shape :math:`(*, e)`.
    """
    network, y = network.to(torch.float64), y.double()
    observation = observation.map_batches(lambda x, _: x.double())
    shape = broadcast_shapes(network.batch_shape, observation.batch_shape)
    flat = network.expand(shape).flatten()
    observation = observation.map_batches(lambda x, rank: flatten_batch(x, rank, shape))
    full = broadcast_shapes(y.shape[:-1], shape)
    members, event = shape.numel(), y.shape[-1:]
    rows = y.expand(full + event).reshape((*full[: len(full) - len(shape)], members, *event))
    return _log_numerator(flat, observation, rows).expand(rows.shape[:-1]).reshape(full)


def _log_numerator(network: Network, observation: Observation, y: Tensor) -> Tensor:
    base, observation, y, log_volume = _in_coordinates(network.base, observation, y)
    if isinstance(base, GaussianMixture):
        gaussians = base.gaussians
        update = _update(gaussians, *_per_component(observation, y))
        inner = network.over(update.gaussian(torch.zeros_like(gaussians.mean(y))))
    else:
        update = _update(base, observation, y)
        inner = replace(network, base=update.gaussian(torch.zeros_like(base.mean(y))))
    # The mean of the base goes to the biases: rows with one covariance share their kernel.
    inner = replace(inner, bias=affine(update.mean, inner.weight, inner.bias))
    parts = int(isinstance(base, GaussianMixture))  # components are one more batch dimension
    value = update.log_density + _log_normalizers(inner, parts)
    if isinstance(base, GaussianMixture):
        value = safe_logsumexp(base.log_weights() + value)
    return value - log_volume


def _log_normalizers(network: Network, parts: int) -> Tensor:
    # For biases (*, R, n), or (*, R, K, n) if there are parts, and R kernels or one.
    def row_dim(x: Tensor, rank: int) -> int | None:
        return 0 if x.dim() - rank > parts else None

    def evaluate(tensors: Sequence[Tensor]) -> Tensor:
        return network.with_tensors(tensors).log_normalizer()

    base, bias = network.base, network.bias
    own = max(network.weight.dim() - 2, len(base.batch_shape))
    rows = bias.shape[-2 - parts]
    entries = network.width**2 * (base.batch_shape[-1:] if parts else Size()).numel()
    if own <= parts or rows * entries <= _CHUNK:
        return network.log_normalizer()
    laws = [row_dim(x, 2 if name == "scale_tril" else 1) for name, x in base.tensors()]
    form = row_dim(network.form.matrix, 2)
    dims = [row_dim(network.weight, 2), bias.dim() - 2 - parts, form, *laws]
    chunked = by_rows if rows * entries <= _KEPT else recomputed_by_rows
    return chunked(evaluate, network.tensors(), dims, max(1, _CHUNK // entries), -1 - parts)


def posterior(base: Base, observation: Observation, y: Tensor) -> Base:
    r"""The base of the events given observations.

    Arguments:
        base: The base of the events.
        observation: How :math:`y` comes from the events.
        y: The observations, with shape :math:`(*, e)`.
    """
    dtype, y = y.dtype, y.double()
    base = base.map(Tensor.double)
    loc, scale = check_observable(base)[1:]
    observation = observation.map_batches(lambda x, _: x.double())
    inner, observation, y, _ = _in_coordinates(base, observation, y)
    result: Base
    if isinstance(inner, GaussianMixture):
        update = _update(inner.gaussians, *_per_component(observation, y))
        law = update.gaussian(update.mean, base.event_dim)
        result = GaussianMixture(
            inner.log_weights() + update.log_density,
            law.loc,
            law.scale,
            scale_tril=law.scale_tril,
            event_dim=base.event_dim,
            validate_args=False,
        )
    else:
        update = _update(inner, observation, y)
        result = update.gaussian(update.mean, base.event_dim)
    if loc is not None and scale is not None:
        if not base.event_dim:
            loc, scale = loc.squeeze(-1), scale.squeeze(-1)
        result = Standardized(result, loc, scale, validate_args=False)
    return result.map(lambda x: x.to(dtype))


def observed_network(network: Network, observation: Observation) -> Network:
    r"""The network of the observations, where they follow a squared neural family themselves.

    Given :math:`y`, events are normal with a mean :math:`\hat{m}_0 + G y` and a covariance that is
    the same for all :math:`y`. Preactivations are thus :math:`W G y` plus their values at
    :math:`y = 0`, and the events are integrated out, see
    :func:`~pyro_snefy.operations.marginals.integrated`. The base is
    :math:`\mathcal{N}(H m, H C H^\top + S)`.

    Arguments:
        network: The network of the events.
        observation: How :math:`y` comes from the events.
    """
    wide, base = network.to(torch.float64).real(), network.base.map(Tensor.double)
    observation = observation.map_batches(lambda x, _: x.double())
    small = None
    if isinstance(base, Gaussian):
        weight, e = wide.weight, observation.noise.num_statistics
        # An affine function of y is known by its values at zero and at unit vectors.
        points = torch.cat(
            [weight.new_zeros(1, e), torch.eye(e, dtype=weight.dtype, device=weight.device)]
        )
        shape = broadcast_shapes(network.batch_shape, observation.batch_shape)
        update = _update(base, observation, points.reshape(e + 1, *(1,) * len(shape), e))
        origin = update.mean[0]  # (*, D)
        gain = (update.mean[1:] - origin).movedim(0, -1)  # (*, D, e)
        small = integrated(replace(wide, base=update.gaussian(origin)), weight @ gain)
    if small is None or not isinstance(base, Gaussian):
        raise NotImplementedError(
            f"Noisy observations of {network.activation} on {network.base} are no squared neural "
            "family: expected Cos, Sin, Cis or Exp on a Gaussian."
        )
    small = replace(small, base=_image(base, observation), batch_shape=shape)
    return small.to(network.weight.dtype)


def _image(base: Gaussian, observation: Observation) -> Gaussian:
    # N(Hm, HCHᵀ + S), of a number if H is the identity and events are numbers.
    noise, matrix = observation
    like = noise.factor
    covariance = base.covariance(like)
    if matrix is not None:
        covariance = matrix @ covariance @ matrix.mT
    factor = _cholesky(covariance + noise.covariance(like))
    mean = observation.apply(base.mean(like))
    if matrix is None and not base.event_dim:
        return Gaussian(mean.squeeze(-1), factor[..., 0, 0], event_dim=0, validate_args=False)
    return Gaussian(mean, scale_tril=factor, validate_args=False)


def _in_coordinates(
    base: Base, observation: Observation, y: Tensor
) -> tuple[Gaussian | GaussianMixture, Observation, Tensor, Tensor]:
    # The same observation of the normal coordinates u of events x = l + s u: y - H l = H s u + ε.
    # If H is the identity, both sides are divided by s, whose log-volume comes last.
    inner, loc, scale = check_observable(base)
    zero = y.new_zeros(())
    if loc is None or scale is None:
        return inner, observation, y, zero
    y, (noise, matrix) = y - observation.apply(loc), observation
    if matrix is not None:
        return inner, Observation(noise, matrix * scale.unsqueeze(-2)), y, zero
    if noise.scale_tril is None:
        noise = Gaussian(noise.loc, noise.factor / scale, validate_args=False)
    else:
        factor = noise.scale_tril / scale.unsqueeze(-1)
        noise = Gaussian(noise.loc, scale_tril=factor, validate_args=False)
    return inner, Observation(noise, None), y / scale, scale.log().sum(-1)


def _per_component(observation: Observation, y: Tensor) -> tuple[Observation, Tensor]:
    apart = observation.map_batches(lambda x, rank: x.unsqueeze(-1 - rank) if x.dim() > rank else x)
    return apart, y.unsqueeze(-2)


def _update(base: Gaussian, observation: Observation, y: Tensor) -> _Update:
    noise, matrix = observation
    mean = base.mean(y)
    if matrix is None and noise.scale_tril is None and base.scale_tril is None:
        spread, error = base.factor.square(), noise.factor.square()
        total = spread + error
        law = Gaussian(mean, total.sqrt(), validate_args=False)
        moved = mean + spread / total * (y - mean)
        return _Update(law.log_density(y), moved, (spread * error / total).sqrt(), True)
    covariance, error = base.covariance(y), noise.covariance(y)
    eye = torch.eye(mean.shape[-1], dtype=y.dtype, device=y.device)
    matrix = eye if matrix is None else matrix
    across = matrix @ covariance  # (*, e, D)
    factor = _cholesky(across @ matrix.mT + error)
    image = rows_matmul(mean, matrix.mT)
    law = Gaussian(image, scale_tril=factor, validate_args=False)
    # Unlike torch.cholesky_solve, triangular systems do not wait for the device.
    half = torch.linalg.solve_triangular(factor, across, upper=False)
    gain = torch.linalg.solve_triangular(factor.mT, half, upper=True).mT  # (*, D, e)
    moved = mean + rows_matmul(y - image, gain.mT)
    # The form of Joseph: a sum of squares, which stays positive definite.
    left = eye - gain @ matrix
    narrowed = left @ covariance @ left.mT + gain @ error @ gain.mT
    return _Update(law.log_density(y), moved, _cholesky(narrowed), False)


def _cholesky(matrix: Tensor) -> Tensor:
    # Without waiting for the device: NaN where there is no factor.
    factor, info = torch.linalg.cholesky_ex(matrix)
    return torch.where(info[..., None, None] == 0, factor, torch.nan)
