"""Measure what students keep of their agents' play, by size and bits: the smallest at parity.

Kept is (student - random) / (agent - random) of the mean returns. Where a student and its agent
played the same starts, one game in each environment, the interval is that of the differences game
by game, else that of two independent means (Welch).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.returns.return_rows import ShownTable
from qpd.analysis.runs.run_frame import find_runs
from qpd.analysis.runs.run_identity import agent_title
from qpd.analysis.runs.student_bits import bit_columns, run_architecture
from qpd.errors.user_error import UserError
from qpd.evaluation.games import bootstrap_interval
from qpd.evaluation.studentized import FEW, student_t_quantile
from qpd.runs.manifest import TeacherRecord
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.quantized import stored_constant_bytes
from qpd.teachers import load_teacher

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = (
    "agent", "teacher_sha256", "run", "size", "policy", "bits", "parameters", "actor_parameters",
    "constant_bytes", "games", "paired", "teacher", "random", "mean", "difference",
    "difference_low", "difference_high", "kept", "kept_low", "kept_high",
)  # fmt: skip
_FINAL = ("qat", "ptq")  # the last one that was played stands for the run


def parity_table(paths: Sequence[Path]) -> tuple[DataFrame, dict[str, str]]:
    """Return `COLUMNS`, a row per run, by agent and bytes; and the runs left out, with the reason.

    Returns are of the integer student: finetuned, or quantized where nothing more was played.
    `kept` and its ends are NaN where the agent is no better than a random policy. Raises
    RunDirectoryError, StudentFileError.
    """
    import pandas as pd

    rows, left_out = [], {}
    for path in find_runs(paths):
        row = _row(path)
        if isinstance(row, str):
            left_out[str(path)] = row
        else:
            rows.append(row)
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    # Two agents of one algorithm and environment are told apart by their files.
    several = table.groupby("agent")["teacher_sha256"].transform("nunique") > 1
    table.loc[several, "agent"] += " (" + table["teacher_sha256"].str[:8] + ")"
    return table.sort_values(["agent", "constant_bytes"], ignore_index=True), left_out


def smallest_at_parity(table: DataFrame, share: float) -> DataFrame:
    """Return for each agent the row of fewest bytes whose `kept_low` is at least `share`.

    Rows of fewer than 10 games do not count: their intervals say nothing.
    """
    kept = table[(table["kept_low"] >= share) & (table["games"] >= FEW)]
    # The table is sorted by bytes.
    return kept.groupby("agent", sort=False).head(1).reset_index(drop=True)


def parity_tables(table: DataFrame, share: float) -> list[ShownTable]:
    """Tabulate `parity_table`: all students, and the smallest at parity of each agent."""
    header = [
        "run",
        "size",
        "bits",
        "policy",
        "bytes",
        "of the actor",
        "return",
        "difference",
        "kept",
        "",
    ]
    shown = []
    for agent, mine in table.groupby("agent", sort=False):
        first = mine.iloc[0]
        title = f"{agent}: agent {first['teacher']:,.1f}, random policy {first['random']:,.1f}"
        rows = [[*_cells(row), _mark(row, share)] for _, row in mine.iterrows()]
        shown.append(ShownTable(title, header, rows))
    rows = [[row["agent"], *_cells(row)] for _, row in smallest_at_parity(table, share).iterrows()]
    missing = [name for name in table["agent"].unique() if name not in {row[0] for row in rows}]
    rows += [[name, "none", *[""] * (len(header) - 2)] for name in missing]
    tried = f"by the intervals of {len(table)} students tried, not corrected for so many"
    title = f"smallest student that keeps {share:.0%}, {tried}"
    return [*shown, ShownTable(title, ["agent", *header[:-1]], rows)]


def parity_notes(table: DataFrame, share: float) -> list[str]:
    """Return how to read `parity_tables`."""
    notes = [
        "kept: (return - random policy) / (agent - random policy); in brackets 95% intervals; "
        f"yes: its lower end is at {share:.0%} or above, of {FEW} games or more; mean: the mean "
        "alone is",
        "the random policy's return is the mean of 8 games at most, and taken as known",
        "bytes: weights at their true bits, biases, multipliers and shifts",
    ]
    if not table["paired"].all():
        notes.append(
            "not every run played the same starts as its agent (evaluation.num_envs = "
            "evaluation.episodes does it): those intervals are of independent means"
        )
    return notes


def _row(path: Path) -> dict[str, Any] | str:
    run = RunDirectory.open(path, read_only=True)
    played = run.manifest.evaluations
    final = next((name for name in _FINAL if name in played), None)
    if run.manifest.teacher is None or final is None or "teacher" not in played:
        return "no integer student of it has played, or its agent has not"
    first_games = run.phase("distill").metrics.get("first_games")
    if not first_games:
        return "no games of a random policy in its manifest"
    random, architecture = float(first_games["random"]), run_architecture(run)
    file = run.quantized_file if final == "qat" else run.ptq_file
    theirs, ours = (np.array(played[name].get("returns", [])) for name in ("teacher", final))
    if not len(theirs) or not len(ours):
        return "its manifest lacks the returns of single games"
    is_paired = _same_starts(run, played["teacher"], played[final])
    difference = float(ours.mean() - theirs.mean())
    low, high = bootstrap_interval(ours - theirs) if is_paired else _welch(ours, theirs)
    gap = float(theirs.mean()) - random
    kept = [1.0 + end / gap if gap > 0 else np.nan for end in (difference, low, high)]
    teacher = run.manifest.teacher
    return {
        "agent": agent_title(teacher.algo, teacher.env_id),
        "teacher_sha256": teacher.sha256,
        "run": str(path),
        "size": run.recipe.student.size or "custom",
        "policy": final,
        "bits": bit_columns(run.recipe, architecture)["layer_bits"],
        "parameters": np.nan if architecture is None else architecture.num_parameters,
        "actor_parameters": _actor_parameters(teacher),
        "constant_bytes": stored_constant_bytes(file) if file.is_file() else np.nan,
        "games": len(ours),
        "paired": is_paired,
        "teacher": float(theirs.mean()),
        "random": random,
        "mean": float(ours.mean()),
        "difference": difference,
        "difference_low": low,
        "difference_high": high,
        "kept": kept[0],
        "kept_low": kept[1],
        "kept_high": kept[2],
    }


def _actor_parameters(record: TeacherRecord) -> float:
    """Return the size of what acts; of earlier versions' runs only if the agent is at hand."""
    if record.actor_parameters is not None:
        return record.actor_parameters
    try:
        agent = load_teacher(record.source, algo=record.algo)
    except UserError:
        return np.nan
    return agent.actor_parameters if agent.sha256 == record.sha256 else np.nan


