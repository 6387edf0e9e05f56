r"""Learnable squared neural families, without a context."""

__all__ = ["JointSNEFY", "snefy"]

from collections.abc import Callable
from typing import Any

import torch
from pyro.nn import PyroModule
from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn

from ..activations import Activation, Cis, Cos, Exp
from ..bases import Base, FourierBase, Gaussian, GaussianMixture, SmoothBoxMixture
from ..distributions.snefy import SNEFY
from ..kernels.registry import closed_form
from ..operations.readout import best_readout, judged_readout
from .boxes import prefer_boxes
from .initialization import (
    centred_members,
    checked_events,
    complete_rows,
    fit_base,
    spread_neurons,
)
from .mixtures import choose_base
from .parameters import (
    BaseModule,
    FamilyModule,
    FramedModule,
    as_base,
    check_family,
    check_sizes,
)
from .rows import Rows, random_order
from .settings import FitDefaults
from .statistics import random_rows
from .units import location_scale, moved, to_data_units

# The root mean square of the random part of the first outputs, next to a constant output of 1. It
# breaks the symmetry between neurons, and leaves the density close to the base.
_NOISE = 0.2
_ROWS = 16_000  # rows at most to learn first values from
_JUDGES = 0.2  # the share of rows that first values are compared on
_FEWEST = 20  # rows that may judge
_SOLVED = 50_000  # rows at most for the convex solve at the end of a fit


