r"""Laws of some coordinates of a squared neural family, the others integrated out."""

__all__ = ["Marginal", "check_dims", "closed_marginal"]

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor

from ..activations import Cis, Cos, Exp, Sin
from ..constraints import permuted
from ..kernels import Separable, kernel
from ..network import Network
from ..numerics.linalg import take
from ..sampling import Line, cdf, icdf, line

_EMPTY = Size()


def check_dims(dims: Sequence[int], event_shape: Size) -> list[int]:
    """Checks coordinates of a vector event, and makes them non-negative.

    Arguments:
        dims: The coordinates.
        event_shape: The shape of the event.
    """
    if len(event_shape) != 1:
        raise ValueError(f"Expected an event that is a vector, got event_shape {event_shape}.")
    d = event_shape[0]
    result = [dim + d if dim < 0 else dim for dim in dims]
    if not result or len(set(result)) != len(result) or not all(0 <= k < d for k in result):
        raise ValueError(
            f"Expected dims to be distinct coordinates of an event of length {d}, got {list(dims)}."
        )
    return result


class Marginal(TorchDistribution):
    r"""The law of some coordinates of a squared neural family.

    .. math:: p(x_1) = \frac{\mu_1(x_1)}{Z} \int \left\| V \sigma(W_1 t_1(x_1) + W_2 t_2(x_2) + b)
        \right\|^2 \mu_{2 | 1}(dx_2)

    The integral is a normalising constant at the bias :math:`b + W_1 t_1(x_1)`, that of the law
    of the other coordinates.

    Arguments:
        joint: The :class:`~pyro_snefy.SNEFY` of all coordinates.
        dims: The coordinates that are kept, in this order.

    Example:
        >>> from pyro_snefy import SNEFY
        >>> joint = SNEFY(torch.randn(8, 3), torch.zeros(8), torch.randn(2, 8))
        >>> joint.marginal([2]).log_prob(torch.zeros(5, 1)).shape
        torch.Size([5])
    """

    arg_constraints: dict[str, Any] = {}

    def __init__(self, joint: Any, dims: Sequence[int]) -> None:
        self.joint = joint
        self.dims = check_dims(dims, joint.event_shape)
        super().__init__(joint.batch_shape, Size((len(self.dims),)), validate_args=False)
        self._validate_args = joint._validate_args

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Marginal":
        """The same law with a larger batch shape."""
        new = self._get_checked_instance(Marginal, _instance)
        Marginal.__init__(new, self.joint.expand(batch_shape), self.dims)
        return new

    @property
    def _order(self) -> list[int]:
        # Bases speak of coordinates in ascending order.
        return sorted(range(len(self.dims)), key=self.dims.__getitem__)

    @property
    def support(self) -> Any:
        """The constraint that events satisfy."""
        support = self.joint.base.marginal(sorted(self.dims)).support
        order = self._order
        return support if order == sorted(order) else permuted(support, order)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density, which is :math:`-\infty` outside the support.

        Arguments:
            value: The events, with shape :math:`(*, \text{len(dims)})`.
        """
        if self._validate_args:
            self._validate_sample(value)
        return self.joint.marginal_log_prob(sorted(self.dims), take(value, self._order))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return self.joint.dtype

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether there are pathwise gradients."""
        return self.joint.has_rsample

    def sample(self, sample_shape: Any = _EMPTY) -> Tensor:
        """Draws events, exactly: all coordinates, and then the ones that are kept.

        Arguments:
            sample_shape: The shape of the sample.
        """
        return self.joint.sample(sample_shape)[..., self.dims]

    def rsample(self, sample_shape: Any = _EMPTY) -> Tensor:
        """Draws events with pathwise gradients.

        Arguments:
            sample_shape: The shape of the sample.
        """
        return self.joint.rsample(sample_shape)[..., self.dims]

    def unfold(self) -> tuple["Marginal", list[Any]]:
        """The law of latent coordinates, and the bases that map them to events, from inside."""
        latent, maps = self.joint.unfold()
        return Marginal(latent, self.dims), [base.marginal(self.dims) for base in maps]

    def line(self) -> Line:
        """The law of a single coordinate, prepared for its distribution function."""
        if len(self.dims) > 1:
            raise NotImplementedError(
                "Expected one coordinate for a distribution function, got "
                f"event_shape {tuple(self.event_shape)}; try marginal([k])."
            )
        return line(self.joint, self.dims[0])

    def cdf(self, value: Tensor) -> Tensor:
        r"""The distribution function, of a single coordinate.

        Arguments:
            value: Events, with shape :math:`(*, 1)`.
        """
        return cdf(self, value)

    def icdf(self, value: Tensor) -> Tensor:
        r"""The quantiles, of a single coordinate.

        Arguments:
            value: Probabilities, with shape :math:`(*)`.
        """
        return icdf(self, value)

    def marginal(self, dims: Sequence[int]) -> Any:
        """The law of some of these coordinates, in the given order."""
        return self.joint.marginal([self.dims[k] for k in check_dims(dims, self.event_shape)])

    def conditional(self, dims: Sequence[int], values: Tensor) -> Any:
        """The law of the other of these coordinates, given the values of some."""
        dims = check_dims(dims, self.event_shape)
        given = [self.dims[k] for k in dims]
        kept = [self.dims[k] for k in range(len(self.dims)) if k not in dims]
        rest = [k for k in range(self.joint.event_shape[0]) if k not in given]
        return self.joint.conditional(given, values).marginal([rest.index(k) for k in kept])

    @property
    def mean(self) -> Tensor:
        """The mean, in closed form where there is one."""
        return self.joint.mean[..., self.dims]

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate, in closed form where there is one."""
        return self.joint.variance[..., self.dims]

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance matrix, in closed form where there is one."""
        return self.joint.covariance_matrix[..., self.dims, :][..., self.dims]


