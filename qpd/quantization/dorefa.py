"""DoReFa weight quantization (Zhou et al. 2016, section 2.3): Eq. 5 of the QPD paper.

Weights become odd integers `2n - M` with `M = 2^bits - 1` and level n in 0..M; there is no zero.
As written, Eq. 5 throws each layer's scale away: weights fill [-1, 1]. `scaled` gives it back.

Shapes: `weight [out, in, kh, kw]` or `[out, in]`; per channel `maximum` is taken over all axes but
the first, and `scale` is `[out]`; per layer it is over everything, and `scale` is `[out]`, constant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qpd.quantization.straight_through import round_straight_through


def dorefa_integers(weight: Tensor, bits: int, per_channel: bool = False) -> Tensor:
    """Odd integers `2 * round(M f(w)) - M` in [-M, M], float, with straight-through gradient.

    `f(w) = tanh(w) / (2 max|tanh w|) + 1/2`. Divided by M they are Eq. 5's w_q.
    """
    levels = 2**bits - 1
    squashed = torch.tanh(weight)
    axes = list(range(1, weight.dim())) if per_channel else list(range(weight.dim()))
    maximum = squashed.abs().amax(axes, keepdim=True).clamp_min(1e-12)
    unit = squashed / (2.0 * maximum) + 0.5
    return 2.0 * round_straight_through(levels * unit) - levels


def dorefa_quantize(weight: Tensor, bits: int) -> Tensor:
    """Eq. 5, literally: values in [-1, 1], the layer's scale lost."""
    return dorefa_integers(weight, bits) / (2**bits - 1)


def least_squares_scale(weight: Tensor, integers: Tensor, per_channel: bool) -> Tensor:
    """The factor a with least `|w - a * integers|^2`, float32 `[out]`, outside the graph.

    One factor for each output channel, or the same one for all of them.
    """
    with torch.no_grad():
        w, q = weight.flatten(1).float(), integers.flatten(1).float()
        dot, square = (w * q).sum(1), (q * q).sum(1)
        if not per_channel:
            dot, square = dot.sum().expand_as(dot), square.sum().expand_as(square)
        return (dot / square.clamp_min(1e-12)).clamp_min(1e-12)
