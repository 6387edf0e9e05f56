r"""Waves on Gaussian bases, with a backward pass by hand.

The generic Fourier kernels are right for these pairs, too. They are the default likelihood of a
regression, and what rows with missing values and mixtures are made of, where a step of training is
made of many small operations, so that their number counts: here they are few, and none of them is
recorded.
"""

__all__ = ["WaveGaussian", "WaveMixture"]

import math
from functools import cached_property
from typing import Any

import torch
from torch import Size, Tensor

from ..activations import Activation, Cos, Sin, Snake
from ..bases.base import CUTOFF, FourierBase
from ..bases.gaussian import Gaussian
from ..bases.mixture import GaussianMixture
from ..forms import Blocks, Features, Form, Readout
from ..fused import Fused
from ..linalg import broadcast_shapes, safe_logsumexp
from .fourier import cos_kernel, sin_kernel, snake_kernel
from .kernel import Separable, in_chunks
from .registry import register_kernel

# Entries of rows of biases that are held at once.
_CHUNK = 2**18
_LOG_2 = math.log(2)
_WIDE = torch.float64


def _generic(activation: Activation, base: FourierBase, weight: Tensor) -> Separable:
    if isinstance(activation, Snake):
        return snake_kernel(activation, base, weight)
    if isinstance(activation, Cos):
        return cos_kernel(activation, base, weight)
    assert isinstance(activation, Sin)
    return sin_kernel(activation, base, weight)


