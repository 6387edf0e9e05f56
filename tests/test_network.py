"""What the network inside a family promises: built once, frozen, and Z computed once."""

import dataclasses
from typing import Any

import pyro
import pytest
import torch
from torch.testing import assert_close

from pyro_snefy import SNEFY, conditional_snefy
from pyro_snefy.activations import Activation, Cis, Cos, Exp, ReLU, Snake
from pyro_snefy.bases import Base, Gaussian, Product, Standardized, UniformCube, UniformSphere
from pyro_snefy.kernels import registry
from pyro_snefy.network import Network

F64 = torch.float64


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=F64)


class Calls:
    """Counts the calls of a method or function, which goes on as it was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.count = 0
        original = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("activation", [Cos(), Snake(), Exp(), ReLU()], ids=str)
def test_one_normalizer(
    activation: Activation, validate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = SNEFY(
        _randn(4, 2), _randn(5, 4), _randn(2, 4), activation=activation, validate_args=validate
    )
    normalizers, kernels = (
        Calls(monkeypatch, Network, name) for name in ("log_normalizer", "kernel")
    )
    law.log_prob(_randn(5, 2))
    assert normalizers.count == 1
    # A check of one row of a kernel without features takes its diagonal, neuron by neuron.
    assert kernels.count == (2 if validate and isinstance(activation, ReLU) else 1)


def test_one_normalizer_of_a_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    pyro.enable_validation(True)
    likelihood = conditional_snefy(2, context_dim=3)
    normalizers = Calls(monkeypatch, Network, "log_normalizer")
    likelihood.condition(torch.randn(5, 3)).log_prob(torch.randn(5, 2))
    assert normalizers.count == 1


def test_one_network(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = Calls(monkeypatch, Network, "build")
    law = SNEFY(_randn(4, 2), _randn(4), _randn(2, 4))
    for _ in range(2):
        law.log_prob(_randn(3, 2))
        law.sample((3,))
        law.expand([5]).log_normalizer  # noqa: B018
    assert networks.count == 1


def test_frozen() -> None:
    network = SNEFY(_randn(4, 2), _randn(4), _randn(2, 4))._network
    with pytest.raises(dataclasses.FrozenInstanceError):
        network.weight = _randn(4, 2)  # type: ignore[misc]


def test_parameters_change_in_place() -> None:
    """Nothing is kept between two calls."""
    weight = _randn(4, 2)
    law = SNEFY(weight, _randn(4), _randn(2, 4))
    law.log_prob(_randn(2))
    weight.mul_(0.5)
    other = SNEFY(weight, law.bias, law.readout)
    x = _randn(3, 2)
    assert_close(law.log_prob(x), other.log_prob(x))


@pytest.mark.parametrize(
    ("base", "kind"),
    [
        (UniformCube(2), Gaussian),
        (Standardized(Gaussian(_randn(2), _randn(2).exp()), _randn(2), _randn(2).exp()), Gaussian),
        (Product([UniformCube(1), UniformSphere(2)]), Product),
    ],
    ids=["cube", "standardized", "product"],
)
def test_kernels_see_no_pushforward(
    base: Base, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Base] = []
    original = registry.kernel

    def watched(activation: Activation, base: Base, weight: torch.Tensor) -> Any:
        seen.append(base)
        return original(activation, base, weight)

    monkeypatch.setattr("pyro_snefy.network.kernel", watched)
    d = base.num_statistics
    SNEFY(_randn(3, d), _randn(3), _randn(1, 3), base=base).log_normalizer  # noqa: B018
    assert seen
    for law in seen:
        assert isinstance(law, kind)
        assert law.latent(_randn(1)) is law


def test_real_networks() -> None:
    """Complex exponentials are cosines, twice the number, with the same square and normaliser."""
    readout = torch.complex(_randn(2, 3), _randn(2, 3))
    law = SNEFY(_randn(3, 2), _randn(3), readout, activation=Cis())
    network, x = law._network, _randn(5, 2)
    assert isinstance(network.real().activation, Cos)
    assert_close(network.real().log_square(x), network.log_square(x))
    assert_close(network.real().log_normalizer(), network.log_normalizer())
    neurons = torch.exp(1j * (x @ law.weight.mT + law.bias))
    expected = (neurons @ readout.mT).abs().square().sum(-1).log()
    assert_close(network.log_square(x), expected)
