r"""Distributions of Pyro, each made of one network."""

__all__ = ["SNEFY", "Censored", "Marginal", "PartiallyObserved"]

from .censored import Censored
from .marginal import Marginal
from .partially_observed import PartiallyObserved
from .snefy import SNEFY
