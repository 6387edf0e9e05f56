"""More than one process: the ELBO as a module inside DistributedDataParallel."""

import os
import sys
from pathlib import Path

import pyro
import torch
import torch.distributed
import torch.multiprocessing
from pyro.infer import Trace_ELBO
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pyro_snefy import snefy
from pyro_snefy.bases import GaussianMixture
from pyro_snefy.learning.joint import JointSNEFY

STEPS, BATCH, PROCESSES = 6, 32, 2


class Model(nn.Module):
    """Rows from a family, with a mean log-likelihood, so that gradients may be averaged."""

    def __init__(self, family: JointSNEFY) -> None:
        super().__init__()
        self.family = family

    def forward(self, x: Tensor) -> None:
        with pyro.plate("rows", len(x)), pyro.poutine.scale(scale=1 / len(x)):
            pyro.sample("x", self.family(), obs=x)


class Guide(nn.Module):
    """There is nothing to guide."""

    def forward(self, x: Tensor) -> None:
        pass


def _family_and_data() -> tuple[JointSNEFY, Tensor]:
    pyro.set_rng_seed(0)
    x = torch.randn(STEPS, BATCH, 2, dtype=torch.float64)
    base = GaussianMixture(torch.zeros(3), torch.randn(3, 2), torch.ones(3, 2))
    return snefy(base, 8, 2).double().initialize(x[0]), x


def _train(elbo: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.05)
    for batch in x:
        optimizer.zero_grad()
        elbo(batch).backward()
        optimizer.step()


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=PROCESSES
    )
    family, x = _family_and_data()
    elbo = DistributedDataParallel(Trace_ELBO()(Model(family), Guide()))
    _train(elbo, x.chunk(PROCESSES, dim=1)[rank])
    torch.save(family.state_dict(), f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    # The destructor of a gloo group under DistributedDataParallel can deadlock with its own thread.
    os._exit(0)


def test_two_processes_are_one_with_the_joint_batch(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_work, (str(tmp_path),), nprocs=PROCESSES)
    family, x = _family_and_data()
    before = {name: value.clone() for name, value in family.state_dict().items()}
    _train(Trace_ELBO()(Model(family), Guide()), x)
    for rank in range(PROCESSES):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name, value in family.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9)
        for name, value in family.named_parameters():
            assert not torch.equal(value, before[name]), name
