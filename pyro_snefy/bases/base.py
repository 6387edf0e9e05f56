r"""What every base measure supplies: a support, a statistic and a density."""

__all__ = [
    "CUTOFF",
    "Base",
    "Partial",
    "TensorField",
    "TensorLike",
    "as_parameters",
    "as_tensors",
    "check_bases",
    "check_dimension",
    "cutoff_exp",
    "flatten_batch",
]

import math
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from ..activations import Activation
from ..constraints import REALS
from ..numerics.linalg import broadcast_shapes

Self = TypeVar("Self", bound="Base")

# exp(-100) is negligible next to 1, and stays above float64 denormals, which are slow on every
# CPU, after a product with small readouts.
CUTOFF = -100.0

TensorLike = Tensor | float | Sequence[Any]  # what torch.as_tensor takes


def cutoff_exp(x: Tensor) -> Tensor:
    r"""Returns :math:`e^{\max(x, -100)}`, which differs from :math:`e^x` by at most 4e-44."""
    return torch.threshold(x, CUTOFF, CUTOFF).exp()


def flatten_batch(x: Tensor, rank: int, batch_shape: Size) -> Tensor:
    """Folds all but the last ``rank`` dimensions into one, or into none if they have one member."""
    own, event = x.shape[: x.dim() - rank], x.shape[x.dim() - rank :]
    if math.prod(own) == 1:
        return x.reshape(event)
    return x.expand(batch_shape + event).reshape((-1, *event))


def as_tensors(*values: TensorLike) -> list[Tensor]:
    """Tensors from numbers or lists, with the dtype and device of the first floating tensor."""
    if all(isinstance(x, Tensor) for x in values):
        return list(values)  # type: ignore[arg-type]
    given = [x for x in values if isinstance(x, Tensor) and x.is_floating_point()]
    dtype = given[0].dtype if given else torch.get_default_dtype()
    device = given[0].device if given else None
    return [
        x if isinstance(x, Tensor) else torch.as_tensor(x, dtype=dtype, device=device)
        for x in values
    ]


def as_parameters(owner: object, **given: tuple[TensorLike, str]) -> tuple[Size, list[Tensor]]:
    r"""The common shape of the parameters of a base, and the parameters as tensors.

    Arguments:
        owner: The base, for the error message.
        given: The parameters by name. Each has a letter for each dimension that is not a batch
            dimension: "Kd" for :math:`(*, K, d)`. A number takes the lengths of the others.
    """
    tensors = as_tensors(*[value for value, _ in given.values()])
    ranks = [len(letters) for _, letters in given.values()]
    most, shape = max(ranks), tensors[0].shape
    if min(ranks) == most <= len(shape) and all(x.shape == shape for x in tensors):
        return shape, tensors  # as nearly always
    pairs = list(zip(tensors, ranks, strict=True))
    try:
        shape = broadcast_shapes(*(x.shape + (1,) * (most - rank) for x, rank in pairs))
        event = shape[len(shape) - most :]
        if len(event) < most or any(0 < x.dim() < rank for x, rank in pairs):
            raise RuntimeError
    except RuntimeError:
        expected = ", ".join(f"({', '.join(('*', *letters))})" for _, letters in given.values())
        raise ValueError(
            f"{type(owner).__name__}: expected {' and '.join(given)} with shapes {expected}, "
            f"got {', '.join(str(tuple(x.shape)) for x in tensors)}."
        ) from None
    return shape, [x.expand(event[:rank]) if x.dim() < rank else x for x, rank in pairs]


def check_dimension(base: object, d: int, least: int) -> None:
    """Raises unless the dimension is an integer that is large enough."""
    if not (isinstance(d, int) and d >= least):
        raise ValueError(f"{type(base).__name__}: expected an integer d >= {least}, got d={d!r}.")


def check_bases(owner: object, bases: Sequence["Base"], *batches: Size) -> Size:
    """Raises unless ``bases`` is a sequence of bases; returns their common batch shape."""
    name = type(owner).__name__
    if not (isinstance(bases, Sequence) and all(isinstance(base, Base) for base in bases)):
        raise TypeError(f"{name}: expected bases to be a sequence of bases, got {bases!r}.")
    if not bases:
        raise ValueError(f"{name}: expected at least one base, got none.")
    shapes = [*batches, *(base.batch_shape for base in bases)]
    try:
        return broadcast_shapes(*shapes)
    except RuntimeError:
        raise ValueError(
            f"{name}: expected batch shapes that broadcast against each other, "
            f"got {', '.join(str(tuple(shape)) for shape in shapes)}."
        ) from None


