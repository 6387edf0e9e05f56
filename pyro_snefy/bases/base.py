r"""What a base measure supplies: a support, a statistic, a density, and transforms."""

__all__ = [
    "CUTOFF",
    "Base",
    "FourierBase",
    "LaplaceBase",
    "Pairs",
    "Partial",
    "check_dimension",
    "check_parts",
    "cutoff_exp",
    "flatten_batch",
]

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from ..activations import Activation, Exp
from ..numerics.linalg import broadcast_shapes, rows_matmul
from ..numerics.rejection import rejection_by_row

Self = TypeVar("Self", bound="Base")
Pairs = tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]

# e^-100 is far below the rounding of any sum it enters, and well above the denormal numbers of
# float64 even after a multiplication by small readouts. Denormals are slow on every CPU.
CUTOFF = -100.0
_REALS = (constraints.real, constraints.real_vector)  # which hold for all that is finite


def cutoff_exp(x: Tensor) -> Tensor:
    r"""Returns :math:`e^x`, or another negligible number where it is negligible beside one."""
    return x.clamp(min=CUTOFF).exp()


def flatten_batch(x: Tensor, rank: int, batch_shape: Size) -> Tensor:
    r"""A tensor with its batch dimensions in one, or in none if there is one member only.

    Arguments:
        x: The tensor, with batch dimensions that broadcast to the batch shape.
        rank: The number of its other dimensions.
        batch_shape: The batch shape.
    """
    own, event = x.shape[: x.dim() - rank], x.shape[x.dim() - rank :]
    if own.numel() == 1:
        return x.reshape(event)
    return x.expand(batch_shape + event).reshape((-1, *event))


def check_dimension(base: object, d: int, least: int) -> None:
    """Raises unless the dimension is an integer that is large enough."""
    if not (isinstance(d, int) and d >= least):
        raise ValueError(f"{type(base).__name__}: expected an integer d >= {least}, got d={d!r}.")


def check_parts(base: object, parts: Sequence["Base"], *batches: Size) -> Size:
    """Raises unless a composition is made of bases; returns the batch shape of all of them."""
    name = type(base).__name__
    if not (isinstance(parts, Sequence) and all(isinstance(part, Base) for part in parts)):
        raise TypeError(f"{name}: expected bases to be a sequence of bases, got {parts!r}.")
    if not parts:
        raise ValueError(f"{name}: expected at least one base, got none.")
    shapes = [*batches, *(part.batch_shape for part in parts)]
    try:
        return broadcast_shapes(*shapes)
    except RuntimeError:
        raise ValueError(
            f"{name}: expected batch shapes that broadcast against each other, "
            f"got {', '.join(str(tuple(shape)) for shape in shapes)}."
        ) from None


class Partial(NamedTuple):
    r"""A base, some coordinates of whose events are observed, row by row.

    Arguments:
        base: The law of the statistics that are not observed; the others count for nothing.
        statistic: What is known of the statistics of each row, with shape :math:`(K, R, D)`. The
            neurons of the row are :math:`\sigma(W s + W' t + b)`, with :math:`t` of this base.
        mask: The columns of :math:`W'` that are those of :math:`W`, the others being zero, with
            shape :math:`(K, 1, D)`, or None for all of them.
        log_density: The log-density of what is observed, with shape :math:`(K, R)`.
    """

    base: "Base"
    statistic: Tensor
    mask: Tensor | None
    log_density: Tensor


