"""Odd weights of up to 8 bits as signed bytes, exactly: what int8 runtimes multiply.

Fewer than 8 bits: the odd integers 2n - M are signed bytes already. At 8 bits they reach from -255
to 255. With x the input level and y = 255 - x its complement (of the bits, in uint8),

    w x = (a - b) x = a x + b y - 255 b,    a = floor(w / 2), b = a - w, both in [-128, 127]

so the layer reads each input twice, once complemented, and the constant goes into the bias.
Rounding w / 2 to one signed byte instead would move every single weight by half a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
    """The same accumulators from signed bytes, for every input; ValueError beyond int32."""
    weight = layer.weight.astype(np.int64)
    if np.abs(weight).max() <= np.iinfo(np.int8).max:
        return SignedLayer(layer.weight.astype(np.int8), layer.bias, False)
    direct = weight // 2
    complement = direct - weight
    bias = layer.bias - TOP * complement.reshape(len(weight), -1).sum(1)
    if np.abs(bias).max() > np.iinfo(np.int32).max:
        raise ValueError(f"{layer.shape.name}: a bias of {np.abs(bias).max()} is beyond int32")
    both = np.concatenate([direct, complement], axis=1)
    return SignedLayer(both.astype(np.int8), bias.astype(np.int32), True)


def requantization_gain(layer: IntegerLayer) -> np.ndarray:
    """multiplier * 2^-shift of a hidden layer, float32 `[out]`: within 2^-24 of the integers."""
    assert layer.multiplier is not None and layer.shift is not None
    return np.ldexp(layer.multiplier.astype(np.float64), -layer.shift).astype(np.float32)
