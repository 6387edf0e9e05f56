r"""Distributions of Pyro, each made of one network."""

__all__ = [
    "SNEFY",
    "Autoregressive",
    "Censored",
    "Marginal",
    "Observed",
    "PartiallyObserved",
    "PoissonProcess",
    "WithAtoms",
]

from .atoms import WithAtoms
from .autoregressive import Autoregressive
from .censored import Censored
from .marginal import Marginal
from .observed import Observed
from .partially_observed import PartiallyObserved
from .poisson_process import PoissonProcess
from .snefy import SNEFY
