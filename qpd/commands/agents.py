"""Commands for agents: `qpd evaluate` and `qpd teacher ...`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qpd.commands.completion import complete_policy
from qpd.commands.environment_options import environment_wish
from qpd.commands.output import (
    AsJson,
    Device,
    EnvKwargs,
    EnvOption,
    FrameStack,
    Quiet,
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
    MAX_FILM_SECONDS,
    MAX_FRAMES,
    MAX_SEED,
    MAX_SHARPNESS,
)

if TYPE_CHECKING:
    from qpd.teachers import Teacher

teacher_app = typer.Typer(no_args_is_help=True, help="Agents to learn from.")


def evaluate(
    target: Annotated[str, typer.Argument(help="run directory, SB3 zip, zoo folder or hub id")],
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="policy of a run: teacher, distilled, ptq or qat",
            autocompletion=complete_policy,
        ),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_EPISODES, help="full games; default: the run's, or 50"),
    ] = None,
    acting: Annotated[
        str | None, typer.Option(help="auto, sample, epsilon or greedy; default: the run's")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="rate of random actions; default: the run's, or 0.01"),
    ] = None,
    sharpness: Annotated[
        float, typer.Option(max=MAX_SHARPNESS, help="factor on the logits when sampling, above 0")
    ] = 1.0,
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="SIGMA,...",
            help="noise on each feature, in its standard deviations: 0,0.1,0.5",
        ),
    ] = None,
    noise_like: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="what `--noise --json` printed for another policy, to have equal noise",
        ),
    ] = None,
    env: EnvOption = None,
    env_kwargs: EnvKwargs = None,
    wrapper: WrapperOption = None,
    frame_stack: FrameStack = None,
    vecnormalize: VecNormalize = None,
    max_frames: Annotated[
        int | None,
        typer.Option(min=4, max=MAX_FRAMES, help="cut games off after so many emulator frames"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_SEED, help="seed of the games; default: the run's, or 0"),
    ] = None,
    gif: Annotated[Path | None, typer.Option(help="also film a game")] = None,
    gif_seconds: Annotated[
        float, typer.Option(min=1.0, max=MAX_FILM_SECONDS, help="length of the film")
    ] = 40.0,
    device: Device = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Play full games with a teacher, or with any student of a run.

    Without options a run's policy plays as its recipe says, and the result is recorded in its
    manifest.
    """
    from qpd import api
    from qpd.runs.observation_noise import with_deviations
    from qpd.runs.target import load_target

    sigmas = _sigmas(noise)
    if noise_like is not None and noise is None:
        raise TargetError(
            f"--noise-like {noise_like}: give --noise 0,0.1,0.5 as well", ErrorCode.COMMAND_LINE
        )
    wish = environment_wish(env, env_kwargs, wrapper, frame_stack)
    loaded = load_target(target, policy, wish, device or "auto", vecnormalize)
    if noise is not None:
        loaded = with_deviations(loaded, progress(quiet), noise_like)
    if gif is not None:
        from qpd.evaluation.video import check_filmable, record_gif

        check_filmable(gif, loaded.environment)
    results = [
        api.evaluate(
            loaded if place == 0 else replace(loaded, notes=()),  # said once
            episodes=episodes,
            seed=seed,
            acting=acting,
            epsilon=epsilon,
            sharpness=sharpness,
            noise=sigma,
            max_frames=max_frames,
            progress=not quiet,
        )
        for place, sigma in enumerate(sigmas)
    ]
    result = results[0]
    if gif is not None:
        record_gif(gif, loaded.policy, loaded.environment, result.acting, result.seed, gif_seconds)
    report = {"target": target, "policy": loaded.label, "env_id": loaded.env_id}
    played = list(zip(sigmas, results, strict=True))
    if as_json and noise is None:
        print_json(report | {"return": result.to_json()})
        return
    if as_json:
        noisy = [{"sigma": sigma, "return": each.to_json()} for sigma, each in played]
        quantized = loaded.teacher is not None and loaded.teacher.quantization is not None
        settings = {"deviations": loaded.deviations, "quantized": quantized}
        print_json(report | settings | {"noise": noisy})
        return
    if quiet:
        return
    header = ["policy", "environment", "return", "95% interval", "episodes", "acting", "seed"]
    rows = []
    for sigma, each in played:
        low, high = each.interval()
        row = [loaded.label, loaded.env_id, f"{each.mean:.1f}", f"[{low:.1f}, {high:.1f}]"]
        row += [str(len(each.returns)), str(each.acting), str(each.seed)]
        rows.append(row if sigma is None else [f"{sigma:g}", *row])
    print_table(header if noise is None else ["noise", *header], rows)


def _sigmas(noise: str | None) -> list[float | None]:
    """Return the numbers of `--noise`, or None alone. Raises TargetError."""
    if noise is None:
        return [None]
    try:
        found = [float(part) for part in noise.split(",")]
    except ValueError:
        raise TargetError(
            f"--noise {noise:.40}: expected numbers with commas, such as 0,0.1,0.5",
            ErrorCode.COMMAND_LINE,
        ) from None
    if not all(0.0 <= each <= 10.0 for each in found):
        raise TargetError(
            f"--noise {noise:.40}: must be from 0 to 10 standard deviations",
            ErrorCode.COMMAND_LINE,
        )
    return list(found)


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
        "environment": "; ".join(loaded.notes) or loaded.env_id,
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
    hidden = ("return", "random_return", "warnings")
    shown = {key: value for key, value in info.items() if value is not None and key not in hidden}
    rows = [[key, str(value)] for key, value in shown.items()]
    if episodes:
        for name, played in (("return", result), ("a random policy's", random)):
            low, high = played.interval()
            text = f"{played.mean:.1f} [{low:.1f}, {high:.1f}] over {episodes} games"
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
