"""The JSON of one device: its description, and a row per runtime, model and thread count."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from qpd.bench.c_json import record_of_c_lines
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.files.atomic import write_json
from qpd.files.bounded_read import TooLargeError, read_file
from qpd.files.json_input import MAX_JSON_BYTES, parse_json

FORMAT, SCHEMA_VERSION = "qpd-device", 1
MAX_LINES = 1000  # of the C benchmark, one per student
NATURE_CNN = "NatureCNN"  # the `size` of image teachers
FP32 = 32  # the `weight_bits` of float weights


class BenchError(UserError, ValueError):
    """A benchmark cannot be run, or a file is no record of one; the message is one line."""

    code = ErrorCode.DEVICE_RECORD


class _Plain(BaseModel):
    # Strict: a record with an unknown key is another program's, or of a later version.
    model_config = ConfigDict(extra="forbid", frozen=True)


class GoldenCheck(_Plain):
    """The match with the golden vectors; `largest_error` is a fraction of the logits' spread."""

    vectors: int
    same_actions: int
    largest_error: float


class BenchRow(_Plain):
    """One model in one runtime. Times are medians over rounds, null unless `status` is measured.

    `model` is a size, a run's name, or `teacher` with algorithm and environment; `size` is the
    grid's name for its shape, NatureCNN for a teacher of images, or null. `teacher` is the `model`
    of the rows that a student is compared with; null if there are none, or in files of earlier
    versions, whose only teacher is called `teacher`.
    `weight_bits` is the fewest of any layer, 32 for fp32, null if a file does not tell. `ratio` is
    forward passes per second over that teacher's in PyTorch eager, with as many threads, in the
    same rounds.
    """

    runtime: str
    model: str
    size: str | None
    weight_bits: int | None
    threads: int
    status: Literal["measured", "skipped", "wrong", "failed"]
    reason: str | None = None
    kernels: str | None = None
    median_us: float | None = None
    p99_us: float | None = None
    forwards_per_second: float | None = None
    ratio: float | None = None
    peak_rss_bytes: int | None = None
    file_bytes: int | None = None
    check: GoldenCheck | None = None
    round_medians_us: list[float] = []
    teacher: str | None = None

    @model_validator(mode="after")
    def _is_measured(self) -> Self:
        if self.threads < 1:
            raise ValueError("threads must be at least 1")
        for name in ("median_us", "forwards_per_second"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e12:
                raise ValueError(f"{name} must be above 0 and below 1e12")
        if self.status == "measured" and self.forwards_per_second is None:
            raise ValueError("forwards_per_second of a measured row must be above 0")
        return self

    @property
    def is_teacher(self) -> bool:
        """True for a teacher's row, whatever the teacher."""
        return self.model.split(" ")[0] == "teacher"


class DeviceRecord(_Plain):
    """A device and its rows. `date` is ISO 8601, UTC; `settings` say how it was measured.

    `notes` say which students are not compared with the teacher of their run, and why.
    """

    format: Literal["qpd-device"] = "qpd-device"
    schema_version: Literal[1] = 1
    device: str
    cpu: str
    cores: int | None
    os: str
    versions: dict[str, str]
    date: str | None
    settings: dict[str, Any]
    rows: list[BenchRow]
    notes: list[str] = []


def write_device_record(path: Path, record: DeviceRecord) -> None:
    """Write the record to `path` atomically, replacing what is there."""
    write_json(path, record.model_dump())


def refuse_foreign_file(path: Path) -> None:
    """Raise BenchError unless `path` is free, or an earlier record that may be replaced."""
    if not path.parent.is_dir():
        raise BenchError(f"{path}: the folder {path.parent} does not exist", ErrorCode.FILE_SYSTEM)
    if not os.access(path.parent, os.W_OK):  # before minutes of measuring
        raise BenchError(
            f"{path}: the folder {path.parent} cannot be written", ErrorCode.FILE_SYSTEM
        )
    if path.exists():
        try:
            read_device_record(path)
        except BenchError as error:
            raise BenchError(
                f"{path}: exists and is not a device's JSON; choose another -o",
                ErrorCode.OUTPUT_TAKEN,
            ) from error


def read_device_record(path: Path) -> DeviceRecord:
    """Read what `qpd bench` wrote, or the lines that the C export's benchmark printed.

    Raises BenchError for anything else.
    """
    try:
        objects = _json_objects(_read_text(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise BenchError(
            f"{path}: {reason}; expected JSON from `qpd bench` or `make bench`",
            ErrorCode.FILE_SYSTEM,
        ) from error
    except ValueError as error:
        raise BenchError(
            f"{path}: is not JSON from `qpd bench` or `make bench`: {error}"
        ) from error
    try:
        if objects and all("median_ns" in found for found in objects):
            return DeviceRecord.model_validate(record_of_c_lines(objects))
        if len(objects) != 1 or objects[0].get("format") != FORMAT:
            raise BenchError(f"{path}: holds nothing that `qpd bench` or `make bench` printed")
        version = objects[0].get("schema_version")
        if version != SCHEMA_VERSION:
            raise BenchError(f"{path}: has schema {version}, this QPD reads {SCHEMA_VERSION}")
        return DeviceRecord.model_validate(objects[0])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BenchError(f"{path}: {where}: {first['msg']}") from error
    except KeyError as error:
        raise BenchError(f"{path}: a line of the C benchmark lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise BenchError(f"{path}: a line of the C benchmark: {error}") from error


def _read_text(path: Path) -> str:
    try:
        return read_file(path, MAX_JSON_BYTES).decode("utf-8")
    except TooLargeError:
        raise ValueError(f"it is larger than {MAX_JSON_BYTES >> 20} MiB") from None


def _json_objects(text: str) -> list[dict[str, Any]]:
    """Parse one object over many lines, or one on each line; ValueError for anything else."""
    try:
        objects = [parse_json(text)]
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        # One error about the whole text rather than a thousand lines that parse on their own.
        if len(lines) > MAX_LINES:
            raise
        objects = [parse_json(line) for line in lines]
    if not all(isinstance(found, dict) for found in objects):
        raise ValueError("it holds no JSON object")
    return objects
