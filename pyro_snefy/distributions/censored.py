r"""Squared neural families that are observed up to bounds, as in a Tobit model."""

__all__ = ["Censored"]

from typing import TYPE_CHECKING, Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints

from ..numerics.linalg import broadcast_shapes
from ..operations.intervals import log_box_mass
from .validation import Levels, check_bounds

if TYPE_CHECKING:
    from .snefy import SNEFY

_EMPTY = Size()


class Censored(TorchDistribution):
    r"""The law of :math:`\min(\max(x, l), u)`, where :math:`x` follows a scalar family.

    .. math:: P(l) = \int_{-\infty}^l p(x) \, dx, \quad P(u) = \int_u^\infty p(x) \, dx

    A value at a bound stands for all values at and beyond it. The log-density of a value between
    the bounds is the log-density of the family; at a bound it is the logarithm of a probability.
    This is the likelihood of Tobin, "Estimation of relationships for limited dependent variables",
    Econometrica 26 (1958).

    Arguments:
        latent: The :class:`~pyro_snefy.SNEFY` of :math:`x`, with scalar events.
        low: The lower bound :math:`l`, which broadcasts with the batch shape, or None.
        high: The upper bound :math:`u`, or None.

    Example:
        >>> from pyro_snefy import SNEFY
        >>> from pyro_snefy.bases import Gaussian
        >>> base = Gaussian(0.0, 1.0, event_dim=0)
        >>> d = SNEFY(torch.zeros(1, 1), torch.zeros(1), torch.ones(1, 1), base=base)
        >>> d.censored(low=0.0).log_prob(torch.tensor([0.0, 1.0]))
        tensor([-0.6931, -1.4189])
    """

    arg_constraints: dict[str, Any] = {}

    def __init__(
        self,
        latent: "SNEFY",
        low: Tensor | float | None = None,
        high: Tensor | float | None = None,
    ) -> None:
        if latent.event_shape:
            raise ValueError(
                "Censored: expected a SNEFY with scalar events, got event_shape "
                f"{tuple(latent.event_shape)}; partially_observed takes bounds of vectors."
            )
        if low is None and high is None:
            raise ValueError("Censored: expected low, high or both, got neither.")
        self.low, self.high = check_bounds("Censored", latent.weight, low, high)
        batch = broadcast_shapes(latent.batch_shape, self.low.shape, self.high.shape)
        self.latent = latent if latent.batch_shape == batch else latent.expand(batch)
        super().__init__(batch, Size(), validate_args=False)
        self._validate_args = latent._validate_args

    def __repr__(self) -> str:
        low, high = tuple(self.low.shape), tuple(self.high.shape)
        return f"Censored({self.latent}, low: {low}, high: {high})"

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Censored":
        """The same law with a larger batch shape."""
        new = self._get_checked_instance(Censored, _instance)
        Censored.__init__(new, self.latent.expand(batch_shape), self.low, self.high)
        return new

    @property
    def support(self) -> Any:
        """The reals between the bounds, and the bounds."""
        return constraints.interval(self.low, self.high)

    def sample(self, sample_shape: Any = _EMPTY) -> Tensor:
        """Draws values, exactly."""
        return self.latent.sample(sample_shape).clamp(self.low, self.high)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density between the bounds, and the log-probability of each bound.

        Arguments:
            value: The values, with shape :math:`(*)`.
        """
        if self._validate_args:
            self._validate_sample(value)
        latent = self.latent
        below, above = value == self.low, value == self.high
        free = (value > self.low) & (value < self.high)
        inner = torch.where(free, value, latent.base.example(value))
        log_prob = latent._log_prob(inner, latent.base, latent._network.to(inner.dtype).log_density)
        log_prob = torch.where(free, log_prob, -torch.inf)
        for here, ends in (
            (below, (torch.full_like(self.low, -torch.inf), self.low)),
            (above, (self.high, torch.full_like(self.high, torch.inf))),
        ):
            # Without a bound there is no mass at it.
            if bool(ends[0].isinf().all() and ends[1].isinf().all()):
                continue
            log_mass = log_box_mass(latent._network, *ends)
            beyond = latent._normalized(log_mass, log_mass > -torch.inf).to(log_prob.dtype)
            log_prob = torch.where(here, beyond, log_prob)
        return log_prob

    def cdf(self, value: Tensor) -> Tensor:
        r"""The distribution function, which jumps at the bounds.

        Arguments:
            value: The values, with shape :math:`(*)`.
        """
        free = (value >= self.low) & (value < self.high)
        latent = self.latent
        found = latent.cdf(torch.where(free, value, latent.base.example(value)))
        return torch.where(free, found, (value >= self.high).to(found.dtype))

    def icdf(self, value: Levels) -> Tensor:
        r"""The quantiles, which are bounds where a bound has the mass.

        Arguments:
            value: Probabilities: a number, or a tensor that broadcasts with the batch shape. A
                list of :math:`k` numbers gives quantiles with shape :math:`(k, \text{batch})`.
        """
        return self.latent.icdf(value).clamp(self.low, self.high)
