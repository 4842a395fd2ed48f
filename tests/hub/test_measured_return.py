"""What a card says about games that may be copies of each other."""

from __future__ import annotations

from typing import Any

import pytest

from qpd.hub.measured_return import MeasuredReturn

CARTPOLE = {
    "mean": 500.0, "std": 0.0, "interval": [500.0, 500.0], "episodes": 200, "distinct_games": 1,
    "seed": 3, "acting": "greedy",
}  # fmt: skip


@pytest.mark.parametrize(
    "changes, said",
    [
        # 200 perfect games of CartPole end alike, but begin differently: nothing is repeated.
        ({"distinct_starts": 200}, None),
        ({"distinct_starts": 4}, "began with 4 different observations, and actions are not left"),
        ({"distinct_starts": 4, "acting": "sampled"}, "from there on actions differ by chance"),
        ({"distinct_starts": 1}, "The 200 games all began with one and the same observation, and"),
        ({}, "The 200 games have one outcome (return and length): they are all alike; how many"),
        (
            {"distinct_games": 2},
            "have 2 different outcomes (return and length); how many different",
        ),
        ({"distinct_games": 200}, None),
    ],
)
def test_starts_count_and_not_outcomes(changes: dict[str, Any], said: str | None) -> None:
    lines = MeasuredReturn.from_json(CARTPOLE | changes).repetition()
    assert len(lines) == (0 if said is None else 1)
    assert said is None or said in lines[0]
