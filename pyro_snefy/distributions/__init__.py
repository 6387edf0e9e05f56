r"""Distributions of Pyro, each made of one network."""

__all__ = ["SNEFY", "Censored", "Marginal", "Observed", "PartiallyObserved", "PoissonProcess"]

from .censored import Censored
from .marginal import Marginal
from .observed import Observed
from .partially_observed import PartiallyObserved
from .poisson_process import PoissonProcess
from .snefy import SNEFY