class _LogTrace(Fused):
    r"""The logarithm of the normaliser :math:`\mathrm{Tr}(V^\top V K)` of rows of biases.

    With the frequency :math:`f`, which is :math:`2a` for snakes and 1 for others, angles
    :math:`\beta = f (b + W c)` and phases :math:`P = f^2 W L L^\top W^\top`,

    .. math:: E^{\mp}_{ij} = e^{\pm P_{ij} - (P_{ii} + P_{jj}) / 2}, \quad
        G^c = \frac{E^- + E^+}{2}, \quad G^s = \frac{E^- - E^+}{2},

    the kernel of cosines is :math:`\cos \beta_i \, G^c_{ij} \cos \beta_j + \sin \beta_i \, G^s_{ij}
    \sin \beta_j`, that of sines the same with the two of them exchanged, and that of snakes, where
    :math:`e_i = e^{-P_{ii} / 2}` and :math:`\bar{\sigma} = \beta + f o - e \cos \beta`,

    .. math:: f^2 K_{ij} = \bar{\sigma}_i \bar{\sigma}_j + P_{ij} (1 + e_i \sin \beta_i
        + e_j \sin \beta_j) + \cos \beta_i \, (G^c_{ij} - e_i e_j) \cos \beta_j
        + \sin \beta_i \, G^s_{ij} \sin \beta_j.

    Values are computed in float64, since terms of both signs cancel in them. Rows of gradients are
    computed in the dtype of the biases: of those no more is lost than of the gradients of the
    density itself.

    Arguments:
        weight: The weights :math:`W`, with shape :math:`(n, D)`.
        loc: The means :math:`c` of the bases, with shape :math:`(K, D)`.
        scale: The factors :math:`L` of their covariances, with shape :math:`(K, D, D)`, or the
            diagonals of them, with shape :math:`(K, D)`.
        bias: The biases, with shape :math:`(K, B, n)` or :math:`(1, B, n)`.
        readout: The readout, with shape :math:`(m, n)`.
        activation: The activation.
    """

    @staticmethod
    def plain(
        weight: Tensor,
        loc: Tensor,
        scale: Tensor,
        bias: Tensor,
        readout: Tensor,
        activation: Activation,
    ) -> Tensor:
        scale = scale.double().unsqueeze(1)
        full = scale.dim() == 4
        base = Gaussian(
            loc.double().unsqueeze(1),
            None if full else scale,
            scale_tril=scale if full else None,
            validate_args=False,
        )
        kernel = _generic(activation, base, weight.double())
        return kernel.log_normalizer(Readout(readout.double()), bias.double())

    @staticmethod
    def value(
        weight: Tensor,
        loc: Tensor,
        scale: Tensor,
        bias: Tensor,
        readout: Tensor,
        activation: Activation,
    ) -> tuple[Tensor, list[Tensor]]:
        snake = isinstance(activation, Snake)
        frequency = 2 * activation.a if isinstance(activation, Snake) else 1.0
        count, (rows, n) = loc.shape[0], bias.shape[1:]
        weight, scale, readout = weight.to(_WIDE), scale.to(_WIDE), readout.to(_WIDE)
        weight = weight * frequency if snake else weight
        shift = torch.mm(loc.to(_WIDE), weight.t()).unsqueeze(1)  # (K, 1, n)
        white = weight * scale.unsqueeze(1) if scale.dim() == 2 else weight @ scale
        # K x n x n
        gram, phase = torch.mm(readout.t(), readout), torch.bmm(white, white.mT)
        half = phase.diagonal(dim1=1, dim2=2).mul(0.5)
        left, right = (half + _LOG_2).unsqueeze(2), half.unsqueeze(1)
        blocks = white.new_empty((3 if snake else 2, count, n, n))
        waves = blocks[::2] if snake else blocks
        minus, plus = waves.unbind()
        torch.sub(phase, left, out=minus).sub_(right)
        torch.add(phase, left, out=plus).add_(right).neg_()
        waves.clamp_(min=CUTOFF).exp_()
        # Sum and difference of the two, in their place.
        minus.add_(plus)
        plus.mul_(-2).add_(minus)
        decay = half.clamp_(max=-CUTOFF).neg_().exp_().unsqueeze(1)
        if snake:
            torch.addcmul(minus, decay.mT, decay, value=-1, out=blocks[1])
        # K x B x n
        features = white.new_empty((3 if snake else 2, count, rows, n))
        waves_in = features[:2]
        cos, sin = _order(activation, waves_in)
        angle = features[2] if snake else sin
        torch.add(shift, bias, alpha=frequency, out=angle)
        torch.cos(angle, out=cos)
        torch.sin(angle, out=sin)
        matrices = torch.mul(gram, blocks[-2:]).view(2 * count, n, n)
        waves_out = torch.bmm(waves_in.view(2 * count, rows, n), matrices).view(waves_in.shape)
        saved = [readout, gram, white, phase, blocks]
        if isinstance(activation, Snake):
            mean = angle.addcmul_(cos, decay, value=-1)
            if activation.offset:
                mean.add_(1.0)
            mean_out = torch.mm(mean.view(-1, n), readout.t())
            linear = torch.mul(gram, phase).sum(1)
            edge = (linear * half).unsqueeze(1)
            waves_out[1] += edge
            rest = torch.bmm(sin, edge.mT).squeeze(2).add_(linear.sum(-1, keepdim=True))
            rest += mean_out.square().sum(-1).view(count, rows)
            saved += [half, linear, mean_out.to(bias.dtype)]
        narrow = features.to(bias.dtype)
        products = torch.mul(waves_in, waves_out, out=None if narrow is features else waves_in)
        value = products.sum(-1).sum(0)
        saved = [value, narrow, waves_out.to(bias.dtype), *saved]
        if not snake:
            return value.clamp(min=0).log_(), saved
        value += rest
        return value.clamp(min=0).log_().sub_(2 * math.log(frequency)), saved

    @staticmethod
    def gradient(grad: Tensor, inputs: Any, saved: Any, needed: Any) -> tuple[Tensor | None, ...]:
        weight, loc, scale, bias, _, activation = inputs
        value, features, waves_out, readout, gram, white, phase, blocks, *others = saved
        (count, n, _), rows, narrow = white.shape, bias.shape[1], bias.dtype
        snake = isinstance(activation, Snake)
        frequency = 2 * activation.a if snake else 1.0
        # K x B x n, where everything is twice its own
        grad = (grad / value).mul_(2).masked_fill_(value <= 0, 0.0).to(narrow)
        column, narrow_readout = grad.unsqueeze(-1), readout.to(narrow)
        waves_in = features[:2]
        scratch = waves_in * column
        shape = (2 * count, rows, n)
        squares = torch.bmm(waves_in.view(shape).mT, scratch.view(shape)).view(2, count, n, n)
        slope, other = _order(activation, scratch)
        out, other_out = _order(activation, waves_out)
        slope.mul_(other_out).addcmul_(other, out, value=-1)
        # K x n x n, by the gram and by the phases, each of them plus its transpose
        (cos_square, sin_square), (*_, cos_block, sin_block) = squares.unbind(), blocks.unbind()
        g_gram = torch.mul(cos_square, cos_block).addcmul_(sin_square, sin_block)
        g_phase = torch.mul(cos_square, sin_block).addcmul_(sin_square, blocks[0])
        g_diagonal = torch.mul(g_gram, gram).sum(1).neg_()
        g_readout = None
        if snake:
            decay, linear, mean_out = others
            narrow_decay = decay.to(narrow).unsqueeze(1)
            cos, sin, mean = features.unbind()
            g_out = mean_out * grad.reshape(-1, 1)
            g_mean = torch.mm(g_out, narrow_readout)
            g_readout = torch.mm(g_out.t(), mean.view(-1, n))
            g_mean = g_mean.view(mean.shape)
            sines = torch.bmm(grad.unsqueeze(1), sin).squeeze(1).to(_WIDE).mul_(decay)
            slope.add_(g_mean).addcmul_(torch.mul(g_mean, narrow_decay, out=other), sin)
            g_diagonal.add_(other.mul_(cos).sum(1)).addcmul_(linear, sines, value=-1)
            edges = sines.add_(grad.sum(-1, keepdim=True), alpha=0.5)
            edges = edges.unsqueeze(2) + edges.unsqueeze(1)
            g_gram.addcmul_(phase, edges)
            g_phase.add_(edges)
        g_phase.mul_(gram).diagonal(dim1=1, dim2=2).add_(g_diagonal)
        g_gram = g_gram.sum(0).to(narrow)
        if g_readout is None:
            g_readout = torch.mm(narrow_readout, g_gram)
        else:
            g_readout.addmm_(narrow_readout, g_gram)
        # n x D
        g_shift, g_white = slope.sum(1).to(_WIDE), torch.bmm(g_phase, white)
        wide_scale = scale.to(_WIDE)
        if scale.dim() == 2:
            g_weight = torch.mul(g_white, wide_scale.unsqueeze(1)).sum(0)
        else:
            g_weight = torch.bmm(g_white, wide_scale.mT).sum(0)
        g_weight.addmm_(g_shift.t(), loc.to(_WIDE)).mul_(frequency)
        g_loc = g_scale = None
        if needed[1] or needed[2]:
            weight = weight.to(_WIDE) * frequency
            g_loc = torch.mm(g_shift, weight)
            g_scale = (weight * g_white).sum(1) if scale.dim() == 2 else weight.t() @ g_white
        g_bias = slope.mul_(frequency) if snake else slope
        if bias.shape[0] < count:
            g_bias = g_bias.sum(0, keepdim=True)
        return g_weight, g_loc, g_scale, g_bias, g_readout, None


