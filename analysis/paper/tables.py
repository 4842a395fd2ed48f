"""The paper's claims and the runs' verdicts on them, as tables, CSV and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.paper import published
from qpd.analysis.paper.results import ClaimResult, meets_papers_number
from qpd.analysis.paper.verdict import Estimate, Verdict, mean_return
from qpd.analysis.returns.policy_groups import PolicyGroup
from qpd.analysis.returns.policy_returns import TEACHERS
from qpd.analysis.returns.return_rows import ShownTable, pipe_row
from qpd.analysis.runs.student_settings import phase_samples

if TYPE_CHECKING:
    from pandas import DataFrame

RULE = (
    "ratio: of mean returns, with its own 95% interval (of the same seeds on both sides by seed, "
    "Student's t; else bootstrap-t: resampled are runs, then "
    "games within them, on each side of each pair). p: that the ratio lies on either side of the "
    "bound by chance, corrected by Holm for all the claims that were tested. held: p is below "
    "0.05 and the ratio on the claim's side; did not hold: on the other side; else not decided. "
    "What is said of every student holds by the largest p of any, and fails by the smallest times "
    "their number; shown is the student that decides"
)
_CLAIM_COLUMNS = (
    "claim", "text", "source", "paper", "ratio_of", "bound", "side", "ratio", "ratio_low",
    "ratio_high", "p", "comparisons", "judged", "fewest_runs", "meets_paper_number", "verdict",
    "why",
)  # fmt: skip
# The paper's method, and whole games.
_PLAIN: dict[str, Any] = {
    "student.sharpness": 1.0, "collection.student_fraction": 0.0, "environment.max_frames": None,
}  # fmt: skip
_RATIO_COLUMNS = ("ratio", "ratio_low", "ratio_high", "not_matched")
_SIDE_COLUMNS = ("", "_acting", "_mean", "_low", "_high", "_num_runs", "_num_episodes", "_runs")


def claims_table(results: Sequence[ClaimResult]) -> ShownTable:
    """Tabulate the claims, one per line."""
    header = [
        "", "claim", "the paper's ratio", "ours", "bound", "p", "runs, games a side", "verdict",
    ]  # fmt: skip
    rows = []
    for result in results:
        claim = result.claim
        stated = f"{claim.number.text} ({claim.number.source})"
        about = [claim.key, claim.text, stated]
        bound = f"{claim.side} {claim.bound:g}"
        verdict = verdict_text(result)
        if result.verdict == Verdict.unmatched:
            verdict += f": {result.why}"
        rows.append([*about, _ours(result), bound, _p_text(result.p), _counts(result), verdict])
    return ShownTable("the paper's claims", header, rows)


def verdict_text(result: ClaimResult) -> str:
    """Return the verdict, with a reservation if it rests on a single run per side."""
    decided = result.verdict in (Verdict.held, Verdict.failed)
    one = ", one run" if decided and result.fewest_runs == 1 else ""
    return f"{result.verdict.value}{one}"


def comparisons_table(results: Sequence[ClaimResult]) -> ShownTable:
    """Tabulate the pairs of groups of runs that the claims compared, one per line."""
    header = ["", "runs", "return", "compared with", "return", "ratio", "not matched"]
    rows = []
    for result in results:
        for comparison in result.comparisons:
            first, second = comparison.pair.first, comparison.pair.second
            other = [f"a return of {second}", ""]
            if isinstance(second, PolicyGroup):
                other = [_who(second), return_text(second)]
            mine = [result.claim.key, _who(first), return_text(first)]
            apart = "; ".join(comparison.pair.unmatched)
            rows.append([*mine, *other, ratio_text(comparison.ratio), apart])
    return ShownTable("what was compared", header, rows)


def claims_frame(results: Sequence[ClaimResult]) -> DataFrame:
    """Return `paper.csv`: a row per claim; `ratio` is empty if there is no single one."""
    import pandas as pd

    rows = []
    for result in results:
        claim, ratio = result.claim, result.ratio or Estimate(np.nan, np.nan, np.nan)
        about = [claim.key, claim.text, claim.number.source, claim.number.text, claim.ratio]
        numbers: list[Any] = [claim.bound, claim.side, ratio.value, ratio.low, ratio.high]
        counts: list[Any] = [result.p, len(result.comparisons), len(result.judged)]
        counts.append(result.fewest_runs)
        said = [meets_papers_number(claim, result.ratio), result.verdict.value, result.why]
        rows.append([*about, *numbers, *counts, *said])
    return pd.DataFrame(rows, columns=list(_CLAIM_COLUMNS))


def comparisons_frame(results: Sequence[ClaimResult]) -> DataFrame:
    """Return `paper_comparisons.csv`: a row per pair of groups of runs, with both returns."""
    import pandas as pd

    rows = []
    for result in results:
        for comparison in result.comparisons:
            pair, ratio = comparison.pair, comparison.ratio
            sides = [*_side_cells(pair.first), *_side_cells(pair.second)]
            numbers = [ratio.value, ratio.low, ratio.high, "; ".join(pair.unmatched)]
            rows.append([result.claim.key, *sides, *numbers])
    sides = [f"{side}{name}" for side in ("first", "second") for name in _SIDE_COLUMNS]
    return pd.DataFrame(rows, columns=["claim", *sides, *_RATIO_COLUMNS])


def notes(results: Sequence[ClaimResult], left_out: int) -> list[str]:
    """Return how to read the tables, what the runs do not cover, and each claim without a verdict.

    `left_out` is the number of runs that play a game other than the paper's.
    """
    lines = [RULE]
    fewest = [result.fewest_runs for result in results if result.comparisons]
    few = sum(number < published.PAPER_RUNS for number in fewest)
    if few:
        ones = fewest.count(1)
        line = f"{few} of {len(fewest)} measured claims rest on fewer runs a side than the paper's"
        alone = f"; {ones} on one, whose interval covers games, but no other training seeds"
        lines.append(f"{line} {published.PAPER_RUNS}{alone if ones else ''}")
    students = _students(results)
    if students:
        lines.append(_budget(students))
    if left_out:
        lines.append(f"{left_out} runs left out, as the paper's claims are about Breakout")
    greedy = sorted({student.folders for student in students if student.acting == "greedy"})
    if greedy:
        where = ", ".join(greedy)
        lines.append(f"greedy Breakout is at most four games: intervals are too narrow for {where}")
    unclear = [result for result in results if result.why and result.verdict != Verdict.unmeasured]
    lines += [f"{result.claim.key}: {result.verdict}: {result.why}" for result in unclear]
    lines += [_left_out(result) for result in results if 0 < len(result.judged) < _pairs(result)]
    lacking = [result for result in results if result.verdict == Verdict.unmeasured]
    return lines + [f"{result.claim.key}: not measured: {result.why}" for result in lacking]


def markdown(tables: Sequence[ShownTable], lines: Sequence[str]) -> str:
    """Render the tables and notes as Markdown, to be pasted into an appendix or an issue."""
    parts = ["# Our runs beside the paper's numbers"]
    for table in tables:
        rows = [table.header, ["---"] * len(table.header), *table.rows]
        parts += [f"## {table.title.capitalize()}", "\n".join(pipe_row(row) for row in rows)]
    return "\n\n".join([*parts, "\n".join(f"- {line}" for line in lines)]) + "\n"


def return_text(group: PolicyGroup) -> str:
    """Return a group's mean return with its 95% interval: `366.8 [341.2, 389.0]`."""
    if group.scores is None:
        return "-"
    found = mean_return(group.scores)
    return f"{found.value:.1f} [{found.low:.1f}, {found.high:.1f}]"


