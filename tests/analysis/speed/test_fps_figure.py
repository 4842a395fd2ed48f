"""The figure of forward passes per second."""

from __future__ import annotations

import numpy as np

from qpd.analysis.figure_style import paper_style
from qpd.analysis.speed.fps_figure import fps_figure
from qpd.analysis.speed.fps_table import PAPER_FPS, fps_tables
from qpd.bench.device_record import BenchRow, DeviceRecord


def row(runtime: str, model: str, bits: int, fps: float, threads: int = 1) -> BenchRow:
    size = None if model == "teacher" else model
    return BenchRow(
        runtime=runtime, model=model, size=size, weight_bits=bits, threads=threads,
        status="measured", forwards_per_second=fps,
    )  # fmt: skip


DESK = DeviceRecord(
    device="desk", cpu="c", cores=1, os="o", versions={}, date=None, settings={},
    rows=[
        row("torch", "teacher", 32, 2000),
        row("torch", "XXS", 32, 5000),
        row("torch", "S", 32, 4000),
        row("torch", "XXS", 32, 7000, threads=4),
        row("c", "S", 8, 90_000),
    ],
)  # fmt: skip


def test_what_is_drawn() -> None:
    with paper_style():
        figure = fps_figure(fps_tables([DESK]))
    fp32, quantized = figure.axes
    assert (fp32.get_title(), quantized.get_title()) == ("fp32", "8-bit")
    assert fp32.get_yscale() == "log"
    lines = {str(line.get_label()): line for line in fp32.lines}
    ours = lines["torch"]
    assert list(zip(ours.get_xdata(), ours.get_ydata(), strict=True)) == [(0, 5000), (2, 4000)]
    assert list(lines["torch, 4 threads"].get_ydata()) == [7000]
    # The paper's devices ran fp32: named in its panel, absent from the other.
    assert {text.get_text() for text in fp32.texts} == set(PAPER_FPS) and not quantized.texts
    heights = sorted(float(np.log10(text.get_position()[1])) for text in fp32.texts)
    assert min(np.diff(heights)) > 0.2  # decades: no label lies on another
    assert {line.get_label() for line in quantized.lines} == {"c", "teacher, fp32 in PyTorch"}
    # The teacher in PyTorch is a mark of its own beside the 8-bit students of the C runtime.
    stars = [line for line in quantized.lines if line.get_marker() == "*"]
    assert [list(line.get_ydata()) for line in stars] == [[2000]]
    assert [text.get_text() for text in quantized.get_xticklabels()][-1] == "PPO/A2C"
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [
        "torch",
        "torch, 4 threads",
        "c",
        "teacher, fp32 in PyTorch",
    ]
