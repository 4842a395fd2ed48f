"""The C export built here, its golden test, and its benchmark program as a runner."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from qpd.bench.c_json import turn_of_line
from qpd.bench.contestant import ContestantError, MissingError, WrongAnswerError
from qpd.bench.timed_calls import TimedTurn
from qpd.machine.description import c_compiler

PATIENCE = 600.0  # seconds beyond a turn: ten passes and warming up, on a busy small board


class CProgram:
    """The benchmark program of the C export in `folder`; with `observations`, a file of them.

    Its golden test has passed: WrongAnswerError where it did not, MissingError without compiler or
    make, ContestantError where the code does not compile. A turn starts the program anew, as a
    device without Python does; it takes milliseconds and its first calls do not count.
    """

    def __init__(self, folder: Path, portable: bool, observations: Path) -> None:
        self._program = build(folder, portable)
        self._observations = observations
        self.line = self._run(0.0)

    def turn(self, seconds: float) -> TimedTurn:
        """One run of the program."""
        try:
            return turn_of_line(self._run(seconds))
        except (KeyError, TypeError, ValueError) as error:
            raise ContestantError(f"qpd_bench: {error}") from error

    def close(self) -> None:
        """Nothing runs between turns."""

    def _run(self, seconds: float) -> dict[str, Any]:
        program = [str(self._program), str(seconds), str(self._observations)]
        # Between us and the program stands a small shell: where the program is started by a
        # process, Linux counts that one's memory as the program's own peak.
        try:
            done = _call(["sh", "-c", '"$@"; exit $?', "sh", *program], timeout=seconds + PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise ContestantError(f"qpd_bench gave no answer in {error.timeout:.0f} s") from error
        if done.returncode != 0:
            raise ContestantError(f"qpd_bench ended with {_outcome(done)}")
        try:
            line: dict[str, Any] = json.loads(done.stdout)
        except ValueError as error:
            raise ContestantError(f"qpd_bench printed no JSON: {done.stdout[:80]!r}") from error
        return line


def build(folder: Path, portable: bool) -> Path:
    """Compile test and benchmark with the bundle's Makefile, run the test; the benchmark's path."""
    compiler = c_compiler()
    if compiler is None:
        raise MissingError("needs a C compiler: gcc, clang or cc")
    if shutil.which("make") is None:
        raise MissingError("needs make")
    name = "portable" if portable else "simd"
    variables = [f"CC={compiler}", f"NAME={name}", f"PORTABLE={'1' * portable}"]
    programs = [f"build/{name}/{program}" for program in ("qpd_test", "qpd_bench")]
    built = _call(["make", "-s", "-j2", *variables, *programs], folder)
    if built.returncode != 0:
        raise ContestantError(f"does not compile: {_outcome(built)}")
    tested = _call([str(folder / programs[0])])
    if tested.returncode != 0:
        raise WrongAnswerError(f"golden test: {_outcome(tested)}")
    return folder / programs[1]


def _call(
    command: list[str], folder: Path | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=timeout
    )


def _outcome(done: subprocess.CompletedProcess[str]) -> str:
    """The line that says what went wrong, or else the exit code."""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line or "FAILED" in line]
    return next(iter(telling or lines[-1:]), f"exit code {done.returncode}")
