"""The range of features: rare extremes are left out, rare values that cost nothing are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from qpd.numerics.feature_range import feature_range


def column(rare: float, usual: float, count: int = 3000) -> np.ndarray:
    """One rare value among `count` others, `[count + 1, 1]`."""
    return np.array([rare] + [usual] * count, np.float32)[:, None]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (column(0.0, 1.0), (0.0, 1.0)),  # "healthy", nearly always
        (column(1.0, 0.0), (0.0, 1.0)),
        (column(1.0, 1.0), (0.0, 1.0)),  # a flag of which one value was seen
        (column(-1.0, 1.0), (-1.0, 1.0)),
        (column(0.25, 0.5), (0.25, 0.5)),  # normalized, so no whole numbers
        (column(7.0, 7.0), (7.0, 7.0)),
        (np.array([[0.0], [1.0]] * 2000 + [[9.0]]), (0.0, 9.0)),  # a rare category
        (np.array([[0.0], [1.0]] * 2000 + [[1e6]]), (0.0, 1.0)),  # a crash
        (np.array([[0.0], [0.5]] * 2000 + [[9.0]]), (0.0, 0.5)),
    ],
)
def test_rare_values_count_where_they_cost_nothing(
    seen: np.ndarray, expected: tuple[float, float]
) -> None:
    low, high = feature_range(seen)
    np.testing.assert_allclose((low[0], high[0]), expected, rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    hypothesis_numpy.arrays(
        np.float32,
        hypothesis_numpy.array_shapes(min_dims=2, max_dims=2, max_side=20),
        elements=st.floats(width=32, allow_nan=False),
    )
)
def test_the_range_lies_within_what_was_seen_but_for_flags(seen: np.ndarray) -> None:
    with np.errstate(all="ignore"):  # quantiles between ends that are not finite
        low, high = feature_range(seen)
        finite = np.isfinite(low) & np.isfinite(high)
        assert (low <= high)[finite].all()
        is_flag = np.isin(seen, (0.0, 1.0)).all(axis=0)
        inner = finite & ~is_flag
        slack = 1e-5 * np.abs(seen).max(axis=0)
        assert (low >= seen.min(axis=0) - slack)[inner].all()
        assert (high <= seen.max(axis=0) + slack)[inner].all()
