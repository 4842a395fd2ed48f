"""Gymnasium environments with flat observations (CartPole, Acrobot, LunarLander ...).

Every step is a transition: a finished episode is followed by its successor's first observation
at once, never by a fake step. Episode e of environment i is seeded from (seed, i, e), which
makes a state small and exact: the episode's number and the actions since it began.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from qpd.environments.interface import (
    EnvironmentSpec,
    State,
    VectorStep,
    check_state,
    checked_actions,
    checked_active,
)


class GymEnvironment:
    """A VectorEnvironment of a gymnasium environment; see ``VectorEnvironment``.

    ``max_frames``, if given, replaces the environment's own limit of steps per episode.
    """

    def __init__(self, spec: EnvironmentSpec, num_envs: int, *, max_frames: int | None) -> None:
        """Build ``num_envs`` copies."""
        n = num_envs
        self.spec = spec
        self.num_envs = n
        self.observations = np.zeros((n, *spec.observation_shape), dtype=np.float32)
        self.acting = np.ones(n, dtype=np.bool_)
        self.age = np.zeros(n, dtype=np.int64)
        self._envs: list[gymnasium.Env[Any, Any]] = [
            # The checker warns about environments that are not ours, nor our users', to change.
            gymnasium.make(spec.env_id, max_episode_steps=max_frames, disable_env_checker=True)
            for _ in range(n)
        ]
        # State arrays are numbers: -1 stands for the environment's own limit.
        self._max_frames = -1 if max_frames is None else max_frames
        self._seed = -1
        self._returns = np.zeros(n, dtype=np.float64)
        self._episodes = np.zeros(n, dtype=np.int64)
        self._logs: list[list[np.ndarray]] = [[] for _ in range(n)]
        # Nothing runs in the background here; begin and finish exist because collectors overlap
        # halves.
        self._begun: deque[tuple[np.ndarray, NDArray[np.bool_]]] = deque()

    def reset(self, seed: int) -> None:
        """Start episode 0 of every environment."""
        self._seed = seed
        self._episodes[:] = 0
        for row in range(self.num_envs):
            self._begin_episode(row)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> VectorStep:
        """Step the active environments; see ``VectorEnvironment.step``."""
        self.begin_step(actions, active)
        return self.finish_step()

    def begin_step(self, actions: np.ndarray, active: np.ndarray | None = None) -> None:
        """Note the actions; these environments run when their step is finished."""
        if self._seed < 0:
            raise ValueError("reset() or set_state() must come before step()")
        active = checked_active(active, self.num_envs)
        if any((active & begun).any() for _, begun in self._begun):
            raise ValueError("an environment that is being stepped cannot begin another step")
        self._begun.append((checked_actions(actions, active, self.spec.actions), active))

    def finish_step(self) -> VectorStep:
        """Take the step that was begun first; see ``VectorEnvironment.finish_step``."""
        if not self._begun:
            raise ValueError("finish_step() without begin_step()")
        actions, active = self._begun.popleft()
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        terminated = np.zeros(self.num_envs, dtype=np.bool_)
        truncated = np.zeros(self.num_envs, dtype=np.bool_)
        for row in np.flatnonzero(active).tolist():
            rewards[row], terminated[row], truncated[row] = self._step_one(row, actions[row])
        game_over = terminated | truncated
        result = VectorStep(
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            game_over=game_over,
            game_returns=self._returns.copy(),
            game_lengths=self._lengths(),
        )
        # At once, so that `observations` already holds the successor's first one; the terminal
        # observation is dropped.
        for row in np.flatnonzero(game_over).tolist():
            self._episodes[row] += 1
            self._begin_episode(row)
        return result

    def get_state(self) -> State:
        """Return seed, episode numbers and the actions of the current episodes."""
        if self._begun:
            raise ValueError("finish_step() must come before get_state()")
        empty = self.spec.actions.empty(0)
        played = np.array([action for log in self._logs for action in log], dtype=empty.dtype)
        return {name: array.copy() for name, array in self._state_arrays().items()} | {
            "game_actions": played.reshape(-1, *empty.shape[1:])
        }

    def set_state(self, state: State) -> None:
        """Restart the saved episodes and repeat their actions."""
        check_state(state, self._state_arrays() | {"game_actions": self.spec.actions.empty(0)})
        if state["max_frames"][0] != self._max_frames:
            raise ValueError("environment state: saved with a different max_frames")
        if len(state["game_actions"]) != state["num_game_actions"].sum():
            raise ValueError("environment state: num_game_actions does not match game_actions")
        self._seed = int(state["seed"][0])
        self._episodes[:] = state["num_episodes"]
        ends = np.cumsum(state["num_game_actions"])
        for row, (end, length) in enumerate(zip(ends, state["num_game_actions"], strict=True)):
            self._begin_episode(row)
            for action in state["game_actions"][end - length : end]:
                self._step_one(row, action)
        if not np.array_equal(self.observations, state["observations"]):
            self._seed = -1
            raise ValueError("environment state: replay differs (another gymnasium version?)")

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()
        self._seed = -1

    def _state_arrays(self) -> State:
        """Return the saved arrays of fixed shape, not copied."""
        return {
            "seed": np.array([self._seed], dtype=np.int64),
            "max_frames": np.array([self._max_frames], dtype=np.int64),
            "num_episodes": self._episodes,
            "num_game_actions": self._lengths(),
            "observations": self.observations,
        }

    def _lengths(self) -> NDArray[np.int64]:
        """Return the steps taken in each current episode, int64 [n]."""
        return np.array([len(log) for log in self._logs], dtype=np.int64)

    def _begin_episode(self, row: int) -> None:
        """Reset one environment with the seed of its current episode."""
        # A seed per episode, not per environment: the state is then a number of episodes and the
        # actions since, with no generator to save.
        key = (self._seed, row, int(self._episodes[row]))
        episode_seed = int(np.random.SeedSequence(key).generate_state(1)[0])
        self.observations[row], _ = self._envs[row].reset(seed=episode_seed)
        self._returns[row] = 0
        self._logs[row].clear()

    def _step_one(self, row: int, action: np.ndarray) -> tuple[float, bool, bool]:
        """Step one environment; its observation and return are updated in place."""
        # A copy: an environment may keep its action, and write into it. A number for Discrete.
        given = action.copy() if action.ndim else int(action)
        observation, reward, terminated, truncated, _ = self._envs[row].step(given)
        self.observations[row] = observation
        self._returns[row] += float(reward)
        self._logs[row].append(action)
        return float(reward), terminated, truncated
