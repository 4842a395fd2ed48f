"""Read what controllers of ours showed on the tasks of Kresse & Lampert (arXiv 2511.07046)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qpd.analysis.paper.judged_claims import Found
from qpd.analysis.paper.published_controllers import TASKS
from qpd.analysis.paper.results import MIN_EPISODES
from qpd.analysis.paper.verdict import ClaimTest, Side, claim_test, claim_test_of_every
from qpd.analysis.runs.run_frame import find_runs
from qpd.analysis.selection.measured_cells import (
    Games,
    MatchedGames,
    MeasuredCells,
    Route,
    cell_of,
    mean_ratio,
    measured_routes,
    parity_of,
)
from qpd.analysis.selection.robustness import NoisyGames
from qpd.analysis.selection.rule import Cell
from qpd.errors.codes import ErrorCode
from qpd.files.json_input import read_json
from qpd.fpga.devices import DEVICES
from qpd.runs.run_directory import RunDirectoryError
from qpd.student_files.origin import student_origin
from qpd.student_files.quantized import load_integer_student

PART = "xc7a15t"  # the paper's
_ROUTABLE = 0.9  # of the LUTs


@dataclass(frozen=True)
class BuiltCore:
    """A run's core on the paper's part: its folder, task, bits and width, its fpga.json."""

    name: str
    env_id: str
    cell: Cell | None
    measured: dict[str, Any]

    @property
    def fits(self) -> bool | None:
        """Tell whether the part holds it; None where only placing could tell.

        The cells are Yosys' before placing, and a part that is all but full may not be routed.
        """
        keys = ("luts", "flip_flops", "block_rams", "dsps")
        if not DEVICES[PART].fits(*(self.measured[key] for key in keys)):
            return False
        return True if self.measured["luts"] <= _ROUTABLE * DEVICES[PART].luts else None

    def __str__(self) -> str:
        """Return what was measured in words."""
        its, part = self.measured, DEVICES[PART]
        luts = f"{its['luts']:,} LUTs before placing ({its['luts'] / part.luts:.0%})"
        task = TASKS.get(self.env_id.removesuffix("-v4"))
        beside = "" if task is None else f", the paper's {cell_words(task.chosen)} {task.cycles:,}"
        cycles = f"{its['layer_cycles']:,} cycles of the layers{beside}"
        return f"{self.env_id}, {self.name}: {luts}, {cycles}"


@dataclass(frozen=True)
class ControllerEvidence:
    """Hold what was measured of each route on the paper's tasks, of cores and of noisy games.

    `others` are trainings by DDPG, or without VecNormalize.
    """

    routes: list[MeasuredCells]
    cores: list[BuiltCore] = field(default_factory=list)
    noisy: Sequence[NoisyGames] = ()
    others: list[MeasuredCells] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """Return what was left out, and which unlike runs count as seeds of one cell."""
        return [note for found in [*self.routes, *self.others] for note in found.notes]

    @classmethod
    def of(cls, paths: Sequence[Path], noisy: Sequence[NoisyGames] = ()) -> ControllerEvidence:
        """Read the runs in `paths`, and take games under noise.

        Raises what `measured_routes` does, and RunDirectoryError for other tasks.
        """
        routes = [each for each in measured_routes(paths) if task_of(each) in TASKS]
        if not routes:
            raise RunDirectoryError(
                [f"none of the paper's tasks: {', '.join(f'{name}-v4' for name in TASKS)}"],
                ErrorCode.NOTHING_MEASURED,
            )
        cores = []
        for path in find_runs(paths):
            file = path / "exports" / PART / "fpga.json"
            if file.is_file():
                student = path / "quantized.safetensors"
                cell = cell_of(load_integer_student(student))
                known = cell if isinstance(cell, Cell) else None
                env_id = str(student_origin(student).get("env_id"))
                cores.append(BuiltCore(path.name, env_id, known, _read_measured(file)))
        usual = [each for each in routes if each.route.is_usual]
        return cls(usual, cores, noisy, [each for each in routes if each not in usual])

    def twin(self, route: Route, **changes: Any) -> MeasuredCells | None:
        """Return what was measured of a route that differs in `changes` alone."""
        wanted = replace(route, **changes)
        found = (each for each in [*self.routes, *self.others] if each.route == wanted)
        return next(found, None)


def _read_measured(file: Path) -> dict[str, Any]:
    """Return what `qpd fpga` measured. Raises RunDirectoryError for any other file."""
    numbers = ("luts", "flip_flops", "block_rams", "dsps", "layer_cycles", "observations")
    try:
        found = read_json(file)
        whole = all(type(found[key]) in (int, float) for key in numbers)
        whole = whole and isinstance(found["folding"], str)
    except (OSError, ValueError, LookupError, TypeError):
        whole = False
    if not whole:
        raise RunDirectoryError(
            [f"{file}: is not what `qpd fpga` writes; delete it, or run `qpd fpga` again"],
            ErrorCode.RUN_DAMAGED,
        )
    return dict(found)


def task_of(found: MeasuredCells) -> str:
    """Return the paper's name of a task, `Hopper` of Hopper-v4; -v5 ones are other tasks."""
    name, _, version = found.route.env_id.rpartition("-")
    return name if version == "v4" else found.route.env_id


