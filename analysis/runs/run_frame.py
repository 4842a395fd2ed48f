"""Run directories as one pandas table: a row per run and policy, with every episode's return.

Tables and figures group by its keys: `recipe_key` is equal for rows that differ only in the seed,
`recipe_key_but_lambda` for rows that may also differ in lambda.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.actions import ActionSpace
from qpd.analysis.runs.phase_metrics import (
    Rows,
    best_validation,
    metrics_rows,
    students_sharing,
)
from qpd.analysis.runs.run_actions import has_critic, run_actions
from qpd.analysis.runs.run_identity import experiment_name, run_name
from qpd.analysis.runs.student_bits import bit_columns, run_architecture
from qpd.analysis.runs.student_settings import student_settings
from qpd.errors.codes import ErrorCode
from qpd.evaluation.games import bootstrap_interval
from qpd.files.bounded_read import read_file
from qpd.quantization.bit_widths import FLOAT_BITS
from qpd.recipe.schema import Recipe
from qpd.runs.manifest import MADE_BY, Manifest
from qpd.runs.run_directory import RunDirectory, RunDirectoryError
from qpd.student_files.distilled import MAX_FILE_BYTES, check_size
from qpd.students import StudentArchitecture

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = (
    "run", "name", "experiment", "recipe", "seed", "env_id", "world", "teacher", "teacher_sha256",
    "size", "policy", "parameters", "size_bytes", "weight_bits", "layer_bits", "mean_bits",
    "activation_bits", "scheme", "lambda", "temperature", "acting", "evaluation_seed", "returns",
    "lengths", "distinct_games", "settings", "recipe_key", "recipe_key_but_lambda",
    "student_digest", "code", "students_sharing", "best_validation",
)  # fmt: skip
_ACTOR_WEIGHTS = ("distill.actor_weight", "finetune.actor_weight")
_FLOAT: dict[str, Any] = {
    "weight_bits": FLOAT_BITS, "layer_bits": str(FLOAT_BITS), "mean_bits": float(FLOAT_BITS),
    "activation_bits": FLOAT_BITS, "scheme": "float",
}  # fmt: skip


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the run directories in `paths`, each once; a folder stands for its runs, sorted.

    Raises RunDirectoryError for a path that is neither a run nor a folder of runs.
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
        # `runs/*` and `runs` name the same runs: by the resolved path each counts once, under its
        # first name.
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def evaluation_interval(result: Mapping[str, Any]) -> tuple[float, float]:
    """Return the 95% interval of a manifest's evaluation, by its games.

    Manifests of earlier versions hold percentile intervals, which are too narrow.
    """
    returns = np.array(result.get("returns", []))
    low, high = bootstrap_interval(returns) if len(returns) else result["interval"]
    return low, high


def distinct_names(runs: Sequence[Path]) -> dict[Path, str]:
    """Return a name for each run: its folder's, with as many of those above as tell all apart."""
    names: dict[Path, str] = {}
    parts = {run: run.resolve().parts for run in runs}
    for depth in range(1, max(map(len, parts.values()), default=1) + 1):
        names = {run: "-".join(each[-depth:]).lstrip("/-") for run, each in parts.items()}
        if len(set(names.values())) == len(names):
            return names
    return {run: f"{index}-{names[run]}" for index, run in enumerate(names)}