def ratio_text(ratio: Estimate) -> str:
    """Return `0.97 [0.90, 1.04]`, with a third digit for ratios below 0.1."""
    if np.isnan(ratio.value):
        return "-"
    digits = 2 if ratio.high >= 0.1 else 3
    return f"{ratio.value:.{digits}f} [{ratio.low:.{digits}f}, {ratio.high:.{digits}f}]"


def _pairs(result: ClaimResult) -> int:
    return len(result.comparisons)


def _left_out(result: ClaimResult) -> str:
    """Name the pairs that a verdict does not rest on."""
    apart = [found for found in result.comparisons if found.pair.unmatched]
    reasons = sorted({reason for found in apart for reason in found.pair.unmatched})
    count = f"{len(apart)} of {_pairs(result)} pairs left out"
    return f"{result.claim.key}: {count}, as not matched: {'; '.join(reasons)}"


def _ours(result: ClaimResult) -> str:
    """Return the ratio that decides, and of how many it is the mean or the deciding one."""
    if result.ratio is None:
        return "-"
    number = len(result.judged) or len(result.comparisons)
    if number == 1:
        return ratio_text(result.ratio)
    if result.claim.scope == "mean":
        return f"{ratio_text(result.ratio)}, mean of {number}"
    return f"{ratio_text(result.ratio)}, the deciding one of {number}"


