r"""Squared neural families for Pyro."""

__all__ = [
    "SNEFY",
    "SphereReparam",
    "activations",
    "bases",
    "conditional_snefy",
    "fit",
    "kernels",
    "snefy",
    "to_inference_data",
]

from . import activations, bases, kernels
from .conditional import conditional_snefy
from .fitting import fit
from .inference_data import to_inference_data
from .joint import snefy  # hides the submodule of this name, which has been imported by now
from .reparam import SphereReparam
from .snefy import SNEFY
