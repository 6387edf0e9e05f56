r"""Distributions of Pyro, each made of one network."""

__all__ = ["SNEFY", "Marginal", "Observed", "PartiallyObserved"]

from .marginal import Marginal
from .observed import Observed
from .partially_observed import PartiallyObserved
from .snefy import SNEFY
