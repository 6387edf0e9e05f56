r"""Modules that own the parameters of distributions, and their fit by maximum likelihood."""

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
    "fit_readout",
    "snefy",
]

from .conditional import ConditionalSNEFY, conditional_snefy
from .fitting import History, fit
from .heads import Bias, Head, LocationScale, ReadoutHead
from .joint import JointSNEFY, snefy
from .readout import fit_readout
