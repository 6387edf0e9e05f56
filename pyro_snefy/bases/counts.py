r"""Bases on counts and on finite sets."""

__all__ = ["Discrete", "Geometric", "PointMass", "Poisson"]

import math
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from ..constraints import finite_set
from ..numerics.rejection import choose, poisson, rejection_by_row
from .base import TensorField, TensorLike, as_tensors
from .engines import FourierBase, LaplaceBase


def _polar(log_modulus: Tensor, phase: Tensor) -> tuple[Tensor, Tensor]:
    modulus = log_modulus.exp()
    return modulus * phase.cos(), modulus * phase.sin()


class _Counts(FourierBase, LaplaceBase):
    # A logarithmically concave law on 0, 1, 2, … with t(x) = x.
    is_discrete = True
    support = constraints.nonnegative_integer

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

        def log_square(base: "_Counts", x: Tensor, centre: Tensor) -> Tensor:
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


class Poisson(_Counts):
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

    def characteristic(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        omega, rate = omega.squeeze(-1), self.rate.unsqueeze(-1)
        return _polar(-2 * rate * (omega / 2).sin().square(), rate * (omega.sin() - omega))

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


class Geometric(_Counts):
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

    def characteristic(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        probs, mean, modulus, phase = self._denominator(omega)
        return _polar(probs.log() - modulus, -phase - mean * omega.squeeze(-1))

    def characteristic_moment(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        real, imag = self.characteristic(omega)
        probs, mean, modulus, phase = self._denominator(omega)
        omega = omega.squeeze(-1)
        # E[x e^{iωx}] = p r e^{iω} / (1 - r e^{iω})^2 with r = 1 - p, then centred.
        a, b = _polar((probs * (1 - probs)).log() - 2 * modulus, omega - 2 * phase - mean * omega)
        return (a - mean * real).unsqueeze(-1), (b - mean * imag).unsqueeze(-1)

    def _denominator(self, omega: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # p, the mean, and log-modulus and phase of 1 - (1 - p) e^{iω}, accurate for small ω.
        omega, probs = omega.squeeze(-1), self.probs.unsqueeze(-1)
        real = probs + 2 * (1 - probs) * (omega / 2).sin().square()
        imag = -(1 - probs) * omega.sin()
        modulus, phase = (real.square() + imag.square()).log() / 2, torch.atan2(imag, real)
        return probs, (1 - probs) / probs, modulus, phase

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
