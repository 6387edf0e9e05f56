r"""What a fit does where its caller leaves it open: epochs, batches and learning rates."""

__all__ = ["FitDefaults", "Settings", "defaults_of", "settings"]

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from .parameters import check_sizes


@dataclass(frozen=True)
class FitDefaults:
    r"""How a module is best fitted. A module states it as its attribute ``fit_defaults``.

    With :math:`N` rows, a batch has :math:`N / \text{batches}` rows, and a fit has
    :math:`\text{steps}` steps, both within bounds.

    Arguments:
        lr: The highest learning rate.
        batches: The number of batches in an epoch.
        batch_sizes: The least and the largest number of rows in a batch.
        steps: The number of steps.
        epochs: The least and the largest number of epochs.
        patience: The share of the epochs after which a fit without progress stops, after 30 epochs
            at least.
        averaged: The number of steps over which parameters are averaged before they are judged. The
            noise of minibatches averages out (Polyak and Juditsky, 1992).

    Example:
        >>> from pyro_snefy import snefy
        >>> snefy(2).fit_defaults.lr
        0.02
    """

    lr: float = 5e-3
    batches: int = 1
    batch_sizes: tuple[int, int] = (256, 256)
    steps: int = 3000
    epochs: tuple[int, float] = (200, math.inf)
    patience: float = 0.15
    averaged: int = 100


class Settings(NamedTuple):
    """The settings of one fit."""

    max_epochs: int
    batch_size: int
    lr: float
    patience: int


def settings(
    module: nn.Module,
    rows: int | None,
    max_epochs: int | None,
    batch_size: int | None,
    lr: float | None,
    patience: int | None,
) -> Settings:
    """The given settings, and the defaults of a module in place of None.

    Arguments:
        module: The module.
        rows: The number of rows, None if it is not known.
        max_epochs: As in :func:`~pyro_snefy.fit`.
        batch_size: As in :func:`~pyro_snefy.fit`.
        lr: As in :func:`~pyro_snefy.fit`.
        patience: As in :func:`~pyro_snefy.fit`.
    """
    defaults = defaults_of(module)
    if batch_size is None:
        least, most = defaults.batch_sizes
        batch_size = min(max(least, (rows or 0) // defaults.batches), most)
    check_sizes("fit", batch_size=batch_size)
    if max_epochs is None:
        steps = 20 if rows is None else -(-rows // batch_size)  # of an epoch
        fewest, longest = defaults.epochs
        max_epochs = int(min(max(fewest, defaults.steps // steps), longest))
        patience = max(30, int(defaults.patience * max_epochs)) if patience is None else patience
    patience = 30 if patience is None else patience
    check_sizes("fit", max_epochs=max_epochs, patience=patience)
    lr = defaults.lr if lr is None else lr
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"fit: expected a finite lr > 0, got {lr!r}.")
    return Settings(int(max_epochs), int(batch_size), float(lr), int(patience))


def defaults_of(module: nn.Module) -> FitDefaults:
    """How a module is best fitted, as it says itself, or as networks are in general."""
    found = getattr(module, "fit_defaults", None)
    return found if isinstance(found, FitDefaults) else FitDefaults()
