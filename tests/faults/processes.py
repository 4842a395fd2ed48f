"""Starting `qpd` in processes of its own: from nothing, or forked from one that has imported it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0


class Process(Protocol):
    """A running `qpd`."""

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""

    def poll(self) -> int | None:
        """Exit code, negative for a signal's; None while it runs."""

    def errors(self) -> str:
        """Return what it wrote on stderr."""


class Starter(Protocol):
    """Describe who starts them; `name` is what the tables call it."""

    name: str

    def start(self, arguments: Sequence[str | Path], log: Path) -> Process:
        """Start `qpd ARGUMENTS`, stderr to `log`."""


def wait(process: Process) -> int:
    """The exit code. Raises AssertionError where there is none within minutes."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        code = process.poll()
        if code is not None:
            return code
        time.sleep(0.002)
    process.send(signal.SIGKILL)
    raise AssertionError(f"a process did not end: {process.errors()}")


def run_to_end(starter: Starter, arguments: Sequence[str | Path], log: Path) -> tuple[int, str]:
    """Exit code and stderr of `qpd ARGUMENTS`."""
    process = starter.start(arguments, log)
    return wait(process), process.errors()


class _Plain:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def poll(self) -> int | None:
        return self._process.poll()

    def errors(self) -> str:
        return self._log.read_text(errors="replace")


class PlainStarter:
    """`python -m qpd.cli`, as a user would."""

    name = "python -m qpd.cli"

    def start(self, arguments: Sequence[str | Path], log: Path) -> Process:
        """See Starter."""
        command = [sys.executable, "-m", "qpd.cli", *map(str, arguments)]
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        return _Plain(process, log)


class _Forked:
    def __init__(self, server: ForkStarter, pid: int, log: Path) -> None:
        self._server, self._pid, self._log = server, pid, log
        self._code: int | None = None

    def send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self._pid, number)

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._server.ask(poll=self._pid)
        return self._code

    def errors(self) -> str:
        return self._log.read_text(errors="replace")


class ForkStarter:
    """Forks of one process that has imported everything: a start costs no seconds."""

    name = "forked"

    def __init__(self, *, without_powers: bool = False) -> None:
        """Start the server; `without_powers`, permissions stop its runs even where they are root's.

        That takes the program setpriv.
        """
        bound = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        self._server = subprocess.Popen(
            [*(bound * without_powers), sys.executable, "-m", "tests.faults.fork_server"],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, arguments: Sequence[str | Path], log: Path) -> Process:
        """See Starter."""
        log.touch()
        pid = self.ask(arguments=[str(argument) for argument in arguments], log=str(log))
        assert pid is not None
        return _Forked(self, pid, log)

    def ask(self, **question: object) -> int | None:
        """One line there, one number (or null) back."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        answer: int | None = json.loads(self._server.stdout.readline())
        return answer

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the server."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()
