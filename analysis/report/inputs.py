"""The inputs that all sections of a report share."""

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
from qpd.version import pip_install

STUDENTS = ("qat", "ptq", "distilled")  # latest phase first


class ReportError(UserError, ValueError):
    """A report cannot be made; the message is one line."""

    code = ErrorCode.NOTHING_MEASURED


@dataclass(frozen=True)
class ReportInputs:
    """A run opened for reading, its `run_summary`, and the caller's wishes.

    `video_seconds` is None for no film, `map_states` 0 for no map. `note` is called with a line
    before anything slow.
    """

    run: RunDirectory
    summary: dict[str, Any]
    devices: Sequence[DeviceRecord]
    video_seconds: float | None
    map_states: int
    note: Callable[[str], None]

    @property
    def student(self) -> str | None:
        """The name of the latest student; None before phase 1 is finished."""
        return next((name for name in STUDENTS if name in self.summary["policies"]), None)

    @property
    def path(self) -> Path:
        """The run directory, as the caller named it."""
        return self.run.path


def require_packages() -> None:
    """Raise ReportError unless the packages that draw the page are installed."""
    # umap is asked for by its own section, which does without.
    for package in ("jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise ReportError(
                f"a report needs {package}: {pip_install('analysis')}", ErrorCode.PACKAGE_MISSING
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
