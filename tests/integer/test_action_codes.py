"""Codes of continuous actions: thresholds on accumulators are the squash and the rounding."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpd.actions import Box
from qpd.integer.action_codes import action_codes, action_thresholds

ONE = {squash: Box((-1.0,), (1.0,), squash) for squash in ("clip", "tanh")}


def test_two_bits_by_hand() -> None:
    """Codes 0 to 3 are the shares -1, -1/3, 1/3, 1; they change at -2/3, 0 and 2/3."""
    assert action_thresholds(ONE["clip"], 0.25, 2).tolist() == [-2, 0, 3]  # -2.7, 0, 2.7, up
    # atanh(2/3) = ln(5)/2 = 0.805
    assert action_thresholds(ONE["tanh"], 0.25, 2).tolist() == [-3, 0, 4]
    codes = action_codes(np.array([[-3, -2, -1], [0, 2, 3]], np.int32), np.array([-2, 0, 3]))
    assert codes.dtype == np.uint8 and codes.tolist() == [[0, 1, 1], [2, 2, 3]]


@given(
    st.sampled_from(["clip", "tanh"]),
    st.integers(2, 8),
    st.floats(1e-8, 0.5),
    st.lists(st.floats(-4.0, 4.0), min_size=1, max_size=30),
)
def test_codes_are_the_rounded_squash(
    squash: str, bits: int, scale: float, means: list[float]
) -> None:
    top = 2**bits - 1
    thresholds = action_thresholds(ONE[squash], scale, bits)  # type: ignore[index]
    rises = np.diff(thresholds.astype(np.int64))
    assert len(thresholds) == top and (rises >= 0).all()
    if scale <= 2.0 / top:  # an accumulator's step is no more than a code's
        assert (rises > 0).all()
    accumulators = np.array([round(mean / scale) for mean in means], np.int32)
    both = np.concatenate([accumulators, thresholds, thresholds - 1])
    codes = action_codes(both, thresholds)
    for accumulator, code in zip(both.tolist(), codes.tolist(), strict=True):
        mean = accumulator * scale
        share = math.tanh(mean) if squash == "tanh" else min(max(mean, -1.0), 1.0)
        exact = (share + 1.0) / 2.0 * top + 0.5
        # float64 decides no tie; one code on either side of it is right there.
        near = abs(exact - round(exact)) < 1e-9
        assert code == math.floor(exact) or (near and abs(code - exact) < 1.0 + 1e-9)


@pytest.mark.parametrize("squash", ["clip", "tanh"])
def test_a_tiny_unit_leaves_int32_no_codes_out_of_order(squash: str) -> None:
    thresholds = action_thresholds(ONE[squash], 1e-12, 8)  # type: ignore[index]
    assert (np.diff(thresholds.astype(np.int64)) >= 0).all()
