r"""The arguments of a fit: as tensors of its module, and checked."""

__all__ = ["Inputs", "inputs"]

import inspect
from typing import NamedTuple

from torch import Tensor, nn
from torch.utils.data import DataLoader

from .rows import Data, Rows, as_tensor

_PIECE = 50_000  # rows of which a sum is taken at once


class Inputs(NamedTuple):
    """What a fit learns from, and what it validates on."""

    rows: Rows | DataLoader
    share: float  # of the rows that are held out
    held_out: Rows | None  # rows that were given to validate
    like: Tensor  # on the device and in the dtype of the module
    size: int | None  # the number of rows, if it is known

    def checksum(self) -> float | None:
        """A number that other rows hardly have, None if the rows are not in memory."""
        if isinstance(self.rows, DataLoader):
            return None
        parts = [self.rows.x, self.rows.context, self.rows.weights, self.rows.noise]
        pieces = (piece for x in parts if x is not None for piece in x.split(_PIECE))
        return sum(piece.double().nansum().item() for piece in pieces)  # no copy of all rows


def inputs(
    module: nn.Module,
    x: Data | DataLoader,
    context: Data | None,
    weights: Data | None,
    noise: Data | None,
    validation: float | Data | tuple[Data, ...],
    like: Tensor,
) -> Inputs:
    """The arguments of a fit as tensors of the module, checked."""
    share, held_out = 0.0, None
    if isinstance(validation, int | float):
        share = float(validation)
        if not 0 <= share < 1:
            raise ValueError(f"fit: expected a validation share in [0, 1), got {validation!r}.")
    else:
        parts = validation if isinstance(validation, tuple) else (validation, None)
        expected = (
            "a share, x or (x, context)" if noise is None else "a share or (x, context, noise)"
        )
        if len(parts) != (2 if noise is None else 3):
            raise ValueError(f"fit: expected validation to be {expected}, got {len(parts)} parts.")
        events, contexts, errors = (*parts, None)[:3]
        held_out = _rows("validation", module, events, contexts, None, errors, like)
    if isinstance(x, DataLoader):
        for name, value in (("context", context), ("weights", weights), ("noise", noise)):
            if value is not None:
                raise ValueError(f"fit: expected no {name} beside a DataLoader, got one.")
        return Inputs(x, share, held_out, like, None)
    rows = _rows("x", module, x, context, weights, noise, like)
    if not len(rows) - int(share * len(rows)):
        raise ValueError(f"fit: expected rows to train on, got x with {len(rows)} rows.")
    return Inputs(rows, share, held_out, like, len(rows))


def _rows(
    name: str,
    module: nn.Module,
    x: Data,
    context: Data | None,
    weights: Data | None,
    noise: Data | None,
    like: Tensor,
) -> Rows:
    x = as_tensor("fit", name, x, like)
    context = None if context is None else as_tensor("fit", "context", context, like)
    for label, value in ((name, x), ("context", context)):
        if value is not None and value.dim() < 1:
            raise ValueError(f"fit: expected {label} with one row for each event, got shape ().")
    if len(x) and x.isnan().all():
        raise ValueError(f"fit: expected {name} with observed values, got NaN alone.")
    for label, bad in (
        (name, x.isinf()),
        ("context", None if context is None else ~context.isfinite()),
    ):
        if bad is not None and bad.any():
            raise ValueError(
                f"fit: expected a finite {label}, got {int(bad.sum())} values that are not."
            )
    if context is not None and len(context) != len(x):
        raise ValueError(
            f"fit: expected one context for each row of {name}, got {len(context)} and {len(x)}."
        )
    try:
        inspect.signature(module.forward).bind(*(() if context is None else (context,)))
    except TypeError as error:
        kind = "a context" if context is None else "no context"
        raise TypeError(
            f"fit: expected {kind} for {type(module).__name__}, got "
            f"{'None' if context is None else tuple(context.shape)}: {error}."
        ) from None
    if weights is not None:
        weights = as_tensor("fit", "weights", weights, like)
        if weights.shape != x.shape[:1]:
            raise ValueError(
                f"fit: expected weights with shape ({len(x)},), got {tuple(weights.shape)}."
            )
        if not (weights.isfinite().all() and (weights >= 0).all() and weights.sum() > 0):
            raise ValueError("fit: expected weights >= 0, finite and not all zero.")
    return Rows(x, context, weights, None if noise is None else _noise(name, x, noise))


def _noise(name: str, x: Tensor, noise: Data) -> Tensor:
    noise = as_tensor("fit", "noise", noise, x)
    if noise.shape != x.shape:
        raise ValueError(
            f"fit: expected noise with the shape {tuple(x.shape)} of {name}, got "
            f"{tuple(noise.shape)}."
        )
    if x.isnan().any():
        raise ValueError(
            f"fit: expected {name} without NaN beside noise, got {int(x.isnan().sum())} NaN."
        )
    bad = ~(noise.isfinite() & (noise > 0))
    if bad.any():
        raise ValueError(
            f"fit: expected noise > 0 and finite, got {noise[bad][0].item()} and "
            f"{int(bad.sum())} such values in all."
        )
    found: Tensor = noise
    return found
