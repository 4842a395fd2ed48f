"""ReLU by the bits is ReLU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from students.rectifier import rectified_gradient, rectify

torch.set_num_threads(1)

FLOATS = [torch.bfloat16, torch.float32, torch.float64]


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


def test_a_gradient_can_be_written_into_a_part_of_another() -> None:
    activations = torch.tensor([[0.0, 2.0], [1.0, 0.0]], dtype=torch.bfloat16)
    whole = torch.full((2, 3), 9.0, dtype=torch.bfloat16)
    rectified_gradient(torch.full_like(activations, -5.0), activations, out=whole[:, :2])
    assert whole.tolist() == [[0.0, -5.0, 9.0], [-5.0, 0.0, 9.0]]
