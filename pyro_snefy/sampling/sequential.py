r"""One coordinate at a time: exact draws without rejection, and pathwise gradients."""

__all__ = ["cdf", "icdf", "is_reparameterizable", "line", "pathwise", "sample_sequentially"]

from collections.abc import Sequence
from typing import Any

import torch
from torch import Size, Tensor
from torch.autograd import Function

from ..activations import Activation, ReLU, Step
from ..bases.base import Base
from ..bases.box import UniformBox
from ..bases.gaussian import Gaussian
from ..bases.mixture import GaussianMixture
from ..bases.pushforward import Pushforward, Standardized, UniformCube
from ..constraints import is_real
from ..numerics.linalg import broadcast_shapes
from ..operations.quantiles import Line, Neurons, ends


def line(joint: Any, dim: int = 0) -> Line:
    r"""The law of one coordinate of a squared neural family.

    Arguments:
        joint: A :class:`~pyro_snefy.SNEFY`.
        dim: The coordinate.
    """
    # Digits of a distribution function are more than those of float32.
    joint = joint.with_tensors([_wide(x) for x in joint.tensors()])
    joint._validate_args = False  # the constants of pieces of a density may be zero
    network = joint._network(torch.float64).real()
    base, whole = network.base, joint.event_shape.numel() == 1
    law = base if whole else base.marginal([dim])
    log_normalizer = joint._log_normalizer()

    def log_density(x: Tensor) -> Tensor:
        value = x.unsqueeze(-1) if joint.event_shape else x
        inside = law.contains(value)
        mask = inside.unsqueeze(-1) if joint.event_shape else inside
        value = torch.where(mask, value, law.example(value))
        if joint.event_shape:
            log_numerator = joint.marginal_log_numerator([dim], value)
        else:
            log_numerator = network.log_density(value)
        return torch.where(inside, log_numerator - log_normalizer, -torch.inf)

    with torch.no_grad():
        neurons = _along(network, dim, whole)
    jumps = [*ends(law), *_steps(network, dim, neurons)]
    return Line(log_density, law, neurons, joint.batch_shape, network.weight.shape[-2], jumps)


def _steps(network: Any, dim: int, neurons: Neurons) -> list[Tensor]:
    # The zeros of neurons that step there, unless they depend on what is integrated out.
    if not isinstance(network.activation, Step):
        return []
    slope = network.weight[..., dim]
    sharp = neurons.width if neurons.width.dim() < 2 else neurons.width.flatten(0, -2).amax(0)
    sharp = (slope != 0) & ~(sharp > 0)
    return [torch.where(sharp, -network.bias / torch.where(slope == 0, 1.0, slope), 0.0)]


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float64))


def _along(network: Any, dim: int, whole: bool) -> Neurons:
    activation, base, weight, bias, _ = network
    if isinstance(base, GaussianMixture):
        weight, bias = weight.unsqueeze(-3), bias.unsqueeze(-2)
        base = base.gaussians
    if whole:
        slope = weight.squeeze(-1) if weight.shape[-1] == 1 else weight
        zero = -bias / slope if weight.shape[-1] == 1 else torch.zeros_like(bias)
        return Neurons(activation, slope, zero, torch.zeros_like(zero))
    covariance = base.covariance(weight)
    spread = weight @ covariance  # (*, n, D)
    variance = covariance[..., dim, dim].unsqueeze(-1)
    mean = base.mean(weight)
    centre = bias + (weight * mean.unsqueeze(-2)).sum(-1)
    slope = spread[..., dim] / variance
    total = (spread * weight).sum(-1)
    left = total - slope.square() * variance
    left = torch.where(left > 1e-12 * total, left, 0.0)
    crossings = None
    if activation.kink:
        shared = spread @ weight.mT - slope.unsqueeze(-1) * spread[..., dim].unsqueeze(-2)
        constant = centre - slope * mean[..., dim].unsqueeze(-1)
        crossings = _crossings(shared, left.sqrt(), constant, slope)
    return Neurons(
        activation,
        slope,
        mean[..., dim].unsqueeze(-1) - centre / slope,
        left.sqrt() / slope.abs(),
        crossings,
    )


def _crossings(shared: Tensor, root: Tensor, constant: Tensor, slope: Tensor) -> Tensor | None:
    r"""Where the kinks of two neurons meet, if one variable moves both of them.

    What is left of the preactivations is then :math:`r_i u` and :math:`\pm r_j u`, and the
    integral over :math:`u` has a kink of its own.

    Arguments:
        shared: The covariances of what is left, with shape :math:`(*, n, n)`.
        root: Their standard deviations :math:`r`, with shape :math:`(*, n)`.
        constant: The means at the origin, with shape :math:`(*, n)`.
        slope: The slopes of the means, with shape :math:`(*, n)`.
    """
    product = root.unsqueeze(-1) * root.unsqueeze(-2)
    one = (product > 0) & (shared.abs() >= (1 - 1e-9) * product)
    one = one.triu(1)
    if not bool(one.any()):
        return None
    sign = shared.sign()
    safe = torch.where(root > 0, root, 1.0)
    height, steep = constant / safe, slope / safe
    gap = height.unsqueeze(-1) - sign * height.unsqueeze(-2)
    closing = steep.unsqueeze(-1) - sign * steep.unsqueeze(-2)
    where = -gap / closing
    where = torch.where(one & where.isfinite(), where, 0.0)
    used = one.flatten(0, -3).any(0) if one.dim() > 2 else one
    return where[..., used]


