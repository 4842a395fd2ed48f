"""The states that a policy met: every game's share of the sample is its share of the play."""

from __future__ import annotations

import numpy as np

from qpd.actions import Discrete
from qpd.evaluation.sampled_states import SampledStates


class _Zeros:
    actions = Discrete(2)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return np.zeros((len(observations), 2), np.float32)


def test_games_that_go_on_are_no_more_of_the_sample_than_of_the_play() -> None:
    states = SampledStates(_Zeros())
    for step in range(1000):
        running = 50 if step < 100 else 3
        states(np.full((running, 1), running, np.float32))
    # 5,000 states of the first steps, and 2,700 of the last.
    assert abs(np.mean(states.observations == 3) - 2700 / 7700) < 0.07


def test_one_step_leaves_a_state() -> None:
    for count in (1, 3, 100):
        states = SampledStates(_Zeros())
        states(np.zeros((count, 1), np.float32))
        assert len(states.observations) >= 1