class Base:
    r"""A measure :math:`\mu` on an event space, with a statistic :math:`t(x)`.

    Bases are immutable values. Their tensors have batch dimensions on the left, which broadcast
    with those of the parameters of a :class:`~pyro_snefy.SNEFY`. A subclass names its tensors in
    ``arg_constraints``.

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

    arg_constraints: ClassVar[dict[str, Any]] = {}
    tensor_ranks: ClassVar[dict[str, int]] = {}  # dimensions besides those of the batch
    is_discrete: ClassVar[bool] = False  # densities are with respect to counting measure
    fixed: ClassVar[tuple[str, ...]] = ()  # tensors that are not to be learnt from events

    def __init__(
        self,
        batch_shape: Size,
        event_shape: Size,
        num_statistics: int,
        validate_args: bool | None = None,
    ) -> None:
        self.batch_shape = batch_shape
        self.event_shape = event_shape
        self.num_statistics = num_statistics
        if Distribution._validate_args if validate_args is None else validate_args:
            self._validate()

    def _validate(self) -> None:
        for name, constraint in self.arg_constraints.items():
            value = getattr(self, name)
            if value is None:
                continue
            finite = value.isfinite()
            valid = finite if constraints.is_dependent(constraint) else constraint.check(value)
            if not (finite.all() and valid.all()):
                raise ValueError(
                    f"{type(self).__name__}: expected {name} to be finite and to satisfy "
                    f"{constraint}, got {value}."
                )

    @property
    def event_dim(self) -> int:
        """The number of dimensions of an event."""
        return len(self.event_shape)

    @property
    def support(self) -> Any:
        """The constraint that events satisfy."""
        raise NotImplementedError

    def contains(self, x: Tensor) -> Tensor:
        """Whether events are in the support; the constraints of torch hold for infinity, too."""
        finite, support = x * 0 == 0, self.support  # with fewer operations than isfinite
        finite = finite.all(-1) if self.event_dim else finite
        return finite if support in _REALS else support.check(x) & finite

    def weight_constraint(self, activation: Activation) -> Any:
        """The constraint that the weights of a SNEFY satisfy."""
        return constraints.independent(constraints.real, 2)

    def parts(self) -> tuple["Base", ...]:
        """The bases that this one is made of: itself, unless it is a composition."""
        return (self,)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of this base, by name."""
        for name in self.arg_constraints:
            value = getattr(self, name)
            if value is not None:
                yield name, value

    def tensor_constraints(self) -> Iterator[Any]:
        """The constraints of the tensors, in their order; None for those that are fixed."""
        for name, constraint in self.arg_constraints.items():
            if getattr(self, name) is not None:
                yield None if name in self.fixed else constraint

    def map(self: Self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same base with a function applied to each of its tensors, in their order."""
        new = copy.copy(self)
        for name, value in self.tensors():
            setattr(new, name, function(value))
        return new

    def map_batches(self: Self, function: Callable[[Tensor, int], Tensor]) -> Self:
        """The same base with the batch dimensions of its tensors changed.

        Arguments:
            function: A function of a tensor and the number of its dimensions, from the right,
                that are no batch dimensions.
        """
        new = copy.copy(self)
        batches = []
        for name, value in self.tensors():
            rank = self._rank(name)
            value = function(value, rank)
            setattr(new, name, value)
            batches.append(value.shape[: value.dim() - rank])
        new.batch_shape = broadcast_shapes(Size(), *batches)
        return new

    def _rank(self, name: str) -> int:
        return self.tensor_ranks[name]

    def flatten(self: Self, batch_shape: Size) -> Self:
        """The bases of a batch in one batch dimension, or in none if all are the same."""
        return self.map_batches(lambda x, rank: flatten_batch(x, rank, batch_shape))

    def take(self: Self, index: Tensor) -> Self:
        """Some bases of a flat batch, or the same if there is no batch dimension."""
        return self.map_batches(lambda x, rank: x[index] if x.dim() > rank else x)

    def latent(self, like: Tensor) -> "Base":
        return self

    def event(self, latent: Tensor) -> Tensor:
        return latent

    def to_latent(self, x: Tensor) -> Tensor:
        return x

    def members(self, index: Tensor) -> Any:
        return self.take(index)

    def statistic(self, x: Tensor) -> Tensor:
        r"""The statistic :math:`t(x)`, with shape :math:`(*, D)`."""
        return x if self.event_dim else x.unsqueeze(-1)

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Events of another dtype, which are in the support still."""
        return x.to(dtype)

    def example(self, like: Tensor) -> Tensor:
        """A point of the support, with the dtype and device of a tensor."""
        return like.new_zeros(self.event_shape)

    def log_density(self, x: Tensor) -> Tensor:
        r"""The log-density :math:`\log \mu(x)` of events in the support, with shape :math:`(*)`."""
        raise NotImplementedError

    def others(self, dims: Sequence[int]) -> list[int]:
        """The coordinates that are not among the given ones, in their order."""
        return [k for k in range(self.event_shape[0]) if k not in dims]

    def columns(self, dims: Sequence[int]) -> list[int]:
        """The statistics of given coordinates, in the order of those of their marginal."""
        return list(dims)

    def marginal(self, dims: Sequence[int]) -> "Base":
        """The law of some coordinates, in the given order."""
        raise NotImplementedError(f"{self} has no marginal laws in closed form.")

    def conditional(self, dims: Sequence[int], values: Tensor) -> "Base":
        r"""The law of the other coordinates, in their order, given the values of some.

        Arguments:
            dims: The given coordinates.
            values: Their values, with shape :math:`(*, \text{len(dims)})`.
        """
        raise NotImplementedError(f"{self} has no conditional laws in closed form.")

    def regression(self, dims: Sequence[int], like: Tensor) -> Tensor | None:
        r"""How the mean of the other statistics depends on those of given coordinates.

        Where the conditional law is shifted, and changed in no other way, this is the matrix
        :math:`B` of :math:`c_2 + B (t_1 - c_1)`, with shape :math:`(*, D_2, D_1)`, or None if
        they are independent.
        """
        return None

    def partial(self, x: Tensor, observed: Tensor) -> Partial | None:
        r"""The law of what is not observed, for blocks of rows with a pattern each.

        Arguments:
            x: The events, with shape :math:`(K, R, \text{event})`, and any values of the support
                where they are not observed.
            observed: Which coordinates are observed, with shape :math:`(K, 1, \text{event})`.

        Returns:
            None where there is no way to do all patterns at once.
        """
        return None

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {tuple(value.shape)}" for name, value in self.tensors())
        return f"{type(self).__name__}({fields})"


class FourierBase(Base):
    r"""A base that supplies its characteristic function.

    All expectations are integrals against :math:`\mu`, of the *centred* statistic
    :math:`\tilde{t} = t - c`, where :math:`c` is the mean of :math:`t` under :math:`\mu`
    normalised. Complex values are pairs of real and imaginary parts, where None stands for an
    imaginary part that is zero.

    Example:
        >>> from pyro_snefy.bases import UniformSphere
        >>> real, imag = UniformSphere(3).characteristic(torch.zeros(1, 3))
        >>> real, imag
        (tensor([1.]), None)
    """

    def mass(self, like: Tensor) -> Tensor:
        r"""The total mass :math:`\mu(\Omega)`, with shape :math:`(*)`."""
        return like.new_ones(())

    def mean(self, like: Tensor) -> Tensor:
        r"""The mean :math:`c` of the statistic, with shape :math:`(*, D)`."""
        raise NotImplementedError

    def covariance(self, like: Tensor) -> Tensor:
        r"""The covariance of the statistic, with shape :math:`(*, D, D)`."""
        raise NotImplementedError

    def characteristic(self, omega: Tensor) -> tuple[Tensor, Tensor | None]:
        r"""The transform :math:`\int e^{i \omega \cdot \tilde{t}} \, d\mu`.

        Arguments:
            omega: The frequencies, with shape :math:`(*, E, D)`.

        Returns:
            Real and imaginary part, each with shape :math:`(*, E)`.
        """
        raise NotImplementedError

    def characteristic_moment(self, omega: Tensor) -> tuple[Tensor | None, Tensor]:
        r"""The transform :math:`\int \tilde{t} \, e^{i \omega \cdot \tilde{t}} \, d\mu`.

        Arguments:
            omega: The frequencies, with shape :math:`(*, E, D)`.

        Returns:
            Real and imaginary part, each with shape :math:`(*, E, D)`.
        """
        raise NotImplementedError

    def pair_characteristics(self, weight: Tensor) -> Pairs:
        r"""The characteristic function at all :math:`w_i - w_j`, and at all :math:`w_i + w_j`.

        Arguments:
            weight: The weights, with shape :math:`(*, n, D)`.

        Returns:
            Two pairs of real and imaginary part, each with shape :math:`(*, n, n)`.
        """
        left, right = weight.unsqueeze(-2), weight.unsqueeze(-3)
        return self._at_pairs(left - right), self._at_pairs(left + right)

    def partial(self, x: Tensor, observed: Tensor) -> Partial | None:
        # A factor that is observed is one whose neurons have no weight on it, less its mass.
        if self.event_dim:
            return None
        log_density = self.log_density(x) - self.mass(x).log()
        return Partial(
            self,
            torch.where(observed, x, 0.0).unsqueeze(-1),
            ~observed.unsqueeze(-1),
            torch.where(observed, log_density, 0.0),
        )

    def sample_square(self, weight: Tensor) -> Tensor:
        r"""Draws from the law :math:`\propto (w \cdot \tilde{t}(x))^2 \, \mu(dx)`.

        Arguments:
            weight: The weights of the draws, with shape :math:`(N, D)`. The base has no batch
                dimension, or one of length :math:`N`.

        Returns:
            Events, with shape :math:`(N, \text{event})`.
        """
        raise NotImplementedError(f"{self} has no sampler.")

    def sample_quadratic(self, weight: Tensor, c0: Tensor, c1: Tensor, c2: Tensor) -> Tensor:
        r"""Draws from the law :math:`\propto (c_0 + c_1 v + c_2 v^2) \, \mu(dx)`.

        Here :math:`v = w \cdot \tilde{t}(x)`, and the polynomial is not negative. Proposals come
        from :math:`\mu` and :math:`v^2 \mu`; at least half of them are accepted.

        Arguments:
            weight: The weights, with shape :math:`(N, D)`.
            c0: The first coefficients, with shape :math:`(N,)`.
            c1: The second coefficients, with shape :math:`(N,)`.
            c2: The third coefficients, with shape :math:`(N,)`.
        """
        base: Any = self
        mean = base.mean(weight)
        spread = base.covariance(weight)
        square = (rows_matmul(weight, spread) * weight).sum(-1)  # E[v^2]
        root = square.sqrt()
        a0 = c0 + c1.abs() * root / 2
        a2 = torch.where(square > 0, c2 + c1.abs() / (2 * root), 0.0)
        a2 = torch.where(a2.isfinite(), a2, 0.0)

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            w, constant, slope = weight[rows], a0[rows], a2[rows]
            tilted = torch.rand_like(constant) * (constant + slope * square[rows]) > constant
            x = w.new_empty((len(rows), *base.event_shape))
            (plain,), (bent,) = (~tilted).nonzero(as_tuple=True), tilted.nonzero(as_tuple=True)
            if len(plain):
                x[plain] = base.take(rows[plain]).sample_member(torch.zeros_like(w[plain]))
            if len(bent):
                x[bent] = base.take(rows[bent]).sample_square(w[bent])
            centre = mean[rows] if mean.dim() > 1 else mean
            v = (w * (base.take(rows).statistic(x) - centre)).sum(-1)
            target = c0[rows] + v * (c1[rows] + v * c2[rows])
            return x, torch.rand_like(v) * (constant + slope * v.square()) <= target

        return rejection_by_row(propose, weight)

    def _at_pairs(self, omega: Tensor) -> tuple[Tensor, Tensor | None]:
        n = omega.shape[-2]
        real, imag = self.characteristic(omega.flatten(-3, -2))
        return (
            real.unflatten(-1, (n, n)),
            None if imag is None else imag.unflatten(-1, (n, n)),
        )


class LaplaceBase(Base):
    r"""A base that supplies its log-partition function.

    Example:
        >>> from pyro_snefy.bases import PoissonFamily
        >>> PoissonFamily().log_partition(torch.zeros(1, 1))  # log of the sum of 1 / x!
        tensor([1.])
    """

    def natural_constraint(self, scale: float) -> Any:
        r"""The constraint on :math:`w` for which :math:`2 s w` is a natural parameter."""
        return constraints.independent(constraints.real, 1)

    def weight_constraint(self, activation: Activation) -> Any:
        if isinstance(activation, Exp):
            return constraints.independent(self.natural_constraint(activation.scale), 1)
        return super().weight_constraint(activation)

    def log_partition(self, eta: Tensor) -> Tensor:
        r"""The log-partition function :math:`A(\eta) = \log \int e^{\eta \cdot t(x)} \mu(dx)`.

        Arguments:
            eta: The natural parameters, with shape :math:`(*, E, D)`.

        Returns:
            The values, with shape :math:`(*, E)`.
        """
        raise NotImplementedError

    def pair_log_partitions(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        r"""The log-partition function at all pairs, split into scales and correlations.

        Arguments:
            weight: The weights, with shape :math:`(*, n, D)`.

        Returns:
            :math:`\frac{1}{2} A(2 w_i)`, with shape :math:`(*, n)`, and
            :math:`A(w_i + w_j) - \frac{1}{2} A(2 w_i) - \frac{1}{2} A(2 w_j) \leq 0`, with shape
            :math:`(*, n, n)`.
        """
        n = weight.shape[-2]
        scale = self.log_partition(2 * weight) / 2
        pairs = (weight.unsqueeze(-2) + weight.unsqueeze(-3)).flatten(-3, -2)
        joint = self.log_partition(pairs).unflatten(-1, (n, n))
        return scale, joint - scale.unsqueeze(-1) - scale.unsqueeze(-2)

    def sample_member(self, eta: Tensor) -> Tensor:
        r"""Draws from the member :math:`\propto e^{\eta \cdot t(x)} \mu(dx)` of the family.

        Arguments:
            eta: The natural parameters of the draws, with shape :math:`(N, D)`. The base has no
                batch dimension, or one of length :math:`N`.

        Returns:
            Events, with shape :math:`(N, \text{event})`.
        """
        raise NotImplementedError(f"{self} has no sampler.")

    def member_moments(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean and covariance of :math:`x` under the member :math:`\propto e^{\eta \cdot t} \mu`.

        The default differentiates the log-partition function, which is right where
        :math:`t(x) = x`.

        Arguments:
            eta: The natural parameters, with shape :math:`(*, E, D)`.

        Returns:
            The mean, with shape :math:`(*, E, d)`, and the covariance,
            with shape :math:`(*, E, d, d)`.
        """
        with torch.enable_grad():
            batch = broadcast_shapes(self.batch_shape, eta.shape[:-2])
            eta = eta.expand(batch + eta.shape[-2:])
            eta = eta if eta.requires_grad else eta.detach().requires_grad_()
            (mean,) = torch.autograd.grad(self.log_partition(eta).sum(), eta, create_graph=True)
            rows = [
                torch.autograd.grad(component.sum(), eta, create_graph=True)[0]
                for component in mean.unbind(-1)
            ]
        return mean, torch.stack(rows, dim=-1)
