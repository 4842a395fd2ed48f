"""Uniform affine quantization of weights, as QuaRL writes it and as it is meant.

Krishnan et al., arXiv 1910.01055, Algorithm 1: the range is stretched to hold 0 and cut into equal
steps. As written, `Q_n(W) = floor(W / d) + z` with `d = (|min(W, 0)| + |max(W, 0)|) / 2^n` and
`z = floor(-min(W, 0) / d)`: one level too many, -1 to 2^n - 1 (0 to 2^n where no weight is
negative), and every weight half a step too low on average. The corrected form rounds, has 2^n - 1
steps and clamps. Both give 0 back exactly.

Shapes: `rows [groups, n]`, a range for each group; `step` and `zero [groups, 1]`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AffineLevels(NamedTuple):
    """Levels float64 `[groups, n]` (whole numbers), and each group's step and zero `[groups, 1]`.

    `step * (levels - zero)` is what they stand for.
    """

    levels: Tensor
    step: Tensor
    zero: Tensor

    def restored(self) -> Tensor:
        """Return the numbers that the levels stand for, float64 `[groups, n]`."""
        return self.step * (self.levels - self.zero)


def affine_rows(rows: Tensor, bits: int) -> AffineLevels:
    """Quantize to levels 0..2^bits - 1: the nearest level, and none beyond the range.

    Errors are at most half a step.
    """
    rows, low, high = _ranges(rows)
    top = float(2**bits - 1)
    step = _positive((high - low) / top)
    zero = (-low / step).round()
    return AffineLevels(((rows / step).round() + zero).clamp(0.0, top), step, zero)


def affine_values(values: Tensor, low: float, high: float, bits: int) -> Tensor:
    """Return `values` as the nearest of 2^bits levels from `low` to `high`, clipped; any shape.

    The range, stretched to hold 0, was fixed beforehand, as those of activations are. In the dtype
    of `values`.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    top = float(2**bits - 1)
    step = (high - low) / top or 1.0
    zero = round(-low / step)
    return (values / step).round_().clamp_(-zero, top - zero).mul_(step)


def literal_affine_rows(rows: Tensor, bits: int) -> AffineLevels:
    """Quantize by Algorithm 1 of QuaRL to the letter: floor, 2^bits steps, no clamp.

    Errors are at most a step.
    """
    rows, low, high = _ranges(rows)
    step = _positive((high - low) / 2.0**bits)
    zero = (-low / step).floor()
    return AffineLevels((rows / step).floor() + zero, step, zero)


def _ranges(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows in float64, and the ends of their ranges, which hold 0."""
    # float64: in float32 the quotient of a weight that is a whole number of steps may be below it,
    # and the floor of that another level.
    rows = rows.double()
    return (
        rows,
        rows.amin(1, keepdim=True).clamp(max=0.0),
        rows.amax(1, keepdim=True).clamp(min=0.0),
    )


def _positive(step: Tensor) -> Tensor:
    # Of a group of zeros any step gives zeros.
    return torch.where(step > 0.0, step, 1.0)
