r"""Supports that :mod:`torch.distributions.constraints` does not have."""

__all__ = [
    "REALS",
    "finite_set",
    "intersection",
    "intervals",
    "is_real",
    "leading_reals",
    "missing",
    "open_interval",
    "permuted",
    "product",
    "realisations",
    "union",
    "unit_sphere",
]

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from pyro.distributions.constraints import sphere
from torch import Size, Tensor
from torch.distributions import biject_to, transform_to
from torch.distributions.constraints import Constraint, interval, real, real_vector
from torch.distributions.transforms import CatTransform, Transform

# The supports of events that may be moved and stretched as a whole: one real or a real vector.
REALS = (real, real_vector)

# A unit vector rounded to float32 has a norm within 1e-5 of 1, and passes after a cast to float64.
_SPHERE_TOLERANCE = 1e-5


class _UnitSphere(Constraint):
    r"""The unit sphere, up to the rounding of float32."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        tolerance = max(_SPHERE_TOLERANCE, 8 * torch.finfo(value.dtype).eps)
        return (value.norm(dim=-1) - 1).abs() <= tolerance


class _Intervals(Constraint):
    r"""A union of closed intervals :math:`[l_k, h_k]`, with ends of shape :math:`(*, K)`."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high

    def check(self, value: Tensor) -> Tensor:
        x = value.unsqueeze(-1)
        return ((self.low <= x) & (x <= self.high)).any(-1)

    def __repr__(self) -> str:
        return f"intervals(low={self.low}, high={self.high})"


class _OpenInterval(Constraint):
    r"""The reals between two ends, without the ends."""

    def __init__(self, lower_bound: Tensor, upper_bound: Tensor) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (self.lower_bound < value) & (value < self.upper_bound)

    def __repr__(self) -> str:
        return f"open_interval({self.lower_bound}, {self.upper_bound})"


class _FiniteSet(Constraint):
    r"""A finite set of points, with shape :math:`(*, K)` or :math:`(*, K, d)`."""

    is_discrete = True

    def __init__(self, points: Tensor, event_dim: int) -> None:
        self.points, self.event_dim = points, event_dim

    def check(self, value: Tensor) -> Tensor:
        if self.event_dim:
            return (value.unsqueeze(-2) == self.points).all(-1).any(-1)
        return (value.unsqueeze(-1) == self.points).any(-1)

    def __repr__(self) -> str:
        return f"finite_set(points={self.points})"


class _Composed(Constraint):
    r"""A set made of other sets. Its event dimension is the event dimension of the first."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        self.event_dim = parts[0].event_dim
        self.is_discrete = any(part.is_discrete for part in parts)

    def __repr__(self) -> str:
        return f"{type(self).__name__[1:].lower()}({', '.join(map(str, self.parts))})"


class _Union(_Composed):
    r"""A union of sets."""

    def check(self, value: Tensor) -> Tensor:
        return _stack(part.check(value) for part in self.parts).any(0)


class _Intersection(_Composed):
    r"""An intersection of sets."""

    def check(self, value: Tensor) -> Tensor:
        return _stack(part.check(value) for part in self.parts).all(0)


class _Product(_Composed):
    r"""A product of sets: one element of each set, concatenated along the last dimension."""

    def __init__(self, parts: Sequence[Any], lengths: Sequence[int], event_dim: int = 1) -> None:
        super().__init__(*parts)
        self.lengths, self.event_dim = tuple(lengths), event_dim

    def check(self, value: Tensor) -> Tensor:
        pieces = zip(self.parts, value.split(self.lengths, dim=-1), strict=True)
        checks = [part.check(x if part.event_dim else x.squeeze(-1)) for part, x in pieces]
        return _stack(checks).all(0)


class _Permuted(_Composed):
    r"""A set of vectors with reordered coordinates: all x such that x[order] is in ``base``."""

    def __init__(self, base: Any, order: Sequence[int]) -> None:
        super().__init__(base)
        self.order = list(order)

    def check(self, value: Tensor) -> Tensor:
        return self.parts[0].check(value[..., self.order])

    def __repr__(self) -> str:
        return f"permuted({self.parts[0]}, {self.order})"


class _Missing(_Composed):
    r"""A set of vectors where any coordinate may be NaN.

    A vector passes if it is in ``base`` once ``example``, which is in ``base``, fills its NaN.
    """

    def __init__(self, base: Any, example: Tensor) -> None:
        super().__init__(base)
        self.example = example

    def check(self, value: Tensor) -> Tensor:
        filled = torch.where(value.isnan(), self.example.to(value.dtype), value)
        return self.parts[0].check(filled)


class _LeadingReals(Constraint):
    r"""Real vectors whose last coordinates may be NaN."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        gaps = value.isnan()
        return ~(gaps[..., :-1] & ~gaps[..., 1:]).any(-1)

    def __repr__(self) -> str:
        return "leading_reals"


