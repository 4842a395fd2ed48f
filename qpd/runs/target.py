"""Targets of `qpd evaluate`: a teacher, or one of the policies in a run directory."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path

import numpy as np

from qpd.environments.policy import Policy, network_policy, random_policy
from qpd.environments.registry import environment_spec, make_vector_env
from qpd.environments.source import EnvironmentSource
from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean
from qpd.errors.user_error import TargetError
from qpd.evaluation.games import EvaluationResult, evaluate
from qpd.integer.integer_student import IntegerEngine
from qpd.machine.device import choose_device
from qpd.recipe.bounds import MAX_EPISODES, MAX_FRAMES, MAX_SEED, MAX_SHARPNESS
from qpd.recipe.schema import MAX_PARALLEL_GAMES, TeacherSettings
from qpd.runs.manifest import MADE_BY, EvaluatedPolicy, date_now
from qpd.runs.played_environment import (
    EnvironmentWish,
    PlayedEnvironment,
    environment_of,
    recipe_wish,
    without_zeros,
)
from qpd.runs.progress import Progress
from qpd.runs.run_directory import RunDirectory, evaluation_seed
from qpd.runs.training_run import TrainingRun, is_training
from qpd.student_files.distilled import load_student, stored_architecture
from qpd.student_files.origin import student_actions, student_environment, student_origin
from qpd.student_files.quantized import load_integer_student
from qpd.teachers import Teacher, TeacherError, load_recipe_teacher, load_teacher

GONE = (ErrorCode.TEACHER_NOT_FOUND, ErrorCode.HUB_UNREACHABLE)
TRAINED_EPISODES = 100  # of a training's agent, unless another number is asked for


@dataclass(frozen=True)
class Target:
    """A policy and the environment it plays.

    `teacher` is None for the student of a run, which plays without it. The fields from `run_path`
    on are the settings of its run.
    """

    label: str
    policy: Policy
    environment: EnvironmentSource
    observation_shape: tuple[int, ...]
    teacher: Teacher | None = None
    notes: tuple[str, ...] = ()
    run_path: Path | None = None
    episodes: int = 50
    parallel: int | None = None  # games of `episodes` side by side; None: as many as usual
    seed: int = 0
    acting: str = "auto"
    epsilon: float = 0.01
    max_frames: int | None = None
    deviations: tuple[float, ...] | None = None  # of each feature, where they are known

    @property
    def env_id(self) -> str:
        """The environment's id."""
        return self.environment.env_id


def load_target(
    source: str | Path,
    policy: str | None,
    env: str | EnvironmentWish | None,
    device: str,
    vec_normalize: str | Path | None = None,
    teacher: str | Path | None = None,
) -> Target:
    """Load a run directory's `policy` (default: the last one made), or else a teacher.

    A Path is never taken for a hub id. `env` and `vec_normalize` belong to a teacher; `teacher` is
    where a run's is now, if it was moved.

    Raises TargetError, TeacherError, RunDirectoryError, StudentFileError or DeviceError, one line
    each.
    """
    choose_device(device)
    wish = env if isinstance(env, EnvironmentWish) else EnvironmentWish(env)
    if is_training(source):
        _refuse_unfinished(Path(source))
        if policy == "qat":
            if vec_normalize is not None:
                raise TargetError(
                    f"{source}: --vecnormalize: the integers hold their normalization",
                    ErrorCode.COMMAND_LINE,
                )
            return _controller(Path(source), wish)
    elif (Path(source) / "manifest.json").is_file():
        _allow_its_own(Path(source), wish, vec_normalize is not None)
        return _from_run(Path(source), policy, device, teacher)
    if teacher is not None:
        raise TargetError(
            f"--teacher {teacher}: {source} is no run of a student", ErrorCode.COMMAND_LINE
        )
    if policy not in (None, "teacher"):
        raise TargetError(
            f"--policy {policy}: {source} is a training; expected teacher, or qat, its integers"
            if is_training(source)
            else f"--policy {policy}: {source} is no run directory; only teacher is there",
            ErrorCode.STUDENT_MISSING,
        )
    wish.allow_modules()
    agent = load_teacher(source, env_id=wish.env_id, vec_normalize=vec_normalize)
    target = _from_teacher(agent, environment_of(agent, wish), device)
    if is_training(source) and _as_trained(Path(source), wish) and vec_normalize is None:
        return replace(target, run_path=Path(source), episodes=TRAINED_EPISODES)
    return target


