"""A figure with one panel per environment and one legend below them all."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Any

from qpd.analysis.figure_style import PAGE_WIDTH, new_figure, say_below
from qpd.analysis.returns.plot_series import SeriesStyle, series_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

DrawPanel = Callable[["DataFrame", "Axes", dict[str, SeriesStyle]], None]

_PANELS_PER_ROW = 3
_PANEL_HEIGHT, _LEGEND_LINE = 2.0, 0.15  # inches
_LEGEND_WIDTH = 115  # characters per line of the legend, 8 of each entry for its marker


def panel_figure(
    table: DataFrame,
    draw: DrawPanel,
    by: str = "env_id",
    styles: dict[str, SeriesStyle] | None = None,
) -> Figure:
    """Draw the rows of each value of `by` with `draw(rows, axes, styles)`.

    `table` has the columns of `qpd.analysis.returns.plot_series.with_series`. Pass the `styles` of
    a larger table so that two figures agree; by default they are made from `table`. Use inside
    `paper_style()`.
    """
    styles = styles or series_styles(table)
    styles = {name: styles[name] for name in styles if name in set(table["series"])}
    names = sorted(table[by].unique())
    rows = ceil(len(names) / _PANELS_PER_ROW)
    # Four panels are two rows of two, not three and a lonely one.
    per_row = ceil(len(names) / rows)
    # Long names of series would run over the page's edge side by side.
    columns = max(1, min(4, _LEGEND_WIDTH // (max(map(len, styles)) + 8)))
    height = rows * _PANEL_HEIGHT + _LEGEND_LINE * ceil(len(styles) / columns) + 0.15
    figure = new_figure(PAGE_WIDTH, height)
    grid = figure.subplots(rows, per_row, squeeze=False)
    handles: dict[str, Any] = {}
    for place, name in enumerate(names):
        axes = grid.flat[place]
        draw(table[table[by] == name], axes, styles)
        axes.set_title(name)
        lines, labels = axes.get_legend_handles_labels()
        # An errorbar's handle is a tuple; the legend shows its marker alone, which comes first.
        marks = [line[0] if isinstance(line, tuple) else line for line in lines]
        handles |= dict(zip(labels, marks, strict=True))
        if place % per_row:
            axes.set_ylabel("")
    for axes in grid.flat[len(names) :]:
        axes.remove()
    ordered = [label for label in styles if label in handles]
    figure.legend(
        [handles[label] for label in ordered], ordered, loc="outside lower center", ncols=columns
    )
    say_below(figure, "bars: 95% intervals")
    return figure
