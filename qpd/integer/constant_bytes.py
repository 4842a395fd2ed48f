"""Count the bytes that an integer student's constants take, packed at their true bit width."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from qpd.quantization.activation_table import ENTRIES
from qpd.students import LayerShape


def constant_bytes(
    shapes: Sequence[LayerShape], bits: Sequence[int], num_tables: int = 0, num_thresholds: int = 0
) -> int:
    """Return the bytes of weights, biases, multipliers and shifts; `bits` has one entry a layer.

    And of `num_tables` tables of activations, a byte an entry, and the thresholds of continuous
    actions, 4 bytes each.

    Each output has its packed weights, on whole bytes, and a bias of 4 bytes; each but the head's
    has a multiplier of 4 and a shift of 1. The input range of vectors, 8 bytes a feature, is not
    counted: a program whose sensors give levels needs none.
    """
    total = ENTRIES * num_tables + 4 * num_thresholds
    for shape, width in zip(shapes, bits, strict=True):
        row = (prod(shape.weight_shape[1:]) * width + 7) // 8
        total += shape.weight_shape[0] * (row + (4 if shape.name == "actor" else 9))
    return total
