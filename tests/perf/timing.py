"""Medians of interleaved runs, and peaks of memory."""

import resource
import statistics
import time
from collections.abc import Callable, Mapping


def medians(
    steps: Mapping[str, Callable[[], object]], seconds: float = 4.0, least: int = 5
) -> dict[str, float]:
    """Median times of several steps in seconds, taken in turns: all see the same noise.

    Arguments:
        steps: The steps by name.
        seconds: How long to measure for, warm-up not counted.
        least: The least number of runs of each.
    """
    for step in steps.values():
        step()
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or min(map(len, times.values())) < least:
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory() -> float:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
