"""hAdam: Adam that stores the root of its second moment, so that small gradients leave a trace.

Bjorck et al., Low-Precision RL: Running SAC in Half Precision (ICML 2021, arXiv 2102.13565). All
functions work in the dtype that they are given, on any equal shapes, and change nothing in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

BETA1, BETA2 = 0.9, 0.999


def hypot(a: Tensor, b: Tensor) -> Tensor:
    """Compute sqrt(a^2 + b^2) without squares: max * sqrt(1 + (min / max)^2), 0 for (0, 0)."""
    a, b = a.abs(), b.abs()
    larger, smaller = torch.maximum(a, b), torch.minimum(a, b)
    ratio = smaller / torch.where(larger == 0, torch.ones_like(larger), larger)
    return larger * torch.sqrt(1.0 + ratio * ratio)


def adam_moments(m: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return Adam's moments after gradient `g`: v holds squares, which under- and overflow."""
    return BETA1 * m + (1.0 - BETA1) * g, BETA2 * v + (1.0 - BETA2) * (g * g)


def hadam_moments(m: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return hAdam's moments after gradient `g`: w = sqrt(v) = hypot(sqrt(b2) w, sqrt(1-b2) g)."""
    moved = hypot(BETA2**0.5 * w, (1.0 - BETA2) ** 0.5 * g)
    return BETA1 * m + (1.0 - BETA1) * g, moved


def adam_step(m: Tensor, v: Tensor, lr: float, eps: float, updates: int) -> Tensor:
    """Return what Adam adds to the parameters at the given number of updates, from 1."""
    first, second = m / (1.0 - BETA1**updates), v / (1.0 - BETA2**updates)
    return -lr * (first / (second.sqrt() + eps))


def hadam_step(m: Tensor, w: Tensor, lr: float, eps: float, updates: int) -> Tensor:
    """Return what hAdam adds to the parameters: Adam's step in exact arithmetic.

    `eps` that rounds to 0 in the dtype makes 0 / 0 of a gradient that was always 0.
    """
    first, root = m / (1.0 - BETA1**updates), w / (1.0 - BETA2**updates) ** 0.5
    return -lr * (first / (root + eps))
