r"""Distributions of Pyro, each made of one network."""

__all__ = ["SNEFY", "Censored", "Marginal", "PartiallyObserved", "PoissonProcess"]

from .censored import Censored
from .marginal import Marginal
from .partially_observed import PartiallyObserved
from .poisson_process import PoissonProcess
from .snefy import SNEFY
