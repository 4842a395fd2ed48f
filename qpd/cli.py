"""The command line: parse, call, print one table. The only module that imports all commands."""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated

import typer

from qpd.commands.analyze.app import analyze_app
from qpd.commands.bench import bench
from qpd.commands.crash import EXIT_CODE, crash_line
from qpd.commands.doctor import doctor
from qpd.commands.errors import asked_help, error_lines, print_errors
from qpd.commands.evaluate import evaluate
from qpd.commands.export import export
from qpd.commands.fpga import fpga
from qpd.commands.json_stdout import stdout_for_json
from qpd.commands.once import OnceCommand
from qpd.commands.push import push
from qpd.commands.quantize import quantize
from qpd.commands.report import report
from qpd.commands.run import distill, finetune, run
from qpd.commands.select import select
from qpd.commands.show import recipes, show
from qpd.commands.sweep import sweep, sweep_cell, sweep_group
from qpd.commands.teacher import teacher_app
from qpd.commands.train import train
from qpd.errors.codes import ErrorCode
from qpd.errors.termination import Terminated
from qpd.errors.user_error import with_code
from qpd.machine.interrupts import Interrupts
from qpd.version import __version__

app = typer.Typer(
    name="qpd",
    help="Distil a Stable-Baselines3 agent into a small quantized student, and measure it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# Commands that keep checkpoints, or the games that were played.
_RESUMING = ("train", "run", "distill", "quantize", "finetune", "sweep")
_GOES_ON = "rerun the same command; it goes on from its last checkpoint, if any"
app.add_typer(teacher_app, name="teacher")
for command in (
    *(train, run, distill, quantize, finetune, evaluate, show),
    *(select, sweep, export, fpga, bench, report, push, recipes, doctor),
):
    app.command()(command)
for hidden in (sweep_cell, sweep_group):
    app.command(hidden=True)(hidden)
app.add_typer(analyze_app, name="analyze")
for group in (app, teacher_app, analyze_app):
    for registered in group.registered_commands:
        registered.cls = OnceCommand


def _version(value: bool) -> None:
    if value:
        print(f"qpd {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


def _one_line(message: Warning | str, *_: object, **__: object) -> str:
    plain = re.sub(r"\x1b\[\d+m", "", str(message))  # gymnasium's are coloured
    return f"warning: {' '.join(plain.split()).removeprefix('WARN: ')}\n"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a user's errors are one line each on stderr, with exit code 2.

    An error that nobody foresaw is one line, too, with exit code 70 and its traceback in a file.
    """
    from qpd.machine.allocator import keep_freed_memory

    keep_freed_memory()
    warnings.formatwarning = _one_line  # libraries' and ours: no path and no line of source
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    words = sys.argv[1:] if arguments is None else arguments
    if (place := next((i for i, word in enumerate(words) if not word), None)) is not None:
        # Of an unset shell variable; as a path it would be the working directory.
        after = f"after {words[place - 1]}: " if place else ""
        print_errors([with_code(f"{after}an empty word; give a value", ErrorCode.COMMAND_LINE)])
        sys.exit(2)
    errors: dict[signal.Signals, Callable[[], BaseException]] = {
        signal.SIGINT: KeyboardInterrupt,
        signal.SIGTERM: lambda: Terminated(128 + signal.SIGTERM),
    }
    with Interrupts(errors) as interrupts:
        try:
            try:
                with stdout_for_json() if "--json" in words else nullcontext():
                    code = app(arguments, prog_name="qpd", standalone_mode=False)
            finally:  # what is said below is said to the end
                interrupts.over()
            if code == 130:  # what typer makes of Ctrl-C
                raise KeyboardInterrupt
            sys.exit(code if isinstance(code, int) else 0)
        except (KeyboardInterrupt, typer.Abort):
            resumes = bool(words) and words[0].partition("-")[0] in _RESUMING  # sweep-cell, too
            print("interrupted" + (f": {_GOES_ON}" if resumes else ""), file=sys.stderr)
            sys.exit(130)
        except SystemExit:
            raise
        except BaseException as error:  # a Rust extension's panic is no Exception
            lines = error_lines(error)
            if lines is None:
                print_errors([crash_line(error, words)])
                sys.exit(EXIT_CODE)
            if (text := asked_help(error)) is not None:
                print(text)
                sys.exit(2)
            print_errors(lines)
            sys.exit(2)


if __name__ == "__main__":
    main()
