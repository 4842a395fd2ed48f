"""Read the games of each cell: of students in integers, and of integer controllers.

Floats to compare with are the float students of the widest networks, or trainings that never
quantized (`--quant-delay 1`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qpd.actions import Box
from qpd.analysis.returns.mean_bootstrap import Seeds, mean_of_ratios_estimate
from qpd.analysis.runs.run_frame import find_runs
from qpd.analysis.selection.rule import MOST_BITS, Cell, edge_of
from qpd.errors.codes import ErrorCode
from qpd.evaluation.studentized import StudentizedEstimate
from qpd.integer.integer_student import IntegerStudent
from qpd.recipe.differences import recipe_differences
from qpd.recipe.schema import Recipe
from qpd.runs.metrics_log import read_metrics
from qpd.runs.run_directory import RunDirectory, RunDirectoryError
from qpd.runs.training_run import TrainingRun, is_training
from qpd.student_files.quantized import load_integer_student
from qpd.teachers import load_teacher

Games = dict[int, np.ndarray]  # by seed
# What a recipe may say otherwise without making another cell.
_FREE = (
    *("name", "seed", "device", "save.", "evaluation.", "teacher.source", "teacher.env"),
    "precision.gradient",
    *("train.checkpoint_every", "train.keep_checkpoints", "train.max_replay", "train.compile"),
)
_Key = Cell | int  # the int: a float network of that width


@dataclass(frozen=True)
class Route:
    """Say how controllers were made: trained on a task, or distilled from one teacher of it.

    `timesteps` and `normalizes` are a training's, `scheme` (`quantize.scheme`) a student's.
    """

    env_id: str
    teacher: str | None = None  # its file's SHA-256
    algo: str = ""
    timesteps: int = 0
    normalizes: bool = True
    scheme: str = "dorefa_scaled"

    @property
    def is_usual(self) -> bool:
        """Tell whether the paper's claims on SAC are judged by it.

        That is every student, and SAC's trainings with VecNormalize.
        """
        return self.teacher is not None or (self.algo not in ("ddpg", "td3") and self.normalizes)

    def __str__(self) -> str:
        """Return it in words."""
        if self.teacher is not None:
            apart = "" if self.scheme == "dorefa_scaled" else f" ({self.scheme} weights)"
            return f"{self.env_id}, students of {self.algo.upper()}{apart}"
        steps = f"{self.timesteps:,} steps" if self.timesteps else ""
        apart = "" if self.normalizes else "not normalized"
        said = ", ".join(each for each in (self.algo.upper(), steps, apart) if each)
        return f"{self.env_id}, trained" + (f" ({said})" if said else "")


@dataclass
class MeasuredCells:
    """Returns of all games by cell and seed, those of floats of each width, and what was left out.

    `route` is the task of all of them, and how they were made. `curves` hold, of trainings, steps
    and `episode_return` at them, `[2, points]`, of cells and widths of floats by seed.
    """

    route: Route
    cells: dict[Cell, Games] = field(default_factory=lambda: defaultdict(dict))
    floats: dict[int, Games] = field(default_factory=lambda: defaultdict(dict))
    notes: list[str] = field(default_factory=list)
    curves: dict[_Key, Games] = field(default_factory=lambda: defaultdict(dict))

    @property
    def learning(self) -> dict[_Key, Games]:
        """The mean return over the steps of each training, `[1]`: the area below its curve."""
        return {
            key: {seed: _mean_over_steps(curve) for seed, curve in curves.items()}
            for key, curves in self.curves.items()
        }

    @property
    def widest_floats(self) -> Games:
        """Returns of the widest float networks by seed. Raises RunDirectoryError without any."""
        if not self.floats:
            raise RunDirectoryError(
                [
                    "no float policy was evaluated: give runs with an evaluated fp32 student, or a "
                    "training with --quant-delay 1 and `qpd evaluate` it"
                ],
                ErrorCode.NOTHING_MEASURED,
            )
        return self.floats[max(self.floats)]


def measured_cells(paths: Sequence[Path]) -> MeasuredCells:
    """Read the runs and trainings in `paths`, or in folders of them, all of one route.

    Raises what `measured_routes` does, and RunDirectoryError for several routes.
    """
    routes = measured_routes(paths)
    found = [each for each in routes if each.cells or each.floats]
    # What was left out made routes of its own.
    found[0].notes += [note for each in routes if each not in found for note in each.notes]
    if len(found) > 1:
        known = "; ".join(str(each.route) for each in found)
        raise RunDirectoryError(
            [f"several tasks or ways to make a controller: {known}: select for one at a time"],
            ErrorCode.COMMAND_LINE,
        )
    return found[0]


def measured_routes(paths: Sequence[Path]) -> list[MeasuredCells]:
    """Read the runs and trainings in `paths`, or in folders of them, by route.

    Raises RunDirectoryError where no controller was measured, and for two runs of one route, cell
    and seed; StudentFileError.
    """
    routes: dict[Route, MeasuredCells] = {}
    places: dict[tuple[Any, ...], Path] = {}
    pooled: dict[tuple[Route, _Key], Path] = {}  # the first of each cell
    for path in find_runs(paths):
        route, entries, notes = _training(path) if is_training(path) else _run(path)
        found = routes.setdefault(route, MeasuredCells(route))
        found.notes += notes
        for key, seed, games in entries:
            place = (route, key, seed)
            if place in places:
                if isinstance(key, int):
                    its = found.floats[key][seed]
                    found.notes += _other_float(path, places[place], games, its)
                    continue
                raise RunDirectoryError(
                    [f"{path}: is {key} of seed {seed}, as {places[place]} is"],
                    ErrorCode.COMMAND_LINE,
                )
            places[place] = path
            first = pooled.setdefault((route, key), path)
            found.notes += _unlike(path, first, key)
            if is_training(path) and (curve := _curve(path)) is not None:
                found.curves[key][seed] = curve
            if isinstance(key, Cell):
                found.cells[key][seed] = games
            else:
                found.floats[key][seed] = games
    if not any(found.cells for found in routes.values()):
        left_out = [note for found in routes.values() for note in found.notes]
        has_floats = any(found.floats for found in routes.values())
        what = "only floats were" if has_floats else "`qpd evaluate RUN`"
        raise RunDirectoryError(
            [f"no controller was evaluated: {what}", *left_out],
            ErrorCode.NOTHING_MEASURED,
        )
    return list(routes.values())


def _other_float(path: Path, first: Path, games: np.ndarray, its: np.ndarray) -> list[str]:
    """Return a note where the float of one width and seed has other games in another run.

    Students of several bits begin with the same float student, and play the same games with it.
    """
    if np.array_equal(games, its):
        return []
    return [f"{path}: its float student is not that of {first}, which is compared with"]


def _unlike(path: Path, first: Path, key: _Key) -> list[str]:
    """Return a note if a cell's seeds were not made by one recipe: their mean is of neither."""
    if path == first:
        return []
    (one, alone), (other, together) = (
        (TrainingRun.open(each).recipe, 1)
        if is_training(each)
        else _recipe_and_sharing(RunDirectory.open(each, read_only=True))
        for each in (first, path)
    )
    # A float twin's quantizers are off, and a float student is there before quantization.
    later = ("quantization.", "quantize.", "finetune.")
    free = (*_FREE, *later) if isinstance(key, int) else _FREE
    keys = [line.partition(":")[0] for line in recipe_differences(one, other)]
    differing = [each for each in keys if not each.startswith(free)]
    differing += ["the number of students that shared the play"] if alone != together else []
    if not differing:
        return []
    cell = f"floats of width {key}" if isinstance(key, int) else str(key)
    return [f"{path}: counts as a seed of {cell}, but {', '.join(differing)} is not {first}'s"]


