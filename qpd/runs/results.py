"""Results of finished phases in a run directory, checked before a later phase builds on them."""

from __future__ import annotations

from qpd.files.tensors import crc32_of
from qpd.runs.manifest import PhaseName
from qpd.runs.run_directory import RunDirectory, RunDirectoryError
from qpd.student_files.distilled import StudentFileError, load_student
from qpd.student_files.quantized import load_integer_student
from qpd.students import Student


def distilled_student(run: RunDirectory) -> Student:
    """Load what phase 1 left. Raises RunDirectoryError, with a remedy, if it is damaged or gone."""
    try:
        return load_student(run.distilled_file)
    except StudentFileError as error:
        way = f"put a copy of it back, or delete the folder {run.path} to begin anew"
        raise RunDirectoryError([f"{error}; {way}"]) from error


def check_result(run: RunDirectory, phase: PhaseName) -> None:
    """Read what the finished `phase` left.

    Raises RunDirectoryError, with a remedy, if it is damaged or gone.
    """
    if phase == "distill":
        distilled_student(run)
    elif phase == "evaluate":
        _check_metrics(run)
    else:
        try:
            load_integer_student(run.ptq_file if phase == "quantize" else run.quantized_file)
        except StudentFileError as error:
            way = f"make another from phase 1: `qpd quantize {run.path} -o NEW`"
            line = f"{error}; put a copy of it back, or {way}, then `qpd finetune NEW`"
            raise RunDirectoryError([line]) from error


def metrics_checksum(run: RunDirectory) -> str:
    """Return the CRC-32 of metrics.csv."""
    return crc32_of(run.metrics_bytes())


def _check_metrics(run: RunDirectory) -> None:
    expected = run.phase("evaluate").metrics.get("metrics_crc32")
    if expected is not None and metrics_checksum(run) != expected:
        raise RunDirectoryError(
            [
                f"{run.metrics_file}: is damaged or missing, all else is whole; put a copy of it "
                f"back, or delete the folder {run.path} to begin anew"
            ]
        )