class JointSNEFY(FamilyModule):
    r"""A module that owns the parameters of a squared neural family.

    .. math:: p(x) = \frac{\mu(x)}{Z} \left\| V \sigma(W t(x) + b) \right\|^2

    Calling the module returns the family (Tsuchida, Ong and Sejdinovic, arXiv:2305.13552). The
    parameters are ``weight``, ``bias`` (if the kernel has a closed form with a bias), ``readout``,
    ``readout_imag`` (with :class:`~pyro_snefy.activations.Cis`) and the tensors of ``base``.
    Constrained parameters are stored unconstrained: the weights of exponential families as
    ``raw_weight``, the scale of a Gaussian base as ``base.raw_scale``. In a
    :class:`pyro.nn.PyroModule` each of them may have a prior, under its name without ``raw_``.

    After :meth:`initialize`, parameters are those of :math:`u = (x - l) / s`: a fit does not depend
    on the units of the data, and a prior is a prior in standardised coordinates. The buffers
    ``loc`` and ``scale`` hold :math:`l` and :math:`s`; before, they are None, and :math:`u = x`.
    A mixture of normal laws that :meth:`initialize` finds is learnt in units of the widths of its
    components: ``base.raw_loc`` is in these units, ``base.loc`` in standardised ones. The edges of
    boxes are learnt in units of the widths that they are smeared over. The family
    that the module returns is in the units of the data, its base and weights included. Normal laws
    and their mixtures, boxes, intervals and :class:`~pyro_snefy.bases.NormalFamily` have a location
    and a scale, :class:`~pyro_snefy.bases.GammaFamily` has a scale, and other bases have neither.

    Arguments:
        base: The base measure :math:`\mu`.
        hidden_dim: The number :math:`n` of neurons.
        readout_dim: The number :math:`m` of rows of the readout.
        activation: The activation :math:`\sigma`.
        learn_base: Whether the tensors of the base are learnt.
        finds_base: Whether :meth:`initialize` may replace a normal base by a mixture of
            normal laws or of boxes.

    Example:
        >>> from pyro_snefy.bases import Gaussian
        >>> model = JointSNEFY(Gaussian(torch.zeros(2), torch.ones(2)), 8, 1, Cos(), True)
        >>> [name for name, _ in model.named_parameters()]
        ['weight', 'bias', 'readout', 'base.loc', 'base.raw_scale']
    """

    # The convex solve at the end does for the readout what averages would.
    fit_defaults = FitDefaults(
        lr=2e-2,
        batches=20,
        batch_sizes=(256, 1024),
        steps=1200,
        epochs=(60, 400),
        patience=0.0,
        averaged=1,
    )
    bias: nn.Parameter | None
    loc: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        base: Base,
        hidden_dim: int,
        readout_dim: int,
        activation: Activation,
        learn_base: bool,
        finds_base: bool = False,
    ) -> None:
        super().__init__()
        check_sizes("JointSNEFY", hidden_dim=hidden_dim, readout_dim=readout_dim)
        check_family("JointSNEFY", activation, base, bias=False)
        self.activation, self.learn_base, self.finds_base = activation, learn_base, finds_base
        self.base = BaseModule(base, learn_base)
        like = next((value for _, value in base.tensors()), torch.empty(()))
        self._add_weight(like.new_empty(hidden_dim, base.num_statistics))
        has_bias = closed_form(activation, base, bias=True)
        self.bias = nn.Parameter(like.new_empty(hidden_dim)) if has_bias else None
        self.readout = nn.Parameter(like.new_empty(readout_dim, hidden_dim))
        if isinstance(activation, Cis):
            # Two real parameters, because Module.double() does not convert a complex one.
            self.readout_imag = nn.Parameter(like.new_empty(readout_dim, hidden_dim))
        self._set_units(None, None)
        self.register_load_state_dict_pre_hook(_take_state)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws new weights, biases and readouts, for :math:`u = x`. The base stays as it is."""
        base = self._data_base()
        if self.loc is not None:
            self.base.set(base)
            self._set_units(None, None)
        if "weight" in self._constraints:
            self._set_members(self._random_members())
            return
        weight = self._raw_weight
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
        maximisation. If it is left to the module, mixtures of several sizes, with diagonal and with
        full covariances, are compared on a fifth of the rows. With waves and exponentials, a
        :class:`~pyro_snefy.bases.SmoothBoxMixture` takes their place if that fifth is more likely
        by two standard errors. The neurons then vary on the scale of
        the data, and the readout is the most likely one until that fifth becomes less likely, see
        :func:`~pyro_snefy.fit_readout`. With an exponential family, each squared neuron becomes a
        member of the family instead, centred at an event. The location and the scale of the events
        become the coordinates in which parameters are learnt.

        Arguments:
            x: Events, with shape :math:`(N, \text{event})`. Rows with NaN are dropped if enough
                complete rows remain; else the gaps are filled by values of other rows.
        """
        base = self._data_base()
        x = checked_events("JointSNEFY", base, x, self._raw_weight)
        # Rows to judge by, among them the rows that a fit holds out, and rows to learn from.
        order = random_order(len(x), x.device)
        parts = order.tensor_split([int(_JUDGES * len(x))])
        judges, learners = (complete_rows(x[part[:_ROWS]]) for part in parts)
        x = complete_rows(x)
        units = location_scale(base, x, self.learn_base)
        if units is not None and not base.batch_shape and self.bias is not None:
            self._set_units(*units)
            loc, scale = units
            base = moved(base, -loc / scale, 1 / scale) if self.learn_base else base
        if self.learn_base and self.finds_base and _is_free(self.base):
            normal = fit_base(_standard_normal(x), self._standardized(x))
            assert isinstance(normal, Gaussian)
            found = self._found_base(
                normal, self._standardized(learners), self._standardized(judges)
            )
            if self._has_base_like(found):
                self.base.set(found)
            else:
                self._replace_base(FramedModule(found))
        elif self.learn_base:
            self.base.set(fit_base(base, self._standardized(x)))
        base, u = self.base(), self._standardized(learners)
        members = None
        if isinstance(self.activation, Exp):
            members = centred_members(base, random_rows(u, len(self._raw_weight)), u)
        if members is not None:
            self._set_members(members)
        elif "weight" in self._constraints:
            self._set_members(self._random_members())
        else:
            self._set_neurons(base.statistic(u))
            if len(judges) >= _FEWEST:
                self.improve_readout(learners, None, judges)
        return self

    def _found_base(
        self, normal: Gaussian, x: Tensor, held_out: Tensor
    ) -> Gaussian | GaussianMixture | SmoothBoxMixture:
        # The normal law, a mixture of normal laws or of boxes.
        found = choose_base(normal, x, held_out)
        if not closed_form(self.activation, _one_box(normal), bias=True):
            return found
        return prefer_boxes(found, x, held_out)

    def _standardized(self, x: Tensor) -> Tensor:
        return x if self.loc is None or self.scale is None else (x - self.loc) / self.scale

    def _replace_base(self, module: BaseModule) -> None:
        # A base of another type or size takes the place of the present one.
        if isinstance(self.base, PyroModule):
            to_pyro_module_(module)
        self.base = module

    def _has_base_like(self, base: Base) -> bool:
        shapes = [[value.shape for _, value in one.tensors()] for one in (base, self.base())]
        return type(base) is type(self.base()) and shapes[0] == shapes[1]

    def _set_units(self, loc: Tensor | None, scale: Tensor | None) -> None:
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)

    def _data_base(self) -> Base:
        # The base in the units of the data. A base that is not learnt is in these units anyway.
        base: Base = self.base()
        if self.loc is None or self.scale is None or not self.learn_base:
            return base
        return moved(base, self.loc, self.scale)

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

    def _set_members(self, eta: Tensor) -> None:
        # Row k of the readout starts with the neurons k, k + m, k + 2m, ...
        self._set_neuron_members(eta)
        m, n = self.readout.shape
        own = torch.arange(n, device=eta.device) % m
        own = own == torch.arange(m, device=eta.device).unsqueeze(-1)
        self._set_readout(own + torch.randn_like(self.readout) * (_NOISE / n**0.5))

    def _set_readout(self, readout: Tensor) -> None:
        self.readout.copy_(readout)
        if isinstance(self.activation, Cis):
            self.readout_imag.normal_(std=_NOISE / readout.shape[-1] ** 0.5)

    @torch.no_grad()
    def solve_readout(
        self, x: Tensor, weights: Tensor | None, tolerance: float, ridge: float
    ) -> float:
        r"""The most likely readout for events, by convex optimisation; returns its certified gap.

        Arguments:
            x: Events without NaN, with shape :math:`(N, \text{event})`.
            weights: The weight of each event, with shape :math:`(N,)`, or None for equal weights.
            tolerance: The gap to reach, in nats per event.
            ridge: The number of the penalty.
        """
        found = best_readout(self()._network, x, weights, len(self.readout), tolerance, ridge)
        self._write_readout(found.readout)
        return float(found.gap)

    @torch.no_grad()
    def improve_readout(self, x: Tensor, weights: Tensor | None, judges: Tensor) -> None:
        r"""A more likely readout for events, if other events are more likely with it, too.

        Arguments:
            x: Events without NaN, with shape :math:`(N, \text{event})`.
            weights: The weight of each event, with shape :math:`(N,)`, or None for equal weights.
            judges: The other events.
        """
        readout = judged_readout(self()._network, x, weights, judges)
        if readout is not None:
            self._write_readout(readout)

    def _finish_fit(self, rows: Rows | None, judges: Rows, score: Callable[[], float]) -> None:
        r"""The most likely readout for the neurons that a fit has found.

        Arguments:
            rows: The rows that were learnt from, None if they are not in memory.
            judges: The validation rows.
            score: The present validation value, lower is better.
        """
        if isinstance(self.activation, Exp) or not self.readout.requires_grad:
            return
        if rows is None or rows.noise is not None:  # the solve is for events without noise
            return
        rows, judges = rows.complete().take(slice(_SOLVED)), judges.complete()
        if len(rows) and len(judges):
            self.improve_readout(rows.x, rows.weights, judges.x)

    def _write_readout(self, readout: Tensor) -> None:
        if readout.is_complex():
            self.readout_imag.copy_(readout.imag)
            readout = readout.real
        self.readout.copy_(readout)

    def forward(self) -> SNEFY:
        """The family, built from the present values of the parameters."""
        readout: Tensor = self.readout
        if isinstance(self.activation, Cis):
            readout = torch.complex(readout, self.readout_imag)
        base = self._data_base()
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if bias is not None and self.loc is not None and self.scale is not None:
            base, weight, bias = to_data_units(base, weight, bias, self.loc, self.scale)
        return SNEFY(weight, bias, readout, activation=self.activation, base=base)

    def extra_repr(self) -> str:
        m, n = self.readout.shape
        return f"{self.base()}, hidden_dim={n}, readout_dim={m}, activation={self.activation}"


