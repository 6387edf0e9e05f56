r"""Exact samples of squared neural families."""

__all__ = [
    "NeuronLaw",
    "Sampler",
    "acceptance_rate",
    "is_reparameterizable",
    "pathwise",
    "register_neuron_law",
    "sample",
    "sampler",
]

from .draw import acceptance_rate, sample
from .neurons import NeuronLaw, register_neuron_law
from .samplers import Sampler, sampler
from .sequential import is_reparameterizable, pathwise