class TensorField(NamedTuple):
    r"""What a base declares about one of its tensors.

    Arguments:
        constraint: The constraint that the tensor satisfies.
        rank: The number of dimensions that are neither batch nor event dimensions.
        per_event: Whether the event dimensions follow those: a value for each coordinate.
        fixed: Whether the tensor is part of the definition of the support, and never learnt.
    """

    constraint: Any
    rank: int = 0
    per_event: bool = False
    fixed: bool = False


class Partial(NamedTuple):
    r"""The law of the coordinates that are not observed, row by row.

    The neurons of a row are :math:`\sigma(W s + W' t + b)`. Here :math:`s` is known, :math:`t` is
    the statistic of ``base``, and :math:`W'` is :math:`W` with masked columns.

    Arguments:
        base: The law of the statistics that are not observed. What it says of the statistics
            that are observed has no effect.
        statistic: The known part :math:`s` of the statistics, with shape :math:`(K, R, D)`.
        mask: Which columns of :math:`W` are kept in :math:`W'`, the others being zero, with shape
            :math:`(K, 1, D)`, or None for all columns.
        log_density: The log-density of the observed coordinates, with shape :math:`(K, R)`.
    """

    base: "Base"
    statistic: Tensor
    mask: Tensor | None
    log_density: Tensor


# What users need of any base. The rest is what the library asks of it.
_USED = {
    "conditional",
    "is_discrete",
    "log_density",
    "map",
    "marginal",
    "statistic",
    "support",
    "weight_constraint",
}


class _Brief(type):
    # Base and the engines below it ask for much. `help` and `dir` list it there, and not again on
    # every class that supplies it, unless the class says more in a docstring of its own. It is no
    # ABCMeta: singledispatch would ask for cache tokens, which torch.compile cannot trace. A base
    # that is also an ABC has the metaclass `class Meta(type(Base), ABCMeta)`.

    def __dir__(cls) -> list[str]:
        engines = [x for x in cls.__mro__[1:] if x is Base or Base in x.__bases__]
        asked = {name for engine in engines for name in vars(engine)} - _USED
        methods = {x: f for x, f in vars(cls).items() if isinstance(f, FunctionType | property)}
        asked -= {name for name, method in methods.items() if method.__doc__}
        return [name for name in super().__dir__() if name not in asked]


