"""Parameters and bytes of students by size and bits per weight, beside the teacher's.

Bytes are those of real files: of the given runs or, for the rest of the size grid, of an untrained
student that is quantized and packed in memory as `qpd quantize` would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from qpd.actions import Discrete
from qpd.analysis.figure_style import NEUTRAL, PAGE_WIDTH, new_figure, series_look, tilt_names
from qpd.analysis.returns.plot_series import precision_name
from qpd.analysis.returns.policy_returns import TEACHERS
from qpd.analysis.returns.return_rows import ShownTable
from qpd.files.atomic import safetensors_bytes
from qpd.integer.integer_student import integer_student
from qpd.quantization.bit_widths import FLOAT_BITS
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.student_files.distilled import float_student_content
from qpd.student_files.quantized import pack_student
from qpd.students import SIZE_GRID, Student, architecture_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

BITS = (FLOAT_BITS, 8, 6, 4, 2)
# In fp32, for 4 actions: SB3's CnnPolicy of PPO or A2C has a critic head, DQN's has none.
TEACHER_BYTES = 4 * 1_686_693
DQN_TEACHER_BYTES = 4 * 1_686_180
PACKED = "packed for this table"
COLUMNS = (
    "size", "parameters", "precision", "weight_bits", "size_bytes", "teacher_bytes", "ratio",
    "source", "env_id",
)  # fmt: skip
_BREAKOUT = ((4, 84, 84), 4)


def size_table(frame: DataFrame | None = None) -> DataFrame:
    """Return a row per size of the grid and each of `BITS`, then per further student of the runs.

    `frame` is a `run_frame`. `ratio` is the teacher's bytes divided by the file's; `source` is the
    run whose file it is (the first of several) or `PACKED`. Packed students have 4 actions; a run's
    file is some hundred bytes longer, because it also records where it comes from.
    """
    import pandas as pd

    rows = _run_rows(frame) if frame is not None else []
    key = ("size", "parameters", "precision", "teacher_bytes")
    # Backwards, so that of several equal files the first run's is kept.
    found = {tuple(row[name] for name in key): row for row in reversed(rows)}
    table = []
    for size in SIZE_GRID:
        architecture = architecture_for(size, *_BREAKOUT)
        missing = []
        for bits in BITS:
            precision = "fp32" if bits == FLOAT_BITS else f"{bits}-bit"
            teachers = [TEACHER_BYTES, DQN_TEACHER_BYTES]
            # A run's file serves if it has the grid's own number of actions and either of the two
            # teachers.
            keys = [(size, architecture.num_parameters, precision, count) for count in teachers]
            row = next((found.pop(key) for key in keys if key in found), None)
            missing += [bits] if row is None else []
            table += [row] if row is not None else []
        table += _packed_rows(size, missing)
    order = {size: place for place, size in enumerate(SIZE_GRID)}
    table.sort(key=lambda row: (order[row["size"]], -row["weight_bits"]))
    return pd.DataFrame([*table, *reversed(found.values())], columns=list(COLUMNS))


def shown_sizes(table: DataFrame) -> ShownTable:
    """Tabulate `size_table` for a terminal: a line per size and teacher, bytes by precision."""
    precisions = list(dict.fromkeys(table["precision"]))
    header = ["size", "parameters", *precisions]
    lines: dict[tuple[str, int, int, str], dict[str, str]] = {}
    keys = ["size", "parameters", "teacher_bytes"]
    grid = set(_of_grid(table)[keys].itertuples(index=False, name=None))
    for _, row in table.iterrows():
        mark = "" if row["source"] == PACKED else "*"
        text = f"{int(row['size_bytes']):,}{mark} ({row['ratio']:.3g}x)"
        # Students outside the grid are told apart by their runs.
        of = "" if tuple(row[keys]) in grid else row["source"]
        key = (row["size"], int(row["parameters"]), int(row["teacher_bytes"]), of)
        lines.setdefault(key, {})[row["precision"]] = text
    rows = [
        [of or size, f"{parameters:,}", *(cells.get(name, "-") for name in precisions)]
        for (size, parameters, _, of), cells in lines.items()
    ]
    return ShownTable("bytes of the student's file", header, rows)


def sizes_left_out(table: DataFrame, frame: DataFrame | None) -> dict[str, str]:
    """Return why students of `frame` are not in `table`, by run and policy."""
    reasons: dict[str, str] = {}
    if frame is None:
        return reasons
    sources = set(table["source"])
    for _, row in frame[~frame["policy"].isin(TEACHERS)].iterrows():
        name = f"{row['name']} ({row['policy']})"
        if np.isnan(row["size_bytes"]):
            reasons[name] = "left out, as its file was not kept"
        elif row["name"] not in sources:
            reasons[name] = (
                "left out, as a run of the same size and bits is there, "
                "whose teacher has as many bytes"
            )
    return reasons


def size_notes(table: DataFrame) -> list[str]:
    """Return how to read `shown_sizes`."""
    notes = [
        "in brackets: how many times smaller it is than its teacher in fp32; "
        f"the grid's teacher has {TEACHER_BYTES:,} bytes"
    ]
    names = list(dict.fromkeys(table["source"][table["source"] != PACKED]))
    return [*notes, f"* a run's file: {', '.join(names)}"] if names else notes


def draw_sizes(table: DataFrame, axes: Axes) -> None:
    """Draw `size_table`: bytes by size, a series per precision; other students beside the grid.

    Students that are no size of the grid, or of another teacher, are marks named after their runs.
    """
    grid = _of_grid(table)
    others = table.drop(grid.index)
    names = list(dict.fromkeys([*_precisions(), *table["precision"]]))
    places = {
        name: place for place, name in enumerate([*SIZE_GRID, *dict.fromkeys(others["source"])])
    }
    for place, name in enumerate(names):
        mine = grid[grid["precision"] == name]
        apart = others[others["precision"] == name]
        look = series_look(place)
        # No line joins a single mark, nor students of different environments.
        axes.plot(mine["size"].map(places), mine["size_bytes"], label=name, **look)
        axes.plot(apart["source"].map(places), apart["size_bytes"], linestyle="", **look)
    axes.hlines(
        TEACHER_BYTES, -0.4, len(SIZE_GRID) - 0.6, color=NEUTRAL, linewidth=0.8, linestyle="--"
    )
    teachers = others.drop_duplicates("source")
    if not teachers.empty:
        axes.plot(
            teachers["source"].map(places), teachers["teacher_bytes"], label="teacher, fp32",
            color=NEUTRAL, marker="_", markersize=9, markeredgewidth=1.5, linestyle="",
        )  # fmt: skip
    else:
        axes.annotate(
            "teacher", (0, TEACHER_BYTES), (-8, 3), textcoords="offset points", color=NEUTRAL
        )
    axes.set_yscale("log")
    long = [name for name in places if name not in SIZE_GRID]
    axes.set_xticks(range(len(places)), list(places))
    if long:
        tilt_names(axes, 30)
    axes.set_xlabel("student")
    axes.set_ylabel("bytes of its file")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _of_grid(table: DataFrame) -> DataFrame:
    """Return the rows of the grid's lines: the first of each of its sizes, with its parameters."""
    counts = {size: architecture_for(size, *_BREAKOUT).num_parameters for size in SIZE_GRID}
    rows = table[table["precision"].isin(_precisions())]
    rows = rows[rows["parameters"] == rows["size"].map(counts)]
    return rows.drop_duplicates(["size", "precision"])