def has_parity(games: Games, found: MeasuredCells) -> bool:
    """Tell whether a cell is at parity with the widest float, by the paper's parity of the task."""
    return parity_of(games, found.widest_floats, TASKS[task_of(found)].parity)[0]


def ratio_test(pairs: Sequence[MatchedGames], bound: float, side: Side) -> ClaimTest:
    """Test whether the mean of the pairs' ratios, seed by seed, lies on its `side` of `bound`.

    A single training of a handful of games decides nothing.
    """
    sides = [games for pair in pairs for games in (pair.first, pair.second)]
    alone = [len(np.unique(games)) for games in sides if len(games) == 1]
    if min(alone, default=MIN_EPISODES) < MIN_EPISODES:
        return ClaimTest(1.0, 1.0)
    found = claim_test(mean_ratio(pairs), bound, side)
    return replace(found, of_one_training=any(pair.are_of_one_training for pair in pairs))


def cell_words(cell: Cell | None) -> str:
    """Return a cell as the paper's Table 1 has it: core, width, input bits."""
    return "none at parity" if cell is None else f"{cell.core}, {cell.width}, {cell.inputs}"


def found_by_every(tests: Sequence[ClaimTest], said: Sequence[str], by: str) -> Found:
    """Return the verdict of every test together; without any, `by` what would measure it."""
    return Found("; ".join(said), claim_test_of_every(tests)) if tests else Found(by)


def ratio_words(pairs: Sequence[MatchedGames]) -> str:
    """Return the mean of the pairs' ratios with its interval."""
    found = mean_ratio(pairs)
    if found is None:
        return "no ratio"
    low, high = found.interval()
    seeds = min(len(pair.seeds) for pair in pairs)
    return f"{found.value:.2f} [{low:.2f}, {high:.2f}]" + (f" ({seeds} seeds)" if seeds > 1 else "")


class ClaimParts:
    """The tests of a claim of several parts, which is judged where all were measured."""

    def __init__(self, *names: str) -> None:
        self._names, self._said = names, list[str]()
        self._tests: list[list[ClaimTest]] = [[] for _ in names]

    def add(self, part: int, tests: Sequence[ClaimTest], said: str) -> None:
        """Add tests of a part, and their numbers in words."""
        self._tests[part] += tests
        self._said.append(said)

    def found(self, by: str) -> Found:
        """Return all numbers, and the verdict; `by` is what would measure the claim."""
        if not self._said:
            return Found(by)
        missing = [name for name, tests in zip(self._names, self._tests, strict=True) if not tests]
        if missing:
            return Found("; ".join([*self._said, f"not measured: {', '.join(missing)}"]))
        return found_by_every([test for tests in self._tests for test in tests], self._said, by)
