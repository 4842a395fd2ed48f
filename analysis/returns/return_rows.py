"""Tables of returns for the terminal, and the notes below them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.returns.plot_series import bits_text
from qpd.analysis.returns.policy_returns import TEACHERS
from qpd.teachers.archive.agent_identity import algorithm_name

if TYPE_CHECKING:
    from pandas import DataFrame

_POLICIES = {"teacher_sharpened": "sharpened", "ptq": "PTQ", "qat": "QAT"}


@dataclass(frozen=True)
class ShownTable:
    """A table for a terminal: a title, column names, and cells as text."""

    title: str
    header: list[str]
    rows: list[list[str]]


def pipe_row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def number_or_dash(value: float, form: str) -> str:
    """Return a number in the form of `str.format`, and NaN as a dash."""
    return "-" if np.isnan(value) else form.format(value)


def returns_tables(table: DataFrame) -> list[ShownTable]:
    """Tabulate `policy_returns`, one table per environment."""
    header = ["run", "agent", "policy", "size", "bits", "λ", "games", "return", "IQM", "of teacher"]
    header += ["beats teacher"]
    tables = []
    for env_id, mine in table.groupby("env_id"):
        rows = []
        for _, row in mine.iterrows():
            weight = "-" if np.isnan(row["lambda"]) else f"{row['lambda']:g}"
            games = f"{row['num_episodes']:,}"
            games = games if row["num_runs"] == 1 else f"{games} of {row['num_runs']} runs"
            measured = [
                _with_interval(row, "mean", "{:.1f}"),
                f"{row['iqm']:.1f}",
                _with_interval(row, "relative", "{:.0%}"),
                _with_interval(row, "improvement", "{:.2f}"),
            ]
            rows.append([*_who(row), weight, games, *measured])
        tables.append(ShownTable(str(env_id), header, rows))
    return tables


def returns_notes(frame: DataFrame, table: DataFrame) -> list[str]:
    """Return how to read `table` (of `policy_returns`), and what of `frame` it leaves out."""
    notes = [
        "in brackets: 95% bootstrap intervals over runs and games; IQM: interquartile mean; "
        "beats teacher: probability that a game ends above one of the teacher's"
    ]
    # The interval looks the same with one run and with five; only this line tells the reader.
    alone = table[(table["num_runs"] == 1) & ~table["policy"].isin(TEACHERS)]
    if len(alone):
        whose = "each recipe" if (table["num_runs"] == 1).all() else f"{len(alone)} students"
        notes.append(f"one seed of {whose}: their intervals say nothing about other seeds")
    missing = frame[frame["returns"].map(len) == 0]
    students = missing[~missing["policy"].isin(TEACHERS)]
    if len(students):
        first = f"{students['policy'].iloc[0]} of {students['name'].iloc[0]}"
        notes.append(f"left out, not evaluated: {len(students)} students, such as {first}")
    students = table[~table["policy"].isin(TEACHERS)]
    alone = students[students["improvement"].isna()]
    if len(alone):
        names = ", ".join(dict.fromkeys(alone["experiment"]))
        notes.append(f"no evaluation of the teacher, acting by the same rule, for {names}")
    unclear = students[students["relative"].isna() & students["improvement"].notna()]
    if len(unclear):
        names = ", ".join(dict.fromkeys(unclear["env_id"] + " " + unclear["teacher"]))
        notes.append(f"no share of the teacher's return where that may not be positive: {names}")
    return notes


def pareto_tables(table: DataFrame) -> list[ShownTable]:
    """Tabulate `pareto_bytes` or `pareto_latency`, one table per panel."""
    has_runtime = "runtime" in table
    header = ["run", "agent", "policy", "size", "bits", "bytes", "return", "front"]
    if has_runtime:
        header[5:6] = ["runtime", "threads", "µs"]
    tables = []
    for panel, mine in table.groupby("panel"):
        rows = []
        for _, row in mine.iterrows():
            cost = [f"{int(row['cost']):,}"]
            if has_runtime:
                cost = [row["runtime"], str(row["threads"]), f"{row['cost']:,.1f}"]
            front = "yes" if row["on_front"] else ""
            rows.append([*_who(row), *cost, _with_interval(row, "mean", "{:.1f}"), front])
        tables.append(ShownTable(str(panel), header, rows))
    return tables


def _who(row: Any) -> list[str]:
    # A teacher's evaluations come from several runs; it is one policy of none of them.
    name = "-" if row["policy"] in TEACHERS else row["experiment"]
    policy = _POLICIES.get(row["policy"], row["policy"])
    return [name, algorithm_name(row["teacher"]), policy, row["size"], bits_text(row)]


def _with_interval(row: Any, name: str, form: str) -> str:
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    if np.isnan(value):
        return "-"
    # One game tells of no other, nor do two to five runs of some statistics.
    if np.isnan(low) or (row["num_runs"] == 1 and row["num_episodes"] == 1):
        return f"{form.format(value)} [-]"
    return f"{form.format(value)} [{form.format(low)}, {form.format(high)}]"
