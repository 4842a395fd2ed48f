"""The parent's end of a worker process."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

from qpd.bench.contestant import ContestantError, MissingError
from qpd.bench.timed_calls import TimedTurn

START_SECONDS = 600.0  # enough for torch.compile on a small board
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class WorkerProcess:
    """A started worker; `logits`, float64 `[n, actions]`, are those of the golden observations.

    Of SB3's `predict` they are the actions, `[n]`.

    Raises MissingError if a package is missing, ContestantError if the process fails. Close it
    after use.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        threads = str(spec["threads"])
        # The worker finds this very qpd, also from a checkout that is not installed.
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        # A file and not a pipe: a runtime that writes many warnings would fill a pipe and hang.
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qpd.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Set before the libraries load: they read these once, at import.
            env=os.environ | dict.fromkeys(THREAD_VARIABLES, threads) | {"PYTHONPATH": path},
            text=True,
            encoding="utf-8",
        )
        # readline() takes no timeout; a thread and a queue do.
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.logits = np.array(self._ask(spec, START_SECONDS)["logits"])
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def turn(self, seconds: float) -> TimedTurn:
        """Time calls for `seconds`. Raises ContestantError if the process is gone."""
        return TimedTurn(**self._ask({"seconds": seconds}, START_SECONDS + seconds))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._lines.put(line)
        except ValueError:  # `close` closed the pipe while this thread was reading
            pass
        self._lines.put("")  # the end, which wakes whoever waits for an answer

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except BrokenPipeError:
            line = ""
        except queue.Empty as error:
            raise ContestantError(f"no answer within {seconds:.0f} s") from error
        if not line:
            raise ContestantError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise (MissingError if answer["is_missing"] else ContestantError)(answer["error"])
        return answer

    def _last_words(self) -> str:
        try:
            code = self._process.wait(timeout=30.0)
        except subprocess.TimeoutExpired:  # it closed its output but is still running
            return "the worker stopped answering"
        how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"the worker was {how}" if code < 0 else ": ".join([f"it {how}", *said[-1:]])
