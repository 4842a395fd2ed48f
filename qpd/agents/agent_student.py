"""An agent as a student of its own widths: the same outputs, in the form that QPD quantizes.

Integers, exports, benchmarks and reports know students alone. A student's inputs are bytes, so
that the agent's normalization and the range of each feature go into the first layer.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qpd.actions import ActionSpace, Box
from qpd.agents.errors import AgentQuantizationError
from qpd.student_files.distilled import MAX_LAYERS
from qpd.students import Student, StudentArchitecture
from qpd.students.activations import ACTIVATIONS, activation_of_module
from qpd.students.architecture import NATURE_CONVOLUTIONS
from qpd.teachers import Teacher
from qpd.teachers.archive.vec_normalize import ObservationNormalization
from qpd.teachers.networks.actor import Actor, ActorLayer, actor_of


def student_actions_of(teacher: Teacher) -> ActionSpace:
    """Return the agent's actions, as the student's outputs have to be read.

    Under gSDE the means of SAC and TQC are clipped, which a student's head does not do.
    """
    actions, bound = teacher.actions, actor_of(teacher.network, teacher.activation).bound
    return replace(actions, mean_bound=bound) if isinstance(actions, Box) and bound else actions


def why_no_student(teacher: Teacher) -> str | None:
    """Return why no student has the agent's outputs, None if one does."""
    actor = actor_of(teacher.network, teacher.activation)
    for layer in actor.layers[:-1]:
        if activation_of_module(layer.activation or "Identity") is None:
            known = ", ".join(entry.module.__name__ for entry in ACTIVATIONS.values())
            return f"its hidden layers have {layer.activation}; integers know {known}"
        if teacher.is_image and layer.activation != "ReLU":
            return f"it sees images and has {layer.activation}; integers of images know ReLU"
    if len(actor.layers) - 1 > MAX_LAYERS:
        return f"it has {len(actor.layers) - 1} hidden layers; integers have at most {MAX_LAYERS}"
    has_convolutions = actor.layers[0].weight.dim() == 4
    if teacher.is_image and not has_convolutions:
        return "it sees images without convolutions; integers know NatureCNN and vectors"
    if not teacher.is_image and len(teacher.observation_shape) != 1:
        return f"it sees observations of shape {teacher.observation_shape}; integers know vectors"
    return None


def balances(teacher: Teacher) -> bool:
    """Tell whether a factor moves through the agent's hidden layers, as through ReLU."""
    actor = actor_of(teacher.network, teacher.activation)
    return all(layer.activation == "ReLU" for layer in actor.layers[:-1])


def agent_student(
    teacher: Teacher,
    low: Tensor,
    high: Tensor,
    stacks_frames: bool | None = None,
    *,
    clips: bool = True,
) -> Student:
    """Return the student that computes the agent's outputs; its critic is zero.

    `low` and `high`, float32 `[features]`, are the input range of vectors, beyond which inputs are
    clipped (ignored for images); statistics of VecNormalize clip too, unless `clips` is off: then
    the range is taken as it is. `stacks_frames` is as in StudentArchitecture. Raises
    AgentQuantizationError.
    """
    reason = why_no_student(teacher)
    if reason is not None:
        raise AgentQuantizationError(f"{teacher.source}: {reason}")
    actor = _with_hidden_layer(actor_of(teacher.network, teacher.activation))
    layers = actor.layers
    convolutions = [layer for layer in layers if layer.weight.dim() == 4]
    architecture = StudentArchitecture(
        teacher.observation_shape,
        teacher.actions.num_outputs,
        tuple(len(layer.weight) for layer in convolutions),
        tuple(len(layer.weight) for layer in layers[len(convolutions) : -1]),
        activation_of_module(layers[0].activation or "ReLU") or "relu",
        stacks_frames,
    )
    assert len(convolutions) in (0, NATURE_CONVOLUTIONS)
    student = Student(architecture).requires_grad_(False)
    for layer in layers:
        student.layer(layer.name).weight.copy_(layer.weight)
        student.bias(layer.name).copy_(layer.bias)
    for parameter in student.critic.parameters():
        parameter.zero_()
    _see_observations(student, teacher, layers[0], low, high, clips)
    return _in_the_actions_units(student, teacher)


def _with_hidden_layer(actor: Actor) -> Actor:
    """Give a linear policy a hidden layer: y = ReLU(y) - ReLU(-y); students have one or more."""
    if len(actor.layers) > 1:
        return actor
    (head,) = actor.layers
    eye = torch.eye(len(head.weight))
    hidden = replace(
        head,
        name="linear1",
        weight=torch.cat([head.weight, -head.weight]),
        bias=torch.cat([head.bias, -head.bias]),
        activation="ReLU",
    )
    zeros = torch.zeros(len(head.weight))
    end = ActorLayer("actor", torch.cat([eye, -eye], 1), zeros, None, 2 * len(eye))
    return replace(actor, layers=(hidden, end))


def _see_observations(
    student: Student, teacher: Teacher, first: ActorLayer, low: Tensor, high: Tensor, clips: bool
) -> None:
    """Let layer 1 read what a student reads: pixels / 255, or shares of each feature's range."""
    module, bias = student.layer(first.name), student.bias(first.name)
    if teacher.is_image:
        if not teacher.scales_images:
            module.weight.mul_(255.0)
        return
    # float64: means and deviations of VecNormalize are, and offsets may cancel.
    mean, deviation = torch.zeros(len(low)).double(), torch.ones(len(low)).double()
    if teacher.normalization is not None:
        mean, deviation = _moments(teacher.normalization)
    if clips:
        low, high = within_clip(teacher.normalization, low, high)
    student.set_input_range(low.float(), high.float())
    low, high = student.input_low.double(), student.input_high.double()
    weight = first.weight.double()
    bias.copy_(first.bias.double() + weight @ ((low - mean) / deviation))
    module.weight.copy_(weight * ((high - low) / deviation))


def within_clip(
    statistics: ObservationNormalization | None, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the part of each feature's range, `[features]`, that VecNormalize does not clip.

    Of a feature that lies beyond its clip from end to end all that is not clipped is returned: its
    clipped value is one of the two ends.
    """
    if statistics is None:
        return low, high
    mean, deviation = _moments(statistics)
    clip = torch.as_tensor(statistics.clip_obs, dtype=torch.float64) * deviation
    least, most = mean - clip, mean + clip
    is_beyond = (low >= most) | (high <= least)
    return (
        torch.where(is_beyond, least, torch.maximum(low, least)),
        torch.where(is_beyond, most, torch.minimum(high, most)),
    )


def _moments(statistics: ObservationNormalization) -> tuple[Tensor, Tensor]:
    """Return VecNormalize's means and deviations, float64 `[features]`."""
    return torch.from_numpy(statistics.mean), torch.from_numpy(statistics.deviation)


def _in_the_actions_units(student: Student, teacher: Teacher) -> Student:
    """Let the head answer in the range's units where actions are clipped, not squashed."""
    if isinstance(teacher.actions, Box) and teacher.actions.squash == "clip":
        low, high = (torch.from_numpy(bound).double() for bound in teacher.actions.bounds)
        half = 0.5 * (high - low)
        student.actor.weight.copy_(student.actor.weight.double() / half[:, None])
        student.actor.bias.copy_((student.actor.bias.double() - 0.5 * (low + high)) / half)
    return student
