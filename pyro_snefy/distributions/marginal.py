r"""Laws of some coordinates of a squared neural family, the others integrated out."""

__all__ = ["Marginal"]

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor

from ..constraints import permuted
from ..numerics.linalg import broadcast_shapes, take
from ..operations.marginals import check_dims, log_numerator
from ..operations.quantiles import cdf, icdf
from .validation import check_one_coordinate, check_probabilities

if TYPE_CHECKING:
    from .snefy import SNEFY

_EMPTY = Size()


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
    _detached = False  # whether has_rsample_(False) was called

    def __init__(self, joint: "SNEFY", dims: Sequence[int]) -> None:
        self.joint = joint
        self.dims = check_dims(dims, joint.event_shape)
        super().__init__(joint.batch_shape, Size((len(self.dims),)), validate_args=False)
        self._validate_args = joint._validate_args

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Marginal":
        """The same law with a larger batch shape."""
        new = self._get_checked_instance(Marginal, _instance)
        Marginal.__init__(new, self.joint.expand(batch_shape), self.dims)
        new._detached = self._detached
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
        joint, dims, value = self.joint, sorted(self.dims), take(value, self._order)
        law = joint.base.marginal(dims) if len(dims) < joint.event_shape[0] else joint.base
        inside = law.contains(value)
        value = value.to(torch.promote_types(value.dtype, joint.weight.dtype))
        value = torch.where(inside.unsqueeze(-1), value, law.example(value))
        log_normalizer = joint._log_normalizer()
        log_prob = log_numerator(joint._network, dims, value) - log_normalizer
        possible = inside & (log_normalizer > -torch.inf)
        log_prob = torch.where(possible, log_prob, -torch.inf).to(value.dtype)
        return log_prob.expand(broadcast_shapes(log_prob.shape, self.batch_shape))

    @property
    def has_rsample(self) -> bool:
        """Whether there are pathwise gradients."""
        return self.joint.has_rsample and not self._detached

    @has_rsample.setter
    def has_rsample(self, value: bool) -> None:
        if value:
            self.joint._check_reparameterizable()
        self._detached = not value

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

    def cdf(self, value: Tensor) -> Tensor:
        r"""The distribution function, of a single coordinate.

        Arguments:
            value: Events, with shape :math:`(*, 1)`.
        """
        if self._validate_args:
            self._validate_sample(value)
        check_one_coordinate(self.event_shape)
        return cdf(self.joint._network, self.dims[0], value)

    def icdf(self, value: Tensor) -> Tensor:
        r"""The quantiles, of a single coordinate.

        Arguments:
            value: Probabilities, with shape :math:`(*)`.
        """
        if self._validate_args:
            check_probabilities(value)
        check_one_coordinate(self.event_shape)
        return icdf(self.joint._network, self.dims[0], value)

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
