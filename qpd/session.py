"""A session: a run directory opened with its teacher, student architecture and environments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from qpd.acting import ActingRule, resolve_acting
from qpd.arithmetic import arithmetic_of
from qpd.checked_tensors import DamagedFileError
from qpd.checkpoint import (
    UNFIT,
    CheckpointError,
    checkpoint_file,
    load_needed_checkpoint,
    restore_metrics,
)
from qpd.environment import VectorEnvironment, environment_spec, make_vector_env
from qpd.error_codes import ErrorCode
from qpd.evaluation import EvaluationResult, evaluate
from qpd.manifest import TeacherRecord
from qpd.play_stream import PlayStream
from qpd.policy import Policy
from qpd.random_seeds import seed_for
from qpd.recipe import Recipe
from qpd.recipe_phases import TrainingPhase
from qpd.run_directory import RunDirectory
from qpd.student_files import MAX_PARAMETERS
from qpd.tracking.metric_sinks import MetricSink, check_sinks, open_sinks
from qpd.training_phases import EpochReport
from qpd.user_error import UserError
from students import StudentArchitecture, architecture_for
from teachers import Teacher, load_teacher


class Progress(Protocol):
    """Who shows what is going on."""

    def phase(self, name: str, total_epochs: int, first_epoch: int) -> None:
        """A training phase begins (or goes on after `first_epoch` epochs)."""

    def filling(self, done: int, total: int) -> None:
        """The memory is being filled."""

    def batch(self, done: int, total: int, loss: float, samples_per_second: float) -> None:
        """Samples drawn in this epoch, of how many."""

    def epoch(self, report: EpochReport, label: str = "") -> None:
        """An epoch of the student called `label` is over."""

    def episodes(self, what: str, done: int, total: int) -> None:
        """Episodes of an evaluation that are finished."""

    def note(self, text: str) -> None:
        """Say one line."""


class SessionError(UserError, ValueError):
    """Teacher, environment, student or device do not fit together; one line says how."""

    code = ErrorCode.TEACHER_WRONG_ENVIRONMENT


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one. Raises SessionError for a device that is not there."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name):
        raise SessionError(
            f"device {name}: must be auto, cpu, cuda or cuda:N", ErrorCode.COMMAND_LINE
        )
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SessionError(
            f"device {name}: this machine has no usable CUDA device; use cpu or auto",
            ErrorCode.DEVICE_MISSING,
        )
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SessionError(
            f"device {name}: this machine has {torch.cuda.device_count()} CUDA devices, counted "
            "from 0; use one of them, cpu or auto",
            ErrorCode.DEVICE_MISSING,
        )
    return device


@dataclass
class Session:
    """A run directory with its teacher, student architecture and environments.

    `store` is where checkpoint and frames are: the run's own folder, or one that several students
    share; `label` tells them apart there.
    """

    run: RunDirectory
    recipe: Recipe
    teacher: Teacher
    env_id: str
    architecture: StudentArchitecture
    device: torch.device
    progress: Progress
    store: Path
    label: str = ""
    _stream: PlayStream | None = None
    _validation_env: VectorEnvironment | None = None
    _sinks: list[MetricSink] | None = None

    @property
    def temperature(self) -> float:
        """Tau of phase 1: the recipe's, else 0.01 for Q-values and 3 for an actor."""
        return phase_temperature(self.recipe.distill, self.teacher)

    def stream(self) -> PlayStream:
        """The play stream, built once: restored from the checkpoint, or with an empty memory."""
        if self._stream is None:
            frame_file = self.store / "replay.bin"
            saved = load_needed_checkpoint(self.store, self.run)
            size = frame_file.stat().st_size if frame_file.is_file() else None
            if saved is not None and size != saved[1]["stream"].get("frame_bytes"):
                raise CheckpointError.of(frame_file, "is missing or has another size", self.run)
            self._stream = PlayStream(self.recipe, self.teacher, self.env_id, frame_file)
            if saved is not None:
                self._restore_stream(self._stream, *saved)
        return self._stream

    def _restore_stream(
        self, stream: PlayStream, tensors: dict[str, Tensor], plain: dict[str, Any]
    ) -> None:
        # A rollout that was interrupted has overwritten what phase 3 with rewards never draws.
        draws_memory = plain["phase"] != "finetune" or self.recipe.finetune.reward is None
        try:
            stream.load_state_dict(tensors, plain["stream"])
            stream.memory.check_frames(drawn=draws_memory)
        except DamagedFileError as error:
            frame_file = self.store / "replay.bin"
            raise CheckpointError.of(frame_file, f"is damaged ({error})", self.run) from error
        except UNFIT as error:
            reason = f"does not fit ({error!r:.200})"
            raise CheckpointError.of(checkpoint_file(self.store), reason, self.run) from error

    def share(self, stream: PlayStream) -> None:
        """Draw from this stream, another session's or one's own."""
        self._stream = stream

    def acting_rule(self, sharpness: float = 1.0) -> ActingRule:
        """How evaluations act: the recipe's rule."""
        settings = self.recipe.evaluation
        return resolve_acting(
            settings.acting,
            is_actor_critic=self.teacher.has_actor_critic,
            is_atari=environment_spec(self.env_id).is_atari,
            epsilon=settings.epsilon,
            sharpness=sharpness,
        )

    def validate(self, policy: Policy) -> EvaluationResult:
        """Play the validation episodes: other games than those that are reported."""
        count = self.recipe.evaluation.validation_episodes
        if self._validation_env is None:
            self._validation_env = self.make_env(min(count, 64))
        return evaluate(
            policy,
            self._validation_env,
            count,
            self.acting_rule(),
            seed_for(self.recipe.seed, "validation"),
            lambda done: self.progress.episodes("validation", done, count),
        )

    def make_env(self, num_envs: int) -> VectorEnvironment:
        """A vector environment as the recipe describes it."""
        settings = self.recipe.environment
        return make_vector_env(
            self.env_id,
            num_envs,
            num_threads=settings.num_threads,
            max_frames=settings.max_frames,
        )

    def sinks(self) -> list[MetricSink]:
        """Where numbers go besides metrics.csv, opened when first asked for; raises SinkError."""
        if self._sinks is None:
            self._sinks = open_sinks(self.run)
        return self._sinks

    def close(self) -> None:
        """Release sinks, environments and the run directory."""
        for resource in (*(self._sinks or []), self._stream, self._validation_env):
            if resource is not None:
                resource.close()
        self.run.close()


