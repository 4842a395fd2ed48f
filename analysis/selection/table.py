"""Selections as tables: every step's cells, and what each rule chose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.returns.return_rows import ShownTable, number_or_dash
from qpd.analysis.selection.measured_cells import Games, MeasuredCells, parity_of, ratio_of
from qpd.analysis.selection.rule import (
    RULES,
    STEPS,
    WIDE,
    Cell,
    choose,
    edge_of,
    frequencies,
)
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError

if TYPE_CHECKING:
    from pandas import DataFrame

_STEP_NAMES = {"core": "core bits", "width": "width", "inputs": "input bits"}


def has_first_step(found: MeasuredCells) -> bool:
    """Tell whether a choice can begin: there is a cell of most width, input and output bits."""
    return any(_most(found).items() <= vars(cell).items() for cell in found.cells)


def _most(found: MeasuredCells) -> dict[str, int]:
    return {name: max((getattr(each, name) for each in found.cells), default=0) for name in WIDE}


def selections(found: MeasuredCells, share: float | None) -> tuple[DataFrame, DataFrame]:
    """Return the cells that rules looked at, and the choices.

    A cell has a row per rule and step: its mean return over seeds, their deviation, whether it is
    at parity (`parity_of`), the `edge` that decided, and its ratio to the float networks with a 95%
    interval. A choice has a row per rule and step, with `frequency`, how often it would be made
    with other seeds, and the `edge` of all float networks. Raises TargetError without `share` for a
    single float seed.
    """
    import pandas as pd

    base = found.widest_floats
    floats = _means(base)
    if share is None and len(floats) < 2:
        raise TargetError(
            "one float policy has no deviation over seeds: give more of its seeds, or with --share "
            "how much of its return counts as parity, for example 0.95",
            ErrorCode.NOTHING_MEASURED,
        )
    edge = float(edge_of(floats, share))
    parity = {cell: parity_of(games, base, share) for cell, games in found.cells.items()}
    passes = {cell: at_parity for cell, (at_parity, _) in parity.items()}
    scores = {cell: _mean_by_seed(games) for cell, games in found.cells.items()}
    cells: list[dict[str, Any]] = []
    choices: list[dict[str, Any]] = []
    for name, rule in RULES.items():
        steps = choose(passes, rule)
        if not steps[0].cells:
            named = ", ".join(f"{name} {value}" for name, value in _most(found).items())
            raise TargetError(
                f"no run has {named}, where the choice begins: the widest network with most bits",
                ErrorCode.NOTHING_MEASURED,
            )
        for step, frequency in zip(
            steps, frequencies(steps, scores, _mean_by_seed(base), rule, share), strict=True
        ):
            cells += [
                {"rule": name, "step": step.name, **_row(found, cell, base, parity)}
                for cell in step.cells
            ]
            chosen = None if step.chosen is None else getattr(step.chosen, step.name)
            choices.append(
                {"rule": name, "step": step.name, "chosen": chosen, "frequency": frequency,
                 "candidates": len(step.cells), "edge": edge,
                 "float": float(floats.mean()), "float_seeds": len(floats)}
            )  # fmt: skip
    return pd.DataFrame(cells), pd.DataFrame(choices)


def _row(
    found: MeasuredCells, cell: Cell, base: Games, parity: Mapping[Cell, tuple[bool, float]]
) -> dict[str, Any]:
    games = found.cells[cell]
    means = _means(games)
    ratio, low, high = ratio_of(games, base)
    return {
        **vars(cell),
        "seeds": len(games),
        "games": sum(map(len, games.values())),
        "mean": float(means.mean()),
        "sd": float(means.std(ddof=1)) if len(means) > 1 else np.nan,
        "at_parity": parity[cell][0],
        "edge": parity[cell][1],
        "ratio": ratio,
        "ratio_low": low,
        "ratio_high": high,
    }


def _means(games: Games) -> np.ndarray:
    return np.array(list(_mean_by_seed(games).values()))


def _mean_by_seed(games: Games) -> dict[int, float]:
    return {seed: float(games[seed].mean()) for seed in sorted(games)}


def selection_tables(
    found: MeasuredCells, share: float | None, cells: DataFrame, choices: DataFrame
) -> list[ShownTable]:
    """Tabulate `selections`: the paper's steps, then the choices of both rules."""
    header = ["step", "core", "width", "input", "seeds", "games", "return", "sd",
              "of float [95%]", "parity"]  # fmt: skip
    literal, first = cells[cells["rule"] == "paper"], choices.iloc[0]
    rows = [
        [
            _STEP_NAMES[row["step"]],
            *(str(row[name]) for name in (*STEPS, "seeds", "games")),
            f"{row['mean']:.1f}",
            number_or_dash(row["sd"], "{:.1f}"),
            _interval(row),
            _parity(row, first["edge"]),
        ]
        for _, row in literal.iterrows()
    ]
    seeds = f"{first['float_seeds']} seed{'s' if first['float_seeds'] > 1 else ''}"
    bound = "one deviation over seeds" if share is None else f"{1 - share:.0%}"
    title = (
        f"{found.route}: the float of width {max(found.floats)} returns {first['float']:.1f} "
        f"({seeds}); parity from {first['edge']:.1f} on, {bound} below it"
    )
    return [ShownTable(title, header, rows), _choices_table(choices)]


def _choices_table(choices: DataFrame) -> ShownTable:
    rows = [
        [
            row["rule"],
            _STEP_NAMES[row["step"]],
            "none at parity" if np.isnan(row["chosen"]) else f"{row['chosen']:.0f}",
            number_or_dash(row["frequency"], "{:.0%}"),
        ]
        for _, row in choices.astype({"chosen": float}).iterrows()
    ]
    return ShownTable("Chosen", ["rule", "step", "chosen", "of other seeds' choices"], rows)


def _parity(row: Any, edge: float) -> str:
    said = "yes" if row["at_parity"] else "no"
    # A cell without some of the floats' seeds is compared with those of its own.
    return said if np.isclose(row["edge"], edge) else f"{said}, from {row['edge']:.1f} on"


def _interval(row: Any) -> str:
    if np.isnan(row["ratio"]):
        return "-"
    return f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
