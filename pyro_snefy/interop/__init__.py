r"""Bridges to Pyro's inference and to ArviZ."""

__all__ = ["SphereReparam", "to_inference_data"]

from .inference_data import to_inference_data
from .reparam import SphereReparam
