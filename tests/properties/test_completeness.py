"""Nothing is left out: every kernel, sampler, activation and base is among the examples."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from pyro_snefy import activations, bases
from pyro_snefy.activations import Activation, FourierActivation, GaussianActivation
from pyro_snefy.bases import Base
from pyro_snefy.bases.mixture import BatchedMixture
from pyro_snefy.kernels import registry
from pyro_snefy.numerics.dispatch import Dispatcher
from pyro_snefy.sampling import neurons, samplers
from pyro_snefy.testing import check_kernel
from tests.cases import CASES, Case
from tests.properties.strategies import ACTIVATIONS, Call, every_base

# What is inherited from, and has no events of its own.
_ABSTRACT = {Base, bases.FourierBase, bases.LaplaceBase, bases.Pushforward}
_ABSTRACT_ACTIVATIONS = {Activation, FourierActivation, GaussianActivation}
BASE_CLASSES = [
    x
    for name in bases.__all__
    if inspect.isclass(x := getattr(bases, name)) and issubclass(x, Base) and x not in _ABSTRACT
]
_SEARCH = settings(max_examples=3000, derandomize=True, database=None, phases=[Phase.generate])


def _bases() -> st.SearchStrategy[Call]:
    return st.one_of([every_base((), "float64", kind) for kind in ("one", "several")])


@pytest.mark.parametrize("kind", BASE_CLASSES, ids=lambda kind: kind.__name__)
def test_every_base_is_drawn(kind: type[Base]) -> None:
    name = f"bases.{kind.__name__}"
    try:
        found = find(_bases(), lambda x: name in x.names(), settings=_SEARCH)
    except NoSuchExample:
        pytest.fail(f"no strategy in tests/properties/strategies.py draws {name}: add one")
    assert isinstance(found.build(), Base)


@pytest.mark.parametrize("name", activations.__all__)
def test_every_activation_is_drawn(name: str) -> None:
    kind = getattr(activations, name)
    drawn = {type(x.build()) for x in ACTIVATIONS}
    assert kind in drawn | _ABSTRACT_ACTIVATIONS, f"add {name} to ACTIVATIONS of the strategies"


def _entry(table: Dispatcher[Any], first: type, second: type) -> tuple[type, type] | None:
    """The registered pair that a lookup finds: the closest first type, then the closest second."""
    pairs = [(a, b) for a, b in table if issubclass(first, a) and issubclass(second, b)]
    return min(
        pairs,
        key=lambda pair: (first.__mro__.index(pair[0]), second.__mro__.index(pair[1])),
        default=None,
    )


def _inside(base: Base) -> Iterator[Base]:
    """The bases that kernels and samplers of a base are asked for."""
    for part in base.parts():
        yield part
        if isinstance(part, BatchedMixture):
            yield part.components
        if isinstance(part, bases.GaussianMixture):
            yield part.conditional([0], torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("table", "base_first"),
    [(registry._REGISTRY, False), (neurons._LAWS, False), (samplers._SAMPLERS, True)],
    ids=["kernels", "laws of neurons", "samplers"],
)
def test_every_registered_pair_has_a_case(table: Dispatcher[Any], base_first: bool) -> None:
    used = set()
    for case in CASES:
        for part in _inside(case.base()):
            pair = type(case.activation), type(part)
            used.add(_entry(table, *(pair[::-1] if base_first else pair)))
    # Examples of docstrings and other tests of the same process register kernels of their own.
    table = [pair for pair in table if all(_is_ours(kind) for kind in pair)]
    missing = [(a.__name__, b.__name__) for a, b in table if (a, b) not in used]
    assert not missing, f"no case of tests/cases.py uses {missing}: add one"


def _is_ours(kind: type) -> bool:
    return kind is getattr(sys.modules.get(kind.__module__), kind.__name__, None) and (
        kind.__module__.startswith("pyro_snefy.")
    )


def _pairs() -> list[Case]:
    """A case for each registered pair and activation, and for each base, of few coordinates."""
    found: dict[Any, Case] = {}
    for case in sorted(CASES, key=lambda case: case.base().num_statistics):
        latent = case.base().parts()[0]
        entry = _entry(registry._REGISTRY, type(case.activation), type(latent))
        found.setdefault((type(case.activation), entry), case)
        found.setdefault(case.base_name, case)
    return list(dict.fromkeys(found.values()))


@pytest.mark.parametrize("case", _pairs(), ids=str)
def test_kernels(case: Case) -> None:
    check_kernel(case.activation, case.base(), repeats=1)
