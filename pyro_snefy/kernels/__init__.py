r"""Closed forms of the neural network kernel, found by the types of activation and base."""

__all__ = [
    "Features",
    "Form",
    "Kernel",
    "Pairwise",
    "Separable",
    "closed_form",
    "kernel",
    "register_kernel",
]

from ..numerics.forms import Features, Form
from . import composite, fourier, gaussian, homogeneous, laplace, piecewise  # noqa: F401
from .kernel import Kernel, Pairwise, Separable
from .registry import closed_form, kernel, register_kernel
