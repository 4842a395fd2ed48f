"""When a claim held: by intervals of ratios, with hand-made numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpd.analysis.paper.verdict import (
    ClaimTest,
    Estimate,
    Verdict,
    claim_test_of_every,
    claim_test_of_mean,
    mean_of_ratios,
    mean_return,
)
from qpd.evaluation.holm import holm


def test_holm_by_hand() -> None:
    # 0.01 * 4, 0.02 * 3, 0.03 * 2 and 0.5 * 1; a larger p-value never ends below a smaller one.
    assert holm([0.5, 0.01, 0.03, 0.02]) == pytest.approx([0.5, 0.04, 0.06, 0.06])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([]) == [] and holm([0.7, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("held", "failed", "corrected", "verdict"),
    [
        (0.001, 0.999, 0.04, Verdict.held),
        (0.999, 0.001, 0.04, Verdict.failed),
        (0.001, 0.999, 0.05, Verdict.undecided),
    ],
)
def test_a_verdict_needs_the_corrected_p_value(
    held: float, failed: float, corrected: float, verdict: Verdict
) -> None:
    test = ClaimTest(held, failed)
    assert test.p == 0.002 and test.verdict(corrected) == verdict


def test_every_ratio() -> None:
    first, second = ClaimTest(0.01, 0.99), ClaimTest(0.04, 0.96)
    # It holds if both do: the larger p-value. It fails if one does: twice the smaller.
    assert claim_test_of_every([first, second]) == ClaimTest(0.04, 1.0)
    assert claim_test_of_every([first, ClaimTest(0.99, 0.01)]) == ClaimTest(0.99, 0.02)


def test_sides_of_a_bound() -> None:
    games = np.random.default_rng(0).normal(100, 20, (1, 50))
    pairs = [(games, np.full((1, 1), 90.0))]
    above, below = (claim_test_of_mean(pairs, 1.0, side) for side in ("above", "below"))
    assert (above.held, above.failed) == (below.failed, below.held)
    assert above.held < 0.01 < 0.9 < above.failed
    unknown = [(games, np.array([[0.0, 0.0, 1.0]]))]
    assert claim_test_of_mean(unknown, 1.0, "above") == ClaimTest(1.0, 1.0)


def test_a_ratio_of_constants_has_no_width() -> None:
    ten, five = np.full((3, 4), 10.0), np.full((2, 7), 5.0)
    assert mean_of_ratios([(ten, five)]) == Estimate(2.0, 2.0, 2.0)
    # The mean of 2 and of 1/2, not the ratio of the means of all games.
    assert mean_of_ratios([(ten, five), (five, ten)]) == Estimate(1.25, 1.25, 1.25)


def test_a_matrix_in_two_pairs_is_drawn_once() -> None:
    games = np.random.default_rng(0).uniform(50, 150, (1, 20))
    # x / y + y / x for the same draws of x and y is never below 2, whatever is drawn.
    other = np.random.default_rng(1).uniform(50, 150, (1, 20))
    together = mean_of_ratios([(games, other), (other, games)])
    apart = mean_of_ratios([(games, other), (other + 1e-9, games + 1e-9)])
    # Errors of x / y and y / x cancel; of independent draws they would not.
    assert together.high - together.low < (apart.high - apart.low) / 3
    # A copy is the same games: one student that two phases hold.
    assert mean_of_ratios([(games, games.copy())]) == Estimate(1.0, 1.0, 1.0)


def test_the_interval_is_that_of_the_normal_approximation() -> None:
    # Delta method: ratio of means of n games each, standard deviations 40, means 200 and 100.
    rng = np.random.default_rng(0)
    first, second = rng.normal(200, 40, (1, 400)), rng.normal(100, 40, (1, 400))
    first *= 200 / first.mean()
    second *= 100 / second.mean()
    spread = np.hypot(first.std() / 200, second.std() / 100) / np.sqrt(400)
    found = mean_of_ratios([(first, second)])
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2 * (1 - 1.96 * spread), abs=0.02)
    assert found.high == pytest.approx(2 * (1 + 1.96 * spread), abs=0.02)


def test_runs_count_not_only_games() -> None:
    # Two seeds of constant returns 100 and 300: which seeds were drawn is all the uncertainty.
    seeds = np.array([[100.0] * 50, [300.0] * 50])
    found = mean_of_ratios([(seeds, np.full((1, 50), 100.0))])
    assert found.value == 2.0 and found.low <= 1.0 and found.high >= 3.0


def test_a_base_that_may_be_zero_gives_no_ratio() -> None:
    found = mean_of_ratios([(np.ones((1, 3)), np.array([[0.0, 0.0, 1.0]]))])
    assert np.isnan([found.value, found.low, found.high]).all()


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.floats(1, 900), min_size=1, max_size=12),
    st.lists(st.floats(1, 900), min_size=1, max_size=12),
    st.floats(0.1, 10),
)
def test_units_do_not_matter(first: list[float], second: list[float], unit: float) -> None:
    pair = (np.array([first]), np.array([second]))
    plain, scaled = mean_of_ratios([pair]), mean_of_ratios([(unit * pair[0], unit * pair[1])])
    assert plain.low <= plain.high
    # Other numbers draw other resamples: equal but for their chance.
    chance = 0.1 * (plain.high - plain.low)
    assert (scaled.low, scaled.high) == pytest.approx((plain.low, plain.high), rel=0.2, abs=chance)


def test_mean_return() -> None:
    found = mean_return(np.array([[10.0, 20, 30] * 4]))
    assert found.value == 20 and 10 <= found.low < 20 < found.high <= 30
