"""Means and ratios over runs and games: agreement with a single run's interval, and coverage."""

from __future__ import annotations

import numpy as np
import pytest

from qpd.analysis.returns import mean_bootstrap
from qpd.analysis.returns.mean_bootstrap import mean_estimate, mean_of_ratios_estimate
from qpd.analysis.returns.return_statistics import score_matrix
from qpd.evaluation.games import bootstrap_interval


def test_one_run_has_the_interval_that_its_evaluation_prints() -> None:
    returns = 400 - np.random.default_rng(0).exponential(60, 50)
    low, high = mean_estimate(returns[None]).interval()
    width = high - low
    # Of 20,000 and 10,000 other resamples: the ends differ by their chance.
    assert (low, high) == pytest.approx(bootstrap_interval(returns), abs=0.03 * width)


def test_runs_of_different_lengths_count_by_their_games() -> None:
    scores = score_matrix([np.array([1.0, 2, 3]), np.array([10.0]), np.array([10.0])])
    found = mean_estimate(scores)
    assert found.value == pytest.approx(5.2)
    # Between runs: (0.6 * 3.2^2 + 0.4 * 4.8^2) * (0.6^2 + 2 * 0.2^2). Within: 0.6^2 / 3.
    assert found.error**2 == pytest.approx(15.36 * 0.44 + 0.12)
    with pytest.raises(ValueError, match="an episode of every run"):
        mean_estimate(np.array([[1.0], [np.nan]]))


def test_degrees_of_freedom_are_those_of_what_varies() -> None:
    games = np.random.default_rng(0).normal(size=(1, 30))
    assert mean_estimate(games).freedom == pytest.approx(29)
    apart = np.concatenate([games, games + 1000, games - 1000])  # and their games hardly matter
    assert mean_estimate(apart).freedom == pytest.approx(2, rel=1e-3)
    assert mean_estimate(np.concatenate([games, games])).freedom == 1


def test_the_mean_over_seeds_may_be_beyond_all_games_of_those_trained() -> None:
    """Two seeds at 100 and 120: Student's t with one of freedom has -17 to 237."""
    low, high = mean_estimate(np.array([[99.0, 100, 101], [119, 120, 121]])).interval()
    assert low < 99 and high > 121
    # One run's mean is among its games.
    low, high = mean_estimate(np.array([[0.0, 0, 0, 0, 100]])).interval()
    assert low >= 0 and high <= 100


def test_the_error_of_a_ratio_is_the_delta_methods() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(200, 40, (1, 100)), rng.normal(100, 40, (1, 100))
    found = mean_of_ratios_estimate([(one, two)])
    assert found is not None
    parts = [games.var(ddof=1) / 100 / games.mean() ** 2 for games in (one, two)]
    assert found.error == pytest.approx(found.value * np.sqrt(sum(parts)))
    assert mean_of_ratios_estimate([(one, np.array([[0.0, 0.0, 1.0]]))]) is None


@pytest.mark.parametrize("count", [2, 3])
def test_few_seeds_that_differ_are_covered(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds 15 points apart, games 40: the percentile interval of three seeds covers about 80%."""
    monkeypatch.setattr(mean_bootstrap, "RESAMPLES", 499)
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        seeds = rng.normal(360, 15, (count, 1))
        low, high = mean_estimate(seeds + 40 - rng.exponential(40, (count, 50))).interval()
        covered += low <= 360 <= high
    # Of two, which tell least of how far seeds lie apart, it is wider than need be.
    assert 0.90 <= covered / 400 <= (0.98 if count == 3 else 1.0)
