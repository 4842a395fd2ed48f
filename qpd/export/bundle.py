"""Shared by all exports: the student, the golden vectors that prove it, and the folder on disk.

An exporter is a pure function `export_xxx(source, golden) -> {relative path: content}`;
`write_bundle` adds `manifest.json` and puts the folder in place in one step.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from qpd.errors.codes import ErrorCode
from qpd.errors.terminal_text import printable
from qpd.errors.user_error import UserError
from qpd.files.atomic import write_bytes, write_json
from qpd.files.json_input import read_json
from qpd.files.whole_folder import is_current_folder, whole_folder
from qpd.integer.integer_student import IntegerStudent, reference_outputs
from qpd.runs.training_run import TrainingRun, is_training
from qpd.student_files.distilled import StudentFileError, architecture_to_json
from qpd.student_files.origin import student_origin
from qpd.student_files.quantized import load_integer_student
from qpd.teachers.archive.stored_quantization import QUANTIZATION_FILE, read_quantization
from qpd.version import __version__

FORMAT = "qpd-export"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
# What `make`, `qpd fpga` and Python leave in an export: that of an earlier student would mislead.
_BUILT = frozenset(
    {"build", "obj_dir", "__pycache__", "fpga.json", "cells.json", "synthesis.json", "routed.json"}
)


class ExportError(UserError, ValueError):
    """An export cannot be made, or not in that folder; the message is one line."""

    code = ErrorCode.EXPORT_UNSUPPORTED


@dataclass(frozen=True)
class GoldenVectors:
    """Observations and the logits that an export must give for them.

    `observations` are uint8 images `[n, c, h, w]`, or float32 vectors `[n, features]`; `logits` are
    the reference engine's, int32 `[n, actions]`.
    """

    observations: np.ndarray
    logits: np.ndarray


@dataclass(frozen=True)
class ExportSource:
    """The student to export; `about` is its origin as its file records it, `name` labels it.

    `file_bytes` is the size of the file it came from, if it came from one.
    """

    student: IntegerStudent
    about: dict[str, Any]
    name: str
    file_bytes: int | None = None


def load_export_source(path: Path) -> ExportSource:
    """Load the student of a run directory or a quantized.safetensors. Raises StudentFileError."""
    file = path / "quantized.safetensors" if path.is_dir() else path
    if is_training(path) and not file.is_file():
        raise StudentFileError(f"{path}: {_why_no_integers(path)}", ErrorCode.STUDENT_MISSING)
    is_agent = path.suffix == ".zip" or not (file.is_file() or (path / "manifest.json").is_file())
    if is_agent and path.exists():
        raise StudentFileError(
            f"{path}: is no run and no quantized.safetensors; of an agent `qpd quantize AGENT "
            "--bits 8 --activations 8` makes a run, or `qpd run --teacher AGENT` a student",
            ErrorCode.STUDENT_MISSING,
        )
    if path.is_dir() and not file.is_file() and not is_training(path):
        raise StudentFileError(
            f"{path}: there is no quantized student yet; `qpd quantize {path}` makes it",
            ErrorCode.STUDENT_MISSING,
        )
    student = load_integer_student(file)
    # Every run's file has the same name; its folder's says which run it is.
    folder = file.resolve().parent.name
    name = folder if file.name == "quantized.safetensors" else file.stem
    return ExportSource(student, student_origin(file), printable(name), file.stat().st_size)


def _why_no_integers(path: Path) -> str:
    run = TrainingRun.open(path)
    if run.phase.state != "done":
        return "its training is not done: give `qpd train` again"
    quantization = run.recipe.quantization
    if quantization.scheme == "dorefa_scaled" or quantization.controller:
        if quantization.share_in_float >= 1.0:
            return (
                "is a float twin (--quant-delay 1) and has no integers; train without that option"
            )
        if (path / QUANTIZATION_FILE).is_file():
            if read_quantization(path / QUANTIZATION_FILE).is_active:
                return "its quantized.safetensors is missing: give `qpd train` again, to write it"
        return f"it has learned in float to the end: {run.recipe.few_bits_begin}"
    return (
        "was not trained in integers: `qpd train --bits N --scheme dorefa_scaled` has them, or "
        "`qpd quantize AGENT --bits N --activations N` rounds this agent to some"
    )


def golden_vectors(
    student: IntegerStudent,
    seed: int = 0,
    n: int | None = None,
    observations: np.ndarray | None = None,
) -> GoldenVectors:
    """Return `n` generated observations with their logits, or given `observations` with theirs.

    By default 16 with images. Vectors take a few bytes and reach few units each: of them there are
    256, which find most of the single changes that thousands would find.
    """
    if observations is None:
        rng = np.random.default_rng(seed)
        if n is None:
            n = 256 if student.architecture.image_shape is None else 16
        if student.architecture.is_image:
            observations = _structured_images(rng, n, student.architecture.observation_shape)
        else:
            observations = _vectors_in_range(student, rng, n)
    return GoldenVectors(observations, reference_outputs(student, observations))


def _structured_images(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> np.ndarray:
    """Draw rectangles that move from channel to channel, as in games: uint8 `[n, *shape]`.

    Every fourth observation is noise over all 256 levels, the first two are all 0 and all 255.
    """
    frames = np.zeros((n, *shape), dtype=np.uint8)
    channels, side = shape[0], max(shape[1:])
    for i in range(n):
        if i % 4 == 3:
            frames[i] = rng.integers(0, 256, shape, dtype=np.uint8)
            continue
        # Flat areas and edges drive activations as games do; noise alone would average out in
        # every layer.
        frames[i] = rng.integers(0, 128)
        for _ in range(rng.integers(4, 20)):
            height, width = rng.integers(1, 40, 2)
            top, left = rng.integers(0, side, 2)
            down, right = rng.integers(-4, 5, 2)
            level = rng.integers(0, 256)
            for t in range(channels):
                y, x = max(top + t * down, 0), max(left + t * right, 0)
                frames[i, t, y : y + height, x : x + width] = level
    # The extremes push accumulators and saturation furthest. Slices, as n may be 0 or 1.
    frames[:1], frames[1:2] = 0, 255
    return frames


def _vectors_in_range(student: IntegerStudent, rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw vectors up to a tenth beyond the input range on either side: float32 `[n, features]`.

    Values outside the range test the clipping too.
    """
    assert student.input_low is not None and student.input_high is not None
    unit = rng.uniform(-0.1, 1.1, (n, len(student.input_low)))
    values = student.input_low + unit * (student.input_high - student.input_low)
    image = student.architecture.image_shape
    if image is not None:  # which the vector begins with
        pixels = _structured_images(rng, n, image).reshape(n, -1)
        values = np.concatenate([pixels, values], 1)
    return values.astype(np.float32)


