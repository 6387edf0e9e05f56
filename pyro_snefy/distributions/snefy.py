r"""Squared neural families."""

__all__ = ["SNEFY"]

from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints

from ..activations import Activation, Cis, Cos
from ..bases import Base, Discrete, Gaussian, Pushforward
from ..kernels.registry import check_closed_form
from ..network import Network
from ..numerics.forms import Features, Gram, Readout
from ..numerics.linalg import affine, broadcast_shapes, rows_matmul, take
from ..operations.moments import moments
from ..sampling import (
    Line,
    acceptance_rate,
    cdf,
    flatten,
    icdf,
    is_reparameterizable,
    line,
    pathwise,
    sample,
)
from .marginal import Marginal, check_dims, closed_marginal
from .partially_observed import PartiallyObserved
from .validation import check_normalizer, check_shapes, check_types, check_values

_PARAMETERS = ("weight", "bias", "readout", "gram")
_EMPTY = Size()


class SNEFY(TorchDistribution):
    r"""Creates a squared neural family.

    .. math:: p(x) = \frac{\mu(x)}{Z} \left\| V \sigma(W t(x) + b) \right\|^2, \quad
        Z = \sum_{ij} (V^\top V)_{ij} \int \sigma(w_i \cdot t(x) + b_i)
        \sigma(w_j \cdot t(x) + b_j) \mu(dx)

    The normalising constant is in closed form, see :mod:`pyro_snefy.kernels`. It is a sum in
    float64, whatever the dtype of the parameters, because terms of both signs cancel in it.

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
            raise TypeError(f"SNEFY: expected activation to be an Activation, got {activation!r}.")
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
        batch_shape = check_shapes(self._arguments, base)
        check_types(self._arguments, activation, base)
        check_closed_form(activation, base, bias is not None)
        # The checks of torch do not know of constraints that depend on activation and base.
        super().__init__(batch_shape, base.event_shape, validate_args=False)
        validate = TorchDistribution._validate_args if validate_args is None else validate_args
        self._validate_args = validate
        if validate:
            check_values(self._arguments, base.weight_constraint(activation), base)

    def __repr__(self) -> str:
        tensors = [
            f"{name}: {tuple(x.shape)}" for name, x in self._arguments.items() if x is not None
        ]
        return f"SNEFY({', '.join(tensors)}, activation={self.activation}, base={self.base})"

    @property
    def _arguments(self) -> dict[str, Tensor | None]:
        return {name: getattr(self, name) for name in _PARAMETERS}

    @property
    def arg_constraints(self) -> dict[str, Any]:
        """The constraints of the tensors, which depend on activation and base."""
        matrix = constraints.independent(constraints.real, 2)
        every = {
            "weight": self.base.weight_constraint(self.activation),
            "bias": constraints.real_vector,
            "readout": matrix,
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
        return isinstance(self.base, Discrete)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All events of a finite support, along the first dimension."""
        if not isinstance(self.base, Discrete):
            raise NotImplementedError(f"The support of {self.base} is not a finite set.")
        points = self.base.points
        # Equal points are one event, whose masses are added.
        equal = (self.base.vectors.unsqueeze(-2) == self.base.vectors).all(-1)  # (K, K)
        points = points[~equal.tril(-1).any(-1)]
        points = points.reshape(points.shape[:1] + (1,) * len(self.batch_shape) + self.event_shape)
        if not expand:
            return points
        return points.expand(points.shape[:1] + self.batch_shape + self.event_shape)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "SNEFY":
        """The same law with a larger batch shape; parameters are shared, not copied."""
        new = self._get_checked_instance(SNEFY, _instance)
        for name in (*_PARAMETERS, "activation", "base"):
            setattr(new, name, getattr(self, name))
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

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return self.weight.dtype

    def tensors(self) -> list[Tensor]:
        """The parameters and the tensors of the base."""
        own = [value for value in self._arguments.values() if value is not None]
        return own + [value for _, value in self.base.tensors()]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "SNEFY":
        """The same family made of other tensors, in the order of :meth:`tensors`."""
        every = iter(tensors)
        arguments = {
            name: None if value is None else next(every) for name, value in self._arguments.items()
        }
        return self._replace(arguments, self.base.map(lambda _: next(every)))

    def with_base(self, base: Base) -> "SNEFY":
        """The same network over another base."""
        return self._replace(self._arguments, base)

    def _replace(self, arguments: dict[str, Any], base: Base) -> "SNEFY":
        new = SNEFY(activation=self.activation, base=base, validate_args=False, **arguments)
        new._validate_args = self._validate_args
        return new.expand(self.batch_shape)

    @classmethod
    def from_network(cls, network: Network) -> "SNEFY":
        """The family of a network, without checks."""
        activation, base, weight, bias, form = network
        matrix = {"readout" if isinstance(form, Readout) else "gram": form.matrix}
        return cls(weight, bias, activation=activation, base=base, validate_args=False, **matrix)

    def select(self, member: Tensor) -> "SNEFY":
        r"""Some members of a batch, in one batch dimension.

        Arguments:
            member: The numbers of the members in the flattened batch, with shape :math:`(N,)`.
        """
        network = flatten(self._network(self.dtype).real(), self.batch_shape)
        return self.from_network(network.take(member)).expand(Size((len(member),)))

    def _network(self, dtype: torch.dtype) -> Network:
        return Network.build(
            self.activation, self.base, self.weight, self.bias, self.readout, self.gram, dtype
        )

    def _log_normalizer(self) -> Tensor:
        # In float64, and at the batch shape of the parameters, however far that is expanded.
        network = self._network(self.weight.dtype)
        log_normalizer = network._replace(bias=network.bias.double()).log_normalizer()
        if self._validate_args:
            name = "readout" if self.gram is None else "gram"
            check_normalizer(log_normalizer, network.to(torch.float64), name)
        return log_normalizer

    @property
    def log_normalizer(self) -> Tensor:
        r"""The logarithm :math:`\log Z` of the normalising constant."""
        return self._log_normalizer().to(self.weight.dtype).expand(self.batch_shape)

    @property
    def condition_number(self) -> Tensor:
        r"""The loss of precision to expect.

        .. math:: \kappa = \frac{1}{Z} \sum_{ij} |M_{ij} K_{ij}|

        The error of :math:`\log Z` is about :math:`\kappa` times the machine precision, that of
        float64. It is infinite where :math:`Z` is zero.
        """
        network = self._network(torch.float64)
        neurons = network.kernel()
        log_scale, matrix = neurons.matrix(network.bias)
        gram = network.form.gram()
        if isinstance(self.activation, Cis):
            # Moduli of complex numbers, from the real form of twice the width.
            n = self.weight.shape[-2]
            gram = torch.hypot(gram[..., :n, :n], gram[..., n:, :n])
            real = matrix[..., :n, :n] + matrix[..., n:, n:]
            matrix = torch.hypot(real, matrix[..., n:, :n] - matrix[..., :n, n:])
        absolute = Gram(gram.abs())
        total = absolute.log_trace(Features(log_scale, (None,)), {(0, 0): matrix.abs()})
        log_normalizer = neurons.log_normalizer(network.form, network.bias)
        ratio = torch.where(log_normalizer > -torch.inf, total - log_normalizer, torch.inf)
        return ratio.exp().to(self.weight.dtype).expand(self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density of events, which is :math:`-\infty` outside the support.

        Arguments:
            value: The events, with shape :math:`(*, \text{event})`.
        """
        if self._validate_args:
            self._validate_sample(value)
        value = value.to(torch.promote_types(value.dtype, self.weight.dtype))
        inside = self.base.contains(value)
        # Events outside stand for one inside, so that no gradient is poisoned by them.
        mask = inside[(...,) + (None,) * len(self.event_shape)] if self.event_shape else inside
        value = torch.where(mask, value, self.base.example(value))
        network = self._network(value.dtype)
        log_prob = network.base.log_density(value) + self._log_ratio(network, value)
        log_prob = torch.where(inside, log_prob, -torch.inf).to(value.dtype)
        shape = broadcast_shapes(log_prob.shape, self.batch_shape)
        return log_prob if log_prob.shape == shape else log_prob.expand(shape)

    def _log_ratio(self, network: Network, value: Tensor) -> Tensor:
        # The log-density with respect to the base.
        ratio = network.log_ratio(value) if value.dtype == self.weight.dtype else None
        if ratio is None:
            log_normalizer = self._log_normalizer()
            ratio = network.log_square(value) - log_normalizer
            return torch.where(log_normalizer > -torch.inf, ratio, -torch.inf)
        if self._validate_args:
            with torch.no_grad():
                self._log_normalizer()  # raises unless it is positive
        return ratio

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether there are pathwise gradients: on Gaussian bases and mixtures, cubes and boxes.

        There are none of ``ReLU`` and ``Step``, whose densities may vanish between two places
        where they do not.
        """
        return is_reparameterizable(self.activation, self.base)

    @property
    def acceptance_rate(self) -> Tensor:
        r"""The share of proposals that :meth:`sample` accepts, in closed form.

        .. math:: \frac{Z}{\sum_i D_i K_{ii}}, \quad D \succeq V^\top V,

        for proposals from single neurons, and that of pairs of neurons for ``Exp``. It is one
        where nothing is ever rejected. Where it is very small, the sampler works without proposals
        if it can.
        """
        return acceptance_rate(self)

    def sample(self, sample_shape: Any = _EMPTY) -> Tensor:
        r"""Draws events, exactly.

        Proposals come from a mixture of single neurons, or pairs of them, whose envelope is proved
        to be above the density. Where hardly any would be accepted, coordinates are drawn one
        after the other, by inversion of their conditional distribution functions.

        Arguments:
            sample_shape: The shape of the sample.
        """
        return sample(self, Size(sample_shape))

    def rsample(self, sample_shape: Any = _EMPTY) -> Tensor:
        """Draws events with pathwise gradients, where ``has_rsample`` is true.

        Arguments:
            sample_shape: The shape of the sample.
        """
        if not self.has_rsample:
            raise NotImplementedError(
                f"There are no pathwise gradients of {self.activation} on {self.base}."
            )
        return pathwise(self, self.sample(sample_shape))

    def unfold(self) -> tuple["SNEFY", list[Pushforward]]:
        """The law of latent coordinates, and the bases that map them to events, from inside."""
        base = self.base
        maps: list[Pushforward] = []
        while isinstance(base, Pushforward):
            maps.insert(0, base)
            base = base.latent(self.weight)
        return self.with_base(base) if maps else self, maps

    def line(self) -> Line:
        """The law of a single coordinate, prepared for its distribution function."""
        if self.event_shape.numel() != 1:
            raise NotImplementedError(
                "Expected an event with one coordinate for a distribution function, got "
                f"event_shape {tuple(self.event_shape)}; try marginal([k])."
            )
        return line(self)

    def cdf(self, value: Tensor) -> Tensor:
        r"""The distribution function of an event with one coordinate.

        It is a quadrature of the density, whose terms are all positive: digits are right far into
        the lower tail.

        Arguments:
            value: Events, with shape :math:`(*, \text{event})`.
        """
        return cdf(self, value)

    def icdf(self, value: Tensor) -> Tensor:
        r"""The quantiles of an event with one coordinate.

        Arguments:
            value: Probabilities, with shape :math:`(*)`.
        """
        return icdf(self, value)

    def conditional(self, dims: Sequence[int], values: Tensor) -> "SNEFY":
        r"""The law of the other coordinates, in their order, given the values of some.

        .. math:: p(x_2 | x_1) \propto \mu_{2|1}(x_2) \left\| V \sigma(W_2 t_2(x_2) + b
            + W_1 t_1(x_1)) \right\|^2

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
        weight, bias = self._given(dims, self.base.marginal(dims).statistic(values))
        return SNEFY(
            weight,
            bias,
            self.readout,
            gram=self.gram,
            activation=self.activation,
            base=self.base.conditional(dims, values),
            validate_args=self._validate_args,
        )

    def _given(self, dims: Sequence[int], statistic: Tensor) -> tuple[Tensor, Tensor]:
        # The weights of the other coordinates, and the biases that the given ones make.
        base, weight = self.base, take(self.weight, self.base.columns(dims))
        rest = take(self.weight, base.columns(base.others(dims)))
        if self.bias is None:
            return rest, rows_matmul(statistic, weight.mT)
        return rest, affine(statistic, weight, self.bias)

    def marginal(self, dims: Sequence[int]) -> "SNEFY | Marginal":
        r"""The law of some coordinates, in the given order.

        Arguments:
            dims: The coordinates that are kept.

        Returns:
            A SNEFY for waves and exponentials, and a
            :class:`~pyro_snefy.distributions.Marginal` with the
            same methods for others.
        """
        dims = check_dims(dims, self.event_shape)
        if dims == list(range(self.event_shape[0])):
            return self
        if len(dims) < self.event_shape[0]:
            closed = closed_marginal(self._network(self.weight.dtype), dims)
            if closed is not None:
                return self._like(**closed)
        return Marginal(self, dims)

    def _like(
        self, weight: Tensor, bias: Tensor, gram: Tensor, activation: Activation, base: Base
    ) -> "SNEFY":
        # A family made of float64 tensors, in the dtype and with the batch shape of this one.
        dtype = self.weight.dtype
        new = SNEFY(
            weight.to(dtype),
            bias.to(dtype),
            gram=gram.to(dtype),
            activation=activation,
            base=base.map(lambda x: x.to(dtype)),
            validate_args=False,
        )
        new._validate_args = self._validate_args
        return new.expand(self.batch_shape) if new.batch_shape != self.batch_shape else new

    def partially_observed(self) -> PartiallyObserved:
        """The same law, for events with missing coordinates, which are marked by NaN."""
        return PartiallyObserved(self)

    def marginal_log_prob(self, dims: Sequence[int], values: Tensor) -> Tensor:
        r"""The log-density of the marginal law of some coordinates.

        Arguments:
            dims: The coordinates, in ascending order.
            values: Their values, with shape :math:`(*, \text{len(dims)})`.
        """
        law = self.base.marginal(dims) if len(dims) < self.event_shape[0] else self.base
        inside = law.contains(values)
        values = values.to(torch.promote_types(values.dtype, self.weight.dtype))
        values = torch.where(inside.unsqueeze(-1), values, law.example(values))
        log_normalizer = self._log_normalizer()
        log_prob = self.marginal_log_numerator(dims, values) - log_normalizer
        valid = inside & (log_normalizer > -torch.inf)
        log_prob = torch.where(valid, log_prob, -torch.inf).to(values.dtype)
        return log_prob.expand(broadcast_shapes(log_prob.shape, self.batch_shape))

    def marginal_log_numerator(self, dims: Sequence[int], values: Tensor) -> Tensor:
        r"""The log-density of the marginal law of some coordinates, plus :math:`\log Z`.

        Arguments:
            dims: The coordinates, in ascending order; all or none of them, too.
            values: Their values, in the support, with shape :math:`(*, \text{len(dims)})`.
        """
        if not dims:
            return self._log_normalizer().expand(values.shape[:-1])
        if len(dims) == self.event_shape[0]:
            return self._network(values.dtype).log_density(values)
        law, dtype = self.base.marginal(dims), self.weight.dtype
        narrow = values.to(dtype)
        weight, bias = self._given(dims, law.statistic(narrow))
        others = self.base.conditional(dims, narrow)
        # As the conditional law, whose constant is a density here, and may be zero.
        network = Network.build(
            self.activation, others, weight, bias, self.readout, self.gram, dtype
        )
        return law.log_density(values) + network.log_normalizer()

    @property
    def mean(self) -> Tensor:
        r"""The mean :math:`\mathbb{E}[x]`, in closed form where there is one."""
        mean, _ = moments(self._network(torch.float64))
        return self._event(mean)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate, in closed form where there is one."""
        _, covariance = moments(self._network(torch.float64))
        return self._event(covariance.diagonal(dim1=-2, dim2=-1))

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance matrix of a vector event, in closed form where there is one."""
        if not self.event_shape:
            raise NotImplementedError("A scalar event has a variance, no covariance_matrix.")
        _, covariance = moments(self._network(torch.float64))
        covariance = covariance.to(self.weight.dtype)
        return covariance.expand(self.batch_shape + covariance.shape[-2:])

    def _event(self, vectors: Tensor) -> Tensor:
        vectors = vectors if self.event_shape else vectors.squeeze(-1)
        return vectors.to(self.weight.dtype).expand(self.batch_shape + self.event_shape)
