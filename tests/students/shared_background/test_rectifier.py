"""ReLU by the bits is ReLU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qpd.students.shared_background.rectifier import rectified_gradient, rectify

torch.set_num_threads(1)

FLOATS = [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", FLOATS)
@settings(deadline=None)
@given(numbers=st.lists(st.floats(width=32, allow_nan=False), min_size=1))
def test_it_is_relu(dtype: torch.dtype, numbers: list[float]) -> None:
    values = torch.tensor([*numbers, -0.0, float("inf"), -float("inf")]).to(dtype).requires_grad_()
    expected = torch.relu(values)
    gradient = torch.linspace(-3, 3, len(values)).to(dtype)
    (expected_gradient,) = torch.autograd.grad(expected, values, gradient)
    rectified = rectify(values.detach().clone())
    assert torch.equal(rectified, expected)
    assert torch.equal(rectified_gradient(gradient, rectified), expected_gradient)


def test_only_a_nan_of_positive_sign_passes() -> None:
    bits = torch.tensor([0x7FC0, 0xFFC0 - 0x10000], dtype=torch.int16)
    rectified = rectify(bits.view(torch.bfloat16))
    assert rectified.isnan().tolist() == [True, False] and rectified[1] == 0


def test_a_gradient_can_be_written_into_a_part_of_another() -> None:
    activations = torch.tensor([[0.0, 2.0], [1.0, 0.0]], dtype=torch.bfloat16)
    whole = torch.full((2, 3), 9.0, dtype=torch.bfloat16)
    gradient = torch.tensor(-5.0, dtype=torch.bfloat16).expand(2, 2)  # what sum() hands back
    rectified_gradient(gradient, activations, out=whole[:, :2])
    assert whole.tolist() == [[0.0, -5.0, 9.0], [-5.0, 0.0, 9.0]]