def run_frame(paths: Sequence[Path]) -> DataFrame:
    """Return the contents of the runs in `paths` (see `find_runs`), a row per run and policy.

    Columns are `COLUMNS`. `world` is a digest of what the recipe does to the environment, empty for
    nothing. `policy` is teacher, teacher_sharpened, distilled, ptq or qat; `size` is
    the recipe's name for the student, `custom` or `teacher`. `size_bytes` is the size of the file
    (for a teacher 4 bytes per parameter), NaN if the file was left out. `name` is the run's folder,
    `experiment` the same without its seed. `weight_bits` is the fewest of any layer, `layer_bits`
    a text with those of every layer if they differ, `mean_bits` their mean over weights, NaN if no
    file tells the layers' sizes; 32 in fp32.
    `lambda` and `temperature` are phase 1's, NaN for teachers; `lambda` also for students of a
    teacher without a critic. `returns` is float `[num_episodes]`, empty without an evaluation;
    `lengths`, float `[num_episodes]`, are the games' steps, 0 where they were not written down;
    `distinct_games` is how many of the games differ in return or length.
    `settings` are those of `qpd.analysis.runs.student_settings`, none for a teacher.
    `student_digest` is equal for files with the same tensors, empty without a file. `code` is the
    commit (7 digits, with a + if files were changed) or else QPD's version; `students_sharing` and
    `best_validation` are those of `qpd.analysis.runs.phase_metrics`, 1 and NaN for teachers.
    Raises RunDirectoryError, StudentFileError.
    """
    import pandas as pd

    opened = {}
    for path in find_runs(paths):
        run = RunDirectory.open(path, read_only=True)
        opened[path] = run, metrics_rows(run)
    sharing = students_sharing(opened)
    rows = [
        row
        for path, (run, metrics) in opened.items()
        for row in _run_rows(path, run, metrics, sharing[path])
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _run_rows(path: Path, run: RunDirectory, metrics: Rows, sharing: int) -> list[dict[str, Any]]:
    manifest, recipe = run.manifest, run.recipe
    if manifest.teacher is None:  # no phase has begun yet
        return []
    about = {
        "run": str(path),
        "name": run_name(path),
        "experiment": experiment_name(path),  # seeds of one experiment get one name
        "recipe": manifest.name,
        "seed": manifest.seed,
        "env_id": manifest.teacher.env_id,
        "world": _world(recipe),
        "teacher": manifest.teacher.algo,
        "teacher_sha256": manifest.teacher.sha256,
    }
    evaluated = set(manifest.evaluations)
    rows: list[dict[str, Any]] = [
        about | _teacher_fields(manifest.teacher.num_parameters) | {"policy": name}
        for name in ("teacher", "teacher_sharpened")
        if name == "teacher" or name in evaluated
    ]
    architecture = run_architecture(run)
    parameters = architecture.num_parameters if architecture else np.nan
    actions, algo = run_actions(run, manifest.teacher.algo), manifest.teacher.algo
    for name, file in run.student_files.items():
        if run.phase(MADE_BY[name]).state == "done" or name in evaluated:
            size = file.stat().st_size if file.is_file() else np.nan
            shape: dict[str, Any] = {"policy": name, "parameters": parameters, "size_bytes": size}
            shape["student_digest"] = _tensor_digest(file)
            shape["students_sharing"] = sharing
            shape["best_validation"] = best_validation(run, metrics, name)
            chosen = run.phase("distill").metrics.get("temperature")
            refilled = run.memory_refilled
            fields = _student_fields(
                recipe, name, actions, algo, chosen, refilled, manifest.is_agent
            )
            rows.append(about | fields | _bits(recipe, name, architecture) | shape)
    for row in rows:
        row["code"] = _code(manifest, row["policy"])
        row |= _evaluation_fields(manifest.evaluations.get(row["policy"], {}))
    return rows


def _teacher_fields(parameters: int) -> dict[str, Any]:
    return {
        "size": "teacher",
        "parameters": parameters,
        "size_bytes": 4 * parameters,
        **_FLOAT,
        "lambda": np.nan,
        "temperature": np.nan,
        "settings": {},
        "recipe_key": "teacher",
        "recipe_key_but_lambda": "teacher",
        "student_digest": "",
        "students_sharing": 1,
        "best_validation": np.nan,
    }


def _world(recipe: Recipe) -> str:
    """Return a digest of what tells environments of one name apart, empty for the plain one."""
    found = recipe.environment.model_dump(mode="json", exclude={"num_envs", "num_threads"})
    changed = {key: value for key, value in found.items() if value not in (None, {}, [])}
    return _digest(changed) if changed else ""


def _code(manifest: Manifest, policy: str) -> str:
    """Return what names the code that made a policy; of a fork's phase 1 it is the source's."""
    own, first = manifest.code, manifest.first_code
    if policy == "distilled":
        return first
    return own if first == own or policy.startswith("teacher") else f"{first} then {own}"


def _tensor_digest(path: Path) -> str:
    """Return a digest of a safetensors file's tensors; the header holds the run's name."""
    if not path.is_file():
        return ""
    check_size(path)
    data = read_file(path, MAX_FILE_BYTES)
    return hashlib.sha256(data[8 + int.from_bytes(data[:8], "little") :]).hexdigest()[:16]


def _bits(recipe: Recipe, policy: str, architecture: StudentArchitecture | None) -> dict[str, Any]:
    """Return the columns of a student's bits and scheme."""
    if policy == "distilled":
        return _FLOAT
    settings = recipe.quantize
    others = {"activation_bits": settings.activation_bits, "scheme": settings.scheme}
    return bit_columns(recipe, architecture) | others


def _student_fields(
    recipe: Recipe,
    policy: str,
    actions: ActionSpace,
    algo: str,
    temperature: float | None,
    refilled: bool,
    is_agent: bool,
) -> dict[str, Any]:
    made_by = student_settings(
        recipe,
        policy,
        actions,
        has_critic=has_critic(actions, algo),
        chose_temperature=temperature is not None,
    )
    if policy != "distilled":
        made_by["replay.refilled"] = refilled  # no key of recipes: what phases 2 and 3 saw
    if is_agent:
        made_by["method"] = "agent"
    # How the best epoch was chosen makes no other recipe: rows that differ in it are one
    # experiment.
    plain = {key: made_by[key] for key in made_by if not key.startswith("evaluation.")}
    but_lambda = {key: value for key, value in plain.items() if key not in _ACTOR_WEIGHTS}
    return {
        "size": recipe.student.size or "custom",
        "lambda": made_by["distill.actor_weight"],
        "temperature": made_by["distill.temperature"] or temperature,
        "settings": made_by,
        "recipe_key": _digest(plain),
        "recipe_key_but_lambda": _digest(but_lambda),
    }


def _digest(settings: dict[str, Any]) -> str:
    """Return a short digest, equal for equal settings whatever their order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _evaluation_fields(evaluation: dict[str, Any]) -> dict[str, Any]:
    returns = np.array(evaluation.get("returns", []), dtype=float)
    lengths = evaluation.get("lengths", [])
    return {
        "acting": evaluation.get("acting", ""),
        "evaluation_seed": evaluation.get("seed", 0 if evaluation else np.nan),
        "returns": returns,
        "lengths": np.array(lengths if len(lengths) == len(returns) else [0] * len(returns), float),
        "distinct_games": evaluation.get("distinct_games")
        or len(returns),  # from before: not known
    }
