"""Bias correction: what rounded weights add to every state is taken from the bias.

Inputs and activations are not negative, so the rounding errors of a row's weights add up to an
offset that hardly depends on the state. It is known from a few states, and costs nothing to take
away (Nagel et al. 2019, section 4.2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from qpd.quantization.quantization_error import dequantized_weight
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students.student import INPUT_LEVELS


@torch.no_grad()
def correct_biases(simulation: QuantizedStudent, observations: Tensor) -> None:
    """Subtract from each bias the mean error of its layer's weights, on the float activations.

    Call it before `calibrate`. observations: uint8 frames (blocked or not) or float32 vectors,
    `[batch, ...]`.
    """
    student = simulation.student
    inputs, apply = student.inputs_and_layers(observations)
    inputs = inputs.float() / INPUT_LEVELS
    for position, shape in enumerate(student.shapes):
        weight, bias = student.layer(shape.name).weight, student.bias(shape.name)
        mapped = apply(shape, inputs, weight, bias)
        error = dequantized_weight(simulation, position) - weight
        offsets = apply(shape, inputs, error, None)
        bias.sub_(offsets.mean([axis for axis in range(offsets.dim()) if axis != 1]))
        inputs = student.architecture.function(mapped)
