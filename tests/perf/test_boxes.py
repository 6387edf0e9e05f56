"""Time of expected counts in a thousand boxes, in one call."""

import time

import pytest
import torch

from pyro_snefy import PoissonProcess
from pyro_snefy.bases import Base, Gaussian, GaussianMixture, UniformBox

pytestmark = pytest.mark.perf

N, BOXES = 50, 1000
BASES = {
    "Gaussian": lambda: Gaussian(torch.zeros(2), torch.ones(2)),
    "GaussianMixture": lambda: GaussianMixture(torch.zeros(3), torch.randn(3, 2), torch.ones(3, 2)),
    "UniformBox": lambda: UniformBox(torch.full((2,), -3.0), torch.full((2,), 3.0)),
}
SECONDS = {"Gaussian": 2.0, "GaussianMixture": 6.0, "UniformBox": 2.0}


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("grid", [True, False], ids=["grid", "no common edges"])
def test_boxes(name: str, grid: bool) -> None:
    """Seconds of one core."""
    torch.manual_seed(0)
    base: Base = BASES[name]()
    process = PoissonProcess(2 * torch.randn(N, 2), torch.rand(N), torch.randn(4, N), base=base)
    if grid:
        edges = torch.linspace(-3, 3, 35)
        low, high = (torch.cartesian_prod(x, x) for x in (edges[:-1], edges[1:]))
    else:
        low = torch.randn(BOXES, 2).clamp(-2.9, 2.9)
        high = low + 1.5 * torch.rand(BOXES, 2)
    process.expected_count_in(low[:1], high[:1])
    begin = time.process_time()
    process.expected_count_in(low, high)
    seconds = time.process_time() - begin
    print(f"\n{len(low)} boxes, {name}: {seconds:.2f} s")
    assert seconds < SECONDS[name]
