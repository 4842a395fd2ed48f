"""The time left of a whole run: what its phases still have to do, at the speed measured so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

EVALUATING = "evaluating"  # how the names of the games that end a run begin


@dataclass(frozen=True)
class WorkAhead:
    """The work of a run: samples of each training phase that is not done, in order, and games.

    `games` are the final evaluation's; those of validations count as part of training.
    """

    samples: Mapping[str, int]
    games: int


@runtime_checkable
class HearsWork(Protocol):
    """A progress display that also wants to know what the whole run has to do."""

    def work_ahead(self, work: WorkAhead) -> None:
        """Hear it, before the first phase begins."""


class TimeLeft:
    """Estimates the seconds left of a run. Times are seconds on any clock.

    A later phase is taken to be as fast per sample as the present one, validations included; games
    as fast as those played last. Training that settles early ends sooner.
    """

    def __init__(self, work: WorkAhead) -> None:
        self._work = work
        self._games_done = 0
        self._seconds_per_game: float | None = None

    def in_training(self, phase: str, epochs: int, epochs_left: float, per_epoch: float) -> float:
        """Return the seconds left while `phase`, of so many `epochs`, needs `per_epoch` for one."""
        names = list(self._work.samples)
        left = epochs_left * per_epoch
        samples = self._work.samples.get(phase, 0)
        if samples and epochs:
            later = names[names.index(phase) + 1 :]
            per_sample = per_epoch * epochs / samples
            left += per_sample * sum(self._work.samples[name] for name in later)
        return left + self._work.games * (self._seconds_per_game or 0.0)

    def in_games(self, what: str, done: int, total: int, seconds: float) -> float | None:
        """Hear that `done` of `total` games took so many seconds; return the seconds left.

        None while the games belong to a phase that is not over.
        """
        if done == total:
            self._seconds_per_game = seconds / total
        if not what.startswith(EVALUATING):
            return None
        left = (self._work.games - self._games_done - done) * seconds / done
        if done == total:
            self._games_done += total
        return max(left, 0.0)