def _allow_its_own(path: Path, wish: EnvironmentWish, has_statistics: bool) -> None:
    """Let a run's modules be imported where the user names its environment; refuse another one."""
    if wish == EnvironmentWish() and not has_statistics:
        return
    teacher = RunDirectory.open(path, read_only=True).manifest.teacher
    own = None if teacher is None else teacher.played
    its_id = None if own is None else own.env_id
    its_wrappers = None if own is None else [each.to_json() for each in own.wrappers]
    wrappers = None if wish.wrappers is None else [each.to_json() for each in wish.wrappers]
    unlike = {
        "--env": wish.env not in (None, its_id),
        "--env-kwargs": bool(wish.kwargs),
        "--wrapper": wrappers not in (None, its_wrappers),
        "--frame-stack": wish.frame_stack is not None,
        "--vecnormalize": has_statistics,
    }
    if other := [option for option, is_other in unlike.items() if is_other]:
        raise TargetError(
            f"{path}: a run plays in the environment of its recipe"
            f"{'' if own is None else f', {own}'}: {', '.join(other)} can change nothing",
            ErrorCode.COMMAND_LINE,
        )
    wish.allow_modules()


def _teacher_of(path: Path, settings: TeacherSettings, moved_to: str | Path | None) -> Teacher:
    if moved_to is not None:
        settings = found_beside(settings.model_copy(update={"source": str(moved_to)}))
    try:
        return load_recipe_teacher(settings)
    except TeacherError as error:
        if moved_to is not None or error.code not in GONE:
            raise
        raise agent_gone(path, settings, f"evaluate {path} --policy teacher", error) from error


def agent_gone(
    path: str | Path, settings: TeacherSettings, command: str, error: TeacherError
) -> TeacherError:
    """Return the error of a run whose agent is gone; `command` takes its new place."""
    return TeacherError(
        f"{path}: its agent is no longer found at {settings.source}: "
        f"`qpd {command} --teacher PATH` says where it is now",
        error.code,
    )


def found_beside(settings: TeacherSettings) -> TeacherSettings:
    """Let statistics no longer at their place be looked for beside the agent, which has moved."""
    known = settings.vecnormalize
    if known is None or Path(known).is_file():
        return settings
    return settings.model_copy(update={"vecnormalize": None})


def _controller(path: Path, wish: EnvironmentWish) -> Target:
    """Return the integers that a training left, in its agent's environment."""
    run = TrainingRun.open(path)
    file, agent = run.quantized_file, run.agent_file
    if not file.is_file():
        raise TargetError(
            f"--policy qat: {path} holds an agent and no quantized.safetensors",
            ErrorCode.STUDENT_MISSING,
        )
    student = load_integer_student(file)
    environment = student_environment(student_origin(file))
    target = Target(
        "qat", IntegerEngine(student), environment, student.architecture.observation_shape,
        run_path=path if _as_trained(path, wish) else None, episodes=TRAINED_EPISODES,
    )  # fmt: skip
    if wish == EnvironmentWish() and (agent is None or not agent.is_file()):
        return target  # integers play without the agent's large zip
    wish.allow_modules()
    teacher = load_teacher(path, env_id=wish.env_id)
    played = environment_of(teacher, wish)
    deviations = _deviations(teacher)
    return replace(target, environment=played.source, notes=played.notes, deviations=deviations)


def _as_trained(path: Path, wish: EnvironmentWish) -> bool:
    """Tell whether what the user says of the environment is what a training's recipe says.

    An environment in a module of the user's own is not made unless it is named.
    """
    recipe = TrainingRun.open(path).recipe
    known = recipe.environment.kwargs
    return (
        (wish.env is None or wish.env == recipe.train.env)
        and all(key in known and known[key] == value for key, value in wish.kwargs.items())
        and wish.wrappers is None
        and wish.frame_stack is None
    )


