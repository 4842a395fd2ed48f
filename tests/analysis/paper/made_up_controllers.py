"""Made-up games of controllers and of floats, four trainings of each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qpd.analysis.paper.controller_evidence import ControllerEvidence
from qpd.analysis.paper.controller_tables import shown_tables, tables
from qpd.analysis.selection.measured_cells import MeasuredCells, Route
from qpd.analysis.selection.rule import Cell


def games(mean: float, seeds: int = 4) -> dict[int, np.ndarray]:
    """40 games of each seed; seeds differ by a hundredth, games by a tenth."""
    spread = np.linspace(-0.1, 0.1, 40) * mean
    return {seed: mean * (1 + 0.01 * (seed - 1.5)) + spread for seed in range(seeds)}


def measured(env_id: str, cells: Mapping[Cell, float], base: float) -> MeasuredCells:
    found = MeasuredCells(Route(env_id))
    found.cells.update({cell: games(mean) for cell, mean in cells.items()})
    found.floats[256] = games(base)
    return found


def trained(
    algo: str, normalizes: bool, cells: Mapping[Cell, float], base: float | None, steps: int = 50
) -> MeasuredCells:
    found = MeasuredCells(Route("HalfCheetah-v4", None, algo, steps, normalizes))
    found.cells.update({cell: games(mean) for cell, mean in cells.items()})
    if base is not None:
        found.floats[256] = games(base)
    return found


def choices(evidence: ControllerEvidence) -> list[list[str]]:
    """The rows of Table 1 as they are printed."""
    return shown_tables(tables(evidence))[0].rows
