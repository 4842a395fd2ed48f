"""What policies would do, as numbers: probabilities of choices, and continuous actions."""

from __future__ import annotations

import os
from math import exp, log

import gymnasium
import numpy as np
import pytest

from qpd.actions import ActingRule, ActionSpace, Box, MultiBinary, MultiDiscrete
from qpd.environments.policy import FunctionPolicy
from qpd.environments.registry import EnvironmentConfigError
from qpd.environments.source import EnvironmentSource
from qpd.evaluation.decisions import Player, decide, decisions_of
from qpd.evaluation.filmed_game import check_drawable, film_game

SAMPLE, GREEDY = ActingRule("sample"), ActingRule("greedy")


def constant(actions: ActionSpace, *outputs: float) -> FunctionPolicy:
    return FunctionPolicy(lambda o: np.tile(np.float32(outputs), (len(o), 1)), actions)


def test_probabilities_of_parts_and_switches_by_hand() -> None:
    parts = MultiDiscrete((2, 3))
    logits = np.array([[0.0, log(3.0), log(2.0), 0.0, log(5.0)]])
    told = decisions_of(parts, logits, SAMPLE)
    np.testing.assert_allclose(told, [[1 / 4, 3 / 4, 2 / 8, 1 / 8, 5 / 8]])
    assert decisions_of(parts, logits, GREEDY).tolist() == [[0, 1, 0, 0, 1]]
    switches = MultiBinary(3)
    logits = np.array([[log(3.0), -log(3.0), -800.0]])
    np.testing.assert_allclose(decisions_of(switches, logits, SAMPLE), [[0.75, 0.25, 0.0]])
    # A coin with probability 0.1, then a fair one for each switch.
    curious = decisions_of(switches, logits, ActingRule("epsilon", 0.1))
    np.testing.assert_allclose(curious, [[0.95, 0.05, 0.05]])


def test_a_probability_is_how_often_it_happens() -> None:
    rng, count = np.random.default_rng(0), 20_000
    for actions, outputs in (
        (MultiDiscrete((2, 3)), [0.3, -0.5, 1.0, 0.0, -1.0]),
        (MultiBinary(2), [0.7, -1.2]),
    ):
        for rule in (SAMPLE, ActingRule("epsilon", 0.5)):
            many = np.tile(np.float64(outputs), (count, 1))
            taken = actions.act(many, rule, rng)
            told = decisions_of(actions, many[:1], rule)[0]
            if isinstance(actions, MultiDiscrete):
                seen = [(taken[:, 0] == i).mean() for i in range(2)]
                seen += [(taken[:, 1] == i).mean() for i in range(3)]
            else:
                seen = taken.mean(axis=0).tolist()
            np.testing.assert_allclose(seen, told, atol=0.015)


def test_continuous_actions_are_told_as_they_are() -> None:
    """The one who plays: what it took, noise included; the other: its mean."""
    actions = Box((-2.0, 0.0), (2.0, 1.0), "tanh", "gaussian")
    noisy = Player("a", constant(actions, 0.0, 0.0, log(0.5), log(0.5)), SAMPLE)
    quiet = Player("b", constant(actions, 0.5, -0.5, log(0.5), log(0.5)), SAMPLE)
    action, told = decide([noisy, quiet], np.zeros((1, 3), np.float32), np.random.default_rng(0))
    assert action.shape == (1, 2) and told.shape == (2, 2)
    np.testing.assert_array_equal(told[0], action[0].astype(np.float64))
    assert abs(told[0, 0]) > 0.01  # its mean is 0
    # tanh(0.5) = 0.4621: 2 * 0.4621, and 0.5 - 0.5 * 0.4621.
    half = (exp(1) - 1) / (exp(1) + 1)
    np.testing.assert_allclose(told[1], [2 * half, 0.5 - 0.5 * half], rtol=1e-6)


def test_a_film_of_continuous_actions() -> None:
    pytest.importorskip("pygame")
    actions = Box((-2.0,), (2.0,), labels="deterministic")
    players = [
        Player("a", constant(actions, 0.25), GREEDY),
        Player("b", constant(actions, -3.0), GREEDY),
    ]
    game = film_game(players, "Pendulum-v1", seed=0, seconds=1, max_frames=None)
    assert game.taken.tolist() == [[0.5]] * 30 and game.stride == 1
    assert game.decisions[:, :-1, 0].tolist() == [[0.5] * 30, [-2.0] * 30]
    assert np.isnan(game.decisions[:, -1]).all() and len(game.frames) == 31


class Swift(gymnasium.Env):
    """125 steps a second, as MuJoCo's hopper; a picture is its step's number."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 125}
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.at = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.at += 1
        return np.zeros(1, np.float32), 1.0, False, False, {}

    def render(self) -> np.ndarray:
        return np.full((4, 4, 3), self.at, np.uint8)


def test_fast_environments_are_not_drawn_at_every_step() -> None:
    gymnasium.register("Swift-v0", entry_point=Swift)
    try:
        player = Player("a", constant(Box((-1.0,), (1.0,)), 0.0), GREEDY)
        game = film_game([player], "Swift-v0", seed=0, seconds=0.08, max_frames=None)
    finally:
        del gymnasium.registry["Swift-v0"]
    # 10 steps, every third one drawn, and the end.
    assert len(game.taken) == 10 and game.stride == 3
    assert game.frames[:, 0, 0, 0].tolist() == [0, 3, 6, 9, 10]


def test_why_mujoco_cannot_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    if os.environ.get("DISPLAY"):
        pytest.skip("a screen to draw on")
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    import mujoco

    def fails(*arguments: object) -> None:
        raise mujoco.FatalError("no OpenGL")

    monkeypatch.setattr("gymnasium.envs.mujoco.mujoco_rendering.MujocoRenderer.render", fails)
    with pytest.raises(EnvironmentConfigError) as refused:
        check_drawable(EnvironmentSource("InvertedPendulum-v5"))
    (line,) = refused.value.lines
    assert line.startswith("InvertedPendulum-v5 cannot be drawn: FatalError: no OpenGL")
    assert "MuJoCo drew with glfw" in line and "MUJOCO_GL=egl" in line
