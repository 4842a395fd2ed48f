"""The runs' result for each claim of the paper: ratios with intervals, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qpd.analysis.paper.claim_pairs import Pair
from qpd.analysis.paper.claims import Claim
from qpd.analysis.paper.verdict import (
    ERROR_RATE,
    Estimate,
    Verdict,
    mean_of_ratios,
    verdict_of_every,
    verdict_of_mean,
)
from qpd.analysis.returns.policy_groups import PolicyGroup

MIN_EPISODES = 10  # a side: the bootstrap of fewer games says nothing


@dataclass(frozen=True)
class Comparison:
    """A pair of groups and the ratio of their mean returns."""

    pair: Pair
    ratio: Estimate


@dataclass(frozen=True)
class ClaimResult:
    """A claim, the comparisons made for it, and the verdict.

    `ratio` is the mean over the comparisons; for a claim about every student that of the only
    comparison, None if there are several. `why` explains any verdict other than "held" and "did not
    hold"; for "not measured" it ends with a command.
    """

    claim: Claim
    comparisons: tuple[Comparison, ...]
    ratio: Estimate | None
    verdict: Verdict
    why: str

    @property
    def fewest_runs(self) -> int:
        """The smallest number of runs among the compared students; 0 if none were."""
        sides = [
            side
            for comparison in self.comparisons
            for side in (comparison.pair.first, comparison.pair.second)
            if isinstance(side, PolicyGroup) and side.policy in ("distilled", "ptq", "qat")
        ]
        return min((side.num_runs for side in sides), default=0)


def claim_result(claim: Claim, groups: Sequence[PolicyGroup]) -> ClaimResult:
    """Find the pairs of `claim` among `groups`, estimate their ratios, and judge it."""
    found = claim.find(groups)
    if not found.pairs:
        return ClaimResult(claim, (), None, Verdict.unmeasured, found.missing)
    pairs = [pair.scores for pair in found.pairs]
    ratios = [mean_of_ratios([pair]) for pair in pairs]
    comparisons = tuple(map(Comparison, found.pairs, ratios))
    ratio: Estimate | None
    if claim.scope == "mean":
        ratio = ratios[0] if len(pairs) == 1 else mean_of_ratios(pairs)
        verdict = verdict_of_mean(ratio, claim.bound, claim.side)
    else:
        ratio = ratios[0] if len(pairs) == 1 else None
        # A single counterexample refutes "every", and many students give chance many tries:
        # Bonferroni.
        rate = ERROR_RATE / len(pairs)
        corrected = [mean_of_ratios([pair], error_rate=rate) for pair in pairs]
        verdict = verdict_of_every(ratios, corrected, claim.bound, claim.side)
    # Ratios are shown even so; only the verdict is withheld.
    fewest = min(pair.fewest_episodes for pair in found.pairs)
    if fewest < MIN_EPISODES:
        why = f"only {fewest} games on one side; at least {MIN_EPISODES} are needed"
        return ClaimResult(claim, comparisons, ratio, Verdict.undecided, why)
    return ClaimResult(claim, comparisons, ratio, verdict, _why(claim, ratio, verdict))


def meets_papers_number(claim: Claim, ratio: Estimate | None) -> bool | None:
    """Return whether the ratio's interval meets the paper's range; None if either is missing."""
    number = claim.number
    if ratio is None or number.low is None or number.high is None:
        return None
    return bool(ratio.low <= number.high and ratio.high >= number.low)


def _why(claim: Claim, ratio: Estimate | None, verdict: Verdict) -> str:
    if verdict != Verdict.undecided:
        return ""
    if ratio is None:
        return f"not every interval lies {claim.side} {claim.bound:g}, and none on the other side"
    if math.isnan(ratio.low):
        return "no ratio, as the return that divides may be 0"
    also = f" and the paper's {claim.number.text}" if meets_papers_number(claim, ratio) else ""
    return f"the interval of the ratio contains {claim.bound:g}{also}"
