r"""Exact samples of squared neural families, their distribution functions and quantiles."""

__all__ = [
    "Line",
    "NeuronLaw",
    "Sampler",
    "acceptance_rate",
    "cdf",
    "flatten",
    "icdf",
    "is_reparameterizable",
    "line",
    "pathwise",
    "register_neuron_law",
    "sample",
    "sampler",
]

from ..operations.quantiles import Line
from .draw import acceptance_rate, sample
from .neurons import NeuronLaw, register_neuron_law
from .samplers import Sampler, flatten, sampler
from .sequential import cdf, icdf, is_reparameterizable, line, pathwise
