"""Tensors are made where the parameters are, and nobody waits for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.profiler import profile, record_function
from torch.testing import assert_close

from pyro_snefy import SNEFY
from pyro_snefy.bases import Base
from tests import cases
from tests.cases import BASES, CASES, KINDS, Case, events

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Sends to another device every tensor that is made without naming one.

    Tensors of the meta device hold no numbers: whatever meets one of them fails, or is on that
    device itself.
    """
    with torch.device("meta"):
        yield


def _evaluate(case: Case, base: Base, x: Tensor, parameters: dict[str, Tensor]) -> dict[str, Any]:
    """All that a distribution can do, by name."""
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    d = SNEFY(**leaves, activation=case.activation, base=base)
    values: dict[str, Any] = {
        "log_prob": d.log_prob(x),
        "log_normalizer": d.log_normalizer,
        "support": d.support.check(x),
    }
    values["log_prob"].sum().backward()
    values |= {f"gradient of {name}": leaf.grad for name, leaf in leaves.items()}
    values |= {f"constraint of {k}": c.check(leaves[k]) for k, c in d.arg_constraints.items()}
    if d.has_enumerate_support:
        values["points"] = d.enumerate_support()
    if x.dtype == torch.float64:  # the dtype of these computations, whatever the parameters
        values["expanded"] = d.expand((len(x),)).log_prob(x)
        values["condition_number"] = d.condition_number
        for name in ("mean", "covariance_matrix" if d.event_shape else "variance"):
            try:
                values[name] = getattr(d, name)
            except NotImplementedError:
                values[name] = None
    return values


@DTYPES
@pytest.mark.parametrize("case", KINDS, ids=str)
def test_another_default_device(case: Case, dtype: torch.dtype) -> None:
    d, x, base = case.distribution(dtype), events(case, 4, dtype), case.base(dtype)
    parameters = {k: getattr(d, k) for k in ("weight", "bias", "readout")}
    parameters = {k: value for k, value in parameters.items() if value is not None}
    expected = _evaluate(case, base, x, parameters)
    with _elsewhere():
        found = _evaluate(case, base, x, parameters)
    for name, value in expected.items():
        if value is None:
            assert found[name] is None, name
            continue
        assert found[name].device == x.device, name
        assert_close(found[name], value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", BASES)
def test_construction_of_bases(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = cases._t
    expected = dict(BASES[name].build().tensors())

    def here(*values: float) -> Tensor:
        with torch.device("cpu"):
            return tensor(*values)

    monkeypatch.setattr(cases, "_t", here)
    with _elsewhere():
        found = dict(BASES[name].build().tensors())
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


@DTYPES
def test_default_base(dtype: torch.dtype) -> None:
    parameters = torch.randn(3, 2, dtype=dtype), None, torch.randn(1, 3, dtype=dtype)
    x = torch.randn(4, 2, dtype=dtype)
    with _elsewhere():
        found = SNEFY(*parameters).log_prob(x)
    assert torch.equal(found, SNEFY(*parameters).log_prob(x))


# A number that Python looks at, or a shape that depends on numbers, waits for the device.
SYNCHRONISING = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::is_nonzero",
    "aten::item",
    "aten::masked_select",
    "aten::nonzero",
    "aten::_unique2",
    "aten::unique_dim",
}


def _synchronising(run: profile) -> set[tuple[str, str]]:
    # Pairs of the label of a block and the operation in it.
    if SYNCHRONISING.isdisjoint(event.name() for event in run.kineto_results.events()):
        return set()  # without the tree of events, which takes its time
    found = set()
    for event in run.function_events:
        if event.name in SYNCHRONISING:
            outer = event
            while outer.cpu_parent is not None:
                outer = outer.cpu_parent
            found.add((outer.name, event.name))
    return found


@pytest.mark.parametrize("name", BASES)
def test_no_waiting_for_the_device(name: str) -> None:
    """Neither a density nor its gradient looks at numbers, once validation is off.

    The profiler sees it. A dispatch mode would not: torch takes other ways backwards through some
    functions, products among them, when there is one.
    """
    base, runs = BASES[name].build(), []
    for case in [case for case in CASES if case.base_name == name]:
        d, x = case.distribution(), events(case, 4)
        leaves = [t for t in (d.weight, d.bias, d.readout) if t is not None]
        x = x.requires_grad_()
        runs.append((case, [leaf.clone().requires_grad_() for leaf in leaves], x))
    with profile() as run:
        for case, leaves, x in runs:
            with record_function(str(case)):
                weight, *bias, readout = leaves
                d = SNEFY(
                    weight,
                    *(bias or [None]),
                    readout,
                    activation=case.activation,
                    base=base,
                    validate_args=False,
                )
                d.log_prob(x).sum().backward()
    assert not _synchronising(run)


def test_waiting_is_seen() -> None:
    x = torch.tensor([0.5, 2.0], requires_grad=True)
    with profile() as run:
        with record_function("number"):
            x.sum().item()
        with record_function("product"):
            x.prod(-1).backward()
    assert {label for label, _ in _synchronising(run)} == {"number", "product"}
