r"""Squared neural families for Pyro."""

__all__ = [
    "SNEFY",
    "Bias",
    "Head",
    "LocationScale",
    "ReadoutHead",
    "SphereReparam",
    "activations",
    "bases",
    "conditional_snefy",
    "fit",
    "fit_readout",
    "kernels",
    "snefy",
    "to_inference_data",
]

from . import activations, bases, kernels
from .distributions import SNEFY
from .interop import SphereReparam, to_inference_data
from .learning import (
    Bias,
    Head,
    LocationScale,
    ReadoutHead,
    conditional_snefy,
    fit,
    fit_readout,
    snefy,
)
