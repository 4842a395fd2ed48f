"""Returns over core bits, width and input bits, as shares of the float's: the steps of a choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qpd.analysis.figure_style import (
    NEUTRAL,
    PAGE_WIDTH,
    error_lengths,
    new_figure,
    series_look,
)
from qpd.analysis.selection.rule import STEPS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure
    from pandas import DataFrame

_AXES = {"core": "bits of the core", "width": "width", "inputs": "bits of an input"}


@dataclass(frozen=True)
class Curve:
    """One line: `steps[name]` are value, share of the float's return, its interval, and seeds."""

    label: str
    steps: Mapping[str, Sequence[tuple[int, float, float, float, int]]]
    is_published: bool = False  # drawn hollow and dashed, without intervals


def curve_of(label: str, cells: DataFrame) -> Curve:
    """Return the cells of the paper's rule, from `selections`, as a line."""
    literal = cells[cells["rule"] == "paper"]
    steps = {
        name: [
            (int(row[name]), row["ratio"], row["ratio_low"], row["ratio_high"], row["seeds"])
            for _, row in literal[literal["step"] == name].iterrows()
        ]
        for name in STEPS
    }
    return Curve(label, steps)


def steps_figure(curves: Sequence[Curve]) -> Figure:
    """Draw a panel for each step; dotted at the float's return."""
    figure = new_figure(PAGE_WIDTH, 2.4)
    panels = figure.subplots(1, len(STEPS), sharey=True)
    for axes, name in zip(panels, STEPS, strict=True):
        axes.axhline(1.0, color=NEUTRAL, linewidth=0.8, linestyle=":")
        values: set[int] = set()
        for place, curve in enumerate(curves):
            points = sorted(curve.steps.get(name, ()))
            if not points:
                continue
            values |= {value for value, *_ in points}
            # Widths double, bits do not; lines stand a little aside of each other.
            aside = 0.06 * (place - 0.5 * (len(curves) - 1))
            x = _place(name, np.array([value for value, *_ in points], float)) + aside
            ratio, low, high, seeds = np.array([rest for _, *rest in points], float).T
            look = {**series_look(place), "label": curve.label, "linewidth": 0.9, "markersize": 3.5}
            if curve.is_published:
                axes.plot(x, ratio, linestyle="--", markerfacecolor="white", **look)
            else:
                # One training's interval is of its games: beside those of several trainings it
                # would make the least certain point look the surest.
                alone = seeds < 2
                errors = np.where(alone, np.nan, error_lengths(ratio, low, high))
                axes.errorbar(x, ratio, errors, capsize=1.5, elinewidth=0.8, **look)
                hollow = {"color": look["color"], "marker": look["marker"], "markersize": 3.5}
                hollow |= {"markerfacecolor": "white", "zorder": 3}
                axes.plot(x[alone], ratio[alone], linestyle="", **hollow)
        ticks = sorted(values)
        axes.set_xticks(_place(name, np.array(ticks, float)), [str(each) for each in ticks])
        axes.set_xlabel(_AXES[name])
        axes.set_ylim(bottom=0.0)
    panels[0].set_ylabel("return / the float's")
    panels[0].set_title(
        "hollow, on a solid line: one training; bars: 95% over trainings", loc="left", fontsize=7
    )
    named: dict[str, Artist] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    figure.legend(
        list(named.values()), list(named), loc="outside lower center", ncols=3, fontsize=6.5
    )
    return figure


def _place(name: str, values: np.ndarray) -> np.ndarray:
    return np.log2(values) if name == "width" else values
