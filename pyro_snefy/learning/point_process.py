r"""Learnable Poisson processes, with and without a context."""

__all__ = ["ConditionalPointProcess", "PointProcess", "fits_processes", "point_process"]

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast, overload

import torch
from pyro.distributions import ConditionalDistribution
from pyro.distributions import Poisson as PoissonCount
from torch import Tensor, nn
from torch.distributions import constraints

from ..activations import Activation, Cos
from ..bases import Base
from ..distributions.poisson_process import PoissonProcess
from ..distributions.snefy import SNEFY
from .conditional import conditional_snefy
from .contexts import ContextModule
from .defaults import AsinhNet
from .heads import Head
from .joint import JointSNEFY, snefy
from .parameters import ConstrainedModule, as_base

Fit = TypeVar("Fit", bound=Callable[..., Any])


class PointProcess(ConstrainedModule):
    r"""A module that owns the parameters of a Poisson process.

    .. math:: \lambda(x) = r \, \mu(x) \left\| V \sigma(W t(x) + b) \right\|^2

    Calling the module returns the process (arXiv:2402.09608). The parameters are the ones of
    ``density``, a :class:`JointSNEFY`, and the rate :math:`r > 0`, stored as ``raw_rate``. With
    :func:`pyro.nn.module.to_pyro_module_`, the rate may have a prior under its name ``rate``.

    Arguments:
        density: The module of the law of one point.

    Example:
        >>> process = PointProcess(snefy(2, hidden_dim=4))
        >>> process().event_shape
        torch.Size([-1, 2])
    """

    rate: Any

    def __init__(self, density: JointSNEFY) -> None:
        super().__init__()
        self.density = density
        like = next(density.parameters())
        self.constrain("rate", like.new_ones(()), constraints.positive)

    def forward(self) -> PoissonProcess:
        """The process, built from the present values of the parameters."""
        return _process(self.density(), self.rate)

    @torch.no_grad()
    def initialize(self, points: Tensor) -> "PointProcess":
        r"""Takes first values of the parameters from points.

        Arguments:
            points: One realisation, with shape :math:`(N, \text{event})`, or several, with shape
                :math:`(R, N, \text{event})`, padded by rows of NaN.
        """
        self.density.initialize(self.points(points))
        return self.set_rate(points)

    def points(self, realisations: Tensor) -> Tensor:
        r"""All points of one or several realisations, with shape :math:`(N, \text{event})`."""
        x, present = _realisations(self.density.base(), realisations)
        return x[present]

    @torch.no_grad()
    def set_rate(self, realisations: Tensor) -> "PointProcess":
        r"""Sets the rate to its maximum likelihood, at which the expected count is the mean count.

        .. math:: \hat r = \frac{N}{R \, Z}

        Arguments:
            realisations: As in :meth:`initialize`.
        """
        _, present = _realisations(self.density.base(), realisations)
        mean = present.sum().double() / len(present)
        rate = mean.log() - self.density().log_normalizer.double()
        self.assign("rate", rate.exp().to(self.raw_rate.dtype))
        return self

    def fit_parts(
        self, fit: Callable[..., Any], x: Tensor, context: None, options: dict[str, Any]
    ) -> Any:
        """Fits the density to all points, then sets the rate. Returns the history of the density.

        The likelihood of a Poisson process is the likelihood of its count times the likelihood of
        its points given the count, so that this is its maximum.
        """
        history = fit(self.density, self.points(x), context, **options)
        self.set_rate(x)
        return history


