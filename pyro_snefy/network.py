r"""The real two-layer network inside a squared neural family."""

__all__ = ["Network"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .activations import Activation, Cis, Cos
from .bases import Base, Pushforward
from .kernels import Kernel, kernel
from .kernels.registry import is_narrow
from .numerics.forms import Form, Gram, Readout
from .numerics.linalg import affine


class Network(NamedTuple):
    r"""The function :math:`x \mapsto \|V \sigma(W t(x) + b)\|^2` with its base measure.

    Arguments:
        activation: The activation.
        base: The base.
        weight: The weights, with shape :math:`(*, n, D)`.
        bias: The biases, with shape :math:`(*, n)`.
        form: The quadratic form of the readout or gram.
    """

    activation: Activation
    base: Base
    weight: Tensor
    bias: Tensor
    form: Form

    @classmethod
    def build(
        cls,
        activation: Activation,
        base: Base,
        weight: Tensor,
        bias: Tensor | None,
        readout: Tensor | None,
        gram: Tensor | None,
        dtype: torch.dtype,
    ) -> "Network":
        r"""Casts the arguments of a family, and makes the readout or gram real.

        The complex exponential has the features :math:`(\cos z, \sin z)`: read by
        :math:`A + iB`, its real part is :math:`A \cos z - B \sin z` and its imaginary part
        :math:`B \cos z + A \sin z`.
        """
        bias = weight.new_zeros(weight.shape[-2:-1]) if bias is None else bias
        matrix = readout if gram is None else gram
        assert matrix is not None
        if isinstance(activation, Cis):
            real = matrix.real if matrix.is_complex() else matrix
            imag = matrix.imag if matrix.is_complex() else torch.zeros_like(matrix)
            matrix = torch.cat([torch.cat([real, -imag], -1), torch.cat([imag, real], -1)], -2)
        form: Form = Readout(matrix) if gram is None else Gram(matrix)
        return cls(activation, base, weight, bias, form).to(dtype)

    def to(self, dtype: torch.dtype) -> "Network":
        """The same network in another dtype."""
        activation, base, weight, bias, form = self
        if weight.dtype == dtype:
            return self
        base = base.map(lambda x: x.to(dtype))
        return Network(activation, base, weight.to(dtype), bias.to(dtype), form.to(dtype))

    def take(self, member: Tensor) -> "Network":
        """Some members of a flat batch; what they all share has no batch dimension, and stays."""
        return Network(
            self.activation,
            self.base.members(member),
            self.weight if self.weight.dim() == 2 else self.weight[member],
            self.bias if self.bias.dim() == 1 else self.bias[member],
            self.form if self.form.matrix.dim() == 2 else type(self.form)(self.form.matrix[member]),
        )

    def real(self) -> "Network":
        """The same network without the complex exponential, as cosines of twice the number."""
        if not isinstance(self.activation, Cis):
            return self
        weight = torch.cat([self.weight, self.weight], dim=-2)
        bias = torch.cat([self.bias, self.bias - math.pi / 2], dim=-1)
        return Network(Cos(), self.base, weight, bias, self.form)

    def kernel(self) -> Kernel:
        """The kernel of the neurons."""
        return kernel(self.activation, self.base, self.weight)

    def log_normalizer(self) -> Tensor:
        r"""The logarithm of :math:`\int \|V \sigma(W t(x) + b)\|^2 \mu(dx)`, in float64."""
        network = self._narrow() or self.to(torch.float64)
        return network.kernel().log_normalizer(network.form, network.bias)

    def _narrow(self) -> "Network | None":
        # The network on the law of its statistic, where kernels take tensors of any dtype. Half
        # precision has too few digits for that, and torch.autocast would take it.
        if self.weight.dtype not in (torch.float32, torch.float64):
            return None
        if torch.is_autocast_enabled(self.weight.device.type):
            return None
        base = self.base
        while isinstance(base, Pushforward):
            base = base.latent(self.weight)
        return self._replace(base=base) if is_narrow(self.activation, base) else None

    def log_density(self, x: Tensor) -> Tensor:
        r"""The logarithm of :math:`\mu(x) \|V \sigma(W t(x) + b)\|^2` for events in the support."""
        return self.base.log_density(x) + self.log_square(x)

    def log_square(self, x: Tensor) -> Tensor:
        r"""The logarithm of :math:`\|V \sigma(W t(x) + b)\|^2` for events in the support."""
        statistic, weight, bias = self.base.statistic(x), self.weight, self.bias
        if self.activation.wide:
            statistic, weight, bias = statistic.double(), weight.double(), bias.double()
        return self.form.log_square(self.activation.features(affine(statistic, weight, bias)))

    def log_ratio(self, x: Tensor) -> Tensor | None:
        r"""The logarithm of :math:`\|V \sigma(W t(x) + b)\|^2 / Z` for events in the support.

        It is None where square and normaliser are better computed one after the other.
        """
        network = self._narrow()
        if network is None:
            return None
        return network.kernel().log_ratio(self.form, self.bias, self.base.statistic(x))
