"""The paper's Figs. 2 and 3: teachers' outputs before and after softmax at several temperatures.

A temperature divides the outputs, as in Eq. 1: softmax(q / tau). The Q-values of a state lie close
together, so DQN needs a small tau to prefer any action; a policy's logits need one above 1 to tell
more than the best action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.actions import ActionSpace, Box, MultiBinary, MultiDiscrete
from qpd.analysis.figure_style import COLOURS, PAGE_WIDTH, new_figure
from qpd.analysis.networks.action_labels import action_labels
from qpd.analysis.networks.played_states import play_states
from qpd.errors.codes import ErrorCode
from qpd.runs.played_environment import EnvironmentWish
from qpd.runs.target import TargetError, load_target
from qpd.teachers.archive.agent_identity import algorithm_name
from qpd.teachers.archive.algorithm import ACTOR_CRITIC_ALGORITHMS, Q_ALGORITHMS

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

TEMPERATURES = (0.01, 0.1, 1.0, 3.0, 5.0)
_STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class TeacherOutputs:
    """The data behind the figure.

    `outputs` has one row per teacher, state and action: teacher, algo, state, action, output (a
    logit, or a Q-value for DQN).
    `softmax` has one row per teacher, temperature and state: teacher, algo, temperature, state,
    max_probability, entropy (from 0 to 1, in units of the uniform policy's); of several choices at
    once both are means over them.
    """

    outputs: DataFrame
    softmax: DataFrame


def teacher_outputs(
    sources: Sequence[str],
    num_states: int = 2000,
    temperatures: Sequence[float] = TEMPERATURES,
    *,
    env: EnvironmentWish | None = None,
    vec_normalize: Path | None = None,
    seed: int = 0,
) -> TeacherOutputs:
    """Let each teacher play, and collect its outputs in `num_states` of its states.

    `sources` are agents as `qpd evaluate` takes them, or run directories (for their teacher);
    `env` is what the user says of the agents' environment, and `vec_normalize` the file of their
    statistics if it does not lie beside them. Raises TargetError for a temperature
    that is not positive and for continuous actions, and TargetError, TeacherError,
    RunDirectoryError or EnvironmentConfigError for a source.
    """
    import pandas as pd

    # Checked before anybody plays; written so that NaN is refused as well.
    for temperature in temperatures:
        if not 0.0 < temperature < float("inf"):
            raise TargetError(
                f"temperature {temperature:g}: softmax(q / tau) needs a tau above 0",
                ErrorCode.COMMAND_LINE,
            )
    raw, squashed = [], []
    for source in sources:
        target = load_target(source, "teacher", env, "cpu", vec_normalize)
        teacher = target.teacher
        assert teacher is not None
        if isinstance(teacher.actions, Box):
            raise TargetError(
                f"{source}: {teacher.actions}: they have no softmax; `qpd analyze actions RUN` "
                "draws them over time, beside a student's"
            )
        states = play_states(
            teacher, target.environment, num_states, seed=seed, max_frames=target.max_frames
        )
        about = {"teacher": source, "algo": teacher.algo}
        numbers = np.arange(num_states)
        names = action_labels(teacher.actions, target.env_id)
        raw += [
            pd.DataFrame(about | {"state": numbers, "action": name, "output": outputs})
            for name, outputs in zip(names, states.labels.T, strict=True)
        ]
        for temperature in temperatures:
            parts = [
                softmax_sharpness(logits, temperature)
                for logits in choices_of(states.labels, teacher.actions)
            ]
            best, entropy = np.mean(parts, axis=0)
            columns = {"state": numbers, "max_probability": best, "entropy": entropy}
            squashed.append(pd.DataFrame(about | {"temperature": temperature} | columns))
    return TeacherOutputs(pd.concat(raw, ignore_index=True), pd.concat(squashed, ignore_index=True))


def choices_of(labels: np.ndarray, actions: ActionSpace) -> list[np.ndarray]:
    """Return the logits `[states, actions]` of each choice that `labels` stand for.

    A switch is a choice between `off`, whose logit is 0, and `on`. A choice of one is none.
    """
    if isinstance(actions, MultiBinary):
        return [np.stack([np.zeros_like(on), on], axis=1) for on in labels.T]
    if isinstance(actions, MultiDiscrete):
        parts = np.split(labels, np.cumsum(actions.nvec)[:-1], axis=1)
        return [part for part in parts if part.shape[1] > 1] or [labels]
    return [labels]


def softmax_sharpness(outputs: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest probability and the entropy of softmax(outputs / temperature).

    `outputs` is `[states, actions]`, the results are float64 `[states]`; the entropy is divided by
    ln(actions), so that 1 is uniform.
    """
    # float64 and the maximum taken off first: Q-values divided by 0.01 overflow float32's exp.
    scaled = outputs.astype(np.float64) / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    log_probabilities = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    probabilities = np.exp(log_probabilities)
    entropy = -(probabilities * log_probabilities).sum(axis=1)
    # One action is no choice: its entropy is 0, and so is the largest there can be.
    return probabilities.max(axis=1), entropy / (log(outputs.shape[1]) or 1.0)


def draw_outputs(table: TeacherOutputs) -> Figure:
    """Draw a row per teacher: outputs, largest probability, entropy; inside `paper_style()`."""
    teachers = table.outputs[["teacher", "algo"]].drop_duplicates()
    figure = new_figure(PAGE_WIDTH, 1.75 * len(teachers) + 0.5)
    axes = figure.subplots(len(teachers), 3, squeeze=False)
    for row, (teacher, algo) in zip(axes, teachers.itertuples(index=False), strict=True):
        mine = table.outputs[table.outputs["teacher"] == teacher]
        named = {"Q-value": Q_ALGORITHMS, "logit": ACTOR_CRITIC_ALGORITHMS}
        kind = next((name for name, those in named.items() if algo in those), "score")
        _draw_raw(row[0], mine, kind)
        row[0].set_title(f"{algorithm_name(algo)}: {_short(teacher)}", loc="left")
        softmax = table.softmax[table.softmax["teacher"] == teacher]
        _draw_cumulative(row[1], softmax, "max_probability")
        row[1].set_ylabel("states, cumulative")
        _draw_cumulative(row[2], softmax, "entropy")
    axes[-1, 1].set_xlabel("largest probability")
    axes[-1, 2].set_xlabel("entropy / entropy of uniform")
    handles, labels = axes[0, 1].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(handles), loc="outside lower center")
    return figure


