"""When a claim held: by intervals of ratios, with hand-made numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpd.analysis.paper.verdict import (
    Estimate,
    Verdict,
    mean_of_ratios,
    mean_return,
    verdict_of_every,
    verdict_of_mean,
)

ABOVE, BELOW = Estimate(1.2, 1.1, 1.3), Estimate(0.8, 0.7, 0.9)
AROUND = Estimate(1.0, 0.9, 1.1)
UNKNOWN = Estimate(np.nan, np.nan, np.nan)


@pytest.mark.parametrize(
    ("found", "side", "verdict"),
    [
        (ABOVE, "above", Verdict.held),
        (BELOW, "above", Verdict.failed),
        (AROUND, "above", Verdict.undecided),
        (BELOW, "below", Verdict.held),
        (ABOVE, "below", Verdict.failed),
        (AROUND, "below", Verdict.undecided),
        (UNKNOWN, "above", Verdict.undecided),
        (UNKNOWN, "below", Verdict.undecided),
        (Estimate(1.1, 1.0, 1.2), "above", Verdict.undecided),  # the bound itself is no more
    ],
)
def test_a_single_ratio(found: Estimate, side: str, verdict: Verdict) -> None:
    assert verdict_of_mean(found, 1.0, side) == verdict  # type: ignore[arg-type]


def test_every_ratio() -> None:
    def judge(*found: Estimate, corrected: tuple[Estimate, ...] | None = None) -> Verdict:
        return verdict_of_every(found, found if corrected is None else corrected, 1.0, "above")

    assert judge(ABOVE, ABOVE) == Verdict.held
    assert judge(ABOVE, AROUND) == Verdict.undecided
    assert judge(ABOVE, BELOW) == Verdict.failed
    # One of several that is below only without the correction does not fail the claim.
    assert judge(ABOVE, BELOW, corrected=(ABOVE, AROUND)) == Verdict.undecided


def test_a_ratio_of_constants_has_no_width() -> None:
    ten, five = np.full((3, 4), 10.0), np.full((2, 7), 5.0)
    assert mean_of_ratios([(ten, five)]) == Estimate(2.0, 2.0, 2.0)
    # The mean of 2 and of 1/2, not the ratio of the means of all games.
    assert mean_of_ratios([(ten, five), (five, ten)]) == Estimate(1.25, 1.25, 1.25)


def test_a_matrix_in_two_pairs_is_drawn_once() -> None:
    games = np.random.default_rng(0).uniform(50, 150, (1, 20))
    # x / y + y / x for the same draws of x and y is never below 2, whatever is drawn.
    other = np.random.default_rng(1).uniform(50, 150, (1, 20))
    assert mean_of_ratios([(games, other), (other, games)]).low >= 1.0
    # Drawn anew for each pair it would be.
    assert mean_of_ratios([(games, other), (other.copy(), games.copy())]).low < 1.0


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
    wider = mean_of_ratios([(first, second)], error_rate=0.05 / 10)
    assert wider.low < found.low < found.high < wider.high


def test_runs_count_not_only_games() -> None:
    # Two seeds of constant returns 100 and 300: which seeds were drawn is all the uncertainty.
    seeds = np.array([[100.0] * 50, [300.0] * 50])
    found = mean_of_ratios([(seeds, np.full((1, 50), 100.0))])
    assert (found.value, found.low, found.high) == (2.0, 1.0, 3.0)


def test_a_base_that_may_be_zero_gives_no_ratio() -> None:
    found = mean_of_ratios([(np.ones((1, 3)), np.array([[0.0, 0.0, 1.0]]))])
    assert np.isnan([found.value, found.low, found.high]).all()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(1, 900), min_size=1, max_size=12),
    st.lists(st.floats(1, 900), min_size=1, max_size=12),
    st.floats(0.1, 10),
)
def test_units_do_not_matter(first: list[float], second: list[float], unit: float) -> None:
    pair = (np.array([first]), np.array([second]))
    plain, scaled = mean_of_ratios([pair]), mean_of_ratios([(unit * pair[0], unit * pair[1])])
    assert plain.low <= plain.high
    assert (scaled.low, scaled.high) == pytest.approx((plain.low, plain.high))


def test_mean_return() -> None:
    found = mean_return(np.array([[10.0, 20, 30]]))
    assert found.value == 20 and 10 <= found.low < 20 < found.high <= 30
