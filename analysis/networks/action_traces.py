"""Trace a student's actions in one game, and what its teacher would do on the same observations.

Continuous actions are drawn over time, choices as the share of steps in which each is taken.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.actions import ActionSpace, Box, MultiBinary
from qpd.analysis.figure_style import COLOURS, PAGE_WIDTH, new_figure
from qpd.analysis.networks.action_labels import action_labels, action_parts
from qpd.analysis.networks.run_players import run_players
from qpd.environments.registry import make_vector_env
from qpd.evaluation.decisions import Player, decide
from qpd.evaluation.games import evaluation_rng
from qpd.machine.torch_threads import torch_threads
from qpd.runs.target import Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

STEPS = 1000
MOST_PANELS = 24  # actions that fit a page
DRAWN_STEPS = 300  # lines of more would be a solid block
_WHO = {"student": (COLOURS[0], "-"), "teacher": (COLOURS[1], "--")}


@dataclass(frozen=True)
class ActionTraces:
    """The data behind the figure.

    `actions` are those of the environment `env_id`. `table` has one row per step and number:
    step, action, student, teacher (without a teacher, NaN), where both are actions in the
    environment's units, or probabilities. `summary` has one row per action: its name, and for
    continuous ones low, high, the means of both, and `difference`, the mean of |student - teacher|
    as a share of the range; for choices the share of steps that student and teacher give it.
    `missing` says why there is no teacher.
    """

    env_id: str
    actions: ActionSpace
    table: DataFrame
    summary: DataFrame
    missing: str | None = None

    @property
    def steps(self) -> int:
        """Decisions of the game."""
        return int(self.table["step"].nunique())


def action_traces(run: Path, student: str | None = None, steps: int = STEPS) -> ActionTraces:
    """Play a game with the `student` of `run` (default: its last) and ask its teacher.

    It is the game that the report films: the evaluation's seed and rules. It ends after `steps`
    decisions. Raises TargetError, RunDirectoryError, StudentFileError or EnvironmentConfigError.
    """
    found = run_players(run, student)
    actions = found.target.policy.actions
    with torch_threads(1):
        told = _play(found.target, found.players, steps)
    if len(told) == 1:
        told = np.concatenate([told, np.full_like(told, np.nan)])
    labels = action_labels(actions, found.target.env_id)
    table = _table(told, labels)
    summary = _summary(told, labels, actions)
    return ActionTraces(found.target.env_id, actions, table, summary, found.missing)


def _play(target: Target, players: list[Player], steps: int) -> np.ndarray:
    """Return decisions, float64 `[players, steps, numbers]`."""
    rng = evaluation_rng(target.seed)
    told: list[np.ndarray] = []
    ended = False
    with closing(make_vector_env(target.environment, 1, max_frames=target.max_frames)) as env:
        env.reset(target.seed)
        while not ended and len(told) < steps:
            action = env.spec.actions.empty(1)
            if env.acting[0]:
                action, both = decide(players, env.observations, rng)
                told.append(both)
            ended = bool(env.step(action).game_over[0])
    return np.stack(told, axis=1)


def _table(told: np.ndarray, labels: list[str]) -> DataFrame:
    import pandas as pd

    student, teacher = told
    return pd.DataFrame(
        {
            "step": np.repeat(np.arange(len(student)), len(labels)),
            "action": np.tile(labels, len(student)),
            "student": student.reshape(-1),
            "teacher": teacher.reshape(-1),
        }
    )


def _summary(told: np.ndarray, labels: list[str], actions: ActionSpace) -> DataFrame:
    import pandas as pd

    student, teacher = told.mean(axis=1)
    means = {"action": labels, "student": student, "teacher": teacher}
    if not isinstance(actions, Box):
        return pd.DataFrame(means)
    low, high = np.array(actions.low), np.array(actions.high)
    difference = np.abs(told[0] - told[1]).mean(axis=0) / (high - low)
    return pd.DataFrame(means | {"low": low, "high": high, "difference": difference})


def traces_notes(traces: ActionTraces) -> list[str]:
    """Return lines on the game's length and on what is missing."""
    notes = [f"{traces.steps:,} decisions of one game of the student"]
    if traces.missing is not None:
        notes.append(f"the teacher was not asked: {traces.missing}")
    if isinstance(traces.actions, Box) and traces.steps > DRAWN_STEPS:
        notes.append(f"the first {DRAWN_STEPS} are drawn; actions.csv has all")
    if isinstance(traces.actions, Box) and len(traces.summary) > MOST_PANELS:
        left = f"the first {MOST_PANELS} of {len(traces.summary)} actions are drawn"
        notes.append(f"{left}; actions.csv has all")
    return notes


