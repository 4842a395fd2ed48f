"""Environments that a training plays, checked as those that QPD plays itself are.

Where one fails, the environment is to blame, not the agent: EnvironmentRunError says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from qpd.environments.games import find_not_finite, game_failure
from qpd.environments.observation import ShownObservations
from qpd.environments.source import Maker
from qpd.environments.wrappers import repeatable
from qpd.errors.termination import Terminated

Makers = Sequence[Maker]


class CheckedGames(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose exceptions, malformed steps and NaN become EnvironmentRunError.

    ArithmeticError where it fails as the agent's own actions are not finite.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        """Wrap `env`, which errors call `name`. Raises EnvironmentConfigError."""
        super().__init__(env)
        self._name, self._steps = name, 0
        self._show = ShownObservations(env.observation_space, name)
        self._seen = np.zeros(self._show.shape, self._show.dtype)
        self._are_numbers = self._seen.dtype.kind == "f"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a game. Raises EnvironmentRunError."""
        self._steps = 0
        try:
            observation, info = self.env.reset(seed=seed, options=options)
            wrong = self._find_wrong(observation, 0.0)
        except BaseException as error:  # of a user's own class: it may raise anything
            raise game_failure(self._name, 0, error) from error
        if wrong is not None:
            raise game_failure(self._name, 0, wrong)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Go on by a step. Raises EnvironmentRunError, or ArithmeticError."""
        self._steps += 1
        wrong: str | BaseException | None
        try:
            step = self.env.step(action)
            observation, reward, _, _, _ = step
            wrong = self._find_wrong(observation, float(reward))
        except BaseException as error:
            wrong = error
        if wrong is None:
            return step
        if not isinstance(wrong, KeyboardInterrupt | Terminated) and not np.isfinite(action).all():
            raise ArithmeticError("the agent's actions are no longer finite")
        raise game_failure(self._name, self._steps, wrong)

    def _find_wrong(self, observation: Any, reward: float) -> str | None:
        self._show.push(observation, self._seen)
        # Squares of what is not finite are not, either, and cost less than a look at each number.
        squares = float(self._seen.dot(self._seen)) if self._are_numbers else 0.0
        if math.isfinite(squares + reward):
            return None
        wrong = find_not_finite(self._seen[None], np.array([reward]))
        return None if wrong is None else wrong[1]


class CheckedVecEnv(DummyVecEnv):
    """SB3's DummyVecEnv of checked environments, which errors call `name`."""

    def __init__(self, makers: Makers, name: str) -> None:
        """Make them. Raises EnvironmentConfigError."""
        super().__init__([_checked(maker, name) for maker in makers])

    def reset(self) -> VecEnvObs:
        """Begin games. Raises EnvironmentRunError."""
        with np.errstate(over="ignore", invalid="ignore"):
            return super().reset()

    def step_wait(self) -> VecEnvStepReturn:
        """Go on by a step. Raises EnvironmentRunError, or ArithmeticError."""
        with np.errstate(over="ignore", invalid="ignore"):  # once for all: it costs as much as one
            return super().step_wait()


def _checked(maker: Maker, name: str) -> Maker:
    # A resumed training begins with environments that have played nothing.
    return lambda: CheckedGames(repeatable(maker()), name)
