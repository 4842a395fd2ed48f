"""`qpd analyze precision`: what formats and loss scales cost, and where gradients lie."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from qpd.commands.analyze.extra import analysis_extra
from qpd.commands.analyze.output import Draw, Output, print_analysis, save_analysis
from qpd.commands.output import AsJson
from qpd.errors.codes import ErrorCode


def analyze_precision(
    runs: Annotated[list[Path], typer.Argument(help="run directories, or folders of them")],
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Tabulate formats and loss scales with returns and skipped updates; draw gradients.

    Of students, and of trainings (`qpd train --precision`), these also by method and significand.
    """
    with analysis_extra():
        from qpd.analysis.precision.counted_runs import counted_runs
        from qpd.analysis.precision.exponent_histograms import exponent_figure, exponent_table
        from qpd.analysis.precision.precision_table import (
            NOTES,
            precision_rows,
            precision_table,
            shown_precisions,
        )
        from qpd.analysis.precision.training_figures import training_figures
        from qpd.analysis.precision.trainings import (
            curves_frame,
            read_trainings,
            shown_trainings,
            trainings_frame,
        )
        from qpd.analysis.runs.run_frame import find_runs
        from qpd.runs.run_directory import RunDirectoryError
        from qpd.runs.training_run import is_training

        found_runs = find_runs(runs)
        students = [path for path in found_runs if not is_training(path)]
        trainings = read_trainings(found_runs)
        rows = precision_rows(students)
        table = precision_table(rows)
        counted = counted_runs(found_runs)
        if not len(table) and not trainings and not counted:
            raise RunDirectoryError(
                ["no run here has finished a phase that trains, and no training was evaluated: "
                 "`qpd evaluate TRAINING`, of integer controllers with --policy qat"],
                ErrorCode.NOTHING_MEASURED,
            )  # fmt: skip
        figures: dict[str, Draw] = {
            f"gradients-{name}": partial(exponent_figure, phases)
            for name, phases in counted.items()
        }
        figures |= training_figures(trainings)
        tables = {}
        if students:
            tables["precision"] = table
            tables["precision_runs"] = rows.drop(columns="returns", errors="ignore")
        if trainings:
            tables["trainings"] = trainings_frame(trainings)
            tables["learning_curves"] = curves_frame(trainings)
        if counted:
            tables["gradient_exponents"] = exponent_table(counted)
        written = save_analysis(tables, figures, output)
        shown = [*shown_precisions(table), *shown_trainings(trainings)]
    notes = [*NOTES] if len(table) else []
    if left_out := len(found_runs) - len(students) - len(trainings):
        notes.append(
            f"trainings that are left out: {left_out}, not evaluated yet or only with options of "
            "their own: `qpd evaluate TRAINING`, of integer controllers with --policy qat"
        )
    if trainings:
        notes.append(
            "trainings: intervals over seeds (Student's t); a dash is one whose numbers were no "
            "longer finite, after so many agent steps"
        )
    if not counted:
        notes.append(
            "no gradients were counted: distill.gradient_exponents, finetune's and precision's say "
            "when"
        )
    print_analysis(tables, shown, notes, written, as_json)
