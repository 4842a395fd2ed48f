"""Which part of a controller needs its bits: all in few, or inputs, core or outputs alone.

Kresse & Lampert (arXiv 2511.07046), the first figure's question, of the widest networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qpd.analysis.figure_style import (
    NEUTRAL,
    PAGE_WIDTH,
    error_lengths,
    new_figure,
    say_below,
    series_look,
)
from qpd.analysis.selection.measured_cells import Games, MeasuredCells, ratio_of
from qpd.analysis.selection.rule import MOST_BITS, Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCOPES = ("all", "input", "core", "output")


def scope_cells(found: MeasuredCells, scope: str) -> dict[int, Games]:
    """Return the widest network's games by the bits of `scope`, all else in 8 bits.

    None where the widest is a float alone.
    """
    widest = max([0, *found.floats, *(cell.width for cell in found.cells)])
    chosen: dict[int, Games] = {}
    for cell, games in found.cells.items():
        bits = _bits(cell)
        few = set(bits.values()) if scope == "all" else {bits.pop(scope)}
        rest = set() if scope == "all" else set(bits.values()) - {MOST_BITS}
        if cell.width == widest and len(few) == 1 and not rest:
            chosen[few.pop()] = games
    return chosen


def _bits(cell: Cell) -> dict[str, int]:
    return {"input": cell.inputs, "core": cell.core, "output": cell.outputs}


def with_scopes(routes: Sequence[MeasuredCells]) -> list[MeasuredCells]:
    """Return those of which inputs or outputs alone were measured in few bits, and a float."""
    return [
        found
        for found in routes
        if found.floats and any(len(scope_cells(found, name)) > 1 for name in ("all", "output"))
    ]


def scopes_figure(routes: Sequence[MeasuredCells]) -> Figure:
    """Draw shares of the float's return over bits: a panel a route, a line a scope."""
    figure = new_figure(PAGE_WIDTH, 2.5)
    panels = figure.subplots(1, len(routes), sharey=True, squeeze=False)[0]
    for axes, found in zip(panels, routes, strict=True):
        axes.axhline(1.0, color=NEUTRAL, linewidth=0.8, linestyle=":")
        for place, scope in enumerate(SCOPES):
            points = [
                (bits, *ratio_of(games, found.widest_floats))
                for bits, games in sorted(scope_cells(found, scope).items())
            ]
            if not points:
                continue
            bits, share, low, high = np.array(points, float).T
            aside = 0.06 * (place - 1.5)
            errors = np.nan_to_num(error_lengths(share, low, high))
            axes.errorbar(
                bits + aside, share, errors, capsize=1.5, elinewidth=0.8, label=scope,
                **series_look(place),
            )  # fmt: skip
        axes.set_title(str(found.route), loc="left")
        axes.set_xlabel("bits of it, all else 8")
        axes.set_ylim(bottom=0.0)
    panels[0].set_ylabel("return / the float's")
    panels[-1].legend()
    say_below(figure, "bars: 95% intervals over trainings")
    return figure
