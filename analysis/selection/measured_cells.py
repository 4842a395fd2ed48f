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

from qpd.analysis.runs.run_frame import find_runs
from qpd.analysis.selection.rule import Cell
from qpd.errors.codes import ErrorCode
from qpd.integer.integer_student import IntegerStudent
from qpd.runs.run_directory import RunDirectory, RunDirectoryError
from qpd.runs.training_run import TrainingRun, is_training
from qpd.student_files.quantized import load_integer_student
from qpd.teachers import load_teacher

Games = dict[int, np.ndarray]  # by seed


@dataclass
class MeasuredCells:
    """Returns of all games by cell and seed, those of floats of each width, and what was left out.

    `env_id` is the task of all of them.
    """

    env_id: str
    cells: dict[Cell, Games] = field(default_factory=lambda: defaultdict(dict))
    floats: dict[int, Games] = field(default_factory=lambda: defaultdict(dict))
    notes: list[str] = field(default_factory=list)

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
    """Read the runs and trainings in `paths`, or in folders of them.

    Raises RunDirectoryError where nothing was measured, for two tasks, and for two runs of one cell
    and seed; StudentFileError.
    """
    found: MeasuredCells | None = None
    places: dict[tuple[Any, int], Path] = {}
    for path in find_runs(paths):
        env_id, entries, notes = _training(path) if is_training(path) else _run(path)
        found = found or MeasuredCells(env_id)
        if env_id != found.env_id:
            raise RunDirectoryError(
                [f"{path}: plays {env_id}, others {found.env_id}: select for one task at a time"],
                ErrorCode.COMMAND_LINE,
            )
        found.notes += notes
        for key, seed, games in entries:
            if (key, seed) in places and not isinstance(key, Cell):
                found.notes += _other_float(path, places[key, seed], games, found.floats[key][seed])
                continue
            if (key, seed) in places:
                raise RunDirectoryError(
                    [f"{path}: is {key} of seed {seed}, as {places[key, seed]} is"],
                    ErrorCode.COMMAND_LINE,
                )
            places[key, seed] = path
            if isinstance(key, Cell):
                found.cells[key][seed] = games
            else:
                found.floats[key][seed] = games
    if found is None or not found.cells:
        left_out = [] if found is None else found.notes
        raise RunDirectoryError(
            ["no controller was evaluated: `qpd evaluate RUN`", *left_out],
            ErrorCode.NOTHING_MEASURED,
        )
    return found


def _other_float(path: Path, first: Path, games: np.ndarray, its: np.ndarray) -> list[str]:
    """Return a note where the float of one width and seed has other games in another run.

    Students of several bits begin with the same float student, and play the same games with it.
    """
    if np.array_equal(games, its):
        return []
    return [f"{path}: its float student is not that of {first}, which is compared with"]


_Found = tuple[str, list[tuple[Cell | int, int, np.ndarray]], list[str]]


def _run(path: Path) -> _Found:
    """Return the student of a run: its integers, and its float where they were played."""
    run = RunDirectory.open(path, read_only=True)
    teacher, evaluations = run.manifest.teacher, run.manifest.evaluations
    if teacher is None or not run.quantized_file.is_file():
        raise RunDirectoryError([f"{path}: holds no student yet"], ErrorCode.RUN_PHASE_MISSING)
    cell = _cell_of(load_integer_student(run.quantized_file))
    if isinstance(cell, str):
        return teacher.env_id, [], [f"{path}: {cell}; left out"]
    entries: list[tuple[Cell | int, int, np.ndarray]] = []
    for name, key in (("qat", cell), ("distilled", cell.width)):
        # A float student that several cells were made from is one, and stands in its own run.
        if name == "distilled" and run.manifest.forked_from is not None:
            continue
        if name in evaluations:
            games = np.array(evaluations[name]["returns"])
            entries.append((key, run.recipe.seed, games))
    notes = [] if entries else [f"{path}: was not evaluated; left out"]
    return teacher.env_id, entries, notes


def _training(path: Path) -> _Found:
    """Return a controller, or the float twin of one, as it was played."""
    run = TrainingRun.open(path)
    settings, env_id = run.recipe.quantization, run.manifest.env_id
    if settings.controller is None:
        return env_id, [], [f"{path}: is no integer controller and no twin of one; left out"]
    evaluations = run.manifest.evaluations
    name = "qat" if "qat" in evaluations else "teacher"
    if name not in evaluations:
        return env_id, [], [f"{path}: was not evaluated; left out"]
    key: Cell | int | str
    if run.quantized_file.is_file():
        key = _cell_of(load_integer_student(run.quantized_file))
    else:
        key = max(load_teacher(path).hidden_widths)
    if isinstance(key, str):
        return env_id, [], [f"{path}: {key}; left out"]
    return env_id, [(key, run.recipe.seed, np.array(evaluations[name]["returns"]))], []


def _cell_of(student: IntegerStudent) -> Cell | str:
    """Return the cell of a student, or why it is none."""
    widths, bits = set(student.architecture.hidden), {layer.bits for layer in student.layers}
    if student.architecture.is_image:
        return "sees images, which have no input bits"
    if len(widths) != 1:
        return f"has hidden layers of {', '.join(map(str, sorted(widths)))}: not of one width"
    levels = {layer.levels for layer in student.layers}
    if len(bits) != 1 or levels != {2 ** next(iter(bits)) - 1}:
        return "has weights and activations of several bit widths: no core's"
    return Cell(next(iter(bits)), next(iter(widths)), student.input_bits)
