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
    """A claim's verdict, the numbers behind it, and its corrected p-value (None: not measured)."""

    number: int
    text: str
    verdict: Verdict
    evidence: str
    p: float | None = None


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
        judged.append(JudgedClaim(number, text, verdict, each.evidence, p))
    return judged


def not_measured(by: str) -> Callable[[Any], Found]:
    """Return a finder that only says what would measure the claim."""
    return lambda _: Found(by)


def claims_table(claims: Sequence[JudgedClaim], paper: str) -> ShownTable:
    """Return the verdicts on a paper's claims as text."""
    rows = [
        [str(c.number), c.text, str(c.verdict), c.evidence, "" if c.p is None else f"{c.p:.3f}"]
        for c in claims
    ]
    title = f"{paper}: claims; p two-sided, corrected for all (Holm)"
    return ShownTable(title, ["", "claim", "verdict", "by", "p"], rows)