def _p_text(p: float | None) -> str:
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.2g}"


def _who(group: PolicyGroup) -> str:
    """Name a group: `XXS, fp32: quickstart`; a teacher by how it acts."""
    if group.policy in TEACHERS:
        return f"{group.title}, {group.acting}"
    return f"{group.size}, {group.precision}: {group.folders}"


def _counts(result: ClaimResult) -> str:
    """Return runs and games of both sides, each group once."""
    texts = []
    for place in ("first", "second"):
        counted = result.judged or result.comparisons
        sides = [getattr(comparison.pair, place) for comparison in counted]
        # One teacher stands in many pairs; its games are counted once.
        groups = {id(side): side for side in sides if isinstance(side, PolicyGroup)}.values()
        if groups:
            runs = sum(group.num_runs for group in groups)
            texts.append(f"{runs}, {sum(group.num_episodes for group in groups)}")
    return " / ".join(texts) or "-"


def _students(results: Sequence[ClaimResult]) -> list[PolicyGroup]:
    """Return every group of students that a claim compared, each once."""
    found = {
        id(side): side
        for result in results
        for comparison in result.comparisons
        for side in (comparison.pair.first, comparison.pair.second)
        if isinstance(side, PolicyGroup) and side.policy not in TEACHERS
    }
    return list(found.values())


def _budget(students: Sequence[PolicyGroup]) -> str:
    """Return how phase 1's length compares with the paper's, and what the paper did not do."""
    samples = sorted(filter(None, (phase_samples(x.settings, "distill") for x in students)))
    line = "no phase 1"
    if samples:
        low, high = samples[0] / 1e6, samples[-1] / 1e6
        seen = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        paper_millions = published.PAPER_SAMPLES / 1e6
        line = (
            f"phase 1 of these students saw {seen} million samples, the paper's {paper_millions:g}"
        )
    other = [
        f"{key} {value:g}"
        for key, plain in _PLAIN.items()
        for value in sorted({student.settings[key] for student in students} - {plain})
    ]
    return line + (f"; unlike the paper: {', '.join(other)}" if other else "")


def _side_cells(side: PolicyGroup | float) -> list[Any]:
    """Return `_SIDE_COLUMNS` of one side of a comparison; a fixed return has no runs."""
    if not isinstance(side, PolicyGroup) or side.scores is None:
        return ["", "", side, None, None, None, None, ""]
    found = mean_return(side.scores)
    numbers = [found.value, found.low, found.high, side.num_runs, side.num_episodes]
    return [side.title, side.acting, *numbers, ";".join(side.runs)]
