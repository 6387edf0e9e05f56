"""A plate costs no kernels: the parameters of a joint family stay as they are."""

from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_snefy import SNEFY
from pyro_snefy.activations import Activation, Cos, Exp, ReLU, Snake
from pyro_snefy.bases import Base, Gaussian, UniformSphere
from tests.perf.timing import medians

pytestmark = pytest.mark.perf

ROWS, N, M, D = 5000, 64, 16, 3


@pytest.fixture(autouse=True)
def _no_validation() -> None:
    pyro.enable_validation(False)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("activation", "base"),
    [
        (Cos(), Gaussian(torch.zeros(D), torch.ones(D))),
        (Snake(), Gaussian(torch.zeros(D), torch.ones(D))),
        (ReLU(), Gaussian(torch.zeros(D), torch.ones(D))),
        (Exp(), UniformSphere(D)),
    ],
    ids=str,
)
def test_plate(activation: Activation, base: Base, backward: bool) -> None:
    """At most 1.3 times the time of the same site outside of any plate."""
    parameters = [torch.randn(shape) / shape[-1] for shape in ((N, D), (N,), (M, N))]
    leaves = [parameter.requires_grad_(backward) for parameter in parameters]
    x = torch.nn.functional.normalize(torch.randn(ROWS, D), dim=-1)

    def build() -> Any:
        return SNEFY(*leaves, activation=activation, base=base)

    def inside() -> None:
        with pyro.plate("rows", ROWS):
            pyro.sample("x", build(), obs=x)

    def log_prob_inside() -> Tensor:
        trace = poutine.trace(inside).get_trace()
        trace.compute_log_prob()
        return trace.nodes["x"]["log_prob"]

    def log_prob_outside() -> Tensor:
        return build().log_prob(x)

    def step(log_prob: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            total = log_prob().sum()
            if backward:
                total.backward()

        return run

    torch.testing.assert_close(log_prob_inside(), log_prob_outside())
    times = medians({"inside": step(log_prob_inside), "outside": step(log_prob_outside)}, 3.0)
    ratio = times["inside"] / times["outside"]
    figures = ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in times.items())
    print(f"\nplate of {ROWS}, n={N}, {activation} on {base}: {figures}, ratio {ratio:.2f}")
    assert ratio <= 1.3
