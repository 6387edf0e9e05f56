r"""The course of a fit."""

__all__ = ["History"]

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class History:
    r"""The course of a fit.

    Arguments:
        train_nll: The mean negative log-likelihood of the training rows, averaged over each epoch.
        validation_nll: The mean negative log-likelihood of the validation rows, after each epoch,
            where no row counts for more than a bound, see :func:`~pyro_snefy.fit`. It is empty if
            there are no validation rows.
        best_epoch: The epoch whose parameters were kept, counted from 0.
        kept_start: Whether the parameters before the first epoch were better than after all
            epochs, and were kept instead.
        interrupted: Whether Ctrl-C ended the fit.
        final_nll: The validation value after the last improvement, which is a convex fit of the
            readout or a recalibration. None if there was none, or if it was not better.

    Example:
        >>> History(train_nll=[1.5, 1.2], validation_nll=[1.6, 1.4], best_epoch=1).best_epoch
        1
    """

    train_nll: list[float] = field(default_factory=list)
    validation_nll: list[float] = field(default_factory=list)
    best_epoch: int | None = None
    interrupted: bool = False
    kept_start: bool = False
    final_nll: float | None = None

    def plot(self, ax: Any = None) -> Any:
        """Draws the curves with matplotlib, and returns the axes.

        In a callback of :func:`~pyro_snefy.fit`, clear the axes first: ``ax.clear()``.

        Arguments:
            ax: The axes to draw in. If None, new ones.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots()
        ax.plot(range(1, len(self.train_nll) + 1), self.train_nll, label="train")
        if self.validation_nll:
            epochs = range(1, len(self.validation_nll) + 1)
            ax.plot(epochs, self.validation_nll, label="validation")
        if self.best_epoch is not None and not self.kept_start:
            ax.axvline(self.best_epoch + 1, ls=":", c="grey", label="kept")
        ax.set(xlabel="epoch", ylabel="negative log-likelihood (nats)")
        ax.legend(frameon=False)
        return ax

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the history to a file, as JSON.

        Arguments:
            path: The name of the file.
        """
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "History":
        """Reads a history from a file that :meth:`save` has written.

        Arguments:
            path: The name of the file.
        """
        return cls(**json.loads(Path(path).read_text()))
