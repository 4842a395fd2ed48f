"""Contestants that take turns in a benchmark: one model in one runtime with so many threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from qpd.bench.device_record import GoldenCheck
from qpd.bench.timed_calls import TimedTurn


class ContestantError(RuntimeError):
    """A contestant failed; the message is one line."""


class MissingError(ContestantError):
    """A contestant cannot run here; the message says what to install."""


class WrongAnswerError(ContestantError):
    """A contestant does not compute what it should."""


class Runner(Protocol):
    """A started model that can be timed."""

    def turn(self, seconds: float) -> TimedTurn:
        """Time single calls for `seconds`. Raises ContestantError."""

    def close(self) -> None:
        """End its process, if it has one."""


@dataclass
class Contestant:
    """One row of the table under construction; `runner` is None if it cannot run (any more)."""

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
    teacher: str | None = None  # the name of the teacher that a student is compared with
    turns: list[TimedTurn] = field(default_factory=list)

    def give_up(self, error: ContestantError) -> None:
        """Take no more turns; the row will give `error` as the reason."""
        self.error = error
        self.close()

    def close(self) -> None:
        """End its process, if there is one."""
        if self.runner is not None:
            self.runner.close()
            self.runner = None
