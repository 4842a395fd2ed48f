"""The transitions of one vector step, as passed from the collector to the replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class StepOutcome:
    """The action taken in each state and its outcome; fields `[batch]`.

    actions: `[batch, ...]`, as the space has them. log_probs: float32, the actions' under the
        policy that sampled them; NaN where none was sampled.
    rewards: float32, raw. ended: bool, the episode in SB3's sense was over; cut: bool, by a time
        limit alone, so that its last state has a value.
    game_returns: float64, the return of the whole game where it was over, else NaN.
    """

    actions: np.ndarray
    log_probs: np.ndarray
    rewards: np.ndarray
    ended: np.ndarray
    cut: np.ndarray
    game_returns: np.ndarray


@dataclass(frozen=True)
class TransitionBatch:
    """Observations labelled by the teacher; shapes are checked on construction.

    observations: uint8 `[batch, 4, 84, 84]` or float32 `[batch, features]`, as the policy saw them.
    ages: int `[batch]`, observations since the episode began (0 on the first one), may be capped
        at the number of older frames in a stack.
    streams: int `[batch]`, the environment that each row comes from.
    labels: float32 `[batch, num_labels]`, the teacher's (`qpd.actions`).
    values: float32 `[batch]`, the teacher's.
    outcome: the action taken then and its outcome, where known.
    """

    observations: np.ndarray
    ages: np.ndarray
    streams: np.ndarray
    labels: Tensor
    values: Tensor
    outcome: StepOutcome | None = None

    def __post_init__(self) -> None:
        count = len(self.observations)
        shapes = (self.ages.shape, self.streams.shape, tuple(self.values.shape))
        if any(shape != (count,) for shape in shapes) or self.labels.shape[:1] != (count,):
            raise ValueError(
                f"{count} observations with ages {shapes[0]}, streams {shapes[1]}, "
                f"values {shapes[2]}, labels {tuple(self.labels.shape)}: one row each is needed"
            )

    def __len__(self) -> int:
        return len(self.observations)
