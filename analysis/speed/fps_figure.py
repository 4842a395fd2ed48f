"""Forward passes per second by student size, drawn from the paper's Tables 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.figure_style import NEUTRAL, PAGE_WIDTH, new_figure, series_look, tilt_names
from qpd.analysis.speed.fps_table import PAPER_MARK, TEACHERS, FpsRow, FpsTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEGEND_COLUMNS = 3
_TEACHER = "teacher, fp32 in PyTorch"
_LABEL_GAP = 0.055  # of the axis, between two labels of the paper's devices: a line of text


def fps_figure(tables: tuple[FpsTable, FpsTable]) -> Figure:
    """Draw a panel per table of `fps_tables`, on one scale; use inside `paper_style()`.

    The paper's devices, which ran PyTorch in fp32, stand in the fp32 panel alone.
    """
    ours = [row for table in tables for row in table.rows if _ours(row)]
    devices = list(dict.fromkeys(row.device for row in ours))
    names = list(dict.fromkeys(_name(row, len(devices) > 1) for row in ours))
    columns = _LEGEND_COLUMNS if max(map(len, names), default=0) < 34 else 2
    figure = new_figure(PAGE_WIDTH, 2.6 + 0.15 * ceil((len(names) + 2) / columns))
    panels = figure.subplots(1, 2, sharey=True, squeeze=False, width_ratios=(1.5, 1))[0]
    handles: dict[str, Any] = {}
    for table, axes, bits in zip(tables, panels, ("fp32", "8-bit"), strict=True):
        _draw_fps(table, axes, names, len(devices) > 1)
        axes.set_title(bits)
        found, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    _name_papers(tables[0], panels[0])
    panels[0].set_ylabel("forward passes per second")
    ordered = sorted(handles, key=lambda label: label == _TEACHER)
    figure.legend(
        [handles[label] for label in ordered],
        ordered,
        title=devices[0] if len(devices) == 1 else None,
        loc="outside lower center",
        ncols=columns,
    )
    return figure


def _draw_fps(table: FpsTable, axes: Axes, names: Sequence[str], tell_devices: bool) -> None:
    """Draw a table: a line per row, coloured by its place in `names`, on a log axis.

    The paper's devices are thin and grey, their teachers dotted; where rows are quantized (Table 2)
    they are left out, as they ran in fp32. Teachers are marks off the lines; in Table 2 they are
    grey stars, as they ran in another runtime.
    """
    is_quantized = table.name == "fps_table_2"
    places = {column: place for place, column in enumerate(table.columns)}
    papers = []
    for row in table.rows:
        students = [column for column in places if column in row.fps and column not in TEACHERS]
        teachers = [column for column in places if column in row.fps and column in TEACHERS]
        if not _ours(row):
            papers += [] if is_quantized else [row]
            continue
        name = _name(row, tell_devices)
        style = series_look(names.index(name))
        axes.plot(
            [places[x] for x in students], [row.fps[x] for x in students], label=name, **style
        )
        # A label that begins with an underscore stays out of matplotlib's legend.
        marks: dict[str, Any] = style | {"linestyle": "", "label": "_"}
        if is_quantized:
            marks |= {"color": NEUTRAL, "marker": "*", "markersize": 7, "label": _TEACHER}
        axes.plot([places[x] for x in teachers], [row.fps[x] for x in teachers], **marks)
    # From a Raspberry Pi to a server's C export is more than three orders of magnitude.
    axes.set_yscale("log")
    axes.set_xticks(range(len(places)), list(places))
    tilt_names(axes, 45)
    for row in papers:
        _draw_paper(row, places, axes)


def _draw_paper(row: FpsRow, places: dict[str, int], axes: Axes) -> None:
    known = [column for column in places if column in row.fps]
    thin: dict[str, Any] = {"color": NEUTRAL, "linewidth": 0.6, "zorder": 0, "label": "_"}
    students = [column for column in known if column not in TEACHERS]
    axes.plot([places[x] for x in students], [row.fps[x] for x in students], **thin)
    beyond = [*students[-1:], *(column for column in known if column in TEACHERS)]
    dotted = thin | {"linestyle": ":", "marker": ".", "markersize": 3, "markevery": slice(1, None)}
    axes.plot([places[x] for x in beyond], [row.fps[x] for x in beyond], **dotted)


def _name_papers(table: FpsTable, axes: Axes) -> None:
    """Name the paper's devices at the right end of their lines, once the axis's range is known."""
    places = {column: place for place, column in enumerate(table.columns)}
    ends = []
    for row in table.rows:
        if not _ours(row):
            last = [column for column in places if column in row.fps][-1]
            ends.append((row.fps[last], places[last], row.device.removesuffix(PAPER_MARK)))
    ends.sort()
    heights = np.log10([end for end, _, _ in ends])
    low, high = np.log10(axes.get_ylim())
    gap = _LABEL_GAP * (high - low)
    # Neighbours that are too close push each other apart, by as much up as down, until none is.
    spread = heights.copy()
    for _ in range(100):
        for place in range(1, len(spread)):
            lack = max(0.0, gap - (spread[place] - spread[place - 1]))
            spread[place - 1] -= lack / 2
            spread[place] += lack / 2
    right = max(places.values()) + 0.7
    for (end, x, name), height in zip(ends, spread, strict=True):
        axes.plot([x, right], [end, 10**height], color=NEUTRAL, linewidth=0.3, label="_")
        axes.text(right + 0.1, 10**height, name, fontsize=6, va="center", color="#505050")
    axes.set_xlim(-0.5, right + 3.4)


def _ours(row: FpsRow) -> bool:
    return not row.device.endswith(PAPER_MARK)


def _name(row: FpsRow, tell_device: bool) -> str:
    threads = f", {row.threads} threads" if row.threads not in (None, 1) else ""
    return f"{row.runtime}{f' on {row.device}' if tell_device else ''}{threads}"
