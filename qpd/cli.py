"""The command line: parse, call, print one table. The only file that knows everybody."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.exceptions import TyperException

from qpd import __version__
from qpd.recipe import Recipe, RecipeError

app = typer.Typer(
    name="qpd",
    help="Distil a Stable-Baselines3 agent into a small quantized student, and measure it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
teacher_app = typer.Typer(no_args_is_help=True, help="Agents to learn from.")
app.add_typer(teacher_app, name="teacher")
stderr = Console(stderr=True)
stdout = Console(width=None if sys.stdout.isatty() else 140)

Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE, for example distill.lr=1e-3")
]
Seed = Annotated[int | None, typer.Option("--seed", help="root of all randomness")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="run directory; default runs/<recipe name>")
]
TeacherOption = Annotated[
    str | None, typer.Option("--teacher", help="SB3 zip, zoo folder or hub id to use instead")
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout")]
RecipeArgument = Annotated[str, typer.Argument(help="recipe file, or the name of a shipped one")]
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
    recipe: RecipeArgument,
    set_: Overrides = None,
    seed: Seed = None,
    device: Device = None,
    output: Output = None,
    teacher: TeacherOption = None,
    as_json: AsJson = False,
) -> None:
    """Distil, quantize, finetune and evaluate; resumes where an earlier run was interrupted."""
    from qpd import trainer
    from qpd.run_evaluation import evaluate_run

    resolved = _recipe(recipe, set_, seed, device, teacher)
    with _session(resolved, output) as session:
        for phase in (trainer.distill, trainer.quantize, trainer.finetune, evaluate_run):
            phase(session)
        trainer.finish(session)
    _print_run(output or _default_output(resolved), as_json)


@app.command()
def distill(
    recipe: RecipeArgument,
    set_: Overrides = None,
    seed: Seed = None,
    device: Device = None,
    output: Output = None,
    teacher: TeacherOption = None,
    as_json: AsJson = False,
) -> None:
    """Phase 1: full-precision distillation."""
    from qpd import trainer

    resolved = _recipe(recipe, set_, seed, device, teacher)
    with _session(resolved, output) as session:
        trainer.distill(session)
    _print_run(output or _default_output(resolved), as_json)


@app.command()
def quantize(
    run_path: RunArgument, set_: Overrides = None, device: Device = None, as_json: AsJson = False
) -> None:
    """Phase 2: post-training quantization of a distilled student."""
    from qpd import trainer

    with _later_session(run_path, "quantize", set_, device) as session:
        trainer.quantize(session)
    _print_run(run_path, as_json)


@app.command()
def finetune(
    run_path: RunArgument, set_: Overrides = None, device: Device = None, as_json: AsJson = False
) -> None:
    """Phase 3: quantization-aware training of a quantized student."""
    from qpd import trainer

    with _later_session(run_path, "finetune", set_, device) as session:
        trainer.finetune(session)
    _print_run(run_path, as_json)


@app.command()
def evaluate(
    target: Annotated[str, typer.Argument(help="run directory, SB3 zip, zoo folder or hub id")],
    policy: Annotated[
        str | None, typer.Option("--policy", help="of a run: teacher, distilled, ptq or qat")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="full games")] = 50,
    acting: Annotated[str, typer.Option(help="auto, sample, epsilon or greedy")] = "auto",
    epsilon: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.01,
    sharpness: Annotated[float, typer.Option(help="factor on the logits when sampling")] = 1.0,
    env: Annotated[str | None, typer.Option(help="environment id, where nothing tells")] = None,
    max_frames: Annotated[int | None, typer.Option(help="emulator frames per game")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**30)] = 0,
    gif: Annotated[Path | None, typer.Option(help="write the first game as a GIF (Atari)")] = None,
    gif_seconds: Annotated[float, typer.Option(min=1.0)] = 40.0,
    as_json: AsJson = False,
) -> None:
    """Play full games with a teacher, or with any student of a run."""
    from qpd.evaluation_target import load_target, play

    loaded = load_target(target, policy, env)
    result = play(loaded, episodes, acting, epsilon, sharpness, max_frames, seed, _progress())
    if gif is not None:
        from qpd.video import record_gif

        record_gif(gif, loaded.policy, loaded.env_id, result.acting, seed, gif_seconds)
    report = {"target": target, "policy": loaded.label, "env_id": loaded.env_id}
    if as_json:
        _print_json(report | {"return": result.to_json()})
        return
    low, high = result.interval()
    header = ["policy", "environment", "return", "95% interval", "episodes", "acting", "seed"]
    interval = f"[{low:.1f}, {high:.1f}]"
    row = [loaded.label, loaded.env_id, f"{result.mean:.1f}", interval, str(episodes)]
    _print_table(header, [[*row, str(result.acting), str(seed)]])


@teacher_app.command("info")
def teacher_info(
    source: Annotated[str, typer.Argument(help="SB3 zip, zoo folder, hub id or 'embedded'")],
    episodes: Annotated[int, typer.Option(min=0, help="games to play; 0 = none")] = 20,
    env: Annotated[str | None, typer.Option(help="environment id, where nothing tells")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**30)] = 0,
    as_json: AsJson = False,
) -> None:
    """Tell what an agent is, and its mean return."""
    from qpd.evaluation_target import load_target, play

    loaded = load_target(source, None, env)
    teacher = loaded.teacher
    info: dict[str, Any] = {
        "source": source,
        "algo": teacher.algo,
        "env_id": loaded.env_id,
        "observation_shape": list(teacher.observation_shape),
        "num_actions": teacher.num_actions,
        "num_parameters": teacher.num_parameters,
        "normalizes_observations": teacher.normalization is not None,
        "sha256": teacher.sha256,
    }
    if episodes:
        result = play(loaded, episodes, "auto", 0.01, 1.0, None, seed, _progress())
        info["return"] = result.to_json()
    if as_json:
        _print_json(info)
        return
    rows = [[key, str(value)] for key, value in info.items() if key != "return"]
    if episodes:
        low, high = result.interval()
        text = f"{result.mean:.1f} [{low:.1f}, {high:.1f}] over {episodes} games, {result.acting}"
        rows.append(["return", text])
    _print_table(["teacher", ""], rows)


@teacher_app.command("pull")
def teacher_pull(
    repo: Annotated[str, typer.Argument(help="hub id, for example sb3/ppo-BreakoutNoFrameskip-v4")],
    as_json: AsJson = False,
) -> None:
    """Fetch an agent from the Hugging Face hub into its cache."""
    from teachers.hub import download_agent

    agent = download_agent(repo)
    if as_json:
        _print_json({"repo": repo, "path": str(agent.archive)})
        return
    print(agent.archive)


@teacher_app.command("train")
def teacher_train(
    algo: Annotated[str, typer.Argument(help="ppo, a2c, dqn or qrdqn")],
    env: Annotated[str, typer.Argument(help="environment id")],
    timesteps: Annotated[int | None, typer.Option(min=1, help="default: the zoo's")] = None,
    output: Annotated[Path, typer.Option("-o", "--output")] = Path("logs"),
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Annotated[str, typer.Option()] = "auto",
    as_json: AsJson = False,
) -> None:
    """Train an SB3 agent with the RL Zoo's hyperparameters (needs the extra `train`)."""
    from teachers import train_teacher

    folder = train_teacher(algo, env, output, timesteps, seed, device)
    if as_json:
        _print_json({"folder": str(folder)})
        return
    print(folder)