def _refuse_unfinished(path: Path) -> None:
    """Raise TargetError unless a training has left its agent."""
    phase = TrainingRun.open(path).phase
    if phase.failed_at is not None:
        raise TargetError(
            f"{path}: learning failed after {phase.failed_at:,} steps: there is no agent",
            ErrorCode.TEACHER_NOT_FOUND,
        )
    if phase.agent is None:
        raise TargetError(
            f"{path}: its training is not done ({phase.timesteps:,} steps saved): give `qpd train` "
            "again to go on",
            ErrorCode.TEACHER_NOT_FOUND,
        )


def _from_teacher(teacher: Teacher, played: PlayedEnvironment, device: str) -> Target:
    teacher.to(choose_device(device))
    return Target(
        "teacher",
        network_policy(teacher, teacher.actions),
        played.source,
        teacher.observation_shape,
        teacher,
        played.notes,
        deviations=_deviations(teacher),
    )


def _deviations(teacher: Teacher) -> tuple[float, ...] | None:
    """Return what VecNormalize divides each feature by."""
    statistics = teacher.normalization
    if statistics is None or not np.isfinite(statistics.clip_obs).all():
        return None  # of a Dict's keys that are not normalized it says nothing
    return tuple(statistics.deviation.tolist())


def _from_run(path: Path, policy: str | None, device: str, moved_to: str | Path | None) -> Target:
    run = RunDirectory.open(path, read_only=True)
    record, recipe = run.manifest.teacher, run.recipe
    if record is None:
        raise TargetError(
            f"{path}: this run has not begun: no teacher is recorded yet",
            ErrorCode.RUN_PHASE_MISSING,
        )
    made = {
        str(name): run.student_files[name]
        for name, phase in MADE_BY.items()
        if run.phase(phase).state == "done"
    }
    name = ([*made][-1] if made else "teacher") if policy is None else policy
    if moved_to is not None and name != "teacher":
        raise TargetError(
            f"--teacher {moved_to}: {name} plays without it; --policy teacher plays the teacher",
            ErrorCode.COMMAND_LINE,
        )
    if name == "teacher":
        teacher = _teacher_of(path, recipe.teacher, moved_to)
        # A path may hold another agent by now: its return must not be booked as this run's.
        if teacher.sha256 != record.sha256:
            raise TargetError(
                f"{path}: {teacher.source} is no longer the teacher of this run",
                ErrorCode.RUN_OTHER_RECIPE,
            )
        played = environment_of(teacher, recipe_wish(recipe))
        if not record.played.wrappers:  # as its student sees it
            seeing, own = without_zeros(teacher, played)
            teacher, played = seeing, replace(own, notes=played.notes)
        target = _from_teacher(teacher, played, device)
    elif name not in made:
        there = ", ".join(["teacher", *made])
        hint = did_you_mean(name, ["teacher", *made])
        raise TargetError(f"--policy {name}: {path} holds {there}{hint}", ErrorCode.STUDENT_MISSING)
    else:
        chosen: Policy
        file = made[name]
        if name == "distilled":
            student = load_student(file).to(choose_device(device))
            chosen = network_policy(student, student_actions(file))
        else:
            chosen = IntegerEngine(load_integer_student(file))
        shape = stored_architecture(file)
        target = Target(name, chosen, record.played, shape.observation_shape)
    settings = recipe.evaluation
    return replace(
        target,
        run_path=path,
        deviations=None,  # all policies of a run get equal noise, whose unit its games give
        episodes=settings.episodes,
        parallel=settings.games_in_parallel,
        seed=evaluation_seed(recipe, run.manifest),
        acting=settings.acting,
        epsilon=settings.epsilon,
        max_frames=recipe.environment.max_frames,
    )


