r"""Conditional squared neural families: a network emits the parameters for each context."""

__all__ = ["ConditionalSNEFY", "conditional_snefy"]

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple
from functools import partial

import torch
from pyro.distributions import ConditionalDistribution
from torch import Tensor, nn

from ..activations import Activation, Bump, Cis, Cos, Sin
from ..bases import (
    Base,
    Bernoulli,
    Binomial,
    GaussianMixture,
    Geometric,
    NegativeBinomial,
    Poisson,
    Standardized,
)
from ..constraints import REALS
from ..distributions.snefy import SNEFY
from ..kernels import closed_form
from .contexts import ContextModule
from .defaults import OBLIQUE, AsinhNet, along, bump_basis, heavy_tailed, start_near_base_
from .exposure import check_exposure, check_exposures, exposed, fit_exposed
from .heads import BaseHead, Bias, Head, LocationScale, Parameters, ReadoutHead
from .initialization import (
    checked_events,
    complete_rows,
    fit_base,
    fit_tails,
)
from .parameters import BaseModule, FamilyModule, as_base, check_family, check_sizes
from .rows import Rows
from .settings import FitDefaults
from .statistics import correlation_factor, robust_location_scale, spread
from .stretches import Stretches, best_stretches
from .units import location_scale, to_data_units

# Dropout of the default network, times the number of rows. Laws of vectors have more outputs.
_DROPPED_SCALARS, _DROPPED_VECTORS = 20.0, 450.0
# Factors of the width of bumps that a recalibration tries: steps of 10 %, up to 2.5 times.
_FACTORS = tuple(math.exp(0.1 * k) for k in range(-9, 10) if k)


