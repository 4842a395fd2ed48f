"""The claims of the paper and what the runs say of them: as tables, as CSV and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis import paper_numbers as paper
from analysis.paper_results import ClaimResult, contains_papers_number
from analysis.paper_verdict import Estimate, Verdict, mean_return
from analysis.policy_groups import PolicyGroup
from analysis.return_rows import ShownTable

if TYPE_CHECKING:
    from pandas import DataFrame

RULE = (
    "verdict: the ratio of mean returns has a 95% bootstrap interval that resamples runs, then games "
    "within them, on each side; held (did not hold): all of it lies on the claim's (the other) side "
    "of the bound. A claim about every student holds if all intervals do, and fails by one interval "
    "at 5% divided by their number"
)
_CLAIM_COLUMNS = (
    "claim", "text", "source", "paper", "ratio_of", "bound", "side", "ratio", "ratio_low",
    "ratio_high", "comparisons", "fewest_runs", "holds_paper_number", "verdict", "why",
)  # fmt: skip


def claims_table(results: Sequence[ClaimResult]) -> ShownTable:
    """A line for each claim."""
    header = ["claim", "paper", "source", "ratio of", "ours", "runs, games", "verdict"]
    rows = []
    for result in results:
        claim = result.claim
        cells = [claim.text, claim.number.text, claim.number.source, claim.ratio]
        rows.append([*cells, _ours(result), _counts(result), result.verdict.value])
    return ShownTable("the paper's claims", header, rows)


def comparisons_table(results: Sequence[ClaimResult]) -> ShownTable:
    """A line for each pair of groups of runs that a claim compared."""
    header = ["claim", "student", "runs", "return", "compared with", "return", "ratio"]
    rows = []
    for result in results:
        for comparison in result.comparisons:
            first, second = comparison.pair.first, comparison.pair.second
            other = ["the number", f"{second}"]
            if isinstance(second, PolicyGroup):
                acting = f" ({second.acting})" if not second.settings else ""
                other = [f"{second.folders}{acting}", return_text(second)]
            mine = [result.claim.key, first.title, first.folders, return_text(first)]
            rows.append([*mine, *other, ratio_text(comparison.ratio)])
    return ShownTable("what was compared", header, rows)


def claims_frame(results: Sequence[ClaimResult]) -> DataFrame:
    """`paper.csv`: a row for each claim; `ratio` is empty where there is no single one."""
    import pandas as pd

    rows = []
    for result in results:
        claim, ratio = result.claim, result.ratio or Estimate(*3 * [float("nan")])
        about = [claim.key, claim.text, claim.number.source, claim.number.text, claim.ratio]
        numbers: list[Any] = [claim.bound, claim.side, ratio.value, ratio.low, ratio.high]
        counts: list[Any] = [len(result.comparisons), result.fewest_runs]
        said = [contains_papers_number(result), result.verdict.value, result.why]
        rows.append([*about, *numbers, *counts, *said])
    return pd.DataFrame(rows, columns=list(_CLAIM_COLUMNS))


def comparisons_frame(results: Sequence[ClaimResult]) -> DataFrame:
    """`paper_comparisons.csv`: a row for each pair of groups of runs, with both returns."""
    import pandas as pd

    rows = []
    for result in results:
        for comparison in result.comparisons:
            row: dict[str, Any] = {"claim": result.claim.key}
            pair, ratio = comparison.pair, comparison.ratio
            for name, side in (("first", pair.first), ("second", pair.second)):
                row |= _side_fields(name, side)
            rows.append(
                row | {"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
            )
    return pd.DataFrame(rows)


def notes(results: Sequence[ClaimResult], left_out: int) -> list[str]:
    """How to read the tables; a line for each claim without a verdict; what the runs do not cover.

    `left_out` is the number of runs that play another game than the paper.
    """
    lines = [RULE]
    fewest = [result.fewest_runs for result in results if result.comparisons]
    if fewest and min(fewest) == 1:
        ones = fewest.count(1)
        lines.append(
            f"{ones} of the {len(fewest)} claims measured rest on a single run a side: their "
            f"intervals cover games, not training seeds (the paper: {paper.PAPER_RUNS} runs)"
        )
    if left_out:
        lines.append(f"{left_out} runs left out, as the paper's claims are about Breakout")
    greedy = {
        side.folders
        for result in results
        for comparison in result.comparisons
        for side in (comparison.pair.first, comparison.pair.second)
        if isinstance(side, PolicyGroup) and side.acting == "greedy"
    }
    if greedy:
        where = ", ".join(sorted(greedy))
        lines.append(f"greedy Breakout is at most four games: intervals are too narrow for {where}")
    unclear = [result for result in results if result.why and result.verdict != Verdict.unmeasured]
    lines += [f"{result.claim.key}: {result.verdict}: {result.why}" for result in unclear]
    lacking = [result for result in results if result.verdict == Verdict.unmeasured]
    return lines + [f"{result.claim.key}: not measured: {result.why}" for result in lacking]


def markdown(tables: Sequence[ShownTable], lines: Sequence[str]) -> str:
    """The tables and the notes as Markdown, to be pasted into an appendix or an issue."""
    parts = ["# Our runs beside the paper's numbers"]
    for table in tables:
        rows = [table.header, ["---"] * len(table.header), *table.rows]
        parts += [f"## {table.title.capitalize()}", "\n".join(_pipe_row(row) for row in rows)]
    return "\n\n".join([*parts, "\n".join(f"- {line}" for line in lines)]) + "\n"


def return_text(group: PolicyGroup) -> str:
    """`366.8 [341.2, 389.0]`: a group's mean return with its 95% interval."""
    if group.scores is None:
        return "-"
    found = mean_return(group.scores)
    return f"{found.value:.1f} [{found.low:.1f}, {found.high:.1f}]"


