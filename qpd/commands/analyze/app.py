"""`qpd analyze ...`: the paper's tables and figures from what was measured."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from qpd.commands.analyze.extra import analysis_extra
from qpd.commands.analyze.networks import add_network_commands
from qpd.commands.analyze.output import (
    Draw,
    Output,
    print_analysis,
    print_files,
    save_analysis,
)
from qpd.commands.analyze.paper import analyze_paper
from qpd.commands.analyze.precision import analyze_precision
from qpd.commands.analyze.robustness import analyze_robustness
from qpd.commands.analyze.suites import add_suite_commands
from qpd.commands.output import AsJson, print_json, print_table, print_text, reason_lines
from qpd.errors.user_error import TargetError

analyze_app = typer.Typer(no_args_is_help=True, help="Tables and figures from measurements.")
add_network_commands(analyze_app)
add_suite_commands(analyze_app)
analyze_app.command("paper")(analyze_paper)
analyze_app.command("precision")(analyze_precision)
analyze_app.command("robustness")(analyze_robustness)

Runs = Annotated[list[Path], typer.Argument(help="run directories, or folders of them")]


@analyze_app.callback()
def _analyze() -> None:
    pass


@analyze_app.command("fps")
def analyze_fps(
    devices: Annotated[
        list[Path], typer.Argument(help="files from qpd bench, or from the C export's make bench")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="folder for CSV, Markdown, PNG and SVG files"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tabulate forward passes per second by device and student size: the paper's Tables 1 and 2."""
    from qpd.analysis.speed.fps_figure import fps_figure
    from qpd.analysis.speed.fps_table import fps_tables, write_tables
    from qpd.bench.device_record import read_device_record

    tables = fps_tables([read_device_record(path) for path in devices])
    notes = list({note: None for table in tables for note in table.notes})
    written = write_tables(tables, output) if output is not None else []
    if output is not None:
        try:
            with analysis_extra():
                written += save_analysis({}, {"fps": lambda: fps_figure(tables)}, output)
        except TargetError as error:  # the tables need no extra
            notes.append(f"not drawn: {error}")
    if as_json:
        print_json({table.name: table.to_json() for table in tables})
        return
    for table in tables:
        print_text(table.caption)
        print_table(list(table.header), [table.cells(row) for row in table.rows])
    for note in notes:
        print_text(note)
    print_files(written)


@analyze_app.command("returns")
def analyze_returns(runs: Runs, output: Output = None, as_json: AsJson = False) -> None:
    """Show returns by student size and teacher, and by lambda: the paper's Figures 4, 6 and 7."""
    with analysis_extra():
        from qpd.analysis.returns.lambda_returns import lambda_figure, lambda_returns
        from qpd.analysis.returns.policy_returns import policy_returns, returns_csv
        from qpd.analysis.returns.return_by_size import returns_by_size, returns_figure
        from qpd.analysis.returns.return_rows import returns_notes, returns_tables
        from qpd.analysis.runs.run_frame import run_frame

        frame = run_frame(runs)
        table = policy_returns(frame)
        shown, by_lambda = returns_by_size(table), lambda_returns(table)
        tables = {"returns": returns_csv(table)}
        figures: dict[str, Draw] = {"returns": lambda: returns_figure(shown)}
        if shown["relative"].notna().any():
            figures["returns_relative"] = lambda: returns_figure(shown, "relative")
        if len(by_lambda):
            tables["returns_by_lambda"] = returns_csv(by_lambda)
            figures["returns_by_lambda"] = lambda: lambda_figure(by_lambda)
        written = save_analysis(tables, figures, output)
    notes = returns_notes(frame, table)
    print_analysis(tables, returns_tables(table), notes, written, as_json)


@analyze_app.command("ablation")
def analyze_ablation(
    runs: Runs,
    baseline: Annotated[Path, typer.Option(help="the run that the others are compared with")],
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Print what each change of settings costs or gains, beside a baseline with the same seeds."""
    with analysis_extra():
        from qpd.analysis.returns.ablation import (
            NOTES,
            ablation_table,
            ablation_tables,
            left_out,
        )
        from qpd.analysis.runs.run_frame import run_frame

        frame = run_frame(runs)
        table = ablation_table(frame, baseline)
        notes = [*NOTES, *left_out(frame, table)]
        table = table.drop(columns="runs")
        written = save_analysis({"ablation": table}, {}, output)
    print_analysis({"ablation": table}, ablation_tables(table), notes, written, as_json)


@analyze_app.command("sizes")
def analyze_sizes(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="run directories, or folders of them; optional")
    ] = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Tabulate parameters and bytes of students by size and bits, beside the teacher's."""
    with analysis_extra():
        from qpd.analysis.runs.run_frame import run_frame
        from qpd.analysis.speed.size_table import (
            shown_sizes,
            size_figure,
            size_notes,
            size_table,
            sizes_left_out,
        )

        frame = run_frame(runs) if runs else None
        table = size_table(frame)
        notes = [*size_notes(table), *reason_lines(sizes_left_out(table, frame))]
        written = save_analysis({"sizes": table}, {"sizes": lambda: size_figure(table)}, output)
    print_analysis({"sizes": table}, [shown_sizes(table)], notes, written, as_json)


@analyze_app.command("pareto")
def analyze_pareto(
    runs: Runs,
    devices: Annotated[
        list[Path] | None,
        typer.Option("--devices", help="files from qpd bench; further .json files may follow"),
    ] = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Plot return against bytes and, with --devices, against microseconds per forward pass."""
    with analysis_extra():
        from qpd.analysis.returns.pareto import (
            pareto_bytes,
            pareto_figure,
            pareto_latency,
            pareto_left_out,
        )
        from qpd.analysis.returns.policy_returns import policy_returns, returns_csv
        from qpd.analysis.returns.return_rows import pareto_tables
        from qpd.analysis.runs.run_frame import run_frame
        from qpd.bench.device_record import read_device_record

        # A shell's *.json leaves all but the first file among the runs.
        more = [path for path in runs if devices and path.suffix == ".json"]
        records = [read_device_record(path) for path in [*(devices or []), *more]]
        returns = policy_returns(run_frame([path for path in runs if path not in more]))
        found = {"pareto_bytes": pareto_bytes(returns)}
        if records:
            found["pareto_latency"] = pareto_latency(returns, records)
        notes = [f"{name}: nothing to show" for name, table in found.items() if table.empty]
        notes += reason_lines(
            pareto_left_out(returns, found["pareto_bytes"], found.get("pareto_latency"))
        )
        found = {name: table for name, table in found.items() if len(table)}
        figures = {name: partial(pareto_figure, table) for name, table in found.items()}
        tables = {name: returns_csv(table) for name, table in found.items()}
        written = save_analysis(tables, figures, output)
        shown = [shown for table in found.values() for shown in pareto_tables(table)]
    print_analysis(tables, shown, notes, written, as_json)


@analyze_app.command("parity")
def analyze_parity(
    runs: Runs,
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="of (agent - random policy), to be kept")
    ] = 0.95,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Tabulate what students keep of their agents' play, and the smallest student at parity."""
    with analysis_extra():
        from qpd.analysis.returns.parity import (
            parity_notes,
            parity_table,
            parity_tables,
            smallest_at_parity,
        )

        table, left_out = parity_table(runs)
        tables = {"parity": table, "parity_smallest": smallest_at_parity(table, share)}
        written = save_analysis(tables, {}, output)
        notes = [*parity_notes(table, share), *reason_lines(left_out)]
    print_analysis(tables, parity_tables(table, share), notes, written, as_json)
