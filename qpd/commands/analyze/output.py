"""Write the tables and figures of `qpd analyze`, and print them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qpd.commands.output import print_json, print_table, print_text
from qpd.files.atomic import to_plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from qpd.analysis.returns.return_rows import ShownTable

Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="folder for PNG, SVG and CSV files")
]
Draw = Callable[[], "Figure"]


def save_analysis(
    tables: Mapping[str, DataFrame], figures: Mapping[str, Draw], output: Path | None
) -> list[Path]:
    """Draw everything, then write it into `output`; do neither if that is None."""
    from qpd.analysis.figure_style import paper_style, save_figure, save_tables

    if output is None:
        return []
    with paper_style():
        drawn = {name: draw() for name, draw in figures.items()}
        written = save_tables(tables, output)
        for name, figure in drawn.items():
            written += save_figure(figure, output, name)
    return written


def print_analysis(
    tables: Mapping[str, DataFrame],
    shown: Sequence[ShownTable],
    notes: Sequence[str],
    written: Sequence[Path],
    as_json: bool,
) -> None:
    """Print all `tables` as JSON, or the tables `shown`, the notes and the files."""
    if as_json:
        plain = {name: to_plain(table.to_dict("records")) for name, table in tables.items()}
        print_json({**plain, "notes": list(notes), "files": [str(path) for path in written]})
        return
    for table in shown:
        print_text(table.title)
        print_table(table.header, table.rows)
    for note in notes:
        print_text(note)
    print_files(written)


def print_files(written: Sequence[Path]) -> None:
    """Print the files' names on one line, nothing if there are none."""
    if written:
        print(", ".join(str(path) for path in written))