def ratio_text(ratio: Estimate) -> str:
    """`0.97 [0.90, 1.04]`, with as many digits as a small one needs."""
    if ratio.value != ratio.value:
        return "-"
    digits = 2 if ratio.high >= 0.1 else 3
    return f"{ratio.value:.{digits}f} [{ratio.low:.{digits}f}, {ratio.high:.{digits}f}]"


def _ours(result: ClaimResult) -> str:
    if result.ratio is not None:
        number = len(result.comparisons)
        return ratio_text(result.ratio) + (f", mean of {number}" if number > 1 else "")
    ratios = sorted((found.ratio for found in result.comparisons), key=lambda ratio: ratio.value)
    if not ratios:
        return "-"
    return f"{len(ratios)} ratios, {ratio_text(ratios[0])} to {ratio_text(ratios[-1])}"


def _counts(result: ClaimResult) -> str:
    """Runs and games of both sides, each group once."""
    texts = []
    for place in ("first", "second"):
        sides = [getattr(comparison.pair, place) for comparison in result.comparisons]
        groups = {id(side): side for side in sides if isinstance(side, PolicyGroup)}.values()
        if groups:
            runs = sum(group.num_runs for group in groups)
            texts.append(f"{runs}, {sum(group.num_episodes for group in groups)}")
    return " / ".join(texts) or "-"


def _side_fields(name: str, side: PolicyGroup | float) -> dict[str, Any]:
    """The columns of one side of a comparison; a fixed return has no runs."""
    if not isinstance(side, PolicyGroup) or side.scores is None:
        return {f"{name}_mean": side}
    found = mean_return(side.scores)
    return {
        f"{name}": side.title,
        f"{name}_acting": side.acting,
        f"{name}_mean": found.value,
        f"{name}_low": found.low,
        f"{name}_high": found.high,
        f"{name}_num_runs": side.num_runs,
        f"{name}_num_episodes": side.num_episodes,
        f"{name}_runs": ";".join(side.runs),
    }


def _pipe_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
