"""Calibrated ranges by hand."""

from __future__ import annotations

import pytest
import torch

from qpd.quantization.calibration import best_range, calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, StudentArchitecture


def test_the_range_with_the_least_error_by_hand() -> None:
    # One level: ones become r, or 0 beyond r = 2, and the ten becomes r. The error 99 (1 - r)^2 +
    # (10 - r)^2 is least at r = 1.09; of the 64ths of 10 that is 7: 1.09375.
    values = torch.tensor([1.0] * 99 + [10.0])
    assert best_range(values, 1, 100.0) == pytest.approx(10 * 7 / 64)
    # Zeros are exact in any range, and change nothing.
    assert best_range(torch.cat([values, torch.zeros(1000)]), 1, 100.0) == pytest.approx(70 / 64)
    assert best_range(torch.zeros(5), 255, 100.0) == 1.0


def test_the_percentile_is_of_what_is_positive() -> None:
    # With 255 levels nothing is worth clipping: the range is the percentile. Of 1, 2 ... 100 the
    # half's is 50.5, however many zeros are beside them.
    values = torch.cat([torch.arange(1.0, 101.0), torch.zeros(900)])
    assert best_range(values, 255, 100.0) == pytest.approx(100.0)
    assert best_range(values, 255, 50.0) == pytest.approx(50.5)


def test_a_layer_is_calibrated_by_hand() -> None:
    """y = relu(2 x + 1) of x in 0..1: 1 to 3."""
    student = Student(StudentArchitecture((1,), 1, (), (1,)), seed=0).requires_grad_(False)
    student.layer("linear1").weight.fill_(2.0)
    student.layer("linear1").bias.fill_(1.0)  # type: ignore[union-attr]
    simulation = QuantizedStudent(student, QuantizationConfig(8, 8))
    calibrate(simulation, torch.tensor([[0.0], [0.5], [1.0]]))
    assert simulation.activation_ranges.tolist() == pytest.approx([3.0], rel=0.02)
