"""The paper's Tables 1 and 2: forward passes per second by device and student size.

Table 1 is fp32; Table 2 is 8-bit, by runtime, with each device's teacher in PyTorch beside it. Both
list the paper's devices (its Table 1) for reference, marked "(paper)".
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qpd.analysis.returns.return_rows import pipe_row
from qpd.bench.device_record import FP32, NATURE_CNN, BenchRow, DeviceRecord
from qpd.files.atomic import write_text
from qpd.students import SIZE_GRID

# The paper's Table 1: one observation at a time, fp32, PyTorch, critic head included.
COLUMNS = ("XXS", "XS", "S", "M", "L", "XL", "XXL", "PPO/A2C", "DQN")
PAPER_FPS: dict[str, tuple[int, ...]] = {
    "Raspberry Pi 3B": (135, 128, 116, 100, 72, 46, 25, 39, 41),
    "Jetson TX2 CPU": (79, 78, 73, 67, 52, 45, 32, 42, 45),
    "Jetson TX2 GPU": (815, 808, 815, 816, 762, 760, 736, 280, 568),
    "Intel NUC i5-4250U": (1322, 1287, 1118, 1071, 706, 535, 381, 388, 487),
    "GTX 1080 Ti": (2560, 2598, 2610, 2603, 2599, 2584, 2541, 1630, 1811),
    "Tesla V100": (3620, 3628, 3638, 3484, 3466, 3458, 3625, 2212, 2477),
    "Ryzen 9 3900X": (4535, 4456, 4327, 3743, 2649, 2272, 1442, 1685, 1934),
}
TEACHERS = COLUMNS[len(SIZE_GRID) :]
TEACHER, DQN = TEACHERS
PAPER_MARK = " (paper)"
BASELINE = "torch"
PAPER_RUNTIME = "torch"  # PyTorch eager; the paper's devices ran nothing else in its Table 1
KEYS = ("device", "runtime", "threads")


@dataclass(frozen=True)
class FpsRow:
    """One row: forward passes per second by column; columns not measured are missing."""

    device: str
    runtime: str
    threads: int | None
    fps: dict[str, float]


@dataclass(frozen=True)
class FpsTable:
    """A table with the columns `KEYS` and `columns`; `notes` say what is missing and why."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[FpsRow, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def header(self) -> tuple[str, ...]:
        """All column names."""
        return (*KEYS, *self.columns)

    def cells(self, row: FpsRow) -> list[str]:
        """Return the row as text, in whole numbers, with "-" for what was not measured."""
        threads = "-" if row.threads is None else str(row.threads)
        numbers = [row.fps.get(column) for column in self.columns]
        shown = ["-" if number is None else f"{number:,.0f}" for number in numbers]
        return [row.device, row.runtime, threads, *shown]

    def to_json(self) -> dict[str, Any]:
        """Return the table as plain data."""
        rows = [
            {"device": row.device, "runtime": row.runtime, "threads": row.threads, "fps": row.fps}
            for row in self.rows
        ]
        return {"caption": self.caption, "rows": rows, "notes": list(self.notes)}

    def to_csv(self) -> str:
        """Return the table as CSV; numbers have one decimal, cells not measured are empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        for row in self.rows:
            numbers = [row.fps.get(column) for column in self.columns]
            threads = "" if row.threads is None else row.threads
            shown = ["" if number is None else f"{number:.1f}" for number in numbers]
            writer.writerow([row.device, row.runtime, threads, *shown])
        return text.getvalue()

    def to_markdown(self) -> str:
        """Return the caption, a pipe table and the notes as Markdown."""
        lines = [pipe_row(self.header), pipe_row(["---"] * len(self.header))]
        lines += [pipe_row(self.cells(row)) for row in self.rows]
        return "\n\n".join([self.caption, "\n".join(lines), *self.notes]) + "\n"


def fps_tables(devices: Sequence[DeviceRecord]) -> tuple[FpsTable, FpsTable]:
    """Make Tables 1 and 2 of `devices`; several files of one device are joined.

    Students of other shapes than the grid's, such as those of vectors, have columns of their own,
    named after their runs. Of several students of one size on a device the first is shown, and a
    note says so.
    """
    columns = (*COLUMNS, *_other_columns(devices, is_quantized=False))
    table_1 = FpsTable(
        "fps_table_1",
        "Table 1: forward passes per second, one observation at a time, fp32",
        columns,
        (*_device_rows(devices, is_quantized=False), *_paper_rows(COLUMNS)),
        _notes(devices, is_quantized=False),
    )
    columns = (*SIZE_GRID, TEACHER, *_other_columns(devices, is_quantized=True))
    table_2 = FpsTable(
        "fps_table_2",
        "Table 2: forward passes per second, one observation at a time, 8-bit students by runtime; "
        f"{TEACHER}: the fp32 teacher in PyTorch",
        columns,
        (*_device_rows(devices, is_quantized=True), *_paper_rows((*SIZE_GRID, TEACHER), " fp32")),
        _notes(devices, is_quantized=True),
    )
    return table_1, table_2


def write_tables(tables: Sequence[FpsTable], folder: Path) -> list[Path]:
    """Write each table as CSV and Markdown into `folder`; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables:
        for suffix, text in ((".csv", table.to_csv()), (".md", table.to_markdown())):
            path = folder / f"{table.name}{suffix}"
            write_text(path, text)
            written.append(path)
    return written


