"""Uniform affine quantization: Eq. 4 of the QPD paper."""

from __future__ import annotations

from torch import Tensor


def affine_quantize(x: Tensor, bits: int) -> Tensor:
    """Eq. 4: `round((x - min x) * (2^k - 1) / (max x - min x))`, levels 0..2^k - 1 as float.

    Any shape; the range is the whole tensor's. A constant tensor maps to 0.
    """
    low, high = x.amin(), x.amax()
    if high <= low:
        return x * 0.0
    return ((x - low) * ((2**bits - 1) / (high - low))).round()


def affine_dequantize(levels: Tensor, low: Tensor, high: Tensor, bits: int) -> Tensor:
    """The value in `[low, high]` that each level 0..2^bits - 1 stands for."""
    return low + levels * ((high - low) / (2**bits - 1))
