r"""Modules that own the parameters of distributions, and how they are fitted."""

__all__ = [
    "Bias",
    "ConditionalSNEFY",
    "Head",
    "History",
    "JointSNEFY",
    "LocationScale",
    "ReadoutHead",
    "conditional_snefy",
    "fit",
    "snefy",
]

from .conditional import (
    Bias,
    ConditionalSNEFY,
    Head,
    LocationScale,
    ReadoutHead,
    conditional_snefy,
)
from .fitting import History, fit
from .joint import JointSNEFY, snefy
