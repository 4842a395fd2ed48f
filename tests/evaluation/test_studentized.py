"""Intervals of a mean: how often they cover it, and p-values that agree with them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from qpd.evaluation.games import bootstrap_interval
from qpd.evaluation.studentized import (
    StudentizedEstimate,
    student_t_quantile,
    student_t_survival,
    studentized_draws,
    t_estimate,
    t_interval,
)

REFERENCE = Path(__file__).resolve().parents[2] / "runs-reference"


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    # Tables of Student's t; of one degree of freedom tan(pi (p - 1/2)); the last is the normal.
    [(0.975, 1, 12.706), (0.975, 29, 2.0452), (0.995, 4, 4.6041), (0.9995, 10, 4.5869),
     (0.975, 1e9, 1.95996)],
)  # fmt: skip
def test_students_t(probability: float, freedom: float, value: float) -> None:
    assert student_t_quantile(probability, freedom) == pytest.approx(value, rel=1e-4)
    assert student_t_survival(value, freedom) == pytest.approx(1 - probability, rel=1e-3)
    assert student_t_survival(-value, freedom) == pytest.approx(probability, rel=1e-4)


def test_three_trainings_by_hand() -> None:
    # Mean 2, error 1 / sqrt(3); t = 3.4641 with 2 degrees of freedom: 1/2 - t / (2 sqrt(2 + t^2)).
    found = t_estimate(np.array([1.0, 2.0, 3.0]))
    assert found.interval() == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), rel=1e-4)
    assert found.p_above(0.0) == pytest.approx(0.03709, abs=1e-5)
    assert found.p_below(0.0) == pytest.approx(1 - 0.03709, abs=1e-5)


def breakout_returns() -> list[np.ndarray]:
    """The 200 recorded games of students in Breakout: most near 390, some far below."""
    names = ("breakout-ppo-s", "breakout-ppo-6kb", "breakout-ppo-2kb", "breakout-ppo-xxs-4bit")
    manifests = [json.loads((REFERENCE / name / "manifest.json").read_text()) for name in names]
    return [np.array(manifest["evaluations"]["qat"]["returns"]) for manifest in manifests]


def test_thirty_games_of_breakout_are_covered_as_often_as_is_said() -> None:
    """Drawn from 200 games, whose mean is the truth: 95%, where percentiles cover 91%."""
    rng = np.random.default_rng(0)
    covered, plain, number = 0, 0, 350
    populations = breakout_returns()
    for returns in populations:
        for seed in range(number):
            games = rng.choice(returns, 30)
            low, high = bootstrap_interval(games, resamples=500, seed=seed)
            covered += low <= returns.mean() <= high
            means = games[rng.integers(30, size=(500, 30))].mean(axis=1)
            low, high = np.quantile(means, [0.025, 0.975])
            plain += low <= returns.mean() <= high
    trials = number * len(populations)
    # Two standard errors of a share of 95% of 1,400 are 1.2%.
    assert 0.94 <= covered / trials <= 0.965
    assert plain / trials < 0.925


def estimate(count: int = 40) -> StudentizedEstimate:
    rng = np.random.default_rng(1)
    returns = 400 - rng.exponential(40, count)
    drawn = returns[rng.integers(count, size=(5000, count))]
    errors = drawn.std(axis=1, ddof=1) / np.sqrt(count)
    draws = studentized_draws(returns.mean(), drawn.mean(axis=1), errors)
    error = returns.std(ddof=1) / np.sqrt(count)
    return StudentizedEstimate(float(returns.mean()), float(error), draws, count - 1.0)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_an_interval_ends_where_the_p_value_reaches_its_tail(confidence: float) -> None:
    found = estimate()
    low, high = found.interval(confidence)
    tail = (1 - confidence) / 2
    # (k + 1) / (5000 + 1) and an interpolated quantile differ by a resample or two.
    assert found.p_above(low) == pytest.approx(tail, abs=5e-4)
    assert found.p_below(high) == pytest.approx(tail, abs=5e-4)
    assert found.p_above(low - 1) < tail < found.p_above(low + 1)


def test_an_end_is_between_once_and_twice_students_t() -> None:
    near = StudentizedEstimate(0.0, 1.0, np.zeros(100), 9.0)
    assert near.interval() == pytest.approx((-2.2622, 2.2622), abs=1e-3)
    # Resamples that miss the rare low games: nearly no error, and deviations beyond all measure.
    wild = StudentizedEstimate(0.0, 1.0, np.full(100, 1e9), 9.0)
    assert wild.interval() == pytest.approx((-4.5243, 2.2622), abs=1e-3)
    assert wild.p_above(-4.6) < 0.025 < wild.p_above(-4.4)


def test_copies_of_one_game_are_left_out_of_the_draws() -> None:
    drawn, errors = np.array([1.0, 2.0, 3.0]), np.array([0.5, 1e-17, 0.5])
    np.testing.assert_array_equal(studentized_draws(1.5, drawn, errors), [-1.0, 3.0])


def test_without_spread_every_difference_is_certain() -> None:
    found = StudentizedEstimate(2.0, 0.0, np.empty(0), 9.0)
    assert found.interval() == (2.0, 2.0)
    assert (found.p_above(1.9), found.p_above(2.0), found.p_below(1.9)) == (0.0, 1.0, 1.0)


def test_the_interval_over_seeds_by_hand() -> None:
    # Mean 2, deviation 1, t of 2 degrees of freedom 4.3027; a failed training is left out.
    half = 4.3027 / 3**0.5
    assert t_interval([1.0, math.nan, 2.0, 3.0]) == pytest.approx((2, 2 - half, 2 + half), rel=1e-4)
    mean, low, high = t_interval([5.0])
    assert mean == 5.0 and math.isnan(low) and math.isnan(high)
    assert all(math.isnan(each) for each in t_interval([math.nan]))


def test_no_end_lies_beyond_the_games() -> None:
    found = StudentizedEstimate(1.0, 5.0, np.empty(0), 4.0, lowest=0.0, highest=3.0)
    assert found.interval() == (0.0, 3.0)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_few_numbers_are_covered_too(count: int) -> None:
    rng = np.random.default_rng(3)
    ends = [bootstrap_interval(rng.normal(size=count), resamples=500) for _ in range(1000)]
    # Two standard errors of a share of 95% of 1,000 are 1.4%.
    assert np.mean([low <= 0.0 <= high for low, high in ends]) >= 0.935


def test_small_p_values_do_not_end_at_the_number_of_resamples() -> None:
    found = StudentizedEstimate(5.0, 1.0, np.linspace(-3.0, 3.0, 100), 9.0)
    assert found.p_above(2.0) == pytest.approx(2 / 101)  # one draw is as far off as 3 errors
    # Of 9 degrees of freedom 0.7478% exceed 3, and 0.1555% exceed 4.
    assert found.p_above(1.0) == pytest.approx(1 / 101 * 0.1555 / 0.7478, rel=1e-3)
