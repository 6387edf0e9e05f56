r"""Snakes on Gaussian bases, with a backward pass by hand.

The generic Fourier kernel is right for this pair, too. It is the default likelihood of a
regression, where a step of training is made of many small operations, so that their number counts:
here they are few, and none of them is recorded.
"""

__all__ = ["SnakeGaussian"]

import math
from functools import cached_property
from typing import Any

import torch
from torch import Size, Tensor

from ..activations import Snake
from ..bases.base import CUTOFF, cutoff_exp
from ..bases.gaussian import Gaussian
from ..forms import Blocks, Features, Form, Readout
from ..fused import Fused
from ..linalg import safe_log
from .fourier import snake_kernel
from .kernel import Separable, in_chunks
from .registry import register_kernel

# Entries of rows of biases that are held at once.
_CHUNK = 2**18
_LOG_2 = math.log(2)


class _LogTrace(Fused):
    r"""The logarithm of the normaliser :math:`\mathrm{Tr}(V^\top V K)` of rows of biases.

    With :math:`f = 2a`, angles :math:`\beta = f (b + s)`, where :math:`s` is the shift, phases
    :math:`P = f^2 A A^\top`, :math:`e_i = e^{-P_{ii} / 2}`, means :math:`\bar{\sigma} = \beta + f o
    - e \cos \beta`, and up to terms that are zero,

    .. math:: f^2 K_{ij} = \bar{\sigma}_i \bar{\sigma}_j + P_{ij} (1 + e_i \sin \beta_i
        + e_j \sin \beta_j) + \cos \beta_i \, G^c_{ij} \cos \beta_j
        + \sin \beta_i \, G^s_{ij} \sin \beta_j,

    .. math:: G^c_{ij} = \frac{E^-_{ij} + E^+_{ij}}{2} - e_i e_j, \quad
        G^s_{ij} = \frac{E^-_{ij} - E^+_{ij}}{2}, \quad
        E^{\mp}_{ij} = e^{\pm P_{ij} - (P_{ii} + P_{jj}) / 2}.

    Values are computed in float64, since terms of both signs cancel in them. Rows of gradients are
    computed in the dtype of the biases: of those no more is lost than of the gradients of the
    density itself.

    Arguments:
        weight: The weights :math:`W`, with shape :math:`(n, D)`.
        loc: The mean :math:`c` of the base, with shape :math:`(D)`.
        scale: The factor :math:`L` of its covariance, with shape :math:`(D, D)`, or its diagonal,
            with shape :math:`(D)`.
        bias: The biases, with shape :math:`(B, n)`.
        readout: The readout, with shape :math:`(m, n)`.
        frequency: The frequency :math:`f`.
        offset: The offset :math:`o`.
    """

    @staticmethod
    def plain(
        weight: Tensor,
        loc: Tensor,
        scale: Tensor,
        bias: Tensor,
        readout: Tensor,
        frequency: float,
        offset: float,
    ) -> Tensor:
        weight, readout = frequency * weight.double(), readout.double()
        shift = weight @ loc.double()
        white = weight @ scale.double() if scale.dim() == 2 else weight * scale.double()
        phase = white @ white.mT
        half = phase.diagonal() / 2
        halves = half.unsqueeze(-1) + half
        decay = cutoff_exp(-half)
        minus, plus = cutoff_exp(phase - halves), cutoff_exp(-phase - halves)
        cos_block = (minus + plus) / 2 - decay.unsqueeze(-1) * decay
        gram = readout.mT @ readout
        linear = (gram * phase).sum(-2)
        angle = frequency * bias.double() + shift
        cos, sin = angle.cos(), angle.sin()
        mean = angle + frequency * offset - cos * decay
        value = (
            (mean @ readout.mT).square().sum(-1)
            + (cos @ (gram * cos_block) * cos).sum(-1)
            + (sin @ (gram * (minus - plus) / 2) * sin).sum(-1)
            + sin @ (2 * linear * decay)
            + linear.sum()
        )
        return safe_log(value) - 2 * math.log(frequency)

    @staticmethod
    def value(
        weight: Tensor,
        loc: Tensor,
        scale: Tensor,
        bias: Tensor,
        readout: Tensor,
        frequency: float,
        offset: float,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (rows, n), wide = bias.shape, torch.float64
        weight = weight.to(wide).mul(frequency)
        shift, scale = torch.mv(weight, loc.to(wide)), scale.to(wide)
        white = torch.mm(weight, scale) if scale.dim() == 2 else weight * scale
        # n x n
        readout = readout.to(wide)
        gram, phase = torch.mm(readout.t(), readout), torch.mm(white, white.t())
        half = phase.diagonal().mul(0.5)
        halves = torch.add(half.unsqueeze(-1), half).add_(_LOG_2)
        waves = white.new_empty((2, n, n))
        minus, plus = waves.unbind()
        torch.sub(phase, halves, out=minus)
        torch.add(phase, halves, out=plus).neg_()
        waves.clamp_(min=CUTOFF).exp_()
        decay = half.clamp_(max=-CUTOFF).neg_().exp_()
        blocks = white.new_empty((3, n, n))
        cos_square, cos_block, sin_block = blocks.unbind()
        torch.add(minus, plus, out=cos_square)
        torch.addr(cos_square, decay, decay, alpha=-1, out=cos_block)
        torch.sub(minus, plus, out=sin_block)
        linear = torch.mul(gram, phase).sum(0)
        edge = linear * decay
        # B x n
        features = white.new_empty((3, rows, n))
        waves_in, (cos, sin, mean) = features[:2], features.unbind()
        torch.add(shift, bias, alpha=frequency, out=mean)
        torch.cos(mean, out=cos)
        torch.sin(mean, out=sin)
        mean.addcmul_(cos, decay, value=-1)
        if offset:
            mean.add_(frequency * offset)
        mean_out, waves_out = torch.mm(mean, readout.t()), torch.bmm(waves_in, gram * blocks[1:])
        waves_out[1] += edge
        value = torch.addmv(linear.sum(), sin, edge)
        value += torch.mul(waves_in, waves_out).sum(-1).sum(0)
        value += mean_out.square().sum(-1)
        log_value = value.clamp(min=0).log_().sub_(2 * math.log(frequency))
        saved = (
            value, readout, gram, white, phase, decay, blocks, linear, features, mean_out, waves_out
        )  # fmt: skip
        return log_value, saved

    @staticmethod
    def gradient(grad: Tensor, inputs: Any, saved: Any, needed: Any) -> tuple[Tensor | None, ...]:
        (
            value, readout, gram, white, phase, decay, blocks, linear, features, mean_out, waves_out
        ) = saved  # fmt: skip
        weight, loc, scale, bias, matrix, frequency, _ = inputs
        wide, narrow = value.dtype, bias.dtype
        # B x n, where everything is twice its own
        grad = (grad / value).mul_(2).masked_fill_(value <= 0, 0.0).to(narrow)
        column, narrow_readout = grad.unsqueeze(-1), readout.to(narrow)
        features, waves_out = features.to(narrow), waves_out.to(narrow)
        waves_in, (cos, sin, mean) = features[:2], features.unbind()
        g_out = mean_out.to(narrow) * column
        g_mean, g_readout = torch.mm(g_out, narrow_readout), torch.mm(g_out.t(), mean)
        scratch = waves_in * column
        squares = torch.bmm(waves_in.mT, scratch).to(wide)
        sines = torch.mv(sin.t(), grad).to(wide).mul_(decay)
        slope, other = scratch.unbind()
        slope.mul_(waves_out[1]).addcmul_(other, waves_out[0], value=-1).add_(g_mean)
        slope.addcmul_(torch.mul(g_mean, decay.to(narrow), out=other), sin)
        cosines = other.mul_(cos).sum(0).to(wide)
        g_shift, g_bias = slope.sum(0).to(wide), slope.mul_(frequency)
        # n x n, by the gram and by the phases, each of them plus its transpose
        cos_square, cos_block, sin_block = blocks.unbind()
        edges = grad.sum().to(wide).mul_(0.5) + sines
        edges = edges.unsqueeze(-1) + edges
        g_gram = torch.mul(squares, blocks[1:]).sum(0)
        g_diagonal = (
            torch.mul(g_gram, gram).sum(0).neg_().add_(cosines).addcmul_(linear, sines, value=-1)
        )
        g_gram.addcmul_(phase, edges)
        g_phase = edges.addcmul_(squares[0], sin_block).addcmul_(squares[1], cos_square).mul_(gram)
        g_phase.diagonal().add_(g_diagonal)
        g_readout = g_readout.addmm_(narrow_readout, g_gram.to(narrow))
        # n x D
        g_white = torch.mm(g_phase, white)
        wide_scale = scale.to(wide)
        g_weight = torch.mm(g_white, wide_scale.t()) if scale.dim() == 2 else g_white * wide_scale
        g_weight.addr_(g_shift, loc.to(wide)).mul_(frequency)
        g_loc = g_scale = None
        if needed[1] or needed[2]:
            weight = weight.to(wide) * frequency
            g_loc = torch.mv(weight.t(), g_shift)
            g_scale = (
                torch.mm(weight.t(), g_white) if scale.dim() == 2 else (weight * g_white).sum(0)
            )
        return g_weight, g_loc, g_scale, g_bias, g_readout, None, None


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
        base, weight = self.base.map(Tensor.double), self.weight.double()
        return snake_kernel(self.activation, base, weight)

    @property
    def blocks(self) -> Blocks:  # type: ignore[override]
        return self._generic.blocks

    def features(self, bias: Tensor) -> Features:
        return self._generic.features(bias)

    def log_normalizer(self, form: Form, bias: Tensor) -> Tensor:
        weight, base, readout = self.weight, self.base, form.matrix
        loc, scale = base.mean(weight), base.factor
        batched = scale.dim() > (1 if base.scale_tril is None else 2)
        if batched or weight.dim() > 2 or readout.dim() > 2 or not isinstance(form, Readout):
            return super().log_normalizer(form.to(torch.float64), bias.double())
        if loc.dim() > 1:
            # Means that differ from row to row belong to the biases.
            bias = bias.double() + loc.double() @ weight.double().mT
            loc = torch.zeros_like(loc[(0,) * (loc.dim() - 1)])
        # Squares of float32 are numbers in float64, those of float64 need not be.
        largest = None if readout.dtype != torch.float64 else readout.detach().abs().amax()
        if largest is not None:
            largest = torch.where(largest > 0, largest, 1.0)
            readout = readout / largest
        frequency = 2 * self.activation.a
        offset = 1 / frequency if self.activation.offset else 0.0

        def log_trace(rows: Tensor) -> Tensor:
            flat = rows if rows.dim() == 2 else rows.reshape(-1, rows.shape[-1])
            value = _LogTrace.call(weight, loc, scale, flat, readout, frequency, offset)
            return value if rows.dim() == 2 else value.reshape(rows.shape[:-1])

        value = in_chunks(log_trace, bias, Size(), _CHUNK // bias.shape[-1])
        return value if largest is None else value + 2 * largest.log()


@register_kernel(Snake, Gaussian, narrow=True)
def _snake_gaussian(activation: Snake, base: Gaussian, weight: Tensor) -> SnakeGaussian:
    return SnakeGaussian(activation, base, weight)
