"""The range of a vector's features: what their 8 bits are spread over."""

from __future__ import annotations

import numpy as np

_BEYOND = 1 / 2000  # the share of values that may lie beyond either end
_WHOLE_SPAN = 255  # whole numbers that 8 bits tell apart


def feature_range(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the range of each feature of `seen`, `[n, features]`, but for rare extremes.

    Of a feature that crashes send far out, the whole range would leave the values that decide about
    actions a few of 255 levels: one in 2,000 may lie beyond either end. Rare values count where
    they cost nothing: those of whole numbers that 8 bits hold, of flags (0 or 1, even where only
    one was seen), and of a feature that is the same otherwise.
    """
    low, high = np.quantile(seen, [_BEYOND, 1 - _BEYOND], axis=0)
    least, most = seen.min(axis=0), seen.max(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):  # of ends that are not finite
        is_whole = (seen == np.rint(seen)).all(axis=0) & (most - least <= _WHOLE_SPAN)
    is_flag = is_whole & (least >= 0) & (most <= 1)
    takes_all = is_whole | (low == high)
    low, high = np.where(takes_all, least, low), np.where(takes_all, most, high)
    return np.where(is_flag, 0.0, low), np.where(is_flag, 1.0, high)
