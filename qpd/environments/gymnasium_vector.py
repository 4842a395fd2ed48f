"""Gymnasium environments with flat observations (CartPole, Hopper, one's own ...).

Every step is a transition: a finished episode is followed by its successor's first observation
at once, never by a fake step. Episode e of environment i is seeded from (seed, i, e), which
makes a state small and exact: the episode's number and the actions since it began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from qpd.environments.errors import EnvironmentRunError
from qpd.environments.interface import (
    EnvironmentSpec,
    State,
    VectorStep,
    check_state,
    checked_actions,
    checked_active,
)
from qpd.environments.rows import Layout
from qpd.environments.source import EnvironmentSource
from qpd.environments.worker_pool import make_rows


def episode_seed(seed: int, row: int, episode: int) -> int:
    """Return what an environment of a batch is reset with, at the start of each of its episodes."""
    # A seed per episode, not per environment: the state is then a number of episodes and the
    # actions since, with no generator to save.
    return int(np.random.SeedSequence((seed, row, episode)).generate_state(1)[0])


class GymEnvironment:
    """A VectorEnvironment of a gymnasium environment; see ``VectorEnvironment``.

    ``max_frames``, if given, replaces the environment's own limit of steps per episode.
    ``workers``: processes that step it, 0 for this one, None for as many as pay, at most
    ``most_workers``.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        source: EnvironmentSource,
        num_envs: int,
        *,
        max_frames: int | None,
        workers: int | None = 0,
        most_workers: int | None = None,
    ) -> None:
        """Build ``num_envs`` copies."""
        n = num_envs
        self.spec = spec
        self.num_envs = n
        self._name = str(source)
        actions = spec.actions
        seen = spec.observation_shape, spec.observation_dtype
        layout = Layout(n, *seen, actions.shape, actions.dtype.name)
        self._rows = make_rows(source, max_frames, layout, workers, most_workers)
        self._arrays = self._rows.arrays
        self.observations = self._arrays["observations"]
        self.acting = np.ones(n, dtype=np.bool_)
        self.age = np.zeros(n, dtype=np.int64)
        # State arrays are numbers: -1 stands for the environment's own limit.
        self._max_frames = -1 if max_frames is None else max_frames
        self._seed = -1
        self._returns = np.zeros(n, dtype=np.float64)
        self._episodes = np.zeros(n, dtype=np.int64)
        self._logs: list[list[np.ndarray]] = [[] for _ in range(n)]
        self._begun: deque[tuple[np.ndarray, NDArray[np.bool_]]] = deque()

    def reset(self, seed: int) -> None:
        """Start episode 0 of every environment."""
        self._seed = seed
        self._episodes[:] = 0
        self._begin_episodes()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> VectorStep:
        """Step the active environments; see ``VectorEnvironment.step``."""
        self.begin_step(actions, active)
        return self.finish_step()

    def begin_step(self, actions: np.ndarray, active: np.ndarray | None = None) -> None:
        """Set worker processes going; without any, environments run when their step is finished."""
        if self._seed < 0:
            raise ValueError("reset() or set_state() must come before step()")
        active = checked_active(active, self.num_envs).copy()
        if any((active & begun).any() for _, begun in self._begun):
            raise ValueError("an environment that is being stepped cannot begin another step")
        actions = checked_actions(actions, active, self.spec.actions)
        self._arrays["actions"][active] = actions[active]
        self._begun.append((actions, active))
        with self._failing():
            self._rows.begin(active)

    def finish_step(self) -> VectorStep:
        """Take the step that was begun first; see ``VectorEnvironment.finish_step``.

        Raises EnvironmentRunError where an environment fails.
        """
        if not self._begun:
            raise ValueError("finish_step() without begin_step()")
        actions, active = self._begun.popleft()
        with self._failing():
            self._rows.finish()
        arrays = self._arrays
        rewards = np.where(active, arrays["rewards"], 0.0)
        terminated, truncated = active & arrays["terminated"], active & arrays["truncated"]
        game_over = terminated | truncated
        self._returns += np.where(active, arrays["scores"], 0.0)
        for row in np.flatnonzero(active).tolist():
            self._logs[row].append(actions[row])
        result = VectorStep(
            rewards=rewards.astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            game_over=game_over,
            game_returns=self._returns.copy(),
            game_lengths=self._lengths(),
        )
        # `observations` already holds the successor's first one; the terminal one is dropped.
        for row in np.flatnonzero(game_over).tolist():
            self._episodes[row] += 1
            self._begin_log(row)
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
        lengths = state["num_game_actions"]
        self._begin_episodes()
        ends = np.cumsum(lengths)
        same = True
        for step in range(int(lengths.max(initial=0))):
            playing = lengths > step
            actions = self.spec.actions.empty(self.num_envs)
            actions[playing] = state["game_actions"][(ends - lengths + step)[playing]]
            # A game that ends here did not when it was saved.
            same = same and not self.step(actions, playing).game_over.any()
        if not same or not np.array_equal(self.observations, state["observations"]):
            self._seed = -1
            raise EnvironmentRunError(
                f"{self._name}: its games cannot be repeated from seed and actions, so nothing can "
                "be resumed: another version of it, or randomness that is not drawn from the "
                "environment's own np_random"
            )

    def close(self) -> None:
        """Close the environments."""
        self._rows.close()
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

    def _begin_episodes(self) -> None:
        """Reset all environments with the seeds of their current episodes."""
        for row in range(self.num_envs):
            self._arrays["seeds"][row] = self._episode_seed(row, int(self._episodes[row]))
        with self._failing():
            self._rows.reset(np.ones(self.num_envs, dtype=np.bool_))
        for row in range(self.num_envs):
            self._begin_log(row)

    def _begin_log(self, row: int) -> None:
        """Forget the last episode; the seed of the next one is known before this one ends."""
        self._returns[row] = 0
        self._logs[row] = []
        self._arrays["seeds"][row] = self._episode_seed(row, int(self._episodes[row]) + 1)

    def _episode_seed(self, row: int, episode: int) -> int:
        return episode_seed(self._seed, row, episode)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Let nothing be stepped after an error, until the next reset."""
        try:
            yield
        except EnvironmentRunError:
            self._begun.clear()
            self._seed = -1
            raise
