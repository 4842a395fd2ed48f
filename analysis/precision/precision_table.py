"""Formats and loss scales side by side: returns over seeds, skipped updates, lost gradients."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.precision.training_arithmetic import ParameterBytes, arithmetic_text
from qpd.analysis.returns.mean_bootstrap import mean_estimate
from qpd.analysis.returns.return_rows import ShownTable, number_or_dash
from qpd.analysis.returns.return_statistics import score_matrix
from qpd.analysis.runs.run_frame import find_runs, run_frame
from qpd.evaluation.studentized import t_interval
from qpd.recipe.schema import Recipe
from qpd.recipe.training_phases import TrainingPhase
from qpd.runs.counted_gradients import PhaseGradients
from qpd.runs.manifest import PhaseName
from qpd.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    from pandas import DataFrame

PHASES: dict[str, PhaseName] = {"distilled": "distill", "qat": "finetune"}
_STUDENT = [
    "env_id", "world", "teacher", "teacher_sha256", "size", "policy", "layer_bits", "settings",
]  # fmt: skip
_KEYS = [*_STUDENT, "arithmetic"]
_SINGLE = "fp32"


def precision_rows(paths: Sequence[Path]) -> DataFrame:
    """Return a row for each trained student, `distilled` and `qat`.

    Cells of a sweep may share a distilled student: it counts once. `settings` is a digest of the
    recipe up to the student and of its agent's file, without its seed and what says in which
    precision it trains; `of_phase_2` is 1 where no epoch of phase 3 was better than what phase 2
    left, else 0.

    `arithmetic` is that of all phases up to it; `skipped` updates and the last `loss_scale` are its
    own phase's, NaN where no loss was scaled; `divergence` its best validation's; `lost`,
    `subnormal`, `overflow` are shares of its weight gradients in its format (in fp16, where it
    trained in float32), `fitting_scale` the power of two that would fit; NaN where none were
    counted. Raises what `run_frame` does, and GradientCountsError.
    """
    import pandas as pd

    frame = run_frame(paths)
    rows = []
    for path in find_runs(paths):
        run = RunDirectory.open(path, read_only=True)
        mine = frame[(frame["run"] == str(path)) & frame["policy"].isin(list(PHASES))]
        told = [_row(run, row) for _, row in mine.iterrows()]
        # Neither games nor updates: the phase has not ended.
        rows += [row for row in told if len(row["returns"]) or not np.isnan(row["skipped"])]
    unique: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[key] for key in (*_KEYS, "seed"))
        if row["policy"] != "distilled":  # a copy of a run is no further seed
            key = (*key, np.asarray(row["returns"]).tobytes() or id(row))
        if key not in unique or not len(unique[key]["returns"]):
            unique[key] = row
    return pd.DataFrame(list(unique.values()))


def _row(run: RunDirectory, row: Any) -> dict[str, Any]:
    name = PHASES[row["policy"]]
    record = run.phase(name).metrics
    phase: TrainingPhase = run.recipe.distill if name == "distill" else run.recipe.finetune
    texts = [arithmetic_text(run.recipe.distill)]
    texts += [arithmetic_text(run.recipe.finetune)] if name == "finetune" else []
    keys = ("name", "seed", "returns", *_STUDENT)
    found = {key: row[key] for key in keys if key != "settings"}
    found["settings"] = _settings(run.recipe, name, str(row["teacher_sha256"]))
    found["arithmetic"] = " / ".join(dict.fromkeys(texts))
    kept = {"skipped": "skipped_updates", "loss_scale": "loss_scale"}
    for key, of in (kept | {"divergence": "best_validation_divergence"}).items():
        value = record.get(of)
        found[key] = float(value) if isinstance(value, int | float) else np.nan
    # Epoch 0 of phase 3 is what phase 2 left.
    found["of_phase_2"] = float(name == "finetune" and record.get("best_epoch") == 0)
    found |= dict.fromkeys(("lost", "subnormal", "overflow", "fitting_scale"), np.nan)
    counted = PhaseGradients.read(run.exponents_file(name))
    if counted is not None:
        total = counted.total("weights")
        shares = total.shares(counted.form)
        found |= {key: shares[key] for key in ("lost", "subnormal", "overflow")}
        found["fitting_scale"] = total.fitting_scale(counted.form)
    size = ParameterBytes.of(phase)
    sizes = {"weight": size.weight, "gradient": size.gradient, "master": size.master}
    sizes |= {"moments": size.moments, "total": size.total}
    return found | {f"bytes_{key}": value for key, value in sizes.items()}


_PRECISION = ("precision", "loss_scale", "master_weights", "gradient_exponents")
# How the teacher was named tells nothing: its digest does.
_NOT_OF_TRAINING = {"name", "base", "seed", "device", "teacher", "evaluation", "save"}


def _settings(recipe: Recipe, phase: PhaseName, teacher_sha256: str) -> str:
    """Return a digest of what makes a student beside its seed and the precision of training."""
    later = {"quantize", "finetune"} if phase == "distill" else set()
    found = recipe.model_dump(mode="json", exclude=_NOT_OF_TRAINING | later)
    for section in ("distill", "finetune"):
        for key in _PRECISION:
            found.get(section, {}).pop(key, None)
    about = json.dumps([found, teacher_sha256], sort_keys=True)
    return hashlib.sha256(about.encode()).hexdigest()[:8]


def precision_table(rows: DataFrame) -> DataFrame:
    """Return a row for each student and arithmetic: return with its 95% interval, and means.

    `seeds` counts runs with games; `mean`, `low` and `high` are NaN without any. `difference` is
    the mean over seeds of the return minus fp32's, of the same student and seed, with Student's
    interval over seeds; NaN without such pairs.
    """
    import pandas as pd

    means = ["divergence", "skipped", "loss_scale", "lost", "subnormal", "overflow"]
    sizes = [name for name in rows.columns if name.startswith("bytes_")]
    found = []
    for key, mine in rows.groupby(_KEYS) if len(rows) else []:
        games = [np.asarray(each, float) for each in mine["returns"] if len(each)]
        value = low = high = np.nan
        difference = t_interval(_differences(rows, mine))
        if games:
            estimate = mean_estimate(score_matrix(games))
            value, (low, high) = estimate.value, estimate.interval()
        found.append(
            {
                **dict(zip(_KEYS, key, strict=True)),
                "seeds": len(games),
                "games": sum(map(len, games)),
                "mean": value,
                "low": low,
                "high": high,
                "difference": difference[0],
                "difference_low": difference[1],
                "difference_high": difference[2],
                "of_phase_2": int(mine["of_phase_2"].sum()),
                **mine[means].mean().to_dict(),
                "fitting_scale": mine["fitting_scale"].min(),  # it fits them all
                **mine[sizes].iloc[0].to_dict(),
            }
        )
    return pd.DataFrame(found)


def _differences(rows: DataFrame, mine: DataFrame) -> list[float]:
    """Return mean returns minus those in fp32, of the same student, seed by seed."""
    first = mine.iloc[0]
    if first["arithmetic"] == _SINGLE:
        return []
    same = (rows[_STUDENT] == first[_STUDENT]).all(axis=1) & (rows["arithmetic"] == _SINGLE)
    theirs = dict(zip(rows.loc[same, "seed"], rows.loc[same, "returns"], strict=True))
    return [
        float(np.mean(games)) - float(np.mean(theirs[seed]))
        for seed, games in zip(mine["seed"], mine["returns"], strict=True)
        if len(games) and len(theirs.get(seed, ()))
    ]


def shown_precisions(table: DataFrame) -> list[ShownTable]:
    """Tabulate `precision_table` for a terminal: returns, then bytes by parameter."""
    header = [
        *("student", "bits", "arithmetic", "seeds", "return [95%]", "minus fp32 [95%]"),
        *(
            "of phase 2",
            "divergence",
            "skipped",
            "last S",
            "lost",
            "subnormal",
            "overflow",
            "S that fits",
        ),
    ]
    shown = []
    for env_id, mine in table.groupby("env_id", sort=False) if len(table) else []:
        # Of recipes that differ in more than what the table shows, the digest tells them apart.
        shown_twice = mine.duplicated(["size", "policy", "layer_bits", "arithmetic"], keep=False)
        rows = [
            [
                f"{row['size']} {row['policy']}"
                + (f" ({row['settings']})" if shown_twice[index] else ""),
                row["layer_bits"],
                row["arithmetic"],
                str(row["seeds"]),
                f"{row['mean']:.1f} [{row['low']:.1f}, {row['high']:.1f}]",
                _difference(row),
                str(row["of_phase_2"]) if row["policy"] == "qat" else "-",
                number_or_dash(row["divergence"], "{:.5f}"),
                *(number_or_dash(row[name], "{:,.1f}") for name in ("skipped", "loss_scale")),
                *(
                    number_or_dash(row[name], "{:.2%}")
                    for name in ("lost", "subnormal", "overflow")
                ),
                number_or_dash(row["fitting_scale"], "{:g}"),
            ]
            for index, row in mine.iterrows()
        ]
        shown.append(ShownTable(str(env_id), header, rows))
    return [*shown, _bytes_table(table)] if shown else []


def _bytes_table(table: DataFrame) -> ShownTable:
    parts = ("weight", "gradient", "master", "moments", "total")
    unique = table.drop_duplicates("arithmetic")
    rows = [
        [row["arithmetic"], *(f"{row[f'bytes_{part}']:g}" for part in parts)]
        for _, row in unique.iterrows()
    ]
    return ShownTable("bytes by parameter, if stored in the format", ["", *parts], rows)


def _difference(row: Any) -> str:
    value, low, high = (row[f"difference{end}"] for end in ("", "_low", "_high"))
    if np.isnan(value):
        return "-"
    return f"{value:+.1f}" + ("" if np.isnan(low) else f" [{low:+.1f}, {high:+.1f}]")


NOTES = (
    "return: mean over seeds and games with 95% bootstrap interval; the best validation's "
    "divergence from the teacher, skipped updates and last loss scale S: means over seeds, of the "
    "student's own phase",
    "minus fp32: of the same student and seed; interval over seeds (Student's t); of phase 2: "
    "students that no epoch of phase 3 improved, of all runs of the row",
    "lost, subnormal, overflow: shares of counted weight gradients in the format, without S (in "
    "fp16 where training is in float32); overflow counts those of skipped updates; S that fits: "
    "leaves a binade below overflow",
)