def _same_starts(run: RunDirectory, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether game i of both began alike: the first game of environment i."""
    settings = run.recipe.evaluation
    games = len(one["returns"])
    return (
        games == len(other["returns"]) <= settings.games_in_parallel
        and one["seed"] == other["seed"]
        and games == settings.episodes
    )


def _welch(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return the 95% interval of a difference of independent means (Welch 1947)."""
    if min(len(one), len(other)) < 2:
        return np.nan, np.nan
    parts = np.array([games.var(ddof=1) / len(games) for games in (one, other)])
    difference, error = float(one.mean() - other.mean()), float(np.sqrt(parts.sum()))
    if error == 0.0:
        return difference, difference
    counts = np.array([len(one), len(other)]) - 1
    freedom = float(parts.sum() ** 2 / (parts**2 / counts).sum())
    far = error * student_t_quantile(0.975, freedom)
    return difference - far, difference + far


def _cells(row: Any) -> list[str]:
    def interval(form: str, name: str) -> str:
        if np.isnan(row[name]):
            return "-"
        if np.isnan(row[f"{name}_low"]):
            return f"{form.format(row[name])} [-]"  # one game tells of no other
        low, high = (form.format(row[f"{name}_{end}"]) for end in ("low", "high"))
        return f"{form.format(row[name])} [{low}, {high}]"

    size = "-" if np.isnan(row["constant_bytes"]) else f"{int(row['constant_bytes']):,}"
    share = row["parameters"] / row["actor_parameters"]
    return [
        Path(row["run"]).name,
        row["size"],
        str(row["bits"]),
        row["policy"].upper(),
        size,
        "-" if np.isnan(share) else f"{share:.1%}",
        f"{row['mean']:,.1f}",
        interval("{:+,.1f}", "difference"),
        interval("{:.1%}", "kept"),
    ]


def _mark(row: Any, share: float) -> str:
    if row["kept_low"] >= share and row["games"] >= FEW:
        return "yes"
    return "mean" if row["kept"] >= share else ""
