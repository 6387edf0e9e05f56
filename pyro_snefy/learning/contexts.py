r"""Contexts: modules check them, and standardise them by units from data."""

__all__ = ["ContextModule"]

import math

import torch
from torch import Tensor, nn

from .rows import Data, as_tensor
from .statistics import clip_far, spread


class ContextModule(nn.Module):
    r"""A module that depends on contexts :math:`c`, in the units of a sample of them.

    .. math:: (c - l) / s, \quad l = \text{mean of } c, \quad s = \text{standard deviation of } c

    The buffers ``context_loc`` and ``context_scale`` hold :math:`l` and :math:`s`, with shape
    :math:`(\text{context\_dim})`. Rows that are far from the others hardly move them.
    """

    context_loc: Tensor
    context_scale: Tensor

    def _add_context(self, context_dim: int) -> None:
        self.register_buffer("context_loc", torch.zeros(context_dim))
        self.register_buffer("context_scale", torch.ones(context_dim))

    def _check_context(self, context: Tensor, loc: Tensor) -> None:
        name = type(self).__name__
        if not isinstance(context, Tensor):
            raise TypeError(f"{name}: expected context to be a Tensor, got {context!r}.")
        if context.shape[-1:] != loc.shape:
            raise ValueError(
                f"{name}: expected context with shape (*, {len(loc)}), got {tuple(context.shape)}."
            )

    def _set_context_units(self, context: Data, rows: int) -> Tensor:
        # Returns the contexts as a tensor of the module.
        name, like = type(self).__name__, self.context_loc
        context = as_tensor(name, "context", context, like).to(like)
        self._check_context(context, like)
        if context.shape[:-1] != (rows,) or not context.isfinite().all():
            raise ValueError(
                f"{name}: expected a finite context with shape {(rows, len(like))}, one row for "
                f"each row of x, got shape {tuple(context.shape)} with "
                f"{int((~context.isfinite()).sum())} other values."
            )
        near = clip_far(context)
        self.context_loc.copy_(near.mean(0))
        self.context_scale.copy_(spread(near) * math.sqrt(rows / max(rows - 1, 1)))
        return context

    def _standardized_context(self, context: Tensor) -> Tensor:
        loc = self.context_loc  # each look at a buffer takes as long as a small operation
        self._check_context(context, loc)
        units = (context - loc) / self.context_scale
        if units.dtype != loc.dtype:
            raise TypeError(
                f"{type(self).__name__}: expected context with the dtype {loc.dtype} "
                f"of the module, got {context.dtype}; convert one of them."
            )
        return units
