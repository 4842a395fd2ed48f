"""Biases that are large beside their weights and inputs: int32 holds them, or one line says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qpd.actions import Discrete
from qpd.integer.integer_student import IntegerEngine, WideBiasError, integer_student
from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, StudentArchitecture

SEEN = torch.rand(64, 5, generator=torch.Generator().manual_seed(0))


def small_student(activation: str, factor: float) -> Student:
    """Outputs of about -1 by the bias alone: a head of `factor` reads activations below 0.1."""
    student = Student(StudentArchitecture((5,), 3, (), (16, 16), activation), seed=0)
    with torch.no_grad():
        student.layer("linear1").weight.mul_(0.05)
        student.layer("linear2").weight.mul_(1e-6 if activation == "tanh" else 1.0)
        student.actor.weight.mul_(factor)
        student.actor.bias.copy_(torch.tensor([-1.0, -2.0, 3.0]))
    return student


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("activation", ["relu", "elu", "tanh"])
def test_integers_hold_a_bias_beside_tiny_weights_and_inputs(
    activation: str, per_channel: bool
) -> None:
    student = small_student(activation, 1e-4)
    simulation = QuantizedStudent(student, QuantizationConfig(8, 8, per_channel=per_channel))
    calibrate(simulation, SEEN)
    found = IntegerEngine(integer_student(simulation, Discrete(3)))(SEEN.numpy())
    with torch.no_grad():
        np.testing.assert_allclose(found, student(SEEN)[0].numpy(), atol=1e-3)


def test_a_range_that_shrinks_lifts_the_scale() -> None:
    simulation = QuantizedStudent(small_student("relu", 1e-4), QuantizationConfig(8, 8))
    calibrate(simulation, SEEN)
    with torch.no_grad():  # as training might
        simulation.activation_ranges.fill_(0.01)
        simulation.weight_scales["actor"].fill_(1e-4)
    with pytest.raises(WideBiasError, match="a bias of actor is beyond 32 bits"):
        integer_student(simulation, Discrete(3))
    simulation.keep_ranges_positive()
    outputs = IntegerEngine(integer_student(simulation, Discrete(3)))(SEEN.numpy())
    np.testing.assert_allclose(outputs.mean(0), [-1, -2, 3], atol=1e-2)
