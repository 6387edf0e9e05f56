r"""Snakes on Gaussian bases, with a backward pass by hand.

The generic Fourier kernel is right for this pair, too. It is the default likelihood of a
regression, where a step of training is made of many small operations, so that their number counts:
here they are few, and none of them is recorded.
"""

__all__ = ["SnakeGaussian"]

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor
from torch.autograd import Function

from ..activations import Snake
from ..bases.base import cutoff_exp
from ..bases.gaussian import Gaussian
from ..forms import Blocks, Features, Form, Readout
from ..linalg import safe_log
from .fourier import snake_kernel
from .kernel import Separable, in_chunks
from .registry import register_kernel

# Entries of rows of biases that are held at once.
_CHUNK = 2**18


class _Terms(NamedTuple):
    r"""Everything that the normaliser and its gradient are made of; see :func:`_terms`."""

    decay: Tensor
    minus: Tensor
    plus: Tensor
    cos_block: Tensor
    sin_block: Tensor
    gram: Tensor
    linear: Tensor
    cos: Tensor
    sin: Tensor
    mean: Tensor
    mean_out: Tensor
    cos_out: Tensor
    sin_out: Tensor
    value: Tensor


def _terms(
    square: Tensor, bias: Tensor, readout: Tensor, frequency: float, offset: float
) -> _Terms:
    r"""The normaliser :math:`\mathrm{Tr}(V^\top V K)` of rows of biases.

    With :math:`f = 2a`, :math:`S = W C W^\top`, :math:`e_i = e^{-f^2 S_{ii} / 2}` and
    :math:`\bar{\sigma} = b + o - e \cos(f b) / f`, and up to terms that are zero,

    .. math:: K_{ij} = \bar{\sigma}_i \bar{\sigma}_j + S_{ij} + S_{ij} (e_j \sin f b_j + e_i \sin f
        b_i) + \cos f b_i \, G^c_{ij} \cos f b_j + \sin f b_i \, G^s_{ij} \sin f b_j.
    """
    phase = frequency**2 * square
    half = phase.diagonal() / 2
    halves = half.unsqueeze(-1) + half
    decay, minus, plus = cutoff_exp(-half), cutoff_exp(phase - halves), cutoff_exp(-phase - halves)
    factor = 0.5 / frequency**2
    cos_block = factor * (minus + plus) - (2 * factor * decay).unsqueeze(-1) * decay
    sin_block = factor * (minus - plus)
    gram = readout.mT @ readout
    product = gram * square
    linear = product.sum(-2)
    angle = frequency * bias
    cos, sin = angle.cos(), angle.sin()
    mean = bias + offset - cos * (decay / frequency)
    mean_out = mean @ readout.mT
    cos_out, sin_out = cos @ (gram * cos_block), sin @ (gram * sin_block)
    value = (
        mean_out.square().sum(-1)
        + (cos_out * cos).sum(-1)
        + (sin_out * sin).sum(-1)
        + sin @ (2 * linear * decay)
        + product.sum()
    )
    return _Terms(
        decay, minus, plus, cos_block, sin_block, gram, linear,
        cos, sin, mean, mean_out, cos_out, sin_out, value,
    )  # fmt: skip


