"""`qpd teacher ...`: describe agents, fetch them, and write their cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from qpd.commands.environment_options import environment_wish
from qpd.commands.output import (
    AsJson,
    EnvKwargs,
    EnvOption,
    FrameStack,
    VecNormalize,
    WrapperOption,
    print_json,
    print_table,
    print_warnings,
    progress,
)
from qpd.commands.teacher_card import teacher_card
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.recipe.bounds import (
    MAX_EPISODES,
    MAX_SEED,
)

if TYPE_CHECKING:
    from qpd.teachers import Teacher

teacher_app = typer.Typer(no_args_is_help=True, help="Agents to learn from.")


@teacher_app.command("info")
def teacher_info(
    source: Annotated[str, typer.Argument(help="SB3 zip, zoo folder, hub id or 'embedded'")],
    episodes: Annotated[
        int, typer.Option(min=0, max=MAX_EPISODES, help="games to play; 0 = none")
    ] = 20,
    env: EnvOption = None,
    env_kwargs: EnvKwargs = None,
    wrapper: WrapperOption = None,
    frame_stack: FrameStack = None,
    vecnormalize: VecNormalize = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="root of all randomness")] = 0,
    as_json: AsJson = False,
) -> None:
    """Describe an agent, and measure its mean return beside a random policy's.

    Warns if it plays no better.
    """
    from qpd.actions import Box
    from qpd.phases.first_games import random_warning
    from qpd.runs.target import load_target, play, play_randomly

    wish = environment_wish(env, env_kwargs, wrapper, frame_stack)
    loaded = load_target(source, "teacher", wish, "auto", vecnormalize)
    teacher = loaded.teacher
    assert teacher is not None
    info: dict[str, Any] = {
        "source": source,
        "algo": teacher.algo,
        "env_id": loaded.env_id,
        "environment": str(loaded.environment),
        "notes": list(loaded.notes),
        "observation_shape": list(teacher.observation_shape),
        "actions": str(teacher.actions),
        "squash": teacher.actions.squash if isinstance(teacher.actions, Box) else None,
        "hidden_widths": list(teacher.hidden_widths),
        "activation": teacher.activation,
        "num_parameters": teacher.num_parameters,
        "actor_parameters": teacher.actor_parameters,
        "normalizes_observations": teacher.normalization is not None,
        "vecnormalize": _normalization(teacher),
        "wrappers": str(teacher.files.environment),
        "arithmetic": str(teacher.quantization or "float"),
        "sha256": teacher.sha256,
        "training": _training(source),
    }
    if episodes:
        with progress() as display:
            result = play(loaded, display, episodes=episodes, seed=seed)
            random = play_randomly(loaded, display, episodes=episodes, seed=seed)
        info["return"] = result.to_json()
        info["random_return"] = random.to_json()
        warning = random_warning(teacher, result, random)
        info["warnings"] = [] if warning is None else [warning]
    warnings = info.get("warnings", [])
    if as_json:
        print_json(info)
        print_warnings(warnings)
        return
    hidden = ("return", "random_return", "warnings", "notes")
    shown = {key: value for key, value in info.items() if value is not None and key not in hidden}
    rows = [[key, str(value)] for key, value in shown.items()]
    rows += [["note", line] for line in loaded.notes]
    if episodes:
        for name, played in (("return", result), ("a random policy's", random)):
            interval = f" {played.shown_interval()}" if episodes > 1 else ""
            text = f"{played.mean:.1f}{interval} over {episodes} game{'s' * (episodes > 1)}"
            rows.append([name, f"{text}, {played.acting}"])
    print_table(["teacher", ""], rows)
    print_warnings(warnings)


def _training(source: str) -> str | None:
    """Say that an agent is in the run directory of its training."""
    from qpd.runs.training_run import TrainingRun, is_training

    if not is_training(source):
        return None
    phase = TrainingRun.open(source).phase
    return f"by `qpd train`, {phase.state}, {phase.timesteps:,} steps (`qpd show {source}`)"


def _normalization(teacher: Teacher) -> str:
    """Say which file normalizes the observations, or where one was looked for."""
    files = teacher.files
    if files.vec_normalize is not None:
        used = (
            "" if teacher.normalization is not None else ", which leaves observations as they are"
        )
        return f"{files.vec_normalize}{used}"
    if teacher.is_image or not files.side_folders:
        return "none"
    return f"none in {', '.join(map(str, files.side_folders))}; --vecnormalize FILE gives one"


@teacher_app.command("pull")
def teacher_pull(
    repo: Annotated[str, typer.Argument(help="hub id, for example sb3/ppo-BreakoutNoFrameskip-v4")],
    as_json: AsJson = False,
) -> None:
    """Fetch an agent from the Hugging Face hub into its cache."""
    from qpd.teachers.sources.hub import download_agent

    agent = download_agent(repo)
    if as_json:
        print_json({"repo": repo, "path": str(agent.archive)})
        return
    print(agent.archive)


@teacher_app.command(
    "train",
    hidden=True,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def teacher_train(context: typer.Context) -> None:
    """Say where this command has gone."""
    words = " ".join(["qpd train", *context.args[:2]])
    raise TargetError(
        f"`qpd teacher train` is called `qpd train` now: `{words}`; its -o is the run directory "
        "itself, and the same command resumes",
        ErrorCode.COMMAND_LINE,
    )


teacher_app.command("card")(teacher_card)
