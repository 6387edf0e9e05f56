r"""Which parameters a fit keeps: scores, averages and the best values so far."""

__all__ = ["Average", "Best", "Score", "bounded_mean"]

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# A row counts for at most these nats above the median, or ten times the distance from the median to
# the 90th percentile. Rows of a law that fits exceed it once in 500,000.
_BOUND, _REACH = 20.0, 10.0


class Score(NamedTuple):
    """The mean negative log-likelihood of validation rows, and rows that count for less in it."""

    value: float
    extremes: Tensor  # the numbers of rows above the bound, the worst first


def bounded_mean(values: Tensor, weights: Tensor | None) -> Score:
    r"""The weighted mean of values that are cut at max(20, 10 (q90 - q50)) above their median."""
    ordered = values.sort().values
    middle, high = ordered[len(values) // 2], ordered[int(0.9 * (len(values) - 1))]
    bound = middle + torch.clamp(_REACH * (high - middle), min=_BOUND)
    weights = torch.ones_like(values) if weights is None else weights.to(values.dtype)
    mean = (torch.minimum(values, bound) * weights).sum() / weights.sum()
    above = (values > bound).nonzero().squeeze(-1)
    return Score(mean.item(), above[values[above].argsort(descending=True)])


class Average:
    r"""An average of parameters over the last steps, with weights that decay."""

    def __init__(self, parameters: list[nn.Parameter], span: int) -> None:
        self.parameters, self.span, self.steps = parameters, span, 0
        self.values = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Takes the present parameters into the average."""
        self.steps += 1
        if self.span > 1:
            # Over few steps at first: these lead away from the start.
            share = max(1 / self.span, 10 / (9 + self.steps))
            for value, parameter in zip(self.values, self.parameters, strict=True):
                value.lerp_(parameter, share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The parameters are the averages for a while."""
        if self.span == 1:
            yield
            return
        own = [p.detach().clone() for p in self.parameters]
        self._set(self.values)
        try:
            yield
        finally:
            self._set(own)

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)


class Best:
    r"""A copy of the parameters and buffers of a module at its lowest score, the start included."""

    def __init__(self, module: nn.Module, score: Score) -> None:
        self.tensors = [*module.parameters(), *module.buffers()]
        self.start = score.value if math.isfinite(score.value) else math.inf
        self.lowest, self.waited = math.inf, 0  # of the epochs: patience is not about the start
        self.values = self.first = self._copies()
        self.extremes = score.extremes

    @torch.no_grad()
    def _copies(self) -> list[Tensor]:
        return [tensor.clone() for tensor in self.tensors]

    def offer(self, score: Score | None) -> bool:
        """Whether a score is the lowest of the epochs so far, or None.

        The present values are kept if the score is lower than at the start, too.
        """
        if score is not None and score.value >= self.lowest:
            self.waited += 1
            return False
        self.lowest, self.waited = math.inf if score is None else score.value, 0
        if score is None or score.value < self.start:
            self.values = self._copies()
            self.extremes = self.extremes if score is None else score.extremes
        return True

    def offer_end(self, score: Score) -> None:
        """Goes back to the start if the score of the end is higher."""
        if not score.value <= self.start:
            self.values = self.first
            self.restore()

    @torch.no_grad()
    def restore(self) -> None:
        """Writes the best values back into the module."""
        for tensor, value in zip(self.tensors, self.values, strict=True):
            tensor.copy_(value)

    def state(self) -> dict[str, Any]:
        """Everything but the module, for a checkpoint."""
        names = ("start", "lowest", "waited", "first", "extremes")
        other = None if self.values is self.first else self.values
        return {"values": other, **{name: getattr(self, name) for name in names}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes back to what :meth:`state` returned."""
        values = state.pop("values")
        for name, value in state.items():
            setattr(self, name, value)
        self.values = self.first if values is None else values
