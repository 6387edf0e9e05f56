r"""One coordinate at a time: exact draws without rejection, and pathwise gradients."""

__all__ = ["is_reparameterizable", "pathwise", "price", "sample_sequentially"]

from typing import Any

import torch
from torch import Size, Tensor
from torch.autograd import Function

from ..activations import GaussianActivation, ReLU, Step
from ..bases import (
    Gaussian,
    GaussianMixture,
    Laplace,
    Logistic,
    SmoothBox,
    SmoothBoxMixture,
    StudentT,
    UniformBox,
)
from ..network import Network
from ..operations.marginals import marginal
from ..operations.quantiles import count_nodes, distribution, line, shared_edges

# A proposal takes 0.3 to 7 µs, a node of a quadrature 0.2 to 2 µs: counted as one proposal. A node
# whose kernel is a bivariate expectation for each pair of neurons takes 0.2 to 3 µs a pair. Process
# times on one thread, for seven activations on Gaussians, 10 and 30 neurons, 1 to 3 dimensions: the
# price below was within a factor of 40 in one dimension, and of 15 in two and three.
_PAIR = 0.15
# A quantile from a table that a batch of laws shares takes 50 to 70 µs.
_SHARED = 64.0

_SEQUENTIAL = (
    Gaussian,
    GaussianMixture,
    Laplace,
    Logistic,
    SmoothBox,
    SmoothBoxMixture,
    UniformBox,
)


def is_reparameterizable(network: Network) -> bool:
    """Whether conditional distribution functions give pathwise gradients.

    The density of rectified neurons may vanish between two places where it does not. A draw jumps
    from one place to the other as parameters change, and a derivative does not see the jump.
    """
    if isinstance(network.activation, ReLU | Step):
        return False
    base = network.latent().base
    if isinstance(base, StudentT):  # the tails of a marginal law have no closed form
        return base.event_shape.numel() == 1
    return isinstance(base, _SEQUENTIAL)


def _next(network: Network, prefix: Tensor) -> Network:
    # The network whose first coordinate has the law of the coordinate after the prefix.
    k = prefix.shape[-1]
    some, _ = marginal(network, range(k + 1))
    return some.condition(range(k), prefix) if k else some


def price(network: Network) -> float:
    """The cost of a draw of :func:`sample_sequentially`, in proposals of a rejection sampler."""
    if shared_edges(network) is not None:
        return _SHARED
    coordinates, node = network.base.event_shape.numel(), 1.0
    if coordinates > 1 and isinstance(network.activation, GaussianActivation):
        node = max(1.0, _PAIR * network.width**2)
    return count_nodes(network) * coordinates * node


def sample_sequentially(network: Network, sample_shape: Size) -> Tensor:
    r"""Draws by inversion of conditional distribution functions, coordinate by coordinate.

    Arguments:
        network: A network in float64.
        sample_shape: The shape of the sample.
    """
    latent, shape = network.latent(), sample_shape + network.batch_shape

    def uniform() -> Tensor:
        return torch.rand(shape, dtype=network.weight.dtype, device=network.weight.device)

    if network.base.event_shape.numel() == 1:
        value = distribution(latent).icdf(uniform())
        return network.from_latent(value.reshape(shape + network.base.event_shape))
    x = network.weight.new_empty((*shape, 0))
    for k in range(network.base.event_shape[0]):
        law = _next(latent, x)
        value = line(law.expand(shape) if k else law).icdf(uniform())
        x = torch.cat([x, value.unsqueeze(-1)], dim=-1)
    return network.from_latent(x)


def _reparameterized(network: Network, x: Tensor) -> Tensor:
    network = network.to(torch.float64)
    latent = network.latent()
    with torch.no_grad():
        fixed = network.to_latent(x.double())
    if not network.base.event_shape:
        return network.from_latent(line(latent).attach(fixed, fixed))
    moving = fixed[..., :0]
    for k, value in enumerate(fixed.unbind(-1)):
        # All draws share the law of the first coordinate.
        law = _next(latent, moving).expand(value.shape if k else latent.batch_shape)
        moving = torch.cat([moving, line(law).attach(value, value).unsqueeze(-1)], dim=-1)
    return network.from_latent(moving)


class _Pathwise(Function):
    @staticmethod
    def forward(ctx: Any, network: Network, x: Tensor, *tensors: Tensor) -> Tensor:
        ctx.network = network
        ctx.save_for_backward(x, *tensors)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, *tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            copies = [
                tensor.detach().requires_grad_(need)
                for tensor, need in zip(tensors, needed, strict=True)
            ]
            moved = _reparameterized(ctx.network.with_tensors(copies), x)
            inputs = [copy for copy in copies if copy.requires_grad]
            gradient = gradients[0].to(moved.dtype)
            found = iter(torch.autograd.grad(moved, inputs, gradient, allow_unused=True))
        return None, None, *(next(found) if need else None for need in needed)


def pathwise(network: Network, x: Tensor) -> Tensor:
    r"""Draws with the gradients of implicit reparameterisation (arXiv:1805.08498).

    .. math:: \frac{\partial x_k}{\partial \theta} = -\frac{1}{p(x_k | x_{<k})}
        \frac{\partial F(x_k | x_{<k})}{\partial \theta}

    The quadrature of :math:`F` is part of the backward pass: the forward pass only copies
    :math:`x`.

    Arguments:
        network: The network.
        x: Exact draws from it.
    """
    return _Pathwise.apply(network, x, *network.tensors())
