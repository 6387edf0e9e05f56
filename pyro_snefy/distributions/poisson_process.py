r"""Poisson processes whose intensity is a squared neural network."""

__all__ = ["PoissonProcess"]

from dataclasses import replace
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints

from ..activations import Activation, Cos
from ..bases import Base
from ..constraints import realisations
from ..numerics.linalg import broadcast_shapes, safe_log
from ..operations.intervals import log_box_mass
from ..sampling import sample
from .snefy import SNEFY
from .validation import check_box, check_expansion, check_gram

_PARAMETERS = ("weight", "bias", "readout", "gram")
_EMPTY = Size()


class PoissonProcess(TorchDistribution):
    r"""Creates a Poisson process, a law of finite sets of points.

    .. math:: \lambda(x) = r \, \mu(x) \left\| V \sigma(W t(x) + b) \right\|^2, \quad
        \Lambda = \int \lambda(x) \, dx = r Z

    The expected count :math:`\Lambda` is in closed form wherever the normaliser of a
    :class:`~pyro_snefy.SNEFY` is (Tsuchida, Ong and Sejdinovic, "Exact, fast and expressive Poisson
    point processes via squared neural families", arXiv:2402.09608). Points may be on any base:
    real vectors, boxes, spheres, and products of these with time or marks.

    A realisation is a tensor with shape :math:`(N, \text{event})`. Realisations of a batch, and of
    a sample, are padded to one length by rows of NaN: NaN is no point. As :math:`N` is random,
    the event shape is :math:`(-1, \text{event})`.

    Arguments:
        weight: The weights :math:`W`, with shape :math:`(*, n, D)`.
        bias: The biases :math:`b`, with shape :math:`(*, n)`. None stands for zeros.
        readout: The readout :math:`V`, with shape :math:`(*, m, n)`. It may be zero.
        gram: Instead of the readout, :math:`V^\top V`, with shape :math:`(*, n, n)`.
        activation: The activation :math:`\sigma`.
        base: The base measure :math:`\mu` with its statistic :math:`t`.
        rate: The rate :math:`r \geq 0`, with shape :math:`(*)`. It may be zero.
        validate_args: Whether arguments and values are checked.

    Example:
        >>> from pyro_snefy.bases import UniformBox
        >>> box = UniformBox(torch.zeros(2), torch.ones(2))
        >>> weight, readout = torch.randn(8, 2), torch.randn(2, 8)
        >>> process = PoissonProcess(weight, torch.zeros(8), readout, base=box, rate=10.0)
        >>> process.log_prob(torch.rand(5, 2)).shape
        torch.Size([])
        >>> process.expected_count_in(torch.zeros(2), torch.ones(2)) / process.expected_count
        tensor(1.)

        In a model with subsampled points, the points are in the plate, and the expected count is
        outside: it must not be scaled.

        >>> import pyro
        >>> def model(points):
        ...     rate = pyro.sample("rate", pyro.distributions.Gamma(1.0, 0.1))
        ...     process = PoissonProcess(weight, torch.zeros(8), readout, base=box, rate=rate)
        ...     with pyro.plate("points", len(points), subsample_size=10) as rows:
        ...         pyro.factor("intensity", process.log_intensity(points[rows]))
        ...     pyro.factor("count", -process.expected_count)
        >>> pyro.poutine.trace(model).get_trace(torch.rand(100, 2)).log_prob_sum().shape
        torch.Size([])
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        readout: Tensor | None = None,
        *,
        gram: Tensor | None = None,
        activation: Activation = Cos(),
        base: Base,
        rate: Tensor | float = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(base, Base):
            raise TypeError(f"PoissonProcess: expected base to be a Base, got {base!r}.")
        # Without validation no normaliser is computed, which may be zero here.
        family = SNEFY(
            weight,
            bias,
            readout,
            gram=gram,
            activation=activation,
            base=base,
            validate_args=False,
        )
        self.rate = torch.as_tensor(rate, dtype=weight.dtype, device=weight.device)
        validate = TorchDistribution._validate_args if validate_args is None else validate_args
        self._initialize(family, bool(validate))
        if validate:
            self._check_values()

    def _initialize(self, family: SNEFY, validate: bool) -> None:
        try:
            batch_shape = broadcast_shapes(family.batch_shape, self.rate.shape)
        except RuntimeError:
            raise ValueError(
                "PoissonProcess: expected a rate that broadcasts with the batch shape "
                f"{tuple(family.batch_shape)}, got {tuple(self.rate.shape)}."
            ) from None
        self._family = family if family.batch_shape == batch_shape else family.expand(batch_shape)
        self._network = self._family._network
        event_shape = Size((-1, *family.event_shape))
        super().__init__(batch_shape, event_shape, validate_args=False)
        self._validate_args = validate

    def _check_values(self) -> None:
        for name in (*_PARAMETERS, "rate"):
            value = getattr(self, name)
            if value is not None and not value.isfinite().all():
                raise ValueError(f"PoissonProcess: expected a finite {name}, got {value}.")
        if not (self.rate >= 0).all():
            raise ValueError(f"PoissonProcess: expected a rate >= 0, got {self.rate}.")
        constraint = self.base.weight_constraint(self.activation)
        if not constraint.check(self.weight).all():
            raise ValueError(
                f"PoissonProcess: expected weight in the natural parameter space of {self.base}, "
                f"{constraint}, got {self.weight}."
            )
        if self.gram is not None:
            check_gram(self.gram)

    @property
    def weight(self) -> Tensor:
        r"""The weights :math:`W`."""
        return self._family.weight

    @property
    def bias(self) -> Tensor | None:
        r"""The biases :math:`b`, or None."""
        return self._family.bias

    @property
    def readout(self) -> Tensor | None:
        r"""The readout :math:`V`, or None."""
        return self._family.readout

    @property
    def gram(self) -> Tensor | None:
        r"""The gram :math:`V^\top V`, or None."""
        return self._family.gram

    @property
    def activation(self) -> Activation:
        r"""The activation :math:`\sigma`."""
        return self._family.activation

    @property
    def base(self) -> Base:
        r"""The base measure :math:`\mu`."""
        return self._family.base

    def __repr__(self) -> str:
        tensors = [(name, getattr(self, name)) for name in (*_PARAMETERS, "rate")]
        shapes = ", ".join(f"{name}: {tuple(x.shape)}" for name, x in tensors if x is not None)
        return f"PoissonProcess({shapes}, activation={self.activation}, base={self.base})"

    @property
    def arg_constraints(self) -> dict[str, Any]:
        """The constraints of the tensors, which depend on activation and base."""
        return {**self._family.arg_constraints, "rate": constraints.nonnegative}

    @property
    def support(self) -> Any:
        """The constraint of realisations. Every row is in the support of the base, or NaN."""
        return realisations(self.base.support)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "PoissonProcess":
        """The same law with a larger batch shape; parameters are shared, not copied."""
        check_expansion(self.batch_shape, batch_shape)
        new = self._get_checked_instance(PoissonProcess, _instance)
        new.rate = self.rate
        new._initialize(self._family.expand(batch_shape), bool(self._validate_args))
        return new

    @property
    def density(self) -> SNEFY:
        r"""The law :math:`p(x) = \lambda(x) / \Lambda` of one point."""
        family = self._family.expand(self.batch_shape)
        family._validate_args = self._validate_args
        return family

    @property
    def expected_count(self) -> Tensor:
        r"""The expected number :math:`\Lambda` of points, in closed form."""
        return self._expected_count().to(self.weight.dtype).expand(self.batch_shape)

    def _expected_count(self) -> Tensor:
        return self.rate.double() * self._network.to(torch.float64).log_normalizer().exp()

    def expected_count_in(self, low: Tensor, high: Tensor) -> Tensor:
        r"""The expected number :math:`\Lambda(A) = \int_A \lambda(x) \, dx` of points in boxes.

        The probability of no point in a box is :math:`e^{-\Lambda(A)}`. The pairs of activation and
        base are those of :meth:`~pyro_snefy.SNEFY.interval_probability`.

        Arguments:
            low: The lower corners, with shape :math:`(*, \text{event})`; infinite ones are allowed.
            high: The upper corners, of the same shape.
        """
        check_box(low, high, self.base.event_shape)
        count = self.rate.double() * log_box_mass(self._network, low, high).exp()
        # A quadrature of the density has no value where the intensity is zero.
        nothing = self._expected_count() == 0
        return torch.where(nothing, torch.zeros_like(count), count).to(self.weight.dtype)

    def log_intensity(self, x: Tensor) -> Tensor:
        r"""The logarithm of :math:`\lambda(x)`, which is :math:`-\infty` outside the support.

        Arguments:
            x: Points, with shape :math:`(*, \text{event})`.
        """
        x = x.to(torch.promote_types(x.dtype, self.weight.dtype))
        base = self.base
        inside = base.contains(x)
        mask = inside.unsqueeze(-1) if base.event_dim else inside
        # Points outside stand for one inside, so that no gradient is poisoned by them.
        filled = torch.where(mask, x, base.example(x))
        value = self._network.to(x.dtype).log_density(filled) + safe_log(self.rate)
        value = torch.where(inside, value, torch.full_like(value, -torch.inf))
        return value.to(x.dtype).expand(broadcast_shapes(value.shape, self.batch_shape))

    def intensity(self, x: Tensor) -> Tensor:
        r"""The intensity :math:`\lambda(x)`, which is zero outside the support.

        Arguments:
            x: Points, with shape :math:`(*, \text{event})`.
        """
        return self.log_intensity(x).exp()

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-likelihood of realisations.

        .. math:: \ell = \sum_{i=1}^N \log \lambda(x_i) - \Lambda

        This is the Janossy density, of points without an order. The density of the ordered tensor
        that :meth:`sample` returns is :math:`\ell - \log N!`, which differs by a constant.

        Arguments:
            value: Realisations, with shape :math:`(*, N, \text{event})`. Rows of NaN are no points.
        """
        self._check_realisations(value)
        rank = self.base.event_dim
        points = self._points_first(value)  # (N, *, event)
        missing = points.isnan().all(-1) if rank else points.isnan()
        mask = missing.unsqueeze(-1) if rank else missing
        filled = torch.where(mask, self.base.example(points.to(self.weight.dtype)), points)
        terms = self.log_intensity(filled)
        total = torch.where(missing, torch.zeros_like(terms), terms).sum(0, dtype=torch.float64)
        return (total - self._expected_count()).to(terms.dtype)

    def _points_first(self, value: Tensor) -> Tensor:
        rank = self.base.event_dim
        lacking = len(self.batch_shape) - (value.dim() - 1 - rank)
        value = value.reshape((1,) * lacking + value.shape)
        return value.movedim(value.dim() - 1 - rank, 0)

    def _check_realisations(self, value: Tensor) -> None:
        event = self.base.event_shape
        if value.dim() < 1 + len(event) or value.shape[value.dim() - len(event) :] != event:
            raise ValueError(
                "PoissonProcess: expected realisations with shape "
                f"({', '.join(['*', 'N', *map(str, event)])}), got {tuple(value.shape)}."
            )
        if self._validate_args and not self.support.check(value).all():
            raise ValueError(
                f"PoissonProcess: expected points in the support {self.base.support}, or rows of "
                f"NaN, got {value}."
            )

    @torch.no_grad()
    def sample(self, sample_shape: Any = _EMPTY) -> Tensor:
        r"""Draws realisations, exactly: a Poisson count, and as many points from the density.

        Arguments:
            sample_shape: The shape of the sample.

        Returns:
            Realisations, with shape :math:`(\text{sample}, \text{batch}, N, \text{event})`, where
            :math:`N` is the largest count. Rows of NaN pad the others.
        """
        leading = Size(sample_shape) + self.batch_shape
        expected = self._expected_count().expand(self.batch_shape)
        if not expected.isfinite().all():
            raise ValueError(f"PoissonProcess: expected a finite expected count, got {expected}.")
        counts = torch.poisson(expected.expand(leading)).long()
        members = self.batch_shape.numel()
        counts = counts.reshape(-1, members).mT  # (members, S)
        most = int(counts.max()) if counts.numel() else 0
        slots = torch.arange(most, device=counts.device) < counts.unsqueeze(-1)
        event = self.base.event_shape
        x = self.weight.new_full((*slots.shape, *event), torch.nan)
        if most:
            x[slots] = self._draw(counts.sum(-1))
        x = x.transpose(0, 1)  # (S, members, N, event)
        return x.reshape((*leading, most, *event))

    def _draw(self, totals: Tensor) -> Tensor:
        # Points of each member, one member after the other.
        flat = self._network.flatten()
        batched = flat.weight.dim() > 2 or flat.bias.dim() > 1 or flat.form.matrix.dim() > 2
        if not (batched or flat.base.batch_shape):
            alone = replace(flat, batch_shape=_EMPTY)
            return sample(alone, Size((int(totals.sum()),)))
        (used,) = totals.nonzero(as_tuple=True)
        totals = totals[used]
        most = int(totals.max())
        draws = sample(flat.members(used), Size((most,))).transpose(0, 1)
        return draws[torch.arange(most, device=totals.device) < totals.unsqueeze(-1)]

    def thin(self, p: Tensor | float) -> "PoissonProcess":
        r"""The process of points that are kept with a probability, independently of each other.

        Arguments:
            p: The probability, with shape :math:`(*)`.
        """
        share = torch.as_tensor(p, dtype=self.weight.dtype, device=self.weight.device)
        if self._validate_args and not ((share >= 0) & (share <= 1)).all():
            raise ValueError(f"PoissonProcess: expected a probability p, got {p}.")
        return self._with(rate=self.rate * share)

    def _with(self, **changes: Any) -> "PoissonProcess":
        arguments = {name: getattr(self, name) for name in (*_PARAMETERS, "activation", "base")}
        arguments.update(rate=self.rate, validate_args=self._validate_args)
        return PoissonProcess(**{**arguments, **changes})

    def superpose(self, other: "PoissonProcess") -> "PoissonProcess":
        r"""The process of the points of two independent processes on one base.

        .. math:: \lambda(x) = \lambda_1(x) + \lambda_2(x), \quad
            V = \operatorname{diag}(\sqrt{r_1} V_1, \sqrt{r_2} V_2)

        Arguments:
            other: A process with the same activation and base.
        """
        if not isinstance(other, PoissonProcess):
            raise TypeError(f"PoissonProcess: expected another PoissonProcess, got {other!r}.")
        if self.activation != other.activation or not _equal(self.base, other.base):
            raise ValueError(
                "PoissonProcess: expected a process with the same activation and base, got "
                f"{self.activation} and {other.activation} on {self.base} and {other.base}."
            )
        both = (self, other)
        bias = None
        if self.bias is not None or other.bias is not None:
            given = [
                x.weight.new_zeros(x.weight.shape[-2]) if x.bias is None else x.bias for x in both
            ]
            bias = _concatenated([x.unsqueeze(-1) for x in given]).squeeze(-1)
        matrix: dict[str, Tensor] = {}
        readouts = [(x.rate, x.readout) for x in both if x.readout is not None]
        if len(readouts) == 2:
            matrix["readout"] = _block_diagonal(
                rate.sqrt()[..., None, None] * readout for rate, readout in readouts
            )
        else:
            matrix["gram"] = _block_diagonal(x.rate[..., None, None] * x._gram() for x in both)
        return PoissonProcess(
            _concatenated([x.weight for x in both]),
            bias,
            activation=self.activation,
            base=self.base,
            validate_args=self._validate_args,
            **matrix,
        )

    def _gram(self) -> Tensor:
        if self.gram is not None:
            return self.gram
        assert self.readout is not None
        return self.readout.mH @ self.readout

    def residuals(self, points: Tensor) -> Tensor:
        r"""The expected counts between successive points, for events with one coordinate.

        .. math:: \Lambda(x_i) - \Lambda(x_{i - 1}), \quad
            \Lambda(x) = \int_{-\infty}^x \lambda(y) \, dy

        If the points are from this process, these are independent and follow an exponential law
        with mean one (Brown and others, "The time-rescaling theorem and its application to neural
        spike train data analysis", Neural Computation 14 (2002)).

        Arguments:
            points: Realisations, with shape :math:`(*, N, \text{event})`.

        Returns:
            The counts, in ascending order of the points, with shape :math:`(*, N)`, and NaN behind
            the last point.
        """
        base = self.base
        if base.event_shape.numel() != 1:
            raise NotImplementedError(
                "PoissonProcess: expected events with one coordinate for residuals, got "
                f"event_shape {tuple(base.event_shape)}."
            )
        self._check_realisations(points)
        times = self._points_first(points)
        times = times.squeeze(-1) if base.event_dim else times
        times = times.sort(dim=0).values  # NaN is last
        none = times.isnan()
        before = torch.cat([torch.full_like(times[:1], -torch.inf), times[:-1]])
        ends = [torch.where(none, torch.full_like(x, torch.inf), x) for x in (before, times)]
        counts = self.expected_count_in(*(x.unsqueeze(-1) if base.event_dim else x for x in ends))
        return torch.where(none, torch.full_like(counts, torch.nan), counts).movedim(0, -1)


def _equal(first: Base, second: Base) -> bool:
    if type(first) is not type(second) or first.event_shape != second.event_shape:
        return False
    kinds = [[type(part) for part in base.parts()] for base in (first, second)]
    pairs = [list(base.tensors()) for base in (first, second)]
    return kinds[0] == kinds[1] and all(
        a == b and x.shape == y.shape and bool((x == y).all())
        for (a, x), (b, y) in zip(*pairs, strict=True)
    )


def _concatenated(matrices: Any) -> Tensor:
    # Rows of batched matrices, one below the other.
    matrices = list(matrices)
    batch = broadcast_shapes(*(x.shape[:-2] for x in matrices))
    return torch.cat([x.expand(batch + x.shape[-2:]) for x in matrices], dim=-2)


def _block_diagonal(blocks: Any) -> Tensor:
    first, second = blocks
    right = torch.nn.functional.pad(first, (0, second.shape[-1]))
    left = torch.nn.functional.pad(second, (first.shape[-1], 0))
    return _concatenated([right, left])
