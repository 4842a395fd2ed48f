"""Vectors that begin with an image, as bytes: one for a pixel, four for each number behind it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def packed_rows(observations: np.ndarray, pixels: int) -> np.ndarray:
    """Return float32 `[n, d]`, the first `pixels` of them levels, as uint8 `[n, bytes]`."""
    features = np.ascontiguousarray(observations[:, pixels:], np.float32).view(np.uint8)
    return np.concatenate([observations[:, :pixels].astype(np.uint8), features], 1)


def unpacked_rows(rows: Tensor, pixels: int) -> Tensor:
    """Invert `packed_rows`: uint8 `[n, bytes]` to float32 `[n, d]`."""
    # A copy: a row may begin at any byte, and floats at every fourth alone.
    features = rows[:, pixels:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return torch.cat([rows[:, :pixels].float(), features], 1)