def play(
    target: Target,
    progress: Progress,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    acting: str | None = None,
    epsilon: float | None = None,
    sharpness: float = 1.0,
    max_frames: int | None = None,
) -> EvaluationResult:
    """Play full games with `target`; None means the target's own setting.

    Raises TargetError where policy and environment do not fit.
    """
    for name, given, least, most in (
        ("episodes", episodes, 1, MAX_EPISODES),
        ("epsilon", epsilon, 0.0, 1.0),
        ("seed", seed, 0, MAX_SEED),
        ("max-frames", max_frames, 4, MAX_FRAMES),
    ):
        if given is None:
            continue
        _require_number(name, given)
        if not least <= given <= most:
            raise TargetError(
                f"--{name} {given}: must be from {least:,} to {most:,}", ErrorCode.COMMAND_LINE
            )
    for name, number in (("episodes", episodes), ("seed", seed), ("max-frames", max_frames)):
        if number is not None and int(number) != number:
            raise TargetError(f"--{name} {number}: must be a whole number", ErrorCode.COMMAND_LINE)
    _require_number("sharpness", sharpness)
    if not 0.0 < sharpness <= MAX_SHARPNESS:
        raise TargetError(
            f"--sharpness {sharpness:g}: must be above 0 and at most {MAX_SHARPNESS:g}",
            ErrorCode.COMMAND_LINE,
        )
    # Whole numbers may come as 2.0 or as NumPy's.
    episodes, seed, max_frames = (
        None if number is None else int(number) for number in (episodes, seed, max_frames)
    )
    spec = environment_spec(target.environment)
    played = target.teacher.source if target.teacher is not None else target.run_path
    misfit = spec.misfit(target.observation_shape, target.policy.actions)
    if misfit is not None:
        raise TargetError(f"{played}: {misfit}", ErrorCode.TEACHER_WRONG_ENVIRONMENT)
    try:
        rule = target.policy.actions.rule(
            target.acting if acting is None else acting,
            on_atari=spec.is_atari,
            epsilon=target.epsilon if epsilon is None else epsilon,
            sharpness=sharpness,
        )
    except ValueError as error:
        raise TargetError(f"--{error}", ErrorCode.COMMAND_LINE) from error
    for name, told, kind in (
        ("epsilon", epsilon, "epsilon"),
        ("sharpness", None if sharpness == 1.0 else sharpness, "sample"),
    ):
        if told is not None and rule.kind != kind:
            raise TargetError(
                f"--{name} {told:g}: changes nothing where acting is {rule.kind}; give --acting "
                f"{kind} as well",
                ErrorCode.COMMAND_LINE,
            )
    cap = target.max_frames if max_frames is None else max_frames
    # Which games are played depends on how many are at once: those of a run are its recipe's.
    parallel = target.parallel if episodes is None else None
    episodes = target.episodes if episodes is None else episodes
    parallel = parallel or min(episodes, MAX_PARALLEL_GAMES)
    seed = target.seed if seed is None else seed
    with closing(make_vector_env(target.environment, parallel, max_frames=cap)) as env:
        return evaluate(
            target.policy,
            env,
            episodes,
            rule,
            seed,
            lambda done: progress.episodes(f"playing {target.label}", done, episodes),
        )


def _require_number(name: str, given: object) -> None:
    if not isinstance(given, Real) or isinstance(given, bool):
        raise TargetError(f"--{name} {given!r:.40}: must be a number", ErrorCode.COMMAND_LINE)


def play_randomly(
    target: Target, progress: Progress, *, episodes: int, seed: int
) -> EvaluationResult:
    """Play the target's games with actions drawn at random."""
    random = replace(target, label="a random policy", policy=random_policy(target.policy.actions))
    return play(random, progress, episodes=episodes, seed=seed, acting="sample")


def record(target: Target, result: EvaluationResult) -> None:
    """Write the result into the manifest of the target's run."""
    assert target.run_path is not None
    name: EvaluatedPolicy = target.label  # type: ignore[assignment]
    played = result.to_json() | {"date": date_now()}
    if is_training(target.run_path):
        with TrainingRun.create(target.run_path, TrainingRun.open(target.run_path).recipe) as run:
            run.record_evaluation(name, played)
        return
    with RunDirectory.open(target.run_path) as run:
        run.record_evaluation(name, played)
