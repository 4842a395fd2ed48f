"""Compensated sums: Kahan-gradients for parameters, Kahan-momentum for target networks.

Bjorck et al., Low-Precision RL: Running SAC in Half Precision (ICML 2021, arXiv 2102.13565). All
functions work in the dtype that they are given, on any equal shapes, and change nothing in place.
"""

from __future__ import annotations

from torch import Tensor

# The paper's C is above 1; this is the authors' code's. In fp16 it overflows for |psi| > 6.55.
MOMENTUM_SCALE = 1e4


def kahan_add(total: Tensor, lost: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Add `step` to `total`, and return the sum and what rounding lost of it, to be given again.

    y = d - c; t = theta + y; c = (t - theta) - y; theta = t. `lost` begins at 0.
    """
    owed = step - lost
    found = total + owed
    return found, (found - total) - owed


def naive_soft_update(target: Tensor, online: Tensor, tau: float) -> Tensor:
    """Return target + tau (online - target), which stops where the move rounds off."""
    return target + tau * (online - target)


def kahan_soft_update(
    scaled: Tensor, lost: Tensor, online: Tensor, tau: float, scale: float
) -> tuple[Tensor, Tensor]:
    """Move the `scaled` target C psi^ by tau towards C times `online`; return both sum and loss.

    The target network's parameters are the first divided by `scale`, C, which `fitting_scale`
    chooses.
    """
    return kahan_add(scaled, lost, tau * (scale * online - scaled))


def fitting_scale(
    parameters: list[Tensor], largest: float, wanted: float = MOMENTUM_SCALE
) -> float:
    """Return `wanted`, or a power of two for which C psi stays below half of `largest`.

    `largest` is the format's largest number; the half is for parameters that still grow. At least
    1.
    """
    widest = max(
        (float(each.detach().abs().max()) for each in parameters if each.numel()), default=0.0
    )
    scale = wanted
    while scale > 1.0 and scale * widest > largest / 2:
        # Powers of two multiply without rounding.
        scale = 2.0 ** (int(scale - 1).bit_length() - 1)
    return max(scale, 1.0)
