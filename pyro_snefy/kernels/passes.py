r"""Normalisers of waves on Gaussian bases, with forward and backward passes by hand.

A step of training is made of many small operations, so that their number counts: here they are few,
and none of them is recorded.
"""

__all__ = ["LogSnakes", "LogTrace", "LogWaves", "Squares", "frequency", "in_order", "wave_kernel"]

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..activations import Activation, Cos, Sin, Snake
from ..bases.base import CUTOFF
from ..bases.engines import FourierBase
from ..bases.gaussian import Gaussian
from ..fused import Fused
from ..numerics.forms import Readout
from ..numerics.linalg import affine
from .fourier import cos_kernel, sin_kernel, snake_kernel
from .kernel import Separable

_LOG_ROOT_2, _ROOT_2 = math.log(2) / 2, math.sqrt(2)
# What is beside one as nothing, and no denormal number in float32 after a few products.
_FAINT = -60.0
# Added to the diagonal of a matrix that has a factor then, whatever its rounding errors are.
_RIDGE = 1e-12
_WIDE = torch.float64


def wave_kernel(activation: Activation, base: FourierBase, weight: Tensor) -> Separable:
    r"""The generic kernel of a wave."""
    if isinstance(activation, Snake):
        return snake_kernel(activation, base, weight)
    if isinstance(activation, Cos):
        return cos_kernel(activation, base, weight)
    assert isinstance(activation, Sin)
    return sin_kernel(activation, base, weight)


class _Pairs(NamedTuple):
    r"""What pairs of neurons have in common, for :math:`K` bases, in float64.

    With the frequency :math:`f`, which is :math:`2a` for snakes and 1 for others, and phases
    :math:`P = f^2 W L L^\top W^\top`,

    .. math:: E^{\mp}_{ij} = e^{\pm P_{ij} - (P_{ii} + P_{jj}) / 2}, \quad
        G^c = \frac{E^- + E^+}{2}, \quad G^s = \frac{E^- - E^+}{2}.
    """

    gram: Tensor  # (n, n), that of the readout
    white: Tensor  # (K, n, D), with f W L in its rows
    phase: Tensor  # (K, n, n)
    even: Tensor  # G^c
    odd: Tensor  # G^s
    half: Tensor  # (K, 1, n), with -P_ii / 2 - log √2

    @classmethod
    def build(cls, weight: Tensor, scale: Tensor, readout: Tensor, speed: float) -> "_Pairs":
        weight, readout = weight.to(_WIDE), readout.to(_WIDE)
        if scale.dim() == 2:
            white = torch.mul(weight, scale.unsqueeze(1)).mul_(speed)
        else:
            white = torch.matmul(weight, scale.to(_WIDE)).mul_(speed)
        gram, phase = torch.mm(readout.t(), readout), torch.bmm(white, white.mT)
        half = torch.rsub(phase.diagonal(dim1=1, dim2=2), -_LOG_ROOT_2, alpha=0.5).unsqueeze(1)
        both, outer = phase.new_empty((2, *phase.shape)), half.mT + half
        minus, plus = both.unbind()
        torch.add(outer, phase, out=minus)
        torch.sub(outer, phase, out=plus)
        both.clamp_(min=CUTOFF).exp_()
        return cls(gram, white, phase, torch.add(minus, plus, out=outer), minus.sub_(plus), half)


