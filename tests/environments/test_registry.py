"""Environments: seeds, starts, steps in flight, truncation, and error messages."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from qpd.actions import Discrete
from qpd.environments.registry import (
    EnvironmentConfigError,
    EnvironmentSpec,
    environment_spec,
    make_vector_env,
)
from tests.environments.environment_record import assert_same_record, play_recording

BREAKOUT = "BreakoutNoFrameskip-v4"


@pytest.mark.parametrize("env_id", [BREAKOUT, "CartPole-v1"])
def test_seed_decides_everything(env_id: str) -> None:
    env = make_vector_env(env_id, 2)
    records = []
    for seed in (4, 4, 5):
        env.reset(seed)
        records.append(play_recording(env, 40, seed=0))
    assert_same_record(records[0], records[1])
    with pytest.raises(AssertionError):
        assert_same_record(records[0], records[2])


@pytest.mark.parametrize(("env_id", "least_starts"), [(BREAKOUT, 3), ("CartPole-v1", 30)])
def test_copies_and_games_start_differently(env_id: str, least_starts: int) -> None:
    """Breakout has only 4 distinct starts; CartPole starts anew every time, in every copy."""
    env = make_vector_env(env_id, 3, max_frames=30)
    env.reset(0)
    starts: list[list[bytes]] = [[], [], []]
    begins = np.ones(3, dtype=bool)
    for _ in range(200):
        for row in np.flatnonzero(begins & env.acting):
            starts[row].append(env.observations[row].tobytes())
        begins &= ~env.acting
        begins |= env.step(np.full(3, 1)).game_over
    assert starts[0] != starts[1] != starts[2] != starts[0]
    for row in range(3):
        assert len(set(starts[row][:12])) >= min(least_starts, 12)
    assert len({start for row in starts for start in row[:12]}) >= least_starts


@pytest.mark.parametrize("env_id", [BREAKOUT, "CartPole-v1"])
def test_inactive_environments_do_not_change(env_id: str) -> None:
    """Stepping a row only now and then equals stepping it alone all the time."""
    env, alone = make_vector_env(env_id, 3), make_vector_env(env_id, 3)
    env.reset(0)
    alone.reset(0)
    rng = np.random.default_rng(0)
    for _ in range(150):
        active = rng.random(3) < 0.6
        actions = rng.integers(0, 2, 3)
        before = env.observations.copy()
        result = env.step(actions, active)
        np.testing.assert_array_equal(env.observations[~active], before[~active])
        assert not result.rewards[~active].any()
        assert not result.game_over[~active].any()
        if active[0]:
            expected = alone.step(actions, np.array([True, False, False]))
            np.testing.assert_array_equal(env.observations[0], alone.observations[0])
            for mine, theirs in zip(vars(result).values(), vars(expected).values(), strict=True):
                assert mine[0] == theirs[0]


@pytest.mark.parametrize("env_id", [BREAKOUT, "CartPole-v1"])
@pytest.mark.parametrize("num_threads", [0, 1])
def test_steps_in_flight_together_are_those_taken_one_by_one(env_id: str, num_threads: int) -> None:
    """Two halves that take turns, one begun before the other is finished, see the same games."""
    env, plain = make_vector_env(env_id, 4, num_threads=num_threads), make_vector_env(env_id, 4)
    env.reset(0)
    plain.reset(0)
    halves = [np.array([True, False, True, False]), np.array([False, True, False, True])]
    rng = np.random.default_rng(0)
    env.begin_step(first := rng.integers(0, 2, 4), halves[0])
    expected = [plain.step(first, halves[0])]
    for turn in range(1, 200):
        actions, half = rng.integers(0, 2, 4), halves[turn % 2]
        env.begin_step(actions, half)
        result, wanted = env.finish_step(), expected.pop()
        other = halves[1 - turn % 2]
        for mine, theirs in zip(vars(result).values(), vars(wanted).values(), strict=True):
            np.testing.assert_array_equal(mine[other], theirs[other])
        np.testing.assert_array_equal(env.observations[other], plain.observations[other])
        np.testing.assert_array_equal(env.acting[other], plain.acting[other])
        assert not result.rewards[half].any() and not result.game_over[half].any()
        expected.append(plain.step(actions, half))
    env.finish_step()
    np.testing.assert_array_equal(env.observations, plain.observations)
    np.testing.assert_equal(env.get_state(), plain.get_state())


@pytest.mark.parametrize("env_id", [BREAKOUT, "CartPole-v1"])
def test_a_step_in_flight_is_guarded(env_id: str) -> None:
    env = make_vector_env(env_id, 2)
    env.reset(0)
    with pytest.raises(ValueError, match="without begin_step"):
        env.finish_step()
    env.begin_step(np.zeros(2, dtype=int), np.array([True, False]))
    with pytest.raises(ValueError, match="being stepped"):
        env.begin_step(np.zeros(2, dtype=int))
    with pytest.raises(ValueError, match="before get_state"):
        env.get_state()
    env.finish_step()
    env.get_state()


def test_truncated_game_reports_its_return_and_length() -> None:
    env = make_vector_env(BREAKOUT, 1, max_frames=400)
    env.reset(0)
    rng = np.random.default_rng(0)
    score, length = 0.0, 0
    for _ in range(400):
        was_acting = env.acting[0]
        result = env.step(rng.integers(0, 4, 1))
        score += float(result.rewards[0])
        length += int(was_acting)
        if result.game_over[0]:
            break
    assert result.truncated[0] and not result.terminated[0]
    assert result.game_returns[0] == score
    assert result.game_lengths[0] == length < 100
    assert env.step(np.zeros(1, dtype=int)).game_lengths[0] == 0


def test_gym_truncation_and_no_fake_transitions() -> None:
    """CartPole pays 1 per transition: returns equal lengths; a limit of 9 steps truncates."""
    env = make_vector_env("CartPole-v1", 4, max_frames=9)
    env.reset(0)
    assert env.acting.all() and env.observations.dtype == np.float32
    reference = gymnasium.make("CartPole-v1")
    ended = terminated = 0
    for action in np.random.default_rng(0).integers(0, 2, (300, 4)):
        before = env.observations.copy()
        result = env.step(action)
        for row in np.flatnonzero(~result.game_over):
            reference.reset()
            reference.unwrapped.state = before[row]
            after = reference.step(int(action[row]))[0]
            np.testing.assert_allclose(env.observations[row], after, atol=1e-6)
        over = result.game_over
        np.testing.assert_array_equal(over, result.terminated | result.truncated)
        np.testing.assert_array_equal(result.game_returns, result.game_lengths)
        assert (result.game_lengths[result.truncated] == 9).all()
        assert (np.abs(env.observations[over]) <= 0.05).all()
        ended += int(over.sum())
        terminated += int(result.terminated.sum())
    assert 0 < terminated < ended


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Breakout-v5", r"unknown environment 'Breakout-v5'.*nearest: ALE/Breakout-v5"),
        ("BreakoutNoFrameskip-v5", "nearest: BreakoutNoFrameskip-v4"),
        ("CartPole", "nearest: CartPole-v1"),
        ("Breakout-v4", "unknown environment"),
        ("Blackjack-v1", "expected Box .images"),
        ("qpd.no_such:Env-v0", "qpd.no_such:Env-v0: its module qpd.no_such cannot be imported"),
        (
            "antigravity:Env-v0",
            "if you trust it, set QPD_IMPORT=antigravity before the command",
        ),
        ("json:Env-v0", "module json registers no environment 'Env-v0' with gymnasium"),
        ("AntBulletEnv-v0", "it is pybullet_envs_gymnasium:AntBulletEnv-v0"),
        ("", "unknown environment"),
    ],
)
def test_unusable_environments_are_explained(
    env_id: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QPD_IMPORT", "json,qpd.no_such")
    with pytest.raises(EnvironmentConfigError, match=message) as raised:
        make_vector_env(env_id, 1)
    assert "\n" not in str(raised.value)


def test_wrong_arguments_are_refused() -> None:
    for arguments in ({"num_envs": 0}, {"num_envs": 1, "num_threads": -1}):
        with pytest.raises(EnvironmentConfigError):
            make_vector_env(BREAKOUT, **arguments)
    with pytest.raises(EnvironmentConfigError):
        make_vector_env(BREAKOUT, 1, max_frames=0)
    env = make_vector_env("CartPole-v1", 2)
    with pytest.raises(ValueError, match="reset"):
        env.step(np.zeros(2, dtype=int))
    env.reset(0)
    for actions in (np.zeros(3, dtype=int), np.zeros(2), np.array([0, 2]), np.array([-1, 0])):
        with pytest.raises(ValueError, match="actions must be"):
            env.step(actions)
    with pytest.raises(ValueError, match="active must be"):
        env.step(np.zeros(2, dtype=int), active=np.ones(2))


def test_specs() -> None:
    breakout = environment_spec(BREAKOUT)
    assert (breakout.actions, breakout.observation_shape) == (Discrete(4), (4, 84, 84))
    assert breakout.is_atari and breakout.observation_dtype == "uint8"
    cartpole = environment_spec("CartPole-v1")
    assert (cartpole.actions, cartpole.observation_shape) == (Discrete(2), (4,))
    assert not cartpole.is_atari and cartpole.frame_stack == 1


def test_mujoco_says_nothing_of_its_models(capfd: pytest.CaptureFixture[str]) -> None:
    mujoco = pytest.importorskip("mujoco")
    before = mujoco.get_mju_user_warning()
    make_vector_env("HalfCheetah-v4", 2, workers=0).reset(0)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "") and mujoco.get_mju_user_warning() == before


@pytest.mark.parametrize(("own", "seen"), [((4,), (8,)), ((3, 64, 64), (6, 64, 64))])
def test_stacked_observations_are_told_the_option(
    own: tuple[int, ...], seen: tuple[int, ...]
) -> None:
    spec = EnvironmentSpec("Mine-v0", Discrete(2), own, "float32", is_atari=False, frame_stack=1)
    assert "Give --frame-stack 2" in str(spec.misfit(seen, Discrete(2)))
    assert "frame-stack" not in str(spec.misfit((*seen[:-1], seen[-1] + 1), Discrete(2)))