def is_reparameterizable(activation: Activation, base: Base) -> bool:
    """Whether conditional distribution functions give pathwise gradients.

    Rectified neurons may all be zero somewhere between others that are not. A draw crosses such a
    hole in one jump, of which no derivative knows.
    """
    if isinstance(activation, ReLU | Step):
        return False
    while isinstance(base, Standardized):
        base = base.base
    return isinstance(base, Gaussian | GaussianMixture | UniformBox | UniformCube)


def cdf(law: Any, value: Tensor) -> Tensor:
    r"""The distribution function of a law with one coordinate.

    Arguments:
        law: The law.
        value: Events, with shape :math:`(*, \text{event})`.
    """
    if law._validate_args:
        law._validate_sample(value)
    latent, maps = law.unfold()
    coordinate = latent.line()
    x = to_latent(value.double(), maps)
    x = x.squeeze(-1) if law.event_shape else x
    x = x.expand(broadcast_shapes(x.shape, law.batch_shape))
    return coordinate.cdf(x).to(torch.promote_types(value.dtype, law.dtype))


def icdf(law: Any, value: Tensor) -> Tensor:
    r"""The quantile function of a law with one coordinate.

    Arguments:
        law: The law.
        value: Probabilities, with shape :math:`(*)`.
    """
    if law._validate_args and not bool(((value >= 0) & (value <= 1)).all()):
        raise ValueError(f"Expected probabilities between 0 and 1, got {value}.")
    latent, maps = law.unfold()
    coordinate = latent.line()
    q = value.expand(broadcast_shapes(value.shape, law.batch_shape)).double()
    x = coordinate.icdf(q)
    if is_real(latent.support):
        ends = torch.where(q > 0, torch.inf, -torch.inf)
        x = torch.where((q > 0) & (q < 1), x, ends)
    x = to_events(x.unsqueeze(-1) if law.event_shape else x, maps)
    return x.to(torch.promote_types(value.dtype, law.dtype))


def to_events(latent: Tensor, maps: Sequence[Pushforward]) -> Tensor:
    """The events of latent coordinates."""
    for base in maps:
        latent = base.event(latent)
    return latent


def to_latent(x: Tensor, maps: Sequence[Pushforward]) -> Tensor:
    """The latent coordinates of events."""
    for base in reversed(maps):
        x = base.to_latent(x)
    return x


def _given(law: Any, prefix: Tensor) -> Any:
    # The law of the coordinate after those of a prefix, the ones behind it integrated out.
    k = prefix.shape[-1]
    some = law.marginal(list(range(k + 1)))
    if k == 0:
        return some.expand(prefix.shape[:-1])
    return some.conditional(list(range(k)), prefix).expand(prefix.shape[:-1])


def sample_sequentially(law: Any, sample_shape: Size) -> Tensor:
    r"""Draws by inversion of conditional distribution functions, coordinate by coordinate.

    Arguments:
        law: A :class:`~pyro_snefy.SNEFY`, in float64.
        sample_shape: The shape of the sample.
    """
    latent, maps = law.unfold()
    shape = sample_shape + law.batch_shape
    if not law.event_shape:
        uniform = torch.rand(shape, dtype=law.weight.dtype, device=law.weight.device)
        return to_events(line(latent).icdf(uniform), maps)
    x = law.weight.new_empty((*shape, 0))
    for k in range(law.event_shape[0]):
        uniform = torch.rand(shape, dtype=x.dtype, device=x.device)
        if k == 0:
            value = latent.marginal([0]).line().icdf(uniform)
        else:
            value = _given(latent, x).line().icdf(uniform)
        x = torch.cat([x, value.unsqueeze(-1)], dim=-1)
    return to_events(x, maps)


def _reparameterized(law: Any, x: Tensor) -> Tensor:
    latent, maps = law.unfold()
    with torch.no_grad():
        fixed = to_latent(x.double(), maps)
    if not law.event_shape:
        return to_events(latent.expand(x.shape).line().attach(fixed, fixed), maps)
    moving = fixed[..., :0]
    for value in fixed.unbind(-1):
        attached = _given(latent, moving).line().attach(value, value)
        moving = torch.cat([moving, attached.unsqueeze(-1)], dim=-1)
    return to_events(moving, maps)


class _Pathwise(Function):
    @staticmethod
    def forward(ctx: Any, law: Any, x: Tensor, *tensors: Tensor) -> Tensor:
        ctx.law = law
        ctx.save_for_backward(x, *tensors)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, *tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            copies = [
                tensor.detach().requires_grad_(need)
                for tensor, need in zip(tensors, needed, strict=True)
            ]
            moved = _reparameterized(ctx.law.with_tensors(copies), x)
            inputs = [copy for copy, need in zip(copies, needed, strict=True) if need]
            gradient = gradients[0].to(moved.dtype)
            found = iter(torch.autograd.grad(moved, inputs, gradient, allow_unused=True))
        return None, None, *(next(found) if need else None for need in needed)


def pathwise(law: Any, x: Tensor) -> Tensor:
    r"""Draws with the gradients of implicit reparameterisation.

    .. math:: \frac{\partial x_k}{\partial \theta} = -\frac{1}{p(x_k | x_{<k})}
        \frac{\partial F(x_k | x_{<k})}{\partial \theta}

    They are computed in the backward pass alone, so that draws cost nothing more without one.

    Arguments:
        law: A :class:`~pyro_snefy.SNEFY`.
        x: Exact draws of it.
    """
    return _Pathwise.apply(law, x, *law.tensors())
