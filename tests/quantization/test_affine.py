"""Eq. 4 with hand-computed numbers, and its properties."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from qpd.quantization.affine import affine_dequantize, affine_quantize

torch.set_num_threads(1)

TENSORS = arrays.arrays(
    np.float64, st.integers(2, 40), elements=st.floats(-1e3, 1e3, allow_subnormal=False)
)


def test_eq4_by_hand() -> None:
    # min -1, max 1, k = 2: (w + 1) * 3 / 2 = (0, 1.5, 2.25, 1.2, 3); 1.5 is rounded to even.
    levels = affine_quantize(torch.tensor([-1.0, 0.0, 0.5, -0.2, 1.0]), 2)
    assert levels.tolist() == [0, 2, 2, 1, 3]
    # k = 8: (w + 1) * 255 / 2 = 127.5 * (w + 1): 191.25 at 0.5, 102 at -0.2.
    levels = affine_quantize(torch.tensor([-1.0, 0.5, -0.2, 1.0]), 8)
    assert levels.tolist() == [0, 191, 102, 255]


def test_dequantized_by_hand() -> None:
    # 0..3 over [-1, 2] stand for -1, 0, 1, 2.
    values = affine_dequantize(torch.arange(4.0), torch.tensor(-1.0), torch.tensor(2.0), 2)
    assert values.tolist() == [-1, 0, 1, 2]


def test_uint8_frames_are_exact_in_8_bits() -> None:
    frame = torch.arange(256.0).reshape(16, 16)
    assert torch.equal(affine_quantize(frame, 8), frame)


@pytest.mark.parametrize("value", [0.0, -3.5, 1e6])
def test_a_constant_tensor_maps_to_zero(value: float) -> None:
    assert torch.equal(affine_quantize(torch.full((2, 3), value), 8), torch.zeros(2, 3))


@given(array=TENSORS, bits=st.integers(2, 8))
def test_levels_are_integers_that_fill_the_range(array: np.ndarray, bits: int) -> None:
    assume(np.ptp(array) > 1e-6)
    levels = affine_quantize(torch.from_numpy(array), bits)
    assert torch.equal(levels, levels.round())
    assert levels.min() == 0 and levels.max() == 2**bits - 1
    order = np.argsort(array, kind="stable")
    assert (np.diff(levels.numpy()[order]) >= 0).all()


@given(array=TENSORS, bits=st.integers(2, 8))
def test_error_is_at_most_half_a_step_and_quantizing_twice_changes_nothing(
    array: np.ndarray, bits: int
) -> None:
    assume(np.ptp(array) > 1e-6)
    x = torch.from_numpy(array)
    levels = affine_quantize(x, bits)
    values = affine_dequantize(levels, x.amin(), x.amax(), bits)
    step = np.ptp(array) / (2**bits - 1)
    assert (values - x).abs().max() <= step / 2 * (1 + 1e-6)
    assert torch.equal(affine_quantize(values, bits), levels)
