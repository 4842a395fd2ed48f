"""distilled.safetensors: the float student, with all that rebuilding it needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors
import torch

from qpd.atomic_files import write_safetensors
from qpd.checked_tensors import DamagedFileError, read_tensors
from qpd.error_codes import ErrorCode
from qpd.user_error import UserError
from students import Student, StudentArchitecture

FORMAT = "qpd-float-student"
FORMAT_VERSION = 1


class StudentFileError(UserError, ValueError):
    """A student's file that cannot be used; one line names it and says why."""

    code = ErrorCode.STUDENT_DAMAGED


def architecture_to_json(architecture: StudentArchitecture) -> dict[str, Any]:
    """The four fields of an architecture as plain data."""
    return {
        "observation_shape": list(architecture.observation_shape),
        "num_actions": architecture.num_actions,
        "conv_channels": list(architecture.conv_channels),
        "hidden": list(architecture.hidden),
    }


def architecture_from_json(data: dict[str, Any]) -> StudentArchitecture:
    """The inverse; raises ValueError, KeyError or TypeError for anything else."""
    return StudentArchitecture(
        tuple(int(n) for n in data["observation_shape"]),
        int(data["num_actions"]),
        tuple(int(n) for n in data["conv_channels"]),
        tuple(int(n) for n in data["hidden"]),
    )


def save_student(path: Path, student: Student, about: dict[str, Any]) -> None:
    """Write the float student, critic head included (phase 3 and the analysis need it)."""
    write_safetensors(path, *float_student_content(student, about))


def float_student_content(
    student: Student, about: dict[str, Any]
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors and the metadata of a distilled.safetensors."""
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "architecture": json.dumps(architecture_to_json(student.architecture)),
        "about": json.dumps(about),
    }
    return dict(student.state_dict()), metadata


def load_student(path: Path) -> Student:
    """Read what `save_student` wrote; raises StudentFileError for anything else."""
    metadata, tensors = read_safetensors(path, FORMAT, FORMAT_VERSION)
    try:
        student = Student(architecture_from_json(json.loads(metadata["architecture"])))
        student.load_state_dict(tensors)
    except (KeyError, ValueError, TypeError, OverflowError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise StudentFileError(f"{path}: does not describe a student: {reason}") from error
    if not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
        raise StudentFileError(
            f"{path}: holds weights that are not finite", ErrorCode.STUDENT_NOT_FINITE
        )
    return student


def stored_architecture(path: Path) -> StudentArchitecture:
    """The architecture of the float or integer student in `path`. Raises StudentFileError."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
        return architecture_from_json(json.loads(metadata["architecture"]))
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise StudentFileError(f"{path}: does not describe a student: {error}") from error


def stored_format(path: Path) -> str:
    """What kind of student's file `path` is. Raises StudentFileError where it is no safetensors."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("format", "unknown"))
    except FileNotFoundError as error:
        raise StudentFileError(
            f"{path}: no such file; run the phase that writes it", ErrorCode.STUDENT_MISSING
        ) from error
    except (safetensors.SafetensorError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise StudentFileError(f"{path}: is damaged, or no safetensors file: {reason}") from error


def read_safetensors(
    path: Path, expected_format: str, version: int
) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Metadata and tensors of one of QPD's files; raises StudentFileError if it is not one."""
    try:
        metadata, tensors = read_tensors(path)
    except FileNotFoundError as error:
        raise StudentFileError(
            f"{path}: no such file; run the phase that writes it", ErrorCode.STUDENT_MISSING
        ) from error
    except (DamagedFileError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise StudentFileError(f"{path}: is damaged, or no safetensors file: {reason}") from error
    if metadata.get("format") != expected_format:
        raise StudentFileError(f"{path}: was not written as {expected_format}")
    if metadata.get("format_version") != str(version):
        raise StudentFileError(
            f"{path}: has format version {metadata.get('format_version')},"
            f" this QPD reads {version}",
            ErrorCode.STUDENT_FORMAT,
        )
    return metadata, tensors
