"""Which epoch of a phase is kept: the one that acts most like its teacher, or that scores most.

The mean of 16 games of Breakout has a standard error of 10 to 15 points, as much as students differ
by. The divergence from the teacher over the thousands of states of the same games tells two epochs
apart that their returns do not. Both are judged on the states of either's games: one that plays
worse meets the early, easy states alone, and on its own it would seem the nearer one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from qpd.environments.policy import Policy
from qpd.evaluation.games import EvaluationResult

Selection = Literal["divergence", "return"]


@dataclass(frozen=True)
class Validated:
    """The validation games of a student, and its divergence from the teacher on their states.

    `divergence` is a mean over states in nats (`qpd.phases.validation`). `policy` is the student,
    which no training changes any more; `divergence_of` measures a policy on the states of these
    games.
    """

    games: EvaluationResult
    divergence: float
    policy: Policy
    divergence_of: Callable[[Policy], float]


@dataclass(frozen=True)
class Score:
    """Hold what is remembered of a validation: mean return, its 95% interval, and divergence."""

    mean_return: float
    low: float
    high: float
    divergence: float = math.inf  # of checkpoints from before it was measured

    @classmethod
    def of(cls, validated: Validated) -> Score:
        """Return the score of a validation."""
        low, high = validated.games.interval()
        if len(validated.games.returns) < 2:  # one game tells nothing of how far others are
            low, high = -math.inf, math.inf
        divergence = math.inf if math.isnan(validated.divergence) else validated.divergence
        return cls(validated.games.mean, low, high, divergence)

    def beats(self, other: Score, by: Selection, floor: float) -> bool:
        """Return whether this validation is as good as `other`, or better.

        By divergence, unless one of them has collapsed: its interval lies below `floor`, the
        highest lower end of any so far. Equal returns, which are common in games with a highest
        score, are decided by divergence; where that is equal too, the later student has learned
        longer.
        """
        if by == "return" and self.mean_return != other.mean_return:
            return self.mean_return > other.mean_return
        has_collapsed = self.high < floor
        if by == "divergence" and has_collapsed != (other.high < floor):
            return not has_collapsed
        return self.divergence <= other.divergence

    @classmethod
    def of_both(cls, one: Validated, other: Validated) -> tuple[Score, Score]:
        """Return the scores of two validations, with divergences over the states of both."""
        there, here = other.divergence_of(one.policy), one.divergence_of(other.policy)
        pairs = ((one, one.divergence + there), (other, other.divergence + here))
        first, second = (
            replace(cls.of(each), divergence=math.inf if math.isnan(total) else total / 2.0)
            for each, total in pairs
        )
        return first, second

    def to_json(self) -> dict[str, float | None]:
        """Return plain data; None for what is infinite, which JSON has no number for."""
        return {key: value if math.isfinite(value) else None for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Score:
        """Return what `to_json` was called on."""
        infinite = {"low": -math.inf, "high": math.inf, "divergence": math.inf}
        return cls(
            **{
                key: infinite[key] if found[key] is None else float(found[key])
                for key in ("mean_return", "low", "high", "divergence")
            }
        )
