"""Integer students of any size with random numbers, for benchmarks and tests."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import torch

from qpd.actions import ActionSpace, Box, Discrete
from qpd.integer.integer_student import (
    IntegerLayer,
    IntegerStudent,
    fixed_point,
    reference_outputs,
)
from qpd.quantization.activation_table import level_grid, lookup_table
from qpd.students import StudentArchitecture


def random_student(
    architecture: StudentArchitecture,
    bits: int = 8,
    seed: int = 0,
    activation_bits: int = 8,
    actions: ActionSpace | None = None,
    action_bits: int = 8,
    input_bits: int = 8,
    has_zero_weight: bool = False,
) -> IntegerStudent:
    """Make a student of uniform weights, with gains that let activations use their range.

    About half of the activations are 0, as in a trained network. `actions` are one choice unless
    given; the outputs of continuous ones spread over their range, and beyond it. With tables the
    activations use all of them, which differ from layer to layer where the function's do. Weights
    are odd integers, or with `has_zero_weight` even ones.
    """
    rng, top = np.random.default_rng(seed), 2**activation_bits - 1
    layers: list[IntegerLayer] = []
    inputs_top = 2**input_bits - 1
    for shape in architecture.layer_shapes():
        most = 2**bits - 1
        levels = rng.integers(0, 2**bits, shape.weight_shape)
        if has_zero_weight:  # without the lowest, which is symmetric to none
            levels = np.maximum(levels, 1)
        weight = (2 * levels - most - has_zero_weight).astype(np.int16)
        # A sum of n independent products grows with the square root of n: about its standard
        # deviation here.
        spread = 0.25 * most * inputs_top * prod(shape.weight_shape[1:]) ** 0.5
        bias = (spread * rng.normal(0.0, 0.5, shape.weight_shape[0])).astype(np.int32)
        multiplier = shift = table = None
        if shape.name != "actor":
            # Channels differ in gain as trained ones do, so that shifts and multipliers vary too.
            spread_of_gains = np.exp(rng.normal(0.0, 0.3, shape.weight_shape[0]))
            multiplier, shift = fixed_point(spread_of_gains * top / (3 * spread))
            if architecture.num_tables:
                table = _table(architecture, top, 1.0 + len(layers))
                # Sums spread around the middle of the table, and beyond its ends.
                gain = spread_of_gains * len(table) / (8 * spread)
                multiplier, shift = fixed_point(gain)
                bias = (bias + 0.5 * len(table) / gain).astype(np.int32)
        if layers and architecture.num_tables:  # of levels around the middle one, not above 0
            bias = (bias - top / 2 * weight.sum(1)).astype(np.int32)
        layers.append(
            IntegerLayer(shape, bits, weight, bias, multiplier, shift, top, table, inputs_top)
        )
        inputs_top = top
    box = actions if isinstance(actions, Box) else None
    actions = actions or Discrete(architecture.num_outputs)
    ranges: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
    if width := architecture.num_features:
        ranges = (np.full(width, -1.0, np.float32), np.full(width, 2.0, np.float32))
    student = IntegerStudent(
        architecture,
        tuple(layers),
        0.01,
        actions,
        *ranges,
        action_bits,
        input_bits,
        has_zero_weight,
    )
    return student if box is None else _over_the_range(student, rng)


def _table(architecture: StudentArchitecture, top: int, high: float) -> np.ndarray:
    grid = level_grid(architecture.function, torch.tensor(high), top)
    return lookup_table(architecture.function, grid, top).numpy().astype(np.uint8)


def _over_the_range(student: IntegerStudent, rng: np.random.Generator) -> IntegerStudent:
    """Shift and scale the head's outputs so that continuous actions take all of their range."""
    shape = student.architecture.observation_shape
    if student.architecture.is_image:
        observations = rng.integers(0, 256, (16, *shape), dtype=np.uint8)
    else:
        observations = rng.uniform(-1.0, 2.0, (256, *shape)).astype(np.float32)
    outputs, head = reference_outputs(student, observations), student.layers[-1]
    bias = (head.bias - outputs.mean(0)).astype(np.int32)
    layers = (*student.layers[:-1], replace(head, bias=bias))
    return replace(student, layers=layers, output_scale=float(0.8 / outputs.std(0).max()))
