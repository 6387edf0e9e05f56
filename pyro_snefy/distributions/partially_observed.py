r"""Squared neural families of which some coordinates are not observed."""

__all__ = ["PartiallyObserved"]

from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor

from ..constraints import missing
from ..kernels.registry import is_narrow
from ..network import Network
from ..numerics.linalg import broadcast_shapes, rows_matmul

_EMPTY = Size()


class PartiallyObserved(TorchDistribution):
    r"""The law of events with missing coordinates, which are marked by NaN.

    The log-density of a row is that of the marginal law of the coordinates that are there, a
    pattern for each row; it is zero where none is.

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

    def __init__(self, joint: Any) -> None:
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
        """The constraint that events satisfy: that of complete ones, where they are not NaN."""
        base = self.joint.base
        return missing(base.support, base.example(self.joint.weight))

    def sample(self, sample_shape: Any = _EMPTY) -> Tensor:
        """Draws complete events, exactly.

        Arguments:
            sample_shape: The shape of the sample.
        """
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
        if self._validate_args:
            self._validate_sample(value)
        shape, sample_shape = (
            broadcast_shapes(value.shape[:-1], self.batch_shape),
            Size(sample_shape),
        )
        rows = value.expand(shape + value.shape[-1:]).reshape(-1, value.shape[-1])
        observed, joint = ~rows.isnan(), self.joint.expand(shape)
        result = rows.expand(sample_shape + rows.shape).clone()
        # One law for each pattern: that of its missing coordinates, for the rows that have it.
        for mask in _patterns(observed)[0]:
            given, hidden = mask.nonzero().flatten().tolist(), (~mask).nonzero().flatten()
            (place,) = (observed == mask).all(-1).nonzero(as_tuple=True)
            if not len(hidden):
                continue
            family = joint.select(place)
            if given:
                family = family.conditional(given, rows[place][:, given])
            draws = family.sample(sample_shape).to(rows.dtype)
            result[..., place.unsqueeze(-1), hidden] = draws
        return result.reshape(sample_shape + shape + value.shape[-1:])

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density of what is observed.

        Arguments:
            value: The events, with shape :math:`(*, d)`, and NaN for what is not observed.
        """
        if self._validate_args:
            self._validate_sample(value)
        joint = self.joint
        shape = broadcast_shapes(value.shape[:-1], joint.batch_shape)
        rows = value.expand(shape + value.shape[-1:]).reshape(-1, value.shape[-1])
        observed = ~rows.isnan()
        # The reals of torch have infinities, at which no density is defined.
        inside = self.support.check(rows) & ~rows.isinf().any(-1)
        example = joint.base.example(rows)
        rows = torch.where(observed & inside.unsqueeze(-1), rows, example)
        log_prob = self._log_numerator(rows, observed, shape)
        log_normalizer = joint._log_normalizer()
        log_prob = log_prob.reshape(shape) - log_normalizer
        valid = inside.reshape(shape) & (log_normalizer > -torch.inf)
        log_prob = torch.where(valid, log_prob, -torch.inf)
        return torch.where(observed.any(-1).reshape(shape), log_prob, 0.0).to(value.dtype)

    def _log_numerator(self, rows: Tensor, observed: Tensor, shape: Size) -> Tensor:
        # The logarithm of the marginal density times Z, row by row.
        joint = self.joint
        narrow = is_narrow(joint.activation, joint.base)
        network = joint._network(joint.weight.dtype if narrow else torch.float64)
        patterns, pattern = _patterns(observed)
        one_model = network.weight.dim() == 2 and network.form.matrix.dim() == 2
        if one_model and network.base.batch_shape == ():
            blocks = _Blocks(pattern, len(patterns))
            bias = network.bias.expand(shape + network.bias.shape[-1:]).flatten(0, -2)
            events = rows.to(network.weight.dtype)[blocks.rows]  # (K, R, d)
            partial = network.base.partial(events, patterns[blocks.pattern].unsqueeze(-2))
            if partial is not None:
                weight = network.weight
                known = rows_matmul(partial.statistic, weight.mT)
                network = Network(
                    network.activation,
                    partial.base,
                    # (K, 1, n, D) where there is a mask
                    weight if partial.mask is None else weight * partial.mask.unsqueeze(-2),
                    bias[blocks.rows] + known if network.bias.dim() > 1 else network.bias + known,
                    network.form,
                )
                return blocks.unpack(partial.log_density + network.log_normalizer())
        return self._by_pattern(rows, patterns, pattern, shape)

    def _by_pattern(self, rows: Tensor, patterns: Tensor, pattern: Tensor, shape: Size) -> Tensor:
        # Without a way to do them all at once, patterns are taken one after the other.
        joint, dtype = self.joint, torch.float64
        total = rows.new_zeros(rows.shape[:-1], dtype=dtype)
        for k, mask in enumerate(patterns.tolist()):
            dims = [dim for dim, here in enumerate(mask) if here]
            values = rows[..., dims].reshape((*shape, len(dims)))
            value = joint.marginal_log_numerator(dims, values).reshape(-1)
            total = torch.where(pattern == k, value.to(dtype), total)
        return total


def _patterns(observed: Tensor) -> tuple[Tensor, Tensor]:
    r"""Finds the rows that differ, with shape :math:`(K, d)`, and which of them each row is."""
    d = observed.shape[-1]
    if d > 62:
        return torch.unique(observed, dim=0, return_inverse=True)
    # As binary numbers, which are sorted much faster than rows.
    digits = torch.arange(d, device=observed.device)
    numbers, pattern = torch.unique((observed << digits).sum(-1), return_inverse=True)
    return (numbers.unsqueeze(-1) >> digits & 1).bool(), pattern


class _Blocks:
    r"""Rows in blocks of one size, so that all rows of a block have one pattern.

    There are at most twice as many blocks as patterns, and the last rows of a pattern are repeated
    to fill its last block.

    Arguments:
        pattern: The pattern of each row, with shape :math:`(N,)`.
        count: The number of patterns.
    """

    def __init__(self, pattern: Tensor, count: int) -> None:
        size = -(-len(pattern) // count)
        order = pattern.argsort(stable=True)
        counts = torch.bincount(pattern, minlength=count)
        starts = counts.cumsum(0) - counts
        numbers = -(-counts // size)
        firsts = numbers.cumsum(0) - numbers
        kinds = torch.arange(count, device=pattern.device)
        self.pattern = kinds.repeat_interleave(numbers)  # (K,)
        rank = torch.arange(len(self.pattern), device=pattern.device) - firsts[self.pattern]
        within = rank.unsqueeze(-1) * size + torch.arange(size, device=pattern.device)
        within = torch.minimum(within, counts[self.pattern].unsqueeze(-1) - 1)
        self.rows = order[starts[self.pattern].unsqueeze(-1) + within]  # (K, R)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=pattern.device)
        self.place = firsts[pattern] * size + place - starts[pattern]  # (N,)

    def unpack(self, values: Tensor) -> Tensor:
        r"""The values of the rows, from those of the blocks, with shape :math:`(K, R)`."""
        return values.flatten()[self.place]
