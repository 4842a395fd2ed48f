"""QPD's Atari environments as a Stable-Baselines3 VecEnv, for training teachers.

What the agent sees is what ``make_atari_env`` + ``VecFrameStack(4)`` + ``VecTransposeImage`` show
it (see qpd/environments/atari.py), several times faster: a lost life ends an episode, rewards are
clipped to their sign, and the buttons that SB3's wrappers press are pressed here too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from qpd.environments.registry import VectorStep, make_vector_env


class AtariVecEnv(VecEnv):
    """`num_envs` games of `env_id`; observations uint8 [num_envs, 4, 84, 84], rewards -1, 0, 1.

    `infos[i]["episode"]` reports a finished full game as SB3's Monitor does: `r` is the unclipped
    score, `l` its agent steps, `t` seconds since the start. Raises EnvironmentConfigError.
    """

    def __init__(self, env_id: str, num_envs: int, seed: int) -> None:
        self._env = make_vector_env(env_id, num_envs)
        spec = self._env.spec
        shape = spec.observation_shape
        super().__init__(
            num_envs, spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(spec.actions.num_outputs)
        )
        self._seed = seed
        self._actions = np.zeros(num_envs, np.int64)
        self._began = time.time()
        # Games that ended while nobody acted, which the next step reports.
        self._unreported: dict[int, dict[str, float]] = {}

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Let the next reset begin with `seed`: one number decides all games."""
        self._seed = self._seed if seed is None else seed
        return [self._seed] * self.num_envs

    def reset(self) -> np.ndarray:
        """Start the first games and return the observations, uint8 [num_envs, 4, 84, 84]."""
        self._env.reset(self._seed)
        self._unreported.clear()
        self._press_forced_buttons()
        return self._env.observations.copy()

    def step_async(self, actions: np.ndarray) -> None:
        """Remember what each agent presses."""
        self._actions = np.asarray(actions, np.int64)

    def step_wait(self) -> VecEnvStepReturn:
        """Step every game once, and on to where its agent acts again."""
        step = self._env.step(self._actions)
        dones = step.terminated | step.truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row in np.flatnonzero(dones).tolist():
            # Before forced buttons overwrite it: SB3 bootstraps from it where TimeLimit.truncated
            # is set.
            infos[row]["terminal_observation"] = self._env.observations[row].copy()
            infos[row]["TimeLimit.truncated"] = bool(
                step.truncated[row] and not step.terminated[row]
            )
        for row, game in self._unreported.items():
            infos[row]["episode"] = game
        self._unreported.clear()
        for row, game in self._games(step):
            infos[row]["episode"] = game
        self._press_forced_buttons()
        # A copy: SB3 keeps it as its last observation while the next step overwrites ours.
        return self._env.observations.copy(), np.sign(step.rewards), dones, infos

    def _press_forced_buttons(self) -> None:
        while not self._env.acting.all():
            step = self._env.step(np.zeros(self.num_envs, np.int64), ~self._env.acting)
            self._unreported.update(self._games(step))

    def _games(self, step: VectorStep) -> Iterator[tuple[int, dict[str, float]]]:
        seconds = round(time.time() - self._began, 6)
        for row in np.flatnonzero(step.game_over).tolist():
            length = int(step.game_lengths[row])
            yield row, {"r": float(step.game_returns[row]), "l": length, "t": seconds}

    def close(self) -> None:
        """Stop the emulators."""
        self._env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return `render_mode`, which is None; no other attribute of single environments exists."""
        if attr_name != "render_mode":
            raise AttributeError(f"{type(self).__name__}: environments have no {attr_name}")
        return [None for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Raise AttributeError: there are no single environments."""
        raise AttributeError(f"{type(self).__name__}: {attr_name} cannot be set")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        """Raise AttributeError: there are no single environments."""
        raise AttributeError(f"{type(self).__name__}: environments have no {method_name}")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Return True: games are reported as by SB3's Monitor and Atari wrappers."""
        return [True for _ in self._get_indices(indices)]
