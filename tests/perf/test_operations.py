"""A training step has few operations, with validation too."""

import pytest

from tests.perf.operations import PATHS, count

pytestmark = pytest.mark.perf

# The most operations of forward and backward: without validation, with validation.
MOST = {
    "default likelihood": (220, 220),
    "location and scale, bias, readout": (330, 350),
}


@pytest.mark.parametrize("path", PATHS)
def test_operations(path: str) -> None:
    found = count(path, validation=False), count(path, validation=True)
    most = MOST.get(path)
    aim = "" if most is None else f"; aim: at most {most[0]} and {most[1]}"
    print(f"\n{path}: {found[0]} operations, {found[1]} with validation{aim}")
    if most is not None:
        assert found[0] <= most[0]
        assert found[1] <= most[1]
