"""The states by which an epoch is chosen: every game counts alike, and every state of a game."""

from __future__ import annotations

import numpy as np
import pytest

from qpd.actions import ActingRule, Discrete
from qpd.environments.policy import FunctionPolicy
from qpd.environments.registry import make_vector_env
from qpd.evaluation import states_of_games
from qpd.evaluation.games import evaluate
from qpd.evaluation.states_of_games import StatesOfGames


def seen(states: StatesOfGames, games: list[int], values: list[float]) -> None:
    observations = np.array(values, np.float32)[:, np.newaxis]
    states(np.array(games), observations, np.hstack([observations, -observations]))


def test_a_game_that_goes_on_counts_no_more_than_others() -> None:
    states = StatesOfGames(4)
    for step in range(5000):
        running = [0, 1, 2, 3] if step < 50 else [2]
        seen(states, running, [float(game) for game in running])
    assert np.bincount(states.games).tolist() == [50, 50, 1024, 50]
    assert states.mean(states.observations[:, 0]) == pytest.approx((0 + 1 + 2 + 3) / 4)
    assert (states.observations[:, 0] == states.games).all()
    assert (states.outputs == np.hstack([states.observations, -states.observations])).all()


def test_early_and_late_states_of_a_game_are_kept_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of 200 of the numbers 0 to 3999 is 2000, with a standard error of 80."""
    monkeypatch.setattr(states_of_games, "HELD_OUT_STATES", 400)
    states = StatesOfGames(2)
    for number in range(4000):
        seen(states, [0, 1], [number, 10_000 + number])
    kept = states.observations[:, 0]
    assert len(np.unique(kept)) == len(kept) == 400
    assert kept[:200].mean() == pytest.approx(2000, abs=320)
    assert kept[200:].mean() == pytest.approx(12_000, abs=320)


def test_a_game_without_states_is_left_out() -> None:
    states = StatesOfGames(3)
    seen(states, [1], [5.0])
    assert states.mean(np.array([5.0])) == 5.0


def test_evaluation_hands_over_every_state_of_every_game() -> None:
    policy = FunctionPolicy(lambda seen: np.tile([0.0, 1.0], (len(seen), 1)), Discrete(2))
    env = make_vector_env("CartPole-v1", 2)
    states = StatesOfGames(5)
    result = evaluate(policy, env, 5, ActingRule("greedy"), 3, on_outputs=states)
    env.close()
    # One that always pushes right falls within 20 steps, so that all states are kept.
    assert np.bincount(states.games, minlength=5).tolist() == result.lengths.tolist()
    assert states.mean(np.ones(len(states.games))) == 1.0
