"""The command line: parse, call, print one table. The only module that imports all commands."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from qpd.commands.agents import evaluate, teacher_app
from qpd.commands.analyze import analyze_app
from qpd.commands.bench import bench
from qpd.commands.completion import complete_recipe, complete_setting
from qpd.commands.crash import EXIT_CODE, crash_line
from qpd.commands.doctor import doctor
from qpd.commands.environment_options import environment_overrides
from qpd.commands.errors import asked_help, error_lines, print_errors
from qpd.commands.export import export
from qpd.commands.fpga import fpga
from qpd.commands.output import (
    AsJson,
    Device,
    EnvKwargs,
    EnvOption,
    FrameStack,
    MovedTeacher,
    Quiet,
    VecNormalize,
    WrapperOption,
    print_json,
    print_run,
    print_table,
    progress,
)
from qpd.commands.push import push
from qpd.commands.quantize import quantize
from qpd.commands.report import report
from qpd.commands.select import select
from qpd.commands.sweep import sweep, sweep_cell, sweep_group
from qpd.commands.train import print_training, train
from qpd.errors.termination import Terminated
from qpd.version import __version__

app = typer.Typer(
    name="qpd",
    help="Distil a Stable-Baselines3 agent into a small quantized student, and measure it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(teacher_app, name="teacher")
for command in (
    *(train, quantize, evaluate, select, export, fpga),
    *(bench, report, push, sweep, doctor),
):
    app.command()(command)
for hidden in (sweep_cell, sweep_group):
    app.command(hidden=True)(hidden)
app.add_typer(analyze_app, name="analyze")

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="KEY=VALUE, for example distill.lr=1e-3", autocompletion=complete_setting
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", help="root of all randomness")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="run directory; default runs/NAME")
]
TeacherOption = Annotated[
    str | None,
    typer.Option("--teacher", help="SB3 zip, zoo folder or hub id, instead of the recipe's"),
]
RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        help="recipe file, or the name of a shipped one; default: as fits --teacher",
        autocompletion=complete_recipe,
    ),
]
RunArgument = Annotated[Path, typer.Argument(help="run directory")]


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


@app.command()
def run(
    recipe: RecipeArgument = None,
    set_: Overrides = None,
    seed: Seed = None,
    device: Device = None,
    output: Output = None,
    teacher: TeacherOption = None,
    vecnormalize: VecNormalize = None,
    env: EnvOption = None,
    env_kwargs: EnvKwargs = None,
    wrapper: WrapperOption = None,
    frame_stack: FrameStack = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Distil, quantize, finetune and evaluate; resume a run that was interrupted."""
    from qpd import api

    done = api.run(
        recipe,
        teacher=teacher,
        vecnormalize=vecnormalize,
        overrides=[*(set_ or ()), *environment_overrides(env, env_kwargs, wrapper, frame_stack)],
        seed=seed,
        device=device,
        output=output,
        progress=progress(quiet),
    )
    print_run(done.path, as_json, quiet)


@app.command()
def distill(
    recipe: RecipeArgument = None,
    set_: Overrides = None,
    seed: Seed = None,
    device: Device = None,
    output: Output = None,
    teacher: TeacherOption = None,
    vecnormalize: VecNormalize = None,
    env: EnvOption = None,
    env_kwargs: EnvKwargs = None,
    wrapper: WrapperOption = None,
    frame_stack: FrameStack = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Distil a full-precision student (phase 1); for several on one play, see `qpd sweep`."""
    from qpd import api

    done = api.distill(
        recipe,
        teacher=teacher,
        vecnormalize=vecnormalize,
        overrides=[*(set_ or ()), *environment_overrides(env, env_kwargs, wrapper, frame_stack)],
        seed=seed,
        device=device,
        output=output,
        progress=progress(quiet),
    )
    print_run(done.path, as_json, quiet)


@app.command()
def finetune(
    run_path: RunArgument,
    set_: Overrides = None,
    device: Device = None,
    teacher: MovedTeacher = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a quantized student further, quantization-aware (phase 3)."""
    from qpd import api

    done = api.finetune(
        run_path, overrides=set_, teacher=teacher, device=device, progress=progress(quiet)
    )
    print_run(done.path, as_json, quiet)


@app.command()
def show(run_path: RunArgument, as_json: AsJson = False) -> None:
    """Print a run's results: returns, parameters, bytes; or how a training is."""
    from qpd.runs.training_run import is_training

    if is_training(run_path):
        print_training(run_path, as_json)
    else:
        print_run(run_path, as_json)


@app.command()
def recipes(as_json: AsJson = False) -> None:
    """List the recipes that come with QPD."""
    from qpd.recipe.loading import list_recipes

    shipped = list_recipes()
    if as_json:
        print_json({"recipes": [{"name": r.name, "description": r.description} for r in shipped]})
        return
    print_table(["recipe", "what it does"], [[r.name, r.description] for r in shipped])


def _terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + number)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a user's errors are one line each on stderr, with exit code 2.

    An error that nobody foresaw is one line, too, with exit code 70 and its traceback in a file.
    """
    from qpd.machine.allocator import keep_freed_memory

    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = app(arguments, prog_name="qpd", standalone_mode=False)
        if code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except (KeyboardInterrupt, typer.Abort):
        print(
            "interrupted: rerun the same command; it goes on from its last checkpoint, if any",
            file=sys.stderr,
        )
        sys.exit(130)
    except SystemExit:
        raise
    except BaseException as error:  # a Rust extension's panic is no Exception
        lines = error_lines(error)
        if lines is None:
            words = sys.argv[1:] if arguments is None else arguments
            print_errors([crash_line(error, words)])
            sys.exit(EXIT_CODE)
        if (text := asked_help(error)) is not None:
            print(text)
            sys.exit(2)
        print_errors(lines)
        sys.exit(2)


if __name__ == "__main__":
    main()
