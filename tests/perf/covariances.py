"""Joint densities of tables by ``snefy(d)``: diagonal covariances of its base, full ones, defaults.

The columns are the ones of ``tests.perf.tables``, standardised by the training rows. Figures are
mean log-densities of the test rows after ``initialize`` and after ``fit`` with its defaults.
Mixtures of 16 normal laws with diagonal and with full covariances are compared with the base that
``snefy(d)`` finds by itself. Run as ``python -m tests.perf.covariances DATA``, where ``DATA`` is
the folder with ``uci``.
"""

import sys
import time
from pathlib import Path

import pyro
import torch

from pyro_snefy import fit, snefy
from pyro_snefy.bases import Base, GaussianMixture
from tests.perf.regression import random_split
from tests.perf.tables import VALUES, columns

COMPONENTS = 16


def bases(d: int) -> dict[str, Base | int]:
    """The bases by name."""
    logits, loc = torch.zeros(COMPONENTS), torch.zeros(COMPONENTS, d)
    ones = torch.ones(COMPONENTS, d)
    return {
        "diagonal": GaussianMixture(logits, loc, ones),
        "full": GaussianMixture(logits, loc, scale_tril=ones.diag_embed()),
        "default": d,
    }


def main() -> None:
    for name in VALUES:
        table = torch.tensor(columns(Path(sys.argv[1]), name))
        train, test = map(torch.as_tensor, random_split(len(table), 0))
        table = ((table - table[train].mean(0)) / table[train].std(0)).float()
        for label, base in bases(table.shape[1]).items():
            pyro.set_rng_seed(0)
            start = time.process_time()
            module = snefy(base).initialize(table[train])
            with torch.no_grad():
                first = module().log_prob(table[test]).mean()
            fit(module, table[train], progress=False)
            seconds = time.process_time() - start
            with torch.no_grad():
                last = module().log_prob(table[test]).mean()
            print(
                f"{name:12s} {label:9s} start {first:8.3f}, fit {last:8.3f}, {seconds:5.1f} s"
                f"   {module.base()}",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
