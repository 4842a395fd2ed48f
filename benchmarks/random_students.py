"""Integer students of any size with random numbers, for benchmarks and tests."""

from __future__ import annotations

from math import prod

import numpy as np

from qpd.actions import ActionSpace, Box, Discrete
from qpd.integer.integer_student import IntegerLayer, IntegerStudent, fixed_point
from qpd.students import StudentArchitecture


def random_student(
    architecture: StudentArchitecture,
    bits: int = 8,
    seed: int = 0,
    activation_bits: int = 8,
    actions: ActionSpace | None = None,
    action_bits: int = 8,
) -> IntegerStudent:
    """Make a student of uniform weights, with gains that let activations use their range.

    About half of the activations are 0, as in a trained network. `actions` are one choice unless
    given; the outputs of continuous ones spread over their range, and beyond it.
    """
    rng, layers, top = np.random.default_rng(seed), [], 2**activation_bits - 1
    inputs_top, spread = 255, 1.0
    for shape in architecture.layer_shapes():
        most = 2**bits - 1
        weight = (2 * rng.integers(0, 2**bits, shape.weight_shape) - most).astype(np.int16)
        # A sum of n independent products grows with the square root of n: about its standard
        # deviation here.
        spread = 0.25 * most * inputs_top * prod(shape.weight_shape[1:]) ** 0.5
        bias = (spread * rng.normal(0.0, 0.5, shape.weight_shape[0])).astype(np.int32)
        multiplier = shift = None
        if shape.name != "actor":
            # Channels differ in gain as trained ones do, so that shifts and multipliers vary too.
            spread_of_gains = np.exp(rng.normal(0.0, 0.3, shape.weight_shape[0]))
            multiplier, shift = fixed_point(spread_of_gains * top / (3 * spread))
        layers.append(IntegerLayer(shape, bits, weight, bias, multiplier, shift, top))
        inputs_top = top
    # The head's accumulators deviate by about 2 `spread`: the last layer's is left from the loop.
    scale = 0.3 / spread if isinstance(actions, Box) else 0.01
    actions = actions or Discrete(architecture.num_outputs)
    ranges: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
    if not architecture.is_image:
        width = architecture.observation_shape[0]
        ranges = (np.full(width, -1.0, np.float32), np.full(width, 2.0, np.float32))
    return IntegerStudent(architecture, tuple(layers), scale, actions, *ranges, action_bits)
