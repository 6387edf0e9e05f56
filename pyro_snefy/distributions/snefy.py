r"""Squared neural families."""

__all__ = ["SNEFY"]

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints

from ..activations import Activation, Cos
from ..bases import Base, Gaussian, Standardized
from ..bases.base import TensorLike
from ..kernels import Kernel
from ..kernels.registry import check_closed_form
from ..network import Network
from ..numerics.forms import Features, Gram, Readout
from ..numerics.linalg import broadcast_shapes, safe_log, take
from ..operations.intervals import log_box_mass
from ..operations.marginals import check_dims, marginal
from ..operations.moments import check_finite, moments
from ..operations.noise import posterior
from ..operations.quantiles import cdf, icdf
from ..operations.readout import readout_gap
from ..operations.regions import highest_density_region, mode
from ..operations.scores import crps
from ..operations.transforms import characteristic, fisher_information, log_generating
from ..sampling import acceptance_rate, is_reparameterizable, pathwise, sample
from .censored import Censored
from .marginal import Marginal
from .observed import Observed, check_observations, make_observation
from .partially_observed import PartiallyObserved
from .validation import (
    NO_ENTROPY,
    Levels,
    as_levels,
    check_box,
    check_events,
    check_expansion,
    check_inner_levels,
    check_normalizer,
    check_one_coordinate,
    check_shapes,
    check_types,
    check_values,
)

_PARAMETERS = ("weight", "bias", "readout", "gram")
_EMPTY = Size()


