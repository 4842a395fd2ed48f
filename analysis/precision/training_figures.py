"""Figures of trainings in few bits: arms side by side, returns by significand, learning curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from qpd.analysis.figure_style import COLOURS, NEUTRAL, PAGE_WIDTH, new_figure, series_look
from qpd.analysis.precision.trainings import FLOAT, Training, by_task, significands
from qpd.recipe.train_schema import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.19  # inches
_MOST_CURVES = 7


def training_figures(trainings: Sequence[Training]) -> dict[str, Callable[[], Figure]]:
    """Return what draws trainings task by task, by the names of the pictures."""
    figures: dict[str, Callable[[], Figure]] = {}
    for task, arms in by_task(trainings).items():
        name = task.replace(",", "").replace("/", "-").replace(" ", "-")
        figures[f"trainings-{name}"] = partial(arms_figure, task, arms)
        if any(each.curve and each.value is not None for its in arms.values() for each in its):
            figures[f"learning-{name}"] = partial(curves_figure, task, arms)
        if len(significands(arms)) > 1:
            figures[f"significands-{name}"] = partial(significands_figure, task, arms)
    return figures


def arms_figure(task: str, arms: Mapping[str, Sequence[Training]]) -> Figure:
    """Draw each training's return, a row an arm, with the arm's mean; a cross is one that failed.

    As figures 1 and 3 of Bjorck et al., Low-Precision RL (ICML 2021, arXiv 2102.13565).
    """
    figure = new_figure(PAGE_WIDTH, 0.9 + _ROW * len(arms))
    axes = figure.subplots()
    values = [each.value for mine in arms.values() for each in mine if each.value is not None]
    aside = min(values, default=0.0) - 0.06 * max(np.ptp(values) if values else 1.0, 1.0)
    if not values:  # an axis without numbers
        axes.set_xlim(aside - 1.0, aside + 10.0)
        axes.set_xticks([])
    for row, mine in enumerate(arms.values()):
        known = [each.value for each in mine if each.value is not None]
        axes.plot(known, [row] * len(known), "o", color=COLOURS[0], alpha=0.6)
        if known:
            axes.plot([np.mean(known)], [row], "|", color=COLOURS[1], markersize=10, mew=2)
        if failed := len(mine) - len(known):
            axes.plot([aside], [row], "X", color=COLOURS[6])
            axes.annotate(
                f" {failed} of {len(mine)} NaN", (aside, row), fontsize=6, va="center",
                xytext=(4, 0), textcoords="offset points",
            )  # fmt: skip
    base = [each.value for each in arms.get(FLOAT, ()) if each.value is not None]
    if base:
        axes.axvline(float(np.mean(base)), color=NEUTRAL, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(arms)), list(arms))
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.set_xlabel("return; |: the mean of those that ended; dotted: fp32's")
    axes.set_title(task, loc="left")
    return figure


def significands_figure(task: str, arms: dict[str, list[Training]]) -> Figure:
    """Draw the return of all six methods by mantissa bits, a line for each exponent width.

    As figure 4 of the paper; trainings that failed have no point.
    """
    figure = new_figure(PAGE_WIDTH / 2, 2.4)
    axes = figure.subplots()
    found = significands(arms)
    for place, exponent in enumerate(sorted({key[0] for key in found})):
        widths = sorted(mantissa for its, mantissa in found if its == exponent)
        look = series_look(place)
        means = []
        for mantissa in widths:
            known = [e.value for e in found[exponent, mantissa] if e.value is not None]
            means.append(float(np.mean(known)) if known else np.nan)
            axes.plot([mantissa] * len(known), known, ".", color=look["color"], alpha=0.5)
        axes.plot(widths, means, label=f"{exponent} exponent bits", **look)
    base = [each.value for each in arms.get(FLOAT, ()) if each.value is not None]
    if base:
        axes.axhline(
            float(np.mean(base)), color=NEUTRAL, linewidth=0.8, linestyle=":", label="fp32"
        )
    axes.set(xlabel="mantissa bits", ylabel="return")
    axes.set_xticks(sorted({mantissa for _, mantissa in found}))
    axes.set_title(task, loc="left")
    axes.legend()
    return figure


def curves_figure(task: str, arms: Mapping[str, Sequence[Training]]) -> Figure:
    """Draw learning curves, each arm's mean over trainings: fp32, six methods, what has no ladder.

    Of the arms that ended at most seven; the title says how many are left out.
    """
    figure = new_figure(PAGE_WIDTH, 2.6)
    axes = figure.subplots()
    ended = {
        arm: [each for each in mine if each.value is not None and each.curve]
        for arm, mine in arms.items()
    }
    known = sorted(((arm, mine) for arm, mine in ended.items() if mine), key=_last_is_part_of_six)
    for place, (arm, mine) in enumerate(known[:_MOST_CURVES]):
        _draw_curve(axes, arm, mine, place)
    axes.set(xlabel="agent steps", ylabel="return, last 100 games")
    left_out = len(known) - _MOST_CURVES
    axes.set_title(task + (f"; {left_out} arms are left out" if left_out > 0 else ""), loc="left")
    axes.legend()
    return figure


def _last_is_part_of_six(one: tuple[str, Sequence[Training]]) -> bool:
    """Tell whether an arm is a rung of the ladder or lacks one method."""
    return "without" in one[0] or any(name in one[0] for name in METHODS)


def _draw_curve(axes: Axes, arm: str, mine: Sequence[Training], place: int) -> None:
    curves = [np.array(each.curve, float).T for each in mine]
    steps = np.unique(np.concatenate([its[0] for its in curves]))
    first, last = max(its[0][0] for its in curves), min(its[0][-1] for its in curves)
    steps = steps[(steps >= first) & (steps <= last)]
    values = np.array([np.interp(steps, its[0], its[1]) for its in curves])
    look = series_look(place)
    axes.plot(steps, values.mean(0), label=arm, color=look["color"])
    axes.fill_between(steps, values.min(0), values.max(0), color=look["color"], alpha=0.12)
