r"""Squared neural families that own their parameters."""

__all__ = ["JointSNEFY", "snefy"]

import torch
from torch import Tensor, nn
from torch.distributions import transform_to

from ..activations import Activation, Cis, Cos, Exp
from ..bases import Base, FourierBase, Gaussian, LaplaceBase
from ..constraints import is_real
from ..distributions.snefy import SNEFY
from ..kernels.registry import check_closed_form, closed_form
from .initialization import centred_members, complete_rows, fit_base, random_rows, spread_neurons
from .parameters import BaseModule, ConstrainedModule

_ROWS = 10_000  # are enough to see the range of the neurons
_NOISE = 0.2  # of the readout: enough to tell neurons apart, and little beside the base


class JointSNEFY(ConstrainedModule):
    r"""A module that owns the parameters of a squared neural family, and returns it when called.

    .. math:: p(x) = \frac{\mu(x)}{Z} \left\| V \sigma(W t(x) + b) \right\|^2

    Its parameters are ``weight``, ``bias`` (where there is a closed form with one), ``readout``,
    ``readout_imag`` with :class:`~pyro_snefy.activations.Cis`, and those of ``base``. Whatever is
    constrained is learnt without constraints: the weights of exponential families as
    ``raw_weight``, the scale of a Gaussian base as ``base.raw_scale``. All of them may be given
    priors in a :class:`pyro.nn.PyroModule`, by the names without ``raw_``.

    Arguments:
        base: The base measure.
        hidden_dim: The number :math:`n` of neurons.
        readout_dim: The number :math:`m` of rows of the readout.
        activation: The activation.
        learn_base: Whether the tensors of the base are learnt.

    Example:
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
            self._constraints["weight"] = None  # it changes with the base
        has_bias = closed_form(activation, base, bias=True)
        self.bias = nn.Parameter(like.new_empty(hidden_dim)) if has_bias else None
        self.readout = nn.Parameter(like.new_empty(readout_dim, hidden_dim))
        if isinstance(activation, Cis):
            # A complex parameter would stay behind when the module changes its dtype.
            self.readout_imag = nn.Parameter(like.new_empty(readout_dim, hidden_dim))
        self.reset_parameters()

    def constraint(self, name: str) -> object:
        return self.base().weight_constraint(self.activation)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws new weights, biases and readouts, for the base as it is."""
        base = self.base()
        weight = torch.randn_like(self._raw_weight)
        if "weight" in self._constraints:
            assert isinstance(self.activation, Exp)
            weight = transform_to(self.constraint("weight"))(weight)
            self._set_members(base, 2 * self.activation.scale * weight)
            return
        statistic = torch.randn(256, base.num_statistics, dtype=weight.dtype, device=weight.device)
        if isinstance(base, FourierBase):
            covariance = base.covariance(weight)
            scale = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
            statistic = base.mean(weight) + scale * statistic
            statistic = statistic.reshape(-1, base.num_statistics)
        self._set_neurons(statistic)

    @torch.no_grad()
    def initialize(self, x: Tensor) -> "JointSNEFY":
        r"""Takes first values from a sample of the data.

        The base, if it is learnt, gets the moments of the data: a mixture by expectation and
        maximisation. Neurons vary on the scale of the data, and the readout makes the density
        close to that of the base. Members of exponential families are put where the data are.

        Arguments:
            x: Events, with shape :math:`(N, \text{event})`. Rows with NaN are left out where there
                are others enough.
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
        x = random_rows(x, min(len(x), _ROWS))
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
            # Neurons that are zero on one side have others on the other.
            weight[n // 2 : n // 2 * 2] = -weight[: n // 2]
            neurons = self.activation(statistic @ weight.mT)
        else:
            # One neuron is constant, and the readout takes little else: the density is the base's.
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
        # Squared neurons are members of the family, and each row of the readout takes its share.
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
        """The family, made of the parameters as they are now."""
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

    Arguments:
        base_or_dim: The base measure, or the dimension :math:`d` of a standard normal one.
        hidden_dim: The number :math:`n` of neurons.
        readout_dim: The number :math:`m` of rows of the readout. With one, densities have zeros.
        activation: The activation :math:`\sigma`.
        learn_base: Whether the tensors of the base are learnt, under their constraints, as
            :meth:`JointSNEFY.initialize` and gradients say. Tensors that say where the support
            is stay as they are. If false, the base is a constant.

    Example:
        >>> from pyro_snefy import fit, snefy
        >>> x = torch.randn(200, 2) * 3 + 1
        >>> model = snefy(2, hidden_dim=8).initialize(x)
        >>> history = fit(model, x, max_epochs=2, progress=False)
        >>> model().log_prob(x).shape
        torch.Size([200])
    """
    base: Base
    if isinstance(base_or_dim, Base):
        base = base_or_dim
    elif isinstance(base_or_dim, int) and base_or_dim >= 1:
        base = Gaussian(torch.zeros(base_or_dim), torch.ones(base_or_dim))
    else:
        raise ValueError(
            f"snefy: expected base_or_dim to be a Base or a positive integer, got {base_or_dim!r}."
        )
    return JointSNEFY(base, hidden_dim, readout_dim, activation, learn_base)
