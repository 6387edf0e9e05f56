r"""Squared neural families for Pyro."""

__all__ = ["SNEFY", "activations", "bases", "kernels"]

from . import activations, bases, kernels
from .snefy import SNEFY