def _order(activation: Activation, pair: Tensor) -> tuple[Tensor, Tensor]:
    # Cosines and sines, or what belongs to them; they are exchanged for the sine.
    first, second = pair.unbind()
    return (second, first) if isinstance(activation, Sin) else (first, second)


class _Wave(Separable):
    r"""The kernel of a wave, from tensors of any dtype, and generic unless a subclass knows better.

    Arguments:
        activation: The wave.
        base: The base.
        weight: The weights, with shape :math:`(*, n, D)`.
    """

    def __init__(self, activation: Activation, base: Any, weight: Tensor) -> None:
        self.activation, self.base, self.weight = activation, base, weight

    @cached_property
    def _generic(self) -> Separable:
        base, weight = self.base.map(Tensor.double), self.weight.double()
        return _generic(self.activation, base, weight)

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
        if weight.dim() > 2 or readout.dim() > 2 or not isinstance(form, Readout):
            return super().log_normalizer(form, bias)
        loc, scale = base.mean(weight), base.factor
        rank = 1 if base.scale_tril is None else 2
        if scale.dim() == rank and loc.dim() > 1:
            # Means that differ from row to row belong to the biases.
            bias = bias.double() + loc.double() @ weight.double().mT
            loc = torch.zeros_like(loc[(0,) * (loc.dim() - 1)])
        # Squares of float32 are numbers in float64, those of float64 need not be.
        largest = None if readout.dtype != _WIDE else readout.detach().abs().amax()
        if largest is not None:
            largest = torch.where(largest > 0, largest, 1.0)
            readout = readout / largest
        if loc.dim() == 1 and scale.dim() == rank:
            loc, scale = loc.unsqueeze(0), scale.unsqueeze(0)

            def log_trace(rows: Tensor) -> Tensor:
                flat = rows.reshape(1, -1, rows.shape[-1])
                value = _LogTrace.call(weight, loc, scale, flat, readout, self.activation)
                return value.reshape(rows.shape[:-1])

            value = in_chunks(log_trace, bias, Size(), _CHUNK // bias.shape[-1])
        else:
            value = self._batched(loc, scale, rank, bias, readout)
        return value if largest is None else value + 2 * largest.log()

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
        value = _LogTrace.call(self.weight, loc, scale, rows, readout, self.activation)
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
