"""Preparation of a run: load teacher, environment, student and device, and check that they fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from qpd.actions import ActionSpace, Box, Discrete, actions_from_json, actions_to_json
from qpd.environments.interface import EnvironmentSpec
from qpd.environments.registry import environment_spec
from qpd.environments.source import EnvironmentSource
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.machine.description import total_memory
from qpd.machine.device import choose_device
from qpd.phases.unused_settings import unused_settings
from qpd.recipe.schema import Recipe
from qpd.replay.memory import column_bytes, stored_row
from qpd.runs.played_environment import environment_of, recipe_wish, without_zeros
from qpd.runs.sinks import check_sinks
from qpd.student_files.distilled import MAX_LAYERS, MAX_PARAMETERS, MAX_WIDTH
from qpd.students import StudentArchitecture, architecture_for
from qpd.teachers import Teacher, load_recipe_teacher
from qpd.teachers.archive.vec_normalize import normalizes_rewards

LARGE_FILE = 4 * 2**30  # bytes; a run writes them without being asked


class PreparationError(UserError, ValueError):
    """Teacher, environment, student or device do not fit together; one line says how."""

    code = ErrorCode.TEACHER_WRONG_ENVIRONMENT


@dataclass(frozen=True)
class Prepared:
    """A recipe's teacher, environment, student and device, known to fit together.

    `notes` say what is done to the environment, and which settings do nothing, one line each.
    """

    teacher: Teacher
    environment: EnvironmentSource
    architecture: StudentArchitecture
    device: torch.device
    notes: tuple[str, ...] = ()

    @property
    def env_id(self) -> str:
        """The environment's id."""
        return self.environment.env_id


def prepare(recipe: Recipe, device: str) -> Prepared:
    """Load the teacher and check that all fits; writes nothing.

    Raises PreparationError, DeviceError, SinkError, TeacherError or EnvironmentConfigError (one
    line) where it does not.
    """
    check_sinks(recipe)
    teacher = load_recipe_teacher(recipe.teacher)
    teacher, played = without_zeros(teacher, environment_of(teacher, recipe_wish(recipe)))
    spec = environment_spec(played.source)
    misfit = spec.misfit(teacher.observation_shape, teacher.actions)
    if misfit is not None:
        raise PreparationError(f"teacher {teacher.source} {misfit}")
    _check_actions(recipe, teacher, spec.is_atari)
    if recipe.finetune.reward is not None:
        _check_critic(teacher)
    chosen = choose_device(device)
    _check_memory(recipe, spec.frame_stack, teacher.actions)
    architecture = recipe_architecture(recipe, spec)
    teacher.to(chosen)
    notes = (*played.notes, *unused_settings(recipe, teacher, is_atari=spec.is_atari))
    return Prepared(teacher, played.source, architecture, chosen, notes)


def _check_critic(teacher: Teacher) -> None:
    """Refuse to finetune by reward beside a critic that was trained with other rewards."""
    statistics, trained_with = teacher.files.vec_normalize, None
    if statistics and normalizes_rewards(statistics):
        trained_with = "VecNormalize's rewards, in other units than those of the game"
    for wrapper in teacher.files.environment.env_wrapper:
        for key in ("clip_reward", "terminal_on_life_loss"):
            if wrapper.name.endswith("AtariWrapper") and wrapper.kwargs.get(key) is False:
                trained_with = f"{key}=False, where finetune.reward has True"
    if trained_with is not None:
        raise PreparationError(
            f"finetune.reward: the critic of {teacher.source} was trained with {trained_with}; "
            "remove finetune.reward",
            ErrorCode.RECIPE_CONTRADICTION,
        )


def size_notes(recipe: Recipe, prepared: Prepared) -> list[str]:
    """Say before phase 1 what is large: the student beside its agent's actor, the memory's file."""
    own, actor = prepared.architecture.num_parameters, prepared.teacher.actor_parameters
    notes = []
    if own >= actor:
        beside = "as many as" if own == actor else f"more than the {actor:,} of"
        notes.append(
            f"the student has {own:,} parameters, {beside} the agent's actor: a smaller "
            "student.size makes it smaller"
        )
    spec = environment_spec(prepared.environment)
    shape, dtype = stored_row(spec.observation_shape, spec.frame_stack, spec.pixels)
    size = recipe.replay.capacity * math.prod(shape) * dtype.itemsize
    if size >= LARGE_FILE:
        notes.append(
            f"the memory of {recipe.replay.capacity:,} observations takes {size / 2**30:.1f} GiB "
            "on the disk: replay.capacity"
        )
    return notes


