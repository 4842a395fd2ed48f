"""Single environments, stepped one after the other: a part of a vector environment's rows.

Their numbers lie in arrays that all parts share, which may be memory shared by processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpd.environments.action_spaces import within_space
from qpd.environments.games import find_not_finite, game_failure
from qpd.environments.making import make_one
from qpd.environments.observation import ShownObservations
from qpd.environments.source import EnvironmentSource
from qpd.environments.wrappers import score_of


@dataclass(frozen=True)
class Layout:
    """The shape of the arrays of `num_envs` environments; shapes are those of one."""

    num_envs: int
    observation_shape: tuple[int, ...]
    observation_dtype: str
    action_shape: tuple[int, ...]
    action_dtype: str

    def fields(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return each array's shape and dtype."""
        n = self.num_envs
        return {
            "observations": ((n, *self.observation_shape), self.observation_dtype),
            "actions": ((n, *self.action_shape), self.action_dtype),
            "rewards": ((n,), "float64"),
            "scores": ((n,), "float64"),  # rewards as they are below wrappers
            "seeds": ((n,), "int64"),  # of each environment's next episode
            "terminated": ((n,), "bool"),
            "truncated": ((n,), "bool"),
        }

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays, each beginning at a multiple of 64."""
        return sum(_padded(shape, dtype) for shape, dtype in self.fields().values())

    def arrays(self, memory: Any) -> dict[str, np.ndarray]:
        """Return the arrays in `memory`, a buffer of `num_bytes` bytes."""
        found, offset = {}, 0
        for name, (shape, dtype) in self.fields().items():
            found[name] = np.ndarray(shape, dtype, memory, offset)
            offset += _padded(shape, dtype)
        return found


def _padded(shape: tuple[int, ...], dtype: str) -> int:
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // 64) * 64


class Rows:
    """The environments of some rows of the arrays; others are not touched."""

    def __init__(
        self,
        source: EnvironmentSource,
        max_frames: int | None,
        rows: Sequence[int],
        arrays: dict[str, np.ndarray],
    ) -> None:
        """Make an environment for each row. Raises EnvironmentConfigError."""
        self._name, self._arrays = str(source), arrays
        self._envs = {row: make_one(source, max_frames) for row in rows}
        self._scores = {row: score_of(env) for row, env in self._envs.items()}
        first = self._envs[rows[0]]
        self._show = ShownObservations(first.observation_space, source.env_id)
        self._action_space = first.action_space
        self._steps = dict.fromkeys(rows, 0)

    def reset(self, mask: np.ndarray) -> None:
        """Begin an episode, by its seed, in each row of `mask` (bool `[num_envs]`) that is here.

        Raises EnvironmentRunError.
        """
        mine = [row for row in self._envs if mask[row]]
        with np.errstate(over="ignore", invalid="ignore"):
            for row in mine:
                self._begin(row)
        self._check(mine, np.zeros(len(mine)))  # not the rewards of what was before

    def step(self, mask: np.ndarray) -> None:
        """Step the rows of `mask` that are here; where an episode ends, the next one begins.

        Raises EnvironmentRunError.
        """
        mine = [row for row in self._envs if mask[row]]
        with np.errstate(over="ignore", invalid="ignore"):
            for row in mine:
                self._step(row)
        # Their sum is finite only if both are.
        self._check(mine, self._arrays["rewards"][mine] + self._arrays["scores"][mine])

    def _step(self, row: int) -> None:
        arrays = self._arrays
        # A copy: an environment may keep its action, and write into it. For Discrete a NumPy
        # number, as of SB3's environments.
        action = within_space(arrays["actions"][row].copy(), self._action_space)
        self._steps[row] += 1
        try:
            observation, reward, terminated, truncated, _ = self._envs[row].step(action)
            self._show.push(observation, self._arrays["observations"][row])
            score = self._scores[row]
            arrays["rewards"][row] = float(reward)
            arrays["scores"][row] = float(reward) if score is None else score.take()
            arrays["terminated"][row], arrays["truncated"][row] = terminated, truncated
        except BaseException as error:  # of a user's own class: it may raise anything
            raise game_failure(self._name, self._steps[row], error) from error
        if terminated or truncated:
            self._begin(row)

    def _begin(self, row: int) -> None:
        self._steps[row] = 0
        try:
            observation, _ = self._envs[row].reset(seed=int(self._arrays["seeds"][row]))
            self._arrays["observations"][row] = 0  # older frames of a stack
            self._show.push(observation, self._arrays["observations"][row])
        except BaseException as error:
            raise game_failure(self._name, self._steps[row], error) from error

    def _check(self, rows: list[int], rewards: np.ndarray) -> None:
        """Raise EnvironmentRunError where an observation or a reward is not finite."""
        # All at once: a check for each row would cost as much as a step of CartPole.
        wrong = find_not_finite(self._arrays["observations"][rows], rewards)
        if wrong is not None:
            row = rows[wrong[0]]
            raise game_failure(self._name, self._steps[row], wrong[1])

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs.values():
            env.close()
