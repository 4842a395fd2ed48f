"""Return by student size and teacher, before and after quantization: the paper's Figures 6 and 7.

Figure 6 shows it in absolute terms, Figure 7 as a share of the teacher's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from qpd.analysis.figure_style import NEUTRAL, error_lengths
from qpd.analysis.returns.environment_panels import panel_figure
from qpd.analysis.returns.plot_series import SeriesStyle, series_styles, with_series
from qpd.analysis.returns.policy_returns import TEACHERS, final_students, size_places

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame, Series

_SPREAD = 0.6  # of the width of a size, shared by the series side by side in it


def returns_by_size(table: DataFrame) -> DataFrame:
    """Return the rows of `policy_returns` that the figures show, with the columns of `with_series`.

    These are students in fp32 and after the last phase that quantized them, and teachers, in the
    order of the size grid, other sizes after it by their number of parameters, teachers last.
    """
    shown = with_series(final_students(table))
    place = size_places(shown)
    order = {"env_id": True, "place": True, "parameters": True, "size": True, "source": True}
    order |= {"mean_bits": False, "series": True}
    ordered = shown.assign(place=place).sort_values(list(order), ascending=list(order.values()))
    return ordered.drop(columns="place").reset_index(drop=True)


def draw_returns_by_size(
    rows: DataFrame, axes: Axes, styles: dict[str, SeriesStyle], value: str = "mean"
) -> None:
    """Draw one environment's rows of `returns_by_size`: `mean`, or `relative` in percent."""
    percent = 100.0 if value == "relative" else 1.0
    rows = rows[rows[value].notna()]
    sizes = list(dict.fromkeys(rows["size"]))
    place = {size: x for x, size in enumerate(sizes)}
    series = list(dict.fromkeys(rows["series"]))
    offsets = _offsets(rows, series)
    for name in series:
        mine = rows[rows["series"] == name]
        x = mine["size"].map(place) + offsets[mine.index]
        y, low, high = (percent * mine[f"{value}{end}"] for end in ("", "_low", "_high"))
        # Marks at a return of 0 would be cut in half by the axis otherwise.
        style = styles[name].line() | {"capsize": 2, "clip_on": False}
        axes.errorbar(x, y, error_lengths(y, low, high), label=name, **style)
        # The teacher's level across all sizes, to compare students with by eye.
        if value == "mean" and (mine["policy"] == "teacher").all():
            axes.axhline(y.iloc[0], color=styles[name].colour, linewidth=0.6, linestyle=":")
    if value == "relative":
        axes.axhline(100.0, color=NEUTRAL, linewidth=0.8, zorder=0)
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_xlim(-0.6, len(sizes) - 0.4)
    axes.grid(False, axis="x")
    if len(rows) and (rows[f"{value}_low"] >= 0).all():
        axes.set_ylim(bottom=0)
    axes.set_xlabel("student")
    axes.set_ylabel("return" if value == "mean" else "return, % of teacher's")


def returns_figure(table: DataFrame, value: str = "mean") -> Figure:
    """Draw `returns_by_size(...)`, one panel per environment.

    With `relative`, environments without any known share of the teacher's return are left out.
    """
    shown = table[table[value].notna()]
    return panel_figure(
        shown, partial(draw_returns_by_size, value=value), styles=series_styles(table)
    )


def _offsets(rows: DataFrame, series: list[str]) -> Series:
    """Return each row's offset from the x of its size, where several share one."""
    turns = rows["series"].map(series.index)
    # Apart, as teachers have a column of their own and take no room from the students.
    of_teachers = rows["policy"].isin(TEACHERS)
    place = turns.groupby([rows["size"], of_teachers]).rank(method="dense") - 1
    most = place.groupby([rows["size"], of_teachers]).transform("max")
    return (_SPREAD * (place - most / 2) / most.clip(lower=2)).fillna(0.0)
