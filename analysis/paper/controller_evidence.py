"""Read what controllers of ours showed on the tasks of Kresse & Lampert (arXiv 2511.07046)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qpd.analysis.paper.judged_claims import Found
from qpd.analysis.paper.published_controllers import TASKS
from qpd.analysis.paper.verdict import ClaimTest, claim_test_of_every, mean_of_ratios
from qpd.analysis.returns.mean_bootstrap import ScorePair
from qpd.analysis.runs.run_frame import find_runs
from qpd.analysis.selection.measured_cells import (
    Games,
    MeasuredCells,
    Route,
    cell_of,
    matched,
    measured_routes,
)
from qpd.analysis.selection.robustness import NoisyGames
from qpd.analysis.selection.rule import Cell, edge_of
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
                cores.append(BuiltCore(path.name, env_id, known, read_json(file)))
        usual = [each for each in routes if each.route.is_usual]
        return cls(usual, cores, noisy, [each for each in routes if each not in usual])

    def twin(self, route: Route, **changes: Any) -> MeasuredCells | None:
        """Return what was measured of a route that differs in `changes` alone."""
        wanted = replace(route, **changes)
        found = (each for each in [*self.routes, *self.others] if each.route == wanted)
        return next(found, None)


def task_of(found: MeasuredCells) -> str:
    """Return the paper's name of a task, `Hopper` of Hopper-v4; -v5 ones are other tasks."""
    name, _, version = found.route.env_id.rpartition("-")
    return name if version == "v4" else found.route.env_id


def is_at_parity(games: Games, found: MeasuredCells) -> bool:
    """Tell whether the mean of a cell is at parity with the widest float's, of the same seeds.

    By the paper's parity of the task.
    """
    few, its = matched(games, found.widest_floats)
    return bool(few.mean() >= edge_of(its.mean(axis=1), TASKS[task_of(found)].parity))


def cell_words(cell: Cell | None) -> str:
    """Return a cell as the paper's Table 1 has it: core, width, input bits."""
    return "none at parity" if cell is None else f"{cell.core}, {cell.width}, {cell.inputs}"


def found_by_every(tests: Sequence[ClaimTest], said: Sequence[str], by: str) -> Found:
    """Return the verdict of every test together; without any, `by` what would measure it."""
    return Found("; ".join(said), claim_test_of_every(tests)) if tests else Found(by)


def ratio_words(pair: Sequence[ScorePair]) -> str:
    """Return the mean of the pairs' ratios with its interval."""
    found = mean_of_ratios(pair)
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
