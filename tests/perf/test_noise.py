"""Time and memory of noisy observations, whose rows may each have a covariance of their own."""

import json
import subprocess
import sys

import pyro
import pytest
import torch
from torch import Tensor

from pyro_snefy import SNEFY
from pyro_snefy.activations import Cos
from tests.perf import baselines
from tests.perf.timing import medians

pytestmark = pytest.mark.perf

ROWS, N, D = 1000, 32, 2


def _factors(rows: int) -> Tensor:
    matrix = torch.randn(rows, D, D)
    return torch.linalg.cholesky(matrix @ matrix.mT + 0.1 * torch.eye(D))


def test_noise() -> None:
    """A step with 1,000 rows in float32, beside a conditional batch by the plain kernel.

    Normalisers of 1,000 covariances are in float64 here. The plain kernel, in float32, has one
    covariance and 1,000 biases.
    """
    pyro.enable_validation(False)
    weight = torch.randn(N, D, requires_grad=True)
    bias = torch.randn(N, requires_grad=True)
    readout = torch.randn(4, N, requires_grad=True)
    y, factors, context = torch.randn(ROWS, D), _factors(ROWS), torch.randn(ROWS, N)
    zeros, ones = torch.zeros(D), torch.ones(D)

    def baseline() -> Tensor:
        rows = bias + context
        numerator = baselines.log_numerator((y @ weight.mT + rows).cos(), readout)
        kernel = baselines.cos_kernel(weight, rows, zeros, ones)
        return numerator - baselines.log_trace(kernel, readout)

    def law() -> SNEFY:
        return SNEFY(weight, bias, readout, activation=Cos())

    steps = {
        "a covariance per row": lambda: law().observed(scale_tril=factors).log_prob(y),
        "scales per row": lambda: law().observed(factors.diagonal(dim1=-2, dim2=-1)).log_prob(y),
        "one covariance": lambda: law().observed(scale_tril=factors[0]).log_prob(y),
        "one covariance, no noise": lambda: law().log_prob(y),
        "baseline": baseline,
    }
    times = medians({k: lambda f=f: f().sum().backward() for k, f in steps.items()})  # type: ignore
    own = times["baseline"]
    print("\n" + ", ".join(f"{k} {t * 1e3:.1f} ms ({t / own:.2f}x)" for k, t in times.items()))
    assert times["a covariance per row"] <= 3 * own
    assert times["one covariance"] <= 2 * own


SCRIPT = """
import json, sys, torch
from tests.perf.timing import peak_memory
from tests.perf.test_noise import D, _factors
torch.set_num_threads(1)
torch.distributions.Distribution.set_default_validate_args(False)
from pyro_snefy import SNEFY

def step(n, rows):
    weight, bias = torch.randn(n, D, requires_grad=True), torch.randn(n)
    law = SNEFY(weight, bias, torch.randn(4, n))
    law.observed(scale_tril=_factors(rows)).log_prob(torch.randn(rows, D)).sum().backward()

n, rows = map(int, sys.argv[1:])
step(8, 8)  # what torch takes for itself
before = peak_memory()
step(n, rows)
print(json.dumps((peak_memory() - before) / 1e6))
"""


def test_memory() -> None:
    """The kernels of all rows at once would be 537 MB in each tensor."""
    command = [sys.executable, "-c", SCRIPT, "128", "4096"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = json.loads(run.stdout)
    print(f"\na covariance per row, n=128, B=4096: peak {peak:.0f} MB")
    assert peak < 300
