r"""Checkpoints: files from which a fit that was killed goes on."""

__all__ = ["random_state", "read_checkpoint", "set_random_state", "write_checkpoint"]

import io
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .parallel import Processes


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replaces a file by a state, at once: the file is the old one or the new one at any time."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_checkpoint(path: Path, expected: dict[str, Any], group: Processes) -> Any:
    """The state in the file of the first process, or None if there is no file.

    Arguments:
        path: The name of the file.
        expected: Settings and sizes that the fit of the checkpoint had to have.
        group: The processes. The file of the first one counts: other machines may have none.
    """
    content = path.read_bytes() if group.rank == 0 and path.exists() else None
    content = group.share(content)
    if content is None:
        return None
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    for name, value in expected.items():
        if state["expected"].get(name) != value:
            raise ValueError(
                f"fit: expected a checkpoint of a fit with {name}={value!r}, got "
                f"{state['expected'].get(name)!r} in {path}; delete the file to start again."
            )
    return state


def random_state() -> dict[str, Any]:
    """The states of the random number generators of Python, NumPy and torch."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, torch.tensor(keys, device="cpu"), *rest),
        "torch": torch.get_rng_state(),
        "cuda": devices,
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Goes back to states of the random number generators."""
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy(), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
