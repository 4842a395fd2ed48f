"""Forward passes per second by student size, drawn from the paper's Tables 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from qpd.analysis.figure_style import COLOURS, MARKERS, NEUTRAL, PAGE_WIDTH, new_figure
from qpd.analysis.speed.fps_table import FpsRow, FpsTable
from qpd.students import SIZE_GRID

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEGEND_COLUMNS = 2
_PAPER = "the paper's devices, PyTorch, fp32"


def fps_figure(tables: tuple[FpsTable, FpsTable]) -> Figure:
    """Draw a panel per table of `fps_tables`, on one scale; use inside `paper_style()`."""
    names = list(dict.fromkeys(_name(row) for table in tables for row in table.rows if _ours(row)))
    lines = ceil((len(names) + 1) / _LEGEND_COLUMNS)
    figure = new_figure(PAGE_WIDTH, 2.4 + 0.15 * lines)
    panels = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for table, axes, bits in zip(tables, panels, ("fp32", "8-bit"), strict=True):
        draw_fps(table, axes, names)
        axes.set_title(bits)
        found, labels = axes.get_legend_handles_labels()
        # By label: all of the paper's devices share one entry.
        handles |= dict(zip(labels, found, strict=True))
    panels[0].set_ylabel("forward passes per second")
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=_LEGEND_COLUMNS,
    )
    return figure


def draw_fps(table: FpsTable, axes: Axes, names: Sequence[str]) -> None:
    """Draw a table: a line per row, coloured by its place in `names`, on a log axis.

    The paper's devices are thin and grey. Teachers are marks off the lines, grey if they ran in a
    runtime other than the row's (in Table 2 they ran in PyTorch).
    """
    places = {column: place for place, column in enumerate(table.columns)}
    for row in table.rows:
        students = [column for column in SIZE_GRID if column in row.fps]
        teachers = [column for column in table.columns if column in row.fps.keys() - SIZE_GRID]
        style: dict[str, Any] = {"color": NEUTRAL, "linewidth": 0.6, "label": _PAPER, "zorder": 0}
        if _ours(row):
            place = names.index(_name(row))
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
            style = {"color": colour, "marker": marker, "label": _name(row)}
        axes.plot([places[x] for x in students], [row.fps[x] for x in students], **style)
        # A label that begins with an underscore stays out of matplotlib's legend.
        marks: dict[str, Any] = {"marker": "."} | style | {"linestyle": "", "label": "_"}
        if _ours(row) and table.name == "fps_table_2":
            marks |= {"color": NEUTRAL, "marker": "*", "markersize": 7}
        axes.plot([places[x] for x in teachers], [row.fps[x] for x in teachers], **marks)
    # From a Raspberry Pi to a server's C export is more than three orders of magnitude.
    axes.set_yscale("log")
    axes.set_xticks(range(len(places)), list(places))
    axes.tick_params(axis="x", labelrotation=45)


def _ours(row: FpsRow) -> bool:
    return not row.device.endswith("(paper)")


def _name(row: FpsRow) -> str:
    threads = f", {row.threads} threads" if row.threads not in (None, 1) else ""
    return f"{row.runtime} on {row.device}{threads}"
