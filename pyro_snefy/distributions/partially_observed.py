r"""Squared neural families for events with missing coordinates."""

__all__ = ["PartiallyObserved"]

from typing import TYPE_CHECKING, Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints

from ..constraints import intersection, missing
from ..numerics.linalg import broadcast_shapes
from ..operations.missing import (
    check_patterns,
    log_numerator_of_boxes,
    log_numerator_of_rows,
    patterns_of,
)
from ..sampling import sample
from .censored import Censored
from .validation import check_bounds

if TYPE_CHECKING:
    from .snefy import SNEFY

_EMPTY = Size()


class PartiallyObserved(TorchDistribution):
    r"""The law of events with missing coordinates, which are marked by NaN, or with bounds.

    The log-density of a row is the log-density of its observed coordinates under their marginal
    law (arXiv:2305.13552, section 3.2). It is zero where nothing is observed. A coordinate that
    equals its bound is only known to be at or beyond it: the density is integrated over all such
    values, as in :class:`~pyro_snefy.distributions.Censored`.

    Arguments:
        joint: The :class:`~pyro_snefy.SNEFY` of all coordinates. Bounds of vectors take a pair of
            activation and base for which :meth:`~pyro_snefy.SNEFY.interval_probability` works.
        low: The lower bounds, with shape :math:`(*, \text{event})`, infinite for coordinates
            without one, or None.
        high: The upper bounds, of the same shape, or None.

    Example:
        >>> from pyro_snefy import SNEFY
        >>> d = SNEFY(torch.randn(8, 2), torch.zeros(8), torch.randn(2, 8)).partially_observed()
        >>> x = torch.tensor([[0.0, 1.0], [torch.nan, 1.0], [torch.nan, torch.nan]])
        >>> d.log_prob(x)[2]
        tensor(0.)
    """

    arg_constraints: dict[str, Any] = {}

    def __init__(
        self,
        joint: "SNEFY",
        low: Tensor | float | None = None,
        high: Tensor | float | None = None,
    ) -> None:
        if len(joint.event_shape) > 1:
            raise ValueError(
                "Expected a SNEFY whose event is a vector or a scalar, "
                f"got event_shape {tuple(joint.event_shape)}."
            )
        self.bounded = low is not None or high is not None
        self.low, self.high = torch.broadcast_tensors(
            *check_bounds("PartiallyObserved", joint.weight, low, high)
        )
        batch = joint.batch_shape
        if joint.event_shape:
            self.low, self.high = (
                x if x.dim() else x.expand(joint.event_shape) for x in (self.low, self.high)
            )
            if self.low.shape[-1:] != joint.event_shape:
                raise ValueError(
                    f"PartiallyObserved: expected bounds with shape (*, {joint.event_shape[0]}), "
                    f"got {tuple(self.low.shape)}."
                )
        batch = broadcast_shapes(batch, self.low.shape[: self.low.dim() - len(joint.event_shape)])
        self.joint = joint if joint.batch_shape == batch else joint.expand(batch)
        super().__init__(batch, joint.event_shape, validate_args=False)
        self._validate_args = joint._validate_args

    def __repr__(self) -> str:
        bounds = [f", {name}: {tuple(getattr(self, name).shape)}" for name in ("low", "high")]
        return f"PartiallyObserved({self.joint}{''.join(bounds) if self.bounded else ''})"

    def expand(self, batch_shape: Any, _instance: Any = None) -> "PartiallyObserved":
        """The same law with a larger batch shape."""
        new = self._get_checked_instance(PartiallyObserved, _instance)
        bounds = (self.low, self.high) if self.bounded else (None, None)
        PartiallyObserved.__init__(new, self.joint.expand(batch_shape), *bounds)
        return new

    @property
    def support(self) -> Any:
        """The constraint of complete events, on the coordinates that are not NaN."""
        base = self.joint.base
        example, support = base.example(self.joint.weight), base.support
        if self.bounded:
            bounds = constraints.interval(self.low, self.high)
            support = intersection([support, constraints.independent(bounds, base.event_dim)])
            example = example.clamp(self.low, self.high)
        return missing(support, example)

    def sample(self, sample_shape: Any = _EMPTY) -> Tensor:
        """Draws complete events, exactly; values beyond a bound are at the bound."""
        x = self.joint.sample(sample_shape)
        return x.clamp(self.low, self.high) if self.bounded else x

    @torch.no_grad()
    def impute(self, value: Tensor, sample_shape: Any = _EMPTY) -> Tensor:
        r"""Draws what is not observed, exactly, given what is.

        Arguments:
            value: The events, with shape :math:`(*, d)`, and NaN for what is not observed. No
                coordinate is at a bound.
            sample_shape: The shape of the sample: how many completions of each event.

        Returns:
            Complete events, with shape :math:`(\text{sample}, *, d)`.
        """
        if bool(((value == self.low) | (value == self.high)).any()):
            raise NotImplementedError(
                "PartiallyObserved: expected values between the bounds, because there are no draws "
                "from beyond them, got a value at a bound."
            )
        if not self.event_shape:
            shape = broadcast_shapes(value.shape, self.batch_shape)
            draws = self.joint.expand(shape).sample(sample_shape)
            return torch.where(value.isnan(), draws.to(value.dtype), value)
        value, observed = self._checked(value)
        rows, observed = (x.reshape(-1, value.shape[-1]) for x in (value, observed))
        joint = self.joint._network.expand(value.shape[:-1]).flatten()
        result = rows.expand(Size(sample_shape) + rows.shape).clone()
        # All rows with one pattern are drawn together.
        for mask in patterns_of(observed)[0]:
            given, hidden = mask.nonzero().flatten().tolist(), (~mask).nonzero().flatten()
            (place,) = (observed == mask).all(-1).nonzero(as_tuple=True)
            if not len(hidden):
                continue
            network = joint.members(place)
            if given:
                values = rows[place][:, given].to(network.weight.dtype)
                network = network.condition(given, values).expand(network.batch_shape)
            draws = sample(network, Size(sample_shape)).to(rows.dtype)
            result[..., place.unsqueeze(-1), hidden] = draws
        return result.reshape(Size(sample_shape) + value.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density of what is observed.

        Arguments:
            value: The events, with shape :math:`(*, \text{event})`, and NaN for what is not
                observed.
        """
        if not self.event_shape:
            return self._scalar_log_prob(value)
        (rows, observed), joint = self._checked(value), self.joint
        # The reals of torch have infinities, at which no density is defined.
        inside = ~rows.isinf().any(-1)
        inside = self.support.check(rows) & inside if rows.numel() else inside
        filled = torch.where(observed & inside.unsqueeze(-1), rows, joint.base.example(rows))
        if self.bounded:
            below, above = observed & (filled == self.low), observed & (filled == self.high)
            filled = torch.where(observed, filled, torch.nan)
            log_numerator = log_numerator_of_boxes(
                joint._network, filled, below, above, self.low, self.high
            )
        else:
            log_numerator = log_numerator_of_rows(joint._network, filled, observed)
        log_prob = joint._normalized(log_numerator, inside)
        return torch.where(observed.any(-1), log_prob, 0.0).to(value.dtype)

    def _scalar_log_prob(self, value: Tensor) -> Tensor:
        observed = ~value.isnan()
        example = self.joint.base.example(value).clamp(self.low, self.high)
        law = Censored(self.joint, self.low, self.high) if self.bounded else self.joint
        log_prob = law.log_prob(torch.where(observed, value, example))
        return torch.where(observed, log_prob, 0.0)

    def _checked(self, value: Tensor) -> tuple[Tensor, Tensor]:
        # Events at the full batch shape, and which of their coordinates are observed.
        observed = ~value.isnan()
        if value.shape[-1:] == self.event_shape:
            check_patterns(self.joint.base, observed)
        if self._validate_args and value.numel():  # torch's constraints need a row
            self._validate_sample(value)
        shape = broadcast_shapes(value.shape[:-1], self.batch_shape) + self.event_shape
        return value.expand(shape), observed.expand(shape)
