"""What every test, and every example in a docstring, starts from.

Seeds are fixed: a test of draws or of a fit has one outcome on one machine. Its rate of false
alarms is over other seeds, as other versions of torch may draw other numbers from the same seed.
Tests of draws compute the rate. Tests of fits compare a loss with a margin, for which there is no
formula: they say how many of six other seeds failed. Six seeds without a failure leave a rate of up
to 11 % as likely as not.
"""

import os

import pyro
import pytest
import torch

torch.set_num_threads(1)  # the tests run in parallel processes


def _reset() -> None:
    # torch.compile and zuko switch validation off for the whole process.
    pyro.enable_validation(True)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    torch.set_default_dtype(torch.float32)


class FreshState:
    """Lets no test see what another left behind: seeds, parameters, validation, default dtype."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        _reset()  # before fixtures of a wider scope

    @pytest.fixture(autouse=True)
    def fresh_state(self) -> None:
        _reset()  # after them, however much randomness they used


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("MPLBACKEND", "Agg")
    # A plugin rather than a fixture of this folder, so that it holds for doctests too.
    config.pluginmanager.register(FreshState(), "fresh_state")
