"""DoReFa weight quantization (Zhou et al. 2016, section 2.3): Eq. 5 of the QPD paper, and scaled.

Weights become odd integers `2n - M` with `M = 2^bits - 1` and level n in 0..M; there is no zero.
As written, Eq. 5 throws each layer's scale away (weights fill [-1, 1]) and bends what remains by a
tanh. The scaled form keeps the grid and drops both: `w = scale * (2n - M) / M`, with a scale for
each output channel that starts where the squared error is least and may be trained (LSQ, Esser et
al. 2020).

Shapes: `weight [out, in, kh, kw]` or `[out, in]`; `scale [out]`, constant where it is per layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qpd.quantization.straight_through import round_straight_through


def dorefa_integers(weight: Tensor, bits: int) -> Tensor:
    """Odd integers `2 * round(M f(w)) - M` in [-M, M], float, with straight-through gradient.

    `f(w) = tanh(w) / (2 max|tanh w|) + 1/2`, the maximum over the layer. Divided by M they are
    Eq. 5's w_q.
    """
    levels = 2**bits - 1
    squashed = torch.tanh(weight)
    unit = squashed / (2.0 * squashed.abs().amax().clamp_min(1e-12)) + 0.5
    return 2.0 * round_straight_through(levels * unit) - levels


def dorefa_quantize(weight: Tensor, bits: int) -> Tensor:
    """Eq. 5, literally: values in [-1, 1], the layer's scale lost."""
    return dorefa_integers(weight, bits) / (2**bits - 1)


def scaled_integers(weight: Tensor, scale: Tensor, bits: int) -> Tensor:
    """Odd integers in [-M, M] of the scaled form, float; `scale * integers / M` approximates w.

    Weights beyond the scale are clipped. Gradients go straight through to weight and scale.
    """
    levels = 2**bits - 1
    ratio = weight / scale.view(-1, *(1,) * (weight.dim() - 1))
    unit = ratio.clamp(-1.0, 1.0) * 0.5 + 0.5
    return 2.0 * round_straight_through(levels * unit) - levels


@torch.no_grad()
def least_squares_scale(weight: Tensor, bits: int, per_channel: bool) -> Tensor:
    """The scale with the least squared error, of 33 between a fifth of max|w| and max|w|.

    float32 `[out]`; one for each output channel, or the same one for all of them.
    """
    rows = weight.flatten(1).float() if per_channel else weight.reshape(1, -1).float()
    maximum = rows.abs().amax(1).clamp_min(1e-8)
    best, least = maximum.clone(), torch.full_like(maximum, float("inf"))
    for share in torch.linspace(0.2, 1.0, 33).tolist():
        scale = maximum * share
        restored = scaled_integers(rows, scale, bits) * (scale / (2**bits - 1)).unsqueeze(1)
        error = (restored - rows).square().sum(1)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return best if per_channel else best.expand(len(weight)).clone()
