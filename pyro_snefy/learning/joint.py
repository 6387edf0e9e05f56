r"""Learnable squared neural families, without a context."""

__all__ = ["JointSNEFY", "snefy"]

import torch
from torch import Tensor, nn
from torch.distributions import transform_to

from ..activations import Activation, Cis, Cos, Exp
from ..bases import Base, FourierBase, LaplaceBase
from ..constraints import is_real
from ..distributions.snefy import SNEFY
from ..kernels.registry import check_closed_form, closed_form
from .initialization import (
    centred_members,
    complete_rows,
    fit_base,
    random_rows,
    spread_neurons,
    subsample,
)
from .parameters import BaseModule, ConstrainedModule, as_base

# The root mean square of the random part of the first outputs, next to a constant output of 1. It
# breaks the symmetry between neurons, and leaves the density close to the base.
_NOISE = 0.2


class JointSNEFY(ConstrainedModule):
    r"""A module that owns the parameters of a squared neural family.

    .. math:: p(x) = \frac{\mu(x)}{Z} \left\| V \sigma(W t(x) + b) \right\|^2

    Calling the module returns the family (Tsuchida, Ong and Sejdinovic, arXiv:2305.13552). The
    parameters are ``weight``, ``bias`` (if the kernel has a closed form with a bias), ``readout``,
    ``readout_imag`` (with :class:`~pyro_snefy.activations.Cis`) and the tensors of ``base``.
    Constrained parameters are stored unconstrained: the weights of exponential families as
    ``raw_weight``, the scale of a Gaussian base as ``base.raw_scale``. In a
    :class:`pyro.nn.PyroModule` each of them may have a prior, under its name without ``raw_``.

    Arguments:
        base: The base measure :math:`\mu`.
        hidden_dim: The number :math:`n` of neurons.
        readout_dim: The number :math:`m` of rows of the readout.
        activation: The activation :math:`\sigma`.
        learn_base: Whether the tensors of the base are learnt.

    Example:
        >>> from pyro_snefy.bases import Gaussian
        >>> model = JointSNEFY(Gaussian(torch.zeros(2), torch.ones(2)), 8, 1, Cos(), True)
        >>> [name for name, _ in model.named_parameters()]
        ['weight', 'bias', 'readout', 'base.loc', 'base.raw_scale']
    """

    def __init__(
        self,
        base: Base,
        hidden_dim: int,
        readout_dim: int,
        activation: Activation,
        learn_base: bool,
    ) -> None:
        super().__init__()
        for name, size in (("hidden_dim", hidden_dim), ("readout_dim", readout_dim)):
            if not (isinstance(size, int) and size >= 1):
                raise ValueError(f"JointSNEFY: expected an integer {name} >= 1, got {size!r}.")
        check_closed_form(activation, base, bias=False)
        self.activation, self.learn_base = activation, learn_base
        self.base = BaseModule(base, learn_base)
        like = next((value for _, value in base.tensors()), torch.empty(()))
        weight = like.new_empty(hidden_dim, base.num_statistics)
        if is_real(base.weight_constraint(activation)):
            self.weight = nn.Parameter(weight)
        else:
            self.raw_weight = nn.Parameter(weight)
            self._constraints["weight"] = None  # see `constraint`: it changes with the base
        has_bias = closed_form(activation, base, bias=True)
        self.bias = nn.Parameter(like.new_empty(hidden_dim)) if has_bias else None
        self.readout = nn.Parameter(like.new_empty(readout_dim, hidden_dim))
        if isinstance(activation, Cis):
            # Two real parameters, because Module.double() does not convert a complex one.
            self.readout_imag = nn.Parameter(like.new_empty(readout_dim, hidden_dim))
        self.reset_parameters()

    def constraint(self, name: str) -> object:
        return self.base().weight_constraint(self.activation)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws new weights, biases and readouts. The base stays as it is."""
        base = self.base()
        weight = torch.randn_like(self._raw_weight)
        if "weight" in self._constraints:
            assert isinstance(self.activation, Exp)
            weight = transform_to(self.constraint("weight"))(weight)
            self._set_members(base, 2 * self.activation.scale * weight)
            return
        statistic = torch.randn(256, base.num_statistics, dtype=weight.dtype, device=weight.device)
        law = base.latent(weight)
        if isinstance(law, FourierBase):
            covariance = law.covariance(weight)
            scale = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
            statistic = law.mean(weight) + scale * statistic
            statistic = statistic.reshape(-1, base.num_statistics)
        self._set_neurons(statistic)

    @torch.no_grad()
    def initialize(self, x: Tensor) -> "JointSNEFY":
        r"""Takes first values of the parameters from a sample of the data.

        If the base is learnt, it is fitted to the data by moments, and a mixture by expectation
        maximisation. The neurons then vary on the scale of the data, and the readout makes the
        density close to the density of the base. With an exponential family, each squared neuron
        becomes a member of the family instead, centred at an event.

        Arguments:
            x: Events, with shape :math:`(N, \text{event})`. Rows with NaN are dropped if enough
                complete rows remain; else the gaps are filled by values of other rows.
        """
        base = self.base()
        x = x.to(self._raw_weight)
        if x.shape[1:] != base.event_shape or not len(x):
            event = ", ".join(map(str, ("N", *base.event_shape)))
            raise ValueError(
                f"JointSNEFY: expected x with shape ({event}) and N >= 1, got {tuple(x.shape)}."
            )
        x = complete_rows(x)
        if not len(x):
            raise ValueError(
                "JointSNEFY: expected x with values of every coordinate, got one with NaN alone."
            )
        if self.learn_base:
            self.base.set(fit_base(base, x))
            base = self.base()
        x = subsample(x)
        members = None
        if isinstance(self.activation, Exp):
            members = centred_members(base, random_rows(x, len(self._raw_weight)), x)
        if members is not None:
            self._set_members(base, members)
        elif "weight" in self._constraints:
            self.reset_parameters()
        else:
            self._set_neurons(base.statistic(x))
        return self

    @property
    def _raw_weight(self) -> Tensor:
        return self.raw_weight if "weight" in self._constraints else self.weight

    def _set_neurons(self, statistic: Tensor) -> None:
        m, n = self.readout.shape
        weight, bias = spread_neurons(self.activation, statistic, n)
        if self.bias is None:
            # Without biases, pair each weight with its negative, so that rectifiers cover both
            # half-spaces.
            weight[n // 2 : n // 2 * 2] = -weight[: n // 2]
            neurons = self.activation(statistic @ weight.mT)
        else:
            # Neuron 0 is the constant σ(1), and dominates the readout: the density starts out close
            # to the base.
            weight[0], bias[0] = 0.0, 1.0
            self.bias.copy_(bias)
            neurons = self.activation(statistic @ weight.mT + bias)
        self.assign("weight", weight)
        sizes = neurons.abs().square().mean(0).sqrt().clamp(min=1e-3)
        readout = torch.randn_like(self.readout) * (_NOISE / (m * n) ** 0.5)
        if self.bias is not None:
            readout[0, 0] = 1.0
        self._set_readout(readout / sizes)

    def _set_members(self, base: Base, eta: Tensor) -> None:
        # σ(w_i·t + b_i)² = exp(η_i·t - A(η_i)): each squared neuron is a member of the exponential
        # family. Row k of the readout starts with the neurons k, k + m, k + 2m, ...
        assert isinstance(base, LaplaceBase)
        assert isinstance(self.activation, Exp)
        assert self.bias is not None
        double = 2 * self.activation.scale
        self.assign("weight", eta / double)
        self.bias.copy_(-base.log_partition(eta) / double)
        m, n = self.readout.shape
        own = torch.arange(n, device=eta.device) % m
        own = own == torch.arange(m, device=eta.device).unsqueeze(-1)
        self._set_readout(own + torch.randn_like(self.readout) * (_NOISE / n**0.5))

    def _set_readout(self, readout: Tensor) -> None:
        self.readout.copy_(readout)
        if isinstance(self.activation, Cis):
            self.readout_imag.normal_(std=_NOISE / readout.shape[-1] ** 0.5)

    def forward(self) -> SNEFY:
        """The family, built from the present values of the parameters."""
        readout: Tensor = self.readout
        if isinstance(self.activation, Cis):
            readout = torch.complex(readout, self.readout_imag)
        return SNEFY(self.weight, self.bias, readout, activation=self.activation, base=self.base())

    def extra_repr(self) -> str:
        return f"{self.base()}, activation={self.activation}"


def snefy(
    base_or_dim: Base | int,
    hidden_dim: int = 50,
    readout_dim: int = 1,
    activation: Activation = Cos(),
    learn_base: bool = True,
) -> JointSNEFY:
    r"""Creates a learnable squared neural family.

    .. math:: p(x) = \frac{\mu(x)}{Z} \left\| V \sigma(W t(x) + b) \right\|^2

    The family is due to `Tsuchida, Ong and Sejdinovic (2023) <https://arxiv.org/abs/2305.13552>`_,
    arXiv:2305.13552.

    Arguments:
        base_or_dim: The base measure :math:`\mu`, or the dimension :math:`d` of a standard normal
            base.
        hidden_dim: The number :math:`n` of neurons.
        readout_dim: The number :math:`m` of rows of the readout. With one row, the density is
            zero wherever the output of the network crosses zero.
        activation: The activation :math:`\sigma`.
        learn_base: Whether the tensors of the base are learnt, by :meth:`JointSNEFY.initialize`
            and by gradients, under their constraints. Tensors that define the support are never
            learnt.

    Example:
        >>> from pyro_snefy import fit, snefy
        >>> x = torch.randn(200, 2) * 3 + 1
        >>> model = snefy(2, hidden_dim=8).initialize(x)
        >>> history = fit(model, x, max_epochs=2, progress=False)
        >>> model().log_prob(x).shape
        torch.Size([200])
    """
    base = as_base(base_or_dim, "snefy")
    return JointSNEFY(base, hidden_dim, readout_dim, activation, learn_base)
