"""The VecEnv that teachers are trained on, beside SB3's own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from stable_baselines3.common.vec_env import VecEnv

from qpd.teachers.training.atari_vec_env import AtariVecEnv
from tests.environments.sb3_twin import Sb3Twin, sb3_vector_env

BREAKOUT = "BreakoutNoFrameskip-v4"
NUM_STEPS = 700  # several games of a random agent


@pytest.fixture
def env() -> Iterator[AtariVecEnv]:
    env = AtariVecEnv(BREAKOUT, 3, seed=1)
    yield env
    env.close()


def test_training_sees_what_sb3_would_show(env: AtariVecEnv) -> None:
    twin = Sb3Twin(sb3_vector_env(BREAKOUT, 3), "breakout", 1)
    theirs: VecEnv = twin.vec_env
    assert (env.observation_space, env.action_space) == (
        theirs.observation_space,
        theirs.action_space,
    )
    assert (env.reset() == twin.observations).all()
    rng = np.random.default_rng(0)
    games = []
    for _ in range(NUM_STEPS):
        actions = rng.integers(0, 4, 3)
        observations, rewards, dones, infos = env.step(actions)
        expected, their_rewards, their_dones, their_infos = theirs.step(actions)
        assert (observations == expected).all()
        assert (rewards == their_rewards).all() and rewards.dtype == their_rewards.dtype
        assert (dones == their_dones).all()
        for mine, other, done in zip(infos, their_infos, dones, strict=True):
            assert ("terminal_observation" in mine) == done == ("terminal_observation" in other)
            assert ("episode" in mine) == ("episode" in other)
            if done:
                assert mine["TimeLimit.truncated"] == other["TimeLimit.truncated"]
            if "episode" in mine:
                assert mine["episode"]["r"] == other["episode"]["r"]
                games.append(mine["episode"]["r"])
    assert len(games) >= 6 and max(games) > 0


def test_a_training_may_write_to_what_it_was_given(env: AtariVecEnv) -> None:
    first = env.reset()
    kept = first.copy()
    second, *_ = env.step(np.zeros(3, np.int64))
    assert (first == kept).all() and not np.shares_memory(first, second)


def test_a_seed_decides_the_games_that_follow(env: AtariVecEnv) -> None:
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 4, (40, 3))
    played = []
    for _ in range(2):
        env.seed(5)
        env.reset()
        played.append(np.stack([env.step(each)[0] for each in actions]))
    assert (played[0] == played[1]).all()
