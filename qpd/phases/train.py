"""`qpd train`: an agent trained into a run directory, which goes on where it was interrupted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from qpd.actions import Box
from qpd.environments.errors import EnvironmentConfigError
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.integer.controller_student import controller_student
from qpd.machine.device import choose_device
from qpd.quantization.controller_layer import FrozenControllerLinear
from qpd.recipe.train_schema import TrainRecipe
from qpd.runs.played_environment import EnvironmentWish, environment_of
from qpd.runs.progress import Progress
from qpd.runs.training_record import TrainingRecord
from qpd.runs.training_run import TrainingRun, check_place
from qpd.student_files.origin import environment_origin
from qpd.student_files.quantized import save_integer_student
from qpd.teachers import Teacher, TeacherError, load_teacher
from qpd.teachers.archive.stored_controller import StoredController
from qpd.teachers.networks.actor import actor_modules
from qpd.teachers.training.agent_training import AgentTraining, LearningFailedError


def train(recipe: TrainRecipe, folder: Path, progress: Progress) -> None:
    """Train an agent by `recipe` into `folder`, or go on with what is there.

    Whatever does not fit is refused before anything is written. A finished training is left as it
    is. Raises TeacherError, EnvironmentConfigError, RunDirectoryError or DeviceError, one line
    each; OSError.
    """
    choose_device(recipe.device)  # where there is none, SB3 would train on the CPU without a word
    check_place(folder, recipe)
    if _is_done(folder, recipe):
        _write_integers(TrainingRun.open(folder))
        return
    with closing(AgentTraining(recipe)) as training, TrainingRun.create(folder, recipe) as run:
        if run.phase.state != "done":
            _train(training, run, progress)
        _write_integers(run)


def _is_done(folder: Path, recipe: TrainRecipe) -> bool:
    if not (folder / "manifest.json").exists():
        return False
    with TrainingRun.create(folder, recipe) as run:
        agent = run.agent_file
    return run.phase.state == "done" and agent is not None and agent.is_file()


def _write_integers(run: TrainingRun) -> None:
    """Write the integers of a controller, which exports take, unless they are there."""
    if run.recipe.quantization.core_bits is None or run.quantized_file.is_file():
        return
    teacher = load_teacher(run.path)
    stored, actions = teacher.quantization, teacher.actions
    if not isinstance(stored, StoredController):  # a twin that was never quantized
        return
    modules = actor_modules(teacher.network)
    layers = [each for each in modules if isinstance(each, FrozenControllerLinear)]
    assert isinstance(actions, Box)
    (width,) = teacher.observation_shape
    mean, deviation = np.zeros(width), np.ones(width)
    if (statistics := teacher.normalization) is not None:
        mean, deviation = statistics.mean, np.sqrt(statistics.var + statistics.epsilon)
    try:
        student = controller_student(layers, stored.quantizers(), mean, deviation, actions)
    except ValueError as error:
        raise TeacherError(
            f"{run.path}: no integers hold this controller: {error}", ErrorCode.TEACHER_SETTINGS
        ) from error
    about = {
        "recipe": run.recipe.name,
        "env_id": run.manifest.env_id,
        "phase": "train",
        "teacher": {"algo": teacher.algo, "sha256": teacher.sha256},
        "preprocessing": "none",
        "scheme": stored.grid,
        **_additions(teacher),
    }
    save_integer_student(run.quantized_file, student, about)


def _additions(teacher: Teacher) -> dict[str, Any]:
    """Return what a student's file says of the environment; nothing that only its user may ask."""
    try:
        return environment_origin(environment_of(teacher, EnvironmentWish()).source)
    except (EnvironmentConfigError, TargetError):
        return {}


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
        run.set_phase(
            state="done",
            timesteps=record.timesteps,
            agent=agent.name,
            **record.measured(),
        )
    training.finish_checkpoints(run.path)
