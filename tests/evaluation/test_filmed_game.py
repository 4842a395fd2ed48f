"""A filmed game shows what was played, and what every agent would have done at that moment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from qpd.actions import ActingRule, Discrete
from qpd.environments.policy import FunctionPolicy
from qpd.environments.registry import EnvironmentConfigError, make_vector_env
from qpd.environments.source import EnvironmentSource
from qpd.evaluation.decisions import Player
from qpd.evaluation.filmed_game import AGENT_STEPS_PER_SECOND, film_buttons, film_game

GAME = "BreakoutNoFrameskip-v4"


FOUR = Discrete(4)


def uneven(observations: np.ndarray) -> np.ndarray:
    """Logits that depend on the picture: how bright its left and right half are."""
    frame = observations[:, -1].reshape(len(observations), 84, 84)
    left, right = frame[:, :, :42].mean(axis=(1, 2)), frame[:, :, 42:].mean(axis=(1, 2))
    return np.stack([0 * left, 0 * left, right - left, left - right], axis=1).astype(np.float32)


BRIGHTER = FunctionPolicy(uneven, FOUR)


def test_an_atari_game_is_the_one_that_is_played() -> None:
    heard: list[np.ndarray] = []

    def listener(observations: np.ndarray) -> np.ndarray:
        heard.append(observations.copy())
        return np.tile(np.log(np.array([[1, 1, 1, 5]], np.float32)), (len(observations), 1))

    rule = ActingRule("sample")
    players = [Player("a", BRIGHTER, rule), Player("b", FunctionPolicy(listener, FOUR), rule)]
    game = film_game(players, GAME, seed=8, seconds=6, max_frames=None)
    buttons = game.taken.tolist()
    assert len(buttons) == 6 * AGENT_STEPS_PER_SECOND == 90
    assert game.frames.shape == (91, 210, 160, 3)
    own, other = game.decisions
    asked = ~np.isnan(own).any(axis=1)
    # FIRE and RIGHT are pressed by the wrapper; the last picture is followed by no action.
    assert not asked[[0, 1, 90]].any() and asked[2:10].all()
    assert np.array_equal(asked, ~np.isnan(other).any(axis=1))
    np.testing.assert_allclose(other[asked], [[1 / 8, 1 / 8, 1 / 8, 5 / 8]] * asked.sum(), 1e-6)
    # Both were asked about the same observations, in order.
    mine = FOUR.probabilities(uneven(np.concatenate(heard)), rule)
    np.testing.assert_allclose(own[asked], mine, rtol=1e-6)
    # The same buttons in the environment itself, forced steps included: what the policy saw.
    grey = film_buttons(GAME, 8, buttons, size=(84, 84), grey=True)
    env = make_vector_env(GAME, 1)
    env.reset(8)
    returns = []
    for step, button in enumerate(buttons):
        if env.acting[0]:
            assert np.array_equal(env.observations[0, -1], grey[step][..., 0]), step
        returns.append(float(env.step(np.array([button])).game_returns[0]))
    env.close()
    assert game.scores.tolist() == [0.0, *returns] and returns[-1] > 1 and not game.ended


def test_a_network_is_asked_once_for_each_observation_by_one_thread() -> None:
    """More threads than free cores make a forward pass of one observation many times slower."""
    threads: list[int] = []

    def counting(observations: np.ndarray) -> np.ndarray:
        threads.append(torch.get_num_threads())
        return uneven(observations)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        player = Player("a", FunctionPolicy(counting, FOUR), ActingRule("sample"))
        game = film_game([player], GAME, seed=8, seconds=2, max_frames=None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == [1] * int((~np.isnan(game.decisions[0]).any(axis=1)).sum())


def test_a_game_that_ends_is_filmed_to_its_end() -> None:
    policy = FunctionPolicy(lambda o: np.zeros((len(o), 4), np.float32), FOUR)
    stay = Player("stay", policy, ActingRule("greedy"))
    game = film_game([stay], GAME, seed=0, seconds=60, max_frames=None)
    assert game.ended and len(game.frames) == len(game.taken) + 1 < 60 * AGENT_STEPS_PER_SECOND
    assert game.decisions.shape == (1, len(game.frames), 4)
    assert len(game.scores) == len(game.frames)


def test_a_game_outside_atari() -> None:
    pytest.importorskip("pygame")
    policy = FunctionPolicy(lambda o: np.array([[1.0, 0.0]], np.float32), Discrete(2))
    left = Player("left", policy, ActingRule("greedy"))
    game = film_game([left], "CartPole-v1", seed=1, seconds=2, max_frames=None)
    # Always pushed to the left, the pole falls after some 8 to 10 steps, of a point each.
    assert game.ended and 7 < len(game.taken) < 12 and set(game.taken) == {0}
    assert game.scores.tolist() == list(range(len(game.frames)))
    assert game.frames.shape[1:] == (200, 300, 3)
    assert (game.frames[0] != game.frames[-1]).any()
    assert game.decisions[0, :-1].tolist() == [[1.0, 0.0]] * len(game.taken)


def test_an_environment_that_is_not_there_is_said() -> None:
    with pytest.raises(EnvironmentConfigError, match="CartPole-v7"):
        film_game([], "CartPole-v7", seed=0, seconds=1, max_frames=None)


class Drawn(gymnasium.Env):
    """A game of 20 steps that draws something odd from some step on."""

    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": None}  # noqa: RUF012

    def __init__(self, odd_from: int = 99, render_mode: str | None = None) -> None:
        self.odd_from, self.render_mode, self.done = odd_from, render_mode, 0

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.done = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.done += 1
        return np.zeros(2, np.float32), 1.0, self.done == 20, False, {}

    def render(self) -> np.ndarray:
        if self.done >= self.odd_from:
            raise RuntimeError("the window is gone")
        return np.zeros((3, 2000, 3), np.uint8)


gymnasium.register("Drawn-v0", entry_point=Drawn)


def test_an_environment_that_draws_oddly() -> None:
    policy = FunctionPolicy(lambda o: np.array([[1.0, 0.0]], np.float32), Discrete(2))
    player = Player("left", policy, ActingRule("greedy"))
    # No rate is 30 steps a second, and a flat picture keeps some height.
    game = film_game([player], "Drawn-v0", seed=0, seconds=9, max_frames=None)
    assert game.ended and game.steps_per_second == 30.0 and min(game.frames.shape) > 0
    broken = EnvironmentSource("Drawn-v0", {"odd_from": 5})
    with pytest.raises(EnvironmentConfigError, match="cannot be drawn: .*the window is gone"):
        film_game([player], broken, seed=0, seconds=9, max_frames=None)
