"""Timing of single calls: the cost of one observation, not the throughput of a batch."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

WARM_UP = 5  # calls at the start of each turn, as other contestants had the caches in between


class TimedTurn(NamedTuple):
    """Times of single calls in microseconds; a hundredth of the calls took longer than p99."""

    calls: int
    median_us: float
    p99_us: float
    peak_rss_bytes: int


def time_calls(forward: Callable[[Any], Any], inputs: Sequence[Any], seconds: float) -> TimedTurn:
    """Time `forward` on each of `inputs` in turn for `seconds`, at least ten calls."""
    for i in range(WARM_UP):
        forward(inputs[i % len(inputs)])
    nanoseconds: list[int] = []
    clock, count = time.perf_counter_ns, len(inputs)
    was_enabled = gc.isenabled()
    # A collection in the middle of a call would be that call's time, and p99 would measure Python.
    gc.disable()
    try:
        end = clock() + int(seconds * 1e9)
        while True:
            value = inputs[len(nanoseconds) % count]
            began = clock()
            forward(value)
            after = clock()
            nanoseconds.append(after - began)
            if after >= end and len(nanoseconds) >= 10:
                break
    finally:
        if was_enabled:
            gc.enable()
    return summarize(nanoseconds)


def summarize(nanoseconds: Sequence[int]) -> TimedTurn:
    """Return median and p99 of at least one latency, and the memory of this process."""
    ordered, calls = sorted(nanoseconds), len(nanoseconds)
    # An order statistic without interpolation: exactly a hundredth of the calls took longer.
    p99 = ordered[calls - 1 - calls // 100]
    return TimedTurn(calls, ordered[calls // 2] / 1e3, p99 / 1e3, peak_rss_bytes())


def peak_rss_bytes() -> int:
    """Return the largest resident set that this process ever had, in bytes.

    On Linux this is VmHWM, as getrusage's maximum also counts the process that started this one.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        line = next(line for line in lines if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # macOS counts in bytes, every other system in kilobytes.
        return used if sys.platform == "darwin" else used * 1024
