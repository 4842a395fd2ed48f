"""Trainings of agents in few bits of floating point (`qpd train --precision`), side by side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qpd.analysis.returns.return_rows import ShownTable
from qpd.analysis.runs.run_frame import find_runs
from qpd.errors.codes import ErrorCode
from qpd.evaluation.studentized import t_interval
from qpd.numerics.float_format import FloatFormat
from qpd.recipe.train_schema import METHODS, SIX, TrainPrecision, TrainQuantization, TrainRecipe
from qpd.runs.manifest import EvaluatedPolicy
from qpd.runs.metrics_log import last_number, read_metrics
from qpd.runs.run_folder import RunDirectoryError
from qpd.runs.training_run import TrainingRun, is_training

if TYPE_CHECKING:
    from pandas import DataFrame

FLOAT = "fp32"
PIXELS = " from pixels"  # in a task's name


@dataclass(frozen=True)
class Training:
    """A training that was evaluated, or whose numbers were no longer finite.

    `value` is the mean return of its evaluation, or None; `failed_at` the agent steps after which
    it failed, or None. `curve` is the mean return of the last 100 games by agent steps. `env_id`
    also says in which integers it learns, and whether it sees pixels; `settings` is a digest of
    the recipe without its seed and its precision.
    """

    path: Path
    algo: str
    env_id: str
    seed: int
    precision: TrainPrecision
    settings: str
    timesteps: int
    value: float | None
    failed_at: int | None
    skipped: float
    curve: tuple[tuple[int, float], ...]

    @property
    def arm(self) -> str:
        """Its arithmetic in words."""
        return self.precision.named(self.algo)

    @property
    def task(self) -> str:
        """Algorithm and environment."""
        return f"{self.algo} {self.env_id}"


def read_trainings(paths: Sequence[Path]) -> list[Training]:
    """Return the trainings in `paths`, or in folders of them, that have ended in one way or other.

    Raises RunDirectoryError for a damaged one.
    """
    found = []
    for path in find_runs(paths):
        if not is_training(path):
            continue
        run = TrainingRun.open(path)
        quantization = run.recipe.quantization
        # An integer controller plays in its integers.
        plays: EvaluatedPolicy = "teacher" if quantization.controller is None else "qat"
        games = run.manifest.evaluations.get(plays)
        if games is None and run.phase.failed_at is None:
            continue
        rows = read_metrics(run.metrics_file) if run.metrics_file.is_file() else []
        try:
            curve = [
                (int(float(row["timesteps"])), float(row["episode_return"]))
                for row in rows
                if row.get("episode_return")
            ]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RunDirectoryError(
                [f"{run.metrics_file}: timesteps and episode_return: no numbers ({error})"]
            ) from error
        skipped = last_number(rows, "train/skipped_updates")
        found.append(
            Training(
                path,
                run.manifest.algo,
                run.manifest.env_id + _integers(quantization) + _camera(run.recipe),
                run.recipe.seed,
                run.recipe.precision,
                _settings(run.recipe),
                run.phase.timesteps,
                None if games is None else float(np.mean(games.get("returns") or games["mean"])),
                run.phase.failed_at,
                np.nan if skipped is None else skipped,
                tuple(curve),
            )
        )
    return found


def _integers(quantization: TrainQuantization) -> str:
    if quantization.bits is not None:
        return f" in {quantization.bits} bits"
    if quantization.controller is None:
        return ""
    return " in {}-{}-{} bits".format(*quantization.controller)


def _camera(recipe: TrainRecipe) -> str:
    names = [next(iter(each)) if isinstance(each, dict) else each
             for each in recipe.environment.wrappers or []]  # fmt: skip
    return PIXELS if any(name.endswith(".AddRenderObservation") for name in names) else ""


def _settings(recipe: TrainRecipe) -> str:
    found = recipe.model_dump(
        mode="json", exclude={"name", "base", "seed", "device", "precision", "save"}
    )
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:4]


def by_task(trainings: Sequence[Training]) -> dict[str, dict[str, list[Training]]]:
    """Return trainings by task and arm, fp32 first, each arm's by seed.

    A task whose trainings have several recipes stands for each of them, told apart by the digest.
    Raises RunDirectoryError for two of one recipe, arm and seed.
    """
    recipes: dict[str, set[str]] = {}
    for each in trainings:
        recipes.setdefault(each.task, set()).add(each.settings)
    found: dict[str, dict[str, list[Training]]] = {}
    for each in sorted(trainings, key=lambda one: (one.task, one.settings, _order(one), one.seed)):
        several = len(recipes[each.task]) > 1
        task = f"{each.task}, recipe {each.settings}" if several else each.task
        mine = found.setdefault(task, {}).setdefault(each.arm, [])
        if mine and mine[-1].seed == each.seed:
            raise RunDirectoryError(
                [f"{each.path}: a second training of {each.arm} with seed {each.seed}, after "
                 f"{mine[-1].path}"],
                ErrorCode.COMMAND_LINE,
            )  # fmt: skip
        mine.append(each)
    return found


def _order(training: Training) -> tuple[int, str, float, int, int, str]:
    """Order arms: fp32, then by format plain, the ladder, all six, removals, baselines."""
    precision = training.precision
    if precision.low is None:
        return (0, "", 0.0, 0, 0, "")
    missing = len(set(METHODS) - set(precision.methods))
    kind = 2 if precision.baseline is not None else 1 if missing == 1 else 0
    count = 0 if kind else len(precision.methods)
    return (1, str(precision.format), precision.eps, kind, count, training.arm)


def trainings_frame(trainings: Sequence[Training]) -> DataFrame:
    """Return a row for each training."""
    import pandas as pd

    return pd.DataFrame(
        {
            "run": each.path.name, "task": each.task, "training": each.arm, "seed": each.seed,
            "timesteps": each.timesteps, "return": np.nan if each.value is None else each.value,
            "failed_at": np.nan if each.failed_at is None else each.failed_at,
            "skipped": each.skipped,
        }
        for each in trainings
    )  # fmt: skip


def curves_frame(trainings: Sequence[Training]) -> DataFrame:
    """Return learning curves, a row a point."""
    import pandas as pd

    rows = [
        (each.path.name, each.task, each.arm, each.seed, steps, value)
        for each in trainings
        for steps, value in each.curve
    ]
    return pd.DataFrame(rows, columns=["run", "task", "training", "seed", "timesteps", "return"])


def shown_trainings(trainings: Sequence[Training]) -> list[ShownTable]:
    """Tabulate trainings: returns over seeds, and in pairs with fp32's of the same seed."""
    header = [
        "training",
        "return of each",
        "mean [95%]",
        "minus fp32 [95%]",
        "skipped",
        "NaN after",
    ]
    shown = []
    for task, arms in by_task(trainings).items():
        base = {each.seed: each.value for each in arms.get(FLOAT, [])}
        rows = []
        for arm, mine in arms.items():
            pairs = [
                each.value - own
                for each in mine
                if each.value is not None and (own := base.get(each.seed)) is not None
            ]
            failed = [f"{each.failed_at:,}" for each in mine if each.failed_at is not None]
            rows.append(
                [
                    arm,
                    ", ".join("-" if e.value is None else f"{e.value:,.0f}" for e in mine),
                    _interval([each.value for each in mine if each.value is not None]),
                    "-" if arm == FLOAT else _interval(pairs),
                    ", ".join(f"{e.skipped:.0f}" for e in mine if np.isfinite(e.skipped)) or "-",
                    ", ".join(failed) or "-",
                ]
            )
        shown.append(ShownTable(task, header, rows))
    return shown


def _interval(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean, low, high = t_interval(values)
    return f"{mean:,.0f}" + ("" if np.isnan(low) else f" [{low:,.0f}, {high:,.0f}]")


def significands(arms: dict[str, list[Training]]) -> dict[tuple[int, int], list[Training]]:
    """Return a task's trainings by all six methods, by exponent and mantissa bits."""
    found: dict[tuple[int, int], list[Training]] = {}
    for mine in arms.values():
        precision = mine[0].precision
        if precision.low is not None and mine[0].arm.endswith(SIX):
            form = FloatFormat.parse(precision.low)
            key = form.exponent, form.mantissa  # fp16 and e5m10 are one
            found[key] = [*found.get(key, []), *mine]
    return found
