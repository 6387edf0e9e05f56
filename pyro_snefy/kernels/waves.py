r"""Waves on Gaussian bases.

The generic Fourier kernels are right for these pairs, too. They are the default likelihood of a
regression, and what rows with missing values and mixtures are made of, so that they have passes by
hand.
"""

__all__ = ["WaveGaussian", "WaveMixture"]

import math
from functools import cached_property
from typing import Any

import torch
from torch import Size, Tensor

from ..activations import Activation, Cos, Sin, Snake
from ..bases.gaussian import Gaussian
from ..bases.mixture import GaussianMixture
from ..numerics.forms import Blocks, Features, Form, Readout
from ..numerics.linalg import affine, broadcast_shapes, safe_log, safe_logsumexp
from .kernel import Separable, in_chunks
from .passes import LogSnakes, LogTrace, LogWaves, Squares, frequency, in_order, wave_kernel
from .registry import register_kernel

# Entries of rows of biases that are held at once.
_CHUNK = 2**18
_WIDE = torch.float64


def _rescale(readout: Tensor) -> tuple[Tensor, Tensor | None]:
    # Squares of float32 are numbers in float64, those of float64 need not be.
    if readout.dtype != _WIDE:
        return readout, None
    largest = readout.detach().abs().amax()
    largest = torch.where(largest > 0, largest, 1.0)
    return readout / largest, largest


class _Wave(Separable):
    r"""The kernel of a wave, from tensors of any dtype, and generic unless a subclass knows better.

    Arguments:
        activation: The wave.
        base: The base.
        weight: The weights, with shape :math:`(*, n, D)`.
    """

    def __init__(self, activation: Activation, base: Any, weight: Tensor) -> None:
        self.activation, self.base, self.weight = activation, base, weight

    @property
    def _function(self) -> type[LogTrace]:
        return LogSnakes if isinstance(self.activation, Snake) else LogWaves

    @cached_property
    def _generic(self) -> Separable:
        base, weight = self.base.map(Tensor.double), self.weight.double()
        return wave_kernel(self.activation, base, weight)

    @property
    def blocks(self) -> Blocks:  # type: ignore[override]
        return self._generic.blocks

    def features(self, bias: Tensor) -> Features:
        return self._generic.features(bias.double())

    def log_normalizer(self, form: Form, bias: Tensor) -> Tensor:
        return super().log_normalizer(form.to(_WIDE), bias.double())