def _device_rows(devices: Sequence[DeviceRecord], is_quantized: bool) -> list[FpsRow]:
    rows: dict[tuple[str, str, int], dict[str, float]] = {}
    teachers: dict[tuple[str, int], float] = {}
    for record in devices:
        for row in record.rows:
            column = _column(row)
            if row.forwards_per_second is None:
                continue
            if column == TEACHER and row.runtime == BASELINE:
                teachers.setdefault((record.device, row.threads), row.forwards_per_second)
            if _belongs(row, is_quantized):
                fps = rows.setdefault((record.device, row.runtime, row.threads), {})
                # The first file that holds a cell counts (docs/bench.md).
                fps.setdefault(column, row.forwards_per_second)
    # Table 2 has no quantized teacher: the fp32 one in PyTorch, with as many threads, stands in
    # its column.
    if is_quantized:
        for (device, _, threads), fps in rows.items():
            if (device, threads) in teachers:
                fps[TEACHER] = teachers[device, threads]
    # Backwards, so that the first file of a device decides its place.
    order = {record.device: place for place, record in reversed(list(enumerate(devices)))}
    return [FpsRow(*key, rows[key]) for key in sorted(rows, key=lambda key: order[key[0]])]


def _column(row: BenchRow) -> str:
    """Return the paper's column, or the model's name as one of its own."""
    if not row.is_teacher:
        return row.size or row.model
    if row.model == "teacher":
        return TEACHER
    # The paper's teachers are NatureCNNs, with and without a critic.
    algo = row.model.split(" ")[1] if row.size == NATURE_CNN else ""
    return {"ppo": TEACHER, "a2c": TEACHER, "dqn": DQN}.get(algo, row.model)


def _other_columns(devices: Sequence[DeviceRecord], is_quantized: bool) -> list[str]:
    """List measured models that are in no column of the paper, in the files' order."""
    found = [
        _column(row)
        for record in devices
        for row in record.rows
        if row.forwards_per_second is not None and _belongs(row, is_quantized)
    ]
    return [name for name in dict.fromkeys(found) if name not in COLUMNS]


def _belongs(row: BenchRow, is_quantized: bool) -> bool:
    return row.weight_bits == (8 if is_quantized else FP32)


def _paper_rows(columns: Sequence[str], what: str = "") -> list[FpsRow]:
    rows = []
    for device, numbers in PAPER_FPS.items():
        fps = {name: float(fps) for name, fps in zip(COLUMNS, numbers, strict=True)}
        # Table 2 leaves out the DQN teacher's column: our devices time one teacher only.
        shown = {name: fps[name] for name in columns}
        rows.append(FpsRow(f"{device}{PAPER_MARK}", PAPER_RUNTIME + what, None, shown))
    return rows


def _notes(devices: Sequence[DeviceRecord], is_quantized: bool) -> tuple[str, ...]:
    """List the students that the table has no place for, and what could not be measured."""
    notes: dict[str, None] = {}
    seen: dict[tuple[str, str, int, str], str] = {}
    for record in devices:
        for row in record.rows:
            place = f"{record.device}, {row.runtime}, {row.model}"
            column = _column(row)
            if row.status != "measured":
                if not _belongs(row, is_quantized):
                    continue
                notes[f"{place}: {row.status}: {row.reason}"] = None
            elif not _belongs(row, is_quantized):
                if is_quantized and row.weight_bits != FP32:
                    bits = "unknown" if row.weight_bits is None else row.weight_bits
                    notes[f"{place}: not shown: {bits} bits"] = None
            else:
                key = (record.device, row.runtime, row.threads, column)
                if seen.setdefault(key, row.model) != row.model:
                    notes[f"{place}: not shown: {seen[key]} is the same size"] = None
    return tuple(notes)
