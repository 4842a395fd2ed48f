"""DoReFa weight quantization (Zhou et al. 2016, section 2.3): Eq. 5 of the QPD paper, and scaled.

Weights become odd integers `2n - M` with `M = 2^bits - 1` and level n in 0..M; there is no zero.
As written, Eq. 5 throws each layer's scale away (weights fill [-1, 1]) and bends what remains by a
tanh. The scaled form keeps the grid and drops both: `w = scale * (2n - M) / M`, with a scale for
each output channel that starts where the squared error is least and may be trained (LSQ, Esser et
al. 2020). `narrow` is the scaled form with a zero, the symmetric grid of Kresse & Lampert (arXiv
2511.07046): `M = 2^bits - 2` makes the integers even, so that 2 bits are -2, 0 and 2.

Shapes: `weight [out, in, kh, kw]` or `[out, in]`; `scale [out]`, constant where it is per layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qpd.quantization.straight_through import round_straight_through

# Weights per piece, 128 KiB in float32: a piece stays in a core's cache through all operations.
CACHED = 1 << 15


def largest_integer(bits: int, *, has_zero: bool = False) -> int:
    """Return M, the largest of the integers `2n - M`: odd for odd ones, even with a zero."""
    return int(2**bits - (2 if has_zero else 1))


def dorefa_integers(weight: Tensor, bits: int) -> Tensor:
    """Quantize by Eq. 5 of the QPD paper: `w_q * M = 2 * round(M f(w)) - M`, `M = 2^bits - 1`.

    `f(w) = tanh(w) / (2 max|tanh w|) + 1/2`, the maximum over the layer. Returns odd integers in
    [-M, M], float, in the shape of `weight`, with straight-through gradient; the division by M is
    left to the accumulator's scale, so that everything up to there stays integer.
    """
    levels = 2**bits - 1
    squashed = torch.tanh(weight)
    # The maximum stays in the graph: Eq. 5's gradient reaches the largest weight through it, too.
    unit = squashed / (2.0 * squashed.abs().amax().clamp_min(1e-12)) + 0.5
    return 2.0 * round_straight_through(levels * unit) - levels


def scaled_integers(
    weight: Tensor,
    scale: Tensor,
    bits: int,
    dtype: torch.dtype | None = None,
    *,
    has_zero: bool = False,
) -> Tensor:
    """Quantize in the scaled form: odd integers in [-M, M]; `scale * integers / M` approximates w.

    With `has_zero` they are even ones, of another M (`largest_integer`). Weights beyond the scale
    are clipped. Gradients go straight through to weight and scale. The integers are in `dtype`,
    unless that is the weight's.
    """
    return ScaledIntegers.apply(
        weight, scale, largest_integer(bits, has_zero=has_zero), dtype or weight.dtype
    )


# Plain autograd would keep a tensor of the weight's size for nearly every operation here.
class ScaledIntegers(torch.autograd.Function):
    """The scaled form, a cacheful of rows at a time; only weight and scale are kept."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scale: Tensor, most: int, dtype: torch.dtype) -> Tensor:
        """Return the integers of `scaled_integers`."""
        ctx.save_for_backward(weight, scale)
        ctx.most = most
        integers = torch.empty_like(weight, dtype=dtype)
        for rows, scales, result in _in_cache(weight, scale, integers):
            # From [-1, 1] to [0, 1] and back: rounding must hit levels n of 0..M, as odd integers
            # 2n - M have no zero to round to.
            unit = rows.div(scales).clamp_(-1.0, 1.0).mul_(0.5).add_(0.5)
            result.copy_(unit.mul_(most).round_().mul_(2.0).sub_(most))
        return integers

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients by weight and scale, straight-through."""
        weight, scale = ctx.saved_tensors
        of_weight, of_scale = torch.empty_like(weight), torch.empty_like(scale)
        parts = _in_cache(weight, scale, gradients[0].contiguous(), of_weight, of_scale)
        bound = 1.0 + torch.finfo(weight.dtype).eps  # the kernel's bounds are exclusive
        for rows, scales, gradient, result, result_scale in parts:
            ratio = rows.div(scales)
            # d integer / d w = M / scale inside the range and 0 beyond; d integer / d scale is -w /
            # scale times that, summed over the channel (LSQ).
            inside = gradient.to(weight.dtype).mul(float(ctx.most)).div_(scales)
            torch.ops.aten.hardtanh_backward.grad_input(
                inside, ratio, -bound, bound, grad_input=result
            )
            # Only phase 3 with learned ranges trains the scales.
            if ctx.needs_input_grad[1]:
                result_scale.copy_(ratio.mul_(result).sum(1, keepdim=True).neg_())
        return of_weight, of_scale if ctx.needs_input_grad[1] else None, None, None


def _in_cache(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield some rows of all tensors, `[n, ...]` each, as matrices; on a GPU all rows at once."""
    flat = [tensor.view(len(tensor), -1) for tensor in tensors]
    count = len(flat[0])
    if flat[0].device.type == "cpu":
        count = max(1, CACHED // flat[0].shape[1])
    if count >= len(flat[0]):
        return iter([tuple(flat)])
    return zip(*(tensor.split(count) for tensor in flat), strict=True)


@torch.no_grad()
def least_squares_scale(
    weight: Tensor, bits: int, per_channel: bool, *, has_zero: bool = False
) -> Tensor:
    """Return the scale with the least squared error, of 33 between a fifth of max|w| and max|w|.

    float32 `[out]`: one for each output channel, or the same one for all of them.
    """
    # One scale for all channels is the same search over a single row.
    rows = weight.flatten(1).float() if per_channel else weight.reshape(1, -1).float()
    maximum = rows.abs().amax(1).clamp_min(1e-8)
    best, least = maximum.clone(), torch.full_like(maximum, float("inf"))
    most = largest_integer(bits, has_zero=has_zero)
    # A scale below the maximum clips the largest weights and makes every step finer; with few bits
    # that pays. The grid ends at the maximum itself, so 8 bits can choose not to clip.
    for share in torch.linspace(0.2, 1.0, 33).tolist():
        scale = maximum * share
        integers = scaled_integers(rows, scale, bits, has_zero=has_zero)
        restored = integers * (scale / most).unsqueeze(1)
        error = (restored - rows).square().sum(1)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return best if per_channel else best.expand(len(weight)).clone()
