"""`qpd export`: a student as files that run without QPD."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from qpd.commands.output import AsJson, Quiet, print_json, print_table
from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean

# Imported only when asked for: some need packages that are extras.
EXPORTERS = {
    "c": "qpd.export.c.code:export_c",
    "onnx": "qpd.export.onnx_graph:export_onnx",
    "litert": "qpd.export.litert_flatbuffer:export_litert",
    "sb3": "qpd.export.sb3_zip:export_sb3",
    "bin": "qpd.export.c.binary:export_bin",
    "systemverilog": "qpd.export.systemverilog.code:export_systemverilog",
}
# Another arrangement of a format's files: (format, layout) -> exporter.
LAYOUTS = {("c", "arduino"): "qpd.export.c.arduino:export_arduino"}


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
    from qpd.export.bundle import (
        MANIFEST,
        ExportError,
        golden_vectors,
        load_export_source,
        write_bundle,
    )
    from qpd.export.systemverilog.code import constants_of, multipliers_of

    if format_ not in EXPORTERS:
        raise ExportError(
            f"--format {format_}: one of {', '.join(EXPORTERS)}{did_you_mean(format_, EXPORTERS)}",
            ErrorCode.COMMAND_LINE,
        )
    exporter, target = EXPORTERS[format_], format_
    if layout is not None:
        if (format_, layout) not in LAYOUTS:
            known = ", ".join(f"--format {of} --layout {name}" for of, name in LAYOUTS)
            raise ExportError(
                f"--layout {layout}: not a layout of --format {format_}; there is {known}",
                ErrorCode.COMMAND_LINE,
            )
        exporter, target = LAYOUTS[format_, layout], f"{format_}-{layout}"
    options: dict[str, Any] = {}
    if multipliers is not None:
        options["multipliers"] = multipliers_of(multipliers)
    if constants is not None:
        options["constants"] = constants_of(constants)
    if options and format_ != "systemverilog":
        raise ExportError(
            f"--{next(iter(options))}: --format {format_} has none; it is for --format "
            "systemverilog",
            ErrorCode.COMMAND_LINE,
        )
    source = load_export_source(run)
    files = resolve_name(exporter)(source, golden_vectors(source.student), **options)
    # Of another student than the run's last, such as ptq.safetensors, in a folder of its own.
    is_last = run.is_dir() or run.name == "quantized.safetensors"
    name = target if is_last else f"{run.stem}-{target}"
    folder = output or (run if run.is_dir() else run.parent) / "exports" / name
    write_bundle(folder, target, source, files)
    sizes = {name: (folder / name).stat().st_size for name in sorted([*files, MANIFEST])}
    if as_json:
        print_json({"format": format_, "folder": str(folder), "files": sizes})
        return
    if quiet:
        return
    print_table(["file", "bytes"], [[name, f"{size:,}"] for name, size in sizes.items()])
    print(f"{folder}: its README.md shows how to test and use it")