def _standard_normal(x: Tensor) -> Gaussian:
    loc = torch.zeros_like(x[0])
    return Gaussian(loc, torch.ones_like(loc), event_dim=loc.dim(), validate_args=False)


def _has_mixtures(base: Base, activation: Activation) -> bool:
    # Whether mixtures of normal laws on the same space have a closed form.
    if not isinstance(activation, Activation):
        return False
    loc = torch.zeros(1, *base.event_shape)
    mixture = GaussianMixture(
        torch.zeros(1), loc, torch.ones_like(loc), event_dim=base.event_dim, validate_args=False
    )
    return closed_form(activation, mixture, bias=True)


def _one_box(normal: Gaussian) -> SmoothBoxMixture:
    # For questions about the type: the normal law as a mixture of boxes.
    loc = normal.loc.unsqueeze(0)
    return SmoothBoxMixture(
        loc.new_zeros(1), loc, loc, torch.ones_like(loc), event_dim=normal.event_dim
    )


def _is_free(base: nn.Module) -> bool:
    # Whether no tensor of the base has a prior.
    return not getattr(base, "_pyro_samples", None)


# Names in a state that tell the sizes of a base.
_SHAPES = ("logits", "loc", "frame_loc", "frame_low")


def _take_state(module: JointSNEFY, state: dict[str, Any], prefix: str, *_: Any) -> None:
    # The buffers and the base that a state has, before its values are copied into them.
    like = next(module.parameters(), torch.empty(()))
    base = _base_of_state(module.base().event_dim, state, f"{prefix}base.", like)
    if module.finds_base and base is not None:
        framed = f"{prefix}base.frame_scale" in state
        # The values of a base of the right size may be the values of the state: leave them alone.
        is_framed = isinstance(module.base, FramedModule)
        if not module._has_base_like(base) or is_framed != framed:
            module._replace_base(FramedModule(base) if framed else BaseModule(base, True))
    units = [state.get(f"{prefix}{name}") for name in ("loc", "scale")]
    module._set_units(*(None if x is None else like.new_empty(x.shape) for x in units))


