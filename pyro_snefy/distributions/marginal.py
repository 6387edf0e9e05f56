r"""Some coordinates of a squared neural family, the others integrated out."""

__all__ = ["Marginal"]

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor

from ..bases import Base
from ..constraints import permuted
from ..numerics.linalg import safe_log, take
from ..operations.marginals import check_dims, log_numerator
from ..operations.quantiles import cdf, icdf
from ..operations.regions import highest_density_region, mode
from ..operations.scores import crps
from .validation import NO_ENTROPY, Levels, check_inner_levels, check_one_coordinate

if TYPE_CHECKING:
    from .snefy import SNEFY

_EMPTY = Size()


class Marginal(TorchDistribution):
    r"""The law of some coordinates of a squared neural family.

    .. math:: p(x_1) = \frac{\mu_1(x_1)}{Z} \int \left\| V \sigma(W_1 t_1(x_1) + W_2 t_2(x_2) + b)
        \right\|^2 \mu_{2 | 1}(dx_2)

    The integral is the normaliser of the other coordinates at the bias
    :math:`b + W_1 t_1(x_1)` (arXiv:2305.13552, section 3.2).

    Arguments:
        joint: The :class:`~pyro_snefy.SNEFY` of all coordinates.
        dims: The coordinates that are kept, in this order.

    Example:
        >>> import torch
        >>> from pyro_snefy import SNEFY
        >>> from pyro_snefy.activations import ReLU
        >>> weight, readout = torch.randn(8, 3), torch.randn(2, 8)
        >>> joint = SNEFY(weight, torch.zeros(8), readout, activation=ReLU())
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

    def __repr__(self) -> str:
        return f"Marginal({self.joint}, dims={list(self.dims)})"

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
    def _law(self) -> Base:
        # The base of the kept coordinates, in ascending order.
        base = self.joint.base
        return base if len(self.dims) == base.event_shape[0] else base.marginal(sorted(self.dims))

    @property
    def support(self) -> Any:
        """The constraint that events satisfy."""
        support, order = self._law.support, self._order
        return support if order == sorted(order) else permuted(support, order)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density, which is :math:`-\infty` outside the support.

        Arguments:
            value: The events, with shape :math:`(*, \text{len(dims)})`.
        """
        if self._validate_args:
            self._validate_sample(value)
        network, dims = self.joint._network, sorted(self.dims)
        return self.joint._log_prob(
            take(value, self._order), self._law, lambda x: log_numerator(network, dims, x)
        )

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
        """Draws all coordinates, exactly, and keeps some."""
        return self.joint.sample(sample_shape)[..., self.dims]

    def rsample(self, sample_shape: Any = _EMPTY) -> Tensor:
        """Draws events with pathwise gradients, where ``has_rsample`` is true."""
        return self.joint.rsample(sample_shape)[..., self.dims]

    def cdf(self, value: Tensor) -> Tensor:
        r"""The distribution function, of a single coordinate.

        Arguments:
            value: Events, with shape :math:`(*, 1)`.
        """
        check_one_coordinate(self.event_shape, self._law)
        if self._validate_args:
            self._validate_sample(value)
        return cdf(self.joint._network, self.dims[0], value)

    def icdf(self, value: Levels) -> Tensor:
        r"""The quantiles, of a single coordinate.

        Arguments:
            value: Probabilities: a number, or a tensor that broadcasts with the batch shape. A
                list of :math:`k` numbers gives quantiles with shape
                :math:`(k, \text{batch}, 1)`.
        """
        check_one_coordinate(self.event_shape, self._law)
        return icdf(self.joint._network, self.dims[0], self.joint._levels(value))

    def log_cdf(self, value: Tensor) -> Tensor:
        r"""The logarithm of :meth:`cdf`, with digits in the lower tail.

        Arguments:
            value: Events, with shape :math:`(*, 1)`.
        """
        log_cdf = safe_log(self.cdf(value.double()))
        return log_cdf.to(torch.promote_types(value.dtype, self.joint.weight.dtype))

    def crps(self, value: Tensor) -> Tensor:
        r"""The continuous ranked probability score, of a single coordinate.

        Arguments:
            value: Events, with shape :math:`(*, 1)`.
        """
        check_one_coordinate(self.event_shape, self._law)
        if self._validate_args:
            self._validate_sample(value)
        return crps(self.joint._network, self.dims[0], value)

    def highest_density_region(self, level: Levels) -> tuple[Tensor, Tensor]:
        r"""The smallest set with a given probability, of a single coordinate.

        Arguments:
            level: The probability, as in :meth:`pyro_snefy.SNEFY.highest_density_region`.
        """
        check_one_coordinate(self.event_shape, self._law)
        levels = self.joint._levels(level)
        check_inner_levels(levels)
        return highest_density_region(self.joint._network, self.dims[0], levels)

    @property
    def mode(self) -> Tensor:
        """Where the density of a single coordinate is largest, without gradients."""
        check_one_coordinate(self.event_shape, self._law)
        return mode(self.joint._network, self.dims[0])

    def marginal(self, dims: Sequence[int]) -> "SNEFY | Marginal":
        """The law of some of these coordinates, in the given order."""
        return self.joint.marginal([self.dims[k] for k in check_dims(dims, self.event_shape)])

    def conditional(self, dims: Sequence[int], values: Tensor) -> "SNEFY | Marginal":
        """The law of the other of these coordinates, given the values of some."""
        dims = check_dims(dims, self.event_shape)
        given = [self.dims[k] for k in dims]
        kept = [self.dims[k] for k in range(len(self.dims)) if k not in dims]
        rest = [k for k in range(self.joint.event_shape[0]) if k not in given]
        return self.joint.conditional(given, values).marginal([rest.index(k) for k in kept])

    def entropy(self) -> Tensor:
        r"""Raises an error: the integral of :math:`p \log p` has no closed form."""
        raise NotImplementedError(NO_ENTROPY)

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
