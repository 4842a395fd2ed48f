"""`qpd analyze precision`: what formats and loss scales cost, and where gradients lie."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from qpd.commands.analysis_extra import analysis_extra
from qpd.commands.analysis_output import Draw, Output, print_analysis, save_analysis
from qpd.commands.output import AsJson


def analyze_precision(
    runs: Annotated[list[Path], typer.Argument(help="run directories, or folders of them")],
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Tabulate formats and loss scales with returns and skipped updates; draw gradients."""
    with analysis_extra():
        from qpd.analysis.precision.exponent_histograms import exponent_figure, exponent_table
        from qpd.analysis.precision.precision_table import (
            NOTES,
            PHASES,
            precision_rows,
            precision_table,
            shown_precisions,
        )
        from qpd.analysis.runs.run_frame import find_runs
        from qpd.runs.counted_gradients import PhaseGradients
        from qpd.runs.run_directory import RunDirectory

        rows = precision_rows(runs)
        table = precision_table(rows)
        counted: dict[tuple[str, str], PhaseGradients] = {}
        figures: dict[str, Draw] = {}
        for path in find_runs(runs):
            run = RunDirectory.open(path, read_only=True)
            found: dict[str, PhaseGradients] = {}
            for name in PHASES.values():
                each = PhaseGradients.read(run.exponents_file(name))
                found |= {} if each is None else {name: each}
            counted.update({(path.name, name): each for name, each in found.items()})
            if found:
                figures[f"gradients-{path.name}"] = partial(exponent_figure, found)
        tables = {
            "precision": table,
            "precision_runs": rows.drop(columns="returns", errors="ignore"),
        }
        if counted:
            tables["gradient_exponents"] = exponent_table(counted)
        written = save_analysis(tables, figures, output)
    notes = [*NOTES] if len(table) else ["no run here has finished a phase that trains"]
    if not counted:
        notes.append(
            "no gradients were counted: distill.gradient_exponents and finetune's say when"
        )
    print_analysis(tables, shown_precisions(table), notes, written, as_json)
