"""`qpd analyze robustness`: which policy keeps its return under noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qpd.commands.analyze.extra import analysis_extra
from qpd.commands.analyze.output import Output, print_analysis, save_analysis
from qpd.commands.output import AsJson


def analyze_robustness(
    files: Annotated[
        list[Path],
        typer.Argument(help="what `qpd evaluate TARGET --noise 0,0.1,0.5 --json` printed"),
    ],
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Show returns over noise on observations, and what of them each policy keeps."""
    with analysis_extra():
        from qpd.analysis.selection.robustness import (
            NOTES,
            read_noisy_games,
            robustness,
            robustness_figure,
            robustness_tables,
            unequal_noise,
        )

        played = read_noisy_games(files)
        table = robustness(played)
        tables = {"robustness": table}
        written = save_analysis(tables, {"robustness": lambda: robustness_figure(table)}, output)
    print_analysis(
        tables, robustness_tables(table), [*NOTES, *unequal_noise(played)], written, as_json
    )