def _recipe_and_sharing(run: RunDirectory) -> tuple[Recipe, int]:
    return run.recipe, int(run.phase("distill").metrics.get("students_sharing", 1))


_Found = tuple[Route, list[tuple[_Key, int, np.ndarray]], list[str]]


def _run(path: Path) -> _Found:
    """Return the student of a run: its integers, and its float where they were played."""
    run = RunDirectory.open(path, read_only=True)
    teacher, evaluations = run.manifest.teacher, run.manifest.evaluations
    if teacher is None or not run.quantized_file.is_file():
        raise RunDirectoryError([f"{path}: holds no student yet"], ErrorCode.RUN_PHASE_MISSING)
    scheme = run.recipe.quantize.scheme
    route = Route(teacher.env_id, teacher.sha256, teacher.algo, scheme=scheme)
    cell = cell_of(load_integer_student(run.quantized_file))
    if isinstance(cell, str):
        return route, [], [f"{path}: {cell}; left out"]
    entries: list[tuple[_Key, int, np.ndarray]] = []
    for name, key in (("qat", cell), ("distilled", cell.width)):
        if (games := _returns(evaluations, name)) is not None:
            entries.append((key, run.recipe.seed, games))
    notes = [] if entries else [f"{path}: was not evaluated; left out"]
    return route, entries, notes


def _training(path: Path) -> _Found:
    """Return a controller, or the float twin of one, as it was played."""
    run = TrainingRun.open(path)
    settings, manifest = run.recipe.quantization, run.manifest
    normalize: Any = run.recipe.train.hyperparameters.get("normalize", True)
    if isinstance(normalize, dict):
        normalize = normalize.get("norm_obs", True)
    steps = manifest.phases["train"].total_timesteps or 0
    route = Route(manifest.env_id, None, manifest.algo, steps, bool(normalize))
    if settings.controller is None:
        return route, [], [f"{path}: is no integer controller and no twin of one; left out"]
    evaluations = manifest.evaluations
    name = "qat" if "qat" in evaluations else "teacher"
    games = _returns(evaluations, name)
    if games is None:
        return route, [], [f"{path}: was not evaluated; left out"]
    key: Cell | int | str
    if run.quantized_file.is_file():
        key = cell_of(load_integer_student(run.quantized_file))
    elif settings.share_in_float >= 1 and name == "teacher":
        key = _float_width(run)
    else:
        key = "is a controller whose integers are not there"
    if isinstance(key, str):
        return route, [], [f"{path}: {key}; left out"]
    return route, [(key, run.recipe.seed, games)], []


