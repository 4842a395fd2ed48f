"""Integers times a scale: the quantizers of integer controllers, and their gradients.

Kresse & Lampert (arXiv 2511.07046), Eq. 1: Q(x; s) = clip(round(x q / s), least, most), which
stands for s Q / q, with q = max(|least|, |most|).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

WeightGrid = Literal["narrow", "full", "odd"]


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

    def nearest(self, x: Tensor) -> Tensor:
        """Return the nearest integer of the grid to each number; ties to even."""
        rounded = ((x - 1.0) * 0.5).round() * 2.0 + 1.0 if self.is_odd else x.round()
        return rounded.clamp_(self.least, self.most)


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
    def forward(ctx: Any, x: Tensor, scale: Tensor, grid: IntegerGrid) -> Tensor:
        scaled = x * (grid.reach / scale)
        levels = grid.nearest(scaled)
        ctx.save_for_backward(scaled, levels)
        ctx.grid = grid
        return levels * (scale / grid.reach)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (gradient,) = gradients
        scaled, levels = ctx.saved_tensors
        is_inside = (scaled >= ctx.grid.least) & (scaled <= ctx.grid.most)
        by_scale = None
        if ctx.needs_input_grad[1]:
            by_scale = (gradient * (levels - scaled * is_inside)).sum() / ctx.grid.reach
        return gradient * is_inside, by_scale, None


def quantize(x: Tensor, scale: Tensor, grid: IntegerGrid) -> Tensor:
    """Return what the nearest integer of the grid stands for, in the shape of `x`.

    `scale` is one number above 0, shape `[]`. Gradients are straight-through: inside the grid that
    of x passes, beyond it none does; the scale's is (Q - x q / s) / q inside, Q / q beyond: LSQ's
    (arXiv 1902.08153) without its factor.
    """
    found: Tensor = _Quantize.apply(x, scale, grid)
    return found


def quantize_weights(weights: Tensor, grid: IntegerGrid) -> Tensor:
    """Return weights on a grid whose scale is their largest magnitude, which gets its gradient."""
    return quantize(weights, weights.abs().max().clamp(min=torch.finfo(weights.dtype).tiny), grid)
