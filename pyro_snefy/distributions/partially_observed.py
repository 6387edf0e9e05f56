r"""Squared neural families for events with missing coordinates."""

__all__ = ["PartiallyObserved"]

from typing import TYPE_CHECKING, Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor

from ..constraints import missing
from ..numerics.linalg import broadcast_shapes
from ..operations.missing import check_patterns, log_numerator_of_rows, patterns_of
from ..sampling import sample

if TYPE_CHECKING:
    from .snefy import SNEFY

_EMPTY = Size()


class PartiallyObserved(TorchDistribution):
    r"""The law of events with missing coordinates, which are marked by NaN.

    The log-density of a row is the log-density of its observed coordinates under their marginal
    law (arXiv:2305.13552, section 3.2). It is zero where nothing is observed.

    Arguments:
        joint: The :class:`~pyro_snefy.SNEFY` of all coordinates.

    Example:
        >>> from pyro_snefy import SNEFY
        >>> d = SNEFY(torch.randn(8, 2), torch.zeros(8), torch.randn(2, 8)).partially_observed()
        >>> x = torch.tensor([[0.0, 1.0], [torch.nan, 1.0], [torch.nan, torch.nan]])
        >>> d.log_prob(x)[2]
        tensor(0.)
    """

    arg_constraints: dict[str, Any] = {}

    def __init__(self, joint: "SNEFY") -> None:
        if len(joint.event_shape) != 1:
            raise ValueError(
                "Expected a SNEFY whose event is a vector, "
                f"got event_shape {tuple(joint.event_shape)}."
            )
        self.joint = joint
        super().__init__(joint.batch_shape, joint.event_shape, validate_args=False)
        self._validate_args = joint._validate_args

    def expand(self, batch_shape: Any, _instance: Any = None) -> "PartiallyObserved":
        """The same law with a larger batch shape."""
        new = self._get_checked_instance(PartiallyObserved, _instance)
        PartiallyObserved.__init__(new, self.joint.expand(batch_shape))
        return new

    @property
    def support(self) -> Any:
        """The constraint of complete events, on the coordinates that are not NaN."""
        base = self.joint.base
        return missing(base.support, base.example(self.joint.weight))

    def sample(self, sample_shape: Any = _EMPTY) -> Tensor:
        """Draws complete events, exactly."""
        return self.joint.sample(sample_shape)

    @torch.no_grad()
    def impute(self, value: Tensor, sample_shape: Any = _EMPTY) -> Tensor:
        r"""Draws what is not observed, exactly, given what is.

        Arguments:
            value: The events, with shape :math:`(*, d)`, and NaN for what is not observed.
            sample_shape: The shape of the sample: how many completions of each event.

        Returns:
            Complete events, with shape :math:`(\text{sample}, *, d)`.
        """
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
            value: The events, with shape :math:`(*, d)`, and NaN for what is not observed.
        """
        (rows, observed), joint = self._checked(value), self.joint
        # The reals of torch have infinities, at which no density is defined.
        inside = ~rows.isinf().any(-1)
        inside = self.support.check(rows) & inside if rows.numel() else inside
        rows = torch.where(observed & inside.unsqueeze(-1), rows, joint.base.example(rows))
        log_numerator = log_numerator_of_rows(joint._network, rows, observed)
        log_prob = joint._normalized(log_numerator, inside)
        return torch.where(observed.any(-1), log_prob, 0.0).to(value.dtype)

    def _checked(self, value: Tensor) -> tuple[Tensor, Tensor]:
        # Events at the full batch shape, and which of their coordinates are observed.
        observed = ~value.isnan()
        if value.shape[-1:] == self.event_shape:
            check_patterns(self.joint.base, observed)
        if self._validate_args and value.numel():  # torch's constraints need a row
            self._validate_sample(value)
        shape = broadcast_shapes(value.shape[:-1], self.batch_shape) + self.event_shape
        return value.expand(shape), observed.expand(shape)
