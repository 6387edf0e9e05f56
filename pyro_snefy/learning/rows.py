r"""Rows of data: from arrays, frames, tensors or loaders to batches."""

__all__ = ["Data", "Loader", "Memory", "Rows", "as_tensor", "random_order"]

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..operations.missing import patterns_of
from .parallel import Processes

Data = Any  # a Tensor, an array or a data frame
_HELD_OUT = 10_000  # rows of a loader that are held in memory to validate
_PRIME = 2**31 - 1
_PATTERNS = 12  # of missing values in a batch, about: fewer would make its gradient noisy


def as_tensor(caller: str, name: str, value: Data, like: Tensor) -> Tensor:
    r"""A tensor, an array or a data frame as a tensor on the device of another one.

    Floating point numbers get the dtype of the other tensor; integers and booleans keep theirs.
    """
    if isinstance(value, Tensor):
        found = value.detach()
    elif isinstance(value, np.ndarray) or hasattr(value, "to_numpy"):
        array = value if isinstance(value, np.ndarray) else value.to_numpy()
        if array.dtype.kind not in "fiub":
            columns = getattr(value, "dtypes", array.dtype)
            raise TypeError(f"{caller}: expected {name} with numbers alone, got dtype {columns}.")
        # A copy, because the tensor would share an array that cannot be written, and because
        # tensors have no negative strides, which the columns of a frame may have.
        found = torch.as_tensor(array.copy(), device=like.device)
    else:
        raise TypeError(
            f"{caller}: expected {name} to be a Tensor, an array or a data frame, got {value!r}."
        )
    dtype = like.dtype if found.is_floating_point() and like.is_floating_point() else found.dtype
    return found.to(like.device, dtype)


@dataclass(frozen=True)
class Rows:
    r"""Events, with contexts, weights and errors of measurement, or None where there are none."""

    x: Tensor
    context: Tensor | None = None
    weights: Tensor | None = None  # with the mean one over the rows to learn from
    noise: Tensor | None = None  # standard deviations, with the shape of x

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor | slice) -> "Rows":
        """Some of the rows."""
        others = (self.context, self.weights, self.noise)
        return Rows(self.x[index], *(part if part is None else part[index] for part in others))

    def complete(self) -> "Rows":
        """The rows without NaN."""
        return self.take(~self.x.reshape(len(self), -1).isnan().any(-1))

    def normalized(self) -> "Rows":
        """The rows with weights of mean one, so that gradients have their usual sizes."""
        if self.weights is None:
            return self
        return replace(self, weights=self.weights / self.weights.mean())

    def split(self, size: int) -> list["Rows"]:
        """The rows in pieces, in their order."""
        return [self.take(slice(k, k + size)) for k in range(0, len(self), size)]


def random_order(count: int, device: torch.device) -> Tensor:
    r"""The numbers of rows in random order, which depends on how many rows there are alone.

    Rows that a fit holds out are thus rows that first values of the same data were not fitted to.
    """
    generator = torch.Generator("cpu").manual_seed(count)
    return torch.randperm(count, generator=generator, device="cpu").to(device)


class Memory:
    r"""Batches of rows that are in memory, shuffled each time.

    A batch with gaps costs a kernel for each of its patterns, see
    :mod:`~pyro_snefy.operations.missing`. Where there are many, the rows of a few batches are dealt
    anew, so that rows of one pattern meet. Which patterns meet changes each time.
    """

    def __init__(self, rows: Rows, batch_size: int, processes: Processes) -> None:
        self.rows, self.size, self.processes = rows, batch_size, processes
        self.dealt = 1  # batches whose rows are dealt anew
        if bool((gaps := rows.x.reshape(len(rows), -1).isnan()).any()):
            patterns, self.pattern = patterns_of(gaps)
            self.patterns, self.dealt = len(patterns), max(1, len(patterns) // _PATTERNS)

    def __len__(self) -> int:
        return -(-len(self.rows) // self.size)

    def batches(self) -> Iterator[tuple[Rows, int]]:
        """The share of this process in each batch, and the number of rows in all shares."""
        order = torch.randperm(len(self.rows), device=self.rows.x.device)
        self.processes.broadcast([order])
        order = order if self.dealt == 1 else self._by_pattern(order)
        for index in order.split(self.size):
            yield self.rows.take(index[self.processes.rank :: self.processes.size]), len(index)

    def _by_pattern(self, order: Tensor) -> Tensor:
        turns = torch.randperm(self.patterns, device=order.device)
        self.processes.broadcast([turns])
        pieces = order.split(self.dealt * self.size)
        return torch.cat([some[turns[self.pattern[some]].argsort(stable=True)] for some in pieces])


class Loader:
    r"""Batches from a :class:`torch.utils.data.DataLoader`.

    Under several processes, each has a loader of its own rows. Which rows are held out depends on
    their values alone, so that they are the same rows each time, in whatever order they come.
    """

    def __init__(
        self, loader: DataLoader, share: float, like: Tensor, processes: Processes
    ) -> None:
        try:
            self.steps = len(loader)
        except TypeError:
            raise TypeError(
                "fit: expected x to be a DataLoader with a length, got one of an iterable dataset "
                "without __len__."
            ) from None
        self.loader, self.share, self.like, self.processes = loader, share, like, processes

    def __len__(self) -> int:
        return self.steps

    def batches(self) -> Iterator[tuple[Rows, int]]:
        """The rows of each batch that are not held out, and their number in all processes."""
        for rows in self._all():
            kept = rows.take(~self._is_held_out(rows.x)) if self.share else rows
            yield kept, len(kept) * self.processes.size

    def held_out(self) -> Rows | None:
        """At most 10,000 of the rows that are held out."""
        if not self.share:
            return None
        found: list[Rows] = []
        for rows in self._all():
            found.append(rows.take(self._is_held_out(rows.x)))
            if sum(map(len, found)) >= _HELD_OUT:
                break
        context = None if found[0].context is None else _cat([one.context for one in found])
        rows = Rows(_cat([one.x for one in found]), context).take(slice(_HELD_OUT))
        return rows if len(rows) else None

    def _all(self) -> Iterator[Rows]:
        for batch in self.loader:
            yield _batch(batch, self.like)

    def _is_held_out(self, x: Tensor) -> Tensor:
        # A hash of the bits of a row, by integers, which are exact in any order.
        bits = x.reshape(len(x), -1).float().contiguous().view(torch.int32).long() % _PRIME
        factors = torch.arange(1, bits.shape[-1] + 1, device=x.device) * 48_271 % _PRIME
        mixed = (bits * factors % _PRIME).sum(-1) % _PRIME
        for _ in range(2):  # the generator of Park and Miller spreads neighbours
            mixed = mixed * 48_271 % _PRIME
        return mixed < self.share * _PRIME


def _batch(batch: Any, like: Tensor) -> Rows:
    if isinstance(batch, Tensor | np.ndarray):
        batch = (batch,)
    if not (isinstance(batch, list | tuple) and 1 <= len(batch) <= 2):
        raise TypeError(
            "fit: expected a DataLoader of batches x or (x, context), got a batch of type "
            f"{type(batch).__name__}."
        )
    parts = [as_tensor("fit", n, v, like) for n, v in zip(("x", "context"), batch, strict=False)]
    return Rows(*parts)


def _cat(parts: list[Any]) -> Tensor:
    return torch.cat(parts)
