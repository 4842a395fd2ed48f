"""A student's run directory at work: what a phase is given besides the play."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from qpd.actions import Discrete
from qpd.environments.registry import environment_spec
from qpd.machine.description import cxx_compiler
from qpd.numerics.numerics_record import record_numerics
from qpd.phases.play import Play
from qpd.phases.preparation import Prepared, prepare, recipe_architecture
from qpd.phases.validation import Validation
from qpd.recipe.schema import Recipe
from qpd.replay.memory import ReplayMemory
from qpd.runs.checkpoint import restore_metrics
from qpd.runs.manifest import TeacherRecord
from qpd.runs.progress import Progress
from qpd.runs.run_directory import RunDirectory
from qpd.runs.sinks import MetricSink, open_sinks

_SHARED_STORE = "stream"
LEGACY_TEMPERATURE = 0.01  # of Q-values in runs that recorded none


@dataclass
class StudentRun:
    """A run directory, what its recipe asked for, the games that validate it, its metric sinks.

    `label` tells students apart that share a play; it is empty for a student alone.
    """

    run: RunDirectory
    prepared: Prepared
    validation: Validation
    label: str = ""
    _sinks: list[MetricSink] | None = field(default=None, repr=False)

    @property
    def recipe(self) -> Recipe:
        """The run's resolved recipe."""
        return self.run.recipe

    @property
    def temperature(self) -> float:
        """Tau of phase 1: the recipe's, else the actions', else what the labels' entropy asks for.

        The last is recorded in the manifest when the memory has been filled.
        """
        asked = self.recipe.distill.temperature
        if asked is None:
            asked = self.prepared.teacher.actions.temperature
        if asked is None:
            asked = self.run.phase("distill").metrics.get("temperature")
        return float(LEGACY_TEMPERATURE if asked is None else asked)

    @property
    def finetune_temperature(self) -> float:
        """Tau of phase 3: the recipe's, else the actions', else phase 1's."""
        asked = self.recipe.finetune.temperature
        if asked is None:
            asked = self.prepared.teacher.actions.temperature
        return self.temperature if asked is None else asked

    def choose_temperature(self, memory: ReplayMemory) -> None:
        """Record tau of phase 1 where it depends on the labels that the memory was filled with."""
        actions, settings = self.prepared.teacher.actions, self.recipe.distill
        if settings.temperature is None and isinstance(actions, Discrete) and actions.has_values:
            found = actions.temperature_for(memory.labels(), settings.label_entropy)
            self.run.set_phase("distill", self.run.phase("distill").state, temperature=found)

    def output_scale(self, memory: ReplayMemory) -> float:
        """Return how many times as fast as the trunk the actor head has to learn in phase 1."""
        return self.prepared.teacher.actions.output_scale(memory.labels(), self.temperature)

    def fold(self, temperature: float) -> float:
        """Return the factor from outputs trained at `temperature` to those that act."""
        return self.prepared.teacher.actions.fold(temperature, self.recipe.student.sharpness)

    def sinks(self) -> list[MetricSink]:
        """Open, once, where numbers go besides metrics.csv. Raises SinkError."""
        if self._sinks is None:
            self._sinks = open_sinks(self.run)
        return self._sinks

    def close(self, failed: bool = False) -> None:
        """Release sinks, environments and the run directory; `failed` after an error."""
        for sink in self._sinks or []:
            sink.close(failed)
        self.validation.close()
        self.run.close()


@contextmanager
def open_student(
    run: RunDirectory, prepared: Prepared, progress: Progress
) -> Iterator[tuple[StudentRun, Play]]:
    """Open a run directory for work: the student, and its own play.

    Raises RunDirectoryError where the run began with another teacher.
    """
    play = Play(run, prepared)
    student = _begin(run, prepared, progress, play.store)
    with ExitStack() as opened:
        opened.push(lambda kind, *_: student.close(kind is not None))
        opened.callback(play.close)
        yield student, play


@contextmanager
def open_students(
    members: Mapping[str, Recipe], folder: Path, device: str, progress: Progress
) -> Iterator[tuple[list[StudentRun], Play]]:
    """Open `folder/LABEL` for each recipe, and one play for all of them, in `folder/stream`.

    The recipes differ in student and seed; the first one's decides the play. All is known to fit
    before anything is written. Raises what `prepare` and RunDirectory do.
    """
    prepared = prepare(next(iter(members.values())), device)
    spec = environment_spec(prepared.environment)
    fitting = {
        label: dataclasses.replace(
            prepared,
            architecture=recipe_architecture(recipe, spec),
        )
        for label, recipe in members.items()
    }
    store = folder / _SHARED_STORE
    with ExitStack() as opened:
        students = []
        for label, recipe in members.items():
            run = opened.enter_context(RunDirectory.create(folder / label, recipe))
            store.mkdir(exist_ok=True)
            student = _begin(run, fitting[label], progress, store, label)
            opened.push(lambda kind, *_, student=student: student.close(kind is not None))
            students.append(student)
        play = Play(students[0].run, prepared, store)
        opened.callback(play.close)
        yield students, play


def _begin(
    run: RunDirectory, prepared: Prepared, progress: Progress, store: Path, label: str = ""
) -> StudentRun:
    """Record the teacher in the manifest, and bring metrics.csv to the checkpoint's state."""
    for line in prepared.notes:
        progress.note(line)
    run.record_teacher(TeacherRecord.of(prepared.teacher, prepared.environment))
    now = record_numerics(prepared.device, cxx_compiler() is not None)
    changed = run.record_arithmetic(now).differences(now)
    if changed and any(record.state != "done" for record in run.manifest.phases.values()):
        progress.warning(f"resumes with {changed}: results then match no other run")
    restore_metrics(store, run, label)
    return StudentRun(run, prepared, Validation(run.recipe, prepared, progress), label)