class LogTrace(Fused):
    r"""The logarithm of the normaliser :math:`\mathrm{Tr}(V^\top V K)` of rows of biases.

    The angles are :math:`\beta = f (b + W c)`. A subclass knows the kernel of an activation. With
    points, rows are the logarithms of the squared network there over the normaliser, and both come
    out of the same operations.

    Terms of both signs cancel in a normaliser: it is a sum in float64, of features in the dtype of
    the biases. If that is float32, as much is lost as of the square of a network in float32.

    Arguments:
        weight: The weights :math:`W`, with shape :math:`(n, D)`.
        loc: The means :math:`c` of the bases, with shape :math:`(K, D)`.
        scale: The factors :math:`L` of their covariances, with shape :math:`(K, D, D)`, or the
            diagonals of them, with shape :math:`(K, D)`.
        bias: The biases, with shape :math:`(K, B, n)` or :math:`(1, B, n)`; with points
            :math:`(B, n)`.
        readout: The readout, with shape :math:`(m, n)`.
        points: Statistics of an event for each row, with shape :math:`(B, D)`, where there is a
            single base, or None.
        activation: The activation.
    """

    @staticmethod
    def plain(
        weight: Tensor,
        loc: Tensor,
        scale: Tensor,
        bias: Tensor,
        readout: Tensor,
        points: Tensor | None,
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
        kernel = wave_kernel(activation, base, weight.double())
        log_trace = kernel.log_normalizer(Readout(readout.double()), bias.double())
        if points is None:
            return log_trace
        log_trace = log_trace.squeeze(0)
        features = activation.features(affine(points, weight, bias))
        log_square = Readout(readout).log_square(features)
        zero = (log_square == -torch.inf) | (log_trace == -torch.inf)
        ratio = log_square.masked_fill(zero, 0.0) - log_trace.masked_fill(zero, 0.0)
        return ratio.masked_fill(zero, -torch.inf).to(bias.dtype)


class LogWaves(LogTrace):
    r"""Normalisers of cosines and sines.

    .. math:: K_{ij} = \cos \beta_i \, G^c_{ij} \cos \beta_j + \sin \beta_i \, G^s_{ij} \sin \beta_j

    is the kernel of cosines, and that of sines is the same with the two waves exchanged.
    """

    @staticmethod
    def value(
        weight: Tensor,
        loc: Tensor,
        scale: Tensor,
        bias: Tensor,
        readout: Tensor,
        points: Tensor | None,
        activation: Activation,
    ) -> tuple[Tensor, list[Tensor]]:
        pairs = _Pairs.build(weight, scale, readout, 1.0)
        waves = _waves(activation, _angles(weight, loc, bias, points, 1.0))
        matrices = torch.stack([pairs.even, pairs.odd]).mul_(pairs.gram).view(-1, *pairs.gram.shape)
        total, waves_out = _forms(_fluctuating(waves, points), matrices)
        saved = [*pairs[:-1], total, waves, waves_out]
        if points is None:
            return total.clamp(min=0).log_(), saved
        outputs = torch.mm(waves[0, 0], readout.t())
        square = torch.linalg.vector_norm(outputs, dim=-1, dtype=_WIDE).square_()
        return _log_ratio(square, total.squeeze(0), bias.dtype), [*saved, square, outputs]

    @staticmethod
    def gradient(grad: Tensor, inputs: Any, saved: Any, needed: Any) -> tuple[Tensor | None, ...]:
        _, _, _, _, readout, points, activation = inputs
        gram, white, phase, even, odd, total, waves, waves_out = saved[:8]
        readout = readout.to(waves.dtype)
        turn = -1 if isinstance(activation, Sin) else 1
        slope, inner = torch.empty_like(waves[0]), _fluctuating(waves, points)
        # K x B x n
        column = _columns(grad if points is None else -grad, total, waves.dtype)
        scratch = inner * column
        squares = torch.bmm(inner.reshape(waves_out.shape).mT, scratch.view(waves_out.shape))
        first, second = squares.to(_WIDE).view(2, *phase.shape).unbind()
        # K x n x n, by the gram and by the phases, each of them plus its transpose
        g_gram = torch.mul(first, even).addcmul_(second, odd)
        g_phase = torch.mul(first, odd).addcmul_(second, even).mul_(gram)
        g_phase.diagonal(dim1=1, dim2=2).sub_(torch.mul(g_gram, gram).sum(1))
        g_readout = torch.mm(readout, g_gram.sum(0).to(waves.dtype))
        (first, second), outputs = scratch.unbind(), waves_out.view(scratch.shape).unbind()
        rows = slope if points is None else slope[1:]
        torch.mul(first, outputs[1], out=rows).addcmul_(second, outputs[0], value=-1)
        if points is not None:
            square, outputs = saved[8:]
            g_out = outputs * _columns(grad, square, waves.dtype)
            g_readout.addmm_(g_out.t(), waves[0, 0])
            torch.mul(torch.mm(g_out, readout), waves[1, 0], out=slope[0]).neg_()
        slope = slope if turn > 0 else slope.neg_()
        return _gradients(inputs, needed, white, g_phase, slope, g_readout)


class LogSnakes(LogTrace):
    r"""Normalisers of snakes, which are their means, and what fluctuates about them.

    .. math:: f \bar{\sigma} = \beta + f o - e \cos \beta, \quad e_i = e^{-P_{ii} / 2}, \quad
        f^2 K_{ij} = f^2 \bar{\sigma}_i \bar{\sigma}_j + P_{ij} (1 + e_i \sin \beta_i
        + e_j \sin \beta_j) + \cos \beta_i \, (G^c_{ij} - e_i e_j) \cos \beta_j
        + \sin \beta_i \, G^s_{ij} \sin \beta_j,

    where :math:`o` is the offset. At a point nothing fluctuates: there :math:`e = 1`, and the mean
    is the neuron itself.
    """

    @staticmethod
    def value(
        weight: Tensor,
        loc: Tensor,
        scale: Tensor,
        bias: Tensor,
        readout: Tensor,
        points: Tensor | None,
        activation: Snake,
    ) -> tuple[Tensor, list[Tensor]]:
        speed = frequency(activation)
        pairs = _Pairs.build(weight, scale, readout, speed)
        gram, _, phase, even, odd, half = pairs
        # K x n x n
        decay = half.clamp_(min=_FAINT).exp_().mul_(_ROOT_2)  # (K, 1, n), with e
        centred = torch.addcmul(even, decay.mT, decay, value=-1)
        matrices = torch.stack([centred, odd]).mul_(gram).view(-1, *gram.shape)
        linear = torch.mul(gram, phase).sum(1, keepdim=True)
        edges = linear * decay
        edges = torch.cat([torch.zeros_like(edges), edges])
        # K x B x n, after the points where there are any
        mean = _angles(weight, loc, bias, points, speed)
        waves = _waves(activation, mean)
        damping = decay.to(mean.dtype)
        if points is not None:
            damping = torch.cat([torch.ones_like(damping), damping])
        mean.addcmul_(damping, waves[0], value=-1)
        if activation.offset:
            mean.add_(1.0)
        outputs = torch.mm(mean.view(-1, mean.shape[-1]), readout.to(mean.dtype).t())
        total = torch.linalg.vector_norm(outputs, dim=-1, dtype=_WIDE).square_()
        total = total.view(mean.shape[:-1])
        rest, waves_out = _forms(_fluctuating(waves, points), matrices, edges)
        rest += linear.sum(-1)
        saved = [*pairs[:-1], total, waves, waves_out, mean, outputs, damping]
        saved += [centred, decay, linear]
        if points is None:
            total += rest
            return total.clamp(min=0).log_().sub_(2 * math.log(speed)), saved
        square, normalizer = total.unbind()
        normalizer += rest.squeeze(0)
        return _log_ratio(square, normalizer, bias.dtype), saved

    @staticmethod
    def gradient(grad: Tensor, inputs: Any, saved: Any, needed: Any) -> tuple[Tensor | None, ...]:
        _, _, _, _, readout, points, activation = inputs
        gram, white, phase, even, odd, total, waves, waves_out, mean, outputs, damping = saved[:11]
        centred, decay, linear = saved[11:]
        readout = readout.to(waves.dtype)
        # K x B x n, after the points where there are any
        column = _columns(grad, total, waves.dtype)
        if points is not None:
            column[1].neg_()
        g_out = torch.mul(outputs.view(*mean.shape[:-1], -1), column).view(outputs.shape)
        g_readout = torch.mm(g_out.t(), mean.view(-1, mean.shape[-1]))
        g_mean = torch.mm(g_out, readout).view(mean.shape)
        damped = g_mean * damping
        slope = rows = g_mean.addcmul_(damped, waves[1])
        waves = _fluctuating(waves, points)
        if points is not None:
            column, rows, damped = column[1:], slope[1:], damped[1:]
        scratch = waves * column
        squares = torch.bmm(waves.reshape(waves_out.shape).mT, scratch.view(waves_out.shape))
        (first, second), outputs = scratch.unbind(), waves_out.view(scratch.shape).unbind()
        rows.addcmul_(first, outputs[1]).addcmul_(second, outputs[0], value=-1)
        # K x n x n, by the gram and by the phases, each of them plus its transpose
        first, second = squares.to(_WIDE).view(2, *phase.shape).unbind()
        g_gram = torch.mul(first, centred).addcmul_(second, odd)
        g_phase = torch.mul(first, odd).addcmul_(second, even)
        cos, sin = waves.unbind()
        sines = torch.bmm(column.mT, sin).mul(decay)
        g_diagonal = torch.addcmul(damped.mul_(cos).sum(1, keepdim=True), linear, sines, value=-1)
        g_diagonal.sub_(torch.mul(g_gram, gram).sum(1, keepdim=True))
        edges = sines.add_(column.sum(1, keepdim=True), alpha=0.5)
        edges = edges.mT + edges
        g_gram.addcmul_(phase, edges)
        g_phase.add_(edges).mul_(gram).diagonal(dim1=1, dim2=2).add_(g_diagonal.squeeze(1))
        g_readout.addmm_(readout, g_gram.sum(0).to(waves.dtype))
        return _gradients(inputs, needed, white, g_phase, slope, g_readout, frequency(activation))


class Squares(Fused):
    r"""The quadratic forms :math:`x^\top A x` of rows.

    Rows in float32 meet a factor of the matrix, which leaves sums of squares, with the rounding
    error of those and not of a sum of terms of both signs.

    Arguments:
        rows: The rows :math:`x`, with shape :math:`(N, n)`.
        matrix: The positive semi-definite matrix :math:`A`, with shape :math:`(n, n)`, in float64.
    """

    @staticmethod
    def plain(rows: Tensor, matrix: Tensor) -> Tensor:
        wide = rows.double()
        return torch.linalg.vecdot(wide @ matrix, wide)

    @staticmethod
    def value(rows: Tensor, matrix: Tensor) -> tuple[Tensor, list[Tensor]]:
        if rows.dtype == _WIDE:
            return torch.linalg.vecdot(torch.mm(rows, matrix), rows), []
        shifted = matrix.clone()
        shifted.diagonal().add_(_RIDGE)
        factor, _ = torch.linalg.cholesky_ex(shifted)
        outputs = torch.mm(rows, factor.to(rows.dtype))
        return torch.linalg.vector_norm(outputs, dim=-1, dtype=_WIDE).square_(), []

    @staticmethod
    def gradient(grad: Tensor, inputs: Any, saved: Any, needed: Any) -> tuple[Tensor | None, ...]:
        rows, matrix = inputs
        column = grad.to(rows.dtype).unsqueeze(-1)
        g_rows = torch.mm(rows, matrix.to(rows.dtype)).mul_(2 * column)
        return g_rows, torch.mm(rows.t(), rows * column)


def _angles(
    weight: Tensor, loc: Tensor, bias: Tensor, points: Tensor | None, speed: float
) -> Tensor:
    # f (b + W c), with shape (K, B, n), after the same at the points where there are any.
    if points is None:
        shift = torch.mm(loc.to(bias.dtype), weight.to(bias.dtype).t()).unsqueeze(1)
        return torch.add(shift, bias).contiguous().mul_(speed)
    angles = bias.new_empty((2, *bias.shape))
    for place, out in zip((points, loc.expand_as(points)), angles.unbind(), strict=True):
        torch.addmm(bias, place, weight.t(), beta=speed, alpha=speed, out=out)
    return angles


def _waves(activation: Activation, angles: Tensor) -> Tensor:
    # Cosines and sines, one after the other; sines come first for the sine.
    waves = angles.new_empty((2, *angles.shape))
    cos, sin = in_order(activation, *waves.unbind())
    torch.cos(angles, out=cos)
    torch.sin(angles, out=sin)
    return waves


def _fluctuating(waves: Tensor, points: Tensor | None) -> Tensor:
    # The rows of the bases, without those of the points.
    return waves if points is None else waves[:, 1:]


def _forms(waves: Tensor, matrices: Tensor, edges: Tensor | None = None) -> tuple[Tensor, Tensor]:
    # The sums w A w + 2 w c over both waves, in float64, with shape (K, B), and A w + c in the
    # dtype of the waves, with shape (2 K, B, n).
    _, count, rows, n = waves.shape
    wide = waves.to(_WIDE).reshape(-1, rows, n)
    if edges is None:
        output = torch.bmm(wide, matrices)
    else:
        output = torch.baddbmm(edges, wide, matrices, beta=2)
    total = torch.linalg.vecdot(wide, output).view(2, count, rows).sum(0)
    return total, (output if edges is None else output.sub_(edges)).to(waves.dtype)


def _log_ratio(square: Tensor, normalizer: Tensor, dtype: torch.dtype) -> Tensor:
    return (square / normalizer).masked_fill_(normalizer <= 0, 0.0).log_().to(dtype)


def _columns(grad: Tensor, total: Tensor, dtype: torch.dtype) -> Tensor:
    # Twice the gradient by a total of which there is the logarithm, and nothing where it is zero.
    return (grad / total).masked_fill_(total <= 0, 0.0).mul_(2).to(dtype).unsqueeze(-1)


def _gradients(
    inputs: Any,
    needed: Any,
    white: Tensor,
    g_phase: Tensor,
    slope: Tensor,
    g_readout: Tensor,
    speed: float = 1.0,
) -> tuple[Tensor | None, ...]:
    # From those by phases and angles, the latter with the shape (K, B, n), after the points.
    weight, loc, scale, bias, _, points, _ = inputs
    g_white = torch.bmm(g_phase, white)
    if scale.dim() == 2:
        g_weight = torch.mul(g_white, scale.unsqueeze(1)).sum(0)
    else:
        g_weight = torch.bmm(g_white, scale.to(_WIDE).mT).sum(0)
    g_shift = (slope if points is None else slope[1:]).sum(1)
    g_weight.add_(torch.mm(g_shift.t(), loc.to(slope.dtype)))
    if points is not None:
        g_weight.add_(torch.mm(slope[0].t(), points))
    g_weight.mul_(speed)
    g_loc = g_scale = g_points = None
    if needed[1]:
        g_loc = torch.mm(g_shift, weight.to(slope.dtype)).mul_(speed)
    if needed[2] and scale.dim() == 2:
        g_scale = (weight * g_white).sum(1).mul_(speed)
    elif needed[2]:
        g_scale = torch.matmul(weight.to(_WIDE).t(), g_white).mul_(speed)
    if points is not None and needed[5]:
        g_points = torch.mm(slope[0], weight).mul_(speed)
    if slope.shape != bias.shape:  # they share it
        slope = slope.sum(0).view(bias.shape)
    return g_weight, g_loc, g_scale, slope.mul_(speed), g_readout, g_points, None


def frequency(activation: Activation) -> float:
    r"""That of the wave in an activation, in radians per unit of :math:`z`."""
    return 2 * activation.a if isinstance(activation, Snake) else 1.0


def in_order(activation: Activation, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    r"""Cosines and sines, or sines and cosines for the sine: its own wave is the first."""
    return (sin, cos) if isinstance(activation, Sin) else (cos, sin)
