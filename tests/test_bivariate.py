r"""Tests for the pyro_snefy.bivariate module."""

import math
import mpmath as mp
import pytest
import torch

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pyro_snefy.bivariate import (
    bivariate_cdf,
    erf_moment,
    gelu_moment,
    half_normal_moment,
    leaky_relu_moment,
    relu_moment,
)
from torch import Tensor

SLOPE = 0.1

# An independent reference: condition on the first variable, and integrate over it with mpmath.


def mp_pdf(x: mp.mpf) -> mp.mpf:
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def mp_cdf(x: mp.mpf) -> mp.mpf:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def mp_relu(p: int, z: mp.mpf) -> mp.mpf:
    return z**p if z > 0 else mp.mpf(0)


def mp_mean_relu(p: int, m: mp.mpf, s: mp.mpf) -> mp.mpf:
    if s == 0:
        return mp_relu(p, m)

    # The recursion cancels in the lower tail, but digits are cheap here.
    with mp.workdps(60):
        low, high = mp_cdf(m / s), m * mp_cdf(m / s) + s * mp_pdf(m / s)
        for k in range(2, p + 1):
            low, high = high, m * high + (k - 1) * s * s * low

        return high if p else low


def mp_leaky(z: mp.mpf) -> mp.mpf:
    return z if z > 0 else mp.mpf(SLOPE) * z


def mp_mean_leaky(m: mp.mpf, s: mp.mpf) -> mp.mpf:
    return mp.mpf(SLOPE) * m + (1 - mp.mpf(SLOPE)) * mp_mean_relu(1, m, s)


def mp_mean_erf(m: mp.mpf, s: mp.mpf) -> mp.mpf:
    return mp.erf(m / mp.sqrt(1 + 2 * s * s))


def mp_gelu(z: mp.mpf) -> mp.mpf:
    return z * mp_cdf(z)


def mp_mean_gelu(m: mp.mpf, s: mp.mpf) -> mp.mpf:
    t = mp.sqrt(1 + s * s)

    return m * mp_cdf(m / t) + s * s * mp_pdf(m / t) / t


@dataclass(frozen=True)
class Case:
    """An activation: its product moment, and mpmath's value and mean of it."""

    moment: Callable[..., Tensor]
    value: Callable[[mp.mpf], mp.mpf]
    mean: Callable[[mp.mpf, mp.mpf], mp.mpf]


CASES = {
    "step": Case(partial(relu_moment, 0), partial(mp_relu, 0), partial(mp_mean_relu, 0)),
    "relu": Case(partial(relu_moment, 1), partial(mp_relu, 1), partial(mp_mean_relu, 1)),
    "relu2": Case(partial(relu_moment, 2), partial(mp_relu, 2), partial(mp_mean_relu, 2)),
    "relu3": Case(partial(relu_moment, 3), partial(mp_relu, 3), partial(mp_mean_relu, 3)),
    "relu5": Case(partial(relu_moment, 5), partial(mp_relu, 5), partial(mp_mean_relu, 5)),
    "leaky": Case(partial(leaky_relu_moment, SLOPE), mp_leaky, mp_mean_leaky),
    "erf": Case(erf_moment, mp.erf, mp_mean_erf),
    "gelu": Case(gelu_moment, mp_gelu, mp_mean_gelu),
}
CONTINUOUS = [name for name in CASES if name != "step"]


def mp_moment(
    case: Case, m1: float, m2: float, v1: float, v2: float, c: mp.mpf, det: mp.mpf
) -> mp.mpf:
    m1, m2, v1, v2 = map(mp.mpf, (m1, m2, v1, v2))
    if v1 == 0:
        return case.value(m1) * case.mean(m2, mp.sqrt(v2))

    s1 = mp.sqrt(v1)
    slope, s = c / s1, mp.sqrt(det / v1)

    # Breakpoints around the kink of either factor, and where the mass may be.
    points = {mp.mpf(k) for k in (-42, -30, -20, -12, -8, -5, -2, 0, 2, 5, 8, 12, 20, 30, 42)}
    points |= {(k - m1) / s1 for k in (-8, -2, 0, 2, 8)}
    if slope != 0:
        points |= {(k * s - m2) / slope for k in (-30, -8, -3, 0, 3, 8, 30)}
        points |= {(k - m2) / slope for k in (-8, -2, 2, 8)}
    ends: list[mp.mpf] = []
    for point in sorted(points):
        if abs(point) <= 42 and (not ends or point - ends[-1] > mp.mpf(10) ** -20):
            ends.append(point)

    return mp.quad(
        lambda e: mp_pdf(e) * case.value(m1 + s1 * e) * case.mean(m2 + slope * e, s),
        ends,
        maxdegree=4,
        method="gauss-legendre",
    )


def relative_error(name: str, m1: float, m2: float, v1: float, v2: float, angle: float) -> float:
    """Returns the error of K12, relative to the geometric mean of K11 and K22."""

    case = CASES[name]
    with mp.workdps(30):
        # The float next to pi stands for pi.
        cos, sin = (-1, 0) if angle == math.pi else (mp.cos(angle), mp.sin(angle))
        scale = mp.sqrt(mp.mpf(v1) * mp.mpf(v2))
        found = case.moment(
            *map(torch.tensor, (float(m1), float(m2), float(v1), float(v2))),
            torch.tensor(float(scale * cos)),
            torch.tensor(float(angle)),
        )
        expected = mp_moment(case, m1, m2, v1, v2, scale * cos, (scale * sin) ** 2)
        norm = mp.sqrt(
            mp_moment(case, m1, m1, v1, v1, mp.mpf(v1), mp.mpf(0))
            * mp_moment(case, m2, m2, v2, v2, mp.mpf(v2), mp.mpf(0))
        )

        return float(abs(mp.mpf(found.item()) - expected) / norm)
