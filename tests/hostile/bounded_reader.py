"""A child process that reads hostile files, each in a fork with limits on memory and time.

`python -m tests.hostile.bounded_reader` reads lines of JSON `[target, path]` and answers each with
a line.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

MEMORY_BYTES = 1 << 30  # what reading one file may add, in address space
CPU_SECONDS = 10

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """`kind` is read, refused or crashed; `lines` are the error's, or the traceback's end."""

    kind: str
    lines: list[str]
    cpu_seconds: float
    added_bytes: int


def refused(outcome: Outcome, expected: str = "", most_mib: int = 100) -> None:
    """Assert that a file was refused in lines, one of which holds `expected`, within bounds."""
    assert outcome.kind == "refused", outcome
    assert outcome.added_bytes < most_mib << 20 and outcome.cpu_seconds < CPU_SECONDS, outcome
    assert any(expected in line for line in outcome.lines), outcome
    assert "MemoryError" not in str(outcome.lines)
    assert all("\n" not in line and line.strip() for line in outcome.lines)


class BoundedReader:
    """The child process; use it with `with`."""

    def __enter__(self) -> Self:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.bounded_reader"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it."""
        self._process.communicate()

    def read(self, target: str, path: Path) -> Outcome:
        """Return what `target`, a parser of `fuzz.targets`, makes of the file or folder `path`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([target, str(path)]) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))


def _in_fork(target: str, path: str) -> dict[str, Any]:
    """Read in a fork, so that neither limits nor a crash of native code outlive one file."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.write(writing, json.dumps(_limited_read(target, path)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if status == 0 and answer:
        found: dict[str, Any] = json.loads(answer)
        return found
    lines = [f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "no answer"]
    return {"kind": "crashed", "lines": lines, "cpu_seconds": 0.0, "added_bytes": 0}


def _limited_read(target: str, path: str) -> dict[str, Any]:
    from fuzz.targets import TARGETS

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    before, began = _peak_bytes(), time.process_time()
    parser = TARGETS[target]
    kind, lines = "read", []
    try:
        parser.read(Path(path))
    except parser.error as error:
        kind, lines = "refused", list(getattr(error, "lines", [str(error)]))
    except BaseException as error:  # the test shows what it was
        kind, lines = "crashed", [f"{type(error).__name__}: {error}"[:500]]
    return {
        "kind": kind,
        "lines": [line[:3000] for line in lines[:10]],
        "cpu_seconds": time.process_time() - began,
        "added_bytes": _peak_bytes() - before,
    }


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Answer until stdin ends."""
    import fuzz.targets  # noqa: F401  (once, before any fork)

    for line in sys.stdin:
        print(json.dumps(_in_fork(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
