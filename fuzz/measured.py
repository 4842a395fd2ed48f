"""Processor time and memory of one input: what takes more than the bounds is a finding."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MAX_CPU_SECONDS = 5
MAX_ADDED_BYTES = 1 << 30
# For what never returns, which only a watch from outside can end: by the clock, on busy cores.
MAX_CLOCK_SECONDS = 20


@contextmanager
def bounded_work(
    max_cpu_seconds: float = MAX_CPU_SECONDS, max_added_bytes: int = MAX_ADDED_BYTES
) -> Iterator[None]:
    """Run the block; AssertionError if it took more processor time or memory than it may."""
    before, began = _peak_bytes(restart=True), time.process_time()
    try:
        yield
    finally:  # also of an input that is refused: an error may take its time
        seconds, added = time.process_time() - began, _peak_bytes() - before
        assert seconds <= max_cpu_seconds, f"{seconds:.1f} s; at most {max_cpu_seconds} s"
        assert added <= max_added_bytes, f"{added >> 20} MiB; at most {max_added_bytes >> 20} MiB"


def _peak_bytes(*, restart: bool = False) -> int:
    """Return the most memory that this process has had; `restart` counts from now on, on Linux."""
    if restart:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM:"))
        return int(peak.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
