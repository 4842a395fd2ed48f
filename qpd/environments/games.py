"""Put into words what goes wrong in a game: for whoever plays a user's own environment."""

from __future__ import annotations

import numpy as np

from qpd.environments.errors import EnvironmentRunError, one_line
from qpd.errors.termination import Terminated


def game_failure(name: str, steps: int, reason: str | BaseException) -> EnvironmentRunError:
    """Return the error of environment `name`, whose game failed in step `steps`, 0: as it began.

    `reason` may be what its code raised: anything but Ctrl-C and SIGTERM, which are raised again.
    """
    if isinstance(reason, KeyboardInterrupt | Terminated):
        raise reason
    text = reason if isinstance(reason, str) else one_line(reason)
    at = f"step {steps:,} of a game" if steps else "the start of a game"
    return EnvironmentRunError(f"{name}: at {at}: {text}")


def find_not_finite(observations: np.ndarray, rewards: np.ndarray) -> tuple[int, str] | None:
    """Return the first of n games, `[n, ...]` and `[n]`, that shows no finite number, and which.

    None where all do.
    """
    if np.isfinite(observations).all() and np.isfinite(rewards).all():
        return None
    wrong = ~np.isfinite(observations).reshape(len(rewards), -1).all(1)
    what = "its observation is not finite" if wrong.any() else "its reward is not finite"
    row = int(np.flatnonzero(wrong | ~np.isfinite(rewards))[0])
    return row, f"{what} (NaN, infinite, or beyond float32)"
