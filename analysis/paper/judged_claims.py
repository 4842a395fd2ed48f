"""A paper's claims with our runs' verdicts; p-values are corrected for their number (Holm)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from qpd.analysis.paper.verdict import ClaimTest, Verdict
from qpd.analysis.returns.return_rows import ShownTable
from qpd.evaluation.holm import holm

E = TypeVar("E")


@dataclass(frozen=True)
class JudgedClaim:
    """A claim's verdict, the numbers behind it, and its corrected p-value (None: not measured).

    `of_one_training`: decided by the games of a single training on either side.
    """

    number: int
    text: str
    verdict: Verdict
    evidence: str
    p: float | None = None
    of_one_training: bool = False

    @property
    def verdict_words(self) -> str:
        """Return the verdict, and whether another training might change it."""
        return f"{self.verdict}, one training" if self.of_one_training else str(self.verdict)


@dataclass(frozen=True)
class Found:
    """Hold what is known of one claim: the numbers, and the test that decides; else its verdict."""

    evidence: str
    test: ClaimTest | None = None
    verdict: Verdict = Verdict.unmeasured


def judge_claims(
    claims: Sequence[tuple[str, Callable[[E], Found]]], evidence: E
) -> list[JudgedClaim]:
    """Return all claims, each a text and what finds its numbers, with their verdicts."""
    found = [find(evidence) for _, find in claims]
    corrected = iter(holm([each.test.p for each in found if each.test is not None]))
    judged = []
    for number, ((text, _), each) in enumerate(zip(claims, found, strict=True), start=1):
        p = None if each.test is None else next(corrected)
        verdict = each.verdict if each.test is None or p is None else each.test.verdict(p)
        one = (
            each.test is not None and verdict is not Verdict.undecided and each.test.of_one_training
        )
        judged.append(JudgedClaim(number, text, verdict, each.evidence, p, one))
    return judged


def not_measured(by: str) -> Callable[[Any], Found]:
    """Return a finder that only says what would measure the claim."""
    return lambda _: Found(by)


def claims_table(claims: Sequence[JudgedClaim], paper: str) -> ShownTable:
    """Return the verdicts on a paper's claims as text."""
    rows = [
        [str(c.number), c.text, c.verdict_words, c.evidence, "" if c.p is None else f"{c.p:.3f}"]
        for c in claims
    ]
    title = f"{paper}: claims; p two-sided, corrected for all (Holm)"
    return ShownTable(title, ["", "claim", "verdict", "by", "p"], rows)
