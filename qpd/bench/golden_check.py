"""Does a runtime compute the model that it should? Asked before anything is timed."""

from __future__ import annotations

import numpy as np

from qpd.bench.contestant import WrongAnswerError
from qpd.bench.device_record import GoldenCheck

# Of the logits' spread. Quantized graphs round a level the other way now and then; what a compiler
# or a kernel gets wrong is far larger. fp32 has 24 bits, and sums in another order.
QUANTIZED_TOLERANCE, FLOAT_TOLERANCE = 0.02, 1e-3


def compare(logits: np.ndarray, wanted: np.ndarray) -> GoldenCheck:
    """Both float64 `[n, actions]`; the error is relative to the spread of `wanted`."""
    spread = float(np.ptp(wanted)) or 1.0
    error = float(np.abs(logits - wanted).max()) / spread
    same = int((logits.argmax(1) == wanted.argmax(1)).sum())
    return GoldenCheck(
        vectors=len(wanted), same_actions=same, largest_error=error if np.isfinite(error) else 1e9
    )


def refuse_wrong(check: GoldenCheck, tolerance: float) -> None:
    """WrongAnswerError for a runtime that computes something else."""
    if check.largest_error > tolerance:
        raise WrongAnswerError(
            f"computes something else: logits are off by {check.largest_error:.1%} of their "
            f"spread, the action is the same for {check.same_actions} of {check.vectors} "
            "golden vectors"
        )
