"""Tables 1 to 3 of Kresse & Lampert (arXiv 2511.07046): chosen, their returns, their cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.paper.controller_evidence import (
    PART,
    BuiltCore,
    ControllerEvidence,
    cell_words,
    has_parity,
    task_of,
)
from qpd.analysis.paper.published_controllers import TASKS
from qpd.analysis.returns.return_rows import ShownTable, number_or_dash
from qpd.analysis.selection.measured_cells import Games, MeasuredCells, matched, ratio_of
from qpd.analysis.selection.rule import RULES, Cell, Step, choose
from qpd.fpga.devices import DEVICES

if TYPE_CHECKING:
    from pandas import DataFrame

_PAPER = "{}-v4, the paper"
_SEEDS, _GAMES = 10, 1000  # the paper's, of each cell


@dataclass(frozen=True)
class _Choice:
    """A line of Table 1: what the paper's rule and the stricter one choose, None if nothing."""

    task: str
    chosen: str
    if_all_larger_pass: str
    seeds: int


@dataclass(frozen=True)
class _Selected:
    """A line of Table 2: a cell's mean return beside the float's, and their ratio's interval."""

    task: str
    cell: str
    seeds: int
    games: int
    float_return: float
    cell_return: float
    ratio: float
    ratio_low: float = np.nan
    ratio_high: float = np.nan


@dataclass(frozen=True)
class _Built:
    """A line of Table 3; clocks from the last level of an observation to its accumulators."""

    task: str
    cell: str
    luts: int
    flip_flops: int
    block_rams: float
    dsps: int
    layer_cycles: int
    folding: str = ""
    observations: int = 0


def tables(evidence: ControllerEvidence) -> dict[str, DataFrame]:
    """Return the three tables as data: `choices`, `selected` and `cores`."""
    import pandas as pd

    rows: dict[str, Sequence[Any]] = {
        "choices": _choices(evidence),
        "selected": _selected(evidence),
        "cores": _cores(evidence),
    }
    return {name: pd.DataFrame([asdict(row) for row in its]) for name, its in rows.items()}


def shown_tables(found: dict[str, DataFrame]) -> list[ShownTable]:
    """Return `tables` as text; none without a row."""
    layouts = {
        "choices": (
            "Table 1: chosen, with the paper's parity on each task",
            ["task", "core, width, input", "if all larger pass, too", "seeds"],
            lambda row: [row["task"], row["chosen"], row["if_all_larger_pass"], str(row["seeds"])],
        ),
        "selected": (
            "Table 2: what is chosen, and what the paper chose, beside the float",
            ["task", "core, width, input", "seeds", "games", "float", "return", "of it [95%]"],
            lambda row: [
                row["task"], row["cell"], str(row["seeds"]), f"{row['games']:,}",
                f"{row['float_return']:,.0f}", f"{row['cell_return']:,.0f}", _ratio_words(row),
            ],
        ),
        "cores": (
            f"Table 3: cores on an {DEVICES[PART].title}",
            ["task", "core, width, input", "LUTs", "flip-flops", "block RAMs", "DSPs",
             "clocks of the layers", "folding", "checked"],
            lambda row: [
                row["task"], row["cell"], f"{row['luts']:,}", f"{row['flip_flops']:,}",
                f"{row['block_rams']:g}", str(row["dsps"]), f"{row['layer_cycles']:,}",
                row["folding"], number_or_dash(row["observations"] or np.nan, "{:,.0f}"),
            ],
        ),
    }  # fmt: skip
    return [
        ShownTable(title, header, [line(row) for row in found[name].to_dict("records")])
        for name, (title, header, line) in layouts.items()
        if len(found[name])
    ]


def _choices(evidence: ControllerEvidence) -> list[_Choice]:
    rows = []
    for name, task in TASKS.items():
        passes = {cell: mean >= task.edge for cell, mean in task.means.items()}
        strict = choose(passes, RULES["monotone"])[-1].chosen
        rows.append(
            _Choice(_PAPER.format(name), cell_words(task.chosen), cell_words(strict), _SEEDS)
        )
    for found in evidence.routes:
        if found.floats and found.cells:
            said = [
                cell_words(each[-1].chosen) if each[0].cells else "its first step is not measured"
                for each in _steps(found)
            ]
            fewest = min(len(games) for games in found.cells.values())
            rows.append(_Choice(str(found.route), said[0], said[1], fewest))
    return rows


def _steps(found: MeasuredCells) -> list[tuple[Step, ...]]:
    """Return the steps of each rule, the paper's first."""
    passes = {cell: has_parity(games, found) for cell, games in found.cells.items()}
    return [tuple(choose(passes, rule)) for rule in RULES.values()]


def _selected(evidence: ControllerEvidence) -> list[_Selected]:
    rows = []
    for name in dict.fromkeys(task_of(found) for found in evidence.routes):
        task = TASKS[name]
        mean = task.means[task.chosen]
        rows.append(
            _Selected(_PAPER.format(name), cell_words(task.chosen), _SEEDS, _GAMES,
                      task.float_mean, mean, mean / task.float_mean)
        )  # fmt: skip
        for found in evidence.routes:
            if task_of(found) != name or not found.floats or not found.cells:
                continue
            ours = _steps(found)[0][-1].chosen
            wanted = dict.fromkeys(cell for cell in (ours, task.chosen) if cell in found.cells)
            rows += [_row(found, cell, found.cells[cell]) for cell in wanted if cell is not None]
    return rows


def _row(found: MeasuredCells, cell: Cell, games: Games) -> _Selected:
    few, floats, _ = matched(games, found.widest_floats)
    share = ratio_of(games, found.widest_floats)
    return _Selected(str(found.route), cell_words(cell), len(few), few.shape[1],
                     float(floats.mean()), float(few.mean()), *share)  # fmt: skip


def _cores(evidence: ControllerEvidence) -> list[_Built]:
    rows = []
    for task_id in dict.fromkeys(each.env_id for each in evidence.cores):
        name = task_id.removesuffix("-v4")
        if name in TASKS:
            its = TASKS[name]
            rows.append(
                _Built(_PAPER.format(name), cell_words(its.chosen), its.luts, its.flip_flops,
                       its.block_rams, its.dsps, its.cycles, "FINN's")
            )  # fmt: skip
        rows += [_built(each) for each in evidence.cores if each.env_id == task_id]
    return rows


def _built(core: BuiltCore) -> _Built:
    cell = "of no one cell" if core.cell is None else cell_words(core.cell)
    names = [each.name for each in fields(_Built)][2:]
    return _Built(f"{core.env_id}, {core.name}", cell, *(core.measured[name] for name in names))


def _ratio_words(row: dict[str, float]) -> str:
    if np.isnan(row["ratio_low"]):
        return number_or_dash(row["ratio"], "{:.2f}")
    return f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
