"""`qpd teacher card`: an agent with its model card, in a folder in the hub's layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qpd.commands.analyze.extra import analysis_extra
from qpd.commands.environment_options import environment_wish
from qpd.commands.output import (
    AsJson,
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
from qpd.evaluation.return_words import games_text
from qpd.recipe.bounds import MAX_EPISODES, MAX_SEED

if TYPE_CHECKING:
    from qpd.hub.teacher_folder import AgentFiles, TrainingRecord


def teacher_card(
    source: Annotated[str, typer.Argument(help="SB3 zip or zoo folder, as training left it")],
    output: Annotated[Path, typer.Option("-o", "--output", help="new folder")],
    episodes: Annotated[
        int, typer.Option(min=1, max=MAX_EPISODES, help="full games to play")
    ] = 200,
    half: Annotated[
        bool, typer.Option("--half", help="a small zip: float16, without the optimizer's state")
    ] = False,
    env: EnvOption = None,
    env_kwargs: EnvKwargs = None,
    wrapper: WrapperOption = None,
    frame_stack: FrameStack = None,
    vecnormalize: VecNormalize = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="seed of the games")] = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write an agent with its model card: returns, training curve, hyperparameters."""
    from qpd.hub.contents import check_new, folder_files
    from qpd.hub.teacher_card import teacher_card as card
    from qpd.hub.teacher_folder import read_agent, write_teacher_folder
    from qpd.runs.target import play

    check_new(output)
    wish = environment_wish(env, env_kwargs, wrapper, frame_stack)
    agent = read_agent(source, wish, vecnormalize)
    record = _training_record(agent)
    with progress(quiet) as display:
        page = write_teacher_folder(
            output,
            agent,
            half,
            lambda target: play(target, display, episodes=episodes, seed=seed),
            card,
            record,
        )
    sizes = folder_files(output)
    if as_json:
        measured = {"mean": page.measured.mean, "interval": [page.measured.low, page.measured.high]}
        print_json({"folder": str(output), "return": measured, "files": sizes})
        return
    if quiet:
        return
    print_table(["file", "bytes"], [[name, f"{size:,}"] for name, size in sizes.items()])
    print(f"{output}: return {page.measured.with_interval} over {games_text(episodes)}")


def _training_record(agent: AgentFiles) -> TrainingRecord | None:
    """Read the training curve; a package missing for it is noticed before the games, not after."""
    from qpd.hub.teacher_folder import TrainingRecord
    from qpd.runs.training_run import TrainingRun, is_training

    with analysis_extra("qpd teacher card"):
        import matplotlib  # noqa: F401

        from qpd.analysis.returns.training_curve import training_curve, write_training_curve

        folder = agent.files.archive.parent
        curve = training_curve(folder, agent.teacher.num_timesteps or None)
    if curve is None:
        return None
    training = TrainingRun.open(folder) if is_training(folder) else None
    return TrainingRecord(
        curve.resumed_at if training is None else tuple(training.phase.resumed_at),
        lambda folder, final: write_training_curve(
            folder, curve, (final.mean, final.low, final.high)
        ),
        training is not None and training.recipe.train.start_from is not None,
    )
