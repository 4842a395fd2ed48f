"""What takes turns in a benchmark: one model in one runtime with so many threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from qpd.bench.device_record import GoldenCheck
from qpd.bench.timed_calls import TimedTurn


class ContestantError(RuntimeError):
    """A contestant that failed; one line says how."""


class MissingError(ContestantError):
    """A contestant that cannot run here; one line says what to install."""


class WrongAnswerError(ContestantError):
    """A contestant that computes something else than it should."""


class Runner(Protocol):
    """Something started that can be timed."""

    def turn(self, seconds: float) -> TimedTurn:
        """Time single calls for `seconds`. Raises ContestantError."""

    def close(self) -> None:
        """End it."""


@dataclass
class Contestant:
    """One row of the table in the making; `runner` is None once (or if) it cannot run."""

    runtime: str
    model: str
    size: str | None
    weight_bits: int
    threads: int
    runner: Runner | None = None
    error: ContestantError | None = None
    kernels: str | None = None
    file_bytes: int | None = None
    check: GoldenCheck | None = None
    turns: list[TimedTurn] = field(default_factory=list)

    def give_up(self, error: ContestantError) -> None:
        """Take no more turns; the row will say why."""
        self.error = error
        self.close()

    def close(self) -> None:
        """End its process."""
        if self.runner is not None:
            self.runner.close()
            self.runner = None