def closed_marginal(network: Network, dims: Sequence[int]) -> dict[str, Any] | None:
    r"""The marginal of waves and exponentials, which are families of the same kind.

    The normaliser over the other coordinates is a quadratic form in functions of single biases,
    each of which is a neuron again.

    Arguments:
        network: The network of all coordinates.
        dims: The coordinates that are kept.

    Returns:
        Arguments of the marginal family, in float64, or None where it is none of this kind.
    """
    if not isinstance(network.activation, Cos | Sin | Cis | Exp):
        return None
    network = network.to(torch.float64).real()
    base, weight, activation = network.base, network.weight, network.activation
    try:
        law, regression = base.marginal(dims), base.regression(dims, weight)
    except NotImplementedError:
        return None
    kept, rest = weight[..., base.columns(dims)], weight[..., base.columns(base.others(dims))]
    reference, bias = law.example(weight), network.bias
    if regression is not None:
        # The law of the others moves with the values: their weights act on these too.
        slope = rest @ regression
        kept = kept + slope
        bias = bias - (slope @ law.statistic(reference).unsqueeze(-1)).squeeze(-1)
    others: Any = base.conditional(dims, reference)
    integral = kernel(activation, others, rest)
    if not isinstance(integral, Separable):
        return None
    gram = network.form.gram()
    if isinstance(activation, Exp):
        log_scale = integral.features(bias).log_scale
        assert log_scale is not None
        bias, gram = log_scale / activation.scale, gram * integral.blocks[0, 0]
    else:
        # A wave and the one a quarter of a turn ahead.
        bias = bias + (rest * others.mean(rest).unsqueeze(-2)).sum(-1)
        bias = torch.cat([bias, bias + math.pi / 2], dim=-1)
        kept = torch.cat([kept, kept], dim=-2)
        cross = integral.blocks.get((0, 1))
        cross = torch.zeros_like(gram) if cross is None else gram * cross
        corners = [gram * integral.blocks[k, k] for k in (0, 1)]
        first, second, cross = torch.broadcast_tensors(*corners, cross)
        upper = torch.cat([first, cross], dim=-1)
        lower = torch.cat([cross.mT, second], dim=-1)
        gram = torch.cat([upper, lower], dim=-2)
    return {"weight": kept, "bias": bias, "gram": gram, "activation": activation, "base": law}
