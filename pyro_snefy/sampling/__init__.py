r"""Exact samples of squared neural families."""

__all__ = [
    "NeuronLaw",
    "Sampler",
    "acceptance_rate",
    "find_sampler",
    "is_reparameterizable",
    "pathwise",
    "register_neuron_law",
    "sample",
]

from .draw import acceptance_rate, sample
from .neurons import NeuronLaw, register_neuron_law
from .samplers import Sampler, find_sampler
from .sequential import is_reparameterizable, pathwise
