"""Hold what training draws from the replay memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qpd.students.shared_background import SharedFrames


@dataclass(frozen=True)
class ReplaySample:
    """Hold what a student in training is given, `inputs`: observations, or where their frames lie.

    `labels` float32 `[batch, num_labels]` (`qpd.actions`); `values` float32 `[batch]`. What the
    reward term needs, meaningful for the transitions of a rollout only: `actions` `[batch, ...]`,
    `log_probs` and `advantages` float32 `[batch]`.
    """

    # Frames as they lie in the memory cost a step on a CPU less than whole observations.
    inputs: Tensor | SharedFrames
    labels: Tensor
    values: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor

    @property
    def observations(self) -> Tensor:
        """Return them whole: uint8 `[batch, 4, 21, 21, 16]` or float32 `[batch, features]`."""
        return self.inputs.stacked if isinstance(self.inputs, SharedFrames) else self.inputs

    def to(self, device: torch.device) -> ReplaySample:
        """Copy everything to `device`; nothing where it is there already, as `SharedFrames` are."""
        if device == self.values.device:
            return self
        # Only a memory on the CPU draws `SharedFrames`, and only for students there.
        fields = (getattr(self, name) for name in self.__dataclass_fields__)
        return ReplaySample(*(field.to(device, non_blocking=True) for field in fields))
