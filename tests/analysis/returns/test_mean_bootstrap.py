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


def test_runs_count_alike_however_many_games_each_played() -> None:
    found = mean_estimate(score_matrix([np.array([1.0, 2, 3]), *[np.array([10.0])] * 5]))
    assert found.value == pytest.approx(52 / 6)
    # Between runs: ((20/3)^2 + 5 * (4/3)^2) / 6 / 6. Within: 1/3 / 6^2.
    assert found.error**2 == pytest.approx(40 / 27 + 1 / 108)


@pytest.mark.parametrize("count", [5, 8])
def test_one_run_of_many_games_narrows_no_interval(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their games' number the first run counts for most: 81% and fewer were covered."""
    monkeypatch.setattr(mean_bootstrap, "RESAMPLES", 199)
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        played = [
            rng.normal(rng.normal(100, 10), 20, games) for games in [500] + [20] * (count - 1)
        ]
        low, high = mean_estimate(score_matrix(played)).interval()
        covered += low <= 100 <= high
    assert covered / 300 >= 0.9


def test_of_few_runs_the_variance_is_a_samples() -> None:
    scores = score_matrix([np.array([1.0, 2, 3]), np.array([10.0]), np.array([10.0])])
    # Of 2, 10 and 10: (16^2 + 8^2 + 8^2) / 9 / 2, over three runs.
    found = mean_estimate(scores)
    assert found.error**2 == pytest.approx(64 / 9) and found.freedom == 2
    with pytest.raises(ValueError, match="an episode of every run"):
        mean_estimate(np.array([[1.0], [np.nan]]))


def test_degrees_of_freedom_are_those_of_what_varies() -> None:
    games = np.random.default_rng(0).normal(size=(1, 30))
    assert mean_estimate(games).freedom == pytest.approx(29)
    apart = np.concatenate([games, games + 1000, games - 1000])  # and their games hardly matter
    assert mean_estimate(np.concatenate([apart] * 2)).freedom == pytest.approx(5, rel=1e-3)
    assert [mean_estimate(np.concatenate([games] * n)).freedom for n in (2, 5)] == [1, 4]


def test_the_mean_over_seeds_may_be_beyond_all_games_of_those_trained() -> None:
    """Two seeds at 100 and 120: Student's t with one of freedom has -17 to 237."""
    low, high = mean_estimate(np.array([[99.0, 100, 101], [119, 120, 121]])).interval()
    assert low < 99 and high > 121
    # One run's mean is among its games, if they are many.
    low, high = mean_estimate(np.array([[0.0] * 9 + [100]])).interval()
    assert low >= 0 and high <= 100


def test_the_error_of_a_ratio_is_the_delta_methods() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(200, 40, (1, 100)), rng.normal(100, 40, (1, 100))
    found = mean_of_ratios_estimate([(one, two)])
    assert found is not None
    parts = [games.var(ddof=1) / 100 / games.mean() ** 2 for games in (one, two)]
    assert found.error == pytest.approx(found.value * np.sqrt(sum(parts)))
    assert mean_of_ratios_estimate([(one, np.array([[0.0, 0.0, 1.0]]))]) is None


def test_policies_of_the_same_seeds_are_compared_seed_by_seed() -> None:
    """Seeds 40 apart, and a policy at 0.97 of the other at each, but for a point."""
    floats, integers = np.array([[300.0], [340], [380]]), np.array([[291.0], [330], [369]])
    both = [(integers, floats)]
    found = mean_of_ratios_estimate(both, [((0, 1, 2), (0, 1, 2))])
    assert found is not None and found.value == pytest.approx(330 / 340)
    # By hand: integers / 340 - 330 / 340^2 * floats at the three seeds is -off, 0 and off.
    off = 39 / 340 - 330 / 340**2 * 40
    assert found.error == pytest.approx(abs(off) / np.sqrt(3)) and found.freedom == 2
    apart = mean_of_ratios_estimate(both, [((0, 1, 2), (3, 4, 5))])
    assert apart is not None and apart.error > 100 * found.error
    # Games alone set the least error: here the two of each run are 20 apart.
    wide = mean_of_ratios_estimate(
        [(integers + np.array([-10.0, 10.0]), floats + np.array([-10.0, 10.0]))],
        [((0, 1, 2), (0, 1, 2))],
    )
    games = 200 / 2 / 3
    assert wide is not None
    assert wide.error**2 == pytest.approx(games / 340**2 + games * 330**2 / 340**4)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_few_seeds_that_differ_are_covered(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds 30 points apart, games 60: the percentile interval of three seeds covers about 80%."""
    monkeypatch.setattr(mean_bootstrap, "RESAMPLES", 499)
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        seeds = rng.normal(360, 30, (count, 1))
        low, high = mean_estimate(seeds + 60 - rng.exponential(60, (count, 50))).interval()
        covered += low <= 360 <= high
    # The fewer they are, the wider than need be.
    assert covered / 400 >= 0.94
