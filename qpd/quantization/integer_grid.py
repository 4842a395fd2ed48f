"""Integers times a scale: the quantizers of integer controllers, and their gradients.

Kresse & Lampert (arXiv 2511.07046), Eq. 1: Q(x; s) = clip(round(x q / s), least, most), which
stands for s Q / q, with q = max(|least|, |most|).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from qpd.numerics.rounded_arithmetic import unrounded

WeightGrid = Literal["narrow", "full", "odd"]
LEAST_SCALE = 1e-6


@dataclass(frozen=True)
class IntegerGrid:
    """The integers from `least` to `most`; every second one where it `is_odd`."""

    least: int
    most: int
    is_odd: bool = False

    @property
    def reach(self) -> int:
        """The integer that stands for the scale: q of Eq. 1."""
        return max(abs(self.least), abs(self.most))

    def rounded(self, x: Tensor) -> Tensor:
        """Return the nearest integers, as if the grid had no ends; ties to even."""
        return ((x - 1.0) * 0.5).round() * 2.0 + 1.0 if self.is_odd else x.round()


def signed_grid(bits: int) -> IntegerGrid:
    """Return -2^(bits-1) to 2^(bits-1) - 1: inputs and outputs."""
    return IntegerGrid(-(1 << bits - 1), (1 << bits - 1) - 1)


def unsigned_grid(bits: int) -> IntegerGrid:
    """Return 0 to 2^bits - 1: what a ReLU lets pass."""
    return IntegerGrid(0, (1 << bits) - 1)


def weight_grid(kind: WeightGrid, bits: int) -> IntegerGrid:
    """Return the integers of weights.

    `narrow` is symmetric: {-1, 0, 1} in 2 bits. `full` is Eq. 1: {-2, -1, 0, 1}. `odd` has no 0:
    {-3, -1, 1, 3}.
    """
    if kind == "full":
        return signed_grid(bits)
    most = (1 << bits) - 1 if kind == "odd" else (1 << bits - 1) - 1
    return IntegerGrid(-most, most, is_odd=kind == "odd")


class _Quantize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, grid: IntegerGrid, passes_clipped: bool
    ) -> Tensor:
        with unrounded():
            scaled = x * (grid.reach / scale)
            rounded = grid.rounded(scaled)
            levels = rounded.clamp(grid.least, grid.most)
            # Within half a step beyond an end nothing is clipped, only rounded.
            is_inside = torch.ones_like(x) if passes_clipped else rounded == levels
            step = scale / grid.reach
        ctx.save_for_backward(scaled, levels, is_inside)
        ctx.grid = grid
        return levels * step

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (gradient,) = gradients
        scaled, levels, is_inside = ctx.saved_tensors
        by_scale = None
        if ctx.needs_input_grad[1]:
            with unrounded():
                by_scale = (gradient * (levels - scaled * is_inside)).sum() / ctx.grid.reach
        return gradient * is_inside, by_scale, None, None


def quantize(x: Tensor, scale: Tensor, grid: IntegerGrid) -> Tensor:
    """Return what the nearest integer of the grid stands for, in the shape of `x`.

    `scale` is one number above 0, shape `[]`. Gradients are straight-through: that of x passes
    unless x is clipped, which begins half a step beyond the last integer; the scale's is
    (Q - x q / s) / q, and Q / q where x is clipped: LSQ's (arXiv 1902.08153) without its factor.
    All as Brevitas has them.
    """
    found: Tensor = _Quantize.apply(x, scale, grid, False)
    return found


def largest_magnitude(weights: Tensor) -> Tensor:
    """Return the largest |weight|, shape `[]`; of zeros a number to divide by."""
    return weights.abs().max().clamp(min=LEAST_SCALE)


def quantize_weights(weights: Tensor, grid: IntegerGrid) -> Tensor:
    """Return weights on a grid whose scale is their largest magnitude, which gets its gradient.

    Weights that a `full` grid clips get theirs, too, or they would stay where they are.
    """
    scale = largest_magnitude(weights)
    found: Tensor = _Quantize.apply(weights, scale, grid, True)
    return found