def phase_temperature(settings: TrainingPhase, teacher: Teacher) -> float:
    """Tau of Eq. 1: 0.01 for Q-values, 3 for an actor, unless the recipe says otherwise."""
    if settings.temperature is not None:
        return settings.temperature
    return 3.0 if teacher.has_actor_critic else 0.01


@dataclass(frozen=True)
class Prepared:
    """A recipe's teacher, environment, student and device, known to fit together."""

    teacher: Teacher
    env_id: str
    architecture: StudentArchitecture
    device: torch.device


def prepare(recipe: Recipe, device: str) -> Prepared:
    """Load the teacher and check that all fits; writes nothing.

    Raises SessionError, SinkError, TeacherError or EnvironmentConfigError (one line) where it does
    not.
    """
    check_sinks(recipe)
    settings = recipe.teacher
    teacher = load_teacher(settings.source, algo=settings.algo, env_id=settings.env)
    env_id = teacher.env_id  # the recipe's, by its present name
    if env_id is None:
        raise SessionError(
            f"teacher {settings.source} names no environment: set teacher.env in the recipe",
            ErrorCode.TEACHER_UNCLEAR,
        )
    spec = environment_spec(env_id)
    if spec.observation_shape != teacher.observation_shape:
        raise SessionError(
            f"teacher {teacher.source} reads observations of shape {teacher.observation_shape}, "
            f"environment {env_id} gives {spec.observation_shape}"
        )
    if spec.num_actions != teacher.num_actions:
        raise SessionError(
            f"teacher {teacher.source} has {teacher.num_actions} actions, "
            f"environment {env_id} {spec.num_actions}"
        )
    if recipe.finetune.reward is not None and teacher.normalization is not None:
        raise SessionError(
            f"finetune.reward: the critic of {teacher.source} was trained with VecNormalize, in "
            "other units than the rewards; remove finetune.reward",
            ErrorCode.RECIPE_CONTRADICTION,
        )
    chosen = choose_device(device)
    architecture = recipe_architecture(recipe, spec.observation_shape, spec.num_actions)
    teacher.to(chosen)
    return Prepared(teacher, env_id, architecture, chosen)


def open_session(
    run: RunDirectory,
    prepared: Prepared,
    progress: Progress,
    store: Path | None = None,
    label: str = "",
) -> Session:
    """Record the teacher in the manifest, and begin; RunDirectoryError if it is another one.

    `store` and `label` are for students that share a stream; see Session.
    """
    teacher = prepared.teacher
    run.record_teacher(
        TeacherRecord(
            source=teacher.source,
            sha256=teacher.sha256,
            algo=teacher.algo,
            env_id=prepared.env_id,
            num_parameters=teacher.num_parameters,
        )
    )
    now = arithmetic_of(prepared.device)
    changed = run.record_arithmetic(now).differences(now)
    if changed and any(record.state != "done" for record in run.manifest.phases.values()):
        progress.note(f"goes on with {changed}: its numbers will not be an undisturbed run's")
    store = store or run.checkpoint_folder
    restore_metrics(store, run, label)
    env_id, architecture, device = prepared.env_id, prepared.architecture, prepared.device
    return Session(run, run.recipe, teacher, env_id, architecture, device, progress, store, label)


def recipe_architecture(
    recipe: Recipe, observation_shape: tuple[int, ...], num_actions: int
) -> StudentArchitecture:
    """The student that the recipe describes, for these observations and actions."""
    student = recipe.student
    try:
        if student.size is not None:
            found = architecture_for(student.size, observation_shape, num_actions)
        else:
            found = StudentArchitecture(
                observation_shape, num_actions, student.conv_channels or (), student.hidden or ()
            )
    except ValueError as error:
        raise SessionError(
            f"recipe {recipe.name}: student: {error}", ErrorCode.STUDENT_MISFIT
        ) from error
    if found.num_parameters > MAX_PARAMETERS:  # its file would not be read again
        line = f"student: {found.num_parameters:,} parameters; at most {MAX_PARAMETERS:,}"
        raise SessionError(f"recipe {recipe.name}: {line}", ErrorCode.RECIPE_WRONG_VALUE)
    return found