class Base(metaclass=_Brief):
    r"""A measure :math:`\mu` on an event space, with a statistic :math:`t(x)`.

    Bases are immutable values. The batch dimensions of their tensors are on the left, and
    broadcast with the batch dimensions of a :class:`~pyro_snefy.SNEFY`. The notation follows
    Tsuchida, Ong and Sejdinovic, "Squared Neural Families: A New Class of Tractable Density
    Models", arXiv:2305.13552.

    **Implementing a base**

    1. Inherit :class:`~pyro_snefy.bases.FourierBase` if the characteristic function is known,
       :class:`~pyro_snefy.bases.LaplaceBase` if the log-partition function is, both if both are.
       Inherit :class:`~pyro_snefy.bases.Pushforward` if the statistic follows another base.
    2. Declare tensors in ``tensor_fields`` and bases inside this one in ``base_fields``, by the
       names of their attributes. Traversal, casts, batching and validation follow from these.
    3. In ``__init__``, set the attributes, then call ``super().__init__``.
    4. Supply :attr:`support` and :meth:`log_density`, :meth:`statistic` unless :math:`t(x) = x`,
       :meth:`example` unless zero is in the support, :meth:`codimension` if the density is with
       respect to neither Lebesgue nor counting measure, :meth:`finite_moments` if some moments
       are infinite, and :meth:`finite_support` if the support is a finite set.
    5. Supply what the engine asks for: see the class chosen in step 1.
    6. For marginal and conditional laws, supply :meth:`marginal`, :meth:`columns` unless
       :math:`t(x) = x`, and :meth:`conditional` and :meth:`regression` unless coordinates are
       independent.

    Arguments:
        batch_shape: The batch shape of the tensors.
        event_shape: The shape of one event :math:`x`.
        num_statistics: The length :math:`D` of :math:`t(x)`.
        validate_args: Whether the tensors are checked; as in :mod:`torch.distributions`.

    Example:
        >>> from pyro_snefy.bases import Poisson
        >>> [name for name, _ in Poisson(torch.tensor(2.0)).tensors()]
        ['rate']
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {}
    base_fields: ClassVar[tuple[str, ...]] = ()  # attributes that hold a base or a tuple of bases
    is_discrete: ClassVar[bool] = False  # densities are with respect to counting measure

    def __init__(
        self,
        batch_shape: Size,
        event_shape: Size,
        num_statistics: int,
        validate_args: bool | None = None,
    ) -> None:
        self.batch_shape, self.event_shape = Size(batch_shape), Size(event_shape)
        self.event_dim, self.num_statistics = len(event_shape), num_statistics
        if Distribution._validate_args if validate_args is None else validate_args:
            self._validate()

    def _validate(self) -> None:
        for name, value, field in self._own_tensors():
            if not (value.isfinite().all() and field.constraint.check(value).all()):
                raise ValueError(
                    f"{type(self).__name__}: expected {name} to be finite and to satisfy "
                    f"{field.constraint}, got {value}."
                )

    @property
    def support(self) -> Any:
        """The constraint that events satisfy."""
        raise NotImplementedError

    def contains(self, x: Tensor) -> Tensor:
        """Whether events are finite and in the support; torch's constraints admit infinity."""
        zero, support = x - x, self.support
        finite = zero == zero  # fewer operations than isfinite: infinity less itself is NaN
        finite = finite.all(-1) if self.event_dim else finite
        return finite if support in REALS else support.check(x) & finite

    def weight_constraint(self, activation: Activation) -> Any:
        """The constraint that the weights of a SNEFY satisfy."""
        return constraints.independent(constraints.real, 2)

    def _own_tensors(self) -> Iterator[tuple[str, Tensor, TensorField]]:
        for name, field in self.tensor_fields.items():
            value = getattr(self, name)
            if value is not None:  # one of several ways to give a parameter
                yield name, value, field

    def _children(self) -> Iterator[tuple[str, "Base"]]:
        for name in self.base_fields:
            value = getattr(self, name)
            if isinstance(value, Base):
                yield name, value
            else:
                yield from ((f"{name}[{k}]", base) for k, base in enumerate(value))

    def parts(self) -> tuple["Base", ...]:
        """The bases that need a closed form: this one, and the bases inside it."""
        if not self.base_fields:
            return (self,)
        return (self, *(part for _, base in self._children() for part in base.parts()))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of this base and of the bases inside it, by name."""
        yield from ((name, value) for name, value, _ in self._own_tensors())
        for prefix, base in self._children():
            yield from ((f"{prefix}.{name}", value) for name, value in base.tensors())

    def values(self) -> list[Tensor]:
        """The tensors of :meth:`tensors`, without their names."""
        own = [getattr(self, name) for name in self.tensor_fields]
        found = [value for value in own if value is not None]
        if self.base_fields:
            for _, base in self._children():
                found += base.values()
        return found

    def tensor_constraints(self) -> Iterator[Any]:
        """The constraints of :meth:`tensors`, in their order; None for a tensor that is fixed."""
        yield from (None if field.fixed else field.constraint for *_, field in self._own_tensors())
        for _, base in self._children():
            yield from base.tensor_constraints()

    def map(self: Self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same base with a function applied to each of its tensors, in their order."""
        return self.map_batches(lambda x, rank: function(x))

    def map_batches(self: Self, function: Callable[[Tensor, int], Tensor]) -> Self:
        """The same base with the batch dimensions of its tensors changed.

        Arguments:
            function: A function of a tensor and the number of its dimensions, from the right,
                that are not batch dimensions.
        """
        new = object.__new__(type(self))  # copy.copy is slow
        attributes = new.__dict__
        attributes.update(self.__dict__)
        batches, event_dim = [], self.event_dim
        for name, field in self.tensor_fields.items():
            if (value := getattr(self, name)) is None:
                continue
            rank = field.rank + event_dim if field.per_event else field.rank
            attributes[name] = value = function(value, rank)
            if value.dim() > rank:
                batches.append(value.shape[: value.dim() - rank])
        for name in self.base_fields:
            child = getattr(self, name)
            several = (child,) if isinstance(child, Base) else child
            mapped = tuple(base.map_batches(function) for base in several)
            batches.extend(base.batch_shape for base in mapped)
            setattr(new, name, mapped[0] if isinstance(child, Base) else mapped)
        new.batch_shape = broadcast_shapes(*batches)
        return new

    def flatten(self: Self, batch_shape: Size) -> Self:
        """The bases of a batch in one batch dimension, or in none if all are the same."""
        return self.map_batches(lambda x, rank: flatten_batch(x, rank, batch_shape))

    def members(self: Self, index: Tensor) -> Self:
        """Some bases of a flat batch, or the same base if there is no batch dimension."""
        return self.map_batches(lambda x, rank: x[index] if x.dim() > rank else x)

    def statistic(self, x: Tensor) -> Tensor:
        r"""The statistic :math:`t(x)`, with shape :math:`(*, D)`."""
        return x if self.event_dim else x.unsqueeze(-1)

    def log_density_and_statistic(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both of events in the support, for bases where one helps the other."""
        return self.log_density(x), self.statistic(x)

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Events in another dtype, rounded so that they stay in the support."""
        return x.to(dtype)

    def example(self, like: Tensor) -> Tensor:
        """A point of the support, with the dtype and device of ``like``."""
        return like.new_zeros(self.event_shape)

    def finite_support(self) -> Tensor | None:
        r"""All events of a finite support, with shape :math:`(K, \text{event})`, or else None."""
        return None

    def log_density(self, x: Tensor) -> Tensor:
        r"""The log-density :math:`\log \mu(x)` of events in the support, with shape :math:`(*)`."""
        raise NotImplementedError

    def finite_moments(self) -> Tensor | None:
        r"""The :math:`\nu` of tails :math:`|t|^{-\nu - D}`, with shape :math:`(*)`.

        Moments of an order below :math:`\nu` are finite. None stands for lighter tails, where all
        moments are.
        """
        return None

    def codimension(self, x: Tensor) -> int | Tensor:
        r"""How many dimensions the reference measure of the density lacks at an event.

        An atom lacks all :math:`d` dimensions, a surface one, Lebesgue measure none. In a sum of
        measures, those that lack the most dimensions at a point give it its density: the others
        give no mass to the set where the point lies.
        """
        return self.event_shape.numel() if self.is_discrete else 0

    @property
    def statistic_signature(self) -> tuple[Any, ...]:
        r"""What tells :math:`t` from other statistics: an entry for each part of an event."""
        function = type(self).statistic
        if function is Base.statistic:
            return (function,) * self.event_shape.numel()
        return ((function, self.event_shape),)

    def latent(self, like: Tensor) -> "Base":
        r"""The base whose statistic has the law of :math:`t(x)`: this one, by default.

        A :class:`~pyro_snefy.bases.Pushforward` has another one, which may in turn have its own.

        Arguments:
            like: A tensor of the dtype and device that the result is to have.
        """
        return self

    def event(self, latent: Tensor) -> Tensor:
        """Events of this base, from events of the latent base, which have the same shape."""
        return latent

    def to_latent(self, x: Tensor) -> Tensor:
        """Events of the latent base, from events of this base."""
        return x

    def others(self, dims: Sequence[int]) -> list[int]:
        """The coordinates that are not among the given ones, in their order."""
        return [k for k in range(self.event_shape[0]) if k not in dims]

    def columns(self, dims: Sequence[int]) -> list[int]:
        """The indices in :math:`t(x)` of the statistics of ``marginal(dims)``, in its order."""
        return list(dims)

    def marginal(self, dims: Sequence[int]) -> "Base":
        """The law of some coordinates, in the given order."""
        raise NotImplementedError(
            f"{self} has no marginal or conditional laws in closed form; draws and moments of "
            "marginal(dims) need none."
        )

    def conditional(self, dims: Sequence[int], values: Tensor) -> "Base":
        r"""The law of the other coordinates, in their order, given the values of some.

        The default is their marginal law, which holds where coordinates are independent.

        Arguments:
            dims: The given coordinates.
            values: Their values, with shape :math:`(*, \text{len(dims)})`.
        """
        return self.marginal(self.others(dims))

    def regression(self, dims: Sequence[int], like: Tensor) -> Tensor | None:
        r"""The matrix :math:`B` of :math:`E[t_2 | t_1] = c_2 + B (t_1 - c_1)`.

        Here :math:`t_1` are the statistics of ``dims`` and :math:`t_2` the others. The values of
        :math:`t_1` shift the conditional law of :math:`t_2`, and change nothing else.

        Returns:
            The matrix, with shape :math:`(*, D_2, D_1)`, or None if they are independent.
        """
        return None

    def partial(self, x: Tensor, observed: Tensor) -> Partial | None:
        r"""The law of the coordinates that are not observed, for blocks of rows.

        Arguments:
            x: The events, with shape :math:`(K, R, \text{event})`. Coordinates that are not
                observed may have any value in the support.
            observed: Which coordinates are observed, with shape :math:`(K, 1, \text{event})`: one
                pattern for each block.

        Returns:
            None if this base cannot treat all patterns at once.
        """
        return None

    def __dir__(self) -> list[str]:
        return [*dir(type(self)), *vars(self)]

    def __repr__(self) -> str:
        fields = [f"{name}: {tuple(value.shape)}" for name, value in self.tensors()]
        # A base without tensors is known by its dimension.
        return f"{type(self).__name__}({', '.join(fields or map(str, self.event_shape))})"
