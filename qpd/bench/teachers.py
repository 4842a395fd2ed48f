"""The teacher that each model is compared with: that of its run, or the embedded Breakout agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from qpd.bench.device_record import NATURE_CNN
from qpd.bench.models import BenchModel
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError, UserError
from qpd.recipe.schema import TeacherSettings
from qpd.runs.run_directory import RunDirectory
from qpd.runs.training_run import is_training
from qpd.teachers import Teacher, load_recipe_teacher


@dataclass(frozen=True)
class BenchTeacher:
    """A teacher under the name of its rows; workers load it again by its `settings`."""

    name: str
    settings: TeacherSettings
    teacher: Teacher

    @property
    def size(self) -> str | None:
        """The name of its shape: NatureCNN for images, None for vectors."""
        return NATURE_CNN if self.teacher.is_image else None


@dataclass
class TeacherGroup:
    """Models that take turns beside one teacher; without a teacher they have no ratio."""

    teacher: BenchTeacher | None
    models: list[BenchModel] = field(default_factory=list)


def group_by_teacher(models: Sequence[BenchModel]) -> tuple[list[TeacherGroup], list[str]]:
    """Group `models` by teacher, in the order of each teacher's first model.

    Also returns a line for each reason why models are compared with the embedded agent, or with
    none. Without a model the embedded agent is the only group.
    """
    groups: dict[str | None, TeacherGroup] = {}
    reasons: dict[str, list[str]] = {}
    for model in models:
        teacher, reason = _teacher_beside(model)
        key = None if teacher is None else teacher.teacher.sha256
        groups.setdefault(key, TeacherGroup(teacher)).models.append(model)
        if reason is not None:
            reasons.setdefault(reason, []).append(model.name)
    if not models:
        embedded = embedded_teacher()
        groups[embedded.teacher.sha256] = TeacherGroup(embedded)
    notes = [f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in reasons.items()]
    return _distinctly_named(list(groups.values())), notes


def embedded_teacher() -> BenchTeacher:
    """Load the Breakout agent that comes with QPD."""
    return _bench_teacher(TeacherSettings())


def teacher_of_run(path: Path) -> BenchTeacher:
    """Load the teacher of a run directory, or of the one that a student's file lies in.

    Raises UserError, one line, if there is no run, its teacher cannot be loaded, or its source now
    holds another agent.
    """
    run = RunDirectory.open(path if path.is_dir() else path.parent, read_only=True)
    found = _bench_teacher(run.recipe.teacher)
    record = run.manifest.teacher
    # A path may hold another agent by now.
    if record is None or found.teacher.sha256 != record.sha256:
        raise TargetError(
            f"{found.teacher.source} is no longer the teacher of this run",
            ErrorCode.RUN_OTHER_RECIPE,
        )
    return found


def _bench_teacher(settings: TeacherSettings) -> BenchTeacher:
    teacher = load_recipe_teacher(settings)
    words = ["teacher", teacher.algo, *([teacher.env_id] if teacher.env_id else [])]
    return BenchTeacher(" ".join(words), settings, teacher)


def _teacher_beside(model: BenchModel) -> tuple[BenchTeacher | None, str | None]:
    """Return the teacher to time beside `model`, and why it is not that of its run."""
    if model.path is None:
        why = "a random student has no teacher"
    elif is_training(model.path if model.path.is_dir() else model.path.parent):
        why = "an agent that learned in integers has no teacher"
    else:
        try:
            found = teacher_of_run(model.path)
            shown = model.student.architecture.observation_shape
            if found.teacher.observation_shape == shown:
                return found, None
            why = (
                f"its teacher sees {found.teacher.observation_shape} where the student sees {shown}"
            )
        except UserError as error:
            why = f"its teacher cannot be timed: {error.lines[0]}"
    if not model.student.architecture.stacks_frames:  # all that the embedded teacher sees
        return None, f"no ratio: {why}"
    embedded = embedded_teacher()
    return embedded, f"ratios to the embedded {embedded.name.removeprefix('teacher ')}: {why}"


def _distinctly_named(groups: list[TeacherGroup]) -> list[TeacherGroup]:
    """Add the beginning of their checksum to names that several teachers share."""
    names = [group.teacher.name for group in groups if group.teacher is not None]
    for group in groups:
        if group.teacher is not None and names.count(group.teacher.name) > 1:
            name = f"{group.teacher.name} {group.teacher.teacher.sha256[:8]}"
            group.teacher = replace(group.teacher, name=name)
    return groups
