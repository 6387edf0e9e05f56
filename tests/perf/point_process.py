"""Trees in a forest: a learnt Poisson process against a kernel estimate.

The points are 3,604 trees of one species in a window of 1000 m by 500 m (the set ``bei`` of the
R package spatstat). Half of them, at random, are learnt from, the others are the test. Figures are
log-likelihoods a point of the test half, in km: (Σ log λ(x_i) - Λ) / N, means of three halves.

The kernel estimate is Gaussian, with edge correction, and has the bandwidth that is best when each
point is left out. The learnt process has 1,000 cosines with random frequencies from Student's law,
and the readout that is most likely with a ridge (`fit_readout`), a convex problem. The mean of four
fits is one process, too: a superposition of thinned ones. Measured in 123 s of one busy core, one
half at a time:

============================ ===== ===== ===== =====
half                             0     1     2  mean
============================ ===== ===== ===== =====
homogeneous                  7.190 7.190 7.190 7.190
kernel estimate              7.828 7.789 7.802 7.806
one fit, mean of four        7.834 7.804 7.812 7.817
mean of four fits            7.860 7.832 7.839 7.844
============================ ===== ===== ===== =====

About 130 settings (neurons, rows, law and scale of the frequencies, ridge) were compared on two
quarters of the points that half 0 learns from. Some of these points are test points of halves 1 and
2: only the test of half 0 is clean. Run as ``python -m tests.perf.point_process bei.csv``; more
arguments are the halves.
"""

import csv
import math
import sys
import time
from functools import reduce
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pyro_snefy import PoissonProcess, fit_readout, point_process
from pyro_snefy.bases import UniformBox

HALVES, FITS, NEURONS, ROWS = 3, 4, 1000, 8
LOW, HIGH = torch.zeros(2), torch.tensor([1.0, 0.5])
SCALE, RIDGE = 80.0, 2.0  # of the frequencies, in 1 / km; of the readout


def read(path: str) -> Tensor:
    """The points in km."""
    with Path(path).open() as file:
        rows = list(csv.reader(file))[1:]
    return torch.tensor([[float(x) for x in row] for row in rows]) / 1000


def kernel_estimate(train: Tensor, test: Tensor, width: float, leave_out: bool = False) -> Tensor:
    """The log-density of test points, each kernel normalised in the window."""
    train, test = train.double(), test.double()
    ends = [torch.special.ndtr((x.double() - train) / width) for x in (HIGH, LOW)]
    inside = (ends[0] - ends[1]).prod(-1)
    square = (test.unsqueeze(1) - train).square().sum(-1)
    terms = -square / (2 * width**2) - math.log(2 * math.pi * width**2) - inside.log()
    if leave_out:
        terms.fill_diagonal_(-math.inf)
    return terms.logsumexp(1) - math.log(len(train) - leave_out)


def learn(train: Tensor, seed: int) -> PoissonProcess:
    """One fit."""
    torch.manual_seed(seed)
    model = point_process(UniformBox(LOW, HIGH), NEURONS, ROWS)
    spread = (torch.distributions.Chi2(4.0).sample((NEURONS, 1)) / 4).rsqrt()
    frequencies = spread * torch.randn(NEURONS, 2)
    with torch.no_grad():
        model.density.weight.copy_(SCALE * frequencies).index_fill_(0, torch.tensor(0), 0.0)
        model.density.bias.uniform_(0, 2 * math.pi).index_fill_(0, torch.tensor(0), 0.0)
    fit_readout(model.density, train, ridge=RIDGE, tolerance=1e-2)
    with torch.no_grad():
        return model.set_rate(train)()


def main(path: str, *halves: str) -> None:
    x = read(path)
    results: dict[str, list[float]] = {"homogeneous": [], "kernel": [], "one fit": [], "mean": []}
    start = time.process_time()
    for half in map(int, halves) if halves else range(HALVES):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(half))
        train, test = x[order[: len(x) // 2]], x[order[len(x) // 2 :]]
        count = len(train)
        widths = np.geomspace(0.005, 0.08, 25)
        alone = [float(kernel_estimate(train, train, h, True).mean()) for h in widths]
        kernel = kernel_estimate(train, test, widths[int(np.argmax(alone))])
        processes = [learn(train, seed) for seed in range(FITS)]
        with torch.no_grad():
            mean = reduce(PoissonProcess.superpose, (p.thin(1 / FITS) for p in processes))
            fits = torch.stack([p.log_prob(test) for p in processes]) / len(test)
            results["mean"].append(float(mean.log_prob(test)) / len(test))
        results["homogeneous"].append(math.log(count / 0.5) - count / len(test))
        results["kernel"].append(float(kernel.mean()) + math.log(count) - count / len(test))
        results["one fit"].append(float(fits.mean()))
        print(f"half {half} fits {', '.join(f'{value:.3f}' for value in fits)}")
        for name, values in results.items():
            print(f"half {half} {name:12} {values[-1]:.3f}", flush=True)
    seconds = time.process_time() - start
    for name, values in results.items():
        print(f"{name:12} {np.mean(values):.3f} ± {np.std(values):.3f}")
    print(f"{seconds:.0f} s of one core")


if __name__ == "__main__":
    main(*sys.argv[1:])
