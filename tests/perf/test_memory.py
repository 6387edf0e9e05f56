"""Peak memory of a training step, and how time and memory grow, each in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.perf

SCRIPT = """
import json, sys, time, torch
from tests.perf.timing import peak_memory
torch.set_num_threads(1)
torch.distributions.Distribution.set_default_validate_args(False)
from pyro_snefy import SNEFY
from pyro_snefy.activations import Snake
from pyro_snefy.bases import Gaussian

def step(n, rows):
    net = torch.nn.Linear(5, n)
    weight = torch.randn(n, 1, requires_grad=True)
    readout = (torch.randn(n // 2, n) / n).requires_grad_()
    base = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    context, y = torch.randn(rows, 5), torch.randn(rows)
    law = SNEFY(weight, net(context), readout, activation=Snake(10.0), base=base)
    (-law.log_prob(y).mean()).backward()

n, rows = map(int, sys.argv[1:])
step(8, 8)  # what torch takes for itself
before = peak_memory()
start = time.perf_counter()
step(n, rows)
seconds = time.perf_counter() - start
print(json.dumps({"megabytes": (peak_memory() - before) / 1e6, "seconds": seconds}))
"""


def measure(n: int, rows: int) -> dict[str, float]:
    command = [sys.executable, "-c", SCRIPT, str(n), str(rows)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def test_peak_memory() -> None:
    peak = measure(256, 4096)["megabytes"]
    print(f"\nconditional, n=256, B=4096: peak {peak:.0f} MB")
    assert peak < 100


def test_growth() -> None:
    """Memory grows as B n at most, and both are drawn over n and B."""
    import matplotlib.pyplot as plt

    sizes, batches = [32, 64, 128, 256, 512], [1024, 2048, 4096, 8192, 16384]
    over_n = [measure(n, 4096) for n in sizes]
    over_rows = [measure(128, rows) for rows in batches]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    for values, points, label in (
        (sizes, over_n, "n, at B=4096"),
        (batches, over_rows, "B, at n=128"),
    ):
        axes[0].loglog(values, [p["megabytes"] for p in points], "o-", label=label)
        axes[1].loglog(values, [p["seconds"] * 1e3 for p in points], "o-", label=label)
    for panel, title in zip(axes, ("peak memory (MB)", "time of a step (ms)"), strict=True):
        panel.set(title=title, xlabel="n or B")
        panel.legend()
    path = Path("demo_output")
    path.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(path / "growth.png", dpi=120)
    print(f"\nover n {over_n}\nover B {over_rows}\nSaved {path / 'growth.png'}")
    first, last = over_rows[0], over_rows[-1]
    assert last["megabytes"] < 2 * (batches[-1] / batches[0]) * max(first["megabytes"], 1.0)


BENDS = """
import json, sys, torch
from tests.perf.test_missing import _with_gaps
from tests.perf.timing import peak_memory
torch.set_num_threads(1)
torch.distributions.Distribution.set_default_validate_args(False)
from pyro_snefy import snefy
from pyro_snefy.activations import GELU

def step(n, rows):
    law, x = snefy(6, n, activation=GELU())(), _with_gaps(torch.randn(rows, 6))
    (-law.partially_observed().log_prob(x).mean()).backward()

step(4, 60)
before = peak_memory()
step(50, int(sys.argv[1]))
print(json.dumps((peak_memory() - before) / 1e6))
"""


@pytest.mark.parametrize("rows", [1024, 4096])
def test_bends_with_gaps(rows: int) -> None:
    """Fifty patterns: a kernel for each row, a few of them at a time."""
    command = [sys.executable, "-c", BENDS, str(rows)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = json.loads(run.stdout)
    print(f"\nGELU, n=50, B={rows}, fifty patterns: peak {peak:.0f} MB")
    assert peak < 250


ROWS_OF_A_LIKELIHOOD = """
import json, sys, torch
from tests.perf.timing import peak_memory
torch.set_num_threads(1)
from pyro_snefy import conditional_snefy

likelihood = conditional_snefy((), 5)
x, context = torch.randn(int(sys.argv[2])), torch.randn(int(sys.argv[2]), 5)
functions = {"log_prob": likelihood.log_prob, "cdf": lambda x, c: likelihood(c).cdf(x)}
function = functions[sys.argv[1]]
with torch.no_grad():
    function(x[:8], context[:8])
    before = peak_memory()
    function(x, context)
print(json.dumps((peak_memory() - before) / 1e6))
"""


@pytest.mark.parametrize(
    ("name", "rows"), [("log_prob", 200_000), ("log_prob", 1_000_000), ("cdf", 10_000)]
)
def test_rows_of_a_likelihood(name: str, rows: int) -> None:
    """A readout for each row, a few rows at a time."""
    command = [sys.executable, "-c", ROWS_OF_A_LIKELIHOOD, name, str(rows)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = json.loads(run.stdout)
    print(f"\n{name} of {rows:,} rows: peak {peak:.0f} MB")
    assert peak < 300
