"""A student's origin, as its file and the run directory around it state it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qpd.actions import ActionSpace, Box, MultiBinary, MultiDiscrete
from qpd.files.json_input import parse_json, read_json
from qpd.student_files.distilled import (
    StudentFileError,
    read_metadata,
    stored_actions,
    stored_architecture,
)
from qpd.teachers.archive.agent_identity import ACTOR_CRITIC_ALGORITHMS


def student_origin(file: Path) -> dict[str, Any]:
    """Read `env_id`, `recipe`, `phase`, `teacher` and more of the student in `file`.

    `algo`, its teacher's, is added also if only the manifest beside the file knows it. Raises
    StudentFileError.
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
    # Not every student's file names the algorithm; a run's manifest always does.
    algo = algo or _teacher_algo(file.parent / "manifest.json")
    return about | ({"algo": algo} if algo else {})


def _teacher_algo(manifest: Path) -> str | None:
    try:
        return str(read_json(manifest)["teacher"]["algo"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


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
