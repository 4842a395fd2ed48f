"""Continuous actions as a device takes them: k-bit codes, by thresholds on the accumulators.

Code c of `2^bits - 1` stands for the share `c / (2^bits - 1)` of an action's range: what a DAC or a
PWM timer is given. Squash and rounding (Eq. 4 of the QPD paper, on the final activation) rise with
the accumulator, so that a code is the number of thresholds that it has reached: no float, no
division, and no tanh on the device. The head has one scale, hence one list for all actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qpd.actions import Box

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


@dataclass(frozen=True)
class OutputGrid:
    """The grid that a mean is rounded to before its squash: `step` times -2^(bits-1) and up.

    That of integer controllers (Kresse & Lampert, arXiv 2511.07046, Eq. 1); rounded half up.
    """

    step: float
    bits: int

    def least_mean(self, mean: float) -> float:
        """Return the least mean that is rounded to `mean` or more; infinite where none is."""
        level, most = math.ceil(mean / self.step), 2 ** (self.bits - 1)
        if level > most - 1:
            return math.inf
        return -math.inf if level <= -most else (level - 0.5) * self.step


def action_thresholds(
    actions: Box, output_scale: float, bits: int, grid: OutputGrid | None = None
) -> np.ndarray:
    """Return the least accumulator of each code above 0, int32 `[2^bits - 1]`, in order.

    An accumulator times `output_scale` is an action's mean before the squash, in units of its range
    (`qpd.actions.box`); where there is a `grid`, it is rounded to that first. Codes are rounded
    half up.
    """
    top = 2**bits - 1
    shares = [(2 * code - 1) / top - 1.0 for code in range(1, top + 1)]
    means = [math.atanh(share) if actions.squash == "tanh" else share for share in shares]
    if actions.mean_bound is not None:
        # Codes that a clipped mean does not come to: above it never reached, below it always.
        far = 2.0**32 * output_scale
        means = [m if abs(m) <= actions.mean_bound else math.copysign(far, m) for m in means]
    if grid is not None:
        far = 2.0**32 * output_scale
        means = [min(max(grid.least_mean(mean), -far), far) for mean in means]
    # Beyond int32 no accumulator comes; at its end one might, which is half a step at most.
    found = [math.ceil(mean / output_scale) for mean in means]
    return np.clip(found, INT32_MIN, INT32_MAX).astype(np.int32)


def action_codes(accumulators: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the codes, uint8, of int32 accumulators, in the same shape."""
    return np.searchsorted(thresholds, accumulators, side="right").astype(np.uint8)