def draw_actions(traces: ActionTraces) -> Figure:
    """Draw the game on a page of its own; call it inside `paper_style()`."""
    columns = 1 if len(traces.summary) <= 4 else 2
    figure = new_figure(PAGE_WIDTH, figure_height(traces, columns))
    draw_actions_on(figure, traces, columns)
    return figure


def figure_height(traces: ActionTraces, columns: int) -> float:
    """Return the inches that `draw_actions_on` needs."""
    if isinstance(traces.actions, Box):
        return 0.8 + 1.05 * -(-_panels(traces) // columns)
    return 0.9 + 0.24 * len(traces.summary)


def draw_actions_on(figure: Figure, traces: ActionTraces, columns: int) -> None:
    """Draw lines over time, in so many columns, or bars of shares."""
    if isinstance(traces.actions, Box):
        _draw_lines(figure, traces, min(columns, _panels(traces)))
    else:
        _draw_shares(figure, traces)


def _panels(traces: ActionTraces) -> int:
    return min(len(traces.summary), MOST_PANELS)


def _drawn(traces: ActionTraces) -> list[str]:
    """Return whose actions there are."""
    return [who for who in _WHO if traces.missing is None or who == "student"]


def _draw_lines(figure: Figure, traces: ActionTraces, columns: int) -> None:
    rows = -(-_panels(traces) // columns)
    axes = figure.subplots(rows, columns, sharex=True, squeeze=False)
    panels = traces.summary.head(MOST_PANELS).itertuples()
    for ax, about in zip(axes.ravel(), panels, strict=False):
        mine = traces.table[traces.table["action"] == about.action].head(DRAWN_STEPS)
        for who in _drawn(traces):
            colour, style = _WHO[who]
            ax.plot(mine["step"], mine[who], style, color=colour, linewidth=0.9, label=who)
        margin = 0.04 * (about.high - about.low)
        ax.set(ylim=(about.low - margin, about.high + margin), title=about.action)
        ax.set_yticks([about.low, (about.low + about.high) / 2, about.high])
    for ax in axes.ravel()[_panels(traces) :]:
        ax.set_axis_off()
    for column in range(columns):
        lowest = max(r for r in range(rows) if r * columns + column < _panels(traces))
        axes[lowest, column].set_xlabel("step")
        axes[lowest, column].tick_params(labelbottom=True)
    _legend(figure, axes[0, 0])


def _draw_shares(figure: Figure, traces: ActionTraces) -> None:
    ax: Any = figure.add_subplot()
    names, drawn = list(traces.summary["action"]), _drawn(traces)
    height = 0.8 / len(drawn)
    for place, who in enumerate(drawn):
        at = np.arange(len(names)) + (place - (len(drawn) - 1) / 2) * height
        hatch = None if who == "student" else "////"
        bars = ax.barh(at, traces.summary[who], height, color=_WHO[who][0], hatch=hatch, label=who)
        for bar in bars:
            bar.set(edgecolor="white", linewidth=0)
    # Each part's shares add up to 1; a line parts them.
    first = 0
    for part in action_parts(traces.actions, traces.env_id)[:-1]:
        first += len(part.names)
        ax.axhline(first - 0.5, color="black", linewidth=0.6)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    of = "on, share of steps" if isinstance(traces.actions, MultiBinary) else "share of steps"
    ax.set(xlim=(0, 1), xlabel=of)
    ax.grid(axis="y", visible=False)
    _legend(figure, ax)


def _legend(figure: Figure, ax: Any) -> None:
    handles, labels = ax.get_legend_handles_labels()
    # In the game that is the student's, the teacher only says what it would do.
    told = [
        label if label == "student" else "teacher, on the same observations" for label in labels
    ]
    figure.legend(handles, told, ncols=len(told), loc="outside upper right")
