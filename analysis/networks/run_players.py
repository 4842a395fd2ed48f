"""The student of a run and its teacher, as they act in the run's evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qpd.environments.registry import EnvironmentConfigError, environment_spec
from qpd.evaluation.decisions import Player
from qpd.runs.run_directory import RunDirectory
from qpd.runs.target import Target, TargetError, load_target
from qpd.teachers import TeacherError


@dataclass(frozen=True)
class RunPlayers:
    """The student first, then its teacher; without it, `missing` says why.

    `target` is the student's: its environment, and how its run evaluates.
    """

    target: Target
    players: list[Player]
    missing: str | None = None


def run_players(path: Path, student: str | None = None) -> RunPlayers:
    """Load a run's `student` (default: its last) and its teacher.

    Raises TargetError, EnvironmentConfigError, RunDirectoryError or StudentFileError where there
    is no student to play.
    """
    run = RunDirectory.open(path, read_only=True)
    target = load_target(str(path), student, None, "cpu")
    if target.label == "teacher":
        raise TargetError(f"{path}: the teacher is no student; phase 1 makes one")
    players, missing = [_player(run, target)], None
    try:
        players.append(_player(run, load_target(str(path), "teacher", None, "cpu")))
    except (EnvironmentConfigError, TargetError, TeacherError) as error:
        missing = str(error)
    return RunPlayers(target, players, missing)


def _player(run: RunDirectory, target: Target) -> Player:
    """Make a player; the teacher samples at the student's sharpness, as the student learns it."""
    is_teacher = target.label == "teacher"
    actions = target.policy.actions
    rule = actions.rule(
        target.acting,
        on_atari=environment_spec(target.environment).is_atari,
        epsilon=target.epsilon,
        sharpness=run.recipe.student.sharpness if is_teacher and actions.is_tempered else 1.0,
    )
    return Player("Teacher" if is_teacher else "Student", target.policy, rule)
