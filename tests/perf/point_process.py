"""Trees in a forest: a learnt Poisson process against a kernel estimate.

The points are 3,604 trees of one species in a window of 1000 m by 500 m (the set ``bei`` of the
R package spatstat). Half of them, at random, are learnt from, the others are the test. Figures are
log-likelihoods a point of the test half, in km: (Σ log λ(x_i) - Λ) / N, means of three halves.

The kernel estimate is Gaussian, with edge correction, and has the bandwidth that is best when each
point is left out. The learnt process has 400 cosines, whose frequencies, phases and readout `fit`
learns together, in 200 steps from random frequencies of Student's law. In each step, one half of
the neurons is left out at random (dropout), which keeps the intensity smooth. For comparison,
``random`` has 1,000 cosines with random frequencies, which are not learnt, and the readout that is
most likely with a ridge (`fit_readout`), a convex problem. The mean of fits is one process, too: a
superposition of thinned ones.

Measured one fit a process, 22 s of one busy core for each learnt fit:

============================ ===== ===== ===== =====
half                             0     1     2  mean
============================ ===== ===== ===== =====
homogeneous                  7.190 7.190 7.190 7.190
kernel estimate              7.828 7.789 7.802 7.806
learnt, mean of three scores 7.835 7.809 7.812 7.819
learnt, lowest of three      7.829 7.799 7.808 7.812
learnt, mean of three fits   7.855 7.831 7.833 7.840
random, mean of three scores 7.834 7.802 7.810 7.815
random, mean of three fits   7.857 7.827 7.834 7.839
============================ ===== ===== ===== =====

About 60 settings of the learnt process (neurons, rows, law and scale of the frequencies, ridge,
dropout, noise on the points, learning rates, early stopping) were compared on up to three of five
folds of the points that half 0 learns from, most of them with a copy in plain torch. About 130
settings of the random one were compared on two quarters of these points. Some of the points are
test points of halves 1 and 2: only the test of half 0 is clean. Run as
``python -m tests.perf.point_process bei.csv``; more arguments are the halves.
"""

import csv
import math
import sys
import time
from functools import reduce
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pyro_snefy import SNEFY, PoissonProcess, fit, fit_readout, point_process
from pyro_snefy.bases import UniformBox
from pyro_snefy.learning import PointProcess

HALVES, FITS = 3, 3
METRES = 20.0  # the unit of length: frequencies near one resolve groups of trees
LOW, HIGH = torch.zeros(2), torch.tensor([1000.0, 500.0]) / METRES
OFFSET = 2 * math.log(1000 / METRES)  # from intensities in these units to intensities in km


def read(path: str) -> Tensor:
    """The points."""
    with Path(path).open() as file:
        rows = list(csv.reader(file))[1:]
    return torch.tensor([[float(x) for x in row] for row in rows]) / METRES


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


def start(neurons: int, rows: int, freedom: float, scale: float) -> PointProcess:
    """A process with random frequencies of Student's law; neuron 0 is a constant."""
    model = point_process(UniformBox(LOW, HIGH), neurons, rows)
    spread = (torch.distributions.Chi2(freedom).sample((neurons, 1)) / freedom).rsqrt()
    constant = torch.tensor(0)
    assert model.density.bias is not None
    with torch.no_grad():
        frequencies = scale * spread * torch.randn(neurons, 2)
        model.density.weight.copy_(frequencies).index_fill_(0, constant, 0.0)
        model.density.bias.uniform_(0, 2 * math.pi).index_fill_(0, constant, 0.0)
        model.density.readout.normal_(std=0.1 / neurons**0.5)[0, 0] += 1
    return model


class Dropout(nn.Module):
    """A family whose neurons are left out at random, with probability one half, while it learns."""

    def __init__(self, density: nn.Module) -> None:
        super().__init__()
        self.density = density

    def forward(self) -> SNEFY:
        law: SNEFY = self.density()
        if not self.training or law.readout is None:
            return law
        kept = torch.rand_like(law.readout[0]) > 0.5
        return SNEFY(law.weight, law.bias, law.readout * kept, base=law.base)


def learnt(train: Tensor, seed: int) -> PoissonProcess:
    """One fit of frequencies, phases and readout."""
    torch.manual_seed(seed)
    model = start(400, 16, 2.0, 1.0)
    fit(
        Dropout(model.density),
        train,
        max_epochs=200,
        batch_size=len(train),
        lr=0.03,
        validation=0.0,
        progress=False,
    )
    with torch.no_grad():
        return model.set_rate(train)()


def random(train: Tensor, seed: int) -> PoissonProcess:
    """One convex fit of the readout."""
    torch.manual_seed(seed)
    model = start(1000, 8, 4.0, 80 * METRES / 1000)
    fit_readout(model.density, train, ridge=2.0, tolerance=1e-2)
    with torch.no_grad():
        return model.set_rate(train)()


def halves(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """The points to learn from, and the others."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(half))
    return x[order[: len(x) // 2]], x[order[len(x) // 2 :]]


def main(path: str, *numbers: str) -> None:
    x = read(path)
    results: dict[str, list[float]] = {}
    begin = time.process_time()

    def add(half: int, name: str, value: Tensor | float) -> None:
        results.setdefault(name, []).append(float(value))
        print(f"half {half} {name:16} {float(value):.3f}", flush=True)

    for half in map(int, numbers) if numbers else range(HALVES):
        train, test = halves(x, half)
        count = len(train)
        widths = np.geomspace(5.0, 80.0, 25) / METRES
        alone = [float(kernel_estimate(train, train, h, True).mean()) for h in widths]
        kernel = kernel_estimate(train, test, widths[int(np.argmax(alone))])
        add(half, "homogeneous", math.log(count / 0.5) - count / len(test))
        add(half, "kernel", kernel.mean() + OFFSET + math.log(count) - count / len(test))
        for name, learn in (("learnt", learnt), ("random", random)):
            processes = [learn(train, seed) for seed in range(FITS)]
            with torch.no_grad():
                mean = reduce(PoissonProcess.superpose, (p.thin(1 / FITS) for p in processes))
                fits = torch.stack([p.log_prob(test) for p in processes]) / len(test) + OFFSET
                add(half, name, fits.mean())
                add(half, f"{name}, lowest", fits.amin())
                add(half, f"{name}, mean", mean.log_prob(test) / len(test) + OFFSET)
    for name, values in results.items():
        print(f"{name:16} {np.mean(values):.3f} ± {np.std(values):.3f}")
    print(f"{time.process_time() - begin:.0f} s of one core")


if __name__ == "__main__":
    main(*sys.argv[1:])
