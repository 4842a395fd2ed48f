"""distilled.safetensors: the float student, with all that is needed to rebuild it."""

from __future__ import annotations

import json
import os
from math import prod
from pathlib import Path
from typing import Any

import safetensors
import torch

from qpd.actions import ActionSpace, Discrete, actions_from_json, actions_to_json
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.files.atomic import write_safetensors
from qpd.files.bounded_read import TooLargeError, open_regular
from qpd.files.json_input import parse_json
from qpd.files.tensors import DamagedFileError, read_tensors
from qpd.students import Student, StudentArchitecture
from qpd.students.architecture import STACKED_FRAMES

FORMAT = "qpd-float-student"
FORMAT_VERSION = 1  # of ReLU students; the next one names another function of hidden layers

# Students are shared between strangers: a header may claim any size, and must not get the memory.
MAX_HEADER_BYTES = 1 << 20  # a student's takes 2 kB
MAX_FILE_BYTES = 1 << 26  # XXL takes 13 MB
MAX_PARAMETERS = 16_000_000  # what fits into a file, in fp32
MAX_LAYERS, MAX_WIDTH = 16, 65536


class StudentFileError(UserError, ValueError):
    """A student's file that cannot be used; one line names the file and says why."""

    code = ErrorCode.STUDENT_DAMAGED


def architecture_to_json(architecture: StudentArchitecture) -> dict[str, Any]:
    """Return the fields of an architecture as plain data.

    ReLU goes without saying, and so does that images of 4x84x84 are Atari's stacked frames. Of a
    vector that begins with an image, the shape is the image's.
    """
    fields: dict[str, Any] = {
        "observation_shape": list(architecture.observation_shape),
        "num_actions": architecture.num_outputs,
        "conv_channels": list(architecture.conv_channels),
        "hidden": list(architecture.hidden),
    }
    if architecture.activation != "relu":
        fields["activation"] = architecture.activation
    if architecture.observation_shape == STACKED_FRAMES and not architecture.stacks_frames:
        fields["stacks_frames"] = False
    if architecture.joins_features and architecture.image_shape is not None:
        fields["observation_shape"] = list(architecture.image_shape)
        fields["num_features"] = architecture.num_features
    return fields


def architecture_from_json(data: dict[str, Any]) -> StudentArchitecture:
    """Invert `architecture_to_json`; raises ValueError, KeyError or TypeError for anything else."""
    observation_shape, image_shape = _sizes(data["observation_shape"]), None
    if "num_features" in data:  # beside an image
        image_shape = observation_shape
        observation_shape = (prod(image_shape) + _sizes([data["num_features"]])[0],)
    stacks_frames = data.get("stacks_frames")
    if stacks_frames is not None and type(stacks_frames) is not bool:
        raise ValueError("stacks_frames is neither true nor false")
    return StudentArchitecture(
        observation_shape,
        _sizes([data["num_actions"]])[0],
        _sizes(data["conv_channels"]),
        _sizes(data["hidden"]),
        str(data.get("activation", "relu")),
        stacks_frames,
        image_shape,
    )


def format_version(architecture: StudentArchitecture, relu_version: int) -> int:
    """Return a file's version: one more where an older QPD would take its function for ReLU."""
    return relu_version + (architecture.activation != "relu")


def _sizes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) > MAX_LAYERS:
        raise ValueError(f"expected a list of at most {MAX_LAYERS} whole numbers")
    # type, not isinstance: True is an int, too.
    if not all(type(n) is int and 0 < n <= MAX_WIDTH for n in values):
        raise ValueError(f"expected whole numbers from 1 to {MAX_WIDTH}")
    return tuple(values)


def stored_actions(metadata: dict[str, str], num_outputs: int, has_values: bool) -> ActionSpace:
    """Return the actions that a student's metadata name; ValueError where they do not fit it.

    Metadata without any, as all were once and those of softmax policies still are, mean one choice
    among `num_outputs` actions, by Q-values where it `has_values`.
    """
    if "actions" not in metadata:
        return Discrete(num_outputs, "q_values" if has_values else "logits")
    actions = actions_from_json(parse_json(metadata["actions"]))
    if actions.num_outputs != num_outputs:
        raise ValueError(f"{num_outputs} outputs for {actions}")
    return actions


def actions_metadata(actions: ActionSpace) -> dict[str, str]:
    """Return the metadata that `stored_actions` reads back."""
    if actions == Discrete(actions.num_outputs):
        return {}  # what metadata without actions mean
    return {"actions": json.dumps(actions_to_json(actions), separators=(",", ":"))}


def save_student(path: Path, student: Student, actions: ActionSpace, about: dict[str, Any]) -> None:
    """Write the float student, critic head included (phase 3 and the analysis need it)."""
    write_safetensors(path, *float_student_content(student, actions, about))


