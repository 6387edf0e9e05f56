r"""Heads: which parameters of a conditional squared neural family depend on the context."""

__all__ = ["BaseHead", "Bias", "Head", "LocationScale", "Parameters", "ReadoutHead"]

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributions import transform_to
from torch.nn.functional import softplus

from ..bases import Base


class Parameters(NamedTuple):
    r"""The parameters that a head may change.

    Arguments:
        loc: The location :math:`l`, with shape :math:`(*, \text{event})`.
        scale: The scale :math:`s`, with shape :math:`(*, \text{event})`.
        bias: The biases :math:`b`, with shape :math:`(*, n)`.
        readout: The readout :math:`V`, with shape :math:`(*, m, n)`.
        base: The base, with batch shape :math:`(*)`.
    """

    loc: Tensor
    scale: Tensor
    bias: Tensor
    readout: Tensor
    base: Base


class Head:
    r"""A change of the parameters of a family by some outputs of a network.

    Heads are immutable values. To write one, implement two methods: :meth:`size` says how many
    outputs the head takes, and :meth:`__call__` returns the parameters that these outputs make.

    Example:
        >>> from pyro_snefy import conditional_snefy
        >>> class Unchanged(Head):  # takes no outputs, and leaves the parameters as they are
        ...     def size(self, parameters):
        ...         return 0
        ...
        ...     def __call__(self, parameters, outputs):
        ...         return parameters
        >>> conditional_snefy(2, context_dim=3, heads=[Bias(), Unchanged()]).heads
        (Bias(), ...)
    """

    def size(self, parameters: Parameters) -> int:
        """The number of outputs that this head takes for one context.

        Arguments:
            parameters: The parameters without a batch shape.
        """
        raise NotImplementedError

    def __call__(self, parameters: Parameters, outputs: Tensor) -> Parameters:
        r"""The parameters for each context.

        Arguments:
            parameters: The parameters, as the heads before this one left them.
            outputs: The outputs of the network, with shape :math:`(*, \text{size})`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Bias(Head):
    r"""A bias for each context.

    .. math:: b(c) = b + f(c)

    This is the conditional density model of `Tsuchida, Ong and Sejdinovic (2023)
    <https://arxiv.org/abs/2305.13552>`_, arXiv:2305.13552, in their section on conditional
    distributions: a joint family given some coordinates is a family with another bias. The
    context shifts the waves, and one readout combines them for all contexts.

    Example:
        >>> import torch
        >>> from pyro_snefy import conditional_snefy
        >>> likelihood = conditional_snefy(2, context_dim=3, heads=[Bias()])
        >>> likelihood.condition(torch.randn(5, 3)).batch_shape
        torch.Size([5])
    """

    def size(self, parameters: Parameters) -> int:
        return parameters.bias.shape[-1]

    def __call__(self, parameters: Parameters, outputs: Tensor) -> Parameters:
        return parameters._replace(bias=parameters.bias + outputs)


@dataclass(frozen=True)
class ReadoutHead(Head):
    r"""A readout for each context.

    .. math:: V(c) = V + f(c)

    The shape of the density changes freely with the context. The kernel does not depend on the
    readout, so one kernel serves all contexts.

    Example:
        >>> import torch
        >>> from pyro_snefy import conditional_snefy
        >>> likelihood = conditional_snefy(2, context_dim=3, heads=[ReadoutHead()])
        >>> likelihood.condition(torch.randn(5, 3)).batch_shape
        torch.Size([5])
    """

    def size(self, parameters: Parameters) -> int:
        return parameters.readout.numel()

    def __call__(self, parameters: Parameters, outputs: Tensor) -> Parameters:
        readout = parameters.readout
        outputs = outputs.reshape(outputs.shape[:-1] + readout.shape)
        return parameters._replace(readout=readout + outputs)


@dataclass(frozen=True)
class LocationScale(Head):
    r"""A location and a scale of the event for each context.

    .. math:: u = \frac{x - l(c)}{s(c)}, \quad l(c) = l + s \, f_1(c), \quad
        s(c) = s \left( \epsilon + \operatorname{softplus}(f_2(c) + a) \right)

    The constant :math:`a` makes :math:`s(c) = s` where :math:`f_2(c) = 0`. The neurons see
    :math:`u`, and the law of :math:`u` under the base does not depend on the context, so one
    kernel serves all contexts. The base has to be on the reals or on real vectors.

    Arguments:
        floor: The least scale :math:`\epsilon`, relative to the scale :math:`s` of the data. The
            tails of the density are the tails of the base at the scale :math:`s(c)`: a small floor
            lets outliers become very unlikely.

    Example:
        >>> import torch
        >>> from pyro_snefy import conditional_snefy
        >>> likelihood = conditional_snefy(2, context_dim=3, heads=[LocationScale(0.1), Bias()])
        >>> likelihood.condition(torch.randn(5, 3)).batch_shape
        torch.Size([5])
    """

    floor: float = 0.01

    def size(self, parameters: Parameters) -> int:
        return 2 * parameters.loc.numel()

    def __call__(self, parameters: Parameters, outputs: Tensor) -> Parameters:
        event = parameters.loc.shape
        pair = outputs.unflatten(-1, (2, *event)) if event else outputs
        shift, raw = pair.unbind(-1 - len(event))
        # One where the output is zero: a fresh network leaves the scale as it is.
        stretch = self.floor + softplus(raw + math.log(math.expm1(1 - self.floor)))
        loc, scale = parameters.loc, parameters.scale
        return parameters._replace(loc=loc + scale * shift, scale=scale * stretch)


@dataclass(frozen=True)
class BaseHead(Head):
    r"""A base for each context.

    .. math:: \theta(c) = T\left( T^{-1}(\theta) + f(c) \right)

    Here :math:`\theta` is a tensor of the base, such as the rate of a
    :class:`~pyro_snefy.bases.Poisson` base, and :math:`T` maps the reals to the values that the
    tensor may have: :math:`\text{rate}(c) = \text{rate} \cdot e^{f(c)}`. Tensors that define the
    support stay as they are, such as the total count of a :class:`~pyro_snefy.bases.Binomial`
    base. Each context has a kernel of its own.

    Example:
        >>> import torch
        >>> from pyro_snefy import conditional_snefy
        >>> from pyro_snefy.bases import Poisson
        >>> likelihood = conditional_snefy(Poisson(2.0), context_dim=3, heads=[BaseHead()])
        >>> likelihood.condition(torch.randn(5, 3)).base.rate.shape
        torch.Size([5])
    """

    def size(self, parameters: Parameters) -> int:
        return sum(value.numel() for value, _ in _free(parameters.base))

    def __call__(self, parameters: Parameters, outputs: Tensor) -> Parameters:
        base = parameters.base
        pieces = iter(outputs.split([value.numel() for value, _ in _free(base)], dim=-1))
        moved = []
        for (_, value), constraint in zip(base.tensors(), base.tensor_constraints(), strict=True):
            if constraint is not None:
                piece, transform = next(pieces), transform_to(constraint)
                piece = piece.unflatten(-1, value.shape) if value.dim() else piece.squeeze(-1)
                value = transform(transform.inv(value) + piece)
            moved.append(value)
        values = iter(moved)
        return parameters._replace(base=base.map(lambda _: next(values)))


def _free(base: Base) -> list[tuple[Tensor, Any]]:
    # The tensors of a base that do not define its support, with their constraints.
    pairs = zip(base.tensors(), base.tensor_constraints(), strict=True)
    return [(value, constraint) for (_, value), constraint in pairs if constraint is not None]
