"""Run the rows of a vector environment: in this process, or worker processes beside it.

Both give the same numbers: a row's episodes depend on their seeds and actions alone.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from dataclasses import asdict
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from qpd.environments import worker
from qpd.environments.errors import EnvironmentConfigError, EnvironmentRunError
from qpd.environments.making import make_one
from qpd.environments.rows import Layout, Rows
from qpd.environments.source import EnvironmentSource
from qpd.errors.termination import Terminated
from qpd.machine.cores import usable_cores

Mask = NDArray[np.bool_]

# A worker takes a second to start, and 0.1 ms to be told of a step and to answer.
_LEAST_STEP_SECONDS = 20e-6
_LEAST_ROUND_SECONDS = 1e-3
_STEPS_TIMED = 40
_SECONDS_TO_CLOSE = 5.0
# Not `python -m`: the worker finds modules where this process does.
_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from qpd.environments.worker import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


class RowRunner(Protocol):
    """Reset and step rows; `arrays` are those of `Layout`."""

    arrays: dict[str, np.ndarray]

    def reset(self, mask: Mask) -> None:
        """Begin an episode in the rows of `mask`; EnvironmentRunError."""

    def begin(self, mask: Mask) -> None:
        """Set the rows of `mask` going, by their actions in `arrays`."""

    def finish(self) -> None:
        """Wait for the rows that were begun first; EnvironmentRunError."""

    def close(self) -> None:
        """Release the environments."""


class InProcess:
    """All rows in this process: they run when their step is finished."""

    def __init__(self, source: EnvironmentSource, max_frames: int | None, layout: Layout) -> None:
        self.arrays = layout.arrays(bytearray(layout.num_bytes))
        self._rows = Rows(source, max_frames, range(layout.num_envs), self.arrays)
        self._begun: deque[Mask] = deque()

    def reset(self, mask: Mask) -> None:
        """See `RowRunner`."""
        self._rows.reset(mask)

    def begin(self, mask: Mask) -> None:
        """See `RowRunner`."""
        self._begun.append(mask)

    def finish(self) -> None:
        """See `RowRunner`."""
        self._rows.step(self._begun.popleft())

    def close(self) -> None:
        """See `RowRunner`."""
        self._rows.close()


class WorkerProcesses:
    """Rows dealt out to `count` processes, whose arrays are memory shared with this one."""

    def __init__(
        self, source: EnvironmentSource, max_frames: int | None, layout: Layout, count: int
    ) -> None:
        """Start the processes and wait until all have made their environments.

        Raises EnvironmentConfigError where one cannot.
        """
        self._name = str(source)
        self._begun: deque[Mask] = deque()
        self._workers: list[tuple[subprocess.Popen[bytes], Connection]] = []
        self._close = weakref.finalize(self, _end_workers, self._workers)
        # No name in any folder: nothing is left behind, however this process ends.
        with tempfile.TemporaryFile(dir=_memory_folder()) as file:
            if hasattr(os, "posix_fallocate"):  # a full one is told here, and kills nobody later
                os.posix_fallocate(file.fileno(), 0, layout.num_bytes)
            else:
                file.truncate(layout.num_bytes)
            self.arrays = layout.arrays(mmap.mmap(file.fileno(), layout.num_bytes))
            order = {"source": source.to_json(), "max_frames": max_frames, "layout": asdict(layout)}
            for index in range(count):
                # Dealt out like cards: collectors step one half of the rows, then the other, and
                # either half shall keep all workers busy.
                rows = list(range(index, layout.num_envs, count))
                self._workers.append(_start(file.fileno(), {**order, "rows": rows}))
            self._shares = [np.arange(layout.num_envs) % count == i for i in range(count)]
            try:
                for index in range(count):
                    self._answer(index)
            except BaseException:
                self.close()
                raise

    def reset(self, mask: Mask) -> None:
        """See `RowRunner`."""
        self._tell(worker.RESET, mask)
        self._wait(mask)

    def begin(self, mask: Mask) -> None:
        """See `RowRunner`."""
        self._tell(worker.STEP, mask)
        self._begun.append(mask)

    def finish(self) -> None:
        """See `RowRunner`."""
        self._wait(self._begun.popleft())

    def close(self) -> None:
        """See `RowRunner`."""
        self._close()

    def _tell(self, what: bytes, mask: Mask) -> None:
        for index, share in enumerate(self._shares):
            if (mask & share).any():
                try:
                    self._workers[index][1].send_bytes(what + mask.tobytes())
                except OSError as error:
                    raise self._gone(index) from error

    def _wait(self, mask: Mask) -> None:
        failed: EnvironmentRunError | None = None
        for index, share in enumerate(self._shares):
            if (mask & share).any():
                try:
                    self._answer(index)
                except EnvironmentRunError as error:  # all answer: none is left for the next order
                    failed = failed or error
        if failed is not None:
            raise failed

    def _answer(self, index: int) -> None:
        try:
            answer = self._workers[index][1].recv_bytes()
        except (EOFError, OSError) as error:
            raise self._gone(index) from error
        text = answer[1:].decode()
        if answer[:1] == worker.NOT_MADE:
            raise EnvironmentConfigError(text)
        if answer[:1] == worker.FAILED:
            raise EnvironmentRunError(text)

    def _gone(self, index: int) -> EnvironmentRunError:
        try:
            code = self._workers[index][0].wait(1.0)
            how = f"by signal {-code}" if code < 0 else f"with status {code}"
        except (subprocess.TimeoutExpired, IndexError):
            how = "without a word"
        return EnvironmentRunError(f"{self._name}: a process that plays it ended {how}")


def make_rows(
    source: EnvironmentSource,
    max_frames: int | None,
    layout: Layout,
    workers: int | None,
    most_workers: int | None = None,
) -> RowRunner:
    """Make all rows in `workers` processes, 0 for this one, None for as many as pay.

    Of those that pay at most `most_workers`.

    Raises EnvironmentConfigError.
    """
    asked = workers is not None
    if workers is None:
        workers = workers_that_pay(source, layout.num_envs)
        workers = workers if most_workers is None else min(workers, most_workers)
    workers = min(workers, layout.num_envs)
    if workers < 1 or source.maker is not None or os.name != "posix":
        return InProcess(source, max_frames, layout)
    try:
        return WorkerProcesses(source, max_frames, layout, workers)
    except (EnvironmentConfigError, EnvironmentRunError, OSError):
        if asked:
            raise
        # What this process alone knows, such as an id that a script has registered.
        return InProcess(source, max_frames, layout)


def workers_that_pay(source: EnvironmentSource, num_envs: int) -> int:
    """Return how many worker processes step `num_envs` environments fastest, 0 for none."""
    cores = usable_cores()
    if cores < 2 or num_envs < 2 or source.maker is not None or os.name != "posix":
        return 0
    seconds = step_seconds(source)
    if seconds < _LEAST_STEP_SECONDS or seconds * num_envs < _LEAST_ROUND_SECONDS:
        return 0
    return min(cores, num_envs)


@lru_cache(maxsize=64)
def step_seconds(source: EnvironmentSource) -> float:
    """Measure the median time of a step with random actions; 0 where the environment fails."""
    env = make_one(source)
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        taken = []
        for _ in range(_STEPS_TIMED):
            action = env.action_space.sample()
            before = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            taken.append(time.perf_counter() - before)
            if terminated or truncated:
                env.reset()
        return float(np.median(taken))
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException:  # of a user's own class: the play itself will say so
        return 0.0
    finally:
        env.close()


def _start(memory: int, order: dict[str, object]) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start one worker, and send it what it is to make."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno()), str(memory)],
            pass_fds=(theirs.fileno(), memory),
            stdin=subprocess.DEVNULL,
            # One thread each: the processes fill the cores.
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    connection = Connection(ours.detach())
    connection.send_bytes(json.dumps(order).encode())
    return process, connection


def _memory_folder() -> str | None:
    """Return a folder in memory, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _end_workers(workers: list[tuple[subprocess.Popen[bytes], Connection]]) -> None:
    """Close all connections, on which workers end, and wait for them."""
    for _, connection in workers:
        connection.close()
    for process, _ in workers:
        try:
            process.wait(_SECONDS_TO_CLOSE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    workers.clear()
