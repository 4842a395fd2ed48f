"""A student's origin, as its file and the run directory around it state it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpd.actions import ActionSpace, Box, MultiBinary, MultiDiscrete
from qpd.environments.source import EnvironmentSource
from qpd.files.json_input import parse_json, read_json
from qpd.student_files.distilled import (
    StudentFileError,
    read_metadata,
    stored_actions,
    stored_architecture,
)
from qpd.students import StudentArchitecture
from qpd.teachers.archive.algorithm import ACTOR_CRITIC_ALGORITHMS

if TYPE_CHECKING:
    from qpd.teachers import Teacher

# What a device must do before it may ask a student for an action, as its file says it.
PREPROCESSING = (
    "every 4th frame, maximum of the last two, grey, area-resized to 84x84, last 4 stacked, "
    "oldest first, zeros before an episode; uint8"
)


def student_origin(file: Path) -> dict[str, Any]:
    """Read `env_id`, `recipe`, `phase`, `teacher` and more of the student in `file`.

    `algo`, its teacher's, and `environment`, what is done to its environment, are added also if
    only the manifest beside the file knows them. Raises StudentFileError.
    """
    try:
        about = parse_json(read_metadata(file).get("about", "{}"))
    # It is a ValueError as well: the clause below would wrap it a second time.
    except StudentFileError:
        raise
    except ValueError as error:
        raise StudentFileError(f"{file}: is not a student's file: {error}") from error
    if not isinstance(about, dict):
        raise StudentFileError(f"{file}: is not a student's file: about is {type(about).__name__}")
    teacher = about.get("teacher")
    algo = teacher.get("algo") if isinstance(teacher, dict) else None
    # Not every student's file names these; a run's manifest always does.
    recorded = _recorded_teacher(file.parent / "manifest.json")
    algo = algo or recorded.get("algo")
    environment = about.get("environment") or recorded.get("environment")
    about |= {"algo": str(algo)} if algo else {}
    return about | ({"environment": environment} if environment else {})


def _recorded_teacher(manifest: Path) -> dict[str, Any]:
    try:
        return dict(read_json(manifest)["teacher"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def environment_origin(environment: EnvironmentSource) -> dict[str, Any]:
    """Return what a student's file says of its environment beside the id, if it is not plain."""
    return {"environment": environment.to_json()} if environment.additions() else {}


def integer_origin(
    about: dict[str, Any],
    phase: str,
    teacher: Teacher,
    architecture: StudentArchitecture,
    scheme: str,
    environment: EnvironmentSource | None,
) -> dict[str, Any]:
    """Return what an integer student's file says of its origin: `about`, and what made it."""
    return {
        **about,
        "phase": phase,
        "teacher": {"algo": teacher.algo, "sha256": teacher.sha256},
        "preprocessing": PREPROCESSING if architecture.stacks_frames else "none",
        "scheme": scheme,
        **({} if environment is None else environment_origin(environment)),
    }


def student_environment(about: dict[str, Any]) -> EnvironmentSource:
    """Return the environment that a student plays, with all that is done to it, by its origin.

    Raises EnvironmentConfigError where its file says something that is no environment.
    """
    known = about.get("environment")
    if isinstance(known, dict):
        return EnvironmentSource.from_json(known)
    return EnvironmentSource(str(about.get("env_id", "unknown")))


def student_actions(file: Path) -> ActionSpace:
    """Return the actions of the student in `file`, and what its outputs mean. StudentFileError."""
    metadata = read_metadata(file)
    num_outputs = stored_architecture(file).num_outputs
    try:
        return stored_actions(metadata, num_outputs, not imitates_policy(student_origin(file)))
    except StudentFileError:
        raise
    except ValueError as error:
        raise StudentFileError(f"{file}: does not describe a student: {error}") from error


def teacher_algo(about: dict[str, Any]) -> str | None:
    """Return the teacher's algorithm, such as `ppo`, from a student's origin; None if unknown."""
    teacher = about.get("teacher")
    algo = about.get("algo") or (teacher.get("algo") if isinstance(teacher, dict) else None)
    return str(algo) if algo else None


def imitates_policy(about: dict[str, Any]) -> bool:
    """Return whether the logits are a policy's (PPO, A2C, TRPO, unknown), not Q-values (DQN)."""
    return (teacher_algo(about) or "ppo") in ACTOR_CRITIC_ALGORITHMS


def acting_hint(about: dict[str, Any], actions: ActionSpace, is_atari: bool) -> str:
    """Return, in words, how the student should turn its outputs into actions."""
    if isinstance(actions, Box):
        return "the outputs are the actions"
    if isinstance(actions, MultiDiscrete):
        return "in each part sample from softmax(logits), or take the argmax"
    if isinstance(actions, MultiBinary):
        return "each switch is on with probability sigmoid(logit), or where its logit is above 0"
    if imitates_policy(about):
        return "sample from softmax(logits), or take the argmax"
    return "take the argmax" + ", but a uniform action with probability 0.01" * is_atari
