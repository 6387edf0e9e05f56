r"""Squared neural families for Pyro."""

__all__ = [
    "SNEFY",
    "BaseHead",
    "Bias",
    "Head",
    "LocationScale",
    "PoissonProcess",
    "ReadoutHead",
    "SphereReparam",
    "__version__",
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

from importlib.metadata import PackageNotFoundError, version

from . import activations, bases, divergences, kernels
from .distributions import SNEFY, PoissonProcess
from .distributions.algebra import mixture, product
from .interop import SphereReparam, to_inference_data
from .learning import (
    BaseHead,
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

try:
    __version__ = version("pyro-snefy")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"