class SNEFY(TorchDistribution):
    r"""Creates a squared neural family.

    .. math:: p(x) = \frac{\mu(x)}{Z} \left\| V \sigma(W t(x) + b) \right\|^2, \quad
        Z = \sum_{ij} (V^\top V)_{ij} \int \sigma(w_i \cdot t(x) + b_i)
        \sigma(w_j \cdot t(x) + b_j) \mu(dx)

    The normalising constant :math:`Z` is in closed form, see :mod:`pyro_snefy.kernels` and
    Tsuchida, Ong and Sejdinovic, arXiv:2305.13552. It is a sum in float64, whatever the dtype of
    the parameters, because terms of both signs cancel in it.

    Arguments:
        weight: The weights :math:`W`, with shape :math:`(*, n, D)`.
        bias: The biases :math:`b`, with shape :math:`(*, n)`. None stands for zeros.
        readout: The readout :math:`V`, with shape :math:`(*, m, n)`; complex with
            :class:`~pyro_snefy.activations.Cis` only.
        gram: Instead of the readout, :math:`V^\top V`, with shape :math:`(*, n, n)`, or
            :math:`V^H V` if complex.
        activation: The activation :math:`\sigma`.
        base: The base measure :math:`\mu` with its statistic :math:`t`. None stands for a
            standard normal law on :math:`\mathbb{R}^D`.
        validate_args: Whether arguments and values are checked; as in
            :mod:`torch.distributions`.

    Example:
        >>> weight, readout = torch.randn(16, 2), torch.randn(1, 16)
        >>> d = SNEFY(weight, torch.zeros(16), readout)
        >>> d.event_shape
        torch.Size([2])
        >>> d.log_prob(torch.zeros(5, 2)).shape
        torch.Size([5])
    """

    _detached = False  # whether has_rsample_(False) was called

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        readout: Tensor | None = None,
        *,
        gram: Tensor | None = None,
        activation: Activation = Cos(),
        base: Base | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(activation, Activation):
            raise TypeError(
                "SNEFY: expected activation to be an Activation, such as Cos(), "
                f"got {activation!r}."
            )
        if not (base is None or isinstance(base, Base)):
            raise TypeError(f"SNEFY: expected base to be a Base or None, got {base!r}.")
        if (readout is None) == (gram is None):
            given = "neither" if gram is None else "both"
            raise ValueError(f"SNEFY: expected exactly one of readout and gram, got {given}.")
        tensors = {"weight": weight, "bias": bias, "readout": readout, "gram": gram}
        for name, value in tensors.items():
            if not (isinstance(value, Tensor) or (value is None and name != "weight")):
                raise TypeError(f"SNEFY: expected {name} to be a Tensor, got {value!r}.")
        if weight.dim() < 2:
            raise ValueError(
                f"SNEFY: expected weight with shape (*, n, D), got {tuple(weight.shape)}."
            )
        if base is None:
            zeros = weight.new_zeros(weight.shape[-1:])
            base = Gaussian(zeros, torch.ones_like(zeros), validate_args=False)
        self.weight, self.bias, self.readout, self.gram = weight, bias, readout, gram
        self.activation, self.base = activation, base
        batch_shape = check_shapes(tensors, base)
        check_types(tensors, activation, base)
        check_closed_form(activation, base, bias is not None)
        self._network = Network.build(activation, base, weight, bias, readout, gram)
        # The checks of torch do not know of constraints that depend on activation and base.
        super().__init__(batch_shape, base.event_shape, validate_args=False)
        validate = TorchDistribution._validate_args if validate_args is None else validate_args
        self._validate_args = validate
        if validate:
            check_finite(activation, base, 0, "the normalising constant Z")
            check_values(tensors, base.weight_constraint(activation), base)

    def __repr__(self) -> str:
        tensors = [(name, x) for name, x in self._arguments.items() if x is not None]
        shapes = ", ".join(f"{name}: {tuple(x.shape)}" for name, x in tensors)
        return f"SNEFY({shapes}, activation={self.activation}, base={self.base})"

    @property
    def _arguments(self) -> dict[str, Tensor | None]:
        return {name: getattr(self, name) for name in _PARAMETERS}

    @property
    def arg_constraints(self) -> dict[str, Any]:
        """The constraints of the tensors, which depend on activation and base."""
        every = {
            "weight": self.base.weight_constraint(self.activation),
            "bias": constraints.real_vector,
            "readout": constraints.independent(constraints.real, 2),
            "gram": constraints.positive_semidefinite,
        }
        return {name: every[name] for name, x in self._arguments.items() if x is not None}

    @property
    def support(self) -> Any:
        """The constraint that events satisfy."""
        return self.base.support

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether the support is a finite set."""
        return self.base.finite_support() is not None

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All events of a finite support, along the first dimension."""
        points = self.base.finite_support()
        if points is None:
            raise NotImplementedError(f"The support of {self.base} is not a finite set.")
        points = points.reshape(points.shape[:1] + (1,) * len(self.batch_shape) + self.event_shape)
        return points.expand(-1, *self.batch_shape, *self.event_shape) if expand else points

    def expand(self, batch_shape: Any, _instance: Any = None) -> "SNEFY":
        """The same law with a larger batch shape; parameters are shared, not copied."""
        check_expansion(self.batch_shape, batch_shape)
        new = self._get_checked_instance(SNEFY, _instance)
        for name in (*_PARAMETERS, "activation", "base", "_detached"):
            setattr(new, name, getattr(self, name))
        new._network = self._network.expand(Size(batch_shape))
        super(SNEFY, new).__init__(Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @classmethod
    def infer_shapes(cls, **arg_shapes: Any) -> tuple[Size, Size]:
        """Batch and event shape, from the shapes of the arguments.

        The ``base`` is given as it is, and left out where it may be left out of the constructor.
        """
        base = arg_shapes.get("base")
        ranks = {"weight": 2, "bias": 1, "readout": 2, "gram": 2}
        shapes = {name: Size(arg_shapes[name]) for name in ranks if arg_shapes.get(name)}
        batches = [shape[: len(shape) - ranks[name]] for name, shape in shapes.items()]
        if base is None:
            return broadcast_shapes(*batches), shapes["weight"][-1:]
        return broadcast_shapes(*batches, base.batch_shape), base.event_shape

    @classmethod
    def _from_network(cls, network: Network, validate_args: bool) -> "SNEFY":
        matrix = {"readout" if isinstance(network.form, Readout) else "gram": network.form.matrix}
        new = cls(
            network.weight,
            network.bias,
            activation=network.activation,
            base=network.base,
            validate_args=False,
            **matrix,
        )
        new._validate_args = validate_args
        return new if new.batch_shape == network.batch_shape else new.expand(network.batch_shape)

    @property
    def log_normalizer(self) -> Tensor:
        r"""The logarithm :math:`\log Z` of the normalising constant."""
        log_normalizer = self._checked_normalizer(self._network.to(torch.float64))
        return log_normalizer.to(self.weight.dtype).expand(self.batch_shape)

    def _checked_normalizer(self, network: Network) -> Tensor:
        # In float64, and at the batch shape of the parameters, before any expansion.
        neurons = network.kernel()
        log_normalizer = network.log_normalizer(neurons)
        if self._validate_args:
            self._check(log_normalizer, network, neurons)
        return log_normalizer

    def _check(
        self, log_normalizer: Tensor, network: Network | None = None, neurons: Kernel | None = None
    ) -> None:
        network = self._network.to(torch.float64) if network is None else network
        neurons = network.kernel() if neurons is None else neurons
        name = "readout" if self.gram is None else "gram"
        check_normalizer(log_normalizer, network, neurons, name)

    @property
    def condition_number(self) -> Tensor:
        r"""The loss of precision to expect.

        .. math:: \kappa = \frac{1}{Z} \max\left( \sum_{ij} |M_{ij} K_{ij}|, \,
            \frac{1}{8} \sum_i M_{ii} \epsilon_i \right)

        The error of :math:`\log Z` is about :math:`\kappa` times the precision of float64. The
        second sum counts only where the kernel itself is a difference of larger numbers, such as
        the kernel of sines of tiny weights: :math:`\epsilon_i` is their size. The condition number
        is infinite where :math:`Z` is zero.
        """
        network = self._network.to(torch.float64)
        neurons = network.kernel()
        log_scale, matrix = neurons.matrix(network.bias)
        gram = network.form.gram()
        if self.activation.is_complex:
            # Moduli of complex numbers, from the real network of twice the width.
            n = self.weight.shape[-2]
            gram = torch.hypot(gram[..., :n, :n], gram[..., n:, :n])
            real = matrix[..., :n, :n] + matrix[..., n:, n:]
            matrix = torch.hypot(real, matrix[..., n:, :n] - matrix[..., :n, n:])
        absolute = Gram(gram.abs())
        total = absolute.log_trace(Features(log_scale, (None,)), {(0, 0): matrix.abs()})
        if not self.activation.is_complex:
            errors = gram.diagonal(dim1=-2, dim2=-1) * neurons.rounding(network.bias)
            total = torch.maximum(total, (errors.sum(-1) / 8).log())
        log_normalizer = network.log_normalizer(neurons)
        ratio = torch.where(log_normalizer > -torch.inf, total - log_normalizer, torch.inf)
        return ratio.exp().to(self.weight.dtype).expand(self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density of events, which is :math:`-\infty` outside the support.

        Arguments:
            value: The events, with shape :math:`(*, \text{event})`.
        """
        if self._validate_args:
            self._validate_sample(value)
        return self._log_prob(value, self.base, lambda x: self._network.to(x.dtype).log_density(x))

    def _log_prob(
        self, value: Tensor, law: Base, log_numerator: Callable[[Tensor], Tensor]
    ) -> Tensor:
        # The law of all or some coordinates, and their log-density plus log Z inside its support.
        if value.dtype != self.weight.dtype:
            value = value.to(torch.promote_types(value.dtype, self.weight.dtype))
        inside = law.contains(value)
        # Events outside stand for one inside, so that no gradient is poisoned by them.
        mask = inside[(...,) + (None,) * law.event_dim] if law.event_dim else inside
        value = torch.where(mask, value, law.example(value))
        log_prob = self._normalized(log_numerator(value), inside).to(value.dtype)
        shape = broadcast_shapes(log_prob.shape, self.batch_shape)
        return log_prob if log_prob.shape == shape else log_prob.expand(shape)

    def _normalized(self, log_numerator: Tensor, inside: Tensor) -> Tensor:
        log_normalizer = self._checked_normalizer(self._network)
        possible = inside & (log_normalizer > -torch.inf)
        return torch.where(possible, log_numerator - log_normalizer, -torch.inf)

    @property
    def has_rsample(self) -> bool:
        """Whether there are pathwise gradients.

        There are on Gaussian bases and mixtures, cubes, boxes, Laplace and logistic laws, and
        Student's law of one coordinate.

        ``ReLU`` and ``Step`` have none: their densities may vanish on whole intervals.
        """
        return is_reparameterizable(self._network) and not self._detached

    @has_rsample.setter
    def has_rsample(self, value: bool) -> None:
        if value:
            self._check_reparameterizable()
        self._detached = not value

    def _check_reparameterizable(self) -> None:
        if not is_reparameterizable(self._network):
            raise NotImplementedError(
                f"There are no pathwise gradients of {self.activation} on {self.base}."
            )

    @property
    def acceptance_rate(self) -> Tensor:
        r"""The share of proposals that :meth:`sample` accepts, in closed form.

        .. math:: \frac{Z}{\sum_i D_i K_{ii}}, \quad D \succeq V^\top V,

        for proposals from single neurons; for ``Exp``, proposals come from pairs of neurons. The
        rate is one where nothing is ever rejected. Where it is very small, :meth:`sample` works
        without proposals if it can.
        """
        return acceptance_rate(self._network)

    def sample(self, sample_shape: Any = _EMPTY) -> Tensor:
        r"""Draws events, exactly.

        Proposals come from a mixture of single neurons, or of pairs of neurons, under an envelope
        that is proved to be above the density. Where hardly any proposal would be accepted,
        coordinates are drawn one after the other, by inversion of distribution functions.

        Arguments:
            sample_shape: The shape of the sample.
        """
        check = self._check if self._validate_args else None
        return sample(self._network, Size(sample_shape), check)

    def rsample(self, sample_shape: Any = _EMPTY) -> Tensor:
        """Draws events with pathwise gradients, where there are any.

        Arguments:
            sample_shape: The shape of the sample.
        """
        self._check_reparameterizable()
        return pathwise(self._network, self.sample(sample_shape))

    def cdf(self, value: Tensor) -> Tensor:
        r"""The distribution function of an event with one coordinate.

        It is a Gauss-Legendre quadrature of the density. All its terms are positive, so that its
        digits are right far into the lower tail.

        Arguments:
            value: Events, with shape :math:`(*, \text{event})`.
        """
        check_one_coordinate(self.event_shape, self.base)
        if self._validate_args:
            self._validate_sample(value)
        return cdf(self._network, 0, value)

    def icdf(self, value: Levels) -> Tensor:
        r"""The quantiles of an event with one coordinate.

        .. math:: F^{-1}(q) = \inf \{x : F(x) \geq q\}

        Arguments:
            value: The probabilities :math:`q`: a number, or a tensor that broadcasts with the
                batch shape. A list of :math:`k` numbers gives quantiles with shape
                :math:`(k, \text{batch}, \text{event})`.

        Example:
            >>> base = Gaussian(0.0, 1.0, event_dim=0)
            >>> d = SNEFY(torch.randn(8, 1), torch.randn(5, 8), torch.randn(2, 8), base=base)
            >>> low, median, high = d.icdf([0.05, 0.5, 0.95])
            >>> median.shape
            torch.Size([5])
        """
        check_one_coordinate(self.event_shape, self.base)
        return icdf(self._network, 0, self._levels(value))

    def _levels(self, value: Levels) -> Tensor:
        return as_levels(value, self.weight, self.batch_shape, bool(self._validate_args))

    def log_cdf(self, value: Tensor) -> Tensor:
        r"""The logarithm of :meth:`cdf`, in float64 before it is rounded.

        It has its digits in the lower tail, down to probabilities of about 1e-30.

        Arguments:
            value: Events, with shape :math:`(*, \text{event})`.

        Example:
            >>> base = Gaussian(0.0, 1.0, event_dim=0)
            >>> d = SNEFY(torch.zeros(1, 1), torch.zeros(1), torch.ones(1, 1), base=base)
            >>> d.log_cdf(torch.tensor(-10.0))
            tensor(-53.2313)
        """
        log_cdf = safe_log(self.cdf(value.double()))
        return log_cdf.to(torch.promote_types(value.dtype, self.weight.dtype))

    def crps(self, value: Tensor) -> Tensor:
        r"""The continuous ranked probability score of events with one coordinate.

        .. math:: \int \left( F(z) - 1\{z \geq y\} \right)^2 dz
            = \mathbb{E} |x - y| - \tfrac{1}{2} \mathbb{E} |x - x'|

        The score is in units of the event, smaller is better, and proper (Gneiting and Raftery
        2007, "Strictly proper scoring rules, prediction, and estimation", JASA 102). It is a
        quadrature of the squared distribution function with gradients. Its relative error is about
        1e-5 where waves go on far into tails that are thousands of scales long, as in a default
        likelihood before it is fitted, and below 1e-9 elsewhere.

        Arguments:
            value: The events :math:`y`, with shape :math:`(*, \text{event})`.

        Example:
            >>> base = Gaussian(0.0, 1.0, event_dim=0)
            >>> d = SNEFY(torch.zeros(1, 1), torch.zeros(1), torch.ones(1, 1), base=base)
            >>> d.crps(torch.tensor(0.0))
            tensor(0.2337)
        """
        check_one_coordinate(self.event_shape, self.base)
        if self._validate_args:
            self._validate_sample(value)
        return crps(self._network, 0, value)

    def highest_density_region(self, level: Levels) -> tuple[Tensor, Tensor]:
        r"""The smallest set with a given probability, for an event with one coordinate.

        .. math:: \{x : p(x) \geq t\}, \quad \int_{p \geq t} p(x) \, dx = q

        The set is a union of intervals (Hyndman 1996, "Computing and graphing highest density
        regions", The American Statistician 50). Of counts, it is a union of runs of neighbouring
        points, the fewest whose probability is at least :math:`q`. There are no gradients.

        Arguments:
            level: The probability :math:`q`: a number, a list, or a tensor that broadcasts with the
                batch shape, as in :meth:`icdf`.

        Returns:
            The lower and the upper ends of the intervals, in ascending order. Both have the shape
            :math:`(k, *, \text{event})`, where :math:`(*)` is the shape of :meth:`icdf`, and NaN
            where there are fewer than :math:`k` intervals.

        Example:
            >>> base = Gaussian(0.0, 1.0, event_dim=0)
            >>> d = SNEFY(torch.ones(1, 1), torch.zeros(1), torch.ones(1, 1), base=base)
            >>> low, high = d.highest_density_region(0.5)
            >>> d.interval_probability(low, high).sum(0)
            tensor(0.5000)
        """
        check_one_coordinate(self.event_shape, self.base)
        levels = self._levels(level)
        check_inner_levels(levels)
        return highest_density_region(self._network, 0, levels)

    @property
    def mode(self) -> Tensor:
        """Where the density of an event with one coordinate is largest, without gradients."""
        check_one_coordinate(self.event_shape, self.base)
        return mode(self._network, 0)

    def interval_probability(self, low: Tensor, high: Tensor) -> Tensor:
        r"""The probability of boxes, :math:`P(l \leq x \leq u)`.

        .. math:: P(A) = \frac{1}{Z} \sum_{ij} (V^\top V)_{ij} \int_A \sigma(w_i \cdot t(x) + b_i)
            \sigma(w_j \cdot t(x) + b_j) \mu(dx)

        It has its digits in the tails, and finite gradients. Events with one coordinate may have
        any pair of activation and base with a :meth:`cdf`. Vectors have a closed form with
        ``Cos``, ``Sin``, ``Cis``, ``Snake``, ``Identity`` and ``Exp`` on diagonal Gaussians, their
        mixtures and boxes; the error lists what works.

        Arguments:
            low: The lower corners :math:`l`, with shape :math:`(*, \text{event})`; infinite ones
                are allowed.
            high: The upper corners :math:`u`, of the same shape.
        """
        check_box(low, high, self.event_shape)
        log_mass = log_box_mass(self._network, low, high)
        log_normalizer = self._checked_normalizer(self._network.to(torch.float64))
        probability = (log_mass - log_normalizer).exp().clamp(max=1.0)
        return probability.to(self.weight.dtype)

    def conditional(self, dims: Sequence[int], values: Tensor) -> "SNEFY":
        r"""The law of the other coordinates, in their order, given the values of some.

        .. math:: p(x_2 | x_1) \propto \mu_{2|1}(x_2) \left\| V \sigma(W_2 t_2(x_2) + b
            + W_1 t_1(x_1)) \right\|^2

        The given values go to the biases (arXiv:2305.13552, section 3.2). Values outside the
        support are an error; if arguments are not checked, every log-density is :math:`-\infty`.

        Arguments:
            dims: The given coordinates.
            values: Their values, with shape :math:`(*, \text{len(dims)})`.
        """
        dims = check_dims(dims, self.event_shape)
        if values.dim() < 1 or values.shape[-1] != len(dims):
            raise ValueError(
                f"SNEFY: expected values with shape (*, {len(dims)}), got {tuple(values.shape)}."
            )
        order = sorted(range(len(dims)), key=dims.__getitem__)
        dims, values = sorted(dims), take(values, order).to(self.weight.dtype)
        if len(dims) == self.event_shape[0]:
            raise ValueError(f"SNEFY: expected dims to leave a coordinate, got {dims}.")
        law = self.base.marginal(dims)
        inside = law.contains(values)
        if self._validate_args and not inside.all():
            raise ValueError(f"SNEFY: expected values in the support {law.support}, got {values}.")
        inside = inside.unsqueeze(-1)
        network = self._network.condition(dims, torch.where(inside, values, law.example(values)))
        return SNEFY(
            network.weight,
            torch.where(inside, network.bias, torch.nan),
            self.readout,
            gram=self.gram,
            activation=self.activation,
            base=network.base,
            validate_args=self._validate_args,
        )

    def marginal(self, dims: Sequence[int]) -> "SNEFY | Marginal":
        r"""The law of some coordinates, in the given order.

        Arguments:
            dims: The coordinates that are kept.

        Returns:
            A SNEFY for waves and exponentials, and for other activations a
            :class:`~pyro_snefy.distributions.Marginal` with the same methods.
        """
        dims = check_dims(dims, self.event_shape)
        if dims == list(range(self.event_shape[0])):
            return self
        network, kept = marginal(self._network, dims)
        if kept == list(range(network.base.event_shape[0])):
            return SNEFY._from_network(network, bool(self._validate_args))
        return Marginal(self, dims)

    def partially_observed(
        self, low: Tensor | float | None = None, high: Tensor | float | None = None
    ) -> PartiallyObserved:
        r"""The same law, for events with missing coordinates, which are marked by NaN.

        Arguments:
            low: Lower bounds, with shape :math:`(*, \text{event})`. A coordinate that equals its
                bound is only known to be at or below it.
            high: Upper bounds, of the same shape. A coordinate that equals its bound is only known
                to be at or above it.
        """
        return PartiallyObserved(self, low, high)

    def censored(
        self, low: Tensor | float | None = None, high: Tensor | float | None = None
    ) -> Censored:
        r"""The law of :math:`\min(\max(x, l), u)` for scalar events, as in a Tobit model.

        Arguments:
            low: The lower bound :math:`l`, which carries the mass at and below it, or None.
            high: The upper bound :math:`u`, which carries the mass at and above it, or None.
        """
        return Censored(self, low, high)

    def observed(
        self,
        scale: TensorLike | None = None,
        *,
        scale_tril: TensorLike | None = None,
        matrix: Tensor | None = None,
    ) -> Observed:
        r"""The law of noisy observations :math:`y = H x + \varepsilon` of events.

        .. math:: p(y) = \int p(x) \, \mathcal{N}(y; H x, S) \, dx

        It is a closed form for every activation on normal bases and their mixtures, see
        :class:`~pyro_snefy.distributions.Observed`.

        Arguments:
            scale: The standard deviations of the noise, with shape :math:`(*, e)`; :math:`(*)` if
                :math:`y` is a scalar. Batch dimensions give each row a noise of its own.
            scale_tril: Instead of ``scale``, a lower Cholesky factor of :math:`S`, with shape
                :math:`(*, e, e)`.
            matrix: The matrix :math:`H`, with shape :math:`(*, e, d)`. None stands for the
                identity.

        Example:
            >>> d = SNEFY(torch.randn(8, 2), torch.zeros(8), torch.randn(2, 8))
            >>> noise = torch.rand(100, 2) + 0.1  # standard deviations, row by row
            >>> d.observed(noise).log_prob(torch.zeros(100, 2)).shape
            torch.Size([100])
        """
        return Observed(self, scale, scale_tril=scale_tril, matrix=matrix)

    def posterior(
        self,
        y: Tensor,
        scale: TensorLike | None = None,
        *,
        scale_tril: TensorLike | None = None,
        matrix: Tensor | None = None,
    ) -> "SNEFY":
        r"""The law of events given noisy observations :math:`y = H x + \varepsilon`.

        .. math:: p(x | y) \propto p(x) \, \mathcal{N}(y; H x, S)

        The network stays as it is; the normal base becomes a normal base given :math:`y`.

        Arguments:
            y: The observations, with shape :math:`(*, e)`, or :math:`(*)` if they are scalars.
            scale, scale_tril, matrix: The noise and the matrix, as in :meth:`observed`.

        Example:
            >>> d = SNEFY(torch.randn(8, 2), torch.zeros(8), torch.randn(2, 8))
            >>> d.posterior(torch.zeros(5, 1), 0.1, matrix=torch.tensor([[1.0, 2.0]])).batch_shape
            torch.Size([5])
        """
        observation = make_observation(self, scale, scale_tril, matrix)
        y = check_observations(self, observation, y)
        return self._on(posterior(self.base, observation, y))

    def _on(self, base: Base) -> "SNEFY":
        # The same network on another base.
        return SNEFY(
            self.weight,
            self.bias,
            self.readout,
            gram=self.gram,
            activation=self.activation,
            base=base,
            validate_args=self._validate_args,
        )

    def characteristic_function(self, omega: Tensor) -> Tensor:
        r"""The characteristic function :math:`\mathbb{E}[e^{i \omega \cdot x}]`, complex.

        For ``Cos``, it is a sum over the :math:`4 n^2` frequencies of the squared network, of
        values of the characteristic function of the base. There are closed forms for waves on
        bases with :math:`t(x) = x`, and for ``Exp`` on normal bases.

        Arguments:
            omega: The frequencies :math:`\omega`, with shape :math:`(*, \text{event})`.

        Example:
            >>> d = SNEFY(torch.randn(8, 2), torch.zeros(8), torch.randn(2, 8))
            >>> d.characteristic_function(torch.zeros(2)).abs()
            tensor(1.)
        """
        value = characteristic(self._network.to(torch.float64), self._vectors(omega, "omega"))
        value = value.to(torch.complex64 if self.weight.dtype == torch.float32 else value.dtype)
        return value.expand(broadcast_shapes(value.shape, self.batch_shape))

    def moment_generating_function(self, eta: Tensor) -> Tensor:
        r"""The moment generating function :math:`\mathbb{E}[e^{\eta \cdot x}]`.

        .. math:: e^{\eta \cdot m + \eta^\top C \eta / 2} \, \frac{Z(b + W C \eta)}{Z(b)}

        on a normal base :math:`\mathcal{N}(m, C)`, for every activation: a shift of the biases.
        For ``Exp`` on other bases, :math:`\eta` shifts the weights; the value is infinite where
        the integral is.

        Arguments:
            eta: The arguments :math:`\eta`, with shape :math:`(*, \text{event})`.

        Example:
            >>> d = SNEFY(torch.randn(8, 2), torch.zeros(8), torch.randn(2, 8))
            >>> d.moment_generating_function(torch.zeros(2))
            tensor(1.)
        """
        network = self._network.to(torch.float64)
        value = log_generating(network, self._vectors(eta, "eta"))
        value = (value - network.log_normalizer()).exp().to(self.weight.dtype)
        return value.expand(broadcast_shapes(value.shape, self.batch_shape))

    def _vectors(self, value: Tensor, name: str) -> Tensor:
        # Arguments of transforms with shape (*, d), in float64.
        if self.event_shape and value.shape[-1:] != self.event_shape:
            expected = f"(*, {self.event_shape[0]})"
            found = tuple(value.shape)
            raise ValueError(f"SNEFY: expected {name} with shape {expected}, got {found}.")
        return (value if self.event_shape else value.unsqueeze(-1)).double()

    @property
    def fisher_information(self) -> Tensor:
        r"""The Fisher information of a readout with one row :math:`v`, :math:`(*, n, n)`.

        .. math:: I(v) = \frac{4}{Z} \left( K - \frac{K v v^\top K}{Z} \right)

        It is singular: the law does not depend on the scale of :math:`v`. For a readout with more
        rows, and for a gram, there is no closed form.
        """
        value = fisher_information(self._network.to(torch.float64)).to(self.weight.dtype)
        return value.expand(self.batch_shape + value.shape[-2:])

    def readout_gap(self, x: Tensor) -> Tensor:
        r"""How much more likely the best readout would make some events, at most.

        .. math:: \max_{M \succeq 0} \frac{1}{N} \sum_i \log p_M(x_i)
            - \frac{1}{N} \sum_i \log p(x_i) \leq \log \lambda_{\max}(R)

        Weights, biases and base stay as they are, and readouts of any number of rows are compared.
        The bound is in nats per event. It is zero for the best readout, see
        :func:`~pyro_snefy.fit_readout`. Directions of the kernel with eigenvalues below 1e-10 of
        the largest are left out.

        Arguments:
            x: Events, with shape :math:`(N, *, \text{event})`, where :math:`(*)` is the batch
                shape.

        Returns:
            The bounds, with the batch shape.

        Example:
            >>> d = SNEFY(torch.randn(8, 2), torch.zeros(8), torch.randn(1, 8))
            >>> d.readout_gap(torch.randn(100, 2)).shape
            torch.Size([])
        """
        check_events(x, self.batch_shape, self.base)
        shape = x.shape[:1] + self.batch_shape + self.event_shape
        return readout_gap(self._network, x.expand(shape)).to(self.weight.dtype)

    def entropy(self) -> Tensor:
        r"""Raises an error: the integral of :math:`p \log p` has no closed form."""
        raise NotImplementedError(NO_ENTROPY)

    @property
    def mean(self) -> Tensor:
        r"""The mean :math:`\mathbb{E}[x]`, in closed form where there is one."""
        return self._to_event(self._moments()[0])

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate, in closed form where there is one."""
        return self._to_event(self._moments()[1].diagonal(dim1=-2, dim2=-1))

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance matrix of a vector event, in closed form where there is one."""
        if not self.event_shape:
            raise NotImplementedError("A scalar event has a variance, no covariance_matrix.")
        covariance = self._moments()[1].to(self.weight.dtype)
        return covariance.expand(self.batch_shape + covariance.shape[-2:])

    def with_mean(self, mean: TensorLike) -> "SNEFY":
        r"""The same law, moved so that it has a given mean.

        .. math:: p(x - m + \mathbb{E}[x])

        The location of a family and an intercept :math:`m` cannot be told apart by data. Noise
        whose mean is fixed leaves the location to the rest of a model. The mean of the law is in
        closed form, and one kernel serves all :math:`m`.

        Arguments:
            mean: The mean :math:`m`, with shape :math:`(*, \text{event})`, where :math:`(*)`
                broadcasts with the batch shape. The base is on the reals or on real vectors.

        Example:
            >>> base = Gaussian(1.0, 1.0, event_dim=0)
            >>> noise = SNEFY(torch.randn(8, 1), torch.zeros(8), torch.randn(2, 8), base=base)
            >>> noise.with_mean(torch.tensor([0.0, 2.0])).batch_shape
            torch.Size([2])
        """
        loc = torch.as_tensor(mean, dtype=self.weight.dtype, device=self.weight.device)
        if loc.dim() and self.event_shape and loc.shape[-1:] != self.event_shape:
            raise ValueError(
                f"SNEFY: expected mean with shape (*, {self.event_shape[0]}), "
                f"got {tuple(loc.shape)}."
            )
        loc = loc - self.mean
        return self._on(Standardized(self.base, loc, torch.ones_like(loc), validate_args=False))

    def _moments(self) -> tuple[Tensor, Tensor]:
        return moments(self._network.to(torch.float64))

    def _to_event(self, vectors: Tensor) -> Tensor:
        vectors = vectors if self.event_shape else vectors.squeeze(-1)
        return vectors.to(self.weight.dtype).expand(self.batch_shape + self.event_shape)
