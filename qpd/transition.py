"""One vector step's transitions, as they travel from the collector to the replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class TransitionBatch:
    """Observations with the teacher's answer to them; shapes are checked on construction.

    observations: uint8 `[batch, 4, 84, 84]` or float32 `[batch, features]`, as the policy saw them.
    ages: int `[batch]`, observations since the episode began (0 on the first one), may be capped
        at the number of older frames in a stack.
    streams: int `[batch]`, the environment that each row comes from.
    logits: float32 `[batch, num_actions]`, the teacher's (Q-values for DQN).
    values: float32 `[batch]`, the teacher's.
    """

    observations: np.ndarray
    ages: np.ndarray
    streams: np.ndarray
    logits: Tensor
    values: Tensor

    def __post_init__(self) -> None:
        count = len(self.observations)
        shapes = (self.ages.shape, self.streams.shape, tuple(self.values.shape))
        if any(shape != (count,) for shape in shapes) or self.logits.shape[:1] != (count,):
            raise ValueError(
                f"{count} observations with ages {shapes[0]}, streams {shapes[1]}, "
                f"values {shapes[2]}, logits {tuple(self.logits.shape)}: one row each is needed"
            )

    def __len__(self) -> int:
        return len(self.observations)
