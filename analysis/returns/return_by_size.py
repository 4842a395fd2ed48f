"""Return by student size and teacher, before and after quantization: the paper's Figures 6 and 7.

Absolute (Figure 6), and as a share of the teacher's (Figure 7).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from qpd.analysis.figure_style import NEUTRAL
from qpd.analysis.returns.environment_panels import panel_figure
from qpd.analysis.returns.plot_series import SeriesStyle, series_styles, with_series
from qpd.analysis.returns.policy_returns import TEACHERS, final_students, size_places

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

_SPREAD = 0.6  # of a size's width, shared by the series that stand side by side in it


def returns_by_size(table: DataFrame) -> DataFrame:
    """The rows of `policy_returns` that the figures show, with `with_series`' columns.

    Students in fp32 and after the last phase that quantized them, and teachers; in the order of
    the size grid, other sizes after it by their number of parameters, teachers last.
    """
    shown = with_series(final_students(table))
    place = size_places(shown)
    order = {"env_id": True, "place": True, "parameters": True, "size": True, "source": True}
    order |= {"weight_bits": False, "series": True}
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
        x = mine["size"].map(place) + offsets[name]
        y, low, high = (percent * mine[f"{value}{end}"] for end in ("", "_low", "_high"))
        around = np.array([y - low, high - y])
        style = styles[name].line() | {"capsize": 2, "clip_on": False}
        axes.errorbar(x, y, np.maximum(around, 0.0), label=name, **style)
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
    """The figure of `returns_by_size(...)`, a panel for each environment.

    With `relative`, environments in which no share of the teacher's return is known are left out.
    """
    shown = table[table[value].notna()]
    return panel_figure(
        shown, partial(draw_returns_by_size, value=value), styles=series_styles(table)
    )


def _offsets(rows: DataFrame, series: list[str]) -> dict[str, float]:
    """Where each series stands beside its size; where no two share a size, none needs room."""
    is_teacher = rows["policy"].isin(TEACHERS)
    offsets: dict[str, float] = {}
    for mine in (rows[~is_teacher], rows[is_teacher]):
        names = [name for name in series if name in set(mine["series"])]
        crowd = mine.groupby("size")["series"].nunique().max() if len(mine) else 1
        step = _SPREAD / (len(names) - 1) if crowd > 1 else 0.0
        start = -step * (len(names) - 1) / 2
        offsets |= {name: start + step * place for place, name in enumerate(names)}
    return offsets