def _base_of_state(
    event_dim: int, state: dict[str, Any], prefix: str, like: Tensor
) -> Gaussian | GaussianMixture | SmoothBoxMixture | None:
    # A base of the kind and of the sizes that a state has, or None if it has no such base.
    found = {name: state[f"{prefix}{name}"].shape for name in _SHAPES if f"{prefix}{name}" in state}
    place = next((found[name] for name in _SHAPES[1:] if name in found), None)
    if place is None:
        return None
    loc, one = like.new_zeros(place), like.new_ones(place)
    logits = like.new_zeros(found["logits"]) if "logits" in found else None
    if "frame_low" in found:
        assert logits is not None
        return SmoothBoxMixture(logits, loc, loc, one, event_dim=event_dim)
    full = f"{prefix}raw_scale_tril" in state
    scale: dict[str, Any] = {"scale_tril": one.diag_embed()} if full else {"scale": one}
    if logits is None:
        return Gaussian(loc, **scale, event_dim=event_dim)
    return GaussianMixture(logits, loc, **scale, event_dim=event_dim)


def snefy(
    base_or_dim: Base | int | tuple[()],
    hidden_dim: int = 50,
    readout_dim: int = 4,
    activation: Activation = Cos(),
    learn_base: bool = True,
) -> JointSNEFY:
    r"""Creates a learnable squared neural family.

    .. math:: p(x) = \frac{\mu(x)}{Z} \left\| V \sigma(W t(x) + b) \right\|^2

    The family is due to `Tsuchida, Ong and Sejdinovic (2023) <https://arxiv.org/abs/2305.13552>`_,
    arXiv:2305.13552.

    Arguments:
        base_or_dim: The base measure :math:`\mu`, or the dimension :math:`d` of vectors, or ``()``
            for real numbers. Without a base, it is a standard normal law, which
            :meth:`~pyro_snefy.learning.JointSNEFY.initialize` fits to data; it may find a mixture
            of up to 96 normal laws instead, with diagonal or full covariances, or, for data with
            sharp edges, a :class:`~pyro_snefy.bases.SmoothBoxMixture`.
        hidden_dim: The number :math:`n` of neurons.
        readout_dim: The number :math:`m` of rows of the readout. With one row, the density is
            zero wherever the output of the network crosses zero.
        activation: The activation :math:`\sigma`.
        learn_base: Whether the tensors of the base are learnt, under their constraints: by
            :meth:`~pyro_snefy.learning.JointSNEFY.initialize` and by gradients. Tensors that define
            the support are never learnt.

    Example:
        >>> from pyro_snefy import fit, snefy
        >>> x = torch.randn(200, 2) * 3 + 1
        >>> model = snefy(2, hidden_dim=8).initialize(x)
        >>> history = fit(model, x, max_epochs=2, progress=False)
        >>> model().log_prob(x).shape
        torch.Size([200])
    """
    base = as_base(base_or_dim, "snefy")
    finds_base = learn_base and base is not base_or_dim and _has_mixtures(base, activation)
    return JointSNEFY(base, hidden_dim, readout_dim, activation, learn_base, finds_base)
