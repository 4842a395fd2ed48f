"""Students of every kind of action but one choice, for the tests of their exports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.random_students import random_student
from qpd.actions import ActionSpace, Box, MultiBinary, MultiDiscrete
from qpd.integer.action_codes import OutputGrid
from qpd.integer.integer_student import IntegerLayer, IntegerStudent, fixed_point
from qpd.students import StudentArchitecture

LOW, HIGH = (-1.0, -2.0, 0.1), (1.0, 3.0, 7.7)
# name -> actions, bits of a code, bits of weights and of activations
KINDS: dict[str, tuple[ActionSpace, int, int, int]] = {
    "clip-8": (Box(LOW, HIGH), 8, 8, 8),
    "clip-2": (Box(LOW, HIGH), 2, 4, 8),
    "clip-5": (Box(LOW, HIGH, labels="deterministic"), 5, 8, 5),
    "tanh-8": (Box(LOW, HIGH, "tanh"), 8, 3, 8),
    "tanh-3": (Box((*LOW, -1.0), (*HIGH, 2.0), "tanh", shape=(2, 2)), 3, 8, 8),
    "tanh-7": (Box(LOW, HIGH, "tanh"), 7, 7, 4),
    # Where a float policy's actions are computed from the middle of the range, a code's are not.
    "wide-clip-8": (Box((0.0, -5000.0), (10000.0, 7000.0)), 8, 8, 8),
    "wide-tanh-8": (Box((0.0, -5000.0), (10000.0, 7000.0), "tanh"), 8, 8, 8),
    "inputs-5": (Box(LOW, HIGH), 8, 8, 8),
    "controller-3": (Box(LOW, HIGH, "tanh"), 8, 3, 3),
    "controller-2": (Box(LOW, HIGH, "tanh"), 8, 2, 2),
    "controller-full-3": (Box(LOW, HIGH, "tanh"), 8, 3, 4),
    "controller-8": (Box(LOW, HIGH, "tanh"), 6, 8, 8),
    "parts": (MultiDiscrete((3, 1, 5, 2)), 8, 8, 8),
    "switches": (MultiBinary(4), 8, 4, 8),
}

# bits of inputs, whether weights are even, and an output's grid, of those that are unusual
WIDE: dict[str, tuple[int, bool, OutputGrid | None]] = {
    "inputs-5": (5, False, None),
    "controller-3": (3, True, OutputGrid(0.05, 6)),
    "controller-2": (2, True, OutputGrid(0.02, 8)),
    "controller-full-3": (4, True, OutputGrid(0.1, 4)),
    "controller-8": (8, True, OutputGrid(0.02, 8)),
}


def student_of(name: str, features: int = 7, hidden: tuple[int, ...] = (33, 20)) -> IntegerStudent:
    """A student of random integers with the actions of `KINDS[name]`."""
    actions, action_bits, bits, activation_bits = KINDS[name]
    architecture = StudentArchitecture((features,), actions.num_outputs, (), hidden)
    input_bits, zero, grid = WIDE.get(name, (8, False, None))
    student = random_student(
        architecture, bits, 3, activation_bits, actions, action_bits, input_bits, zero
    )
    return replace(student, output_grid=grid)


def student_at_every_threshold() -> IntegerStudent:
    """A student whose accumulator is its input's level less 128.

    The unit is a code's step, and a little more: a tie is no matter of float64's last digit. Nearly
    every accumulator is the threshold of a code.
    """
    architecture = StudentArchitecture((1,), 1, (), (1,))
    hidden, actor = architecture.layer_shapes()
    one, zero = np.ones((1, 1), np.int16), np.zeros(1, np.int32)
    multiplier, shift = fixed_point(np.ones(1))
    layers = (
        IntegerLayer(hidden, 8, one, zero, multiplier, shift, 255),
        IntegerLayer(actor, 8, one, zero - 128, None, None, 255),
    )
    ranges = np.array([0.0], np.float32), np.array([255.0], np.float32)
    return IntegerStudent(architecture, layers, 2.001 / 255.0, Box((-0.3,), (0.7,)), *ranges)


def observations_of(student: IntegerStudent, n: int = 300) -> np.ndarray:
    """Vectors in the student's range, beyond it, at its corners, and no numbers at all."""
    assert student.input_low is not None and student.input_high is not None
    rng, width = np.random.default_rng(0), student.input_high - student.input_low
    unit = rng.uniform(-0.1, 1.1, (n, len(width)))
    unit[: n // 3] = rng.integers(0, 2, (n // 3, len(width)))
    found = (student.input_low + unit * width).astype(np.float32)
    found[0] = np.resize(np.array([np.nan, np.inf, -np.inf, 3e38, -3e38], np.float32), len(width))
    return found
