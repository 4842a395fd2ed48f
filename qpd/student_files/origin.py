"""What a student's file, and the run directory it lies in, say of the student's origin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qpd.files.json_input import parse_json, read_json
from qpd.student_files.distilled import StudentFileError, read_metadata
from qpd.teachers.archive.agent_identity import ACTOR_CRITIC_ALGORITHMS


def student_origin(file: Path) -> dict[str, Any]:
    """`env_id`, `recipe`, `phase`, `teacher` and more of the student in `file`; `algo`, its
    teacher's, also where only the run's manifest beside it tells. Raises StudentFileError.
    """
    try:
        about = parse_json(read_metadata(file).get("about", "{}"))
    except StudentFileError:
        raise
    except ValueError as error:
        raise StudentFileError(f"{file}: is no student's file: {error}") from error
    if not isinstance(about, dict):
        raise StudentFileError(f"{file}: is no student's file: about is {type(about).__name__}")
    teacher = about.get("teacher")
    algo = teacher.get("algo") if isinstance(teacher, dict) else None
    algo = algo or _teacher_algo(file.parent / "manifest.json")
    return about | ({"algo": algo} if algo else {})


def _teacher_algo(manifest: Path) -> str | None:
    try:
        return str(read_json(manifest)["teacher"]["algo"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def imitates_policy(about: dict[str, Any]) -> bool:
    """Whether the logits are a policy's (PPO, A2C, or nothing known) rather than Q-values (DQN)."""
    teacher = about.get("teacher")
    stored = teacher.get("algo") if isinstance(teacher, dict) else None
    return (about.get("algo") or stored or "ppo") in ACTOR_CRITIC_ALGORITHMS


def acting_hint(about: dict[str, Any]) -> str:
    """How the student should turn its logits into actions, in words."""
    if imitates_policy(about):
        return "sample from softmax(logits), or take the argmax"
    return "take the argmax, on Atari a uniform action with probability 0.01"
