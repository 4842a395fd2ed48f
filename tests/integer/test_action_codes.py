"""Codes of continuous actions: thresholds on integers are squash and rounding in one."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpd.actions import ActingRule, Box, Discrete
from qpd.integer.action_codes import OutputGrid, action_codes, action_thresholds
from qpd.integer.integer_student import IntegerEngine, integer_student
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, StudentArchitecture


def test_thresholds_by_hand() -> None:
    # 2 bits: codes begin at -2/3, 0 and 2/3 of the range of 2; a unit of 0.1 reaches them at -6, 0
    # and 7.
    found = action_thresholds(Box((0.0,), (1.0,)), 0.1, 2)
    assert found.tolist() == [-6, 0, 7] and found.dtype == np.int32
    codes = action_codes(np.array([[-100, -7, -6, -1], [0, 6, 7, 100]], np.int32), found)
    assert codes.tolist() == [[0, 0, 1, 1], [2, 2, 3, 3]] and codes.dtype == np.uint8


def test_means_are_rounded_to_a_grid_first() -> None:
    # Means are -1, -0.5, 0 or 0.5: codes of 3 bits begin at (2c - 1) / 7 - 1, that is -0.857,
    # -0.571, -0.286, 0, 0.286, 0.571 and 0.857, where 0.571 and 0.857 are out of reach and -0.857
    # is reached by -0.5, which begins at -0.75.
    found = action_thresholds(Box((0.0,), (1.0,)), 0.01, 3, OutputGrid(0.5, 2))
    assert found[:5].tolist() == [-75, -75, -25, -25, 25]
    assert (found[5:] > 10**6).all()


@given(bits=st.integers(2, 8), step=st.floats(1e-3, 0.5), grid_bits=st.integers(2, 8))
def test_codes_of_a_grid_are_those_of_its_means(bits: int, step: float, grid_bits: int) -> None:
    box, unit = Box((0.0,), (1.0,), "tanh"), 1.3e-4
    accumulators = np.arange(-40_000, 40_000, 7, dtype=np.int32)
    most = 2 ** (grid_bits - 1)
    levels = np.floor(accumulators * unit / step + 0.5).clip(-most, most - 1)
    exact = (np.tanh(levels * step) + 1.0) / 2.0 * (2**bits - 1)
    codes = action_codes(
        accumulators, action_thresholds(box, unit, bits, OutputGrid(step, grid_bits))
    )
    halves = accumulators * unit / step + 0.5
    clear = (np.abs(exact - np.floor(exact) - 0.5) > 1e-9) & (
        np.abs(halves - np.round(halves)) > 1e-9
    )
    np.testing.assert_array_equal(codes[clear], np.floor(exact + 0.5)[clear])


@pytest.mark.parametrize("squash", ["clip", "tanh"])
@given(bits=st.integers(2, 8), unit=st.floats(1e-7, 10.0), seed=st.integers(0, 2**31))
def test_codes_are_the_squashed_mean_rounded(
    squash: Literal["clip", "tanh"], bits: int, unit: float, seed: int
) -> None:
    scale = int(min(4 / unit, 2**31 - 1)) + 1
    accumulators = np.random.default_rng(seed).integers(-scale, scale, 200, dtype=np.int64)
    means = accumulators * unit
    shares = np.tanh(means) if squash == "tanh" else np.clip(means, -1.0, 1.0)
    exact = (shares + 1.0) / 2.0 * (2**bits - 1)
    # Where float64 cannot tell which side of a half it is on, either code is right.
    clear = np.abs(exact - np.floor(exact) - 0.5) > 1e-9
    thresholds = action_thresholds(Box((0.0,), (1.0,), squash), unit, bits)
    codes = action_codes(accumulators.astype(np.int32), thresholds)
    np.testing.assert_array_equal(codes[clear], np.floor(exact + 0.5)[clear])
    rises = np.diff(thresholds.astype(np.int64))
    # Two codes may share a threshold only where one accumulator's step is more than a code's.
    assert (rises >= (1 if unit <= 2.0 / (2**bits - 1) else 0)).all()


@pytest.mark.parametrize("squash", ["clip", "tanh"])
def test_the_engine_acts_by_its_codes(squash: Literal["clip", "tanh"]) -> None:
    student = Student(StudentArchitecture((4,), 2, (), (16,)), seed=1)
    student.scale_outputs(500.0)
    simulation = QuantizedStudent(student, QuantizationConfig())
    actions = Box((0.0, -2.0), (1.0, 2.0), squash)
    engine = IntegerEngine(integer_student(simulation, actions, action_bits=3))
    inputs = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    codes = engine.codes(inputs)
    assert codes is not None and len(np.unique(codes)) == 8
    taken = engine.actions.act(engine(inputs), ActingRule("greedy"), np.random.default_rng(0))
    wanted = codes / 7.0 * [1.0, 4.0] + [0.0, -2.0]
    np.testing.assert_allclose(taken, wanted, atol=1e-6)
    # Within half a step of the action of the accumulators themselves.
    outputs = engine.integer_outputs(inputs) * np.float32(engine.student.output_scale)
    plain = actions.act(outputs, ActingRule("greedy"), np.random.default_rng(0))
    assert (np.abs(plain - taken) <= np.array([0.5, 2.0]) / 7.0 + 1e-5).all()


def test_other_actions_have_no_codes() -> None:
    student = Student(StudentArchitecture((4,), 2, (), (16,)), seed=1)
    integers = integer_student(QuantizedStudent(student, QuantizationConfig()), Discrete(2))
    assert integers.action_thresholds is None
    assert IntegerEngine(integers).codes(np.zeros((1, 4), np.float32)) is None


def test_a_unit_beyond_int32_gives_codes_all_the_same() -> None:
    # No accumulator reaches the ends: 2^31 units of 1e-12 are 0.002.
    thresholds = action_thresholds(Box((0.0,), (1.0,)), 1e-12, 2)
    assert thresholds.tolist() == [-(2**31), 0, 2**31 - 1]
    assert math.isclose(2**31 * 1e-12, 0.002, rel_tol=0.1)


def test_codes_stop_where_means_are_clipped() -> None:
    """tanh(2) = 0.964 is code 250.4 of 255: 250 is reached at 2, 251 and more are not."""
    clipped = Box((0.0,), (1.0,), "tanh", mean_bound=2.0)
    found = action_codes(np.array([-(10**9), -2000, 0, 2000, 10**9], np.int32),
                         action_thresholds(clipped, 1e-3, 8))  # fmt: skip
    assert found.tolist() == [5, 5, 128, 250, 250]
    # Where no mean comes near it, the bound changes nothing.
    wide, free = Box((0.0,), (1.0,), "tanh", mean_bound=9.0), Box((0.0,), (1.0,), "tanh")
    assert np.array_equal(action_thresholds(wide, 1e-3, 8), action_thresholds(free, 1e-3, 8))
