r"""Modules that own the tensors of immutable values."""

__all__ = ["BaseModule"]

from torch import nn

from .bases import Base


class BaseModule(nn.Module):
    r"""A module that owns the tensors of a base, and moves and saves them with the others.

    Arguments:
        base: The base.

    Example:
        >>> import torch
        >>> from pyro_snefy.bases import Poisson
        >>> BaseModule(Poisson(torch.tensor(2.0))).double()().rate.dtype
        torch.float64
    """

    def __init__(self, base: Base) -> None:
        super().__init__()
        self._base = base
        for k, (_, value) in enumerate(base.tensors()):
            self.register_buffer(f"tensor_{k}", value)

    def forward(self) -> Base:
        """The base, made of the tensors as they are now."""
        tensors = iter(self.buffers())
        return self._base.map(lambda _: next(tensors))
