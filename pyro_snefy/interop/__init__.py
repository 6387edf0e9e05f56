r"""Connections to Pyro's inference algorithms and to ArviZ."""

__all__ = ["SphereReparam", "to_inference_data"]

from .inference_data import to_inference_data
from .reparam import SphereReparam
