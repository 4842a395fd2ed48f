"""Histograms of gradient exponents: counts and shares by hand, on any numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.gradient_exponents import LOWEST, GradientExponents

FP16 = FloatFormat.parse("fp16")


def count(found: GradientExponents, exponent: int) -> int:
    return found.counts[exponent - LOWEST]


def test_counts_by_hand() -> None:
    smallest = 2.0**-149
    found = GradientExponents.of(
        [torch.tensor([[1.0, -1.5], [2.0, 0.75]]), torch.tensor([0.0, -0.0, smallest, math.inf])]
    )
    assert count(found, 0) == 2  # 1 and 1.5
    assert (count(found, 1), count(found, -1), count(found, -149)) == (1, 1, 1)
    assert (found.zeros, found.not_finite, found.total) == (2, 1, 8)
    assert sum((found + found).counts) == 2 * sum(found.counts) == 10


def test_shares_of_fp16_and_where_a_scale_moves_them() -> None:
    numbers = [0.0, 2.0**-26, 2.0**-24, 2.0**-15, 2.0**-14, 1.0, 40_000.0, 2.0**16]
    found = GradientExponents.of([torch.tensor(numbers)])
    names = ["zero", "lost", "subnormal", "normal", "overflow"]
    assert found.shares(FP16) == dict(zip(names, [1 / 8, 1 / 8, 2 / 8, 3 / 8, 1 / 8], strict=True))
    # Three binades up: 2^-26 becomes 2^-23, 2^-15 normal, and 40,000 overflows.
    assert found.shares(FP16, 8.0) == dict(zip(names, [1 / 8, 0, 2 / 8, 3 / 8, 2 / 8], strict=True))
    with pytest.raises(ValueError, match="no power of two"):
        found.shares(FP16, 3.0)


def test_the_scale_that_fits() -> None:
    # SSD of the paper: nothing above 2^0 here; fp16's top binade is 2^15, one stays free.
    found = GradientExponents.of([torch.tensor([1.99, 1e-9])])
    assert found.fitting_scale(FP16) == 2.0**14
    assert found.fitting_scale(FP16, headroom=0) == 2.0**15
    assert GradientExponents.of([torch.zeros(3)]).fitting_scale(FP16) == 1.0


@given(st.lists(st.floats(width=32), max_size=64))
def test_the_fitting_scale_fits_and_nothing_is_uncounted(numbers: list[float]) -> None:
    found = GradientExponents.of([torch.tensor(numbers)])
    assert found.total == len(numbers)
    assert not numbers or sum(found.shares(FP16).values()) == pytest.approx(1.0)
    scale = found.fitting_scale(FP16, headroom=0)
    finite = [abs(x) * scale for x in numbers if math.isfinite(x)]
    # The top binade of fp16 is [2^15, 2^16).
    assert all(x < 2.0**16 for x in finite)
    assert not any(finite) or max(finite) >= 2.0**15
