r"""Several processes that fit one module, as ``torchrun`` starts them."""

__all__ = ["Processes", "processes"]

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    r"""The number of this process, and of all processes."""

    rank: int = 0
    size: int = 1

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Replaces tensors by their sums over all processes."""
        if self.size > 1:
            for x in tensors:
                dist.all_reduce(x.detach())

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Replaces tensors by the ones of the first process."""
        if self.size > 1:
            for x in tensors:
                dist.broadcast(x.detach(), 0)

    def share(self, value: Any) -> Any:
        """The object of the first process."""
        if self.size == 1:
            return value
        found = [value]
        dist.broadcast_object_list(found, 0)
        return found[0]


@contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    r"""The processes of the default group, or of a group that is made for ``torchrun``."""
    if not dist.is_available():
        yield Processes()
        return
    own = not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if own and "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        if dist.is_initialized():
            yield Processes(dist.get_rank(), dist.get_world_size())
        else:
            yield Processes()
    finally:
        if own and dist.is_initialized():
            dist.destroy_process_group()
