"""Read what metrics.csv tells besides the curves: the best validation, and who shared a play."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from qpd.runs.metrics_log import MetricsLogError, read_metrics
from qpd.runs.run_directory import RunDirectory

SHARING = "students_sharing"  # key of phase 1 in the manifest
Rows = Sequence[Mapping[str, str]]


def metrics_rows(run: RunDirectory) -> Rows:
    """Return the rows of metrics.csv; none if it is missing or no metrics file."""
    try:
        return read_metrics(run.metrics_file) if run.metrics_file.is_file() else []
    except MetricsLogError:  # returns, which tables are about, are in the manifest
        return []


def best_validation(run: RunDirectory, rows: Rows, policy: str) -> float:
    """Return the best mean of any epoch's validation games, the number that the paper reports.

    Phase 3's epoch 0 is the student that phase 2 made, of which only the manifest tells. NaN for
    policies that no epoch validated.
    """
    phase = {"distilled": "distill", "qat": "finetune"}.get(policy)
    if phase is None:
        return math.nan
    found = [_number(row.get("validation_return")) for row in rows if row.get("phase") == phase]
    kept = run.phase("distill" if phase == "distill" else "finetune").metrics
    if kept.get("best_epoch") == 0:
        found.append(_number(kept.get("best_validation_return")))
    return max((value for value in found if not math.isnan(value)), default=math.nan)


def students_sharing(runs: Mapping[Path, tuple[RunDirectory, Rows]]) -> dict[Path, int]:
    """Return, for each run, how many students shared its phase 1's play and games (1: none).

    The manifest has it (`phases.distill.students_sharing`). Older ones do not; there runs of one
    process are known by equal speeds in every epoch, to the last digit, with losses that differ
    (equal losses are copies of one student). So a mate counts only if it is among `runs`.
    """
    together: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    speeds: dict[Path, tuple[str, ...]] = {}
    for path, (_, rows) in runs.items():
        epochs = [row for row in rows if row.get("phase") == "distill"]
        speeds[path] = tuple(row.get("samples_per_second", "") for row in epochs)
        losses = tuple(row.get("loss", "") for row in epochs)
        if any(speeds[path]):
            together.setdefault(speeds[path], set()).add(losses)
    found = {}
    for path, (run, _) in runs.items():
        known = run.phase("distill").metrics.get(SHARING)
        inferred = len(together.get(speeds[path], ())) or 1
        found[path] = known if isinstance(known, int) and known > 0 else inferred
    return found


def _number(text: object) -> float:
    try:
        return float(str(text))
    except ValueError:
        return math.nan
