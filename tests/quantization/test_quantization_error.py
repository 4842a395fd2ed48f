"""Signal to quantization noise, by hand and on real students."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qpd.actions import Discrete
from qpd.integer.integer_student import integer_student
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantization_error import dequantized_weight, quantization_errors, sqnr_db
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, StudentArchitecture


def simulation(bits: int, scheme: str = "dorefa_scaled") -> QuantizedStudent:
    student = Student(StudentArchitecture((4,), 3, (), (16,)), seed=1)
    with torch.no_grad():
        student.actor.weight.mul_(100)  # it begins at a hundredth
    student.set_input_range(torch.zeros(4), torch.ones(4))
    config = QuantizationConfig(bits, 8, None, None, scheme, True, True)  # type: ignore[arg-type]
    made = QuantizedStudent(student, config)
    with torch.no_grad():
        made.activation_ranges.fill_(3.0)
    return made


def test_by_hand() -> None:
    # signal 3^2 + 4^2 = 25, noise 1: 10 log10 25
    assert sqnr_db(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.0])) == pytest.approx(13.9794001)
    # an error of 10% in every element is 20 dB
    x = torch.linspace(-1, 1, 11)
    assert sqnr_db(x, 1.1 * x) == pytest.approx(20.0, abs=1e-4)
    assert sqnr_db(x, x) == math.inf
    assert sqnr_db(torch.zeros(2), torch.ones(2)) == -math.inf


@given(st.floats(0.01, 100.0), st.integers(0, 1000))
def test_scale_does_not_matter(factor: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, noise = torch.randn(2, 50, generator=generator)
    assert sqnr_db(factor * x, factor * (x + 0.1 * noise)) == pytest.approx(
        sqnr_db(x, x + 0.1 * noise), abs=1e-3
    )


@pytest.mark.parametrize("scheme", ["dorefa_scaled", "dorefa"])
def test_dequantized_weights_are_the_deployed_integers(scheme: str) -> None:
    made = simulation(4, scheme)
    for position, layer in enumerate(integer_student(made, Discrete(4)).layers):
        _, unit = made.integer_weight(position)
        expected = torch.from_numpy(layer.weight).float() * unit.detach()[:, None]
        assert torch.equal(dequantized_weight(made, position), expected)


def test_more_bits_are_less_noise() -> None:
    observations = torch.rand(200, 4, generator=torch.Generator().manual_seed(0))
    found = [quantization_errors(simulation(bits), observations, Discrete(4)) for bits in (2, 4, 8)]
    for name in ("sqnr_db/linear1", "sqnr_db/actor", "sqnr_db/outputs"):
        two, four, eight = (errors[name] for errors in found)
        assert two + 6 < four < eight - 6, name
    assert 0.9 < found[2]["same_action"] <= 1.0
    assert found[2]["sqnr_db/linear1"] > 35
