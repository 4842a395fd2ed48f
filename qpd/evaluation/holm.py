"""Holm's correction: p-values of several questions that are asked together."""

from __future__ import annotations

from collections.abc import Sequence

ERROR_RATE = 0.05  # of all of them together


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for being many (Holm 1979), in the given order.

    The smallest of m is multiplied by m, the next by m - 1, and so on; none is below a smaller one.
    """
    corrected = [0.0] * len(p_values)
    so_far = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        so_far = max(so_far, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = so_far
    return corrected