class _Realisations(_Composed):
    r"""Finite sets of points, one in each row. A row of NaN is no point."""

    def __init__(self, base: Any) -> None:
        super().__init__(base)
        self.event_dim = base.event_dim + 1

    def check(self, value: Tensor) -> Tensor:
        none = value.isnan().all(-1) if self.event_dim > 1 else value.isnan()
        if not value.numel():
            return none.all(-1)  # no points; torch's constraints need a row
        return (self.parts[0].check(value) | none).all(-1)


def _stack(checks: Iterable[Tensor]) -> Tensor:
    return torch.stack(torch.broadcast_tensors(*checks))


unit_sphere = _UnitSphere()
leading_reals = _LeadingReals()
missing = _Missing
permuted = _Permuted
intervals = _Intervals
open_interval = _OpenInterval
finite_set = _FiniteSet
product = _Product
realisations = _Realisations


def union(parts: Sequence[Any]) -> Any:
    r"""The union of sets. If all of them are one object, the result is that object."""
    return parts[0] if all(part is parts[0] for part in parts) else _Union(*parts)


def intersection(parts: Sequence[Any]) -> Any:
    r"""The intersection of sets. Sets that hold every real vector are left out."""
    bounded = [part for part in parts if not is_real(part)]
    return _Intersection(*bounded) if len(bounded) > 1 else (bounded or parts)[0]


def is_real(constraint: Any) -> bool:
    r"""Whether every real number, vector or matrix satisfies a constraint."""
    if isinstance(constraint, _Product):
        return all(is_real(part) for part in constraint.parts)
    while isinstance(constraint, type(real_vector)):
        constraint = constraint.base_constraint
    return constraint is real


@transform_to.register(_UnitSphere)
def _sphere_transform(constraint: _UnitSphere) -> Transform:
    return transform_to(sphere)


@biject_to.register(_OpenInterval)
@transform_to.register(_OpenInterval)
def _open_interval_transform(constraint: _OpenInterval) -> Transform:
    return biject_to(interval(constraint.lower_bound, constraint.upper_bound))


@biject_to.register(_Product)
@transform_to.register(_Product)
def _product_transform(constraint: _Product) -> CatTransform:
    # CatTransform keeps the number of coordinates of each part.
    transforms = []
    for k, (part, size) in enumerate(zip(constraint.parts, constraint.lengths, strict=True)):
        try:
            transform = biject_to(part)
            shape = Size((1,) * (part.event_dim - 1) + (size,))
            kept = not part.event_dim or transform.inverse_shape(shape)[-1] == size
        except NotImplementedError:
            kept = False
        if not kept:
            raise NotImplementedError(
                "product: expected factors with as many unconstrained coordinates as coordinates, "
                f"got factor {k}, {part}. Draw this factor at a site of its own, from marginal, "
                "and the others from conditional, given its value."
            )
        transforms.append(transform)
    return CatTransform(transforms, dim=-1, lengths=list(constraint.lengths))
