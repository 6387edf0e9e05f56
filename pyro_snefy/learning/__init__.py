r"""Modules that own the parameters of distributions, and their fit by maximum likelihood."""

__all__ = [
    "AutoregressiveSNEFY",
    "BaseHead",
    "Bias",
    "ConditionalPointProcess",
    "ConditionalSNEFY",
    "FitDefaults",
    "Head",
    "History",
    "JointSNEFY",
    "LocationScale",
    "Parameters",
    "PointProcess",
    "ReadoutHead",
    "autoregressive_snefy",
    "conditional_snefy",
    "fit",
    "fit_readout",
    "point_process",
    "snefy",
]

from .autoregressive import AutoregressiveSNEFY, autoregressive_snefy
from .conditional import ConditionalSNEFY, conditional_snefy
from .fitting import History, fit
from .heads import BaseHead, Bias, Head, LocationScale, Parameters, ReadoutHead
from .joint import JointSNEFY, snefy
from .point_process import ConditionalPointProcess, PointProcess, point_process
from .readout import fit_readout
from .settings import FitDefaults
