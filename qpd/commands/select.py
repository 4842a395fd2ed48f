"""`qpd select`: the smallest controller at parity, chosen from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qpd.commands.analyze.extra import analysis_extra
from qpd.commands.analyze.output import Draw, Output, print_analysis, save_analysis
from qpd.commands.output import AsJson


def select(
    runs: Annotated[
        list[Path],
        typer.Argument(help="runs of students, trainings of controllers, or folders of them"),
    ],
    share: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1.0,
            help="of the float return that counts as parity; default: one deviation over seeds "
            "below it",
        ),
    ] = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Choose core bits, width and input bits: the smallest that play as well as float networks.

    By the rule of Kresse and Lampert, and by one under which everything larger plays as well, too;
    with how often other seeds would choose the same.
    """
    with analysis_extra():
        from qpd.analysis.selection.figure import curve_of, steps_figure
        from qpd.analysis.selection.measured_cells import measured_cells
        from qpd.analysis.selection.table import selection_tables, selections

        found = measured_cells(runs)
        cells, choices = selections(found, share)
        tables = {"cells": cells, "choices": choices}
        curve, notes = curve_of(str(found.route), cells), list(found.notes)
        figures: dict[str, Draw] = {"selection": lambda: steps_figure([curve])}
        if cells["ratio"].isna().all():
            notes.append(
                "no shares of the float's return, and no figure: 0 or less divides nothing"
            )
            figures = {}
        written = save_analysis(tables, figures, output)
    print_analysis(tables, selection_tables(found, share, cells, choices), notes, written, as_json)
