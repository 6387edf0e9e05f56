"""Six laws in the plane, each with its sampler and its log-density.

Moons, circles and rings are the sets of the package ``normflows``. Pinwheel, checkerboard and two
spirals are the sets of FFJORD (Grathwohl et al., arXiv:1810.01367).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Law(NamedTuple):
    """A sampler, and the log-density that it draws from."""

    sample: Callable[[int], Tensor]
    log_density: Callable[[Tensor], Tensor]


def moons(x: Tensor) -> Tensor:
    """The log-density of two crescents, up to a constant."""
    side = x[..., 0].abs()
    ring = ((x.norm(dim=-1) - 2) / 0.2) ** 2
    return -(ring + ((side - 2) / 0.3) ** 2) / 2 + torch.log1p(torch.exp(-4 * side / 0.09))


def circles(x: Tensor) -> Tensor:
    """The log-density of eleven normal laws on a circle, up to a constant."""
    angle = 2 * math.pi / 11 * torch.arange(11, dtype=x.dtype)
    centres = 2 * torch.stack([angle.sin(), angle.cos()], dim=-1)
    scale = 2 / 3 * math.sin(math.pi / 11)
    return (-(x.unsqueeze(-2) - centres).square().sum(-1) / (2 * scale**2)).logsumexp(-1)


def rings(x: Tensor) -> Tensor:
    """The log-density of two rings, up to a constant."""
    radii = torch.tensor([1.0, 2.0], dtype=x.dtype)
    return (-32 * (x.norm(dim=-1, keepdim=True) - radii).square()).logsumexp(-1)


def log_mass(log_density: Callable[[Tensor], Tensor]) -> float:
    """The logarithm of the integral over the plane, by a grid on [-4, 4]²."""
    line = torch.linspace(-4, 4, 2001, dtype=torch.float64)
    step = (line[1] - line[0]).item()
    grid = torch.cartesian_prod(line, line)
    return (log_density(grid).logsumexp(0) + 2 * math.log(step)).item()


def draw(log_density: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """Draws by rejection from a uniform law on a square, outside of which there are none."""
    found: list[Tensor] = []
    while sum(map(len, found)) < count:
        x = 8 * torch.rand(400_000, 2) - 4
        # No density is above e^0.7: log(1 + 1) at the most is added to what is not positive.
        found.append(x[torch.rand(len(x)).log() < log_density(x) - 0.7])
    return torch.cat(found)[:count]


def _rejected(log_density: Callable[[Tensor], Tensor]) -> Law:
    constant = log_mass(log_density)
    return Law(lambda n: draw(log_density, n), lambda x: log_density(x.double()) - constant)


def _checkerboard(count: int) -> Tensor:
    x = 4 * torch.rand(count) - 2
    y = torch.rand(count) - 2 * torch.randint(2, (count,)) + x.floor() % 2
    return 2 * torch.stack([x, y], dim=-1)


def _log_checkerboard(x: Tensor) -> Tensor:
    # Eight squares with sides of 2.
    return torch.full_like(x[:, 0], -math.log(32.0), dtype=torch.float64)


_ARMS, _RADIAL, _TANGENTIAL, _RATE = 5, 0.3, 0.1, 0.25


def _pinwheel(count: int) -> Tensor:
    f = torch.randn(count, 2) * torch.tensor([_RADIAL, _TANGENTIAL]) + torch.tensor([1.0, 0.0])
    arm = torch.randint(_ARMS, (count,))
    angle = 2 * math.pi / _ARMS * arm + _RATE * f[:, 0].exp()
    cos, sin = angle.cos(), angle.sin()
    return 2 * torch.stack([f[:, 0] * cos - f[:, 1] * sin, f[:, 0] * sin + f[:, 1] * cos], dim=-1)


def _log_pinwheel(x: Tensor) -> Tensor:
    # x / 2 = r e^{iφ}, f = r e^{ia} with a + rate exp(r cos a) + 2πk / 5 = φ: the roots a, between
    # the points of a grid. The density of f over |1 - rate exp(f_1) f_2| is added up over them.
    r, phi = x.double().norm(dim=-1) / 2, torch.atan2(x[:, 1], x[:, 0]).double()
    a = torch.linspace(-math.pi, math.pi, 1201, dtype=torch.float64)
    values = []
    for rows in torch.arange(len(x)).split(500):
        first = r[rows, None] * a.cos()
        miss = a + _RATE * first.exp() - phi[rows, None]  # (rows, grid)
        turns = miss / (2 * math.pi / _ARMS)
        # Roots for any arm are where the number of turns passes an integer.
        low, high = turns[:, :-1], turns[:, 1:]
        target = torch.maximum(low, high).floor()
        crosses = target > torch.minimum(low, high)
        share = torch.where(crosses, (target - low) / (high - low), 0.0)
        root = a[:-1] + share * (a[1] - a[0])
        f0, f1 = r[rows, None] * root.cos(), r[rows, None] * root.sin()
        log_f = -0.5 * (((f0 - 1) / _RADIAL) ** 2 + (f1 / _TANGENTIAL) ** 2)
        jacobian = (1 - _RATE * f0.exp() * f1).abs()
        terms = torch.where(crosses, log_f - jacobian.log(), -torch.inf)
        values.append(terms.logsumexp(-1))
    constant = math.log(2 * math.pi * _RADIAL * _TANGENTIAL * _ARMS * 4)
    return torch.cat(values) - constant


_TURNS = 540 / 360 * 2 * math.pi


def _curve(t: Tensor) -> Tensor:
    return torch.stack([-t.cos() * t, t.sin() * t], dim=-1)


def _spirals(count: int) -> Tensor:
    t = torch.rand(count).sqrt() * _TURNS
    x = (_curve(t) + torch.rand(count, 2) * 0.5) / 3
    return torch.where(torch.rand(count, 1) < 0.5, -x, x) + 0.1 * torch.randn(count, 2)


def _log_spirals(x: Tensor) -> Tensor:
    # Along the curve, t² is uniform; across, a box of 1/6 by 1/6 is smeared by a normal law.
    t = ((torch.arange(1500, dtype=torch.float64) + 0.5) / 1500).sqrt() * _TURNS
    low = _curve(t) / 3
    values = []
    for rows in x.double().split(1000):
        both = torch.stack([rows, -rows]).unsqueeze(-2) - low  # (2, rows, t, 2)
        mass = (torch.special.ndtr(both / 0.1) - torch.special.ndtr((both - 1 / 6) / 0.1)) * 6
        values.append(mass.prod(-1).mean(-1).mean(0).log())
    return torch.cat(values)


LAWS: dict[str, Callable[[], Law]] = {
    "moons": lambda: _rejected(moons),
    "circles": lambda: _rejected(circles),
    "rings": lambda: _rejected(rings),
    "pinwheel": lambda: Law(_pinwheel, _log_pinwheel),
    "checkerboard": lambda: Law(_checkerboard, _log_checkerboard),
    "spirals": lambda: Law(_spirals, _log_spirals),
}