def write_bundle(
    folder: Path, target: str, source: ExportSource, files: Mapping[str, bytes]
) -> None:
    """Write `files` and a manifest into `folder`, replacing an earlier export of the same target.

    Afterwards the folder is either as it was or complete; files of the user's own in an earlier
    export stay. Raises ExportError if it holds anything else, OSError if it cannot be written.
    """
    refuse_foreign(folder, target)
    with whole_folder(folder) as fresh:
        for name, content in files.items():
            path = fresh / _inside(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)
        write_json(fresh / MANIFEST, _manifest(target, source, files))
        keep_own_files(folder, fresh)


def keep_own_files(folder: Path, fresh: Path) -> None:
    """Copy what users have put into the export `folder` into its successor `fresh`.

    Such as a program of theirs beside the sources. What was built there is left out, and a file
    of theirs that the export now has as well is refused: ExportError. Raises OSError.
    """
    if not (folder / MANIFEST).is_file():
        return
    exported = (MANIFEST, *read_json(folder / MANIFEST).get("files", ()))
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_built = name.parts[0] in _BUILT or "__pycache__" in name.parts
        if is_built or name.as_posix() in exported or (path.is_dir() and not path.is_symlink()):
            continue
        if (fresh / name).exists():
            raise ExportError(
                f"{path}: is not the earlier export's, and this one has a file of its name; move "
                "it away, or name a new folder with -o",
                ErrorCode.OUTPUT_TAKEN,
            )
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, fresh / name, follow_symlinks=False)


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or name == MANIFEST:
        raise ValueError(f"{name!r} is not a valid name for an exported file")
    return path


def _manifest(target: str, source: ExportSource, files: Mapping[str, bytes]) -> dict[str, Any]:
    student = source.student
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "target": target,
        "qpd_version": __version__,
        "student": source.name,
        "architecture": architecture_to_json(student.architecture),
        "weight_bits": [layer.bits for layer in student.layers],
        "activation_levels": student.layers[0].levels,
        "logit_scale": student.output_scale,
        "about": source.about,
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in sorted(files.items())
        },
    }


def refuse_foreign(folder: Path, target: str) -> None:
    """Raise ExportError unless `folder` is new, empty or an earlier export of the same target.

    Nor is one replaced in which a file of the export was changed since: that is somebody's work.
    """
    if is_current_folder(folder):
        raise ExportError(
            f"{folder}: is the current folder; name a new one for {target} with -o",
            ErrorCode.OUTPUT_TAKEN,
        )
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    there, checksums = None, {}
    try:
        manifest = read_json(folder / MANIFEST)
        if manifest.get("format") == FORMAT:
            checksums = {name: str(entry["sha256"]) for name, entry in manifest["files"].items()}
            there = str(manifest["target"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass  # no manifest, or one that no export has written
    if there != target:
        what = f"holds a {there} export" if there else "holds something that is not an export"
        what = what if folder.is_dir() else "is a file"
        raise ExportError(
            f"{folder}: {what}; name a new folder for {target} with -o",
            ErrorCode.OUTPUT_TAKEN,
        )
    for name, checksum in checksums.items():
        path = folder / name
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() != checksum:
            raise ExportError(
                f"{path}: was changed since it was exported; move it away, or name a new folder "
                f"for {target} with -o",
                ErrorCode.OUTPUT_TAKEN,
            )
