"""The paper's Figs. 9 and 10: loss and return of quantized training with and without phases 1-2.

Samples are counted from the beginning of the run, phase 1 included, so that runs of equal budget
end at the same x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qpd.analysis.figure_style import (
    NEUTRAL,
    PAGE_WIDTH,
    error_lengths,
    new_figure,
    say_below,
    series_look,
)
from qpd.analysis.runs.run_frame import evaluation_interval
from qpd.errors.codes import ErrorCode
from qpd.runs.metrics_log import read_metrics
from qpd.runs.run_directory import RunDirectory
from qpd.runs.target import TargetError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_PHASES: tuple[Literal["distill", "finetune"], ...] = ("distill", "finetune")
_COLUMNS = ("phase", "epoch", "loss", "validation_return", "validation_low", "validation_high")
_EVALUATED = {"distilled": "distill", "ptq": "distill", "qat": "finetune"}  # where a phase ends


@dataclass(frozen=True)
class QatCurves:
    """The data behind the figure; `left_out` maps each run that is missing to the reason.

    `epochs` has one row per run and epoch: run, phase (`distill` or `finetune`), epoch, samples (so
    far, of all phases), loss (Eq. 2, mean of the epoch), validation_return, validation_low,
    validation_high (NaN without a validation). `evaluations` has one row per evaluated student:
    run, policy, samples, mean, low, high, episodes; and one for the run's teacher, with samples
    NaN.
    """

    epochs: DataFrame
    evaluations: DataFrame
    left_out: dict[str, str]


def qat_curves(runs: Sequence[Path]) -> QatCurves:
    """Read the losses and returns of runs that have begun phase 3.

    Raises RunDirectoryError, and TargetError if a metrics.csv is not QPD's or no run has begun it.
    """
    import pandas as pd

    epochs: list[DataFrame] = []
    evaluations: list[dict[str, Any]] = []
    left_out = {}
    for path in runs:
        run = RunDirectory.open(path, read_only=True)
        curve = _read_epochs(run) if run.metrics_file.is_file() else None
        if curve is None or not (curve["phase"] == "finetune").any():
            # Left out rather than refused: with a folder of runs, one that is still in phase 1 is
            # normal.
            left_out[str(path)] = "no training curve, as it has no epoch of phase 3"
            continue
        epochs.append(curve)
        evaluations += _read_evaluations(run, curve)
    if not epochs:
        raise TargetError("no run has an epoch of phase 3 in its metrics.csv")
    columns = ["run", "agent", "policy", "samples", "mean", "low", "high", "episodes"]
    return QatCurves(
        pd.concat(epochs, ignore_index=True),
        pd.DataFrame(evaluations, columns=columns),
        left_out,
    )


def _read_epochs(run: RunDirectory) -> DataFrame:
    """Return the run's rows of `QatCurves.epochs`."""
    import pandas as pd

    rows = read_metrics(run.metrics_file)
    missing = [name for name in _COLUMNS if rows and not any(name in row for row in rows)]
    if missing:
        raise TargetError(
            f"{run.metrics_file}: lacks the columns {', '.join(missing)}", ErrorCode.RUN_DAMAGED
        )
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    for name in _COLUMNS[1:]:
        try:
            table[name] = pd.to_numeric(table[name])
        except (ValueError, TypeError) as error:
            raise TargetError(
                f"{run.metrics_file}: {name}: must be numbers", ErrorCode.RUN_DAMAGED
            ) from error
    parts, before = [], 0
    for phase in _PHASES:
        mine = table.loc[table["phase"] == phase, list(_COLUMNS)].sort_values("epoch")
        settings = getattr(run.recipe, phase)
        per_epoch = settings.samples_in_epoch(run.recipe.replay.capacity)
        samples = before + mine["epoch"] * per_epoch
        parts.append(mine.assign(run=str(run.path), samples=samples))
        before = int(samples.max()) if len(samples) else before
    curve = pd.concat(parts, ignore_index=True)
    return curve[["run", "phase", "epoch", "samples", *_COLUMNS[2:]]]


