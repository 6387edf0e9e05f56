r"""Masses in the tails of networks on Student's law, where a quadrature would never end.

The density is :math:`f(\xi) \, \Re G(\xi)`, with the density :math:`f` of Student's law. Here
:math:`G` is a sum of terms :math:`e^{i \omega \xi}` with :math:`\omega \geq 0` and polynomials. It
is bounded by a polynomial in the upper half-plane, and so, by Cauchy's theorem,

.. math:: \int_X^\infty f(\xi) \, \Re G(\xi) \, d\xi = -\Im \int_0^\infty f(X + i y) G(X + i y) dy.

What oscillates on the real axis decays on the vertical line (Huybrechs and Vandewalle 2006, "On
the evaluation of highly oscillatory integrals by analytic continuation").
"""

__all__ = ["Tails"]

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..activations import FourierActivation, Identity, Sin, Snake
from ..bases import StudentT
from ..network import Network
from ..numerics.matern import log_gamma_ratio

# Nodes y = X e^{π/2 sinh v}, whose trapezoidal sum is a double exponential rule (Takahasi and Mori
# 1974): from e^{-77} X to e^{77} X.
_REACH, _STEP = 4.6, 1 / 16
_DOUBLINGS, _HALVINGS = 12, 60  # of brackets of quantiles, at most
_ROUNDING = 4 * torch.finfo(torch.float64).eps
_CHUNK = 2**20  # complex numbers that are held at once


