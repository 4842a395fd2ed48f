"""`qpd quantize`: a run's student (phase 2), or agents as they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qpd.commands.completion import complete_setting
from qpd.commands.environment_options import environment_wish
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
    print_text,
    print_warnings,
    progress,
)

if TYPE_CHECKING:
    from qpd.runs.played_environment import EnvironmentWish


def quantize(
    targets: Annotated[
        list[str],
        typer.Argument(
            help="a run directory, or agents: SB3 zips, RL Zoo folders, hub ids",
            metavar="RUN | AGENT...",
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="of a run: KEY=VALUE, for example quantize.weight_bits=4",
            autocompletion=complete_setting,
        ),
    ] = None,
    device: Device = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="a new run from the same distilled student; of agents: the folder of all results, "
            "default runs/quantized-agents",
        ),
    ] = None,
    bits: Annotated[
        str | None,
        typer.Option("--bits", help="of agents' weights: fp16, 2 to 8; default fp16,8"),
    ] = None,
    activations: Annotated[
        int | None,
        typer.Option("--activations", help="of agents: bits of activations, too, 2 to 8"),
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(
            "--scheme",
            help="of agents: affine, affine-literal, dorefa_scaled; default affine, with "
            "activations dorefa_scaled, QPD's integers",
        ),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option("--per", help="of agents: tensor, channel or column; default column"),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", help="of agents: paired games; default 100")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="of agents: seed of the games; default 0")
    ] = None,
    teacher: MovedTeacher = None,
    env: EnvOption = None,
    env_kwargs: EnvKwargs = None,
    wrapper: WrapperOption = None,
    frame_stack: FrameStack = None,
    vecnormalize: VecNormalize = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Quantize after training: a run's student (phase 2), or agents as they are, without one.

    Options that take one value of several take a list with commas, too: --bits fp16,8,6,4.
    """
    asked = {
        "bits": bits,
        "activations": activations,
        "scheme": scheme,
        "per": per,
        "episodes": episodes,
        "seed": seed,
        "env": env,
        "env-kwargs": env_kwargs,
        "wrapper": wrapper,
        "frame-stack": frame_stack,
        "vecnormalize": vecnormalize,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    of_a_run = {"set": set_, "device": device, "teacher": teacher}
    if _are_agents(targets, given, of_a_run):
        wish = environment_wish(env, env_kwargs, wrapper, frame_stack)
        _quantize_agents(targets, given, wish, output, quiet, as_json)
        return
    from qpd import api

    done = api.quantize(
        targets[0],
        overrides=set_,
        output=output,
        teacher=teacher,
        device=device,
        progress=progress(quiet),
    )
    print_run(done.path, as_json, quiet)


def _are_agents(targets: list[str], given: dict[str, Any], of_a_run: dict[str, Any]) -> bool:
    """Tell agents from a run; raise AgentQuantizationError for what belongs to the other."""
    from qpd.agents.errors import AgentQuantizationError

    if len(targets) == 1 and _is_run(targets[0], bool(given)):
        if given:
            raise AgentQuantizationError(
                f"{targets[0]}: is a run, and --{next(iter(given))} is for agents; a run takes "
                "--set quantize.KEY=VALUE"
            )
        return False
    for target in targets:
        if _is_run(target, is_agent_asked=True):
            raise AgentQuantizationError(
                f"{target}: is a run; quantize runs one at a time, apart from agents"
            )
    foreign = next((name for name, value in of_a_run.items() if value), None)
    if foreign is not None:
        raise AgentQuantizationError(
            f"--{foreign}: is for runs; agents take --bits, --activations, --scheme, --per"
        )
    return True


def _is_run(target: str, is_agent_asked: bool) -> bool:
    """Tell whether a target is a run's directory; what is neither is one unless agents are asked.

    A training's directory is an agent.
    """
    from qpd.runs.training_run import is_training
    from qpd.teachers import TeacherError
    from qpd.teachers.sources.teacher_source import comes_with_qpd, find_teacher_files

    path = Path(target)
    if (path / "manifest.json").exists():
        return not is_training(path)
    if is_agent_asked or comes_with_qpd(target):
        return False
    if not path.exists() and not Path(f"{path}.zip").is_file():
        # runs/NAME with a mistake in it looks like a hub id; the zoo's own are known.
        return not target.startswith("sb3/")
    try:
        find_teacher_files(path)
    except TeacherError:
        return True
    return False


def _quantize_agents(
    targets: list[str],
    given: dict[str, Any],
    wish: EnvironmentWish,
    output: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    from qpd import api
    from qpd.agents.precision import DEFAULT_BITS
    from qpd.agents.precision_table import HEADER
    from qpd.agents.suite import DEFAULT_SUITE

    table = api.quantize_agents(
        targets,
        bits=_parts(given.get("bits")) or DEFAULT_BITS,
        activations=given.get("activations"),
        schemes=_parts(given.get("scheme")),
        per=_parts(given.get("per")),
        episodes=given.get("episodes", 100),
        seed=given.get("seed", 0),
        env=wish.env_id,
        env_kwargs=wish.kwargs,
        wrappers=None if wish.wrappers is None else [each.to_json() for each in wish.wrappers],
        frame_stack=wish.frame_stack,
        vecnormalize=given.get("vecnormalize"),
        output=output or DEFAULT_SUITE,
        progress=progress(quiet),
    )
    if as_json:
        print_json(table.to_json())
    elif not quiet:
        print_table(HEADER, table.text_rows())
        print_text(table.caption())
    print_warnings(table.reasons())
    if table.reasons():  # as of a sweep of which a cell failed
        raise typer.Exit(1)


def _parts(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