def _read_evaluations(run: RunDirectory, curve: DataFrame) -> list[dict[str, Any]]:
    """Return the run's rows of `QatCurves.evaluations`, each student where its phase ended."""
    ends = curve.groupby("phase")["samples"].max()
    rows, teacher = [], run.manifest.teacher
    agent = "" if teacher is None else f"{teacher.env_id} {teacher.sha256}"
    for policy, result in run.manifest.evaluations.items():
        if policy not in (*_EVALUATED, "teacher"):
            continue
        phase = _EVALUATED.get(policy)
        samples = float("nan") if phase is None else float(ends.get(phase, 0))
        low, high = evaluation_interval(result)
        score = {"mean": result["mean"], "low": low, "high": high, "episodes": result["episodes"]}
        about = {"run": str(run.path), "agent": agent, "policy": str(policy), "samples": samples}
        rows.append(about | score)
    return rows


def draw_curves(curves: QatCurves) -> Figure:
    """Draw losses on the left and returns on the right, a colour per run; inside `paper_style()`.

    In the losses phase 1 is dashed and phase 3 solid. In the returns, filled marks are validations
    during training and hollow ones the students' evaluations afterwards (shifted slightly to the
    right); the grey line is the teacher's.
    """
    figure = new_figure(PAGE_WIDTH, 2.9)
    losses, returns = figure.subplots(1, 2, sharex=True)
    shift = 0.012 * curves.epochs["samples"].max() / 1e6
    for place, (run, epochs) in enumerate(curves.epochs.groupby("run", sort=False)):
        look = series_look(place)
        for phase, part in epochs.groupby("phase", sort=False):
            style = "-" if phase == "finetune" else "--"
            losses.plot(part["samples"] / 1e6, part["loss"], style, markevery=4, ms=3, **look)
        _draw_returns(returns, epochs, look)
        evaluations = curves.evaluations[curves.evaluations["run"] == run]
        _draw_evaluations(returns, evaluations.dropna(), look, (place + 1) * shift)
        losses.plot([], [], label=Path(str(run)).name, **look)
    teachers = curves.evaluations[curves.evaluations["policy"] == "teacher"]
    if len(teachers):
        # Runs of one teacher each evaluated it; one line is enough, that of the most games.
        by_agent = teachers.loc[teachers.groupby("agent", sort=False)["episodes"].idxmax()]
        for _, known in by_agent.iterrows():
            name = "teacher" if len(by_agent) == 1 else f"teacher of {Path(known['run']).name}"
            returns.axhline(known["mean"], color=NEUTRAL, linewidth=0.8)
            returns.annotate(name, (0.01, known["mean"]), xycoords=("axes fraction", "data"),
                             va="bottom", fontsize=6, color=NEUTRAL)  # fmt: skip
    # The reward term's loss may be negative, which a log axis cannot show.
    if (curves.epochs["loss"] > 0).all():
        losses.set_yscale("log")
    losses.set(xlabel="samples (millions)", ylabel="loss (Eq. 2)")
    returns.set(xlabel="samples (millions)", ylabel="return")
    figure.legend(ncols=2, loc="outside lower center")
    say_below(
        figure,
        "losses: phase 1 dashed, phase 3 solid; returns: validations filled, games afterwards "
        "hollow; bars: 95% intervals",
    )
    return figure


def _draw_returns(ax: Any, epochs: DataFrame, look: dict[str, Any]) -> None:
    """Draw a run's validations with their intervals."""
    played = epochs.dropna(subset=["validation_return"])
    mean = played["validation_return"]
    error = error_lengths(mean, played["validation_low"], played["validation_high"])
    ax.errorbar(played["samples"] / 1e6, mean, error, linestyle="-", elinewidth=0.8, **look)


def _draw_evaluations(ax: Any, evaluations: DataFrame, look: dict[str, Any], shift: float) -> None:
    """Draw a run's evaluations, moved right by `shift` (millions of samples) so none is hidden."""
    mean = evaluations["mean"]
    error = error_lengths(mean, evaluations["low"], evaluations["high"])
    hollow = {"linestyle": "none", "mfc": "white", "ms": 5, "elinewidth": 0.8, "capsize": 2}
    ax.errorbar(evaluations["samples"] / 1e6 + shift, mean, error, **hollow, **look)
