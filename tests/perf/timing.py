"""Medians of interleaved runs, and peaks of memory."""

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def medians(
    steps: Mapping[str, Callable[[], object]], seconds: float = 4.0, least: int = 5
) -> dict[str, float]:
    """Median times of several steps in seconds of this process, taken in turns.

    All see the same noise, and what other processes do is not counted.

    A step runs a few times in its turn, and the first of them is not counted: it finds the caches,
    and the memory that it needs, in the state that the step before has left, which may have filled
    hundreds of megabytes and given them back. A training loop runs after itself.

    Arguments:
        steps: The steps by name.
        seconds: How long to measure for, warm-up not counted.
        least: The least number of turns of each.
    """
    for step in steps.values():
        step()
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    start, turns = time.perf_counter(), 0
    while time.perf_counter() - start < seconds or turns < least:
        for name, step in steps.items():
            step()
            for _ in range(2):
                begin = time.process_time()
                step()
                times[name].append(time.process_time() - begin)
        turns += 1
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory() -> float:
    """The most memory that this process has had, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # what the process that started this one had does not count here
        (line,) = (x for x in status.read_text().splitlines() if x.startswith("VmHWM:"))
        return float(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
