r"""Laws of many coordinates, as products of scalar squared neural families."""

__all__ = ["Autoregressive"]

from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints

from ..constraints import leading_reals
from ..numerics.linalg import broadcast_shapes
from .atoms import WithAtoms
from .snefy import SNEFY
from .validation import check_expansion

_EMPTY = Size()
_ALL = slice(None)

Factors = SNEFY | WithAtoms


class Autoregressive(TorchDistribution):
    r"""A law of vectors, one coordinate after the other.

    .. math:: p(x) = \prod_{k=1}^d p(x_k | x_1, \dots, x_{k-1})

    Each factor is a :class:`~pyro_snefy.SNEFY` of a scalar, or one with atoms,
    :class:`~pyro_snefy.distributions.WithAtoms`. The factors of all coordinates are one
    family with batch shape :math:`(*, d)`, so that a log-density takes one pass. The first
    coordinates have a law of the same kind: the factors of the others are left out.

    Arguments:
        conditioner: A function of events with shape :math:`(*, d)`, and of a slice of coordinates.
            It returns the factors of these coordinates, a family of scalars with batch shape
            :math:`(*, \text{length of the slice})`. Factor :math:`k` may depend on
            :math:`x_1, \dots, x_{k-1}` alone.
        like: A tensor with the dtype and device of the law.
        dim: The number :math:`d` of coordinates.
        batch_shape: The batch shape.
        validate_args: Whether values are checked; as in :mod:`torch.distributions`.

    Example:
        >>> from pyro_snefy.bases import Gaussian, Standardized
        >>> normal = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
        >>> def walk(x, dims):  # each coordinate is normal about the one before
        ...     loc = torch.cat([torch.zeros_like(x[..., :1]), x[..., :-1]], -1)[..., dims]
        ...     base = Standardized(normal, loc, torch.ones_like(loc))
        ...     return SNEFY(torch.zeros(1, 1), torch.zeros(1), torch.ones(1, 1), base=base)
        >>> d = Autoregressive(walk, torch.zeros(()), dim=3)
        >>> d.log_prob(d.sample((5,))).shape
        torch.Size([5])
    """

    arg_constraints: dict[str, Any] = {}
    has_rsample = False
    _support: Any = constraints.real_vector

    def __init__(
        self,
        conditioner: Callable[[Tensor, slice], Factors],
        like: Tensor,
        dim: int,
        batch_shape: Any = _EMPTY,
        validate_args: bool | None = None,
    ) -> None:
        self._conditioner, self._like = conditioner, like
        super().__init__(Size(batch_shape), Size((dim,)), validate_args=validate_args)

    def __repr__(self) -> str:
        batch, event = tuple(self.batch_shape), tuple(self.event_shape)
        return f"Autoregressive(batch_shape: {batch}, event_shape: {event})"

    @property
    def support(self) -> Any:
        """All real vectors; after :meth:`partially_observed`, NaN may stand at their ends."""
        return self._support

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Autoregressive":
        """The same law with a larger batch shape."""
        batch_shape = Size(batch_shape)
        check_expansion(self.batch_shape, batch_shape)
        new = self._get_checked_instance(Autoregressive, _instance)
        new._support = self._support
        arguments = (self._conditioner, self._like, self.event_shape[0], batch_shape)
        Autoregressive.__init__(new, *arguments, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def partially_observed(self) -> "Autoregressive":
        """The same law, with a support that includes rows with NaN at the end."""
        new = self.expand(self.batch_shape)
        new._support = leading_reals
        return new

    def factors(self, value: Tensor) -> Factors:
        r"""The laws of each coordinate given the coordinates before it.

        Arguments:
            value: The events, with shape :math:`(*, d)`. The last coordinate has no influence.

        Returns:
            A family of scalars with batch shape :math:`(*, d)`.
        """
        self._check_shape(value)
        return self._factors(value, _ALL)

    def _factors(self, value: Tensor, dims: slice) -> Factors:
        batch_shape = broadcast_shapes(value.shape[:-1], self.batch_shape)
        return self._conditioner(value.to(self._like).expand(batch_shape + self.event_shape), dims)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density of events, or of their first coordinates.

        Arguments:
            value: The events, with shape :math:`(*, d)`. NaN at the end of a row marks coordinates
                that are not observed: their factors are left out.
        """
        self._check_shape(value)
        value = value.to(torch.promote_types(value.dtype, self._like.dtype))
        if self._validate_args:
            self._check_value(value)
        hidden = value.isnan().flip(-1).cumprod(-1).flip(-1).bool()
        rows = torch.where(hidden, 0.0, value)
        # A row with infinities stands for zero, so that no gradient is poisoned by it.
        inside = rows.isfinite().all(-1)
        rows = torch.where(inside.unsqueeze(-1), rows, 0.0)
        terms = self._factors(rows, _ALL).log_prob(rows)
        log_prob = torch.where(hidden, 0.0, terms).sum(-1)
        outside = torch.where(value.isnan() & ~hidden, torch.nan, -torch.inf).amax(-1)
        return torch.where(inside, log_prob, outside)

    @torch.no_grad()
    def sample(self, sample_shape: Any = _EMPTY) -> Tensor:
        """Draws events, exactly, one coordinate after the other."""
        shape = Size(sample_shape) + self.batch_shape + self.event_shape
        return self._completed(self._like.new_full(shape, torch.nan))

    @torch.no_grad()
    def impute(self, value: Tensor, sample_shape: Any = _EMPTY) -> Tensor:
        r"""Draws the last coordinates, where they are not observed, exactly, given the others.

        Arguments:
            value: The events, with shape :math:`(*, d)`, and NaN at the end of rows for what is
                not observed.
            sample_shape: The shape of the sample: how many completions of each event.

        Returns:
            Complete events, with shape :math:`(\text{sample}, *, d)`.
        """
        self._check_shape(value)
        self._check_value(value)
        batch_shape = broadcast_shapes(value.shape[:-1], self.batch_shape)
        return self._completed(value.expand(Size(sample_shape) + batch_shape + self.event_shape))

    def _completed(self, value: Tensor) -> Tensor:
        # Each NaN is drawn given the coordinates before it.
        hidden = value.isnan()
        x = torch.where(hidden, 0.0, value)
        for k in hidden.reshape(-1, *self.event_shape).any(0).nonzero().flatten().tolist():
            draws = self._factors(x, slice(k, k + 1)).sample().squeeze(-1).to(x.dtype)
            x[..., k] = torch.where(hidden[..., k], draws, x[..., k])
        return x

    def _check_shape(self, value: Tensor) -> None:
        if value.shape[-1:] != self.event_shape:
            raise ValueError(
                f"Autoregressive: expected value with shape (*, {self.event_shape[0]}), got "
                f"{tuple(value.shape)}."
            )
        try:
            broadcast_shapes(value.shape[:-1], self.batch_shape)
        except RuntimeError:
            raise ValueError(
                "Autoregressive: expected value with a shape that broadcasts against the batch "
                f"shape {tuple(self.batch_shape)}, got {tuple(value.shape)}."
            ) from None

    def _check_value(self, value: Tensor) -> None:
        inside = leading_reals.check(value)
        if not inside.all():
            row = value[~inside][0]
            raise ValueError(
                "Autoregressive: expected value with NaN at the end of rows alone, because other "
                f"coordinates cannot be left out, got {row}. Order the coordinates so that those "
                "that are missing come last, or learn with snefy(d), which takes NaN anywhere."
            )
