"""One row of metrics per epoch, in metrics.csv."""

import csv
import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean
from qpd.errors.user_error import UserError
from qpd.files.atomic import errors_name, write_text
from qpd.files.bounded_read import TooLargeError, read_file

KEY_COLUMNS = ("phase", "epoch")
_EPOCH = re.compile(r"[0-9]{1,9}")
_MAX_BYTES = 256 << 20  # a million epochs of 200 bytes
_MAX_COLUMNS = 1000


class MetricsLogError(UserError, ValueError):
    """metrics.csv does not have the columns that are to be written; one line."""

    code = ErrorCode.RUN_DAMAGED


def read_metrics(path: Path) -> list[dict[str, str]]:
    """Return the rows of a metrics.csv, each by column; those without a whole epoch are left out.

    Raises:
        MetricsLogError: It is no CSV file, or larger than 256 MiB.
        OSError: It cannot be read.
    """
    rows = _read_rows(path, with_torn=True)
    found = [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
    return [row for row in found if _EPOCH.fullmatch(row.get("epoch", ""))]


def last_number(rows: Sequence[Mapping[str, str]], column: str) -> float | None:
    """Return what the last of `rows` that has a number in `column` says; None where none has.

    Raises MetricsLogError for what is no finite number.
    """
    text = next((row[column] for row in reversed(rows) if row.get(column)), None)
    if text is None:
        return None
    try:
        if math.isfinite(number := float(text)):
            return number
    except ValueError:
        pass
    raise MetricsLogError(f"metrics.csv: {column} is {text[:40]!r}; expected a number")


def read_lines(path: Path) -> list[str]:
    """Return the lines of a metrics.csv with their ends; raises as `read_metrics` does."""
    try:
        return read_file(path, _MAX_BYTES).decode("utf-8").splitlines(keepends=True)
    except TooLargeError as error:
        raise MetricsLogError(f"{path}: is larger than {_MAX_BYTES >> 20} MiB") from error
    except UnicodeDecodeError as error:
        raise MetricsLogError(f"{path}: is no CSV file: {error}") from error


def _read_rows(path: Path, *, with_torn: bool) -> list[list[str]]:
    """Return all lines, the header first; `with_torn` also a last one that a kill cut off."""
    lines = read_lines(path)
    try:
        rows = list(csv.reader(x for x in lines if with_torn or x.endswith("\n"))) or [[]]
    except csv.Error as error:
        raise MetricsLogError(f"{path}: is no CSV file: {error}") from error
    if len(rows[0]) > _MAX_COLUMNS:
        raise MetricsLogError(
            f"{path}: has {len(rows[0])} columns; at most {_MAX_COLUMNS} are read"
        )
    return rows


class MetricsLog:
    """Appends rows of one phase; each is on the disk when `write` returns.

    Write a row before the checkpoint of its epoch: a killed process then loses no row, and the
    rows after the checkpoint are dropped when it resumes.
    """

    def __init__(
        self,
        path: Path,
        columns: Sequence[str],
        *,
        phase: str,
        resume_epoch: int = 0,
    ) -> None:
        """Open or begin the file, without the rows of `phase` after `resume_epoch`.

        Args:
            path: metrics.csv, shared by all phases.
            columns: What is measured; `phase` and `epoch` come before it. Fixed once written.
            phase: Phase whose rows are written.
            resume_epoch: Epoch of the checkpoint that is resumed; 0 = the phase begins anew.

        Raises:
            MetricsLogError: The file exists with other columns.
        """
        self._columns = (*KEY_COLUMNS, *columns)
        if len(set(self._columns)) != len(self._columns):
            raise MetricsLogError(f"{path}: columns must differ: {', '.join(self._columns)}")
        self._phase, self._path = phase, path
        # Rewritten whole and atomically: rows after the checkpoint must not survive a second kill.
        write_text(path, self._kept_text(path, resume_epoch))
        self._file = path.open("a", encoding="utf-8", newline="")

    def write(self, epoch: int, values: Mapping[str, float | int | str | None]) -> None:
        """Append the row of an epoch; columns without a value stay empty.

        Raises:
            MetricsLogError: A value has no column; the nearest one is named.
        """
        for name in values:
            if name not in self._columns[len(KEY_COLUMNS) :]:
                hint = did_you_mean(name, self._columns)
                raise MetricsLogError(f"{self._file.name}: no column {name!r}{hint}")
        row: dict[str, Any] = {"phase": self._phase, "epoch": epoch, **values}
        with errors_name(self._path):
            self._file.write(_csv_text([[_cell(row.get(name)) for name in self._columns]]))
            self._file.flush()
            # The checkpoint of this epoch comes next, and must not reach the disk before its row.
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        with errors_name(self._path):
            self._file.close()

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _kept_text(self, path: Path, resume_epoch: int) -> str:
        """Return the header and the rows to keep; a row torn by a kill is dropped."""
        header = list(self._columns)
        if not path.exists() or not path.stat().st_size:
            return _csv_text([header])
        rows = _read_rows(path, with_torn=False)
        found = rows[0]
        # Runs of earlier versions lack later columns: those stay empty in their rows.
        if found[:2] != header[:2] or not set(found) <= set(header):
            names = ", ".join(found) or "none"
            raise MetricsLogError(f"{path}: has the columns {names}; needed {', '.join(header)}")
        places = [found.index(name) if name in found else None for name in header]
        whole = [row for row in rows[1:] if len(row) == len(found)]
        kept = [row for row in whole if self._is_kept(row, resume_epoch)]
        moved = [["" if place is None else row[place] for place in places] for row in kept]
        return _csv_text([header, *moved])

    def _is_kept(self, row: list[str], resume_epoch: int) -> bool:
        if not _EPOCH.fullmatch(row[1]):
            return False
        return row[0] != self._phase or int(row[1]) <= resume_epoch


def _cell(value: Any) -> str:
    """Return a number so that reading it gives the same number, text as it is."""
    if value is None:
        return ""
    if isinstance(value, str | bool | int):
        return str(value)
    number = value.item() if hasattr(value, "item") else value  # numpy and torch scalars
    return repr(number)


def _csv_text(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
