"""Exact signed-byte forms of the weights, as int8 runtimes multiply them.

Below 8 bits the odd integers 2n - M are signed bytes already. At 8 bits they range from -255 to
255. With x the input level and y = 255 - x its complement (of the bits, in uint8),

    w x = (a - b) x = a x + b y - 255 b,    a = floor(w / 2), b = a - w, both in [-128, 127]

so the layer reads each input twice, once complemented, and the constant goes into the bias. To
round w / 2 to one signed byte instead would move every weight by half a step, as all are odd. Even
weights are split in the same way, but for -256.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qpd.export.bundle import ExportError
from qpd.integer.integer_student import IntegerLayer

TOP = 255  # input levels are uint8; the complement is taken in all 8 bits


@dataclass(frozen=True)
class SignedLayer:
    """A layer in signed bytes: `weight` int8 `[out, in or 2 * in, ...]`, `bias` int32 `[out]`.

    With `reads_complement`, the inputs' channels are followed by their complements 255 - x.
    """

    weight: np.ndarray
    bias: np.ndarray
    reads_complement: bool


def signed_layer(layer: IntegerLayer) -> SignedLayer:
    """Return a layer in signed bytes with the same accumulators for every input.

    Raises ExportError if a bias does not fit int32, or a weight is -256.
    """
    # The biases' constant, 255 times a sum over the inputs, may leave int32 before it is checked.
    weight = layer.weight.astype(np.int64)
    if weight.max() <= np.iinfo(np.int8).max and weight.min() >= np.iinfo(np.int8).min:
        return SignedLayer(layer.weight.astype(np.int8), layer.bias, False)
    if weight.min() < -255:
        raise ExportError(
            f"{layer.shape.name}: a weight of -256 is no sum of two signed bytes; expected c, bin "
            "or systemverilog, or weights of fewer bits or another grid"
        )
    direct = weight // 2
    complement = direct - weight
    bias = layer.bias - TOP * complement.reshape(len(weight), -1).sum(1)
    if np.abs(bias).max() > np.iinfo(np.int32).max:
        raise ExportError(f"{layer.shape.name}: a bias of {np.abs(bias).max()} is beyond int32")
    both = np.concatenate([direct, complement], axis=1)
    return SignedLayer(both.astype(np.int8), bias.astype(np.int32), True)


def requantization_gain(layer: IntegerLayer) -> np.ndarray:
    """Return multiplier * 2^-shift of a hidden layer, float32 `[out]`.

    The relative error is at most 2^-24: these runtimes scale in float32.
    """
    assert layer.multiplier is not None and layer.shift is not None
    return np.ldexp(layer.multiplier.astype(np.float64), -layer.shift).astype(np.float32)
