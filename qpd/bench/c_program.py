"""The C export built on this machine, its golden test, and its benchmark program as a runner."""

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

PATIENCE = 600.0  # seconds beyond a turn: ten passes and the warm-up on a busy small board


class CProgram:
    """The benchmark program of the C export in `folder`, timed on the file `observations`.

    Constructing it builds it and runs its golden test: WrongAnswerError if that fails, MissingError
    without compiler or make, ContestantError if the code does not compile. Every turn starts the
    program again, as on a device without Python; that takes milliseconds and its first calls do
    not count.
    """

    def __init__(self, folder: Path, portable: bool, observations: Path) -> None:
        self._program = build(folder, portable)
        self._observations = observations
        self.line = self._run(0.0)  # kernels and bytes, which only the program knows

    def turn(self, seconds: float) -> TimedTurn:
        """Run the program once. Raises ContestantError."""
        try:
            return turn_of_line(self._run(seconds))
        except (KeyError, TypeError, ValueError) as error:
            raise ContestantError(f"qpd_bench: {error}") from error

    def close(self) -> None:
        """Do nothing: no process lives between turns."""

    def _run(self, seconds: float) -> dict[str, Any]:
        program = [str(self._program), str(seconds), str(self._observations)]
        # A small shell starts the program: Linux counts the memory of the process that starts one
        # towards its peak, which would be all of Python here.
        try:
            done = _call(["sh", "-c", '"$@"; exit $?', "sh", *program], timeout=seconds + PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise ContestantError(
                f"qpd_bench did not answer within {error.timeout:.0f} s"
            ) from error
        if done.returncode != 0:
            raise ContestantError(f"qpd_bench ended with {_outcome(done)}")
        try:
            line: dict[str, Any] = json.loads(done.stdout)
        except ValueError as error:
            raise ContestantError(f"qpd_bench printed no JSON: {done.stdout[:80]!r}") from error
        return line


def build(folder: Path, portable: bool) -> Path:
    """Compile test and benchmark by the bundle's Makefile, run the test, return the benchmark.

    Raises MissingError, ContestantError or WrongAnswerError.
    """
    compiler = c_compiler()
    if compiler is None:
        raise MissingError("needs a C compiler: gcc, clang or cc")
    if shutil.which("make") is None:
        raise MissingError("needs make")
    name = "portable" if portable else "simd"
    # Two builds in one folder: NAME keeps them apart. An empty PORTABLE means false to make.
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
    """Return the line that says what went wrong, or else the exit code."""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    # A compiler's last line is often "1 error generated"; the first with "error" names the cause.
    telling = [line for line in lines if "error" in line or "FAILED" in line]
    return next(iter(telling or lines[-1:]), f"exit code {done.returncode}")
