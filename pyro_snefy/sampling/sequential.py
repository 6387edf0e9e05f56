r"""One coordinate at a time: exact draws without rejection, and pathwise gradients."""

__all__ = ["is_reparameterizable", "pathwise", "sample_sequentially"]

from typing import Any

import torch
from torch import Size, Tensor
from torch.autograd import Function

from ..activations import ReLU, Step
from ..bases import Gaussian, GaussianMixture, UniformBox
from ..network import Network
from ..operations.marginals import marginal
from ..operations.quantiles import line


def is_reparameterizable(network: Network) -> bool:
    """Whether conditional distribution functions give pathwise gradients.

    Rectified neurons may all be zero somewhere between others that are not. A draw crosses such a
    hole in one jump, which no derivative sees.
    """
    if isinstance(network.activation, ReLU | Step):
        return False
    return isinstance(network.latent().base, Gaussian | GaussianMixture | UniformBox)


def _next(network: Network, prefix: Tensor) -> Network:
    # The law of the coordinate after a prefix; it is the first one of the network returned.
    k = prefix.shape[-1]
    some, _ = marginal(network, range(k + 1))
    return some.condition(range(k), prefix) if k else some


def sample_sequentially(network: Network, sample_shape: Size) -> Tensor:
    r"""Draws by inversion of conditional distribution functions, coordinate by coordinate.

    Arguments:
        network: A network in float64 whose statistic is its event.
        sample_shape: The shape of the sample.

    Returns:
        Events, with shape :math:`(\text{sample}, \text{batch}, \text{event})`.
    """
    shape = sample_shape + network.batch_shape

    def uniform() -> Tensor:
        return torch.rand(shape, dtype=network.weight.dtype, device=network.weight.device)

    if not network.base.event_shape:
        return line(network).icdf(uniform())
    x = network.weight.new_empty((*shape, 0))
    for k in range(network.base.event_shape[0]):
        law = _next(network, x)
        value = line(law.expand(shape) if k else law).icdf(uniform())
        x = torch.cat([x, value.unsqueeze(-1)], dim=-1)
    return x


def _reparameterized(network: Network, x: Tensor) -> Tensor:
    network = network.to(torch.float64)
    latent = network.latent()
    with torch.no_grad():
        fixed = network.to_latent(x.double())
    if not network.base.event_shape:
        return network.from_latent(line(latent.expand(x.shape)).attach(fixed, fixed))
    moving = fixed[..., :0]
    for value in fixed.unbind(-1):
        law = _next(latent, moving).expand(value.shape)
        moving = torch.cat([moving, line(law).attach(value, value).unsqueeze(-1)], dim=-1)
    return network.from_latent(moving)


class _Pathwise(Function):
    @staticmethod
    def forward(ctx: Any, network: Network, x: Tensor, *tensors: Tensor) -> Tensor:
        ctx.network = network
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
            moved = _reparameterized(ctx.network.with_tensors(copies), x)
            inputs = [copy for copy, need in zip(copies, needed, strict=True) if need]
            gradient = gradients[0].to(moved.dtype)
            found = iter(torch.autograd.grad(moved, inputs, gradient, allow_unused=True))
        return None, None, *(next(found) if need else None for need in needed)


def pathwise(network: Network, x: Tensor) -> Tensor:
    r"""Draws with the gradients of implicit reparameterisation (arXiv:1805.08498).

    .. math:: \frac{\partial x_k}{\partial \theta} = -\frac{1}{p(x_k | x_{<k})}
        \frac{\partial F(x_k | x_{<k})}{\partial \theta}

    They are computed in the backward pass alone: draws without one cost nothing more.

    Arguments:
        network: The network.
        x: Exact draws from it.
    """
    return _Pathwise.apply(network, x, *network.tensors())
