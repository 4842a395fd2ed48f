"""Report section: latency of a forward pass on the measured devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qpd.analysis.figure_style import COLOURS, NEUTRAL
from qpd.analysis.report.blocks import Block, Picture, Pictures, Section, Table, Text
from qpd.analysis.report.figure_uri import figure_uri, plain_log_ticks
from qpd.analysis.report.inputs import ReportInputs
from qpd.bench.device_record import FP32, BenchRow, DeviceRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Latency"
HEADER = ["runtime", "model", "bits", "threads", "median µs", "p99 µs", "passes/s", "x teacher"]


def latency_section(inputs: ReportInputs) -> Section:
    """Show each device's measurements of this run's student, or of one of its size."""
    if not inputs.devices:
        left_out = (
            "No device was measured for this report: `qpd bench RUN -o device.json`, then "
            "`qpd report RUN --devices device.json`."
        )
        return Section("latency", TITLE, left_out=left_out)
    size = inputs.run.recipe.student.size
    blocks: list[Block] = [
        Text(
            "One observation at a time. The ratio is to the SB3 teacher of the benchmark in "
            "PyTorch eager, in the same rounds."
        )
    ]
    for device in inputs.devices:
        blocks += _device_blocks(device, inputs, size)
    return Section("latency", TITLE, blocks)


def rows_of_student(
    device: DeviceRecord, names: tuple[str, ...], size: str | None
) -> list[BenchRow]:
    """Return the teacher's rows and the student's: its own if measured, else those of its size.

    Empty if `device` measured neither.
    """
    measured = [row for row in device.rows if row.status == "measured"]
    own = [row for row in measured if row.model in names]
    alike = own or [row for row in measured if size is not None and row.size == size]
    if not alike:
        return []
    # Earlier versions timed one teacher only, and its rows name none.
    teachers = {row.teacher or "teacher" for row in alike}
    beside = [row for row in measured if row.is_teacher and row.model in teachers]
    return [row for row in beside if row.runtime in ("torch", "sb3-predict")] + alike


def _device_blocks(device: DeviceRecord, inputs: ReportInputs, size: str | None) -> list[Block]:
    # A benchmark names a student by its folder. The recipe's name would be that of other runs, too.
    names = (inputs.summary["name"], inputs.path.resolve().name)
    rows = rows_of_student(device, names, size)
    if not rows:
        wanted = "this run" if size is None else f"this run, or a student of size {size}"
        return [Text(f"{device.device}: holds no measurement of {wanted}.")]
    caption = f"{device.device}: {device.cpu}, {device.os}"
    if not any(row.model in names for row in rows):
        caption += f". A random student of size {size} stands in for this one; it is as fast."
    table = Table(HEADER, [_cells(row) for row in rows], caption)
    # One thread count in the picture, the fewest: C has no other, and the table has them all.
    threads = min(row.threads for row in rows)
    drawn = [row for row in rows if row.threads == threads]
    uri = figure_uri(lambda figure: _draw(figure, drawn), 0.7 + 0.24 * len(drawn))
    best = max(drawn, key=lambda row: row.forwards_per_second or 0)
    alt = (
        f"Forward passes per second on {device.device}; the fastest is {best.runtime} with "
        f"{best.forwards_per_second:,.0f}."
    )
    about = f"{device.device}, {threads} thread{'s' if threads > 1 else ''}."
    return [Pictures([Picture(uri, alt, about)]), table]


def _cells(row: BenchRow) -> list[str]:
    bits = (
        "-" if row.weight_bits is None else "fp32" if row.weight_bits == FP32 else row.weight_bits
    )
    numbers = (row.median_us, row.p99_us)
    shown = ["-" if number is None else f"{number:,.1f}" for number in numbers]
    passes = "-" if row.forwards_per_second is None else f"{row.forwards_per_second:,.0f}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.1f}"
    return [_runtime(row), row.model, str(bits), str(row.threads), *shown, passes, ratio]


def _runtime(row: BenchRow) -> str:
    return row.runtime + (f" ({row.kernels})" if row.kernels else "")


def _draw(figure: Figure, rows: list[BenchRow]) -> None:
    ax = figure.add_subplot()
    passes = [row.forwards_per_second or 0.0 for row in rows]
    colours = [NEUTRAL if row.is_teacher else COLOURS[0] for row in rows]
    bars = ax.barh(range(len(rows)), passes, color=colours, height=0.7)
    ax.bar_label(bars, [f"{number:,.0f}" for number in passes], padding=2, fontsize=7)
    names = [f"teacher, {_runtime(row)}" if row.is_teacher else _runtime(row) for row in rows]
    # Longer names would leave no room for the bars on a phone.
    short = [name if len(name) <= 28 else f"{name[:27]}…" for name in names]
    ax.set_yticks(range(len(rows)), short)
    ax.invert_yaxis()
    # PyTorch and the C export are some two orders of magnitude apart.
    ax.set_xscale("log")
    ax.set_xlim(min(passes) / 2, max(passes) * 4)
    plain_log_ticks(ax.xaxis)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("forward passes per second")
