"""SB3's own Atari environments, made to press the no-ops that ours press."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from stable_baselines3.common.atari_wrappers import NoopResetEnv
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage


def sb3_vector_env(env_id: str, num_envs: int) -> VecEnv:
    """Make what the RL Zoo trains and evaluates on."""
    return VecTransposeImage(VecFrameStack(make_atari_env(env_id, num_envs), 4))


def noop_counts(rom: str, seed: int, row: int) -> Iterator[int]:
    """The no-op counts ALE draws for environment ``row``, one per game."""
    probe = AtariVectorEnv(rom, 1, noop_max=30, use_fire_reset=False)
    emulator_seed = int(np.random.SeedSequence((seed, row)).generate_state(1)[0] >> 1)
    _, info = probe.reset(seed=emulator_seed)
    while True:
        # SB3 cannot press 0 no-ops; in Breakout 4 look the same, in the others choose a seed.
        noops = int(info["episode_frame_number"][0]) or (4 if rom == "breakout" else 0)
        assert noops > 0, "choose another seed for this test"
        yield noops
        _, info = probe.reset()


class ReplayedNoops(NoopResetEnv):
    """SB3's wrapper, told how many no-ops to press at each reset."""

    noops: Iterator[int]

    def reset(self, **kwargs: object) -> tuple[np.ndarray, dict]:
        self.override_num_noops = next(self.noops)
        return super().reset(**kwargs)


class Sb3Twin:
    """SB3's environments, made to press the no-ops that ours press."""

    def __init__(self, vec_env: VecEnv, rom: str, seed: int) -> None:
        self.vec_env = vec_env
        self.wrappers: list[NoopResetEnv] = []
        for row, env in enumerate(vec_env.unwrapped.envs):
            while not isinstance(env, NoopResetEnv):
                env = env.env
            env.__class__ = ReplayedNoops
            env.noops = noop_counts(rom, seed, row)
            self.wrappers.append(env)
        self.observations = vec_env.reset()

    def lives(self) -> list[int]:
        return [env.unwrapped.ale.lives() for env in self.wrappers]
