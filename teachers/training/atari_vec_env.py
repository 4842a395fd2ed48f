"""QPD's Atari environments as a Stable-Baselines3 VecEnv, for training teachers.

What the agent sees is what ``make_atari_env`` + ``VecFrameStack(4)`` + ``VecTransposeImage`` show
it (see qpd/environments/atari.py), several times faster: a lost life ends an episode, rewards are
clipped to their sign, and the buttons that SB3's wrappers press are pressed here too.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import ResultsWriter
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from qpd.environments.registry import make_vector_env


class AtariVecEnv(VecEnv):
    """`num_envs` games of `env_id`; observations uint8 [num_envs, 4, 84, 84], rewards -1, 0, 1.

    `infos[i]["episode"]` reports a finished full game as SB3's Monitor does: `r` is the unclipped
    score, `l` its agent steps, `t` seconds since the start. `monitor`, a path without its suffix
    `.monitor.csv`, gets them too: the RL Zoo plots such files. Raises EnvironmentConfigError.
    """

    def __init__(
        self, env_id: str, num_envs: int, seed: int, monitor: str | Path | None = None
    ) -> None:
        self._env = make_vector_env(env_id, num_envs)
        spec = self._env.spec
        shape = spec.observation_shape
        super().__init__(
            num_envs, spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(spec.actions.num_outputs)
        )
        self._seed = seed
        self._actions = np.zeros(num_envs, np.int64)
        self._began = time.time()
        self._results = None
        if monitor is not None:
            # Where the zoo wraps Monitor, `l` counts emulator frames.
            header: dict[str, float | str] = {
                "t_start": self._began,
                "env_id": env_id,
                "unit": "agent steps",
            }
            self._results = ResultsWriter(str(monitor), header=header)

    def reset(self) -> np.ndarray:
        """Start the first games and return the observations, uint8 [num_envs, 4, 84, 84]."""
        self._env.reset(self._seed)
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
            infos[row]["TimeLimit.truncated"] = bool(step.truncated[row])
        self._report(step.game_over, step.game_returns, step.game_lengths, infos)
        self._press_forced_buttons()
        # A copy: SB3 keeps it as its last observation while the next step overwrites ours.
        return self._env.observations.copy(), np.sign(step.rewards), dones, infos

    def _press_forced_buttons(self) -> None:
        while not self._env.acting.all():
            step = self._env.step(np.zeros(self.num_envs, np.int64), ~self._env.acting)
            # A game can end on a forced button; nobody acted, so no info belongs to it.
            self._report(step.game_over, step.game_returns, step.game_lengths, [])

    def _report(
        self,
        game_over: np.ndarray,
        returns: np.ndarray,
        lengths: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        for row in np.flatnonzero(game_over).tolist():
            seconds = round(time.time() - self._began, 6)
            game = {"r": float(returns[row]), "l": int(lengths[row]), "t": seconds}
            if infos:
                infos[row]["episode"] = game
            if self._results is not None:
                self._results.write_row(game)

    def close(self) -> None:
        """Stop the emulators."""
        self._env.close()
        if self._results is not None:
            self._results.close()
            self._results = None

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
