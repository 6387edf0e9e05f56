r"""Squared neural families for Pyro."""

__all__ = ["SNEFY", "activations", "bases", "conditional_snefy", "kernels"]

from . import activations, bases, kernels
from .conditional import conditional_snefy
from .snefy import SNEFY
