"""`qpd evaluate`: full games of an agent, or of a student of a run."""

from __future__ import annotations

from collections.abc import Sequence
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
    progress,
)
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
    from qpd.evaluation.games import EvaluationResult
    from qpd.runs.target import Target


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
    teacher: Annotated[
        str | None,
        typer.Option(help="where the agent of a run is now, with --policy teacher"),
    ] = None,
    env: EnvOption = None,
    env_kwargs: EnvKwargs = None,
    wrapper: WrapperOption = None,
    frame_stack: FrameStack = None,
    vecnormalize: VecNormalize = None,
    max_frames: Annotated[
        int | None,
        typer.Option(
            min=4, max=MAX_FRAMES, help="cut games off after so many steps, of Atari frames"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_SEED, help="seed of the games; default: the run's, or 0"),
    ] = None,
    gif: Annotated[Path | None, typer.Option(help="also film a game")] = None,
    gif_seconds: Annotated[
        float | None,
        typer.Option(min=1.0, max=MAX_FILM_SECONDS, help="length of the film; default: 40"),
    ] = None,
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
    if gif is None and gif_seconds is not None:
        raise TargetError(f"--gif-seconds {gif_seconds:g}: needs --gif", ErrorCode.COMMAND_LINE)
    if gif is not None and noise is not None:
        raise TargetError("--gif: films a policy without noise", ErrorCode.COMMAND_LINE)
    wish = environment_wish(env, env_kwargs, wrapper, frame_stack)
    on = "auto" if device is None else device
    loaded = load_target(target, policy, wish, on, vecnormalize, teacher)
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
            progress=progress(quiet),
        )
        for place, sigma in enumerate(sigmas)
    ]
    if as_json:
        print_json(_report(target, loaded, sigmas, results))
    elif not quiet:
        _print(loaded, sigmas, results)
    if gif is not None:  # last: the games are told whatever becomes of the film
        seconds = 40.0 if gif_seconds is None else gif_seconds
        cap = loaded.max_frames if max_frames is None else max_frames
        rule, its_seed = results[0].acting, results[0].seed
        record_gif(gif, loaded.policy, loaded.environment, rule, its_seed, seconds, cap)


def _report(
    target: str,
    loaded: Target,
    sigmas: Sequence[float | None],
    results: Sequence[EvaluationResult],
) -> dict[str, Any]:
    """Return what `--json` prints; `sigmas` is [None] without noise."""
    report = {"target": target, "policy": loaded.label, "env_id": loaded.env_id}
    if sigmas == [None]:
        return report | {"return": results[0].to_json()}
    played = zip(sigmas, results, strict=True)
    noisy = [{"sigma": sigma, "return": each.to_json()} for sigma, each in played]
    agent = loaded.teacher
    quantized = loaded.label in ("ptq", "qat") or (
        agent is not None and agent.quantization is not None
    )
    settings = {"deviations": loaded.deviations, "quantized": quantized}
    return report | settings | {"noise": noisy}


def _print(
    loaded: Target, sigmas: Sequence[float | None], results: Sequence[EvaluationResult]
) -> None:
    header = ["policy", "environment", "return", "95% interval", "episodes", "acting", "seed"]
    rows = []
    for sigma, each in zip(sigmas, results, strict=True):
        row = [loaded.label, loaded.env_id, f"{each.mean:.1f}", each.shown_interval()]
        row += [str(len(each.returns)), str(each.acting), str(each.seed)]
        rows.append(row if sigma is None else [f"{sigma:g}", *row])
    print_table(header if sigmas == [None] else ["noise", *header], rows)


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
    if len(set(found)) < len(found):
        raise TargetError(f"--noise {noise:.40}: names a level twice", ErrorCode.COMMAND_LINE)
    if not all(0.0 <= each <= 10.0 for each in found):
        raise TargetError(
            f"--noise {noise:.40}: must be from 0 to 10 standard deviations",
            ErrorCode.COMMAND_LINE,
        )
    return list(found)
