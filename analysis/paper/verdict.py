"""Verdicts on claims, by the bootstrap interval of a ratio of mean returns, never by overlap.

The ratio's interval resamples each side on its own: runs with replacement, then games within each
drawn run. Overlapping intervals of two means do not show that the means are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np

from qpd.analysis.returns.return_statistics import bootstrap_interval, mean, mean_ratio

ERROR_RATE = 0.05
RESAMPLES = 4000  # twice the default: corrected intervals read quantiles further out in the tails
ScorePair = tuple[np.ndarray, np.ndarray]
Side = Literal["above", "below"]  # of a bound


class Verdict(StrEnum):
    """The runs' answer to a claim."""

    held = "held"
    failed = "did not hold"
    undecided = "not decided"
    unmeasured = "not measured"


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its interval; all NaN if a mean that divides may be 0."""

    value: float
    low: float
    high: float


def mean_of_ratios(
    pairs: Sequence[ScorePair], seed: int = 0, error_rate: float = ERROR_RATE
) -> Estimate:
    """Estimate the mean over `pairs` of mean(first) / mean(second), with its bootstrap interval.

    Score matrices are float `[num_runs, num_episodes]`; one that stands in several pairs is
    resampled once for all of them. `error_rate` is the share of intervals that miss.
    """
    # Several students share a teacher's games: independent draws of one and the same matrix would
    # make the mean's interval too narrow.
    matrices = {id(matrix): matrix for pair in pairs for matrix in pair}
    place = {name: number for number, name in enumerate(matrices)}
    places = [(place[id(first)], place[id(second)]) for first, second in pairs]

    def statistic(*drawn: np.ndarray) -> np.ndarray:
        return np.mean([mean_ratio(drawn[one], drawn[two]) for one, two in places], axis=0)

    low, high = bootstrap_interval(
        statistic,
        *matrices.values(),
        rng=np.random.default_rng(seed),
        confidence=1.0 - error_rate,
        resamples=RESAMPLES,
    )
    # Where some resamples have no ratio, a point estimate without an interval would look sure of
    # itself.
    value = np.nan if np.isnan(low) else float(statistic(*matrices.values()))
    return Estimate(value, low, high)


def mean_return(scores: np.ndarray, seed: int = 0) -> Estimate:
    """Estimate the mean of a score matrix `[num_runs, num_episodes]` with its 95% interval."""
    low, high = bootstrap_interval(mean, scores, rng=np.random.default_rng(seed))
    return Estimate(float(mean(scores)), low, high)


def verdict_of_mean(found: Estimate, bound: float, side: Side) -> Verdict:
    """Judge whether a ratio lies on its `side` of `bound`, from its 95% interval.

    It held (failed) if the whole interval lies on that (the other) side.
    """
    if _beyond(found, bound, side):
        return Verdict.held
    return Verdict.failed if _beyond(found, bound, _other(side)) else Verdict.undecided


def verdict_of_every(
    found: Sequence[Estimate], corrected: Sequence[Estimate], bound: float, side: Side
) -> Verdict:
    """Judge whether each of several ratios lies on its `side` of `bound`.

    It held if every 95% interval lies on that side: all have to, so none is corrected. It failed if
    one of the `corrected` lies on the other side: the same ratios, with intervals at an error rate
    of 5% divided by their number (Bonferroni).
    """
    if all(_beyond(ratio, bound, side) for ratio in found):
        return Verdict.held
    against = any(_beyond(ratio, bound, _other(side)) for ratio in corrected)
    return Verdict.failed if against else Verdict.undecided


def _other(side: Side) -> Side:
    return "below" if side == "above" else "above"


def _beyond(found: Estimate, bound: float, side: Side) -> bool:
    """Return whether the interval lies beyond `bound`; False for NaN."""
    return found.low > bound if side == "above" else found.high < bound
