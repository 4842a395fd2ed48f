"""The states that a policy met: every game's share of the sample is its share of the play."""

from __future__ import annotations

import numpy as np
import pytest

from qpd.actions import Discrete
from qpd.environments.policy import FunctionPolicy
from qpd.evaluation import sampled_states
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


def test_early_and_late_states_are_kept_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of 200 of the numbers 0 to 3999 is 2000, with a standard error of 80."""
    monkeypatch.setattr(sampled_states, "HELD_OUT_STATES", 200)
    policy = FunctionPolicy(lambda seen: np.zeros((len(seen), 2), np.float32), Discrete(2))
    states = sampled_states.SampledStates(policy)
    for number in range(4000):
        states(np.array([[number]], np.float32))
    assert len(states.observations) == 200
    assert states.observations.mean() == pytest.approx(2000, abs=320)
