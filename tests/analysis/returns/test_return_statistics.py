"""Statistics of returns: numbers by hand, rliable's numbers, and what intervals must do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from qpd.analysis.returns.return_statistics import (
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
    score_matrix,
)

NAN = float("nan")
SCORES = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.integers(-20, 20).map(float),
)


def mean(scores: np.ndarray) -> np.ndarray:
    """Return a statistic whose intervals are known: the mean over all games."""
    return np.asarray(np.nanmean(scores, axis=(-2, -1)))


def test_interquartile_mean_by_hand() -> None:
    # 8 games, 2 left out at each end: (3 + 4 + 5 + 6) / 4
    assert interquartile_mean(np.array([[8.0, 1, 7, 2], [900, 3, 5, 4]])) == (4 + 3 + 5 + 7) / 4
    # 5 games, floor(5 / 4) = 1 left out at each end
    assert interquartile_mean(np.array([[0.0, 1, 2, 6, 100]])) == 3.0
    # 3 games: none left out
    assert interquartile_mean(np.array([[0.0, 1, 5]])) == 2.0


def test_runs_that_played_less_are_filled_up_and_count_by_their_games() -> None:
    scores = score_matrix([np.array([1.0, 2, 3]), np.array([10.0])])
    np.testing.assert_array_equal(scores, [[1, 2, 3], [10, NAN, NAN]])
    assert interquartile_mean(scores) == 2.5  # of 1, 2, 3, 10 the middle two
    assert probability_of_improvement(scores, np.array([[2.0]])) == (0 + 0.5 + 1 + 1) / 4
    for wrong in ([], [np.array([])], [np.array([1.0]), np.array([])]):
        with pytest.raises(ValueError, match="an episode of every run"):
            score_matrix(wrong)


def test_probability_of_improvement_by_hand() -> None:
    ours, theirs = np.array([[1.0, 2, 3]]), np.array([[2.0, 0]])
    # 1 beats 0; 2 beats 0 and draws with 2; 3 beats both: (1 + 1.5 + 2) of 6 pairs
    assert probability_of_improvement(ours, theirs) == 4.5 / 6


def test_the_numbers_of_rliable() -> None:
    """rliable 1.2.0, with scipy 1.17: aggregate_iqm, probability_of_improvement."""
    r = np.random.default_rng(1)
    x, y = r.normal(5, 2, (40, 1)).round(1), r.normal(4.5, 2, (30, 1)).round(1)
    m = r.normal(3, 1, (6, 10))
    assert interquartile_mean(m) == pytest.approx(3.0097717949213956)
    assert interquartile_mean(x) == pytest.approx(5.115)
    assert probability_of_improvement(x, y) == pytest.approx(0.6525)
    # Its intervals of 20,000 (3,000) resamples; one column, so that runs are all there is to draw.
    rng = np.random.default_rng(0)
    intervals = [
        bootstrap_interval(interquartile_mean, x, rng=rng, resamples=5000),
        bootstrap_interval(mean, x, rng=rng, resamples=5000),
        bootstrap_interval(probability_of_improvement, x, y, rng=rng, resamples=3000),
    ]
    theirs = [(4.61, 5.6), (4.4125, 5.57), (0.52708, 0.77501)]
    np.testing.assert_allclose(intervals, theirs, atol=0.04)


def test_both_runs_and_games_are_resampled() -> None:
    rng = np.random.default_rng(0)
    # Runs 0 and 10, games all alike: only the draw of runs matters, and 0, 5, 10 can come out.
    runs_differ = np.repeat([[0.0], [10.0]], 500, axis=1)
    assert bootstrap_interval(mean, runs_differ, rng=rng) == (0.0, 10.0)
    # Runs alike: the standard error of the mean of 1,000 games of standard deviation 5.
    games_differ = np.tile([0.0, 10.0], (2, 250))
    low, high = bootstrap_interval(mean, games_differ, rng=rng)
    assert (high - low) / 2 == pytest.approx(1.96 * 5 / np.sqrt(1000), rel=0.1)


def test_a_shorter_run_is_resampled_from_its_own_games() -> None:
    scores = score_matrix([np.array([1.0, 2, 3, 4]), np.array([100.0])])
    seen: list[np.ndarray] = []

    def statistic(stack: np.ndarray) -> np.ndarray:
        seen.append(stack)
        return mean(stack)

    bootstrap_interval(statistic, scores, rng=np.random.default_rng(0), resamples=500)
    rows = np.concatenate(seen).reshape(-1, 4)
    short, long = rows[rows[:, 0] == 100], rows[rows[:, 0] != 100]
    assert len(short) + len(long) == 1000 and min(len(short), len(long)) > 400
    assert np.isnan(short[:, 1:]).all()
    assert set(long.ravel()) == {1, 2, 3, 4}
    with pytest.raises(ValueError, match="an episode of every run"):
        rng = np.random.default_rng(0)
        bootstrap_interval(mean, np.array([[1.0], [NAN]]), rng=rng)


def test_the_generator_decides() -> None:
    scores = np.random.default_rng(5).normal(size=(3, 40))

    def interval(seed: int) -> tuple[float, float]:
        return bootstrap_interval(mean, scores, rng=np.random.default_rng(seed))

    assert interval(1) == interval(1) != interval(2)


@settings(deadline=None)
@given(SCORES, SCORES)
def test_improvement_both_ways_adds_up_to_one(one: np.ndarray, other: np.ndarray) -> None:
    there, back = probability_of_improvement(one, other), probability_of_improvement(other, one)
    assert there + back == pytest.approx(1)
    assert probability_of_improvement(one + 100, other) == 1


@settings(max_examples=40, deadline=None)
@given(SCORES, st.sampled_from([mean, interquartile_mean]))
def test_what_holds_for_every_matrix(
    scores: np.ndarray, statistic: Callable[..., np.ndarray]
) -> None:
    value = float(statistic(scores))
    assert scores.min() <= value <= scores.max()
    assert statistic(scores[::-1, ::-1]) == pytest.approx(value)  # no order of runs or games
    np.testing.assert_allclose(statistic(np.stack([scores, scores + 7])), [value, value + 7])
    rng = np.random.default_rng(0)
    low, high = bootstrap_interval(statistic, scores, rng=rng, resamples=200)
    assert scores.min() - 1e-9 <= low <= high <= scores.max() + 1e-9
    wide = bootstrap_interval(
        statistic, scores, rng=np.random.default_rng(0), resamples=200, confidence=0.99
    )
    assert wide[0] <= low and high <= wide[1]
