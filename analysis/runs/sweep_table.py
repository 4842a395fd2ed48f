"""The outcome of a sweep: a row per cell with its state, return, bytes and time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from qpd.analysis.runs.run_identity import agent_title
from qpd.analysis.runs.run_table import run_summary, share_of_teacher
from qpd.evaluation.return_words import interval_text

_STUDENTS = ("qat", "ptq", "distilled")


class CellStatus(Protocol):
    """A cell, or a batch that distils for several cells, as the sweep knows it."""

    name: str
    folder: Path
    state: str
    error: str

    @property
    def log(self) -> Path:
        """The file with what the cell's processes printed."""


def sweep_summary(statuses: Sequence[CellStatus]) -> dict[str, Any]:
    """Return every cell's state, its run's summary if there is one, and why it failed.

    Raises RunDirectoryError, StudentFileError.
    """
    cells = []
    for status in statuses:
        cell: dict[str, Any] = {"cell": status.name, "state": status.state}
        # A cell that never started has no run directory; its state alone is shown.
        if (status.folder / "recipe.yaml").is_file():
            cell["run"] = run_summary(status.folder)
        if status.state == "failed":
            cell |= {"error": status.error, "log": str(status.log)}
        cells.append(cell)
    return {"cells": cells}


def sweep_rows(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table that `qpd sweep` ends with."""
    header = ["cell", "agent", "state", "return [95%]", "of teacher", "bytes", "seconds"]
    return header, [_row(cell) for cell in summary["cells"]]


def sweep_caption(summary: dict[str, Any]) -> list[str]:
    """Return one line per failure (why, and where its log is), and one on how bytes are counted.

    And what cells warn of, each line once.
    """
    lines = [
        f"{cell['cell']} failed: {cell['error']} ({cell['log']})"
        for cell in summary["cells"]
        if cell["state"] == "failed"
    ]
    if any("run" in cell for cell in summary["cells"]):
        lines.append("return and bytes of the quantized student; its teacher on the same games")
    warned: dict[str, int] = {}
    for cell in summary["cells"]:
        for line in cell.get("run", {}).get("warnings", ()):
            warned[line] = warned.get(line, 0) + 1
    lines += [f"warning, of {count} cells: {line}" for line, count in warned.items()]
    return lines


def _row(cell: dict[str, Any]) -> list[str]:
    row = [cell["cell"], "-", cell["state"], "-", "-", "-", "-"]
    if "run" not in cell:
        return row
    if (teacher := cell["run"].get("teacher")) is not None:
        row[1] = agent_title(teacher["algo"], teacher["env_id"])
    policies, spent = cell["run"]["policies"], sum(cell["run"]["seconds"].values())
    row[6] = f"{spent:,.0f}" if spent else "-"
    student = next((policies[name] for name in _STUDENTS if name in policies), None)
    if student is None:
        return row
    row[5] = "-" if student["size_bytes"] is None else f"{student['size_bytes']:,}"
    returns, base = student.get("return"), policies.get("teacher", {}).get("return")
    if returns is not None:
        interval = interval_text(returns["interval"], returns["episodes"])
        row[3] = f"{returns['mean']:,.1f} {interval}"
        row[4] = share_of_teacher(returns, base)
    return row
