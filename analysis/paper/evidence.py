"""Everything `qpd analyze paper` shows, from run directories and device files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qpd.analysis.paper.claims import ENVIRONMENT, paper_claims
from qpd.analysis.paper.comparison import numbers_table
from qpd.analysis.paper.figures import claims_figure, returns_figure
from qpd.analysis.paper.results import ClaimResult, claim_results
from qpd.analysis.paper.tables import (
    claims_frame,
    claims_table,
    comparisons_frame,
    comparisons_table,
    notes,
)
from qpd.analysis.returns.policy_groups import PolicyGroup, policy_groups
from qpd.analysis.returns.return_rows import ShownTable
from qpd.analysis.runs.run_frame import run_frame
from qpd.bench.device_record import DeviceRecord
from qpd.errors.codes import ErrorCode
from qpd.runs.run_directory import RunDirectoryError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True)
class PaperEvidence:
    """The groups of runs, the result for each claim, our numbers beside the paper's, and notes."""

    groups: tuple[PolicyGroup, ...]
    results: tuple[ClaimResult, ...]
    numbers: ShownTable
    notes: tuple[str, ...]

    def tables(self) -> list[ShownTable]:
        """Return the tables for a terminal and for Markdown."""
        return [claims_table(self.results), comparisons_table(self.results), self.numbers]

    def frames(self) -> dict[str, DataFrame]:
        """Return the tables for CSV and JSON, by name."""
        import pandas as pd

        return {
            "paper": claims_frame(self.results),
            "paper_comparisons": comparisons_frame(self.results),
            "paper_numbers": pd.DataFrame(self.numbers.rows, columns=self.numbers.header),
        }

    def figures(self) -> dict[str, Figure]:
        """Return the figures by name; use inside `paper_style()`."""
        returns = returns_figure(self.groups)
        drawn = {} if returns is None else {"paper_returns": returns}
        return drawn | {"paper_claims": claims_figure(self.results)}


def paper_evidence(runs: Sequence[Path], devices: Sequence[DeviceRecord] = ()) -> PaperEvidence:
    """Judge the paper's claims by `runs` (see `qpd.analysis.runs.run_frame.find_runs`).

    Files and folders without runs, such as a shell's `runs/*` picks up, are left out if there are
    runs beside them; a note names them.

    Raises StudentFileError, and RunDirectoryError also if no run plays Breakout or none was
    evaluated.
    """
    runs, others = _with_runs(runs)
    frame = run_frame(runs)
    ours = frame[frame["env_id"].str.contains(ENVIRONMENT)]
    where = ", ".join(map(str, runs[:3])) + (" ..." if len(runs) > 3 else "")
    if ours.empty:
        raise RunDirectoryError(
            [f"{where}: no run of {ENVIRONMENT}, which the paper's claims are about"],
            ErrorCode.NOTHING_MEASURED,
        )
    if not ours["returns"].map(len).any():
        raise RunDirectoryError(
            [f"{where}: no policy was evaluated yet; see `qpd evaluate`"],
            ErrorCode.NOTHING_MEASURED,
        )
    groups = policy_groups(ours)
    results = claim_results(paper_claims(), groups)
    left_out = frame["run"].nunique() - ours["run"].nunique()
    lines = notes(results, left_out)
    if others:
        lines.append(f"left out, as they hold no runs: {', '.join(map(str, others))}")
    if not devices:
        lines.append(
            "Table 1: no --devices given; `qpd bench --sizes all -o mine.json` measures one"
        )
    lines.append("not stated: shown in a figure, or a number that QPD does not hold (Tables 2, 4)")
    return PaperEvidence(
        tuple(groups), tuple(results), numbers_table(groups, devices), tuple(lines)
    )


def _with_runs(paths: Sequence[Path]) -> tuple[Sequence[Path], list[Path]]:
    """Split `paths` into those that are or hold runs and the others; all are runs if none is.

    A path that does not exist counts as a run, so that opening it reports the mistake.
    """
    others = [
        path
        for path in paths
        if path.exists()
        and not (path / "manifest.json").is_file()
        and not any(path.glob("*/manifest.json"))
    ]
    found = [path for path in paths if path not in others]
    return (found, others) if found else (paths, [])
