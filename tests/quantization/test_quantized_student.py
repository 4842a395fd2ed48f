"""A student seen through its quantizers."""

from __future__ import annotations

import pytest
import torch

from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, architecture_for


@pytest.mark.parametrize("factor", [1.0, 1e-5, 1e-8])
def test_a_heads_size_decides_nothing(factor: float) -> None:
    """Q-values may all be small: their order in 8 bits is that of larger ones."""
    student = Student(architecture_for("mlp-16", (4,), 6))
    seen = torch.rand(500, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        student.actor.weight.mul_(100 * factor)
        student.actor.bias.zero_()
        wanted = student(seen)[0].argmax(1)
        quantized = QuantizedStudent(student, QuantizationConfig())
        assert (quantized(seen)[0].argmax(1) == wanted).float().mean() > 0.93


def test_a_scale_that_learns_stays_positive() -> None:
    quantized = QuantizedStudent(Student(architecture_for("mlp-16", (4,), 6)), QuantizationConfig())
    with torch.no_grad():
        for scale in quantized.weight_scales.values():
            scale.sub_(1e3)
    quantized.keep_ranges_positive()
    assert all((scale > 0).all() for scale in quantized.weight_scales.values())
