"""Run directories as one pandas table: a row for each run and policy, with every episode's return.

What tables and figures group by is here too: `recipe_key` is equal for rows that differ in nothing
but the seed, `recipe_key_but_lambda` for rows that may also differ in lambda.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.runs.student_settings import student_settings
from qpd.errors.codes import ErrorCode
from qpd.recipe.schema import Recipe
from qpd.runs.manifest import PhaseName
from qpd.runs.run_directory import RunDirectory, RunDirectoryError
from qpd.student_files.distilled import check_size, stored_architecture
from qpd.student_files.origin import imitates_policy

if TYPE_CHECKING:
    from pandas import DataFrame

FLOAT_BITS = 32
COLUMNS = (
    "run", "name", "experiment", "seed", "env_id", "teacher", "teacher_sha256", "size", "policy",
    "parameters", "size_bytes", "weight_bits", "first_layer_bits", "last_layer_bits",
    "activation_bits", "scheme", "lambda", "temperature", "acting", "evaluation_seed", "returns",
    "settings", "recipe_key", "recipe_key_but_lambda", "student_digest",
)  # fmt: skip
_ACTOR_WEIGHTS = ("distill.actor_weight", "finetune.actor_weight")
_PHASES: dict[str, PhaseName] = {"distilled": "distill", "ptq": "quantize", "qat": "finetune"}


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run directories among `paths`; a folder of runs stands for those in it, sorted.

    Each is named once. Raises RunDirectoryError where a path is neither.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        runs = [path]
        if path.is_dir() and not (path / "manifest.json").is_file():
            runs = sorted(manifest.parent for manifest in path.glob("*/manifest.json"))
            if not runs:
                raise RunDirectoryError(
                    [f"{path}: is neither a run directory (no manifest.json) nor a folder of them"],
                    ErrorCode.RUN_NOT_A_RUN,
                )
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def run_frame(paths: Sequence[Path]) -> DataFrame:
    """What the runs in `paths` (see `find_runs`) hold, a row for each run and policy.

    Columns are `COLUMNS`. `policy` is teacher, teacher_sharpened, distilled, ptq or qat; `size` is
    the recipe's name for the student, `custom` or `teacher`. `size_bytes` is the size of the file,
    for a teacher 4 bytes a parameter, NaN where the file was left out. Bits are 32 in fp32.
    `lambda` and `temperature` are phase 1's, and NaN where the teacher has no critic (lambda) or is
    the policy itself. `returns` is float `[num_episodes]`, empty where there was no evaluation.
    `settings` are those of `qpd.analysis.runs.student_settings`, none for a teacher.
    `student_digest` is equal for files with the same tensors, empty where there is no file.
    Raises RunDirectoryError, StudentFileError.
    """
    import pandas as pd

    rows = [row for path in find_runs(paths) for row in _run_rows(path)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _run_rows(path: Path) -> list[dict[str, Any]]:
    run = RunDirectory.open(path, read_only=True)
    manifest, recipe = run.manifest, run.recipe
    if manifest.teacher is None:  # nothing was done yet
        return []
    about = {
        "run": str(path),
        "name": manifest.name,
        "experiment": re.sub(r"-?seed-?\d+$", "", manifest.name) or manifest.name,
        "seed": manifest.seed,
        "env_id": manifest.teacher.env_id,
        "teacher": manifest.teacher.algo,
        "teacher_sha256": manifest.teacher.sha256,
    }
    evaluated = set(manifest.evaluations)
    rows: list[dict[str, Any]] = [
        about | _teacher_fields(manifest.teacher.num_parameters) | {"policy": name}
        for name in ("teacher", "teacher_sharpened")
        if name == "teacher" or name in evaluated
    ]
    files = {"distilled": run.distilled_file, "ptq": run.ptq_file, "qat": run.quantized_file}
    kept = [file for file in files.values() if file.is_file()]
    parameters = stored_architecture(kept[0]).num_parameters if kept else np.nan
    for name, file in files.items():
        if run.phase(_PHASES[name]).state == "done" or name in evaluated:
            size = file.stat().st_size if file.is_file() else np.nan
            shape = {"policy": name, "parameters": parameters, "size_bytes": size}
            shape["student_digest"] = _tensor_digest(file)
            rows.append(about | _student_fields(recipe, name, manifest.teacher.algo) | shape)
    for row in rows:
        row |= _evaluation_fields(manifest.evaluations.get(row["policy"], {}))
    return rows


def _teacher_fields(parameters: int) -> dict[str, Any]:
    return {
        "size": "teacher",
        "parameters": parameters,
        "size_bytes": 4 * parameters,
        **_float_fields(),
        "lambda": np.nan,
        "temperature": np.nan,
        "settings": {},
        "recipe_key": "teacher",
        "recipe_key_but_lambda": "teacher",
        "student_digest": "",
    }


def _tensor_digest(path: Path) -> str:
    """A digest of a safetensors file without its header, which holds the run's name."""
    if not path.is_file():
        return ""
    check_size(path)
    data = path.read_bytes()
    return hashlib.sha256(data[8 + int.from_bytes(data[:8], "little") :]).hexdigest()[:16]


def _float_fields() -> dict[str, Any]:
    names = ("weight_bits", "first_layer_bits", "last_layer_bits", "activation_bits")
    return {**dict.fromkeys(names, FLOAT_BITS), "scheme": "float"}


def _student_fields(recipe: Recipe, policy: str, algo: str) -> dict[str, Any]:
    settings, has_critic = recipe.quantize, imitates_policy({"algo": algo})
    bits = _float_fields()
    if policy != "distilled":
        bits = {
            "weight_bits": settings.weight_bits,
            "first_layer_bits": settings.first_layer_bits or settings.weight_bits,
            "last_layer_bits": settings.last_layer_bits or settings.weight_bits,
            "activation_bits": settings.activation_bits,
            "scheme": settings.scheme,
        }
    made_by = student_settings(recipe, policy, has_critic)
    plain = {key: made_by[key] for key in made_by if not key.startswith("evaluation.")}
    but_lambda = {key: value for key, value in plain.items() if key not in _ACTOR_WEIGHTS}
    return {
        "size": recipe.student.size or "custom",
        **bits,
        "lambda": recipe.distill.actor_weight if has_critic else np.nan,
        "temperature": made_by["distill.temperature"],
        "settings": made_by,
        "recipe_key": _digest(plain),
        "recipe_key_but_lambda": _digest(but_lambda),
    }


def _digest(settings: dict[str, Any]) -> str:
    """The same for equal settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _evaluation_fields(evaluation: dict[str, Any]) -> dict[str, Any]:
    returns = np.array(evaluation.get("returns", []), dtype=float)
    seed = evaluation.get("seed", np.nan)
    return {"acting": evaluation.get("acting", ""), "evaluation_seed": seed, "returns": returns}