@app.command()
def show(run_path: RunArgument, as_json: AsJson = False) -> None:
    """Print what a run measured: returns, parameters, bytes."""
    _print_run(run_path, as_json)


@app.command()
def recipes(as_json: AsJson = False) -> None:
    """List the recipes that come with QPD."""
    from qpd.recipe_loading import list_recipes

    shipped = list_recipes()
    if as_json:
        _print_json({"recipes": [{"name": r.name, "description": r.description} for r in shipped]})
        return
    _print_table(["recipe", "what it does"], [[r.name, r.description] for r in shipped])


def _recipe(
    source: str,
    overrides: list[str] | None,
    seed: int | None,
    device: str | None,
    teacher: str | None,
) -> Recipe:
    """The recipe with all that the command line changes in it."""
    from qpd.recipe_loading import load_recipe

    lines = list(overrides or [])
    lines += [f"seed={seed}"] if seed is not None else []
    lines += [f"device={device}"] if device is not None else []
    lines += [f"teacher.source={teacher}"] if teacher is not None else []
    return load_recipe(source, lines)


def _default_output(recipe: Recipe) -> Path:
    return Path("runs") / recipe.name


@contextmanager
def _session(recipe: Recipe, output: Path | None) -> Iterator[Any]:
    """An open session for a recipe: run directory, teacher, progress display."""
    from qpd.run_directory import RunDirectory
    from qpd.session import prepare

    prepared = prepare(recipe, recipe.device)  # what does not fit leaves no directory behind
    with RunDirectory.create(output or _default_output(recipe), recipe) as opened:
        with _open(opened, prepared) as session:
            yield session


