"""`qpd export`: a student as files that run without QPD."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qpd.commands.output import AsJson, Quiet, print_json, print_table, print_warnings
from qpd.export.formats import EXPORTERS


def complete_format(incomplete: str) -> list[str]:
    """Return the formats that begin so, for the shell to offer on Tab."""
    return [name for name in EXPORTERS if name.startswith(incomplete)]


def export(
    run: Annotated[Path, typer.Argument(help="run directory, or a quantized.safetensors")],
    format_: Annotated[
        str,
        typer.Option("--format", help=", ".join(EXPORTERS), autocompletion=complete_format),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="folder; default RUN/exports/FORMAT, or FORMAT-LAYOUT"),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option("--layout", help="arduino: --format c as an Arduino and PlatformIO library"),
    ] = None,
    multipliers: Annotated[
        str | None,
        typer.Option(
            help="systemverilog: how many work at once, or all: every layer at once; default one a "
            "neuron"
        ),
    ] = None,
    constants: Annotated[
        str | None,
        typer.Option(
            help="systemverilog: in block RAM: block-ram (all), weights, or fabric (none)"
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Export a quantized student, with golden vectors that prove it runs correctly."""
    from qpd.export.formats import write_export

    done = write_export(
        run, format_, output, layout=layout, multipliers=multipliers, constants=constants
    )
    sizes = done.sizes
    print_warnings(done.warnings)
    if as_json:
        print_json({"format": format_, "folder": str(done.folder), "files": sizes})
        return
    if quiet:
        return
    print_table(["file", "bytes"], [[name, f"{size:,}"] for name, size in sizes.items()])
    print(f"{done.folder}: its README.md shows how to test and use it")
