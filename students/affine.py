"""Uniform affine quantization: Eq. 4 of the QPD paper, which turns vector observations into bytes.

It stands here because a student's input is defined by it, and students import torch alone.
"""

from __future__ import annotations

from torch import Tensor


def affine_levels(
    values: Tensor, low: Tensor, high: Tensor, top: float, *, rounded: bool = True
) -> Tensor:
    """Quantize by Eq. 4, `round((w - min w) * (2^k - 1) / (max w - min w))`, with `top = 2^k - 1`.

    `values` float `[..., features]`; `low` and `high`, float `[features]` or scalars with
    `high > low`, take the place of the minimum and maximum, and what lies beyond them is clipped.
    Returns levels in [0, top] in the dtype of `values`: integers, ties rounded to even, unless
    `rounded` is off.
    """
    # Divided first, then multiplied: the C, ONNX and LiteRT exports do the same in float32, and
    # another order would round some observations to the neighbouring level.
    levels = ((values - low) / (high - low)).clamp(0.0, 1.0) * top
    return levels.round() if rounded else levels
