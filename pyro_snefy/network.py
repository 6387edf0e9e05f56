r"""The real two-layer network of a squared neural family."""

__all__ = ["Network"]

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Size, Tensor

from .activations import Activation, Cos
from .bases.base import Base, flatten_batch
from .kernels import Kernel, kernel
from .numerics.forms import Form, Gram, Readout
from .numerics.linalg import affine, broadcast_shapes, take


@dataclass(frozen=True, eq=False)
class Network:
    r"""The function :math:`x \mapsto \|V \sigma(W t(x) + b)\|^2` with its base measure.

    A network is an immutable value. It alone decides in which precision numbers are computed, and
    it alone replaces a base by the law of its statistic before a kernel is asked for.

    Arguments:
        activation: The activation :math:`\sigma`.
        base: The base.
        weight: The weights :math:`W`, with shape :math:`(*, n, D)`.
        bias: The biases :math:`b`, with shape :math:`(*, n)`.
        form: The quadratic form of the readout :math:`V` or of its gram, real.
        batch_shape: The batch shape. Tensors need not be expanded to it.
    """

    activation: Activation
    base: Base
    weight: Tensor
    bias: Tensor
    form: Form
    batch_shape: Size

    @classmethod
    def of(
        cls, activation: Activation, base: Base, weight: Tensor, bias: Tensor, form: Form
    ) -> "Network":
        """The network whose batch shape is the one of its tensors."""
        batch_shape = broadcast_shapes(
            weight.shape[:-2], bias.shape[:-1], form.matrix.shape[:-2], base.batch_shape
        )
        return cls(activation, base, weight, bias, form, batch_shape)

    @classmethod
    def build(
        cls,
        activation: Activation,
        base: Base,
        weight: Tensor,
        bias: Tensor | None,
        readout: Tensor | None,
        gram: Tensor | None,
    ) -> "Network":
        r"""Makes a network of the arguments of a family.

        The complex exponential has the features :math:`(\cos z, \sin z)`. Read by
        :math:`A + iB`, its real part is :math:`A \cos z - B \sin z`, and its imaginary part
        :math:`B \cos z + A \sin z`.
        """
        bias = weight.new_zeros(weight.shape[-2:-1]) if bias is None else bias
        matrix = readout if gram is None else gram
        assert matrix is not None
        if activation.is_complex:
            real = matrix.real if matrix.is_complex() else matrix
            imag = matrix.imag if matrix.is_complex() else torch.zeros_like(matrix)
            matrix = torch.cat([torch.cat([real, -imag], -1), torch.cat([imag, real], -1)], -2)
        return cls.of(
            activation, base, weight, bias, Readout(matrix) if gram is None else Gram(matrix)
        )

    @property
    def width(self) -> int:
        """The number of neurons."""
        return self.weight.shape[-2]

    def tensors(self) -> list[Tensor]:
        """The parameters, and the tensors of the base."""
        own = [self.weight, self.bias, self.form.matrix]
        return own + [value for _, value in self.base.tensors()]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Network":
        """The same network made of other tensors, in the order of :meth:`tensors`."""
        weight, bias, matrix, *rest = tensors
        others = iter(rest)
        return replace(
            self,
            base=self.base.map(lambda _: next(others)),
            weight=weight,
            bias=bias,
            form=self.form.map(lambda _: matrix),
        )

    def to(self, dtype: torch.dtype) -> "Network":
        """The same network in another dtype."""
        if self.weight.dtype == dtype:
            return self
        return self.with_tensors([x.to(dtype) for x in self.tensors()])

    def real(self) -> "Network":
        r"""The same network with cosines in place of complex exponentials, twice the number.

        .. math:: \sin z = \cos(z - \pi / 2)
        """
        if not self.activation.is_complex:
            return self
        weight = torch.cat([self.weight, self.weight], dim=-2)
        bias = torch.cat([self.bias, self.bias - math.pi / 2], dim=-1)
        return replace(self, activation=Cos(), weight=weight, bias=bias)

    def expand(self, batch_shape: Size) -> "Network":
        """The same network with a larger batch shape; its tensors stay as they are."""
        return replace(self, batch_shape=batch_shape)

    def flatten(self) -> "Network":
        """The networks of a batch in one batch dimension; what they all share has none."""
        shape = self.batch_shape
        return Network(
            self.activation,
            self.base.flatten(shape),
            flatten_batch(self.weight, 2, shape),
            flatten_batch(self.bias, 1, shape),
            self.form.map(lambda x: flatten_batch(x, 2, shape)),
            Size((shape.numel(),)),
        )

    def members(self, index: Tensor) -> "Network":
        r"""Some networks of a flat batch, by their numbers, with shape :math:`(N,)`."""
        return Network(
            self.activation,
            self.base.members(index),
            self.weight if self.weight.dim() == 2 else self.weight[index],
            self.bias if self.bias.dim() == 1 else self.bias[index],
            self.form.map(lambda x: x if x.dim() == 2 else x[index]),
            Size((len(index),)),
        )

    def over(self, components: Base) -> "Network":
        """The same network over the components of its base, in one more batch dimension.

        Arguments:
            components: The components, in the last batch dimension of one base.
        """
        weight = self.weight if self.weight.dim() == 2 else self.weight.unsqueeze(-3)
        bias = self.bias if self.bias.dim() == 1 else self.bias.unsqueeze(-2)
        return Network.of(self.activation, components, weight, bias, self.form.unsqueeze())

    def _layers(self) -> Iterator[Base]:
        # The base, the law of its statistic, and so on, until a statistic is its event.
        base = self.base
        yield base
        while (inner := base.latent(self.weight)) is not base:
            base = inner
            yield base

    def latent(self) -> "Network":
        """The same network on the law of its statistic."""
        *_, base = self._layers()
        return self if base is self.base else replace(self, base=base)

    def to_latent(self, x: Tensor) -> Tensor:
        """The events of :meth:`latent` that belong to events."""
        for base in self._layers():
            x = base.to_latent(x)
        return x

    def from_latent(self, x: Tensor) -> Tensor:
        """Events, from events of :meth:`latent`."""
        for base in reversed(list(self._layers())):
            x = base.event(x)
        return x

    def condition(self, dims: Sequence[int], values: Tensor) -> "Network":
        r"""The network of the other coordinates, given the values of some.

        .. math:: \mu_{2|1}(x_2) \left\| V \sigma(W_2 t_2(x_2) + b + W_1 t_1(x_1)) \right\|^2

        Arguments:
            dims: The given coordinates, in ascending order.
            values: Their values, with shape :math:`(*, \text{len(dims)})`.
        """
        base = self.base
        statistic = base.marginal(dims).statistic(values)
        bias = affine(statistic, take(self.weight, base.columns(dims)), self.bias)
        rest = take(self.weight, base.columns(base.others(dims)))
        return Network.of(self.activation, base.conditional(dims, values), rest, bias, self.form)

    def kernel(self) -> Kernel:
        """The kernel of the neurons, made of tensors in float64."""
        *_, base = self._layers()
        return kernel(self.activation, base.map(Tensor.double), self.weight.double())

    def log_norms(self) -> Tensor:
        r"""The logarithms of :math:`K_{ii} = \int \sigma(w_i \cdot t + b_i)^2 \mu(dx)`, in float64.

        Each neuron is a network of its own, in one more batch dimension: :math:`n` entries of the
        kernel, and not its :math:`n^2`.
        """
        base = self.base.map_batches(
            lambda x, rank: x.unsqueeze(-1 - rank) if x.dim() > rank else x
        )
        alone = replace(self, base=base, weight=self.weight.unsqueeze(-2)).kernel()
        log_scale, matrix = alone.matrix(self.bias.double().unsqueeze(-1))
        log_norm = matrix[..., 0, 0].clamp(min=0).log()
        return log_norm if log_scale is None else log_norm + 2 * log_scale.squeeze(-1)

    def log_normalizer(self, neurons: Kernel | None = None) -> Tensor:
        r"""The logarithm of :math:`Z = \int \|V \sigma(W t(x) + b)\|^2 \mu(dx)`, in float64.

        The sum is in float64, because terms of both signs cancel in it. Rows of biases in float32
        have features in float32 where the kernel allows it, beside squares in float32. The batch
        shape of the result is the one of the tensors.

        Arguments:
            neurons: The kernel, if it has been built before.
        """
        neurons = self.kernel() if neurons is None else neurons
        bias, form = self.bias, self.form
        half = bias.dtype not in (torch.float32, torch.float64)
        # torch.autocast would take products in float32 for products in half precision.
        half = half or torch.is_autocast_enabled(bias.device.type)
        # The rounding of a gram in float32 leaves eigenvalues below zero, and no Cholesky factor.
        one = bias.dim() == 1
        suffices = neurons.has_factor if one else neurons.takes_float32
        if half or isinstance(form, Gram) or not suffices:
            bias, form = bias.double(), form.to(torch.float64)
        elif one:
            bias = bias.double()
            form = form.to(torch.float64) if form.matrix.dim() == 2 else form
        return neurons.log_normalizer(form, bias)

    def log_square(self, x: Tensor) -> Tensor:
        r"""The logarithm of :math:`\|V \sigma(W t(x) + b)\|^2` for events in the support."""
        return self._log_square(self.base.statistic(x))

    def _log_square(self, statistic: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if self.activation.needs_float64:
            statistic, weight, bias = statistic.double(), weight.double(), bias.double()
        return self.form.log_square(self.activation.features(affine(statistic, weight, bias)))

    def log_density(self, x: Tensor) -> Tensor:
        r"""The logarithm of :math:`\mu(x) \|V \sigma(W t(x) + b)\|^2` for events in the support."""
        log_density, statistic = self.base.log_density_and_statistic(x)
        return log_density + self._log_square(statistic)