def _check_actions(recipe: Recipe, teacher: Teacher, is_atari: bool) -> None:
    """Raise PreparationError for settings that mean nothing for the teacher's actions."""
    actions, collection = teacher.actions, recipe.collection
    try:
        actions_from_json(actions_to_json(actions))  # as each of the run's files is read
    except ValueError as error:
        raise PreparationError(f"teacher {teacher.source}: {error}") from error
    if recipe.finetune.reward is not None and not isinstance(actions, Discrete):
        raise PreparationError(
            f"finetune.reward: needs discrete actions; {teacher.source} has {actions}: remove it",
            ErrorCode.RECIPE_CONTRADICTION,
        )
    if recipe.finetune.reward is not None and actions.has_values:
        raise PreparationError(
            f"finetune.reward: samples actions from a policy's logits; those of {teacher.source} "
            "are Q-values: remove it",
            ErrorCode.RECIPE_CONTRADICTION,
        )
    for phase in (recipe.distill, recipe.finetune):
        given = {"loss": phase.loss == "reverse_kl", "temperature": phase.temperature is not None}
        name = "distill" if phase is recipe.distill else "finetune"
        for key in [key for key, is_given in given.items() if is_given]:
            if isinstance(actions, Box) and actions.labels == "deterministic":
                raise PreparationError(
                    f"{name}.{key}: {teacher.source} gives actions, not a distribution: there is "
                    "one divergence of them, without a temperature; remove it",
                    ErrorCode.RECIPE_CONTRADICTION,
                )
    asked = collection.student_fraction * recipe.environment.num_envs
    if 0.0 < asked and round(asked) == 0:
        raise PreparationError(
            f"recipe {recipe.name}: collection.student_fraction: of {recipe.environment.num_envs} "
            f"environments {collection.student_fraction:g} is none: raise environment.num_envs, or "
            "set 0 to leave the play to the teacher",
            ErrorCode.RECIPE_CONTRADICTION,
        )
    settings = (
        ("collection", collection.acting, collection.epsilon, collection.sharpness),
        ("evaluation", recipe.evaluation.acting, recipe.evaluation.epsilon, 1.0),
        ("student", "auto", 0.0, recipe.student.sharpness),
    )
    for section, acting, epsilon, sharpness in settings:
        try:
            actions.rule(acting, on_atari=is_atari, epsilon=epsilon, sharpness=sharpness)
        except ValueError as error:
            raise PreparationError(
                f"recipe {recipe.name}: {section}: {error}", ErrorCode.RECIPE_CONTRADICTION
            ) from error


def _check_memory(recipe: Recipe, frame_stack: int, actions: ActionSpace) -> None:
    """Raise PreparationError if the replay cannot fit; its frames lie in a file on the disk."""
    capacity, there = recipe.replay.capacity, total_memory()
    needed = capacity * column_bytes(frame_stack, actions)
    if there is not None and needed > there:
        raise PreparationError(
            f"recipe {recipe.name}: replay.capacity: {capacity:,} transitions need "
            f"{needed / 2**30:,.0f} GiB of memory; this machine has {there / 2**30:,.0f}",
            ErrorCode.RECIPE_WRONG_VALUE,
        )


def recipe_architecture(recipe: Recipe, spec: EnvironmentSpec) -> StudentArchitecture:
    """Return the student that the recipe describes, for an environment's sizes."""
    student, stacks_frames = recipe.student, spec.frame_stack > 1
    try:
        if student.size is not None:
            found = architecture_for(
                student.size,
                spec.observation_shape,
                spec.actions.num_outputs,
                student.activation,
                stacks_frames,
                spec.image_shape,
            )
        else:
            found = StudentArchitecture(
                spec.observation_shape,
                spec.actions.num_outputs,
                student.conv_channels or (),
                student.hidden or (),
                student.activation,
                stacks_frames,
                spec.image_shape,
            )
    except ValueError as error:
        given = "" if student.size is None else f"size={student.size}: "
        agent = recipe.teacher.source
        of = " (those of `embedded`, Breakout's agent; `--teacher AGENT` names another)"
        raise PreparationError(
            f"recipe {recipe.name}: student: {given}{error}{of if agent == 'embedded' else ''}",
            ErrorCode.STUDENT_MISFIT,
        ) from error
    if found.image_shape is not None and recipe.quantize.input_bits != 8:
        raise PreparationError(
            f"recipe {recipe.name}: quantize.input_bits: {recipe.quantize.input_bits}: images are "
            "bytes: must be 8",
            ErrorCode.RECIPE_CONTRADICTION,
        )
    if found.image_shape is not None and recipe.quantize.scheme == "narrow":
        raise PreparationError(
            f"recipe {recipe.name}: quantize.scheme: narrow: is for students of vectors; those of "
            "images take dorefa_scaled or dorefa",
            ErrorCode.RECIPE_CONTRADICTION,
        )
    if found.num_parameters > MAX_PARAMETERS:  # its file would not be read again
        line = f"student: {found.num_parameters:,} parameters; at most {MAX_PARAMETERS:,}"
        raise PreparationError(f"recipe {recipe.name}: {line}", ErrorCode.RECIPE_WRONG_VALUE)
    seen = found.observation_shape
    if found.joins_features and found.image_shape is not None:
        seen = (*found.image_shape, found.num_features)
    widths = (*seen, found.num_outputs, *found.conv_channels, *found.hidden)
    if max(len(found.hidden), len(found.conv_channels)) > MAX_LAYERS:
        line = f"student: {len(found.hidden)} hidden layers; at most {MAX_LAYERS}"
        raise PreparationError(f"recipe {recipe.name}: {line}", ErrorCode.RECIPE_WRONG_VALUE)
    if max(widths) > MAX_WIDTH:
        line = f"student: {max(widths):,} numbers in an observation or layer; at most {MAX_WIDTH:,}"
        raise PreparationError(f"recipe {recipe.name}: {line}", ErrorCode.RECIPE_WRONG_VALUE)
    return found
