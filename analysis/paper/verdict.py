"""Verdicts on claims: a p-value for each by the bootstrap-t, corrected for their number by Holm.

A claim is about ratios of mean returns (`qpd.analysis.returns.mean_bootstrap`). Overlapping
intervals of two means do not show that the means are equal, so nothing is judged by overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import numpy as np

from qpd.analysis.returns.mean_bootstrap import (
    ScorePair,
    Seeds,
    mean_estimate,
    mean_of_ratios_estimate,
)
from qpd.evaluation.holm import ERROR_RATE
from qpd.evaluation.studentized import StudentizedEstimate

Side = Literal["above", "below"]  # of a bound


class Verdict(StrEnum):
    """The runs' answer to a claim."""

    held = "held"
    failed = "did not hold"
    undecided = "not decided"
    unmatched = "not judged"
    unmeasured = "not measured"


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its interval; all NaN if a mean that divides may be 0."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ClaimTest:
    """One-sided p-values: `held` of "the claim is false", `failed` of "the claim is true".

    `of_one_training`: either side has a single one, so that they tell of games alone.
    """

    held: float
    failed: float
    of_one_training: bool = False

    @property
    def p(self) -> float:
        """Return the two-sided p-value: twice the smaller one, as either side may be found."""
        return min(1.0, 2.0 * min(self.held, self.failed))

    def verdict(self, corrected: float) -> Verdict:
        """Return the verdict, given the p-value `corrected` for the number of claims."""
        if corrected >= ERROR_RATE:
            return Verdict.undecided
        return Verdict.held if self.held < self.failed else Verdict.failed


def mean_of_ratios(
    pairs: Sequence[ScorePair],
    seeds: Sequence[tuple[Seeds, Seeds]] = (),
) -> Estimate:
    """Estimate the mean over `pairs` of mean(first) / mean(second), with its interval.

    Score matrices are float `[num_runs, num_episodes]`; runs of the same `seeds` are compared seed
    by seed.
    """
    found = mean_of_ratios_estimate(pairs, seeds)
    # Where some resamples have no ratio, a point estimate without an interval would look sure of
    # itself.
    if found is None:
        return Estimate(np.nan, np.nan, np.nan)
    return Estimate(found.value, *found.interval())


def mean_return(scores: np.ndarray) -> Estimate:
    """Estimate the mean of a score matrix `[num_runs, num_episodes]` with its 95% interval."""
    found = mean_estimate(scores)
    return Estimate(found.value, *found.interval())


def claim_test_of_mean(
    pairs: Sequence[ScorePair],
    bound: float,
    side: Side,
    seeds: Sequence[tuple[Seeds, Seeds]] = (),
) -> ClaimTest:
    """Test whether the mean of the pairs' ratios lies on its `side` of `bound`."""
    return claim_test(mean_of_ratios_estimate(pairs, seeds), bound, side)


def claim_test(found: StudentizedEstimate | None, bound: float, side: Side) -> ClaimTest:
    """Test whether what was estimated lies on its `side` of `bound`."""
    if found is None:
        return ClaimTest(1.0, 1.0)
    above, below = found.p_above(bound), found.p_below(bound)
    return ClaimTest(above, below) if side == "above" else ClaimTest(below, above)


def claim_test_of_every(tests: Sequence[ClaimTest]) -> ClaimTest:
    """Test whether each of several ratios lies on its side, from the tests of each.

    "Every" holds if all do: the largest p-value, uncorrected (an intersection-union test). It fails
    if any does: the smallest, times their number (Bonferroni).
    """
    failed = min(tests, key=lambda test: test.failed)
    held = max(test.held for test in tests)
    found = ClaimTest(held, min(1.0, len(tests) * failed.failed))
    deciding = tests if found.held < found.failed else [failed]
    return replace(found, of_one_training=any(test.of_one_training for test in deciding))
