"""`qpd train`: an agent trained into a run directory, which goes on where it was interrupted."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from qpd.machine.description import cxx_compiler
from qpd.machine.device import choose_device
from qpd.numerics.numerics_record import record_numerics
from qpd.recipe.train_schema import TrainRecipe
from qpd.runs.progress import Progress
from qpd.runs.training_record import TrainingRecord
from qpd.runs.training_run import TrainingRun, check_place
from qpd.teachers.training.agent_training import AgentTraining, LearningFailedError


def train(recipe: TrainRecipe, folder: Path, progress: Progress) -> None:
    """Train an agent by `recipe` into `folder`, or go on with what is there.

    Whatever does not fit is refused before anything is written. A finished training is left as it
    is. Raises TeacherError, EnvironmentConfigError, RunDirectoryError or DeviceError, one line
    each; OSError.
    """
    # Where there is none, SB3 would train on the CPU without a word.
    device = choose_device(recipe.learning_device)
    check_place(folder, recipe)
    if _is_done(folder, recipe):
        return
    with (
        closing(AgentTraining(recipe, folder)) as training,
        TrainingRun.create(folder, recipe) as run,
    ):
        if run.phase.state != "done":
            now = record_numerics(
                device, cxx_compiler() is not None if training.may_compile else None
            )
            changed = run.record_arithmetic(now).differences(now)
            if changed and run.phase.timesteps:
                progress.warning(
                    f"resumes with {changed}: the agent then matches no other training"
                )
            if recipe.train.products == "bfloat16" and not now.bfloat16:
                progress.warning(
                    "train.products: this processor has no units for bfloat16, and multiplies it "
                    "up to 60 times as slowly as float32; expected float32 here"
                )
            _train(training, run, progress)


def _is_done(folder: Path, recipe: TrainRecipe) -> bool:
    if not (folder / "manifest.json").exists():
        return False
    with TrainingRun.create(folder, recipe) as run:
        agent = run.agent_file
        is_done = run.phase.state == "done" and agent is not None and agent.is_file()
        if is_done:  # a kill may have come between the end and this
            _finish_checkpoints(run)
    return is_done


def _train(training: AgentTraining, run: TrainingRun, progress: Progress) -> None:
    checkpoint = training.newest_checkpoint(run.path)
    steps, marks = (0, None) if checkpoint is None else training.marks(checkpoint)
    total = training.total_timesteps
    with TrainingRecord(run, total, progress, marks) as record:
        run.set_phase(
            state="running",
            failed_at=None,
            timesteps=steps,
            total_timesteps=total,
            num_parameters=training.num_parameters,
        )
        record.begin(steps)
        try:
            agent = training.learn(run.path, record, checkpoint)
        except LearningFailedError as error:
            run.set_phase(failed_at=error.timesteps)
            raise
    # Its files are on the disk now: a training that is done is never opened again.
    run.set_phase(state="done", timesteps=record.timesteps, agent=agent.name, **record.measured())
    _finish_checkpoints(run)


def _finish_checkpoints(run: TrainingRun) -> None:
    """Delete what only resuming needs: all of it, or the replay buffers if agents are kept."""
    place = run.checkpoints_folder
    for path in place.glob("*/replay") if run.recipe.train.keep_checkpoints else [place]:
        shutil.rmtree(path, ignore_errors=True)
