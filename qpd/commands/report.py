"""`qpd report`: one run as one HTML page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from qpd.commands.output import AsJson, Quiet, print_json, print_text, progress
from qpd.errors.codes import ErrorCode

MAP_STATES = 1000


def report(
    run: Annotated[Path, typer.Argument(help="run directory")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="an .html file; default RUN/report/index.html"),
    ] = None,
    devices: Annotated[
        list[Path] | None,
        typer.Option("--devices", help="a file from qpd bench; repeat for more devices"),
    ] = None,
    video: Annotated[bool, typer.Option(help="film the student's game and the teacher's")] = True,
    video_seconds: Annotated[
        float, typer.Option(min=1.0, max=120.0, help="seconds of each game to film")
    ] = 20.0,
    umap: Annotated[bool, typer.Option(help="map states by the student's last layer")] = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a run as one HTML page that loads nothing from the network."""
    from qpd.analysis.report.html_page import render_page, report_sections
    from qpd.analysis.report.inputs import ReportError, read_inputs, require_packages
    from qpd.bench.device_record import read_device_record
    from qpd.files.atomic import write_text

    require_packages()
    path = output or run / "report" / "index.html"
    if path.suffix not in (".html", ".htm"):
        raise ReportError(f"-o {path}: a report is an .html file", ErrorCode.COMMAND_LINE)
    if output is not None and not path.parent.is_dir():
        raise ReportError(f"-o {path}: there is no folder {path.parent}", ErrorCode.FILE_SYSTEM)
    place = path.parent if path.parent.is_dir() else run
    if run.is_dir() and not os.access(place, os.W_OK):  # said before a game is filmed
        raise ReportError(f"{place}: may not be written; give -o FILE.html", ErrorCode.FILE_SYSTEM)
    records = [read_device_record(file) for file in devices or []]
    seconds = video_seconds if video else None
    inputs = read_inputs(run, records, seconds, MAP_STATES if umap else 0, progress(quiet).note)
    sections = report_sections(inputs)
    page = render_page(inputs, sections)
    if output is None:
        path.parent.mkdir(exist_ok=True)
    write_text(path, page)
    size = len(page.encode("utf-8"))
    if as_json:
        left_out = {s.key: s.left_out for s in sections if s.left_out is not None}
        shown = [s.key for s in sections if s.left_out is None]
        print_json({"file": str(path), "bytes": size, "sections": shown, "left_out": left_out})
        return
    if quiet:
        return
    for section in sections:
        if section.left_out is not None:
            print_text(f"{section.title}: {section.left_out}")
    print(f"{path}: {size:,} bytes, self-contained")
