"""What `qpd evaluate` can play: a teacher, or one of the policies in a run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qpd.acting import resolve_acting
from qpd.environment import environment_spec, make_vector_env
from qpd.evaluation import EvaluationResult, evaluate
from qpd.policy import Policy, network_policy
from qpd.quantization.integer_student import IntegerEngine
from qpd.quantization.packing import load_integer_student
from qpd.run_directory import RunDirectory
from qpd.student_files import load_student
from teachers import Teacher, load_teacher


class TargetError(ValueError):
    """Nothing to evaluate there, or not as asked; one line says why."""


@dataclass(frozen=True)
class Target:
    """A policy, the environment it plays, and the teacher it is or comes from.

    `max_frames` is the cap on a game that its run was made with, None for the default.
    """

    label: str
    policy: Policy
    teacher: Teacher
    env_id: str
    max_frames: int | None = None


def load_target(source: str, policy: str | None, env_id: str | None) -> Target:
    """A run directory's `policy` (default: the last one made), or else a teacher.

    Raises TargetError, TeacherError, RunDirectoryError or StudentFileError, one line each.
    """
    if (Path(source) / "manifest.json").is_file():
        return _from_run(Path(source), policy)
    if policy not in (None, "teacher"):
        raise TargetError(f"--policy {policy}: {source} is no run directory; only teacher is there")
    teacher = load_teacher(source, env_id=env_id)
    if teacher.env_id is None:
        raise TargetError(f"{source}: nothing tells its environment: name it with --env")
    return Target("teacher", network_policy(teacher), teacher, teacher.env_id)


def _from_run(path: Path, policy: str | None) -> Target:
    run = RunDirectory.open(path, read_only=True)
    record, settings = run.manifest.teacher, run.recipe.teacher
    if record is None:
        raise TargetError(f"{path}: this run has not begun: it knows no teacher yet")
    teacher = load_teacher(settings.source, algo=settings.algo, env_id=settings.env)
    if teacher.sha256 != record.sha256:
        raise TargetError(f"{path}: {settings.source} is no longer the teacher of this run")
    files = {"distilled": run.distilled_file, "ptq": run.ptq_file, "qat": run.quantized_file}
    phases = {"distilled": "distill", "ptq": "quantize", "qat": "finetune"}
    made = [name for name, phase in phases.items() if run.phase(phase).state == "done"]  # type: ignore[arg-type]
    name = policy or (made[-1] if made else "teacher")
    chosen: Policy
    if name == "teacher":
        chosen = network_policy(teacher)
    elif name not in made:
        there = ", ".join(["teacher", *made])
        raise TargetError(f"--policy {name}: {path} holds {there}")
    elif name == "distilled":
        chosen = network_policy(load_student(files[name]))
    else:
        chosen = IntegerEngine(load_integer_student(files[name]))
    return Target(name, chosen, teacher, record.env_id, run.recipe.environment.max_frames)


def play(
    target: Target,
    episodes: int,
    acting: str,
    epsilon: float,
    sharpness: float,
    max_frames: int | None,
    seed: int,
    progress: Any,
) -> EvaluationResult:
    """Play `episodes` full games with `target`; raises TargetError where they do not fit."""
    spec = environment_spec(target.env_id)
    if spec.num_actions != target.teacher.num_actions:
        raise TargetError(
            f"{target.env_id} has {spec.num_actions} actions, "
            f"the agent {target.teacher.num_actions}"
        )
    if spec.observation_shape != target.teacher.observation_shape:
        raise TargetError(
            f"{target.env_id} gives observations of shape {spec.observation_shape}, "
            f"the agent reads {target.teacher.observation_shape}"
        )
    try:
        rule = resolve_acting(
            acting,
            is_actor_critic=target.teacher.has_actor_critic,
            is_atari=spec.is_atari,
            epsilon=epsilon,
            sharpness=sharpness,
        )
    except ValueError as error:
        raise TargetError(f"--{error}") from error
    env = make_vector_env(
        target.env_id, min(episodes, 64), max_frames=max_frames or target.max_frames
    )
    with progress:
        result = evaluate(
            target.policy,
            env,
            episodes,
            rule,
            seed,
            lambda done: progress.episodes(f"playing {target.label}", done, episodes),
        )
    env.close()
    return result
