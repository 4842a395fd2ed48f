"""What all sections of a report are made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qpd.analysis.runs.run_table import run_summary
from qpd.bench.device_record import DeviceRecord
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.runs.run_directory import RunDirectory

STUDENTS = ("qat", "ptq", "distilled")  # the last one made comes first


class ReportError(UserError, ValueError):
    """A report that cannot be made; one line says why."""

    code = ErrorCode.NOTHING_MEASURED


@dataclass(frozen=True)
class ReportInputs:
    """A run, open for reading, what `run_summary` says of it, and what the caller adds.

    `video_seconds` is None where no game is to be filmed, `map_states` 0 where no map is to be
    drawn. `note` hears of what takes long.
    """

    run: RunDirectory
    summary: dict[str, Any]
    devices: Sequence[DeviceRecord]
    video_seconds: float | None
    map_states: int
    note: Callable[[str], None]

    @property
    def student(self) -> str | None:
        """The name of the last student made; None where phase 1 is not finished."""
        return next((name for name in STUDENTS if name in self.summary["policies"]), None)

    @property
    def path(self) -> Path:
        """The run directory, as the caller named it."""
        return self.run.path

    def student_file(self, name: str) -> Path:
        """Where the student `name` lies, or would lie."""
        run = self.run
        return {"distilled": run.distilled_file, "ptq": run.ptq_file, "qat": run.quantized_file}[
            name
        ]


def require_packages() -> None:
    """ReportError where what draws the page is not installed."""
    for package in ("jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise ReportError(
                f'a report needs {package}: pip install "qpd[analysis]"', ErrorCode.PACKAGE_MISSING
            )


def read_inputs(
    path: Path,
    devices: Sequence[DeviceRecord],
    video_seconds: float | None,
    map_states: int,
    note: Callable[[str], None],
) -> ReportInputs:
    """Read the run at `path`. Raises ReportError, RunDirectoryError or StudentFileError."""
    run = RunDirectory.open(path, read_only=True)
    if run.manifest.teacher is None:
        raise ReportError(f"{path}: this run has not begun: there is nothing to report")
    return ReportInputs(run, run_summary(path), devices, video_seconds, map_states, note)
