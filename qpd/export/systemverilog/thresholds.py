"""Requantization and input rounding as thresholds: the least integer that reaches each level."""

from __future__ import annotations

import numpy as np

from qpd.integer.integer_student import IntegerLayer, IntegerStudent

INFINITY_KEY = 0xFF800000


def level_thresholds(layer: IntegerLayer) -> np.ndarray:
    """Return the least accumulator of each level above 0, int64 `[out, levels]`.

    Exact: `(acc * m + 2^(s-1)) >> s >= j` is `acc >= ceil((2j - 1) 2^(s-1) / m)`. One that no
    accumulator reaches is `largest_accumulator + 1`, one that all reach its negative. Raises
    ValueError for the head, which has none.
    """
    if layer.multiplier is None or layer.shift is None:
        raise ValueError("the head is not requantized")
    never = layer.largest_accumulator + 1
    rows = []
    for multiplier, shift in zip(layer.multiplier.tolist(), layer.shift.tolist(), strict=True):
        halves = [(2 * level - 1) << (shift - 1) for level in range(1, layer.levels + 1)]
        row = [-(-half // multiplier) if multiplier else never for half in halves]
        rows.append([max(-never, min(never, least)) for least in row])
    return np.array(rows, dtype=np.int64)


def float_keys(values: np.ndarray) -> np.ndarray:
    """Return integers, uint32, in the order of float32 `values`, -0 just below 0; same shape."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return np.where(bits >> 31 == 1, ~bits, bits | np.uint32(0x80000000)).astype(np.uint32)


def key_floats(keys: np.ndarray) -> np.ndarray:
    """Return the float32 values of `float_keys`' integers, same shape."""
    keys = np.asarray(keys, dtype=np.uint32)
    bits = np.where(keys >> 31 == 1, keys & np.uint32(0x7FFFFFFF), ~keys)
    return bits.astype(np.uint32).view(np.float32)


def feature_thresholds(student: IntegerStudent) -> np.ndarray:
    """Return the least key (`float_keys`) of each input level above 0, uint32 `[features, top]`.

    Found by bisection over all float32 with `student.encode` itself, so that the float's rounding
    is in them. A level that even infinity does not reach is 2^32 - 1, which is a NaN's key.
    """
    assert student.input_low is not None
    width, top = len(student.input_low), student.input_levels
    below = np.full((top, width), 0x007FFFFF - 1, dtype=np.int64)  # below -infinity
    reached = np.full((top, width), INFINITY_KEY + 1, dtype=np.int64)
    wanted = np.arange(1, top + 1)[:, None]
    while (reached - below > 1).any():
        middle = (below + reached) // 2
        safe = np.clip(middle, 0x007FFFFF, INFINITY_KEY)
        found = student.encode(key_floats(safe)) >= wanted
        reached = np.where(found, middle, reached)
        below = np.where(found, below, middle)
    reached = np.where(reached > INFINITY_KEY, 0xFFFFFFFF, reached)
    return reached.T.astype(np.uint32)