class ConditionalSNEFY(ContextModule, FamilyModule):
    r"""A squared neural family whose parameters depend on a context.

    .. math:: p(x | c) = \frac{\mu(u)}{Z(c) \prod_i s_i(c)}
        \left\| V(c) \sigma(W t(u) + b(c)) \right\|^2, \qquad u = \frac{x - l(c)}{s(c)}

    The module is registered as a :class:`pyro.distributions.ConditionalDistribution`. It
    standardises events and contexts by locations and scales that :meth:`initialize` takes from
    data. Where the base is neither on the reals nor on real vectors, :math:`u = x`, or
    :math:`u = (x - l) / s` with constants where :class:`~pyro_snefy.learning.JointSNEFY` has them.
    Weights under a constraint are stored unconstrained, as ``raw_weight``.

    Arguments:
        base: The base measure :math:`\mu`.
        context_dim: The length of a context.
        net: A module from contexts to the outputs that the heads take, in the order of the heads.
        hidden_dim: The number :math:`n` of neurons.
        readout_dim: The number :math:`m` of rows of the readout.
        activation: The activation :math:`\sigma`.
        heads: Which parameters the network changes.
        learn_neurons: Whether weights and biases are learnt. If not, the neurons are a constant and
            a row of bumps that stay as they are: a basis, which the readout combines.
        learn_base: Whether the tensors of the base are learnt, or the names of those to learn.
        exposure: The number of the column of contexts that holds exposures, or None, as in
            :func:`~pyro_snefy.conditional_snefy`.

    Example:
        >>> from pyro_snefy.activations import Cos
        >>> from pyro_snefy.bases import Gaussian
        >>> base = Gaussian(torch.zeros(2), torch.ones(2))
        >>> model = ConditionalSNEFY(base, 3, nn.Linear(3, 8), 8, 1, Cos(), [Bias()])
        >>> model(torch.zeros(3)).event_shape
        torch.Size([2])
    """

    fit_defaults = FitDefaults(batches=16, batch_sizes=(64, 128))
    loc: Tensor
    scale: Tensor

    def __init__(
        self,
        base: Base,
        context_dim: int,
        net: nn.Module,
        hidden_dim: int,
        readout_dim: int,
        activation: Activation,
        heads: Sequence[Head],
        learn_neurons: bool = True,
        learn_base: bool | Collection[str] = False,
        exposure: int | None = None,
    ) -> None:
        super().__init__()
        _check(base, context_dim, hidden_dim, readout_dim, activation, heads)
        if not learn_neurons and any(isinstance(head, Bias) for head in heads):
            raise ValueError(
                "ConditionalSNEFY: expected no Bias among the heads of neurons that stay as they "
                f"are, got {heads!r}."
            )
        check_exposure(base, context_dim, exposure)
        self.exposure = exposure
        if not isinstance(net, nn.Module):
            raise TypeError(f"ConditionalSNEFY: expected net to be a torch.nn.Module, got {net!r}.")
        self.activation, self.heads = activation, tuple(heads)
        self.base = BaseModule(base, learn_base)
        concentric = isinstance(base, GaussianMixture) and base.loc.shape[-1 - base.event_dim] == 1
        self._learns_tails = concentric and bool(learn_base)
        oblique = isinstance(base, GaussianMixture) and base.scale_tril is not None
        self._is_oblique = self._learns_tails and oblique and not learn_neurons
        self.learn_neurons = learn_neurons
        self.stretches: Stretches | None = None
        if learn_neurons:
            self._add_weight(torch.empty(hidden_dim, base.num_statistics))
            self.bias = nn.Parameter(torch.empty(hidden_dim))
        else:
            self.register_buffer("weight", torch.empty(hidden_dim, base.num_statistics))
            self.register_buffer("bias", torch.empty(hidden_dim))
        self.readout = nn.Parameter(torch.empty(readout_dim, hidden_dim))
        self.net = net
        self.register_buffer("loc", torch.zeros(base.event_shape))
        self.register_buffer("scale", torch.ones(base.event_shape))
        self._add_context(context_dim)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws new weights, biases and readouts. The network stays as it is."""
        if not self.learn_neurons:
            n, d = self.weight.shape
            weight, bias = bump_basis(self.weight, along(n) if d == 1 else OBLIQUE)
            self.weight.copy_(_solve(_factor(self.base()), weight) if self._is_oblique else weight)
            self.bias.copy_(bias)
            start_near_base_(self.readout)
            return
        if "weight" in self._constraints:
            self._set_neuron_members(self._random_members())
        else:
            nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight.shape[-1]))
            nn.init.normal_(self.bias)
        nn.init.normal_(self.readout, std=1 / math.sqrt(self.readout.shape[-1]))

    @torch.no_grad()
    def initialize(self, x: Tensor, context: Tensor) -> "ConditionalSNEFY":
        r"""Takes the locations and scales of events and contexts from a sample of the data.

        Contexts are always standardised. Events are standardised where the base is on the reals
        or on real vectors, and as by :meth:`JointSNEFY.initialize` elsewhere.

        Arguments:
            x: Events, with shape :math:`(N, \text{event})`. NaN marks what is not observed.
            context: Contexts, with shape :math:`(N, \text{context\_dim})`.
        """
        base = self.base()
        x = checked_events("ConditionalSNEFY", base, x, self.loc)
        context = self._set_context_units(context, len(x))
        if base.support in REALS:
            loc, scale = robust_location_scale(x)
            self.loc.copy_(loc)
            self.scale.copy_(scale)
            if self._learns_tails and isinstance(base, GaussianMixture):
                events = (x - loc) / scale
                if self._is_oblique:
                    factor = correlation_factor(events, self._standardized_context(context))
                    base = self._sheared(base, factor)
                self.base.set(fit_tails(base, events))
        else:
            rows = complete_rows(x)
            if (units := location_scale(base, rows, False)) is not None:
                self.loc.copy_(units[0])
                self.scale.copy_(units[1])
            elif any(isinstance(head, BaseHead) for head in self.heads):
                if self.exposure is None:
                    self.base.set(fit_base(base, rows))
                else:
                    exposures = check_exposures(context[:, self.exposure])
                    self.base.set(fit_exposed(base, rows, exposures))
                if base.is_discrete and base.event_dim == 0 and "weight" not in self._constraints:
                    # Waves that are slow where the counts are.
                    nn.init.normal_(self.weight, std=1 / spread(rows).item())
        return self

    def _sheared(self, base: GaussianMixture, factor: Tensor) -> GaussianMixture:
        # Base and neurons of A u in place of u. Correlations of the first component become L L'.
        change = _solve(_factor(base), factor)
        self.weight.copy_(_solve(change, self.weight))
        tril = change @ base.gaussians.factor
        return GaussianMixture(base.logits, base.loc @ change.mT, scale_tril=tril)

    @torch.no_grad()
    def recalibrate(self, score: Callable[[], float], rows: int | None = None) -> None:
        r"""Widens or narrows the densities of a basis of bumps, where a score falls.

        Densities of scalars become a mixture of two stretches about their own centres:

        .. math:: \frac{\alpha}{a} \, p\left(m + \frac{x - m}{a}\right) +
            \frac{1 - \alpha}{b} \, p\left(m + \frac{x - m}{b}\right)

        A network that has seen few rows is too sure of some of them, and one that learnt with
        dropout, and is used without, is not sure enough of others. No single factor mends both:
        errors on new rows have a narrow core and wide flanks. The mixture is a family with more
        bumps and twice the rows of readout.

        On real vectors all bumps get wider or narrower by one factor :math:`f` between 0.4 and 2.5:

        .. math:: e^{-w^2 (a_i \cdot u - c_i)^2 / 2} \to e^{-w^2 (a_i \cdot u - c_i)^2 / (2 f^2)}

        :func:`~pyro_snefy.fit` calls this method at its end, with a score of rows that it did not
        learn from. Neurons that are learnt stay as they are.

        Arguments:
            score: A function of the present module, a mean over rows, lower is better.
            rows: The number of these rows. With few of them, the factors stay close to usual ones.
                None stands for many.

        Example:
            >>> likelihood = conditional_snefy((), context_dim=1)
            >>> x, context = 0.1 * torch.randn(100), torch.zeros(100, 1)
            >>> likelihood.recalibrate(lambda: -likelihood(context).log_prob(x).mean().item())
        """
        if self.learn_neurons:
            return
        if self.loc.dim():
            self._choose_width(score)
        elif len(self.bias) > 3:

            def trial(stretches: Stretches | None) -> float:
                self.stretches = stretches
                return score()

            self.stretches = best_stretches(trial, self.stretches, rows or math.inf)

    def _choose_width(self, score: Callable[[], float]) -> None:
        weight, bias = self.weight.clone(), self.bias.clone()
        best, lowest = 1.0, score()
        for factor in _FACTORS:
            self._set_width(weight, bias, factor)
            if (found := score()) < lowest:
                best, lowest = factor, found
        self._set_width(weight, bias, best)

    def _finish_fit(self, rows: Rows | None, judges: Rows, score: Callable[[], float]) -> None:
        """Calls :meth:`recalibrate`, at the end of a fit."""
        self.recalibrate(score, len(judges))

    def _set_width(self, weight: Tensor, bias: Tensor, factor: float) -> None:
        self.weight.copy_(weight / factor)
        self.bias.copy_(bias / factor)

    def condition(self, context: Tensor) -> SNEFY:
        r"""The distribution of events given contexts.

        Arguments:
            context: The contexts, with shape :math:`(*, \text{context\_dim})`.

        Returns:
            A SNEFY with batch shape :math:`(*)`.
        """
        inputs = self._standardized_context(context)
        if self.exposure is not None:  # the network does not see it
            column = torch.arange(context.shape[-1], device=context.device) == self.exposure
            inputs = torch.where(column, 0.0, inputs)
        outputs = self.net(inputs)
        if not isinstance(outputs, Tensor):
            raise TypeError(
                "ConditionalSNEFY: expected net to return one Tensor, with the outputs of all "
                f"heads in its last dimension, got {type(outputs).__name__}."
            )
        outputs = outputs.to(inputs.dtype)  # torch.autocast makes networks emit half precision
        own = self.base()
        parameters = Parameters(self.loc, self.scale, self.bias, self.readout, own)
        sizes = [head.size(parameters) for head in self.heads]
        if outputs.shape != (*context.shape[:-1], sum(sizes)):
            raise ValueError(
                f"ConditionalSNEFY: expected net to give {sum(sizes)} outputs, {sizes} for the "
                f"heads {self.heads}, got {tuple(outputs.shape)} for {tuple(context.shape)}."
            )
        for head, piece in zip(self.heads, outputs.split_with_sizes(sizes, dim=-1), strict=True):
            parameters = head(parameters, piece)
        base = parameters.base
        if self.exposure is not None:
            base = exposed(base, context[..., self.exposure])
        weight = self.weight if base is own else self._weight_on(base)
        if self.stretches is not None:
            parameters, weight = self.stretches(parameters, weight)
        bias = parameters.bias
        if base.support in REALS:
            base = Standardized(base, parameters.loc, parameters.scale, validate_args=False)
        else:
            base, weight, bias = to_data_units(base, weight, bias, self.loc, self.scale)
        family = SNEFY(weight, bias, parameters.readout, activation=self.activation, base=base)
        shape = context.shape[:-1]
        # Heads may leave every parameter as it is.
        return family if family.batch_shape == shape else family.expand(shape)

    def get_extra_state(self) -> Tensor:
        """What a recalibration has found, for ``state_dict``: no numbers where there was none."""
        found = () if self.stretches is None else astuple(self.stretches)
        return torch.tensor(found, dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Takes what :meth:`get_extra_state` returned."""
        self.stretches = Stretches(*state.tolist()) if len(state) else None

    def extra_repr(self) -> str:
        m, n = self.readout.shape
        sizes = f"hidden_dim={n}, readout_dim={m}"
        text = f"{self.base()}, {sizes}, activation={self.activation}, heads={list(self.heads)}"
        return text if self.stretches is None else f"{text}, stretches={self.stretches}"

    def forward(self, context: Tensor) -> SNEFY:
        """Calls :meth:`condition`."""
        return self.condition(context)

    def log_prob(self, x: Tensor, context: Tensor, batch_size: int = 8192) -> Tensor:
        r"""The log-densities of events given contexts, a few rows at a time.

        A million rows have a million readouts. In batches, and without gradients, memory does not
        grow with the number of rows.

        Arguments:
            x: Events, with shape :math:`(N, \text{event})`.
            context: Contexts, with shape :math:`(N, \text{context\_dim})`.
            batch_size: The number of rows in a batch.

        Example:
            >>> likelihood = conditional_snefy((), context_dim=5)
            >>> with torch.no_grad():
            ...     likelihood.log_prob(torch.zeros(100), torch.zeros(100, 5)).shape
            torch.Size([100])
        """
        check_sizes("ConditionalSNEFY", batch_size=batch_size)
        if len(x) != len(context):
            raise ValueError(
                "ConditionalSNEFY: expected one context for each row of x, got "
                f"{len(context)} and {len(x)}."
            )
        pairs = zip(x.split(batch_size), context.split(batch_size), strict=True)
        return torch.cat([self.condition(given).log_prob(rows) for rows, given in pairs])


