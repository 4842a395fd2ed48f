"""Which errors are the user's to mend, and the lines that say so."""

from __future__ import annotations

import sys

from typer.exceptions import TyperException

from qpd.terminal_text import printable

_MAX_LINES = 50


def print_errors(lines: list[str]) -> None:
    """Print one line on stderr for each error, the first 50 of them."""
    for line in lines[:_MAX_LINES]:
        print(f"error: {printable(line)}", file=sys.stderr)
    if len(lines) > _MAX_LINES:
        print(f"error: and {len(lines) - _MAX_LINES} more mistakes", file=sys.stderr)


def error_lines(error: Exception) -> list[str] | None:
    """What to print for an error that is the user's to mend; None for one that is ours."""
    from analysis.report.inputs import ReportError
    from qpd.bench.device_record import BenchError
    from qpd.checkpoint import CheckpointError
    from qpd.environment import EnvironmentConfigError
    from qpd.evaluation_target import TargetError
    from qpd.export.bundle import ExportError
    from qpd.hub.contents import HubPushError
    from qpd.recipe import RecipeError
    from qpd.run_directory import RunDirectoryError
    from qpd.session import SessionError
    from qpd.student_files import StudentFileError
    from qpd.sweep.ray_pool import SweepError
    from qpd.tracking.metric_sinks import SinkError
    from qpd.tracking.metrics_log import MetricsLogError
    from qpd.training_phases import TrainingError
    from teachers import TeacherError

    if isinstance(error, RecipeError | RunDirectoryError):
        return error.lines
    if isinstance(error, TyperException):
        return [" ".join(error.format_message().split())]
    if isinstance(error, OSError):
        return [f"{error.filename or 'output'}: {error.strerror or error}"]
    ours = (
        BenchError,
        CheckpointError,
        EnvironmentConfigError,
        ExportError,
        HubPushError,
        MetricsLogError,
        ReportError,
        StudentFileError,
        SessionError,
        SweepError,
        SinkError,
        TargetError,
        TrainingError,
        TeacherError,
    )
    return [str(error)] if isinstance(error, ours) else None
