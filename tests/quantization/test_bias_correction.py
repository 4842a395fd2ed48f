"""Bias correction: the mean error of rounded weights is gone, and nothing else has changed."""

from __future__ import annotations

import pytest
import torch

from qpd.quantization.bias_correction import correct_biases
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantization_error import dequantized_weight
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, StudentArchitecture, architecture_for


def test_by_hand() -> None:
    """Input levels 51 and 153, of 255, have the mean 0.4; what 0.4 x error adds is taken away."""
    student = Student(StudentArchitecture((1,), 1, (), (1,)), seed=0).requires_grad_(False)
    student.layer("linear1").weight.fill_(0.9)
    student.layer("linear1").bias.fill_(0.5)  # type: ignore[union-attr]
    simulation = QuantizedStudent(student, QuantizationConfig(2, 8))
    simulation.weight_scales["linear1"].data.fill_(1.2)  # 0.9 becomes 1.2 * 3 / 3
    assert dequantized_weight(simulation, 0).item() == pytest.approx(1.2)
    correct_biases(simulation, torch.tensor([[0.2], [0.6]]))
    assert student.bias("linear1").item() == pytest.approx(0.5 - 0.4 * 0.3)


@pytest.mark.parametrize(("size", "shape"), [("XXS", (4, 84, 84)), ("mlp-16-16", (6,))])
def test_every_layer_s_mean_error_is_gone(size: str, shape: tuple[int, ...]) -> None:
    student = Student(architecture_for(size, shape, 4), seed=1).requires_grad_(False)
    torch.manual_seed(0)
    seen = (
        torch.randint(0, 256, (8, *shape), dtype=torch.uint8)
        if student.architecture.is_image
        else torch.rand(64, *shape)
    )
    simulation = QuantizedStudent(student, QuantizationConfig(3, 8))
    # What each layer sees in float, before anything is corrected.
    levels, apply = student.inputs_and_layers(seen)
    entering = [levels.float() / 255, *(each.clone() for each in student.hidden_activations(seen))]
    weights = [dequantized_weight(simulation, p) for p in range(len(student.shapes))]
    biases = [student.bias(each.name).clone() for each in student.shapes]
    correct_biases(simulation, seen)
    for shape, weight, bias, inputs in zip(student.shapes, weights, biases, entering, strict=True):
        error = weight - student.layer(shape.name).weight
        offsets = apply(shape, inputs, error, None)
        mean = offsets.mean([axis for axis in range(offsets.dim()) if axis != 1])
        torch.testing.assert_close(bias - student.bias(shape.name), mean, rtol=1e-4, atol=1e-6)
