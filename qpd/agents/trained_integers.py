"""The integers of an agent that learned in them: what exports, `qpd bench` and `qpd fpga` take."""

from __future__ import annotations

import numpy as np
import torch

from qpd.actions import Box
from qpd.agents.agent_student import agent_student, student_actions_of
from qpd.environments.errors import EnvironmentConfigError
from qpd.environments.registry import environment_spec
from qpd.environments.source import EnvironmentSource, wrappers_of
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.integer.controller_student import controller_student
from qpd.integer.integer_student import IntegerStudent, WideBiasError, integer_student
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.controller_layer import FrozenControllerLinear
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.train_schema import TrainRecipe
from qpd.runs.played_environment import EnvironmentWish, environment_of
from qpd.runs.training_run import TrainingRun
from qpd.student_files.distilled import MAX_PARAMETERS
from qpd.student_files.origin import integer_origin
from qpd.student_files.quantized import save_integer_student
from qpd.teachers import Teacher, TeacherError, load_teacher
from qpd.teachers.archive.stored_controller import StoredController
from qpd.teachers.archive.stored_quantization import StoredQuantization
from qpd.teachers.networks.actor import actor_modules

_MOST_BITS = 8


def write_trained_integers(run: TrainingRun) -> None:
    """Write quantized.safetensors into a finished training, unless it is there or has no integers.

    Integers have those that were trained as integer controllers, or with the scheme
    `dorefa_scaled`. Raises TeacherError where numbers are too large for them.
    """
    asked = run.recipe.quantization
    if asked.controller is None and asked.scheme == "affine":
        return
    if run.phase.state != "done" or run.quantized_file.is_file():
        return
    teacher = load_teacher(run.path)
    stored, source = teacher.quantization, _environment(teacher, run.recipe)
    if stored is None or not stored.is_active:  # a twin that was never quantized
        return
    try:
        if isinstance(stored, StoredController):
            student, scheme = _controller(teacher, stored), str(stored.grid)
        else:
            student, scheme = trained_integers(teacher, source), stored.scheme
    except ValueError as error:
        raise TeacherError(
            f"{run.path}: no integers hold this agent: {error}", ErrorCode.TEACHER_SETTINGS
        ) from error
    about = {"recipe": run.recipe.name, "env_id": run.manifest.env_id}
    origin = integer_origin(about, "train", teacher, student.architecture, scheme, source)
    save_integer_student(run.quantized_file, student, origin)


@torch.no_grad()
def trained_integers(teacher: Teacher, source: EnvironmentSource | None = None) -> IntegerStudent:
    """Return the integers of an agent that was trained with the scheme `dorefa_scaled`.

    The same weights, ranges and levels; biases are rounded to units of the accumulators, and
    activations other than ReLU come from a table. A head whose outputs differ in scale after
    training (QR-DQN's mean of quantiles, actions that are clipped to unlike ranges) is rounded once
    more, to 8 bits. Continuous actions leave the integers as codes of 8 bits. `source` says whether
    images are stacks of frames. Raises AgentQuantizationError, or ValueError where no integers hold
    it.
    """
    stored = teacher.quantization
    if not isinstance(stored, StoredQuantization) or stored.scheme != "dorefa_scaled":
        raise ValueError("it was not trained with scheme=dorefa_scaled")
    layers = stored.layers
    low, high = torch.zeros(1), torch.ones(1)
    if not teacher.is_image:
        assert layers[0].inputs is not None
        low, high = layers[0].inputs.low, layers[0].inputs.high
        if (statistics := teacher.normalization) is not None:
            deviation = torch.from_numpy(statistics.deviation)
            mean = torch.from_numpy(statistics.mean)
            low, high = ((mean + deviation * end.double()).float() for end in (low, high))
    stacks = None
    if source is not None and teacher.is_image:
        stacks = environment_spec(source).frame_stack > 1
    student = agent_student(teacher, low, high, stacks, clips=False)
    if student.architecture.num_parameters > MAX_PARAMETERS:  # its file would not be read again
        raise ValueError(
            f"{student.architecture.num_parameters:,} parameters; files have at most "
            f"{MAX_PARAMETERS:,}"
        )
    has_even_head = _has_even_head(teacher)
    config = QuantizationConfig(
        stored.bits,
        stored.bits,
        last_layer_bits=None if has_even_head else _MOST_BITS,
        per_channel=layers[0].per == "channel",
    )
    simulation = QuantizedStudent(student, config)
    for position, (layer, shape) in enumerate(zip(layers, student.shapes, strict=True)):
        assert layer.weights is not None
        if position:
            assert layer.inputs is not None
            simulation.activation_ranges[position - 1] = layer.inputs.high[0]
        if shape.name == "actor":
            if has_even_head:
                simulation.weight_scales["actor"].copy_(layer.weights.high * _head_factor(teacher))
        else:
            pixels = 255.0 if position == 0 and _sees_bytes(teacher) else 1.0
            simulation.weight_scales[shape.name].copy_(layer.weights.high * pixels)
    try:
        return integer_student(simulation, student_actions_of(teacher))
    except WideBiasError as error:
        raise ValueError(
            f"{error}: a feature that is far from 0 beside its range, or a tiny scale; normalize "
            "observations (normalize=true)"
        ) from None


def _has_even_head(teacher: Teacher) -> bool:
    """Tell whether all outputs of the student are those of the agent, times one number."""
    if teacher.algo == "qrdqn":
        return False
    halves = _halves(teacher)
    return halves is None or bool(np.all(halves == halves[0]))


def _head_factor(teacher: Teacher) -> float:
    halves = _halves(teacher)
    return 1.0 if halves is None else float(1.0 / halves[0])


def _halves(teacher: Teacher) -> np.ndarray | None:
    """Return half of each action's range, where the student's outputs are shares of it."""
    actions = teacher.actions
    if not isinstance(actions, Box) or actions.squash != "clip":
        return None
    low, high = actions.bounds
    return 0.5 * (np.asarray(high, float) - np.asarray(low, float))


def _sees_bytes(teacher: Teacher) -> bool:
    return teacher.is_image and not teacher.scales_images


def _controller(teacher: Teacher, stored: StoredController) -> IntegerStudent:
    modules, actions = actor_modules(teacher.network), teacher.actions
    layers = [each for each in modules if isinstance(each, FrozenControllerLinear)]
    assert isinstance(actions, Box)
    (width,) = teacher.observation_shape
    mean, deviation = np.zeros(width), np.ones(width)
    if (statistics := teacher.normalization) is not None:
        mean, deviation = statistics.mean, statistics.deviation
    return controller_student(layers, stored.quantizers(), mean, deviation, actions)


def _environment(teacher: Teacher, recipe: TrainRecipe) -> EnvironmentSource | None:
    """Return where the agent plays, by its user's own words; None where that cannot be told."""
    own = recipe.environment
    wrappers = None if own.wrappers is None else wrappers_of(own.wrappers)
    wish = EnvironmentWish(recipe.train.env, own.kwargs, wrappers, own.frame_stack)
    wish.allow_modules()
    try:
        return environment_of(teacher, wish).source
    except (EnvironmentConfigError, TargetError):
        return None
