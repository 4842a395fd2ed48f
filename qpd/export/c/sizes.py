"""Count the flash and RAM that a student takes in C."""

from __future__ import annotations

from math import prod

from qpd.actions import Box
from qpd.export.c.geometry import is_own_image, is_whole, positions
from qpd.integer.constant_bytes import constant_bytes
from qpd.integer.integer_student import IntegerStudent

STRIP = 10  # patches gathered at once: more unpack packed weights less often, but cost RAM


def weight_bytes(student: IntegerStudent) -> int:
    """Return the bytes of packed weights, biases, multipliers, shifts, tables of activations."""
    shapes, bits = zip(*((layer.shape, layer.bits) for layer in student.layers), strict=True)
    return constant_bytes(shapes, bits, len(student.tables))


def c_constant_bytes(student: IntegerStudent) -> int:
    """Return QPD_CONSTANT_BYTES: `weight_bytes`, and the thresholds of continuous actions."""
    thresholds = student.action_thresholds
    return weight_bytes(student) + (0 if thresholds is None else 4 * len(thresholds))


def range_bytes(student: IntegerStudent) -> int:
    """Return the bytes of ranges: of features in qpd_encode.c, of actions in qpd_actions.c.

    They are in flash only in programs that call `qpd_levels_from_floats` or `qpd_action_value`.
    """
    actions = student.actions.num_outputs if isinstance(student.actions, Box) else 0
    return 8 * student.architecture.num_features + 12 * actions


def arena_bytes(student: IntegerStudent) -> int:
    """Return the runtime's static RAM, QPD_ARENA_BYTES, without observation and stack."""
    sizes = buffer_sizes(student)
    scratch = STRIP * sizes["QPD_PATCH_BYTES"] + 4 * sizes["QPD_UNPACKED_BYTES"]
    return sizes["QPD_EVEN_BYTES"] + sizes["QPD_ODD_BYTES"] + scratch + 4 * strip_outputs(student)


def flash_arena_bytes(student: IntegerStudent) -> int:
    """Return QPD_FLASH_ARENA_BYTES: the arena on AVR, where rows of 8 bits are copied as well."""
    sizes = buffer_sizes(student)
    return arena_bytes(student) + 4 * (sizes["QPD_ROW_BYTES"] - sizes["QPD_UNPACKED_BYTES"])


def flash_ram_bytes(student: IntegerStudent) -> int:
    """Return the static RAM on AVR: the arena, and a struct qpd_layer for each layer."""
    # Four pointers of 2 bytes and a table's, then the fields that follow them in qpd_layer.h.
    fields = 4 + 2 + 2 + (9 * 4 if is_own_image(student) else 2 + 6 * 2)
    return flash_arena_bytes(student) + len(student.layers) * (
        4 * 2 + 2 * bool(student.tables) + fields
    )


def strip_outputs(student: IntegerStudent) -> int:
    """Return the dot products in the largest strip, outputs rounded up to fours."""
    return max(-(-len(y.weight) // 4) * 4 * min(STRIP, positions(y)[1]) for y in student.layers)


def buffer_sizes(student: IntegerStudent) -> dict[str, int]:
    """Return the bytes of the runtime's buffers, rounded up to multiples of 4."""
    # Layers alternate between two buffers; the head writes to the caller's logits instead.
    written = [prod(layer.shape.output_shape) for layer in student.layers[:-1]]
    if student.architecture.joins_features:
        written[len(student.architecture.conv_channels) - 1] += student.architecture.num_features
    gathered = [layer for layer in student.layers if not is_whole(student, layer)]
    patches = [prod(layer.weight.shape[1:]) for layer in gathered]
    rows = [prod(layer.weight.shape[1:]) for layer in student.layers]
    unpacked = [row for row, layer in zip(rows, student.layers, strict=True) if layer.bits < 8]

    def room(sizes: list[int]) -> int:
        return -(-max(sizes, default=1) // 4) * 4

    return {
        "QPD_EVEN_BYTES": room(written[0::2]),
        "QPD_ODD_BYTES": room(written[1::2]),
        "QPD_PATCH_BYTES": room(patches),
        "QPD_UNPACKED_BYTES": room(unpacked),
        "QPD_ROW_BYTES": room(rows),
    }
