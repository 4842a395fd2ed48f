"""Output of the commands: tables or one JSON object on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qpd.commands.json_stdout import json_stream
from qpd.errors.terminal_text import printable

if TYPE_CHECKING:
    from rich.console import Console

Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N")]
VecNormalize = Annotated[
    Path | None,
    typer.Option("--vecnormalize", help="VecNormalize's statistics, if not beside the agent"),
]
MovedTeacher = Annotated[
    str | None,
    typer.Option("--teacher", help="of a run: where its agent is now, if it has moved"),
]
EnvOption = Annotated[
    str | None,
    typer.Option("--env", help="environment id, or module:id, if the agent's files don't name it"),
]
EnvKwargs = Annotated[
    list[str] | None,
    typer.Option(
        "--env-kwargs", help="KEY:VALUE that the environment is made with, YAML; repeatable"
    ),
]
WrapperOption = Annotated[
    list[str] | None,
    typer.Option(
        "--wrapper",
        help="module.Class around each environment, in place of the agent's own; repeatable, "
        "the innermost first; {module.Class: {KEY: VALUE}} with arguments",
    ),
]
FrameStack = Annotated[
    int | None,
    typer.Option("--frame-stack", min=1, max=64, help="observations seen at once (VecFrameStack)"),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="no progress and no tables; errors, warnings and --json remain"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout")]


def progress(quiet: bool = False) -> Any:
    """Return a progress display on stderr, one that shows warnings alone if `quiet`."""
    from qpd.runs.progress import TerminalProgress  # rich and torch: `--help` needs neither

    return TerminalProgress(console(quiet))


def console(quiet: bool = False) -> Console:
    """Return the console on stderr, one that swallows everything if `quiet`."""
    from rich.console import Console

    return Console(stderr=True, quiet=True, force_terminal=False) if quiet else Console(stderr=True)


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print a table on stdout."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(value, allow_nan=False), file=json_stream(), flush=True)


def print_text(text: str) -> None:
    """Print text that may come from a file, without the control codes a terminal would obey."""
    print("\n".join(printable(line) for line in text.split("\n")))


def reason_lines(left_out: dict[str, str]) -> list[str]:
    """Return a line per reason, with the runs it holds for: `left_out` maps a run to it."""
    runs: dict[str, list[str]] = {}
    for run, reason in left_out.items():
        runs.setdefault(reason, []).append(run)
    return [f"{', '.join(names)}: {reason}" for reason, names in runs.items()]


def print_run(path: Path, as_json: bool, quiet: bool = False) -> None:
    """Print a run directory's results: a table (nothing if `quiet`), or one JSON object.

    The run's warnings follow on stderr, where what was said earlier has scrolled away.
    """
    if quiet and not as_json:
        return
    from qpd.analysis.runs.run_table import (
        run_summary,
        summary_caption,
        summary_rows,
        summary_title,
        time_line,
    )

    summary = run_summary(path)
    if as_json:
        print_json(summary)
    else:
        print_text(summary_title(summary))
        header, rows = summary_rows(summary)
        print_table(header, rows)
        for line in (summary_caption(summary), time_line(summary)):
            if line:  # in phase 1 there is neither
                print_text(line)
        if summary["under_way"] is not None:
            print_text(summary["under_way"])
    if not quiet:
        print_warnings(summary["warnings"])


def print_warnings(warnings: Sequence[str]) -> None:
    """Print a line for each on stderr."""
    sys.stdout.flush()  # so that they come last where both go to one file
    for line in warnings:
        with suppress(OSError):
            print(printable(f"warning: {line}"), file=sys.stderr)