class _Trace(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        square: Tensor, bias: Tensor, readout: Tensor, frequency: float, offset: float
    ) -> Any:
        # A plain tuple: vmap takes a named one for another structure than its own.
        return tuple(_terms(square, bias, readout, frequency, offset))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        square, bias, readout, ctx.frequency, ctx.offset = inputs
        ctx.save_for_backward(square, bias, readout, *output[:-1])
        ctx.mark_non_differentiable(*output[:-1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        square, bias, readout, *terms = ctx.saved_tensors
        g, f = gradients[-1], ctx.frequency
        if g is None:
            return None, None, None, None, None
        if torch.is_grad_enabled():
            # Derivatives of this gradient are asked for: leave them to autograd.
            with torch.enable_grad():
                value = _terms(square, bias, readout, f, ctx.offset).value
                inputs = [(square, bias, readout)[k] for k in range(3) if ctx.needs_input_grad[k]]
                found = iter(torch.autograd.grad(value, inputs, g, create_graph=True))
            return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)
        t = _Terms._make((*terms, g))
        g = g.unsqueeze(-1)
        g_out = 2 * g * t.mean_out
        g_mean = g_out @ readout
        g_cos, g_sin = g * t.cos, g * t.sin
        cos_square, sin_square = t.cos.mT @ g_cos, t.sin.mT @ g_sin  # (n, n)
        total, sines = g.sum(), 2 * g_sin.sum(0)
        decay_sines = t.decay * sines
        # d value / d bias
        slope = t.sin * (g_mean * (t.decay / f) - 2 * g * t.cos_out)
        slope += t.cos * (2 * g * (t.sin_out + t.linear * t.decay))
        g_bias = g_mean + f * slope
        # d value / d gram and readout
        edge = total + decay_sines  # along columns
        g_gram = cos_square * t.cos_block + sin_square * t.sin_block + square * edge
        g_readout = g_out.mT @ t.mean + readout @ (g_gram + g_gram.mT)
        # d value / d square, through blocks, decays, and directly
        factor = 0.5 / f**2
        g_cos_block, g_sin_block = t.gram * cos_square, t.gram * sin_square
        g_minus = factor * t.minus * (g_cos_block + g_sin_block)
        g_plus = factor * t.plus * (g_cos_block - g_sin_block)
        g_decay = (
            t.linear * sines - (g_mean * t.cos).sum(0) / f - 4 * factor * (g_cos_block @ t.decay)
        )
        g_half = -2 * (g_minus + g_plus).sum(-1) - t.decay * g_decay
        g_phase = g_minus - g_plus
        g_phase.diagonal().add_(g_half / 2)
        g_square = t.gram * edge + f**2 * g_phase
        return g_square, g_bias, g_readout, None, None


class SnakeGaussian(Separable):
    r"""The kernel of a snake on a Gaussian base.

    Arguments:
        activation: The snake.
        base: The base.
        weight: The weights, with shape :math:`(*, n, D)`.
    """

    def __init__(self, activation: Snake, base: Gaussian, weight: Tensor) -> None:
        self.activation, self.base, self.weight = activation, base, weight

    @cached_property
    def _generic(self) -> Separable:
        return snake_kernel(self.activation, self.base, self.weight)

    @property
    def blocks(self) -> Blocks:  # type: ignore[override]
        return self._generic.blocks

    def features(self, bias: Tensor) -> Features:
        return self._generic.features(bias)

    def log_normalizer(self, form: Form, bias: Tensor) -> Tensor:
        square = self.base.quadratic(self.weight)
        if not (isinstance(form, Readout) and form.matrix.dim() == 2 and square.dim() == 2):
            return super().log_normalizer(form, bias)
        frequency = 2 * self.activation.a
        offset = 1 / frequency if self.activation.offset else 0.0
        mean = self.base.mean(self.weight)
        rows = bias + (mean @ self.weight.mT)
        largest = form.matrix.detach().abs().amax().clamp(min=1e-300)
        readout = form.matrix / largest

        def trace(chunk: Tensor) -> Tensor:
            flat = chunk.reshape(-1, chunk.shape[-1])
            value = _Trace.apply(square, flat, readout, frequency, offset)[-1]
            return value.reshape(chunk.shape[:-1])

        value = in_chunks(trace, rows, Size(), _CHUNK // rows.shape[-1])
        return safe_log(value) + 2 * largest.log()


@register_kernel(Snake, Gaussian)
def _snake_gaussian(activation: Snake, base: Gaussian, weight: Tensor) -> SnakeGaussian:
    return SnakeGaussian(activation, base, weight)