class _Counts(ContextModule):
    r"""The law of the number of points given a context: Poisson, with a mean from a network."""

    def __init__(self, context_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = AsinhNet([context_dim, *hidden_dims, 1])
        self.log_mean = nn.Parameter(torch.zeros(()))
        self._add_context(context_dim)

    @torch.no_grad()
    def initialize(self, counts: Tensor, context: Tensor) -> None:
        self.log_mean.copy_(counts.mean().clamp(min=1e-6).log())
        self._set_context_units(context, len(counts))

    def log_rate(self, context: Tensor) -> Tensor:
        outputs: Tensor = self.net(self._standardized_context(context)).squeeze(-1)
        return self.log_mean + outputs

    def forward(self, context: Tensor) -> PoissonCount:
        return PoissonCount(self.log_rate(context).exp())


class ConditionalPointProcess(nn.Module):
    r"""A Poisson process whose intensity depends on a context.

    .. math:: \lambda(x | c) = \Lambda(c) \, p(x | c)

    The module is registered as a :class:`pyro.distributions.ConditionalDistribution`. The law
    :math:`p(x | c)` of one point is a :class:`ConditionalSNEFY`, and a network gives the expected
    count :math:`\Lambda(c)`. The likelihoods of counts and points are apart, and so are their fits.

    Arguments:
        density: The module of the law of one point, a :class:`ConditionalSNEFY`.
        counts: The module of the law of the count.

    Example:
        >>> process = point_process(2, hidden_dim=4, context_dim=3)
        >>> process(torch.zeros(5, 3)).batch_shape
        torch.Size([5])
    """

    def __init__(self, density: Any, counts: nn.Module) -> None:
        super().__init__()
        self.density, self.counts = density, counts

    def condition(self, context: Tensor) -> PoissonProcess:
        r"""The process given contexts.

        Arguments:
            context: The contexts, with shape :math:`(*, \text{context\_dim})`.

        Returns:
            A process with batch shape :math:`(*)`.
        """
        family = self.density(context)
        log_rate = self.counts.log_rate(context) - family.log_normalizer  # type: ignore[operator]
        return _process(family, log_rate.exp())

    def forward(self, context: Tensor) -> PoissonProcess:
        """Calls :meth:`condition`."""
        return self.condition(context)

    def _parts(self, x: Tensor, context: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
        # Points with the contexts of their realisations, and counts with contexts.
        x, present = _realisations(self.density.base(), x)
        if len(x) != len(context):
            raise ValueError(
                "ConditionalPointProcess: expected one context for each realisation, got "
                f"{len(context)} and {len(x)}."
            )
        rows = present.nonzero()[:, 0]
        counts = present.sum(-1).to(context.dtype)
        return (x[present], context[rows]), (counts, context)

    @torch.no_grad()
    def initialize(self, points: Tensor, context: Tensor) -> "ConditionalPointProcess":
        r"""Takes locations and scales of points and contexts, and the mean count, from data.

        Arguments:
            points: Realisations, with shape :math:`(R, N, \text{event})`, padded by rows of NaN.
            context: Their contexts, with shape :math:`(R, \text{context\_dim})`.
        """
        rows, counts = self._parts(points, context)
        self.density.initialize(*rows)
        self.counts.initialize(*counts)  # type: ignore[operator]
        return self

    def fit_parts(
        self, fit: Callable[..., Any], x: Tensor, context: Tensor, options: dict[str, Any]
    ) -> Any:
        """Fits the density to all points, and the expected count to the counts.

        Returns the history of the density.
        """
        rows, counts = self._parts(x, context)
        history = fit(self.density, *rows, **options)
        fit(self.counts, *counts, **options)
        return history


ConditionalDistribution.register(ConditionalPointProcess)


def _process(family: SNEFY, rate: Tensor) -> PoissonProcess:
    process = PoissonProcess(
        family.weight,
        family.bias,
        family.readout,
        activation=family.activation,
        base=family.base,
        rate=rate,
    )
    return process.expand(family.batch_shape)


def _realisations(base: Base, x: Tensor) -> tuple[Tensor, Tensor]:
    # Realisations (R, N, event), and which of their rows are points, (R, N).
    rank = base.event_dim + 1
    if not isinstance(x, Tensor) or x.dim() not in (rank, rank + 1):
        shape = "got " + (str(tuple(x.shape)) if isinstance(x, Tensor) else repr(x))
        event = ", ".join(map(str, base.event_shape))
        raise ValueError(
            f"point_process: expected points with shape (N, {event}) or (R, N, {event}), {shape}."
        )
    x = x if x.dim() > rank else x.unsqueeze(0)
    present = ~(x.isnan().all(-1) if base.event_dim else x.isnan())
    if not bool(present.any()):
        raise ValueError("point_process: expected at least one point, got none.")
    return x, present


def fits_processes(fit: Fit) -> Fit:
    """Decorates the fit of densities, which then fits the parts of a process one by one."""

    @wraps(fit)
    def function(module: nn.Module, x: Tensor, context: Any = None, **options: Any) -> Any:
        if isinstance(module, PointProcess | ConditionalPointProcess):
            return module.fit_parts(function, x, context, options)
        return fit(module, x, context, **options)

    return cast(Fit, function)


@overload
def point_process(
    base_or_dim: Base | int | tuple[()],
    hidden_dim: int = ...,
    readout_dim: int = ...,
    activation: Activation = ...,
    learn_base: bool = ...,
    *,
    context_dim: None = ...,
) -> PointProcess: ...


@overload
def point_process(
    base_or_dim: Base | int | tuple[()],
    hidden_dim: int = ...,
    readout_dim: int = ...,
    activation: Activation = ...,
    learn_base: bool = ...,
    *,
    context_dim: int,
    hidden_dims: Sequence[int] = ...,
    heads: Sequence[Head] | None = ...,
) -> ConditionalPointProcess: ...


def point_process(
    base_or_dim: Base | int | tuple[()],
    hidden_dim: int = 50,
    readout_dim: int = 4,
    activation: Activation = Cos(),
    learn_base: bool = True,
    *,
    context_dim: int | None = None,
    hidden_dims: Sequence[int] = (128, 128),
    heads: Sequence[Head] | None = None,
) -> PointProcess | ConditionalPointProcess:
    r"""Creates a learnable Poisson process.

    .. math:: \lambda(x) = r \, \mu(x) \left\| V \sigma(W t(x) + b) \right\|^2

    The process is due to Tsuchida, Ong and Sejdinovic, arXiv:2402.09608. ``fit(module, points)``
    takes the points of one realisation, with shape :math:`(N, \text{event})`, or realisations with
    shape :math:`(R, N, \text{event})`, padded by rows of NaN.

    Arguments:
        base_or_dim: The base measure :math:`\mu`, such as a
            :class:`~pyro_snefy.bases.UniformBox` for a window, or the dimension :math:`d` of
            points, or ``()`` for points on the reals. Without a base, ``initialize`` finds a normal
            law, or a mixture of normal laws, as in :func:`~pyro_snefy.snefy`.
        hidden_dim: The number :math:`n` of neurons.
        readout_dim: The number :math:`m` of rows of the readout.
        activation: The activation :math:`\sigma`.
        learn_base: Whether the tensors of the base are learnt; without a context.
        context_dim: The length of a context, if the intensity depends on one. ``fit`` then takes
            realisations and one context for each of them.
        hidden_dims: The sizes of the hidden layers of the networks of contexts.
        heads: Which parameters of the density depend on the context: see
            :func:`~pyro_snefy.conditional_snefy`.

    Example:
        >>> from pyro_snefy import fit, point_process
        >>> from pyro_snefy.bases import UniformBox
        >>> points = torch.rand(200, 2).square()
        >>> window = UniformBox(torch.zeros(2), torch.ones(2))
        >>> process = point_process(window, hidden_dim=8).initialize(points)
        >>> history = fit(process, points, max_epochs=2, progress=False)
        >>> process().expected_count
        tensor(200., grad_fn=<ExpandBackward0>)
    """
    if context_dim is None:
        as_base(base_or_dim, "point_process")  # an error has the name of this function
        return PointProcess(snefy(base_or_dim, hidden_dim, readout_dim, activation, learn_base))
    density = conditional_snefy(
        base_or_dim,
        context_dim,
        hidden_dim=hidden_dim,
        readout_dim=readout_dim,
        activation=activation,
        hidden_dims=hidden_dims,
        heads=heads,
    )
    return ConditionalPointProcess(density, _Counts(context_dim, hidden_dims))
