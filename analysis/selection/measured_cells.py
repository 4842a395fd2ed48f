"""What was measured of each cell: students in integers, and integer controllers, with their games.

Floats to compare with are the float students of the widest networks, or trainings that never
quantized (`--quant-delay 1`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qpd.actions import Box
from qpd.analysis.runs.run_frame import find_runs
from qpd.analysis.selection.rule import Cell
from qpd.errors.codes import ErrorCode
from qpd.integer.integer_student import IntegerStudent
from qpd.runs.metrics_log import read_metrics
from qpd.runs.run_directory import RunDirectory, RunDirectoryError
from qpd.runs.training_run import TrainingRun, is_training
from qpd.student_files.quantized import load_integer_student
from qpd.teachers import load_teacher

MOST_OUTPUT = 8  # bits of an action's code
Games = dict[int, np.ndarray]  # by seed
Scope = tuple[Cell, int]  # a cell whose outputs have so many bits, other than the usual 8


@dataclass(frozen=True)
class Route:
    """How controllers were made: trained on a task, or distilled from one teacher of it."""

    env_id: str
    teacher: str | None = None  # its file's SHA-256
    algo: str = ""

    def __str__(self) -> str:
        """Return it in words."""
        how = "trained" if self.teacher is None else f"students of {self.algo.upper()}"
        return f"{self.env_id}, {how}"


@dataclass
class MeasuredCells:
    """Returns of all games by cell and seed, those of floats of each width, and what was left out.

    `route` is the task of all of them, and how they were made. Cells have outputs of 8 bits;
    `outputs` holds those with other bits, which no rule chooses among. `learning` holds, of
    trainings, the mean return over the steps of training, of cells and widths of floats.
    """

    route: Route
    cells: dict[Cell, Games] = field(default_factory=lambda: defaultdict(dict))
    floats: dict[int, Games] = field(default_factory=lambda: defaultdict(dict))
    outputs: dict[Scope, Games] = field(default_factory=lambda: defaultdict(dict))
    notes: list[str] = field(default_factory=list)
    learning: dict[_Key, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

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
    found = measured_routes(paths)
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
                    [f"{path}: is {_said(key)} of seed {seed}, as {places[place]} is"],
                    ErrorCode.COMMAND_LINE,
                )
            places[place] = path
            if is_training(path):
                found.learning[key][seed] = _mean_while_learning(path)
            if isinstance(key, Cell):
                found.cells[key][seed] = games
            elif isinstance(key, int):
                found.floats[key][seed] = games
            else:
                found.outputs[key][seed] = games
    if not any(found.cells or found.outputs for found in routes.values()):
        left_out = [note for found in routes.values() for note in found.notes]
        raise RunDirectoryError(
            ["no controller was evaluated: `qpd evaluate RUN`", *left_out],
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


_Key = Cell | Scope | int  # the int: a float network of that width
_Found = tuple[Route, list[tuple[_Key, int, np.ndarray]], list[str]]


def _said(key: Cell | Scope) -> str:
    return str(key) if isinstance(key, Cell) else f"{key[0]}, output {key[1]}"


def _run(path: Path) -> _Found:
    """Return the student of a run: its integers, and its float where they were played."""
    run = RunDirectory.open(path, read_only=True)
    teacher, evaluations = run.manifest.teacher, run.manifest.evaluations
    if teacher is None or not run.quantized_file.is_file():
        raise RunDirectoryError([f"{path}: holds no student yet"], ErrorCode.RUN_PHASE_MISSING)
    route = Route(teacher.env_id, teacher.sha256, teacher.algo)
    student = load_integer_student(run.quantized_file)
    cell = cell_of(student)
    if isinstance(cell, str):
        return route, [], [f"{path}: {cell}; left out"]
    entries: list[tuple[_Key, int, np.ndarray]] = []
    keys: tuple[tuple[str, _Key], ...] = (
        ("qat", _with_outputs(cell, student)), ("distilled", cell.width),
    )  # fmt: skip
    for name, key in keys:
        if name in evaluations:
            games = np.array(evaluations[name]["returns"])
            entries.append((key, run.recipe.seed, games))
    notes = [] if entries else [f"{path}: was not evaluated; left out"]
    return route, entries, notes


def _training(path: Path) -> _Found:
    """Return a controller, or the float twin of one, as it was played."""
    run = TrainingRun.open(path)
    settings, route = run.recipe.quantization, Route(run.manifest.env_id)
    if settings.controller is None:
        return route, [], [f"{path}: is no integer controller and no twin of one; left out"]
    evaluations = run.manifest.evaluations
    name = "qat" if "qat" in evaluations else "teacher"
    if name not in evaluations:
        return route, [], [f"{path}: was not evaluated; left out"]
    key: _Key
    if run.quantized_file.is_file():
        student = load_integer_student(run.quantized_file)
        cell = cell_of(student)
        if isinstance(cell, str):
            return route, [], [f"{path}: {cell}; left out"]
        key = _with_outputs(cell, student)
    else:
        key = max(load_teacher(path).hidden_widths)
    return route, [(key, run.recipe.seed, np.array(evaluations[name]["returns"]))], []


def _mean_while_learning(path: Path) -> float:
    """Return the mean of `episode_return` over a training's steps: the area below its curve.

    NaN where metrics.csv has none.
    """
    try:
        rows = read_metrics(TrainingRun.open(path).metrics_file)
        points = [(float(row["timesteps"]), float(row["episode_return"])) for row in rows
                  if row.get("episode_return")]  # fmt: skip
    except (OSError, ValueError, LookupError):
        return float("nan")
    if len(points) < 2:
        return float("nan")
    steps, returns = np.array(points).T
    return float(np.trapezoid(returns, steps) / (steps[-1] - steps[0]))


def _with_outputs(cell: Cell, student: IntegerStudent) -> Cell | Scope:
    bits = student.action_bits
    return (cell, bits) if isinstance(student.actions, Box) and bits != MOST_OUTPUT else cell


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
    return Cell(next(iter(bits)), next(iter(widths)), student.input_bits)
