r"""Mixtures of bases."""

__all__ = ["BatchedMixture", "GaussianMixture", "Mixture", "MixtureBase"]

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from ..activations import Activation
from ..constraints import intersection, union
from ..numerics.linalg import affine, broadcast_shapes, safe_logsumexp
from ..numerics.rejection import choose
from .base import Base, Partial, TensorField, TensorLike, as_parameters, as_tensors, check_bases
from .engines import FourierBase, LaplaceBase, Pairs
from .gaussian import LOG_ROOT, Gaussian

Evaluation = Callable[[Any, Tensor], tuple[Tensor | None, ...]]
Draw = Callable[[Any, Tensor], Tensor]


class MixtureBase(FourierBase, LaplaceBase):
    r"""A weighted sum :math:`\mu = \sum_k \pi_k \mu_k` of bases with one statistic.

    .. math:: \varphi(\omega) = \sum_k \pi_k e^{i \omega \cdot (c_k - c)} \varphi_k(\omega), \quad
        A(\eta) = \log \sum_k \pi_k e^{A_k(\eta)}

    A subclass must supply :meth:`log_weights`, ``_evaluate`` and ``_scatter``.
    """

    def log_weights(self) -> Tensor:
        r"""The logarithms :math:`\log \pi_k`, with shape :math:`(*, K)`."""
        raise NotImplementedError

    def _evaluate(self, function: Evaluation, argument: Tensor, rank: int) -> tuple[Tensor, ...]:
        r"""Evaluates ``function(base, argument)`` on all components; the argument is (*, E, D).

        Each result, with None for zeros, gets the components as the dimension before its last
        ``rank`` ones, which are not batch dimensions.
        """
        raise NotImplementedError

    def _scatter(self, component: Tensor, draw: Draw) -> Tensor:
        r"""Draws an event for each row, from the component of the row, by ``draw(base, rows)``.

        The mixture has no batch dimension, or one of length :math:`N`, and so have its components.
        """
        raise NotImplementedError

    def sample_member(self, eta: Tensor) -> Tensor:
        rows = eta.unsqueeze(-2)
        (values,) = self._evaluate(lambda base, x: (base.log_partition(x),), rows, rank=1)
        component = choose(self.log_weights() + values.squeeze(-1))
        return self._scatter(component, lambda base, rows: base.sample_member(eta[rows]))

    def sample_square(self, weight: Tensor) -> Tensor:
        # In component k, v = w·(t - c_k) + w·(c_k - c): its own v and a constant shift.
        like = weight.unsqueeze(-2)
        (within,) = self._evaluate(lambda base, x: (base.covariance(x),), like, rank=2)
        _, offsets, shares = self._centres(like)
        shift = (offsets * like).sum(-1)  # (N, K)
        spread = (within @ like.mT.unsqueeze(-3)).squeeze(-1)  # (N, K, D)
        second = shift.square() + (spread * like).sum(-1)
        component = choose(shares.log() + second.log())
        shift = shift.gather(-1, component.unsqueeze(-1)).squeeze(-1)

        def draw(base: Any, rows: Tensor) -> Tensor:
            own = shift[rows]
            return base.sample_quadratic(weight[rows], own.square(), 2 * own, torch.ones_like(own))

        return self._scatter(component, draw)

    def _masses(self, like: Tensor) -> Tensor:
        (mass,) = self._evaluate(lambda base, x: (base.mass(x),), like, rank=0)
        return self.log_weights().exp() * mass

    def _centres(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # The mean c, (*, D), the offsets c_k - c, (*, K, D), and the shares of mass, (*, K).
        (means,) = self._evaluate(lambda base, x: (base.mean(x),), like, rank=1)
        masses = self._masses(like)
        shares = masses / masses.sum(-1, keepdim=True)
        mean = (shares.unsqueeze(-1) * means).sum(-2)
        return mean, means - mean.unsqueeze(-2), shares

    def mass(self, like: Tensor) -> Tensor:
        return self._masses(like).sum(-1)

    def mean(self, like: Tensor) -> Tensor:
        return self._centres(like)[0]

    def covariance(self, like: Tensor) -> Tensor:
        (within,) = self._evaluate(lambda base, x: (base.covariance(x),), like, rank=2)
        _, offsets, shares = self._centres(like)
        between = offsets.unsqueeze(-1) * offsets.unsqueeze(-2)
        return (shares[..., None, None] * (within + between)).sum(-3)

    def characteristic(self, omega: Tensor) -> tuple[Tensor, Tensor | None]:
        real, imag = self._evaluate(lambda base, x: base.characteristic(x), omega, rank=1)
        phase, weights = self._phase(omega), self.log_weights().exp().unsqueeze(-1)
        return _rotated_sum(weights * real, weights * imag, phase.cos(), phase.sin(), dim=-2)

    deficit_cancels = False  # unless a component's does

    def deficit(self, omega: Tensor) -> tuple[Tensor, Tensor | None]:
        real, imag = self._deficits(omega)
        return real.sum(-2), imag.sum(-2)

    def _deficits(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        # The terms of the components, (*, K, E).
        real, imag = self._evaluate(lambda base, x: base.deficit(x), omega, rank=1)
        half, masses = self._phase(omega) / 2, self._masses(omega).unsqueeze(-1)
        weights = self.log_weights().exp().unsqueeze(-1)
        return _turned(masses, weights * real, weights * imag, half.cos(), half.sin())

    def characteristic_moment(self, omega: Tensor) -> tuple[Tensor | None, Tensor]:
        # Σ π e^{iθ} (slope + (c_k - c) φ). Offsets have the mean zero, so that deficits serve.
        slopes = self._evaluate(lambda base, x: base.characteristic_moment(x), omega, rank=2)
        offsets = self._centres(omega)[1].unsqueeze(-2)  # (*, K, 1, D)
        phase = self._phase(omega).unsqueeze(-1)  # (*, K, E, 1)
        weights = self.log_weights().exp()[..., None, None]
        real, imag = (weights * slope for slope in slopes)
        real, imag = _rotated_sum(real, imag, phase.cos(), phase.sin(), dim=-3)
        lost = [(offsets * part.unsqueeze(-1)).sum(-3) for part in self._deficits(omega)]
        return real - lost[0], imag - lost[1]

    def pair_deficits(self, weight: Tensor) -> Pairs:
        half, masses = self._phase(weight) / 2, self._masses(weight)[..., None, None]
        weights = self.log_weights().exp()[..., None, None]
        # Phases of pairs by the addition theorems: n sines and cosines instead of n^2.
        cos, sin = half.cos(), half.sin()
        cc, ss, sc = _outer(cos, cos), _outer(sin, sin), _outer(sin, cos)
        cs = sc.mT
        parts = self._evaluate(lambda base, x: sum(base.pair_deficits(x), ()), weight, rank=2)
        real_minus, imag_minus, real_plus, imag_plus = (weights * part for part in parts)
        minus = _turned(masses, real_minus, imag_minus, cc + ss, sc - cs)
        plus = _turned(masses, real_plus, imag_plus, cc - ss, sc + cs)
        return (minus[0].sum(-3), minus[1].sum(-3)), (plus[0].sum(-3), plus[1].sum(-3))

    def _phase(self, omega: Tensor) -> Tensor:
        # θ_k = ω . (c_k - c), (*, K, E).
        return (self._centres(omega)[1].unsqueeze(-2) * omega.unsqueeze(-3)).sum(-1)

    def log_partition(self, eta: Tensor) -> Tensor:
        (values,) = self._evaluate(lambda base, x: (base.log_partition(x),), eta, rank=1)
        return (self.log_weights().unsqueeze(-1) + values).logsumexp(-2)

    def member_moments(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        (values,) = self._evaluate(lambda base, x: (base.log_partition(x),), eta, rank=1)
        (means,) = self._evaluate(lambda base, x: base.member_moments(x)[:1], eta, rank=2)
        (spreads,) = self._evaluate(lambda base, x: base.member_moments(x)[1:], eta, rank=3)
        shares = (self.log_weights().unsqueeze(-1) + values).softmax(-2).unsqueeze(-1)
        mean = (shares * means).sum(-3)  # (*, E, d), a sum over (*, K, E, d)
        offsets = means - mean.unsqueeze(-3)
        spreads = spreads + offsets.unsqueeze(-1) * offsets.unsqueeze(-2)
        return mean, (shares.unsqueeze(-1) * spreads).sum(-4)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return left.unsqueeze(-1) * right.unsqueeze(-2)


def _turned(
    mass: Tensor, real: Tensor, imag: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    # m - e^{iθ} (m - δ) = δ + (m - δ) (1 - e^{iθ}), with cos and sin of θ / 2.
    rest, up, across = mass - real, 2 * sin * sin, 2 * sin * cos
    return real + rest * up - imag * across, imag - rest * across - imag * up


def _rotated_sum(
    real: Tensor, imag: Tensor, cos: Tensor, sin: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    # Σ (real + i imag) (cos + i sin).
    return (real * cos - imag * sin).sum(dim), (real * sin + imag * cos).sum(dim)


class BatchedMixture(MixtureBase):
    r"""A mixture of the bases along the last batch dimension of :attr:`components`."""

    @property
    def components(self) -> Base:
        """The components, as one base with the components in its last batch dimension."""
        raise NotImplementedError

    def _evaluate(self, function: Evaluation, argument: Tensor, rank: int) -> tuple[Tensor, ...]:
        values = function(self.components, argument.unsqueeze(-3))
        filler = next(value for value in values if value is not None)
        return tuple(torch.zeros_like(filler) if value is None else value for value in values)

    def _scatter(self, component: Tensor, draw: Draw) -> Tensor:
        rows = torch.arange(len(component), device=component.device)

        def pick(x: Tensor, rank: int) -> Tensor:
            index = component.clamp(max=x.shape[-1 - rank] - 1)  # length 1: all components share x
            return x[index] if x.dim() == rank + 1 else x[rows, index]

        x = draw(self.components.map_batches(pick), rows)
        return x.reshape((len(rows), *self.event_shape))


class GaussianMixture(BatchedMixture):
    r"""A mixture of normal laws, :math:`t(x) = x`.

    .. math:: \mu(x) = \sum_{k=1}^K \pi_k \, \mathcal{N}(x; m_k, C_k), \quad
        C_k = \mathrm{diag}(s_k^2) \text{ or } L_k L_k^\top

    Arguments:
        logits: The unnormalised :math:`\log \pi`, with shape :math:`(*, K)`.
        loc: The means, with shape :math:`(*, K, d)`. With shape :math:`(*, 1, d)`, all components
            have one mean: a law with heavy tails, whose kernels cost what one normal law costs.
        scale: The standard deviations, with shape :math:`(*, K, d)`.
        scale_tril: Instead of ``scale``, lower Cholesky factors :math:`L`, with shape
            :math:`(*, K, d, d)`.
        event_dim: With 0, events are scalars, and ``loc`` and ``scale`` have the shape
            :math:`(*, K)`.
        validate_args: Whether the tensors are checked.

    Example:
        >>> GaussianMixture(torch.zeros(8), torch.randn(8, 2), torch.ones(8, 2)).event_shape
        torch.Size([2])
        >>> heavy_tailed = GaussianMixture([0.0, -2.0], [0.0], [1.0, 5.0], event_dim=0)
        >>> heavy_tailed.event_shape
        torch.Size([])
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "logits": TensorField(constraints.real, rank=1),
        "loc": TensorField(constraints.real, rank=1, per_event=True),
        "scale": TensorField(constraints.positive, rank=1, per_event=True),
        "scale_tril": TensorField(constraints.lower_cholesky, rank=3),
    }

    def __init__(
        self,
        logits: TensorLike,
        loc: TensorLike,
        scale: TensorLike | None = None,
        *,
        scale_tril: TensorLike | None = None,
        event_dim: int = 1,
        validate_args: bool | None = None,
    ) -> None:
        if (scale is None) == (scale_tril is None):
            raise ValueError("GaussianMixture: expected exactly one of scale and scale_tril.")
        if event_dim not in (0, 1) or (event_dim == 0 and scale is None):
            raise ValueError(
                "GaussianMixture: expected event_dim 1, or 0 with scale, got "
                f"{event_dim} with {'scale' if scale_tril is None else 'scale_tril'}."
            )
        self.scale: Tensor | None = None
        self.scale_tril: Tensor | None = None
        letters = "K" + "d" * event_dim
        given: dict[str, tuple[TensorLike, str]] = {"logits": (logits, "K"), "loc": (loc, letters)}
        if scale is not None:
            shape, (self.logits, self.loc, self.scale) = as_parameters(
                self, **given, scale=(scale, letters)
            )
        elif scale_tril is not None:
            shape, (self.logits, self.loc, self.scale_tril) = as_parameters(
                self, **given, scale_tril=(scale_tril, "Kdd")
            )
            found = tuple(self.scale_tril.shape)
            if len(found) < 3 or found[-2:] != (shape[-2], shape[-2]):
                raise ValueError(
                    "GaussianMixture: expected scale_tril with shape (*, K, d, d) to match loc "
                    f"with shape {tuple(self.loc.shape)}, got {found}."
                )
            shape = shape[:-1]
        batch, event = shape[: len(shape) - 1 - event_dim], shape[len(shape) - event_dim :]
        super().__init__(batch, event, event[0] if event_dim else 1, validate_args)

    @property
    def support(self) -> Any:
        return constraints.real_vector if self.event_dim else constraints.real

    @property
    def components(self) -> Gaussian:
        # The mixture has checked its tensors: a constructor would take twice as long.
        new, rank = object.__new__(Gaussian), self.event_dim
        new.loc, new.scale, new.scale_tril = self.loc, self.scale, self.scale_tril
        spread, last = (new.scale, rank) if new.scale_tril is None else (new.scale_tril, 2)
        assert spread is not None
        shapes = (x.shape[: x.dim() - k] for x, k in ((new.loc, rank), (spread, last)))
        batch = broadcast_shapes(*shapes)
        Base.__init__(new, batch, self.event_shape, self.num_statistics, validate_args=False)
        return new

    @property
    def is_concentric(self) -> bool:
        """Whether all components have one mean, by the shape of ``loc``, and axes in common."""
        return self.scale is not None and self.loc.shape[-1 - self.event_dim] == 1

    gaussians = components

    def log_weights(self) -> Tensor:
        return self.logits.log_softmax(-1)

    def mass(self, like: Tensor) -> Tensor:
        return like.new_ones(())

    def mean(self, like: Tensor) -> Tensor:
        if not self.is_concentric:
            return super().mean(like)
        return self._vectors()[0].squeeze(-2)

    def characteristic(self, omega: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.is_concentric:
            return super().characteristic(omega)
        real, _ = self.gaussians.characteristic(omega.unsqueeze(-3))
        return self.average(real, rank=1), None

    def characteristic_moment(self, omega: Tensor) -> tuple[Tensor | None, Tensor]:
        if not self.is_concentric:
            return super().characteristic_moment(omega)
        _, imag = self.gaussians.characteristic_moment(omega.unsqueeze(-3))
        return None, self.average(imag, rank=2)

    def deficit(self, omega: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.is_concentric:
            return super().deficit(omega)
        real, _ = self.gaussians.deficit(omega.unsqueeze(-3))
        return self.average(real, rank=1), None

    def pair_deficits(self, weight: Tensor) -> Pairs:
        if not self.is_concentric:
            return super().pair_deficits(weight)
        (minus, _), (plus, _) = self.gaussians.pair_deficits(weight.unsqueeze(-3))
        return (self.average(minus, rank=2), None), (self.average(plus, rank=2), None)

    def average(self, values: Tensor, rank: int) -> Tensor:
        r"""The sum :math:`\sum_k \pi_k f_k` of values of the components.

        Arguments:
            values: The values, with components in the dimension before the last ``rank`` ones.
            rank: The number of dimensions of one value.
        """
        weights = self.log_weights().exp()
        return (weights[(...,) + (None,) * rank] * values).sum(-1 - rank)

    def marginal(self, dims: Sequence[int]) -> "GaussianMixture":
        if self.scale is None:
            return _mixed(self.logits, self.gaussians.marginal(dims))
        loc, scale = self._vectors()
        return GaussianMixture(self.logits, loc[..., dims], scale[..., dims], validate_args=False)

    def _vectors(self) -> tuple[Tensor, Tensor]:
        # Locations (*, K, D) and scales of all coordinates. A shared location stays one.
        assert self.scale is not None
        if not self.event_dim:
            return self.loc.unsqueeze(-1), self.scale.unsqueeze(-1)
        loc, scale = (
            x.expand((*x.shape[:-1], self.num_statistics)) for x in (self.loc, self.scale)
        )
        return loc, scale

    def conditional(self, dims: Sequence[int], values: Tensor) -> "GaussianMixture":
        values = values.unsqueeze(-2)
        given = self.gaussians.marginal(dims).log_density(values)
        logits = self.log_weights() + given
        if self.scale is None:
            return _mixed(logits, self.gaussians.conditional(dims, values))
        others = self.marginal(self.others(dims))
        return GaussianMixture(logits, others.loc, others.scale, validate_args=False)

    def partial(self, x: Tensor, observed: Tensor) -> Partial | None:
        if not self.event_dim:
            return super().partial(x, observed)
        inner = self.gaussians.partial(x.unsqueeze(-2), observed.unsqueeze(-2))
        assert inner is not None and isinstance(inner.base, Gaussian)
        logits = self.log_weights() + inner.log_density  # (K, R, components)
        gaussians = inner.base
        if self.scale_tril is not None:
            # What is observed moves the means of the rest, in each component by its own line.
            loc = torch.where(observed.unsqueeze(-2), 0.0, inner.statistic)
            tril = gaussians.scale_tril
            gaussians = Gaussian(loc, scale_tril=tril, validate_args=False)
        base = _mixed(logits, gaussians)
        return Partial(base, torch.where(observed, x, 0.0), None, logits.logsumexp(-1))

    def regression(self, dims: Sequence[int], like: Tensor) -> Tensor | None:
        raise NotImplementedError("The weights of a conditional mixture depend on the values.")

    def log_density(self, x: Tensor) -> Tensor:
        return self.log_density_and_statistic(x)[0]

    def log_density_and_statistic(self, x: Tensor) -> tuple[Tensor, Tensor]:
        statistic = self.statistic(x)
        if not self.is_concentric:
            log_density = self.gaussians.log_density(x.unsqueeze(-1 - self.event_dim))
            return safe_logsumexp(self.log_weights() + log_density), statistic
        # The exponents of all components are one matrix product of the squares.
        loc, scale = self._vectors()
        offset = statistic - loc.squeeze(-2)
        log_root = scale.log() + LOG_ROOT
        log_root = log_root.sum(-1) if self.event_dim else log_root.squeeze(-1)
        constant = self.log_weights() - log_root
        precision = scale.pow(-2) / -2
        return safe_logsumexp(affine(offset * offset, precision, constant)), statistic


def _mixed(logits: Tensor, gaussians: Gaussian) -> GaussianMixture:
    # A mixture of the Gaussians in the last batch dimension.
    scale, scale_tril = gaussians.scale, gaussians.scale_tril
    return GaussianMixture(logits, gaussians.loc, scale, scale_tril=scale_tril, validate_args=False)


class Mixture(MixtureBase):
    r"""A mixture :math:`\mu = \sum_k \pi_k \mu_k` of bases on one space, atoms included.

    Densities are with respect to Lebesgue measure off the atoms, and counting measure on them. At a
    point, the components of the lowest dimension count: atoms, then surfaces, then densities.

    Arguments:
        logits: The unnormalised :math:`\log \pi`, with shape :math:`(*, K)`.
        bases: The :math:`K` bases, with one event shape and one statistic. None of them is a
            :class:`~pyro_snefy.bases.Pushforward`, whose statistic is its own.
        validate_args: Whether the tensors are checked.

    Example:
        >>> from pyro_snefy.bases import PointMass
        >>> normal = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
        >>> zero_inflated = Mixture(torch.zeros(2), [normal, PointMass(torch.tensor(0.0))])
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "logits": TensorField(constraints.real, rank=1)
    }
    base_fields = ("bases",)

    def __init__(
        self, logits: TensorLike, bases: Sequence[Base], *, validate_args: bool | None = None
    ) -> None:
        (logits,) = as_tensors(logits)
        batch = check_bases(self, bases, logits.shape[:-1])
        if logits.dim() < 1 or logits.shape[-1] != len(bases):
            raise ValueError(
                f"Mixture: expected logits with shape (*, {len(bases)}), one for each base, "
                f"got {tuple(logits.shape)}."
            )
        kinds = {(base.event_shape, base.statistic_signature) for base in bases}
        kinds |= {(base.event_shape, base.latent(logits).statistic_signature) for base in bases}
        if len(kinds) > 1:
            raise ValueError(
                "Mixture: expected bases of one event shape and one statistic, none of them a "
                f"Pushforward or a product with one, got {list(bases)}."
            )
        self.logits, self.bases = logits, tuple(bases)
        super().__init__(batch, bases[0].event_shape, bases[0].num_statistics, validate_args)

    @property
    def support(self) -> Any:
        return union([base.support for base in self.bases])

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return all(base.is_discrete for base in self.bases)

    def weight_constraint(self, activation: Activation) -> Any:
        return intersection([base.weight_constraint(activation) for base in self.bases])

    @property
    def statistic_signature(self) -> tuple[Any, ...]:
        return self.bases[0].statistic_signature

    def statistic(self, x: Tensor) -> Tensor:
        return self.bases[0].statistic(x)

    def _scatter(self, component: Tensor, draw: Draw) -> Tensor:
        out = self.logits.new_empty((len(component), *self.event_shape))
        for k, base in enumerate(self.bases):
            (rows,) = (component == k).nonzero(as_tuple=True)
            if len(rows):
                out[rows] = draw(base.members(rows), rows)
        return out

    def log_weights(self) -> Tensor:
        return self.logits.log_softmax(-1)

    def _evaluate(self, function: Evaluation, argument: Tensor, rank: int) -> tuple[Tensor, ...]:
        rows = [function(base, argument) for base in self.bases]
        # Components without tensors lack the batch dimensions of the others.
        batch = broadcast_shapes(self.batch_shape, argument.shape[:-2])
        filler = next(value for row in rows for value in row if value is not None)
        trailing = filler.shape[filler.dim() - rank :]
        zeros = filler.new_zeros(())
        full = [[(zeros if x is None else x).expand(batch + trailing) for x in row] for row in rows]
        return tuple(torch.stack(column, dim=len(batch)) for column in zip(*full, strict=True))

    def example(self, like: Tensor) -> Tensor:
        return self.bases[0].example(like)

    def log_density(self, x: Tensor) -> Tensor:
        return self._density(x)[0]

    def codimension(self, x: Tensor) -> Tensor:
        return self._density(x)[1]

    def _density(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # The log-density and the codimension: a component gives no mass to an atom of another.
        values, lacking = [], []
        for base, log_weight in zip(self.bases, self.log_weights().unbind(-1), strict=True):
            inside = base.support.check(x)
            own = torch.where(inside[(...,) + (None,) * self.event_dim], x, base.example(x))
            value = torch.where(inside, base.log_density(own) + log_weight, -torch.inf)
            lacking.append(torch.where(value > -torch.inf, base.codimension(own), -1))
            values.append(value)
        log_density = torch.stack(torch.broadcast_tensors(*values), dim=-1)
        codimension = torch.stack(torch.broadcast_tensors(*lacking), dim=-1)
        most = codimension.amax(-1, keepdim=True)
        log_density = torch.where(codimension == most, log_density, -torch.inf)
        return safe_logsumexp(log_density), most.squeeze(-1)

    def __repr__(self) -> str:
        return f"Mixture({list(self.bases)})"
