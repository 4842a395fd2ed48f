"""The first two convolutions in training: what observations share is multiplied only once.

See `background_plan`. It is the same function as the two ordinary convolutions, up to the rounding
of the arithmetic's dtype: the four or five terms of a sum are rounded, not only the sum. The
activation function between the two works on rows as it does on images.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from students.background_plan import (
    BLOCKS1,
    BLOCKS2,
    CORNERS,
    FRAMES,
    PIXELS,
    SIDE1,
    SIDE2,
    SIDE3,
    BackgroundPlan,
    first_gradients,
    first_index,
    second_gradients,
    second_index,
    shared_gradients,
    starts_of_places,
)


def first_convolution(
    plan: BackgroundPlan, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Conv 1's results as rows, `dtype` `[4 * plan.num_blocks, out]`.

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
        background = plan.background.repeat(1, FRAMES).to(dtype)  # [441, 64]
        differences = _own_pixels(plan).to(dtype)
        differences.sub_(background.index_select(0, plan.place1))  # at most 255: exact
        out, count = len(weight), len(plan.sample1)
        matrix = weight.reshape(out, FRAMES, 2, 4, 2, 4).permute(1, 3, 5, 2, 4, 0)
        matrix = matrix.reshape(FRAMES * PIXELS, 4 * out).to(dtype)
        table = torch.empty(4 * count + 4 + 4 * BLOCKS2, out, dtype=dtype)
        torch.mm(differences, matrix, out=table[: 4 * count].view(count, 4 * out))
        table[4 * count : 4 * count + 4] = 0
        scene = background.float() @ matrix.float()
        scene = _gather_corners(scene.view(SIDE1, SIDE1, 4, out))
        table[4 * count + 4 :] = _in_rows(scene if bias is None else scene + bias)
        ctx.plan = plan
        ctx.save_for_backward(differences, background)
        return F.embedding_bag(first_index(plan), table, mode="sum")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        differences, background = ctx.saved_tensors
        rows, plan = gradients[0], ctx.plan
        out, own2 = rows.shape[1], plan.num_own2
        index, outside = first_gradients(plan)
        own = rows.index_select(0, index).index_fill_(0, outside, 0)
        own[4 * plan.num_own1 :] = 0
        blocks = rows.reshape(-1, 4 * out)
        starts = starts_of_places(plan.place2)
        order = torch.arange(own2, dtype=torch.int32)
        total = F.embedding_bag(order, blocks, starts, mode="sum").float()
        total = _from_rows(total + blocks[own2 : own2 + BLOCKS2])  # of all observations
        matrix = torch.mm(differences.t(), own.view(-1, 4 * out)).float()
        matrix += background.float().t() @ _spread_corners(total).view(BLOCKS1, 4 * out)
        weight = matrix.view(FRAMES, 4, 4, 2, 2, out).permute(5, 0, 3, 1, 4, 2)
        bias = total.sum((0, 1)) if ctx.needs_input_grad[1] else None
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
        if bias is None:
            table = blocks @ matrix
        else:  # in the share of one corner of four
            first = torch.cat([bias, bias.new_zeros(3 * out)]).to(rows.dtype)
            table = torch.addmm(first, blocks, matrix)
        sums = F.embedding_bag(second_index(plan), table.view(-1, out), mode="sum")
        ctx.plan = plan
        ctx.save_for_backward(blocks, matrix)
        return sums.view(-1, SIDE3, SIDE3, out).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        blocks, matrix = ctx.saved_tensors
        out, channels = gradients[0].shape[1], blocks.shape[1] // 4
        results = gradients[0].permute(0, 2, 3, 1).reshape(-1, out)
        own2 = ctx.plan.num_own2
        table = results.new_empty(4 * len(blocks), out)
        index, outside = second_gradients(ctx.plan)
        torch.index_select(results, 0, index, out=table[: 4 * own2])
        table.index_fill_(0, outside, 0)
        bags, starts, inside = shared_gradients(ctx.plan)
        shared = F.embedding_bag(bags, results, starts, mode="sum")
        shared = shared.view(4, BLOCKS2, out).transpose(0, 1) * inside
        table[4 * own2 : 4 * (own2 + BLOCKS2)] = shared.reshape(-1, out)
        table[4 * (own2 + BLOCKS2) :] = 0
        table = table.view(-1, 4 * out)
        rows = (table @ matrix.t()).view(-1, channels)
        weight = (blocks.t() @ table).view(2, 2, channels, 2, 2, out).permute(5, 2, 3, 0, 4, 1)
        bias = results.float().sum(0) if ctx.needs_input_grad[2] else None
        return rows, weight.reshape(out, channels, 4, 4), bias, None


def _own_pixels(plan: BackgroundPlan) -> Tensor:
    """The pixels of conv 1's own blocks, and fillers, uint8 `[filled1, 4 * 16]`."""
    rows = plan.sample1 * (FRAMES * BLOCKS1) + plan.place1
    rows = rows[:, None] + torch.arange(0, FRAMES * BLOCKS1, BLOCKS1, dtype=torch.int32)
    words = plan.frames.view(-1, PIXELS).view(torch.int64).index_select(0, rows.view(-1))
    return words.view(torch.uint8).view(-1, FRAMES * PIXELS)


def _gather_corners(blocks: Tensor) -> Tensor:
    """The blocks' shares `[21, 21, 4, out]` -> results of conv 1, `[20, 20, out]`."""
    side = SIDE1 - 1
    parts = [
        blocks[down : down + side, right : right + side, corner]
        for corner, (down, right) in enumerate(CORNERS)
    ]
    return torch.stack(parts).sum(0)


def _spread_corners(results: Tensor) -> Tensor:
    """The reverse, for gradients: `[20, 20, out]` -> `[21, 21, 4, out]`."""
    side = SIDE1 - 1
    blocks = results.new_zeros(SIDE1, SIDE1, 4, results.shape[-1])
    for corner, (down, right) in enumerate(CORNERS):
        blocks[down : down + side, right : right + side, corner] = results
    return blocks


def _in_rows(results: Tensor) -> Tensor:
    """Results of conv 1, `[20, 20, out]`, in the order that conv 2 reads them, `[400, out]`."""
    out = results.shape[-1]
    return results.view(SIDE2, 2, SIDE2, 2, out).transpose(1, 2).reshape(-1, out)


def _from_rows(blocks: Tensor) -> Tensor:
    """The reverse: `[100, 4 * out]` -> `[20, 20, out]`."""
    out = blocks.shape[1] // 4
    parts = blocks.view(SIDE2, SIDE2, 2, 2, out).transpose(1, 2)
    return parts.reshape(2 * SIDE2, 2 * SIDE2, out)