ConditionalDistribution.register(ConditionalSNEFY)


def _check(
    base: Base,
    context_dim: int,
    hidden_dim: int,
    readout_dim: int,
    activation: Activation,
    heads: Sequence[Head],
) -> None:
    caller = "ConditionalSNEFY"
    check_sizes(caller, context_dim=context_dim, hidden_dim=hidden_dim, readout_dim=readout_dim)
    check_family(caller, activation, base, bias=True)
    if not (isinstance(heads, Sequence) and all(isinstance(head, Head) for head in heads)):
        raise TypeError(
            f"{caller}: expected heads to be a sequence of heads such as [Bias()], got {heads!r}."
        )
    if len({type(head) for head in heads}) != len(heads):
        raise ValueError(f"{caller}: expected heads of different types, got {heads!r}.")
    if any(isinstance(head, LocationScale) for head in heads) and base.support not in REALS:
        raise ValueError(
            f"{caller}: expected a base on the reals or real vectors for LocationScale, got {base}."
        )


# The X with X L = B, from L and B.
_solve = partial(torch.linalg.solve_triangular, upper=False, left=False)


def _factor(base: Base) -> Tensor:
    # The factor of the correlations of the first component.
    assert isinstance(base, GaussianMixture)
    first = base.gaussians.factor[0]
    return first / first.norm(dim=-1, keepdim=True)


