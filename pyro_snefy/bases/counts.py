r"""Bases on counts and on finite sets."""

__all__ = [
    "Bernoulli",
    "Binomial",
    "Counts",
    "Discrete",
    "Geometric",
    "NegativeBinomial",
    "PointMass",
    "Poisson",
]

import math
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from ..constraints import finite_set
from ..numerics.rejection import choose, poisson, rejection_by_row
from .base import TensorField, TensorLike, as_parameters, as_tensors
from .engines import FourierBase, LaplaceBase


def _polar(log_modulus: Tensor, phase: Tensor) -> tuple[Tensor, Tensor]:
    modulus = log_modulus.exp()
    return modulus * phase.cos(), modulus * phase.sin()


class Counts(FourierBase, LaplaceBase):
    # A logarithmically concave law on 0, 1, 2, … with t(x) = x.
    is_discrete = True
    support = constraints.nonnegative_integer
    deficit_cancels = False

    def _transform(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        # Logarithm of the modulus of φ, with a small relative error, and phase of φ, each (*, E).
        raise NotImplementedError

    def characteristic(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        return _polar(*self._transform(omega))

    def deficit(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        # 1 - e^{l + iθ} = -(e^l - 1) + e^l (2 sin²(θ / 2) - i sin θ).
        log_modulus, phase = self._transform(omega)
        modulus = log_modulus.exp()
        turned = 2 * modulus * (phase / 2).sin().square()
        return turned - log_modulus.expm1(), -modulus * phase.sin()

    def _ratio(self, x: Tensor) -> Tensor:
        # μ(x + 1) / μ(x).
        raise NotImplementedError

    def _mode_of_square(self, low: Tensor, high: Tensor) -> Tensor:
        # The mode of f(x) = (x - c)² μ(x) among the integers from low to high, on one side of c.
        centre = self.mean(low).squeeze(-1)
        for _ in range(64):
            middle = ((low + high) / 2).floor()
            growth = ((middle + 1 - centre) / (middle - centre)).square() * self._ratio(middle)
            rises = (growth > 1) & (middle < high)
            low, high = torch.where(rises, middle + 1, low), torch.where(rises, high, middle)
        return high

    def sample_square(self, weight: Tensor) -> Tensor:
        # On either side of c, f(x) = (x - c)² μ(x) / Var is logarithmically concave, and its sum is
        # at most 1: f(m ± k) ≤ f(m) min(1, e^{1 - k f(m)}) at the mode m (Devroye 1987, A simple
        # generator for discrete log-concave distributions). Rounded reals m ± y are proposed for
        # f(m) min(1, e^{3/2 - y f(m)}), an envelope of mass 5 on either side: 1 in 10 is accepted.
        centre = self.mean(weight).squeeze(-1).expand(len(weight))
        variance = self.covariance(weight)[..., 0, 0]
        start = centre.floor() + 1
        modes = torch.stack(
            [
                self._mode_of_square(torch.zeros_like(centre), centre.ceil() - 1),
                self._mode_of_square(start, start + (4 * variance.sqrt() + 4).ceil()),
            ]
        )

        def log_square(base: "Counts", x: Tensor, centre: Tensor) -> Tensor:
            return 2 * (x - centre).abs().log() + base.log_density(x)

        log_peaks = log_square(self, modes, centre)  # (2, N)
        peaks = log_peaks.exp() / variance

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            above = torch.randint(2, rows.shape, device=rows.device)
            own, mode, log_peak = centre[rows], modes[above, rows], log_peaks[above, rows]
            uniform, far = torch.rand_like(own), torch.rand_like(own) < 0.4
            distance = torch.where(far, 1.5 - uniform.log(), 1.5 * uniform)  # y f(m)
            step = torch.where(torch.rand_like(own) < 0.5, distance, -distance)
            x = (mode + step / peaks[above, rows]).round()
            inside = (x >= 0) & torch.where(above == 1, x > own, x < own)
            x = torch.where(inside, x, mode)
            log_bound = log_peak + (1.5 - distance).clamp(max=0)
            ratio = log_square(self.members(rows), x, own) - log_bound
            return x, inside & (torch.rand_like(own).log() <= ratio)

        return rejection_by_row(propose, weight, rate=0.1)


class Poisson(Counts):
    r"""The Poisson law :math:`\lambda^x e^{-\lambda} / x!`, with :math:`t(x) = x`.

    .. math:: \varphi(\omega) = e^{\lambda (e^{i \omega} - 1 - i \omega)}, \quad
        A(\eta) = \lambda (e^\eta - 1)

    Arguments:
        rate: The rate :math:`\lambda`, with shape :math:`(*)`.
        validate_args: Whether the tensors are checked.

    Example:
        >>> Poisson(torch.tensor(2.0)).log_density(torch.tensor(0.0))
        tensor(-2.)
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {"rate": TensorField(constraints.positive)}

    def __init__(self, rate: TensorLike, *, validate_args: bool | None = None) -> None:
        (self.rate,) = as_tensors(rate)
        super().__init__(self.rate.shape, Size(), 1, validate_args)

    def log_density(self, x: Tensor) -> Tensor:
        return torch.xlogy(x, self.rate) - self.rate - (x + 1).lgamma()

    def mean(self, like: Tensor) -> Tensor:
        return self.rate.unsqueeze(-1)

    def covariance(self, like: Tensor) -> Tensor:
        return self.rate[..., None, None]

    def _transform(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        omega, rate = omega.squeeze(-1), self.rate.unsqueeze(-1)
        return -2 * rate * (omega / 2).sin().square(), rate * (omega.sin() - omega)

    def characteristic_moment(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        real, imag = (part.unsqueeze(-1) for part in self.characteristic(omega))
        rate = self.rate[..., None, None]
        # E[(x - λ) e^{iω(x - λ)}] = λ (e^{iω} - 1) φ(ω).
        a, b = -2 * rate * (omega / 2).sin().square(), rate * omega.sin()
        return a * real - b * imag, a * imag + b * real

    def log_partition(self, eta: Tensor) -> Tensor:
        return self.rate.unsqueeze(-1) * eta.squeeze(-1).expm1()

    def sample_member(self, eta: Tensor) -> Tensor:
        return poisson(self.rate * eta.squeeze(-1).exp())

    def _ratio(self, x: Tensor) -> Tensor:
        return self.rate / (x + 1)


class _Failures(Counts):
    # The number of successes before a number of failures.

    def _odds(self) -> tuple[Tensor, Tensor, Tensor]:
        # The number r of failures, the probability q of success, and 1 - q, each (*, 1).
        raise NotImplementedError

    def _transform(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        count, probs, rest = self._odds()
        omega = omega.squeeze(-1)
        chord = (omega / 2).sin().square()
        # The phase of 1 - q e^{iω} is between ±π / 2: its power has no branch.
        phase = torch.atan2(probs * omega.sin(), rest + 2 * probs * chord)
        # |1 - q e^{iω}|² = (1 - q)² + 4 q sin²(ω / 2).
        log_modulus = -count / 2 * (4 * probs * chord / rest.square()).log1p()
        return log_modulus, count * phase - self.mean(omega) * omega

    def characteristic_moment(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        # E[(x - c) e^{iω(x - c)}] = c (e^{iω} - 1) / (1 - q e^{iω}) φ. The fraction is
        # ((1 + q) (cos ω - 1) + i (1 - q) sin ω) / |1 - q e^{iω}|².
        real, imag = self.characteristic(omega)
        _, probs, rest = self._odds()
        omega = omega.squeeze(-1)
        chord = (omega / 2).sin().square()
        size = self.mean(omega) / (rest.square() + 4 * probs * chord)
        a, b = -2 * (1 + probs) * chord * size, rest * omega.sin() * size
        return (a * real - b * imag).unsqueeze(-1), (a * imag + b * real).unsqueeze(-1)


class Geometric(_Failures):
    r"""The geometric law :math:`p (1 - p)^x` on :math:`0, 1, 2, \ldots`, with :math:`t(x) = x`.

    .. math:: \varphi(\omega) = \frac{p \, e^{-i \omega c}}{1 - (1 - p) e^{i \omega}}, \quad
        c = \frac{1 - p}{p}, \quad A(\eta) = \log \frac{p}{1 - (1 - p) e^\eta}

    With ``Exp(s)``, weights are below :math:`-\log(1 - p) / 2s`.

    Arguments:
        probs: The probability :math:`p` of success, with shape :math:`(*)`, in :math:`(0, 1)`.
        validate_args: Whether the tensors are checked.

    Example:
        >>> Geometric(torch.tensor(0.5)).log_density(torch.tensor(0.0))
        tensor(-0.6931)
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "probs": TensorField(constraints.unit_interval)
    }

    def __init__(self, probs: TensorLike, *, validate_args: bool | None = None) -> None:
        (self.probs,) = as_tensors(probs)
        super().__init__(self.probs.shape, Size(), 1, validate_args)

    def _validate(self) -> None:
        super()._validate()
        if not ((self.probs > 0) & (self.probs < 1)).all():
            raise ValueError(f"Geometric: expected 0 < probs < 1, got {self.probs}.")

    def natural_constraint(self, scale: float) -> Any:
        bound = -torch.log1p(-self.probs)[..., None, None] / (2 * scale)
        return constraints.independent(constraints.less_than(bound), 1)

    def log_density(self, x: Tensor) -> Tensor:
        return self.probs.log() + x * torch.log1p(-self.probs)

    def mean(self, like: Tensor) -> Tensor:
        return ((1 - self.probs) / self.probs).unsqueeze(-1)

    def covariance(self, like: Tensor) -> Tensor:
        return ((1 - self.probs) / self.probs.square())[..., None, None]

    def _odds(self) -> tuple[Tensor, Tensor, Tensor]:
        probs = self.probs.unsqueeze(-1)
        return torch.ones_like(probs), 1 - probs, probs

    def log_partition(self, eta: Tensor) -> Tensor:
        probs = self.probs.unsqueeze(-1)
        exponent = eta.squeeze(-1) + torch.log1p(-probs)
        return probs.log() - (-exponent.expm1()).log()

    def sample_member(self, eta: Tensor) -> Tensor:
        # The integer part of an exponential variable follows a geometric law.
        rate = -torch.log1p(-self.probs) - eta.squeeze(-1)
        return (torch.empty_like(rate).exponential_() / rate).floor()

    def _ratio(self, x: Tensor) -> Tensor:
        return 1 - self.probs


class _Trials(Counts):
    # A law of counts with a number of trials, and a probability of success.
    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "total_count": TensorField(constraints.positive),
        "probs": TensorField(constraints.unit_interval),
    }
    total_count: Tensor
    probs: Tensor

    def _validate(self) -> None:
        super()._validate()
        if not ((self.probs > 0) & (self.probs < 1)).all():
            raise ValueError(f"{type(self).__name__}: expected 0 < probs < 1, got {self.probs}.")

    def _columns(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Number of trials and probability of success, (*, 1), and frequencies, (*, E).
        return self.total_count.unsqueeze(-1), self.probs.unsqueeze(-1), rows.squeeze(-1)


class NegativeBinomial(_Failures, _Trials):
    r"""The number of successes before the :math:`r`-th failure, with :math:`t(x) = x`.

    .. math:: \mu(x) = \frac{\Gamma(r + x)}{\Gamma(r) \, x!} q^x (1 - q)^r, \quad
        \varphi(\omega) = e^{-i \omega c} \left(\frac{1 - q}{1 - q e^{i \omega}}\right)^r, \quad
        A(\eta) = r \log \frac{1 - q}{1 - q e^\eta}

    Here :math:`c = r q / (1 - q)` is the mean. The parameters are the ones of
    :class:`torch.distributions.NegativeBinomial`. With ``Exp(s)``, weights are below
    :math:`-\log(q) / 2s`.

    Arguments:
        total_count: The number :math:`r > 0` of failures, real, with shape :math:`(*)`.
        probs: The probability :math:`q` of success, with shape :math:`(*)`, in :math:`(0, 1)`.
        validate_args: Whether the tensors are checked.

    Example:
        >>> NegativeBinomial(2.0, 0.5).log_density(torch.tensor(0.0))
        tensor(-1.3863)
    """

    def __init__(
        self, total_count: TensorLike, probs: TensorLike, *, validate_args: bool | None = None
    ) -> None:
        batch, (self.total_count, self.probs) = as_parameters(
            self, total_count=(total_count, ""), probs=(probs, "")
        )
        super().__init__(batch, Size(), 1, validate_args)

    def natural_constraint(self, scale: float) -> Any:
        bound = -self.probs.log()[..., None, None] / (2 * scale)
        return constraints.independent(constraints.less_than(bound), 1)

    def log_density(self, x: Tensor) -> Tensor:
        coefficient = (self.total_count + x).lgamma() - self.total_count.lgamma()
        coefficient = coefficient - (x + 1).lgamma()
        return coefficient + x * self.probs.log() + self.total_count * (-self.probs).log1p()

    def mean(self, like: Tensor) -> Tensor:
        return (self.total_count * self.probs / (1 - self.probs)).unsqueeze(-1)

    def covariance(self, like: Tensor) -> Tensor:
        variance = self.total_count * self.probs / (1 - self.probs).square()
        return variance[..., None, None]

    def _odds(self) -> tuple[Tensor, Tensor, Tensor]:
        probs = self.probs.unsqueeze(-1)
        return self.total_count.unsqueeze(-1), probs, 1 - probs

    def log_partition(self, eta: Tensor) -> Tensor:
        count, probs, eta = self._columns(eta)
        return count * ((-probs).log1p() - (-(eta + probs.log()).expm1()).log())

    def sample_member(self, eta: Tensor) -> Tensor:
        # A Poisson law whose rate follows a gamma law.
        log_odds = self.probs.log() + eta.squeeze(-1)
        shape = self.total_count.expand(log_odds.shape)
        rate = torch.distributions.Gamma(shape, 1.0, validate_args=False).sample()
        return poisson(rate * log_odds.exp() / -log_odds.expm1())

    def _ratio(self, x: Tensor) -> Tensor:
        return self.probs * (self.total_count + x) / (x + 1)

    def sample_square(self, weight: Tensor) -> Tensor:
        # For r < 1 the law is not logarithmically concave, as the general sampler needs.
        small = (self.total_count < 1).expand(len(weight))
        x = torch.empty_like(weight[:, 0])
        for draw, chosen in ((NegativeBinomial._few, small), (Counts.sample_square, ~small)):
            (rows,) = chosen.nonzero(as_tuple=True)
            if len(rows):
                x[rows] = draw(self.members(rows), weight[rows])
        return x

    def _few(self, weight: Tensor) -> Tensor:
        # (x - c)² ≤ c² + x + x (x - 1), and the last two tilt the law to 1 and 2 more failures,
        # moved by 1 and 2. A share 1 / (1 + 2 r q) of the proposals is accepted.
        count, odds = self.total_count, self.probs / (1 - self.probs)
        centre = self.mean(weight).squeeze(-1).expand(len(weight))
        parts = [centre.square(), centre, (count * (count + 1) * odds.square()).expand_as(centre)]
        log_parts = torch.stack(parts, dim=-1).log()  # (N, 3)

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            moved, own, c = choose(log_parts[rows]), self.members(rows), centre[rows]
            shape = own.total_count + moved
            rate = torch.distributions.Gamma(shape, 1.0, validate_args=False).sample()
            x = poisson(rate * own.probs / (1 - own.probs)) + moved
            bound = c.square() + x.square()
            return x, torch.rand_like(x) * bound <= (x - c).square()

        return rejection_by_row(propose, weight, rate=0.3)


class Binomial(_Trials):
    r"""The number of successes in :math:`N` trials, with :math:`t(x) = x`.

    .. math:: \mu(x) = \binom{N}{x} p^x (1 - p)^{N - x}, \quad
        \varphi(\omega) = \left(p e^{i \omega (1 - p)} + (1 - p) e^{-i \omega p}\right)^N, \quad
        A(\eta) = N \log(1 - p + p e^\eta)

    The parameters are the ones of :class:`torch.distributions.Binomial`.

    Arguments:
        total_count: The number :math:`N` of trials, with shape :math:`(*)`.
        probs: The probability :math:`p` of success, with shape :math:`(*)`, in :math:`(0, 1)`.
        validate_args: Whether the tensors are checked.

    Example:
        >>> Binomial(4, 0.5).log_density(torch.tensor(2.0)).exp()
        tensor(0.3750)
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        **_Trials.tensor_fields,
        "total_count": TensorField(constraints.positive, fixed=True),
    }

    def __init__(
        self, total_count: TensorLike, probs: TensorLike, *, validate_args: bool | None = None
    ) -> None:
        batch, (self.total_count, self.probs) = as_parameters(
            self, total_count=(total_count, ""), probs=(probs, "")
        )
        super().__init__(batch, Size(), 1, validate_args)

    def _validate(self) -> None:
        super()._validate()
        if not (self.total_count == self.total_count.round()).all():
            raise ValueError(
                f"{type(self).__name__}: expected total_count to be natural numbers, "
                f"got {self.total_count}."
            )

    @property
    def support(self) -> Any:  # type: ignore[override]
        return constraints.integer_interval(0, self.total_count)

    def finite_support(self) -> Tensor | None:
        most = self.total_count.max()
        if not (self.total_count == most).all():
            return None  # the members of a batch have different supports
        return torch.arange(int(most) + 1, dtype=self.probs.dtype, device=self.probs.device)

    def log_density(self, x: Tensor) -> Tensor:
        count, probs = self.total_count, self.probs
        failures = count - x
        coefficient = (count + 1).lgamma() - (x + 1).lgamma() - (failures + 1).lgamma()
        return coefficient + x * probs.log() + failures * (-probs).log1p()

    def mean(self, like: Tensor) -> Tensor:
        return (self.total_count * self.probs).unsqueeze(-1)

    def covariance(self, like: Tensor) -> Tensor:
        return (self.total_count * self.probs * (1 - self.probs))[..., None, None]

    def _trial(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        # Log-modulus and phase of the transform of one trial.
        _, probs, omega = self._columns(omega)
        # |1 - p + p e^{iω}|² = 1 - 4 p (1 - p) sin²(ω / 2).
        chord = (omega / 2).sin().square()
        lost = 4 * probs * (1 - probs) * chord
        near = lost < 0.5
        small, far = torch.where(near, lost, 0.0), torch.where(near, 1.0, 1 - lost)
        phase = torch.atan2(probs * omega.sin(), 1 - 2 * probs * chord) - probs * omega
        return (-small).log1p() / 2 + far.clamp(min=1e-300).log() / 2, phase

    def _transform(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        count = self.total_count.unsqueeze(-1)
        log_modulus, phase = self._trial(omega)
        return count * log_modulus, count * phase

    def characteristic_moment(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        # N p (1 - p) (e^{iω (1 - p)} - e^{-iω p}) times the transform of N - 1 trials, where the
        # difference is 2 i sin(ω / 2) e^{iω (1/2 - p)}.
        log_modulus, phase = self._trial(omega)
        count, probs, omega = self._columns(omega)
        turned = (count - 1) * phase + (0.5 - probs) * omega
        real, imag = _polar((count - 1) * log_modulus, turned)
        size = 2 * count * probs * (1 - probs) * (omega / 2).sin()
        return (-size * imag).unsqueeze(-1), (size * real).unsqueeze(-1)

    def log_partition(self, eta: Tensor) -> Tensor:
        count, probs, eta = self._columns(eta)
        return count * torch.logaddexp((-probs).log1p(), probs.log() + eta)

    def sample_member(self, eta: Tensor) -> Tensor:
        probs = (self.probs.logit() + eta.squeeze(-1)).sigmoid()
        return torch.binomial(self.total_count.expand(probs.shape).contiguous(), probs)

    def _ratio(self, x: Tensor) -> Tensor:
        return (self.total_count - x) / (x + 1) * self.probs / (1 - self.probs)


class Bernoulli(Binomial):
    r"""One trial: 1 with probability :math:`p`, else 0, with :math:`t(x) = x`.

    Arguments:
        probs: The probability :math:`p` of success, with shape :math:`(*)`, in :math:`(0, 1)`.
        validate_args: Whether the tensors are checked.

    Example:
        >>> Bernoulli(0.25).log_density(torch.tensor([0.0, 1.0])).exp()
        tensor([0.7500, 0.2500])
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "probs": TensorField(constraints.unit_interval)
    }
    support = constraints.boolean

    def __init__(self, probs: TensorLike, *, validate_args: bool | None = None) -> None:
        (self.probs,) = as_tensors(probs)
        Counts.__init__(self, self.probs.shape, Size(), 1, validate_args)

    @property
    def total_count(self) -> Tensor:  # type: ignore[override]
        """One."""
        return torch.ones_like(self.probs)


class Discrete(FourierBase, LaplaceBase):
    r"""Masses on a finite set of points, with :math:`t(x) = x`.

    Every activation has a closed form here: a sum over the points.

    Arguments:
        points: The points, with shape :math:`(K,)` for scalar events and :math:`(K, d)` for
            vectors.
        masses: The masses, positive, with shape :math:`(*, K)`; they need not add up to one.
        validate_args: Whether the tensors are checked.

    Example:
        >>> Discrete(torch.arange(3.0), torch.ones(3)).event_shape
        torch.Size([])
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "points": TensorField(constraints.real, rank=1, per_event=True, fixed=True),
        "masses": TensorField(constraints.positive, rank=1),
    }
    is_discrete = True

    def __init__(
        self, points: TensorLike, masses: TensorLike, *, validate_args: bool | None = None
    ) -> None:
        points, masses = as_tensors(points, masses)
        if points.dim() not in (1, 2) or masses.dim() < 1 or len(points) != masses.shape[-1]:
            raise ValueError(
                "Discrete: expected points with shape (K,) or (K, d) and masses with shape "
                f"(*, K), got {tuple(points.shape)} and {tuple(masses.shape)}."
            )
        self.points, self.masses = points, masses
        event = points.shape[1:]
        super().__init__(masses.shape[:-1], event, math.prod(event), validate_args)

    @property
    def support(self) -> Any:
        return finite_set(self.points, self.event_dim)

    @property
    def vectors(self) -> Tensor:
        r"""The points as vectors, with shape :math:`(K, D)`."""
        return self.points if self.event_dim else self.points.unsqueeze(-1)

    def finite_support(self) -> Tensor:
        # Equal points are one event, whose masses are added.
        equal = (self.vectors.unsqueeze(-2) == self.vectors).all(-1)  # (K, K)
        return self.points[~equal.tril(-1).any(-1)]

    def example(self, like: Tensor) -> Tensor:
        return self.points[0]

    def log_density(self, x: Tensor) -> Tensor:
        matches = x.unsqueeze(-1 - self.event_dim) == self.points
        matches = matches.all(-1) if self.event_dim else matches
        # Equal points add their masses.
        return (matches * self.masses).sum(-1).log()

    def mass(self, like: Tensor) -> Tensor:
        return self.masses.sum(-1)

    def mean(self, like: Tensor) -> Tensor:
        return self.masses @ self.vectors / self.masses.sum(-1, keepdim=True)

    def _centred(self, like: Tensor) -> Tensor:
        return self.vectors - self.mean(like).unsqueeze(-2)  # (*, K, D)

    def covariance(self, like: Tensor) -> Tensor:
        centred = self._centred(like)
        shares = self.masses / self.masses.sum(-1, keepdim=True)
        return centred.mT @ (shares.unsqueeze(-1) * centred)

    def characteristic(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        phase = omega @ self._centred(omega).mT  # (*, E, K)
        masses = self.masses.unsqueeze(-2)
        return (masses * phase.cos()).sum(-1), (masses * phase.sin()).sum(-1)

    deficit_cancels = False

    def deficit(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        half = omega @ self._centred(omega).mT / 2
        masses = 2 * self.masses.unsqueeze(-2) * half.sin()
        return (masses * half.sin()).sum(-1), -(masses * half.cos()).sum(-1)

    def characteristic_moment(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        centred = self._centred(omega)
        phase = omega @ centred.mT
        masses = self.masses.unsqueeze(-2)
        # Centred points have the mean zero: 1 - cos serves as well as cos, and is small.
        less = 2 * masses * (phase / 2).sin().square()
        return -less @ centred, (masses * phase.sin()) @ centred

    def log_partition(self, eta: Tensor) -> Tensor:
        return (eta @ self.vectors.mT + self.masses.log().unsqueeze(-2)).logsumexp(-1)

    def sample_member(self, eta: Tensor) -> Tensor:
        return self.points[choose(eta @ self.vectors.mT + self.masses.log())]

    def sample_square(self, weight: Tensor) -> Tensor:
        centred = self._centred(weight)
        linear = (weight.unsqueeze(-2) * centred).sum(-1)  # (N, K)
        return self.points[choose(linear.square().log() + self.masses.log())]


class PointMass(Discrete):
    r"""A unit mass on one point, for use inside a :class:`~pyro_snefy.bases.Mixture`.

    Arguments:
        x: The point, with shape :math:`()` or :math:`(d,)`.

    Example:
        >>> PointMass(torch.tensor(0.0)).event_shape
        torch.Size([])
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        name: field._replace(fixed=True) for name, field in Discrete.tensor_fields.items()
    }

    def __init__(self, x: TensorLike, *, validate_args: bool | None = None) -> None:
        (x,) = as_tensors(x)
        if x.dim() > 1:
            raise ValueError(f"PointMass: expected x with shape () or (d,), got {tuple(x.shape)}.")
        super().__init__(x.unsqueeze(0), x.new_ones(1), validate_args=validate_args)
