"""The first two convolutions in training: what observations share is multiplied only once.

See `background_plan`. It is the same function as the two ordinary convolutions, up to the rounding
of the arithmetic's dtype: the four terms of a sum are rounded, not only the sum. The activation
function between the two works on rows as it does on images.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from students.background_plan import (
    BLOCKS2,
    RESULTS2,
    SIDE3,
    BackgroundPlan,
    first_gradients,
    first_index,
    second_gradients,
    second_index,
    spread_first,
    spread_second,
)
from students.shared_frames import BLOCKS1, FRAMES, PIXELS


def first_convolution(
    plan: BackgroundPlan, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Conv 1's results as rows, `dtype` `[4 * plan.num_blocks2, out]`.

    `weight` `[out, 4, 8, 8]`, `bias` `[out]`.
    """
    with torch.autocast("cpu", enabled=False):
        return _FirstConvolution.apply(weight, bias, plan, dtype)


def second_convolution(
    plan: BackgroundPlan, rows: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Conv 2's results, `[batch, out, 9, 9]`, in the dtype of conv 1's activations, `rows`.

    `weight` `[out, in, 4, 4]`, `bias` `[out]`.
    """
    with torch.autocast("cpu", enabled=False):
        return _SecondConvolution.apply(rows, weight, bias, plan)


class _FirstConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, plan: BackgroundPlan, dtype: torch.dtype
    ) -> Tensor:
        out = len(weight)
        matrix = weight.reshape(out, FRAMES, 2, 4, 2, 4).permute(1, 3, 5, 2, 4, 0)
        matrix = matrix.reshape(FRAMES * PIXELS, 4 * out).to(dtype)
        pixels = _pixels(plan).to(dtype)
        table = _multiplied(pixels, matrix, bias)
        ctx.plan = plan
        ctx.save_for_backward(pixels)
        return F.embedding_bag(first_index(plan), table.view(-1, out), mode="sum")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (pixels,) = ctx.saved_tensors
        rows, plan = gradients[0], ctx.plan
        out, own1, own2 = rows.shape[1], plan.num_own1, plan.num_own2
        blocks = rows.reshape(-1, 4 * out)
        total = _by_place(plan, blocks) + blocks[own2 : own2 + BLOCKS2]  # of all observations
        table = rows.new_empty(4 * len(pixels), out)
        index, outside = first_gradients(plan)
        torch.index_select(rows, 0, index, out=table[: 4 * own1])
        table.index_fill_(0, outside, 0)
        table[4 * own1 :] = 0
        background = pixels[own1 : own1 + BLOCKS1]
        added = torch.empty_like(pixels)  # to the background's
        torch.sub(pixels[:own1], background.index_select(0, plan.place1), out=added[:own1])
        added[own1:] = 0
        matrix = torch.mm(added.t(), table.view(-1, 4 * out)).float()
        total = total.view(-1, out)
        matrix.addmm_(background.float().t(), spread_first(total).view(BLOCKS1, 4 * out))
        weight = matrix.view(FRAMES, 4, 4, 2, 2, out).permute(5, 0, 3, 1, 4, 2)
        bias = total.sum(0) if ctx.needs_input_grad[1] else None
        return weight.reshape(out, FRAMES, 8, 8), bias, None, None


class _SecondConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, plan: BackgroundPlan
    ) -> Tensor:
        out, channels = weight.shape[:2]
        matrix = weight.reshape(out, channels, 2, 2, 2, 2).permute(3, 5, 1, 2, 4, 0)
        matrix = matrix.reshape(4 * channels, 4 * out).to(rows.dtype)
        blocks = rows.view(-1, 4 * channels)
        table = _multiplied(blocks, matrix, bias)
        sums = F.embedding_bag(second_index(plan), table.view(-1, out), mode="sum")
        ctx.plan = plan
        ctx.save_for_backward(blocks, matrix)
        return sums.view(-1, SIDE3, SIDE3, out).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        blocks, matrix = ctx.saved_tensors
        plan, own2 = ctx.plan, ctx.plan.num_own2
        out, channels = gradients[0].shape[1], blocks.shape[1] // 4
        results = gradients[0].permute(0, 2, 3, 1).reshape(-1, out)
        total = results.view(-1, RESULTS2 * out).sum(0).view(RESULTS2, out).float()
        table = results.new_empty(4 * len(blocks), out)
        index, outside = second_gradients(plan)
        torch.index_select(results, 0, index, out=table[: 4 * own2])
        table.index_fill_(0, outside, 0)
        table[4 * (own2 + BLOCKS2) :] = 0
        table = table.view(-1, 4 * out)
        shared = spread_second(total).view(BLOCKS2, 4 * out)
        table[own2 : own2 + BLOCKS2] = shared - _by_place(plan, table)
        rows = (table @ matrix.t()).view(-1, channels)
        weight = (blocks.t() @ table).view(2, 2, channels, 2, 2, out).permute(5, 2, 3, 0, 4, 1)
        bias = total.sum(0) if ctx.needs_input_grad[2] else None
        return rows, weight.reshape(out, channels, 4, 4), bias, None


def _pixels(plan: BackgroundPlan) -> Tensor:
    """Those of the blocks of conv 1 that are multiplied, uint8 `[num_blocks1, 4 * 16]`."""
    own1, frames = plan.num_own1, plan.observations.frames
    pixels = torch.zeros(plan.num_blocks1, FRAMES * PIXELS, dtype=torch.uint8)
    rows = plan.observations.stack.index_select(0, plan.sample1)
    if len(frames) * BLOCKS1 > torch.iinfo(rows.dtype).max:
        rows = rows.long()
    rows = torch.add(plan.place1[:, None], rows, alpha=BLOCKS1)
    words = frames.view(-1, PIXELS).view(torch.int64)
    own = pixels[:own1].view(torch.int64).view(-1, 2)
    torch.index_select(words, 0, rows.view(-1), out=own)
    background = plan.observations.background[:, None]  # the same in every frame of a stack
    pixels[own1 : own1 + BLOCKS1].view(-1, FRAMES, PIXELS).copy_(background)
    return pixels


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
