"""Envelopes of samplers hold at many more points than the tests have time for."""

import pytest

from tests.cases import Case
from tests.test_sampling import REJECTED, _assert_envelope, _seed

pytestmark = pytest.mark.perf


@pytest.mark.parametrize("case", REJECTED, ids=str)
def test_a_million_points(case: Case) -> None:
    _seed(case, "million")
    d = case.distribution()
    for _ in range(10):
        _assert_envelope(d, 100_000)