def size_figure(table: DataFrame) -> Figure:
    """Draw `size_table(...)` as a figure of its own."""
    few = len(_of_grid(table)) == len(table)
    figure = new_figure(PAGE_WIDTH / 2 if few else PAGE_WIDTH, 2.4 if few else 3.2)
    draw_sizes(table, figure.subplots())
    return figure


def _precisions() -> list[str]:
    return ["fp32" if bits == FLOAT_BITS else f"{bits}-bit" for bits in BITS]


def _run_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """List the runs' student files, each beside its own teacher."""
    teachers = frame[frame["policy"] == "teacher"].set_index("run")["size_bytes"]
    rows = []
    for _, row in frame[~frame["policy"].isin(TEACHERS)].iterrows():
        if not np.isnan(row["size_bytes"]):
            kept = {name: row[name] for name in ("size", "parameters", "weight_bits", "env_id")}
            size, teacher = int(row["size_bytes"]), int(teachers[row["run"]])
            kept |= {"precision": precision_name(row), "source": row["name"]}
            rows.append(kept | _sizes(size, teacher))
    return rows


def _packed_rows(size: str, bits: list[int]) -> list[dict[str, Any]]:
    student = Student(architecture_for(size, *_BREAKOUT), seed=0)
    shared = {"size": size, "parameters": student.architecture.num_parameters, "source": PACKED}
    shared["env_id"] = ""
    rows = []
    for weight_bits in bits:
        precision = "fp32" if weight_bits == FLOAT_BITS else f"{weight_bits}-bit"
        count = _packed_bytes(student, weight_bits)
        precise = {"precision": precision, "weight_bits": weight_bits}
        rows.append(shared | precise | _sizes(count, TEACHER_BYTES))
    return rows


@torch.no_grad()
def _packed_bytes(student: Student, weight_bits: int) -> int:
    """Return the bytes of the student's file; nothing is calibrated, as values change no size."""
    actions = Discrete(student.architecture.num_outputs)
    if weight_bits == FLOAT_BITS:
        return len(safetensors_bytes(*float_student_content(student, actions, {})))
    # `dorefa` needs no search for scales; the bytes are the same.
    simulation = QuantizedStudent(student, QuantizationConfig(weight_bits, scheme="dorefa"))
    return len(safetensors_bytes(*pack_student(integer_student(simulation, actions), {})))


def _sizes(size_bytes: int, teacher_bytes: int) -> dict[str, Any]:
    ratio = teacher_bytes / size_bytes
    return {"size_bytes": size_bytes, "teacher_bytes": teacher_bytes, "ratio": ratio}
