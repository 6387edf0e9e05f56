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
    "autoregressive_snefy",
    "bases",
    "conditional_snefy",
    "divergences",
    "fit",
    "fit_readout",
    "kernels",
    "mixture",
    "point_process",
    "product",
    "snefy",
    "to_inference_data",
]

from . import activations, bases, divergences, kernels
from .distributions import SNEFY, PoissonProcess
from .distributions.algebra import mixture, product
from .interop import SphereReparam, to_inference_data
from .learning import (
    Bias,
    Head,
    LocationScale,
    ReadoutHead,
    autoregressive_snefy,
    conditional_snefy,
    fit,
    fit_readout,
    point_process,
    snefy,
)
