"""A student seen through its quantizers."""

from __future__ import annotations

import pytest
import torch

from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, StudentArchitecture, architecture_for


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


def test_the_critic_reads_values_not_levels() -> None:
    """At x = 1 the unit is 2 + 1, the top of its range, and the value 4 * 3 + 5."""
    student = Student(StudentArchitecture((1,), 1, (), (1,)), seed=0).requires_grad_(False)
    student.layer("linear1").weight.fill_(2.0)
    student.bias("linear1").fill_(1.0)
    student.critic.weight.fill_(4.0)
    student.critic.bias.fill_(5.0)
    simulation = QuantizedStudent(student, QuantizationConfig(8, 8))
    with torch.no_grad():
        simulation.activation_ranges.fill_(3.0)
        found = simulation(torch.tensor([[1.0], [0.0]])).values
    assert found.tolist() == pytest.approx([17.0, 9.0], abs=0.05)  # half a level is 0.006
