"""Observations of gymnasium environments as flat float32, as SB3 shows them to an MlpPolicy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from qpd.environments.errors import EnvironmentConfigError


class FlatObservations:
    """What turns an observation of one space into `size` numbers: SB3's `preprocess_obs`.

    Boxes are flattened, bits kept, and whole numbers become one-hot.
    """

    def __init__(self, space: gymnasium.Space[Any], name: str) -> None:
        """Raise EnvironmentConfigError, which names `name`, for a space that no MlpPolicy sees."""
        if isinstance(space, spaces.Discrete) and space.start == 0:
            self._offsets, self.size = np.zeros(1, np.int64), int(space.n)
            self.show: Callable[[Any, np.ndarray], None] = self._one_hot
        elif isinstance(space, spaces.MultiDiscrete) and not np.any(space.start):
            counts = space.nvec.ravel()
            self._offsets, self.size = np.cumsum(counts) - counts, int(counts.sum())
            self.show = self._one_hot
        elif isinstance(space, spaces.MultiBinary) or (
            isinstance(space, spaces.Box) and space.shape and not _is_image(space)
        ):
            self.size = int(np.prod(space.shape))
            self.show = self._flat
        else:
            raise EnvironmentConfigError(
                f"{name} has observations {space}: only flat ones are supported (Box that is no "
                "image, and Discrete, MultiDiscrete and MultiBinary counted from 0)"
            )

    def push(self, observation: Any, numbers: np.ndarray) -> None:
        """Write an observation last into a stack, float32 `[k * size]`; older ones move ahead.

        So does SB3's VecFrameStack, from zeros when an episode begins.
        """
        if len(numbers) > self.size:
            numbers[: -self.size] = numbers[self.size :].copy()
            numbers = numbers[-self.size :]
        self.show(observation, numbers)

    def _flat(self, observation: Any, into: np.ndarray) -> None:
        found = np.asarray(observation)
        if found.size != self.size:
            raise ValueError(f"an observation of shape {found.shape}, not {self.size} numbers")
        into[...] = found if found.ndim == 1 else found.ravel()

    def _one_hot(self, observation: Any, into: np.ndarray) -> None:
        into[...] = 0
        into[self._offsets + np.asarray(observation, np.int64).ravel()] = 1


def _is_image(space: spaces.Box) -> bool:
    # SB3's is_image_space: it gives a CnnPolicy these, and an MlpPolicy a 255th of them.
    return len(space.shape) == 3 and space.dtype == np.uint8
