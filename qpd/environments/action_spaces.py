"""The action space of a gymnasium environment, as QPD's one notion of an action."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np

from qpd.actions import ActionSpace, Box, Discrete, MultiBinary, MultiDiscrete
from qpd.environments.interface import EnvironmentConfigError

_LARGEST_BOUND = 1e30


def within_space(action: np.ndarray, space: gymnasium.Space[Any]) -> np.ndarray:
    """Return an action in the shape of its space; in type and bounds of a float64 or float16 Box.

    Those of Discrete are kept. Policies act in float32, whose nearest number to a bound of float64
    may lie beyond it.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return action
    action = action.reshape(space.shape)
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype not in (np.float16, np.float64):
        return action
    return np.clip(action.astype(space.dtype), space.low, space.high)


def actions_of(space: gymnasium.Space[object], env_id: str) -> ActionSpace:
    """Return what the actions in `space` are. Raises EnvironmentConfigError for other spaces."""
    spaces = gymnasium.spaces
    try:
        # A start other than 0 shifts every action: SB3 agents emit 0..n-1.
        if isinstance(space, spaces.Discrete) and space.start == 0:
            return Discrete(int(space.n))
        if (
            isinstance(space, spaces.MultiDiscrete)
            and space.nvec.ndim == 1
            and not any(space.start)
        ):
            return MultiDiscrete(tuple(int(n) for n in space.nvec))
        if isinstance(space, spaces.MultiBinary) and isinstance(space.n, int):
            return MultiBinary(space.n)
        if isinstance(space, spaces.Box):
            low, high = (tuple(map(float, bound.ravel())) for bound in (space.low, space.high))
            # Their width would overflow float32: as good as infinite.
            if max(map(abs, (*low, *high))) > _LARGEST_BOUND:
                low, high = (-math.inf,) * len(low), (math.inf,) * len(high)
            return Box(low, high, shape=space.shape)
    except ValueError as error:
        raise EnvironmentConfigError(f"{env_id}: {error}") from error
    raise EnvironmentConfigError(
        f"{env_id} has actions {space}: expected Discrete, MultiDiscrete or MultiBinary, flat and "
        "counted from 0, or Box"
    )


def space_of(actions: ActionSpace) -> gymnasium.Space[Any]:
    """Return gymnasium's space of the same actions, the inverse of `actions_of`."""
    spaces = gymnasium.spaces
    if isinstance(actions, Box):
        low, high = (bound.reshape(actions.shape) for bound in actions.bounds)
        return spaces.Box(low, high, actions.shape, np.float32)
    if isinstance(actions, MultiDiscrete):
        return spaces.MultiDiscrete(list(actions.nvec))
    if isinstance(actions, MultiBinary):
        return spaces.MultiBinary(actions.n)
    return spaces.Discrete(actions.num_outputs)