class WaveGaussian(_Wave):
    r"""The kernel of a wave on a Gaussian base, or on a batch of them."""

    def log_normalizer(self, form: Form, bias: Tensor) -> Tensor:
        weight, base, readout = self.weight, self.base, form.matrix
        if weight.dim() > 2 or not isinstance(form, Readout):
            return super().log_normalizer(form, bias)
        if readout.dim() > 2:
            if base.batch_shape:
                return super().log_normalizer(form, bias)
            return self._by_row(readout, bias)
        loc, scale = base.mean(weight), base.factor
        rank = 1 if base.scale_tril is None else 2
        if scale.dim() == rank and loc.dim() > 1:
            # Means that differ from row to row belong to the biases.
            bias = bias + loc.to(bias.dtype) @ weight.to(bias.dtype).mT
            loc = torch.zeros_like(loc[(0,) * (loc.dim() - 1)])
        readout, largest = _rescale(readout)
        if loc.dim() == 1 and scale.dim() == rank:
            loc, scale = loc.unsqueeze(0), scale.unsqueeze(0)

            def log_trace(rows: Tensor) -> Tensor:
                flat = rows.reshape(1, -1, rows.shape[-1])
                value = self._function.call(
                    weight, loc, scale, flat, readout, None, self.activation
                )
                return value.reshape(rows.shape[:-1])

            value = in_chunks(log_trace, bias, Size(), _CHUNK // bias.shape[-1])
        else:
            value = self._batched(loc, scale, rank, bias, readout)
        return value if largest is None else value + 2 * largest.log()

    def log_ratio(self, form: Form, bias: Tensor, statistic: Tensor) -> Tensor | None:
        weight, base, readout = self.weight, self.base, form.matrix
        rows = bias.shape[:-1]
        if weight.dim() > 2 or base.batch_shape or not isinstance(form, Readout):
            return None
        if readout.dim() > 2:
            log_square = form.log_square(self.activation.features(affine(statistic, weight, bias)))
            log_trace = self._by_row(readout, bias)
            return torch.where(log_trace > -torch.inf, log_square - log_trace, -torch.inf)
        if not rows or statistic.shape[:-1] != rows:
            return None
        loc, scale, n = base.mean(weight).unsqueeze(0), base.factor.unsqueeze(0), bias.shape[-1]
        readout, _ = _rescale(readout)  # of which ratios do not depend

        def log_ratio(bias: Tensor, points: Tensor) -> Tensor:
            return self._function.call(weight, loc, scale, bias, readout, points, self.activation)

        if len(rows) > 1:
            bias, statistic = bias.flatten(0, -2), statistic.flatten(0, -2)
        if bias.numel() <= _CHUNK:
            value = log_ratio(bias, statistic)
        else:
            both, sizes = torch.cat([bias, statistic], dim=-1), [n, statistic.shape[-1]]
            value = in_chunks(
                lambda chunk: log_ratio(*chunk.split(sizes, dim=-1)), both, Size(), _CHUNK // n
            )
        return value.reshape(rows) if len(rows) > 1 else value

    def _by_row(self, readout: Tensor, bias: Tensor) -> Tensor:
        # A readout for each row: its rows times the waves, against matrices that all rows share.
        # A snake is its mean, its mean slope times the statistic, and what is left of the waves.
        base, activation = self.base.map(Tensor.double), self.activation
        speed, dtype = frequency(activation), bias.dtype
        weight = speed * self.weight.double()
        largest = readout.detach().abs().amax((-2, -1), keepdim=True)
        largest = torch.where(largest > 0, largest, 1.0)
        readout = readout.to(dtype) / largest
        angle = speed * bias + (weight @ base.mean(weight)).to(dtype)
        first, second = in_order(activation, angle.cos(), angle.sin())
        (minus, _), (plus, _) = base.pair_characteristics(weight)
        even, odd = (minus + plus) / 2, (minus - plus) / 2
        total: Tensor | float = 0.0
        if isinstance(activation, Snake):
            (decay, _), white = base.characteristic(weight), base.whiten(weight)
            outer, narrow = decay.unsqueeze(-1) * decay, decay.to(dtype)
            even, odd = even - outer, odd - outer * (white @ white.mT)
            mean = angle + (1.0 if activation.offset else 0.0) - narrow * first
            slope = (1 + narrow * second).unsqueeze(-1) * white.to(dtype)  # (*, n, D)
            outputs = readout @ torch.cat([mean.unsqueeze(-1), slope], dim=-1)
            total = torch.linalg.vector_norm(outputs, dim=(-2, -1), dtype=_WIDE).square()
        for wave, matrix in ((first, even), (second, odd)):
            rows = readout * wave.unsqueeze(-2)  # (*, m, n)
            squares = Squares.call(rows.flatten(0, -2), matrix)
            total = total + squares.reshape(rows.shape[:-1]).sum(-1)
        assert isinstance(total, Tensor)
        constant = 2 * (largest.log().squeeze((-2, -1)) - math.log(speed))
        return safe_log(total) + constant

    def _batched(
        self, loc: Tensor, scale: Tensor, rank: int, bias: Tensor, readout: Tensor
    ) -> Tensor:
        # A base for each of some batch dimensions, which come first, then rows for each base.
        n, d = self.weight.shape
        batch = broadcast_shapes(loc.shape[:-1], scale.shape[: scale.dim() - rank])
        loc = loc.expand(batch + loc.shape[-1:]).reshape(-1, d)
        scale = scale.expand(batch + scale.shape[-rank:]).reshape(-1, *scale.shape[-rank:])
        shape = broadcast_shapes(batch, bias.shape[:-1])
        batch = Size((1,) * (len(shape) - len(batch)) + tuple(batch))
        bias = bias.reshape((1,) * (len(shape) + 1 - bias.dim()) + bias.shape)
        own = [k for k, size in enumerate(batch) if size != 1]
        free = [k for k, size in enumerate(batch) if size == 1]
        if any(bias.shape[k] != 1 for k in own):
            bias = bias.expand(*(shape[k] if k in own else -1 for k in range(len(shape))), n)
        count = loc.shape[0] if any(bias.shape[k] != 1 for k in own) else 1
        rows = bias.permute(*own, *free, -1).reshape(count, -1, n)
        value = self._function.call(self.weight, loc, scale, rows, readout, None, self.activation)
        value = value.reshape([shape[k] for k in own] + [bias.shape[k] for k in free])
        order = own + free
        return value.permute(*(order.index(k) for k in range(len(shape))))


class WaveMixture(_Wave):
    r"""The kernel of a wave on a mixture of normal laws."""

    def log_normalizer(self, form: Form, bias: Tensor) -> Tensor:
        base, weight = self.base, self.weight
        if bias.dim() > 1 or weight.dim() > 2 or base.batch_shape:
            return super().log_normalizer(form, bias)
        # One row: its normalisers under all components, where rows would take their mixture.
        components = WaveGaussian(self.activation, base.gaussians, weight)
        values = components.log_normalizer(form, bias)
        return safe_logsumexp(base.logits.double().log_softmax(-1) + values)


@register_kernel(Cos, GaussianMixture, narrow=True)
@register_kernel(Sin, GaussianMixture, narrow=True)
@register_kernel(Snake, GaussianMixture, narrow=True)
def _wave_mixture(activation: Activation, base: GaussianMixture, weight: Tensor) -> WaveMixture:
    return WaveMixture(activation, base, weight)


@register_kernel(Cos, Gaussian, narrow=True)
@register_kernel(Sin, Gaussian, narrow=True)
@register_kernel(Snake, Gaussian, narrow=True)
def _wave_gaussian(activation: Activation, base: Gaussian, weight: Tensor) -> WaveGaussian:
    return WaveGaussian(activation, base, weight)
