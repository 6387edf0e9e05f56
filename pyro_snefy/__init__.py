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
    "distributions",
    "divergences",
    "fit",
    "fit_readout",
    "interop",
    "kernels",
    "learning",
    "mixture",
    "point_process",
    "product",
    "snefy",
    "to_inference_data",
]

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from . import activations, bases, distributions, divergences, interop, kernels, learning
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
    __version__ = _version("pyro-snefy")
except _PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"


def __dir__() -> list[str]:
    return sorted(__all__)
