"""`qpd run`, and phases 1 and 3 on their own: `qpd distill` and `qpd finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qpd.commands.completion import complete_recipe, complete_setting
from qpd.commands.environment_options import environment_kwargs, environment_wrappers
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
    print_run,
    progress,
)
from qpd.recipe.bounds import MAX_SEED

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="KEY=VALUE, for example distill.lr=1e-3", autocompletion=complete_setting
    ),
]
FinetuneOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="of phase 3: KEY=VALUE, for example finetune.lr=1e-3",
        autocompletion=complete_setting,
    ),
]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, max=MAX_SEED, help="root of all randomness")
]
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
        env=env,
        env_kwargs=environment_kwargs(env_kwargs),
        wrappers=environment_wrappers(wrapper),
        frame_stack=frame_stack,
        overrides=set_,
        seed=seed,
        device=device,
        output=output,
        progress=progress(quiet),
    )
    print_run(done.path, as_json, quiet)


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
        env=env,
        env_kwargs=environment_kwargs(env_kwargs),
        wrappers=environment_wrappers(wrapper),
        frame_stack=frame_stack,
        overrides=set_,
        seed=seed,
        device=device,
        output=output,
        progress=progress(quiet),
    )
    print_run(done.path, as_json, quiet)


def finetune(
    run_path: RunArgument,
    set_: FinetuneOverrides = None,
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