class Tails:
    r"""The masses beyond a value of the one coordinate of a network on Student's law.

    Arguments:
        network: The network, in float64.
        log_normalizer: The logarithm of :math:`Z`.
    """

    def __init__(self, network: Network, log_normalizer: Tensor) -> None:
        network = network.real()
        base, activation = network.base, network.activation
        assert isinstance(base, StudentT) and isinstance(activation, FourierActivation)
        self.activation, self.log_normalizer = activation, log_normalizer
        self.df, self.loc = base.df, base.mean(network.weight)[..., 0]
        self.scale = base.matrix()[..., 0, 0].sqrt()
        self.gram = network.form.gram()
        weight = network.weight.squeeze(-1)
        self.weight = weight * self.scale.unsqueeze(-1)
        self.bias = network.bias + weight * self.loc.unsqueeze(-1)

    @property
    def start(self) -> Tensor:
        r"""Where the tails begin, in scales from the location, with shape :math:`(*)`."""
        root = self.df.sqrt()
        # Beyond the second number, the density is less than 1e-18 of its peak.
        negligible = root * (math.log(1e36) / (self.df + 1)).expm1().sqrt()
        return torch.minimum((3 * root).clamp(min=8.0), negligible)

    def ends(self) -> tuple[Tensor, Tensor]:
        r"""The ends of what is between the tails, each with shape :math:`(*)`."""
        return self.loc - self.scale * self.start, self.loc + self.scale * self.start

    def beyond(self, x: Tensor, sign: int) -> Tensor:
        r"""The mass above :math:`x`, or below it, with shape :math:`(*, \text{batch})`.

        Arguments:
            x: Values in one of the tails, with shape :math:`(*, \text{batch})`.
            sign: 1 for the mass above, -1 for the mass below.
        """
        distance = sign * (x - self.loc) / self.scale
        root = self.df.sqrt()
        # The density grows along the vertical line for a while if it is nearer than this. Then
        # there are many degrees of freedom, and no mass in the tails.
        far = (distance >= root) & (distance < torch.inf)
        distance = torch.where(far, distance, root).clamp(max=1e100)
        shape = distance.shape
        n = self.weight.shape[-1]
        batch = max(1, self.log_normalizer.numel())
        rows = distance.reshape(-1, *shape[len(shape) - self.log_normalizer.dim() :])
        count = int(2 * _REACH / _STEP) * batch * (n * n + 1)
        pieces = [self._mass(piece, sign) for piece in rows.split(max(1, _CHUNK // count))]
        return torch.where(far, torch.cat(pieces).reshape(shape), 0.0)

    def _mass(self, distance: Tensor, sign: int) -> Tensor:
        v = torch.arange(-_REACH, _REACH, _STEP, dtype=distance.dtype, device=distance.device)
        v = v.reshape((-1,) + (1,) * distance.dim())
        ratio = (math.pi / 2 * v.sinh()).exp()  # y / X
        step = _STEP * math.pi / 2 * v.cosh() * ratio * distance
        point = torch.complex(distance.expand_as(ratio * distance), ratio * distance)
        log_density = -(self.df + 1) / 2 * (point * point / self.df + 1).log()
        values = (log_density.exp() * self._square(point, sign)).imag * step
        constant = log_gamma_ratio(self.df / 2, 0.5) - (math.pi * self.df).log() / 2
        constant = constant - self.log_normalizer
        return (-values.sum(0)).clamp(min=0) * constant.exp()

    def _square(self, point: Tensor, sign: int) -> Tensor:
        # The function G, whose real part on the real axis is the square of the network.
        weight, bias, gram = sign * self.weight, self.bias, self.gram
        activation, point = self.activation, point.unsqueeze(-1)
        total = torch.zeros_like(point[..., 0])
        line = None
        if isinstance(activation, Snake | Identity):
            line = weight * point + bias
            if isinstance(activation, Snake) and activation.offset:
                line = line + 0.5 / activation.a
            total = total + (_times(line, gram) * line).sum(-1)
        if isinstance(activation, Identity):
            return total
        # A wave is an amplitude times the cosine of an angle, whose slope is made positive.
        frequency = activation.wave_frequency
        amplitude = -1 / frequency if isinstance(activation, Snake) else 1.0
        phase = frequency * bias - (math.pi / 2 if isinstance(activation, Sin) else 0.0)
        turn = torch.where(weight < 0, -1.0, 1.0)
        slope, phase = frequency * weight * turn, phase * turn
        wave = (1j * (slope * point + phase)).exp()
        image = _times(wave, gram)
        if line is not None:
            total = total + 2 * amplitude * (image * line).sum(-1)
        n = gram.shape[-1]
        row, column = torch.triu_indices(n, n, offset=1, device=gram.device)
        gap, turn = slope[..., row] - slope[..., column], phase[..., row] - phase[..., column]
        turn = torch.where(gap < 0, -turn, turn)
        pairs = (gram[..., row, column] * (1j * (gap.abs() * point + turn)).exp()).sum(-1)
        own = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        return total + amplitude**2 / 2 * ((image * wave).sum(-1) + 2 * pairs + own)

    def quantile(self, mass: Tensor, sign: int, log_density: Callable[[Tensor], Tensor]) -> Tensor:
        r"""The value with a given mass beyond it, by Newton's method within a bisection.

        Arguments:
            mass: Masses of at most what is in the tail, with shape :math:`(*, \text{batch})`.
            sign: 1 for the mass above, -1 for the mass below.
            log_density: The log-density of values, of the same shape.
        """
        log_mass = mass.clamp(min=1e-290).log()
        low = self.start.log().expand_as(mass)

        def place(u: Tensor) -> Tensor:
            return self.loc + sign * self.scale * u.exp()

        def log_beyond(u: Tensor) -> Tensor:
            return self.beyond(place(u), sign).clamp(min=1e-300).log()

        width = torch.ones_like(mass)
        high = low + width
        for _ in range(_DOUBLINGS):
            below = log_beyond(high) > log_mass
            if not bool(below.any()):
                break
            low, width = torch.where(below, high, low), 2 * width
            high = torch.where(below, (high + width).clamp(max=690.0), high)
        u = (low + high) / 2
        for _ in range(_HALVINGS):
            found = log_beyond(u)
            less = found > log_mass
            low, high = torch.where(less, u, low), torch.where(less, high, u)
            # The logarithm of the mass beyond falls at the rate p(x) |dx/du| / mass.
            rate = (log_density(place(u)) + self.scale.log() + u - found).exp()
            step = u + (found - log_mass) / rate
            inside = (step > low) & (step < high)
            step = torch.where(inside, step, (low + high) / 2)
            if bool(((step - u).abs() <= _ROUNDING).all()):
                break
            u = step
        return place(u)


def _times(rows: Tensor, gram: Tensor) -> Tensor:
    return (rows.unsqueeze(-2) @ gram.to(rows.dtype)).squeeze(-2)
