"""A return as a manifest records it, validated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from qpd.evaluation.return_words import interval_text, interval_words


@dataclass(frozen=True)
class MeasuredReturn:
    """Mean, standard deviation and 95% interval over `episodes` full games.

    `acting` says in words how actions were chosen; `distinct_games` counts different pairs of
    return and length, `distinct_starts` different first observations. `date` is ISO 8601, UTC. The
    latter two are None if they were not recorded.
    """

    mean: float
    std: float
    low: float
    high: float
    episodes: int
    distinct_games: int
    seed: int
    acting: str
    date: str | None = None
    distinct_starts: int | None = None

    @classmethod
    def from_json(cls, result: Mapping[str, Any]) -> Self:
        """Read one of a manifest's evaluations; KeyError, TypeError or ValueError if malformed."""
        low, high = result["interval"]
        mean, std, low, high = (float(x) for x in (result["mean"], result["std"], low, high))
        # NaN and Infinity are no JSON, and a card that shows one would look like a measurement.
        if not all(math.isfinite(number) for number in (mean, std, low, high)):
            raise ValueError("a return is not finite")
        date, starts = result.get("date"), result.get("distinct_starts")
        return cls(
            mean,
            std,
            low,
            high,
            episodes=int(result["episodes"]),
            # Manifests of earlier versions do not record it.
            distinct_games=int(result.get("distinct_games", result["episodes"])),
            seed=int(result["seed"]),
            acting=str(result["acting"]),
            date=None if date is None else str(date),
            distinct_starts=None if starts is None else int(starts),
        )

    @property
    def with_interval(self) -> str:
        """The mean with its interval, as in `370.7 [349.0, 388.1]`."""
        return f"{self.mean:,.1f} {interval_text((self.low, self.high), self.episodes)}"

    @property
    def in_words(self) -> str:
        """The interval and the number of games as a clause."""
        return interval_words((self.low, self.high), self.episodes)

    def repetition(self) -> list[str]:
        """Return a sentence on how much the games differ, if some may be copies of others."""
        games, starts = self.episodes, self.distinct_starts
        if starts is not None and starts < games:
            began = f"The {games} games began with {starts} different observations"
            if starts == 1:
                began = f"The {games} games all began with one and the same observation"
            if self.acting == "greedy":
                return [f"{began}, and actions are not left to chance: equal starts, equal games."]
            return [f"{began}; from there on actions differ by chance."]
        # Earlier versions counted outcomes alone, and different games may end alike.
        if starts is None and self.distinct_games < games:
            outcomes = f"have {self.distinct_games} different outcomes (return and length)"
            if self.distinct_games == 1:
                outcomes = "have one outcome (return and length): they are all alike"
            return [
                f"The {games} games {outcomes}; how many different starts they had was not "
                "recorded."
            ]
        return []
