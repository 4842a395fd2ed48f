"""Figures 1 to 6 of Kresse & Lampert (arXiv 2511.07046), of what was measured here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qpd.analysis.figure_style import NEUTRAL, PAGE_WIDTH, new_figure, series_look
from qpd.analysis.paper.controller_evidence import ControllerEvidence, task_of
from qpd.analysis.paper.published_controllers import BITS, TASKS, WIDTHS
from qpd.analysis.selection.figure import Curve, curve_of, steps_figure
from qpd.analysis.selection.measured_cells import Games, MeasuredCells
from qpd.analysis.selection.robustness import robustness, robustness_figure
from qpd.analysis.selection.rule import STEPS, Cell
from qpd.analysis.selection.scopes import scopes_figure, with_scopes
from qpd.analysis.selection.table import has_first_step, selections

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SPANS = 30  # of a learning curve: single games say little


def figures(evidence: ControllerEvidence) -> Mapping[str, Callable[[], Figure]]:
    """Return what draws each figure of which something was measured, by file name."""
    drawn: dict[str, Callable[[], Figure]] = {"": lambda: selection_figure(evidence)}
    if scoped := with_scopes(evidence.routes):
        drawn["_scopes"] = lambda: scopes_figure(scoped)
    if learned := [each for each in evidence.routes if each.curves]:
        drawn["_learning"] = lambda: learning_figure(learned)
    if evidence.noisy:
        drawn["_noise"] = lambda: robustness_figure(robustness(evidence.noisy))
    if beside := _beside_ddpg(evidence):
        drawn["_ddpg"] = lambda: ddpg_figure(beside)
    return {f"integer_controllers{name}": draw for name, draw in drawn.items()}


def selection_figure(evidence: ControllerEvidence) -> Figure:
    """Draw every route's steps, and the paper's of the same tasks, as shares of the float's return.

    The paper plots them in its Figures 1, 4 and 5.
    """
    curves = []
    for found in evidence.routes:
        task = TASKS[task_of(found)]
        if found.floats and has_first_step(found):
            # The share stands for the paper's parity; several seeds are not needed for it.
            curves.append(curve_of(str(found.route), selections(found, task.parity)[0]))
    for name in dict.fromkeys(task_of(found) for found in evidence.routes):
        curves.append(_published(name))
    return steps_figure(curves)


def _published(name: str) -> Curve:
    task = TASKS[name]
    shares = [
        [mean / task.float_mean for mean in means]
        for means in (task.cores, task.widths, task.inputs)
    ]
    values = (BITS, WIDTHS, BITS)
    steps = {
        step: [
            (value, share, np.nan, np.nan, 10) for value, share in zip(each, share_of, strict=True)
        ]
        for step, each, share_of in zip(STEPS, values, shares, strict=True)
    }
    return Curve(f"{name}-v4, the paper", steps, is_published=True)


def learning_figure(routes: Sequence[MeasuredCells]) -> Figure:
    """Draw returns of the games of training over its steps (Figure 2), a panel a route.

    Thin lines are trainings, thick ones their means. Each is averaged over 30 spans of steps.
    """
    columns = min(len(routes), 2)  # the names of more do not fit
    rows = -(-len(routes) // columns)
    figure = new_figure(PAGE_WIDTH, 2.5 * rows)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[len(routes) :]:
        axes.set_axis_off()
    for axes, found in zip(panels.flat, routes, strict=False):
        keys = sorted(found.curves, key=lambda key: (isinstance(key, Cell), key))
        for place, key in enumerate(keys):
            curves = found.curves[key].values()
            end = min(float(steps[-1]) for steps, _ in curves)
            edges = np.linspace(0.0, end, _SPANS + 1)
            spans = np.stack([_binned(steps, returns, edges) for steps, returns in curves])
            look = series_look(place)
            x = edges[1:] / 1000
            for line in spans if len(spans) > 1 else ():
                axes.plot(x, line, color=look["color"], linewidth=0.5, alpha=0.5)
            seeds = f"{len(spans)} seed" + ("s" if len(spans) > 1 else "")
            axes.plot(x, spans.mean(0), color=look["color"], label=f"{_named(key)}, {seeds}")
        axes.set_title(str(found.route), loc="left")
        axes.set_xlabel("thousands of steps")
        axes.legend(loc="lower right")
    for axes in panels[:, 0]:
        axes.set_ylabel("return in training")
    return figure


def _binned(steps: np.ndarray, returns: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the mean of each span; one without a game has what lies between its neighbours."""
    place = np.searchsorted(edges, steps, side="left").clip(1, len(edges) - 1) - 1
    inside = steps <= edges[-1]
    counts = np.bincount(place[inside], minlength=len(edges) - 1)
    sums = np.bincount(place[inside], returns[inside], minlength=len(edges) - 1)
    filled = np.flatnonzero(counts)
    if not len(filled):  # its first row is beyond the end of a shorter training
        return np.full(len(counts), np.nan)
    found: np.ndarray = np.interp(np.arange(len(counts)), filled, sums[filled] / counts[filled])
    return found


def _beside_ddpg(evidence: ControllerEvidence) -> list[MeasuredCells]:
    """Return the trainings of tasks and steps that DDPG learned, of every algorithm."""
    trained = [each for each in [*evidence.routes, *evidence.others] if each.route.teacher is None]
    learned = {
        (each.route.env_id, each.route.timesteps) for each in trained if each.route.algo == "ddpg"
    }
    return [each for each in trained if (each.route.env_id, each.route.timesteps) in learned]


def ddpg_figure(routes: Sequence[MeasuredCells]) -> Figure:
    """Draw mean returns of DDPG's cells and floats, and SAC's of the same steps (Figure 6).

    A small mark is a training, the large one the mean of its seeds.
    """
    rows: list[tuple[str, Games]] = []
    for found in sorted(routes, key=lambda each: str(each.route)):
        measured: list[tuple[Cell | int, Games]] = [*found.floats.items(), *found.cells.items()]
        rows += [(f"{found.route}: {_named(key)}", games) for key, games in measured]
    figure = new_figure(PAGE_WIDTH, 0.8 + 0.22 * len(rows))
    axes = figure.subplots()
    for place, (_, games) in enumerate(rows):
        means = [float(each.mean()) for each in games.values()]
        axes.plot(means, [place] * len(means), "o", color=NEUTRAL, markersize=3)
        axes.plot([float(np.mean(means))], [place], "D", color=series_look(0)["color"])
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("mean return")
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    return figure


def _named(key: Cell | int) -> str:
    return f"float, width {key}" if isinstance(key, int) else str(key)
