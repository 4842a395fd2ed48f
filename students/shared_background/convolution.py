"""The first two convolutions in training: what observations share is multiplied only once.

See `background_plan`. It is the same function as the two ordinary convolutions, up to the rounding
of the arithmetic's dtype: the four terms of a sum are rounded, not only the sum. An activation
function works on the rows between the two as it does on images; where asked to be `rectified`, the
results are after ReLU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from qpd.students.shared_background.block_tables import (
    BLOCKS1,
    BLOCKS2,
    FRAMES,
    PIXELS,
    RESULTS2,
    SIDE3,
    first_spread,
    second_spread,
)
from qpd.students.shared_background.plan import BackgroundPlan
from qpd.students.shared_background.rectifier import rectified_gradient, rectify


def first_convolution(
    plan: BackgroundPlan,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    rectified: bool = False,
    levels: float = 1.0,
) -> Tensor:
    """Conv 1's results as rows, `dtype` `[4 * plan.num_blocks2, out]`.

    `weight` `[out, 4, 8, 8]`, to be divided by `levels`, and `bias` `[out]`. Gradients of rows that
    are fillers' must be 0, as `second_convolution` gives them.
    """
    with torch.autocast("cpu", enabled=False):
        return _FirstConvolution.apply(weight, bias, plan, dtype, rectified, levels)


def second_convolution(
    plan: BackgroundPlan,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rectified: bool = False,
) -> Tensor:
    """Conv 2's results, `[batch, out, 9, 9]`, in the dtype of conv 1's activations, `rows`.

    `weight` `[out, in, 4, 4]`, `bias` `[out]`.
    """
    with torch.autocast("cpu", enabled=False):
        return _SecondConvolution.apply(rows, weight, bias, plan, rectified)


class _FirstConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        bias: Tensor | None,
        plan: BackgroundPlan,
        dtype: torch.dtype,
        rectified: bool,
        levels: float,
    ) -> Tensor:
        out = len(weight)
        weight = weight if levels == 1.0 else weight / levels
        matrix = weight.reshape(out, FRAMES, 2, 4, 2, 4).permute(1, 3, 5, 2, 4, 0)
        matrix = matrix.reshape(FRAMES * PIXELS, 4 * out).to(dtype)
        pixels = plan.pixels.to(dtype)
        table = _multiplied(pixels, matrix, bias)
        rows = F.embedding_bag(plan.index1, table.view(-1, out), mode="sum")
        ctx.plan, ctx.levels = plan, levels
        ctx.save_for_backward(pixels, rectify(rows) if rectified else None)
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        pixels, activations = ctx.saved_tensors
        rows, plan = gradients[0], ctx.plan
        if activations is not None:
            rows = rectified_gradient(rows, activations)
        out, own1, own2 = rows.shape[1], plan.num_own1, plan.num_own2
        blocks = rows.reshape(-1, 4 * out)
        total = _by_place(plan, blocks) + blocks[own2 : own2 + BLOCKS2]  # of all observations
        table = rows.new_empty(4 * len(pixels), out)
        torch.index_select(rows, 0, plan.gradients1, out=table[: 4 * own1])
        table[4 * own1 :] = 0
        background = pixels[own1 : own1 + BLOCKS1]
        added = torch.empty_like(pixels)  # to the background's
        torch.sub(pixels[:own1], background.index_select(0, plan.place1), out=added[:own1])
        added[own1:] = 0
        matrix = torch.mm(added.t(), table.view(-1, 4 * out)).float()
        total = total.view(-1, out)
        matrix.addmm_(
            background.float().t(), _spread(total, *first_spread()).view(BLOCKS1, 4 * out)
        )
        if ctx.levels != 1.0:
            matrix.div_(ctx.levels)
        weight = matrix.view(FRAMES, 4, 4, 2, 2, out).permute(5, 0, 3, 1, 4, 2)
        bias = total.sum(0) if ctx.needs_input_grad[1] else None
        return weight.reshape(out, FRAMES, 8, 8), bias, None, None, None, None


class _SecondConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        plan: BackgroundPlan,
        rectified: bool,
    ) -> Tensor:
        out, channels = weight.shape[:2]
        matrix = weight.reshape(out, channels, 2, 2, 2, 2).permute(3, 5, 1, 2, 4, 0)
        matrix = matrix.reshape(4 * channels, 4 * out).to(rows.dtype)
        blocks = rows.view(-1, 4 * channels)
        table = _multiplied(blocks, matrix, bias)
        sums = F.embedding_bag(plan.index2, table.view(-1, out), mode="sum")
        ctx.plan = plan
        ctx.save_for_backward(blocks, matrix, rectify(sums) if rectified else None)
        return sums.view(-1, SIDE3, SIDE3, out).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        blocks, matrix, activations = ctx.saved_tensors
        plan, own2 = ctx.plan, ctx.plan.num_own2
        (batch, out), channels = gradients[0].shape[:2], blocks.shape[1] // 4
        padded = blocks.new_empty(batch, RESULTS2 + 1, out)
        padded[:, RESULTS2:] = 0
        results = padded.view(batch, -1)[:, : RESULTS2 * out]
        given = gradients[0].permute(0, 2, 3, 1).reshape(batch, -1)
        if activations is None:
            results.copy_(given)
        else:
            rectified_gradient(given, activations.view(batch, -1), out=results)
        total = results.sum(0).view(RESULTS2, out).float()
        table = blocks.new_empty(4 * len(blocks), out)
        torch.index_select(padded.view(-1, out), 0, plan.gradients2, out=table[: 4 * own2])
        table[4 * (own2 + BLOCKS2) :] = 0
        table = table.view(-1, 4 * out)
        shared = _spread(total, *second_spread()).view(BLOCKS2, 4 * out)
        table[own2 : own2 + BLOCKS2] = shared - _by_place(plan, table)
        rows = (table @ matrix.t()).view(-1, channels)
        weight = (blocks.t() @ table).view(2, 2, channels, 2, 2, out).permute(5, 2, 3, 0, 4, 1)
        bias = total.sum(0) if ctx.needs_input_grad[2] else None
        return rows, weight.reshape(out, channels, 4, 4), bias, None, None


def _multiplied(blocks: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """`blocks @ matrix`, with the bias in the share of one corner of four."""
    if bias is None:
        return blocks @ matrix
    first = torch.cat([bias, bias.new_zeros(3 * len(bias))]).to(blocks.dtype)
    return torch.addmm(first, blocks, matrix)


def _by_place(plan: BackgroundPlan, blocks: Tensor) -> Tensor:
    """Sums over the own blocks of conv 2 at each place, float32 `[100, n]`, of `[..., n]`."""
    order = torch.arange(plan.num_own2, dtype=torch.int32)
    return F.embedding_bag(order, blocks, plan.starts2, mode="sum").float()


def _spread(results: Tensor, index: Tensor, inside: Tensor) -> Tensor:
    """Of `results`, by place, those of the blocks' corners; 0 where a corner is not `inside`."""
    return results.index_select(0, index).mul_(inside)
