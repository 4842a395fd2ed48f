"""The first two convolutions in training: what observations share is multiplied only once.

It is the same function as the two ordinary convolutions, up to the rounding of the arithmetic's
dtype: the four terms of a sum are rounded, not only the sum. An activation function works on the
rows between the two as it does on images; where asked to be `rectified`, the results are after
ReLU.

A convolution is written as a matrix product and a sum. The product has a row for each block and a
column for each corner and output channel: what the block contributes where it is a result's top
left, top right, bottom left or bottom right part. The sum adds up four such rows for each result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

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

_BITS = {2: torch.int16, 4: torch.int32}  # integers as wide as a float, by its bytes


class NamedLayer(Protocol):
    """Hold what has to be known of a layer's shape here."""

    @property
    def name(self) -> str:
        """Tell layers apart: conv1, conv2 ..."""


class SharedLayers:
    """Apply the first two convolutions by a plan, in `dtype`, other layers as `ordinary` does.

    A call takes what a student's `apply_layer` does. Between those two convolutions are rows,
    `[n, channels]`, in place of images.
    """

    def __init__(
        self, plan: BackgroundPlan, ordinary: Callable[..., Tensor], dtype: torch.dtype
    ) -> None:
        self._plan, self._ordinary, self._dtype = plan, ordinary, dtype

    def __call__(
        self,
        shape: NamedLayer,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rectified: bool = False,
        levels: float = 1.0,
    ) -> Tensor:
        """Apply a layer; conv 1 reads the plan's pixels, whatever its inputs."""
        plan = self._plan
        if shape.name == "conv1":
            return first_convolution(plan, weight, bias, self._dtype, rectified, levels)
        if shape.name == "conv2":
            return second_convolution(plan, inputs, weight, bias, rectified)
        return self._ordinary(shape, inputs, weight, bias, rectified, levels)


def first_convolution(
    plan: BackgroundPlan,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    rectified: bool = False,
    levels: float = 1.0,
) -> Tensor:
    """Compute conv 1's results as rows, `dtype` `[4 * plan.num_blocks2, out]`.

    `weight` `[out, 4, 8, 8]`, to be divided by `levels`, and `bias` `[out]`. Gradients of rows that
    are fillers' must be 0, as `second_convolution` gives them.
    """
    # The functions below choose their dtypes; autocast would look at every operation again.
    with torch.autocast("cpu", enabled=False):
        return _FirstConvolution.apply(weight, bias, plan, dtype, rectified, levels)


def second_convolution(
    plan: BackgroundPlan,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rectified: bool = False,
) -> Tensor:
    """Compute conv 2's results, `[batch, out, 9, 9]`, in the dtype of conv 1's activations, `rows`.

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
        # Rows: frame and pixel in the block, as in `plan.pixels`; columns: corner and channel.
        matrix = weight.reshape(out, FRAMES, 2, 4, 2, 4).permute(1, 3, 5, 2, 4, 0)
        matrix = matrix.reshape(FRAMES * PIXELS, 4 * out).to(dtype)
        pixels = plan.pixels.to(dtype)
        table = _multiplied(pixels, matrix, bias)
        # Sums scattered rows without writing them out first.
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
        # The weight's gradient is that of a batch of nothing but background, which needs only the
        # total over all observations, and what is added to it where a block differs.
        total = _by_place(plan, blocks) + blocks[own2 : own2 + BLOCKS2]
        table = rows.new_empty(4 * len(pixels), out)
        torch.index_select(rows, 0, plan.gradients1, out=table[: 4 * own1])
        table[4 * own1 :] = 0  # of background and fillers, there for the product's size alone
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
        blocks = rows.view(-1, 4 * channels)  # a block is four rows that follow each other
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
        padded[:, RESULTS2:] = 0  # the result that stands for none, at edges and corners
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
        # A background's block is in the results of all observations but those whose own it is.
        shared = _spread(total, *second_spread()).view(BLOCKS2, 4 * out)
        table[own2 : own2 + BLOCKS2] = shared - _by_place(plan, table)
        rows = (table @ matrix.t()).view(-1, channels)
        weight = (blocks.t() @ table).view(2, 2, channels, 2, 2, out).permute(5, 2, 3, 0, 4, 1)
        bias = total.sum(0) if ctx.needs_input_grad[2] else None
        return rows, weight.reshape(out, channels, 4, 4), bias, None, None


def _multiplied(blocks: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply `blocks @ matrix`, with the bias in the share of one corner of four."""
    if bias is None:
        return blocks @ matrix
    first = torch.cat([bias, bias.new_zeros(3 * len(bias))]).to(blocks.dtype)
    return torch.addmm(first, blocks, matrix)


def _by_place(plan: BackgroundPlan, blocks: Tensor) -> Tensor:
    """Sum the own blocks of conv 2 at each place, `[..., n]` -> float32 `[100, n]`."""
    order = torch.arange(plan.num_own2, dtype=torch.int32)
    return F.embedding_bag(order, blocks, plan.starts2, mode="sum").float()


def _spread(results: Tensor, index: Tensor, inside: Tensor) -> Tensor:
    """Pick, of `results` by place, those of the blocks' corners; 0 where one is not `inside`."""
    return results.index_select(0, index).mul_(inside)


# ReLU by a float's bits, which as an integer are positive where it is: on a CPU the ordinary ReLU
# of bfloat16 goes by way of float32, at five times the cost. A NaN whose sign bit is set, as in
# those that x86 computes, becomes 0, so whether parameters are still finite has to be looked at by
# itself (`qpd.training.health` does).


def rectify(values: Tensor) -> Tensor:
    """Apply ReLU to floats of any shape, bfloat16 or float32, in place; returns them."""
    _bits(values).clamp_min_(0)
    return values


def rectified_gradient(gradient: Tensor, activations: Tensor, out: Tensor | None = None) -> Tensor:
    """Keep `gradient` where ReLU's results, `activations`, are above 0, else 0; same shape, dtype.

    Written into `out` where that is given.
    """
    out = torch.empty_like(gradient) if out is None else out
    passes = _bits(activations).clamp(max=1)  # 0 or 1
    torch.mul(_bits(gradient), passes, out=_bits(out))  # an integer times 1 is the float it was
    return out


def _bits(values: Tensor) -> Tensor:
    return values.view(_BITS[values.element_size()])
