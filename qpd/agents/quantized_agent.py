"""An agent seen through quantizers: its own actor, on rounded weights and perhaps activations.

In float arithmetic: weights, and activations where they have bits, take few values, but products
are float32. Biases stay float, and critics, which no action depends on, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qpd.actions import Box
from qpd.environments.policy import FunctionPolicy, Policy
from qpd.numerics.feature_range import feature_range
from qpd.quantization.affine import affine_values
from qpd.quantization.weight_quantizer import WeightQuantizer
from qpd.students.affine import affine_levels
from qpd.students.student import INPUT_LEVELS
from qpd.teachers import Teacher
from qpd.teachers.networks.actor import Actor, ActorLayer, activate, actor_of

_STATES_AT_ONCE = 256


@dataclass(frozen=True)
class ActivationRanges:
    """The ranges of activations, fixed beforehand.

    `bits` of each activation; `low` and `high`, float32 `[features]`, of the network's inputs,
    which have 8 bits (None: images, bytes already); `hidden`: both ends for each hidden layer.
    """

    bits: int
    low: Tensor | None
    high: Tensor | None
    hidden: tuple[tuple[float, float], ...]

    def inputs(self, inputs: Tensor) -> Tensor:
        """Return a network's inputs `[batch, features]` in 8 bits."""
        if self.low is None or self.high is None:
            return inputs
        levels = affine_levels(inputs, self.low, self.high, INPUT_LEVELS)
        return self.low + levels * ((self.high - self.low) / INPUT_LEVELS)

    def activations(self, position: int, activations: Tensor) -> Tensor:
        """Return the activations of hidden layer `position` in `bits`; outputs stay as they are."""
        if position >= len(self.hidden):
            return activations
        return affine_values(activations, *self.hidden[position], self.bits)


def has_one_scale(teacher: Teacher, layer: ActorLayer) -> bool:
    """Tell whether the outputs of a layer are compared with each other: a head of Q-values."""
    return layer.activation is None and teacher.actions.has_values


def quantized_actor(teacher: Teacher, quantizer: WeightQuantizer) -> Actor:
    """Return the agent's actor with quantized weights. Raises HalfRangeError."""
    actor = actor_of(teacher.network, teacher.activation)
    return actor.with_weights(
        [
            quantizer.quantized(
                layer.weight, columns=layer.columns, one_scale=has_one_scale(teacher, layer)
            )
            for layer in actor.layers
        ]
    )


@torch.no_grad()
def activation_ranges(
    teacher: Teacher, actor: Actor, states: np.ndarray, bits: int
) -> ActivationRanges:
    """Return the ranges that the agent's own states ask for, layer after layer.

    states: observations `[n, ...]`. Inputs have a range for each feature, without the rarest
    values (`input_range`); layers the least and the largest activation, with all before quantized.
    """
    seen = teacher.preprocess(torch.from_numpy(states))
    low, high = (None, None) if teacher.is_image else input_range(seen)
    ranges = ActivationRanges(bits, low, high, ())
    values = ranges.inputs(seen)
    for position, layer in enumerate(actor.layers[:-1]):
        values = torch.cat([activate(layer, layer(v)) for v in values.split(_STATES_AT_ONCE)])
        found = float(values.min()), float(values.max())
        ranges = ActivationRanges(bits, low, high, (*ranges.hidden, found))
        values = ranges.activations(position, values)
    return ranges


def input_range(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the range of each of a network's inputs, float32 `[n, features]`, with a margin.

    Rare values are treated as in distillation, see `feature_range`; a constant feature has a range
    so narrow that no layer sees it move.
    """
    low, high = (torch.from_numpy(end) for end in feature_range(inputs.double().numpy()))
    margin = torch.maximum(0.05 * (high - low), 1e-5 * low.abs().clamp(min=1.0))
    return (low - margin).float(), (high + margin).float()


def agent_policy(teacher: Teacher, actor: Actor, ranges: ActivationRanges | None = None) -> Policy:
    """Return the policy of `actor`, an agent's own or a quantized one; it acts as the teacher.

    Its outputs are the teacher's labels, without deviations. With `ranges`, inputs and activations
    are quantized, too.
    """

    @torch.no_grad()
    def outputs(observations: np.ndarray) -> np.ndarray:
        values = teacher.preprocess(torch.from_numpy(observations))
        if ranges is not None:
            values = ranges.inputs(values)
        for position, layer in enumerate(actor.layers):
            values = activate(layer, layer(values))
            if ranges is not None:
                values = ranges.activations(position, values)
        found = actor.clipped(values)
        if isinstance(teacher.actions, Box):
            found = teacher.actions.labels_of(found)
        result: np.ndarray = found.numpy()
        return result

    return FunctionPolicy(outputs, teacher.actions)
