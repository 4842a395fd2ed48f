"""The straight-through estimator (Bengio et al. 2013): round forwards, identity backwards."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class _RoundStraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        # torch.round takes ties to even; the engine's requantization rounds half up and has its own
        # function below. Here only weights, biases and inputs are rounded.
        return x.round()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0]


def round_straight_through(x: Tensor) -> Tensor:
    """Round to the nearest integer (ties to even); the gradient passes unchanged."""
    return _RoundStraightThrough.apply(x)


class QuantizeActivations(torch.autograd.Function):
    """q = clamp(round(acc * gain + offset), 0, levels), gradient inside [0, levels] only."""

    @staticmethod
    def forward(ctx, acc: Tensor, gain: Tensor, offset: Tensor, levels: float) -> Tensor:  # type: ignore[no-untyped-def]
        """Return the levels of `quantize_activations`."""
        shape = (1, -1) + (1,) * (acc.dim() - 2)
        # In float32 even where acc is bfloat16: gain * acc must be right to a fraction of a level.
        scaled = torch.addcmul(offset.view(shape), acc.float(), gain.view(shape))
        ctx.levels = levels
        ctx.save_for_backward(acc, gain.view(shape).to(acc.dtype), scaled.to(acc.dtype))
        return scaled.clamp(0.0, levels).add_(0.5).floor_().to(acc.dtype)  # half up, as integers

    @staticmethod
    def backward(ctx, *grads: Tensor):  # type: ignore[no-untyped-def]
        """Return the gradients by accumulators, gain and offset; changes the given one."""
        acc, gain, scaled = ctx.saved_tensors
        # One vectorised kernel (torch.where is 15 times slower here); its bounds are exclusive.
        exponent = math.floor(math.log2(ctx.levels))
        top = ctx.levels + 2.0**exponent * torch.finfo(scaled.dtype).eps  # the next float
        grad = torch.ops.aten.hardtanh_backward(grads[0], scaled, -1e-30, top)
        rows = grad.movedim(1, -1).reshape(-1, grad.shape[1])  # mostly a view: channels last
        grad_gain = None
        if ctx.needs_input_grad[1]:  # the diagonal of one small matrix product, no product tensor
            grad_gain = (rows.T @ acc.movedim(1, -1).reshape(rows.shape)).diagonal().float()
        grad_offset = rows.sum(0).float()
        # In place, hence last: `rows` is mostly a view of it.
        return grad.mul_(gain), grad_gain, grad_offset, None


def quantize_activations(acc: Tensor, gain: Tensor, offset: Tensor, levels: int) -> Tensor:
    """Apply ReLU and requantize in one: integers 0..levels in the dtype of `acc`.

    acc float `[batch, channels, ...]`, gain and offset float32 `[channels]`. With
    `acc * gain + offset = y / s` for a pre-activation y and a step s, the straight-through
    gradients with respect to gain and offset make s a learned step size (LSQ, Esser et al. 2020).
    """
    return QuantizeActivations.apply(acc, gain, offset, float(levels))