def float_student_content(
    student: Student, actions: ActionSpace, about: dict[str, Any]
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a distilled.safetensors."""
    metadata = {
        "format": FORMAT,
        "format_version": str(format_version(student.architecture, FORMAT_VERSION)),
        "architecture": json.dumps(architecture_to_json(student.architecture)),
        "about": json.dumps(about),
        **actions_metadata(actions),
    }
    return dict(student.state_dict()), metadata


def load_student(path: Path) -> Student:
    """Read what `save_student` wrote; raises StudentFileError for anything else."""
    versions = (FORMAT_VERSION, FORMAT_VERSION + 1)
    metadata, tensors = read_safetensors(path, FORMAT, versions)
    try:
        architecture = versioned_architecture(metadata, FORMAT_VERSION)
        # Before the network is built: 16 layers of 65,536 units would be 256 GiB.
        _check_shapes(architecture, tensors)
        student = Student(architecture)
        student.load_state_dict(tensors)
        if architecture.num_features and (student.input_high <= student.input_low).any():
            raise ValueError("input_high must exceed input_low")
    except (KeyError, ValueError, TypeError, OverflowError, RuntimeError) as error:
        # load_state_dict lists every mismatch on a line of its own; errors here are one line.
        reason = str(error).splitlines()[0]
        raise StudentFileError(f"{path}: does not describe a student: {reason}") from error
    # A checksum only says that the file is as it was written; a diverged student is NaN from the
    # start.
    if not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
        raise StudentFileError(
            f"{path}: contains weights that are not finite", ErrorCode.STUDENT_NOT_FINITE
        )
    return student


def versioned_architecture(metadata: dict[str, str], relu_version: int) -> StudentArchitecture:
    """Return the architecture in a file's metadata; ValueError where its version does not fit."""
    architecture = architecture_from_json(parse_json(metadata["architecture"]))
    version = format_version(architecture, relu_version)
    if metadata["format_version"] != str(version):
        raise ValueError(f"activation {architecture.activation} needs format version {version}")
    return architecture


def stored_architecture(path: Path) -> StudentArchitecture:
    """Return the architecture of the float or integer student in `path`; StudentFileError."""
    try:
        return architecture_from_json(parse_json(read_metadata(path)["architecture"]))
    except StudentFileError:
        raise
    except (KeyError, ValueError, TypeError) as error:
        raise StudentFileError(f"{path}: does not describe a student: {error}") from error


def stored_format(path: Path) -> str:
    """Return the format that `path` names in its metadata. Raises StudentFileError."""
    return read_metadata(path).get("format", "unknown")


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file. Raises StudentFileError if it is not one."""
    return _read(path, with_tensors=False)[0]


def read_safetensors(
    path: Path, expected_format: str, versions: tuple[int, ...]
) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Read metadata and tensors of one of QPD's files, of one of these `versions`.

    Raises StudentFileError if it is not one.
    """
    metadata, tensors = _read(path, with_tensors=True)
    if metadata.get("format") != expected_format:
        raise StudentFileError(f"{path}: was not written as {expected_format}")
    if metadata.get("format_version") not in [str(version) for version in versions]:
        found = f"{metadata.get('format_version')!s:.40}"
        raise StudentFileError(
            f"{path}: has format version {found}, this QPD reads {versions[0]} to {versions[-1]}",
            ErrorCode.STUDENT_FORMAT,
        )
    return metadata, tensors


def _read(path: Path, with_tensors: bool) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    try:
        check_size(path)
        if with_tensors:
            return read_tensors(path, MAX_FILE_BYTES)
        # Reads the header only, not the tensors.
        with safetensors.safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {}), {}
    except FileNotFoundError as error:
        raise StudentFileError(
            f"{path}: no such file; run the phase that writes it"
            if path.suffix == ".safetensors"
            else f"{path}: no such file or folder; give a run directory, or a student's file",
            ErrorCode.STUDENT_MISSING,
        ) from error
    except (safetensors.SafetensorError, DamagedFileError, TooLargeError) as error:
        reason = str(error).splitlines()[0]
        raise StudentFileError(
            f"{path}: is damaged, or not a safetensors file: {reason}"
        ) from error
    except OSError as error:
        raise StudentFileError(
            f"{path}: cannot be read: {error.strerror or error}", ErrorCode.FILE_SYSTEM
        ) from error


def check_size(path: Path) -> None:
    """Raise StudentFileError if a file or its header is larger than any student's, or OSError."""
    with open_regular(path) as file:
        # The safetensors format begins with the header's length: checked before the library
        # allocates it.
        header_bytes = int.from_bytes(file.read(8), "little")
        file_bytes = os.fstat(file.fileno()).st_size
    for what, found, most in (
        ("header of", header_bytes, MAX_HEADER_BYTES),
        ("file of", file_bytes, MAX_FILE_BYTES),
    ):
        if found > most:
            raise StudentFileError(
                f"{path}: is damaged, or not a safetensors file: a {what} {found} bytes;"
                f" at most {most} are read"
            )


def _check_shapes(architecture: StudentArchitecture, tensors: dict[str, torch.Tensor]) -> None:
    """Raise ValueError unless all layers' weights are there, so that nothing larger is built."""
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise ValueError(f"{name[:80]} is {tensor.dtype}, not torch.float32")
    for shape in architecture.layer_shapes():
        name = "actor.weight" if shape.name == "actor" else f"layers.{shape.name}.weight"
        if name not in tensors or tuple(tensors[name].shape) != shape.weight_shape:
            raise ValueError(f"{name} is missing or not {list(shape.weight_shape)}")
