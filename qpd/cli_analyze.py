"""`qpd analyze ...`: the paper's tables and figures from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qpd.cli_analyze_networks import add_network_commands
from qpd.cli_output import AsJson, print_json, print_table

analyze_app = typer.Typer(no_args_is_help=True, help="Tables and figures of what was measured.")
add_network_commands(analyze_app)


@analyze_app.callback()
def _analyze() -> None:
    pass


@analyze_app.command("fps")
def analyze_fps(
    devices: Annotated[
        list[Path], typer.Argument(help="what qpd bench, or the C export's make bench, wrote")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="folder for CSV and Markdown files")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forward passes per second by device and student size: the paper's Tables 1 and 2."""
    from analysis.fps_table import fps_tables, write_tables
    from qpd.bench.device_record import read_device_record

    tables = fps_tables([read_device_record(path) for path in devices])
    written = write_tables(tables, output) if output is not None else []
    if as_json:
        print_json({table.name: table.to_json() for table in tables})
        return
    for table in tables:
        print(table.caption)
        print_table(list(table.header), [table.cells(row) for row in table.rows])
    for note in {note: None for table in tables for note in table.notes}:
        print(note)
    if written:
        print(", ".join(str(path) for path in written))
