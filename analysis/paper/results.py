"""The runs' result for each claim of the paper: ratios with intervals, a p-value and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qpd.analysis.paper.claim_pairs import Pair
from qpd.analysis.paper.claims import Claim
from qpd.analysis.paper.verdict import (
    ERROR_RATE,
    ClaimTest,
    Estimate,
    Verdict,
    claim_test_of_every,
    claim_test_of_mean,
    mean_of_ratios,
)
from qpd.analysis.returns.policy_groups import PolicyGroup
from qpd.evaluation.holm import holm

MIN_EPISODES = 10  # a side: the bootstrap of fewer games says nothing


@dataclass(frozen=True)
class Comparison:
    """A pair of groups and the ratio of their mean returns."""

    pair: Pair
    ratio: Estimate


@dataclass(frozen=True)
class ClaimResult:
    """A claim, the comparisons made for it, and the verdict.

    `ratio` is what decides: the mean over the matched comparisons (over all, if none is matched);
    for a claim about every student the ratio of the one on which the verdict turns. `p` is
    corrected for the number of claims; None if the claim was not tested. `why` explains any verdict
    other than "held" and "did not hold"; for "not measured" it ends with a command.
    """

    claim: Claim
    comparisons: tuple[Comparison, ...]
    ratio: Estimate | None
    verdict: Verdict
    why: str
    p: float | None = None

    @property
    def fewest_runs(self) -> int:
        """The smallest number of runs among the students that decide; 0 if none were compared."""
        sides = [
            side
            for comparison in self.judged or self.comparisons
            for side in (comparison.pair.first, comparison.pair.second)
            if isinstance(side, PolicyGroup) and side.policy in ("distilled", "ptq", "qat")
        ]
        return min((side.num_runs for side in sides), default=0)

    @property
    def judged(self) -> tuple[Comparison, ...]:
        """The matched comparisons: those that a verdict may rest on."""
        return tuple(found for found in self.comparisons if not found.pair.unmatched)


def claim_results(claims: Sequence[Claim], groups: Sequence[PolicyGroup]) -> list[ClaimResult]:
    """Find the pairs of each claim among `groups`, estimate their ratios, and judge all claims.

    All claims that are tested form one family for Holm's correction.
    """
    measured = [_measure(claim, groups) for claim in claims]
    tests = [test for _, test in measured if test is not None]
    corrected = iter(holm([test.p for test in tests]))
    return [
        result if test is None else _judge(result, test, next(corrected))
        for result, test in measured
    ]


def meets_papers_number(claim: Claim, ratio: Estimate | None) -> bool | None:
    """Return whether the ratio's interval meets the paper's range; None if either is missing."""
    number = claim.number
    if ratio is None or number.low is None or number.high is None:
        return None
    return bool(ratio.low <= number.high and ratio.high >= number.low)


def _measure(claim: Claim, groups: Sequence[PolicyGroup]) -> tuple[ClaimResult, ClaimTest | None]:
    """Return the result without a verdict, and the test; None if there is nothing to judge."""
    found = claim.find(groups)
    if not found.pairs:
        return ClaimResult(claim, (), None, Verdict.unmeasured, found.missing), None
    ratios = [mean_of_ratios([pair.scores], seeds=[pair.seeds]) for pair in found.pairs]
    result = ClaimResult(
        claim, tuple(map(Comparison, found.pairs, ratios)), None, Verdict.undecided, ""
    )
    matched = [pair for pair in found.pairs if not pair.unmatched]
    shown = matched or list(found.pairs)
    tests = [
        claim_test_of_mean([pair.scores], claim.bound, claim.side, [pair.seeds]) for pair in shown
    ]
    if claim.scope == "mean":
        scores, seeds = [pair.scores for pair in shown], [pair.seeds for pair in shown]
        ratio = mean_of_ratios(scores, seeds=seeds)
        test = claim_test_of_mean(scores, claim.bound, claim.side, seeds)
    else:
        test = claim_test_of_every(tests)
        # It fails by the worst student, and holds no better than the worst does.
        worst = min(range(len(tests)), key=lambda place: tests[place].failed)
        if test.held <= test.failed:
            worst = max(range(len(tests)), key=lambda place: tests[place].held)
        ratio = mean_of_ratios([shown[worst].scores], seeds=[shown[worst].seeds])
    result = replace(result, ratio=ratio)
    if not matched:
        why = "; ".join(sorted({reason for pair in found.pairs for reason in pair.unmatched}))
        return replace(result, verdict=Verdict.unmatched, why=why), None
    # Ratios are shown even so; only the verdict is withheld.
    fewest = min(pair.fewest_distinct_games for pair in matched)
    if fewest < MIN_EPISODES:
        why = f"different games on one side: {fewest}; at least {MIN_EPISODES} are needed"
        return replace(result, why=why), None
    return result, test


def _judge(result: ClaimResult, test: ClaimTest, corrected: float) -> ClaimResult:
    verdict = test.verdict(corrected)
    why = "" if verdict != Verdict.undecided else _why(result, test, corrected)
    return replace(result, verdict=verdict, why=why, p=corrected)


def _why(result: ClaimResult, test: ClaimTest, corrected: float) -> str:
    claim, ratio = result.claim, result.ratio
    if ratio is None or math.isnan(ratio.low):
        return "no ratio, as the return that divides may be 0"
    if ratio.low <= claim.bound <= ratio.high:
        also = ""
        if (meets := meets_papers_number(claim, ratio)) is not None:
            also = f", {'and' if meets else 'but not'} the paper's {claim.number.text}"
        return f"the interval of the ratio contains {claim.bound:g}{also}"
    return (
        f"p is {test.p:.2g} for this claim and {corrected:.2g} as one of all the claims, "
        f"above {ERROR_RATE}"
    )