def _short(source: str) -> str:
    """Return the last part of a path or of a hub name."""
    return source.rstrip("/").rsplit("/", 1)[-1]


def _draw_raw(ax: Any, outputs: DataFrame, kind: str) -> None:
    """Draw an outlined histogram of each action's outputs, on common bins for the central 99%."""
    low, high = np.quantile(outputs["output"], [0.005, 0.995])
    bins = np.linspace(low, high, 41)
    for place, (action, mine) in enumerate(outputs.groupby("action", sort=False)):
        ax.hist(
            mine["output"],
            bins,
            histtype="step",
            color=COLOURS[place % len(COLOURS)],
            linestyle=_STYLES[place % len(_STYLES)],
            label=str(action),
        )
    ax.set(xlabel=kind, ylabel="states", ylim=(0, 1.25 * ax.get_ylim()[1]))
    tight = {"borderaxespad": 0.1, "labelspacing": 0.2, "columnspacing": 0.8}
    ax.legend(fontsize=5.5, handlelength=1.4, loc="upper left", ncols=4, **tight)


def _draw_cumulative(ax: Any, softmax: DataFrame, column: str) -> None:
    """Draw the cumulative share of states, a line per temperature."""
    for place, (temperature, mine) in enumerate(softmax.groupby("temperature")):
        # Cumulative, as most states pile up at 1: a histogram would show one bar.
        ax.ecdf(
            mine[column],
            color=COLOURS[place % len(COLOURS)],
            linestyle=_STYLES[place % len(_STYLES)],
            label=rf"$\tau$ = {temperature:g}",
        )
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
