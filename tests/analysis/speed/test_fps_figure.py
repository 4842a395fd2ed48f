"""The figure of forward passes per second."""

from __future__ import annotations

import pytest

from qpd.analysis.figure_style import paper_style, series_look
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


@pytest.mark.parametrize("fastest", [90_000, 30_000_000])
def test_no_label_lies_on_another(fastest: float) -> None:
    fast = DESK.model_copy(update={"rows": [*DESK.rows[:-1], row("c", "S", 8, fastest)]})
    with paper_style():
        figure = fps_figure(fps_tables([fast]))
        figure.canvas.draw()
    fp32, quantized = figure.axes
    boxes = sorted((text.get_window_extent() for text in fp32.texts), key=lambda box: box.y0)
    assert all(lower.y1 <= upper.y0 for lower, upper in zip(boxes, boxes[1:], strict=False))
    # A tilted name ends below its own tick.
    for label, tick in zip(quantized.get_xticklabels(), quantized.get_xticks(), strict=True):
        x = quantized.transData.transform((tick, 1))[0]
        box = label.get_window_extent()
        assert box.x0 < x and abs(box.x1 - x) < 10  # pixels, a letter's height


def test_as_many_series_as_colours_times_markers_look_different() -> None:
    looks = [tuple(series_look(place).values()) for place in range(49)]
    assert len(set(looks)) == 49 and looks[0] != looks[7]