def _returns(evaluations: Mapping[Any, dict[str, Any]], name: str) -> np.ndarray | None:
    """Return all games of a policy; None where it was not played, or they were not kept."""
    found = evaluations.get(name, {}).get("returns")
    return np.array(found) if found else None


def _float_width(run: TrainingRun) -> int:
    """Return a float actor's widest hidden layer: of the recipe, or of the agent, if it is kept."""
    layers: Any = run.recipe.train.hyperparameters.get("net_arch")
    if isinstance(layers, dict):
        layers = layers.get("pi")
    known = layers if isinstance(layers, list) and layers else load_teacher(run.path).hidden_widths
    return max(known)


def _curve(path: Path) -> np.ndarray | None:
    """Return steps and `episode_return` of a training; None where metrics.csv has no curve."""
    try:
        rows = read_metrics(TrainingRun.open(path).metrics_file)
        points = [(float(row["timesteps"]), float(row["episode_return"])) for row in rows
                  if row.get("episode_return")]  # fmt: skip
    except (OSError, ValueError, LookupError):
        return None
    return None if len(points) < 2 else np.array(points).T


def _mean_over_steps(curve: np.ndarray) -> np.ndarray:
    steps, returns = curve
    return np.array([np.trapezoid(returns, steps) / (steps[-1] - steps[0])])


def cell_of(student: IntegerStudent) -> Cell | str:
    """Return the cell of a student, or in words why it is none."""
    widths, bits = set(student.architecture.hidden), {layer.bits for layer in student.layers}
    if student.architecture.image_shape is not None:
        return "sees images, which have no input bits"
    if len(widths) != 1:
        return f"has hidden layers of {', '.join(map(str, sorted(widths)))}: not of one width"
    levels = {layer.levels for layer in student.layers}
    if len(bits) != 1 or levels != {2 ** next(iter(bits)) - 1}:
        return "has weights and activations of several bit widths: no core's"
    output = MOST_BITS  # of discrete actions nothing is rounded
    if isinstance(student.actions, Box):
        grid = student.output_grid  # a trained controller's, before its codes of 8 bits
        output = student.action_bits if grid is None else grid.bits
    return Cell(next(iter(bits)), next(iter(widths)), student.input_bits, output)


class MatchedGames(NamedTuple):
    """Games of two policies, `[seeds, games]`, and the seeds of both; none where they differ."""

    first: np.ndarray
    second: np.ndarray
    seeds: Seeds

    @property
    def are_of_one_training(self) -> bool:
        """Tell whether either side has a single training: its interval is of games alone."""
        return min(len(self.first), len(self.second)) == 1


def matched(first: Games, second: Games) -> MatchedGames:
    """Return the games of both of the seeds that both have, if there are such.

    Of each as many games as every seed has.
    """
    shared = sorted(first.keys() & second.keys())
    if shared:
        first, second = ({seed: each[seed] for seed in shared} for each in (first, second))
    return MatchedGames(as_matrix(first), as_matrix(second), tuple(shared))


def mean_ratio(pairs: Sequence[MatchedGames]) -> StudentizedEstimate | None:
    """Estimate the mean over `pairs` of mean(first) / mean(second), seed by seed.

    None where a mean of the second may be 0 or less.
    """
    games = [(pair.first, pair.second) for pair in pairs]
    return mean_of_ratios_estimate(games, [(pair.seeds, pair.seeds) for pair in pairs])


def ratio_of(games: Games, base: Games) -> tuple[float, float, float]:
    """Return mean over mean and the ends of its 95% interval, of the seeds that both have.

    NaN where floats may return 0 or less.
    """
    found = mean_ratio([matched(games, base)])
    return (np.nan,) * 3 if found is None else (found.value, *found.interval())


def parity_of(games: Games, floats: Games, share: float | None) -> tuple[bool, float]:
    """Tell whether the mean of `games` reaches `edge_of` the floats', and that edge.

    The floats are those of the seeds that both have. Without `share` the deviation is that of all
    floats, of which there must be two.
    """
    few, base, _ = matched(games, floats)
    its, means = base.mean(axis=1), np.array([each.mean() for each in floats.values()])
    edge = edge_of(its, share) if share is not None else its.mean() - means.std(ddof=1)
    return bool(few.mean(axis=1).mean() >= edge), float(edge)


def as_matrix(games: Games) -> np.ndarray:
    """Return `[seeds, games]`, as many games as every seed has."""
    count = min(map(len, games.values()))
    return np.stack([games[seed][:count] for seed in sorted(games)])