# Counts whose rate the network moves by default.
_COUNTS = (Bernoulli, Binomial, Geometric, NegativeBinomial, Poisson)


def conditional_snefy(
    base_or_dim: Base | int | tuple[()],
    context_dim: int,
    hidden_dim: int | None = None,
    readout_dim: int | None = None,
    activation: Activation | None = None,
    hidden_dims: Sequence[int] = (128, 128),
    net: nn.Module | None = None,
    heads: Sequence[Head] | None = None,
    exposure: int | None = None,
) -> ConditionalSNEFY:
    r"""Creates a conditional squared neural family, for use as a likelihood.

    .. math:: p(x | c) = \frac{\mu(u)}{Z(c) \prod_i s_i(c)}
        \left\| V(c) \sigma(W t(u) + b(c)) \right\|^2, \qquad u = \frac{x - l(c)}{s(c)}

    Heads say which parameters depend on the context: :class:`Bias` shifts the waves,
    :class:`ReadoutHead` combines the waves anew, :class:`LocationScale` moves and stretches the
    density as a whole, and :class:`BaseHead` changes the base itself. With the bias alone this is
    the model of `Tsuchida, Ong and Sejdinovic (2023) <https://arxiv.org/abs/2305.13552>`_,
    arXiv:2305.13552.

    The default has heavy tails: its base is a mixture of seven normal laws about zero, each four
    times as wide as the one before, with learnt weights. Its neurons are a basis that stays as it
    is: a constant, and bumps :math:`e^{-w^2 (u - c_i)^2 / 2}` with equally spaced centres. Far from
    the centres the density is the base, so that outliers have no say in the shape. The network
    emits location, scale and readout, and one kernel serves all contexts. For vectors, the bumps
    are along random directions, and :math:`u = L^{-1} ((x - l) / s)`: ``initialize`` takes the
    correlations :math:`L L^\top` from the errors of a linear regression on the contexts.
    :func:`~pyro_snefy.fit` ends with the widths of the densities that its validation rows prefer,
    see :meth:`~pyro_snefy.learning.ConditionalSNEFY.recalibrate`.
    ``python -m tests.perf.regression`` compares it with a mixture density network and a spline
    flow.

    Arguments:
        base_or_dim: The base measure :math:`\mu`. Or the dimension :math:`d` of events in
            :math:`\mathbb{R}^d`, or ``()`` for scalars: the base has heavy tails then if the
            activation is ``Bump``, ``Cos``, ``Sin`` or ``Cis``, and is a standard normal law
            otherwise.
        context_dim: The length of a context.
        hidden_dim: The number :math:`n` of neurons. If None: 18 where they are bumps on a line,
            64 where they are bumps along random directions, and 32 elsewhere.
        readout_dim: The number :math:`m` of rows of the readout. With one row, the density is
            zero wherever the output of the family's network crosses zero. If None: 3 where neurons
            are bumps on a line, and 4 elsewhere.
        activation: The activation :math:`\sigma`. If None: ``Bump`` on normal laws and their
            mixtures where neither ``net`` nor ``heads`` are given, and ``Cos`` elsewhere.
        hidden_dims: The sizes of the hidden layers of the default network, ``()`` for none. This
            network applies asinh to standardised contexts first, so that an outlying context does
            not drive its outputs far away.
        net: A module from standardised contexts to the outputs that the heads take, instead of
            the default network. For the bias alone, it emits ``hidden_dim`` outputs.
        heads: Any of :class:`Bias`, :class:`ReadoutHead`, :class:`LocationScale`,
            :class:`BaseHead` and heads of your own. If None: the bias alone where ``net`` is
            given. Else, on the reals and on real vectors, location, scale and readout, and the
            bias with other activations than ``Bump``. On other supports the bias and the readout,
            and with the counts ``Poisson``, ``Geometric``, ``NegativeBinomial``, ``Binomial`` and
            ``Bernoulli`` the base itself.
        exposure: The number of the column of contexts that holds exposures :math:`e > 0`. The mean
            of a ``Poisson`` or ``NegativeBinomial`` base is multiplied by :math:`e`, and a
            ``Binomial`` base has :math:`e` trials, at most as many as its own total count. The
            network does not see this column.

    Example:
        >>> likelihood = conditional_snefy((), context_dim=5)
        >>> likelihood.condition(torch.randn(7, 5)).batch_shape
        torch.Size([7])
    """
    base = as_base(base_or_dim, "conditional_snefy")
    basis = heads is None and net is None and base.support in REALS
    if activation is None:
        activation = Bump() if basis and closed_form(Bump(), base, bias=True) else Cos()
    # Neurons are bounded: the tails of the base are the tails of the density.
    chosen = not isinstance(base_or_dim, Base) and isinstance(activation, Bump | Cos | Sin | Cis)
    basis = basis and isinstance(activation, Bump)
    base = heavy_tailed(base, correlated=basis) if chosen else base
    if hidden_dim is None:
        hidden_dim = (64 if base.event_dim else 18) if basis else 32
    if readout_dim is None:
        readout_dim = 3 if basis and not base.event_dim else 4
    if basis:
        heads = (LocationScale(), ReadoutHead())
    elif heads is None:
        place = (LocationScale(),) if base.support in REALS else ()
        moves = (BaseHead(),) if isinstance(base, _COUNTS) else ()
        heads = (*place, *moves, Bias(), ReadoutHead()) if net is None else (Bias(),)
    if net is None:
        _check(base, context_dim, hidden_dim, readout_dim, activation, heads)
        sizes = {f"hidden_dims[{k}]": size for k, size in enumerate(hidden_dims)}
        check_sizes("conditional_snefy", **sizes)
        event = torch.empty(base.event_shape)
        bias, readout = torch.empty(hidden_dim), torch.empty(readout_dim, hidden_dim)
        parameters = Parameters(event, event, bias, readout, base)
        outputs = sum(head.size(parameters) for head in heads)
        dropped = _DROPPED_VECTORS if base.event_dim else _DROPPED_SCALARS
        net = AsinhNet([context_dim, *hidden_dims, outputs], dropped)
    return ConditionalSNEFY(
        base,
        context_dim,
        net,
        hidden_dim,
        readout_dim,
        activation,
        heads,
        learn_neurons=not basis,
        learn_base=("logits",) if chosen else False,
        exposure=exposure,
    )
