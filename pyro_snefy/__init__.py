r"""Squared neural families for Pyro."""

__all__ = [
    "SNEFY",
    "Bias",
    "Head",
    "LocationScale",
    "PoissonProcess",
    "ReadoutHead",
    "SphereReparam",
    "activations",
    "bases",
    "conditional_snefy",
    "fit",
    "kernels",
    "point_process",
    "snefy",
    "to_inference_data",
]

from . import activations, bases, kernels
from .distributions import SNEFY, PoissonProcess
from .interop import SphereReparam, to_inference_data
from .learning import (
    Bias,
    Head,
    LocationScale,
    ReadoutHead,
    conditional_snefy,
    fit,
    point_process,
    snefy,
)
