"""Our environments are Stable-Baselines3's, step for step."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common import atari_wrappers
from stable_baselines3.common.atari_wrappers import NoopResetEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecFrameStack,
    VecTransposeImage,
)

from qpd.environments.atari import AtariEnvironment
from qpd.environments.registry import VectorEnvironment, VectorStep, make_vector_env
from qpd.teachers.sources.teacher_source import find_teacher_files
from tests.environments.sb3_twin import Sb3Twin, sb3_vector_env

BREAKOUT = "BreakoutNoFrameskip-v4"
TEACHER = find_teacher_files("embedded").archive

# The zip's pickled schedules come from the training machine; playing needs none of them.
SCHEDULES = {"lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.0}

Policy = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def sb3_vector_env_truncated(env_id: str, num_envs: int, max_frames: int) -> VecEnv:
    """AtariWrapper's chain with a time limit that, as ALE's, does not count the no-ops."""

    def make() -> gymnasium.Env:
        env: gymnasium.Env = NoopResetEnv(Monitor(gymnasium.make(env_id)), noop_max=30)
        env = atari_wrappers.MaxAndSkipEnv(gymnasium.wrappers.TimeLimit(env, max_frames), 4)
        env = atari_wrappers.FireResetEnv(atari_wrappers.EpisodicLifeEnv(env))
        return atari_wrappers.ClipRewardEnv(atari_wrappers.WarpFrame(env))

    return VecTransposeImage(VecFrameStack(DummyVecEnv([make] * num_envs), 4))


def act_and_force(ours: VectorEnvironment, actions: np.ndarray) -> tuple[VectorStep, np.ndarray]:
    """One transition everywhere, then all forced steps; the returns of finished games or NaN."""
    assert ours.acting.all()
    first = ours.step(actions)
    returns = np.where(first.game_over, first.game_returns, np.nan)
    for _ in range(12):
        if ours.acting.all():
            return first, returns
        forced = ours.step(actions, active=~ours.acting)
        assert not (forced.terminated | forced.truncated).any()
        returns = np.where(forced.game_over, forced.game_returns, returns)
    raise AssertionError("forced steps without end")


def assert_frames_match(ours: np.ndarray, theirs: np.ndarray, exact: bool) -> None:
    """Equal, or differing only as the order of max-pooling and greying explains.

    SB3 takes the brighter of two frames per colour channel and greys afterwards, ALE greys
    first: ours can only be darker (rounding aside), and only where two colours met.
    """
    if exact:
        np.testing.assert_array_equal(ours, theirs)
        return
    difference = theirs.astype(int) - ours
    assert difference.min() >= -1
    assert (difference != 0).mean() < 0.02


def compare(
    ours: VectorEnvironment, twin: Sb3Twin, num_steps: int, policy: Policy, exact: bool = True
) -> tuple[int, list[float]]:
    """Assert that everything is equal for ``num_steps``; lost lives and finished games' scores."""
    rng = np.random.default_rng(7)
    scores: list[float] = []
    num_lost_lives = 0
    for _ in range(12):
        if not ours.acting.all():
            ours.step(np.zeros(ours.num_envs, dtype=np.int64), active=~ours.acting)
    assert_frames_match(ours.observations, twin.observations, exact)
    ages = np.zeros(ours.num_envs, dtype=np.int64)
    for _ in range(num_steps):
        actions = policy(ours.observations, rng)
        twin.observations, rewards, dones, infos = twin.vec_env.step(actions)
        result, returns = act_and_force(ours, actions)
        np.testing.assert_array_equal(result.terminated | result.truncated, dones)
        truncated = [info.get("TimeLimit.truncated", False) for info in infos]
        np.testing.assert_array_equal(result.truncated & ~result.terminated, truncated)
        np.testing.assert_array_equal(np.sign(result.rewards), rewards)
        assert_frames_match(ours.observations, twin.observations, exact)
        assert isinstance(ours, AtariEnvironment)
        assert ours._lives.tolist() == twin.lives()
        ages = np.where(dones, 0, np.minimum(ages + 1, 3))
        np.testing.assert_array_equal(ours.age, ages)
        for row in np.flatnonzero(result.game_over & result.terminated):
            assert infos[row]["episode"]["r"] == returns[row]
            scores.append(float(returns[row]))
        num_lost_lives += int((dones & np.isnan(returns)).sum())
    return num_lost_lives, scores


def random_policy(num_actions: int) -> Policy:
    return lambda observations, rng: rng.integers(0, num_actions, len(observations))


def test_breakout_equals_sb3() -> None:
    ours = make_vector_env(BREAKOUT, 3, num_threads=2)
    ours.reset(1)
    twin = Sb3Twin(sb3_vector_env(BREAKOUT, 3), "breakout", 1)
    lost_lives, scores = compare(ours, twin, 350, random_policy(4))
    assert lost_lives > 20 and len(scores) > 3 and max(scores) > 1


@pytest.mark.parametrize("max_frames", [6, 10, 402])
def test_truncation_equals_sb3_even_inside_forced_steps(max_frames: int) -> None:
    ours = make_vector_env(BREAKOUT, 2, max_frames=max_frames)
    ours.reset(3)
    twin = Sb3Twin(sb3_vector_env_truncated(BREAKOUT, 2, max_frames), "breakout", 3)
    compare(ours, twin, 25 if max_frames < 100 else 300, random_policy(4))


@pytest.mark.parametrize(
    ("env_id", "rom", "seed", "num_steps", "exact"),
    [
        ("MsPacmanNoFrameskip-v4", "ms_pacman", 1, 400, False),  # no FIRE, 3 lives
        ("ALE/SpaceInvaders-v5", "space_invaders", 1, 500, True),
        pytest.param(
            "FreewayNoFrameskip-v4", "freeway", 1, 2200, False, marks=pytest.mark.slow
        ),  # no FIRE, no lives, long games
        pytest.param("PongNoFrameskip-v4", "pong", 1, 2000, False, marks=pytest.mark.slow),
        pytest.param("QbertNoFrameskip-v4", "qbert", 1, 1500, False, marks=pytest.mark.slow),
        pytest.param("SeaquestNoFrameskip-v4", "seaquest", 1, 1500, False, marks=pytest.mark.slow),
    ],
)
def test_other_games_equal_sb3(
    env_id: str, rom: str, seed: int, num_steps: int, exact: bool
) -> None:
    ours = make_vector_env(env_id, 2)
    ours.reset(seed)
    sb3_id = env_id.replace("ALE/", "").replace("-v5", "NoFrameskip-v4")
    twin = Sb3Twin(sb3_vector_env(sb3_id, 2), rom, seed)
    policy = random_policy(ours.spec.actions.num_outputs)
    _, scores = compare(ours, twin, num_steps, policy, exact)
    assert scores


@pytest.mark.slow
def test_breakout_equals_sb3_in_good_games() -> None:
    model = PPO.load(TEACHER, device="cpu", custom_objects=SCHEDULES)
    ours = make_vector_env(BREAKOUT, 4)
    ours.reset(2)
    twin = Sb3Twin(sb3_vector_env(BREAKOUT, 4), "breakout", 2)

    def play(observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        actions, _ = model.predict(observations)
        return np.where(rng.random(len(actions)) < 0.02, rng.integers(0, 4, len(actions)), actions)

    lost_lives, scores = compare(ours, twin, 2000, play)
    assert lost_lives > 8 and max(scores) > 100