@contextmanager
def _later_session(
    path: Path, phase: str, overrides: list[str] | None, device: str | None
) -> Iterator[Any]:
    """An open session for a run directory, with changed settings for `phase` only."""
    from qpd.recipe_loading import override_recipe
    from qpd.run_directory import RunDirectory, RunDirectoryError
    from qpd.session import prepare

    with RunDirectory.open(path) as opened:
        needed = {"quantize": "distill", "finetune": "quantize"}[phase]
        if opened.phase(needed).state != "done":  # type: ignore[arg-type]
            raise RunDirectoryError(
                [f"{path}: {phase} needs a finished {needed}: run `qpd {needed}` first"]
            )
        if overrides:
            foreign = [line for line in overrides if not line.startswith((f"{phase}.",))]
            if foreign:
                raise RecipeError(
                    [f"--set {line}: `qpd {phase}` changes {phase}.* only" for line in foreign]
                )
            changed = override_recipe(opened.recipe, overrides)
            if opened.phase(phase).state != "pending" and changed != opened.recipe:  # type: ignore[arg-type]
                raise RunDirectoryError(
                    [f"{path}: {phase} has begun with other settings; copy the run, or start anew"]
                )
            opened.replace_recipe(changed)
        prepared = prepare(opened.recipe, device or opened.recipe.device)
        with _open(opened, prepared) as session:
            yield session


@contextmanager
def _open(opened: Any, prepared: Any) -> Iterator[Any]:
    from qpd.session import open_session

    with _progress() as progress:
        session = open_session(opened, prepared, progress)
        try:
            yield session
        finally:
            session.close()


def _progress() -> Any:
    from qpd.progress import RunProgress

    return RunProgress(stderr)


def _print_run(path: Path, as_json: bool) -> None:
    from analysis.run_table import run_summary, summary_caption, summary_rows

    summary = run_summary(path)
    if as_json:
        _print_json(summary)
        return
    header, rows = summary_rows(summary)
    _print_table(header, rows)
    print(summary_caption(summary))


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    from rich.table import Table

    table = Table(*header, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    stdout.print(table)


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, allow_nan=False))


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _error_lines(error: Exception) -> list[str] | None:
    """What to print for an error that is the user's to mend; None for one that is ours."""
    from qpd.checkpoint import CheckpointError
    from qpd.environment import EnvironmentConfigError
    from qpd.evaluation_target import TargetError
    from qpd.metrics_log import MetricsLogError
    from qpd.run_directory import RunDirectoryError
    from qpd.session import SessionError
    from qpd.student_files import StudentFileError
    from qpd.training_phases import TrainingError
    from teachers import TeacherError

    if isinstance(error, RecipeError | RunDirectoryError):
        return error.lines
    if isinstance(error, TyperException):
        return [" ".join(str(error).split())]
    ours = (
        CheckpointError,
        EnvironmentConfigError,
        MetricsLogError,
        StudentFileError,
        SessionError,
        TargetError,
        TrainingError,
        TeacherError,
    )
    return [str(error)] if isinstance(error, ours) else None


def main(arguments: list[str] | None = None) -> None:
    """Entry point: errors of the user's are one line each on stderr and exit code 2."""
    from qpd.allocator import keep_freed_memory

    keep_freed_memory()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = app(arguments, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted: the same command goes on from the last epoch", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        lines = _error_lines(error)
        if lines is None:
            raise
        if not sys.argv[1:]:  # what typer raises to show its help
            print("\n".join(lines))
            sys.exit(2)
        for line in lines:
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
