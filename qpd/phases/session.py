"""A session: a run directory opened with its teacher, student architecture and environments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from qpd.environments.acting import ActingRule, resolve_acting
from qpd.environments.policy import Policy
from qpd.environments.registry import VectorEnvironment, environment_spec, make_vector_env
from qpd.evaluation.games import EvaluationResult, evaluate
from qpd.files.tensors import DamagedFileError
from qpd.numerics.numerics_record import record_numerics
from qpd.numerics.random_seeds import seed_for
from qpd.phases.preparation import Prepared
from qpd.recipe.schema import Recipe
from qpd.replay.play_stream import PlayStream
from qpd.runs.checkpoint import (
    UNFIT,
    CheckpointError,
    checkpoint_file,
    load_needed_checkpoint,
    restore_metrics,
)
from qpd.runs.manifest import TeacherRecord
from qpd.runs.run_directory import RunDirectory
from qpd.runs.sinks import MetricSink, open_sinks
from qpd.students import StudentArchitecture
from qpd.teachers import Teacher
from qpd.training.epochs import EpochReport


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
        return self.recipe.distill.temperature_for(self.teacher.has_actor_critic)

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
    now = record_numerics(prepared.device)
    changed = run.record_arithmetic(now).differences(now)
    if changed and any(record.state != "done" for record in run.manifest.phases.values()):
        progress.note(f"goes on with {changed}: its numbers will not be an undisturbed run's")
    store = store or run.checkpoint_folder
    restore_metrics(store, run, label)
    env_id, architecture, device = prepared.env_id, prepared.architecture, prepared.device
    return Session(run, run.recipe, teacher, env_id, architecture, device, progress, store, label)
