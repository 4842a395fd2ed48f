"""Stacked observations as references to frames, with what differs in each from a background.

Training draws a batch so, and then mostly reads the blocks that differ, not the whole frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from qpd.students.shared_background.block_tables import BLOCKS1, FRAMES, PIXELS
from qpd.students.shared_background.plan import BackgroundPlan, make_plan

VOTERS = 27  # observations that decide what the background is, where none is given
MIN_BATCH = 64  # below, the background's own cost is not small beside the batch's


@dataclass(frozen=True, eq=False)
class SharedFrames:
    """A batch of stacked observations.

    `frames` uint8 `[n, 21, 21, 16]`: all there are; `stack` int32 `[batch, 4]`: each observation's
    among them, oldest first; `differs` bool `[batch, 441]`: its blocks that differ in some frame
    from the `background`, uint8 `[441, 16]`.
    """

    frames: Tensor
    stack: Tensor
    differs: Tensor
    background: Tensor

    @classmethod
    def of(cls, observations: Tensor, background: Tensor) -> SharedFrames:
        """Of whole observations, uint8 `[batch, 4, 21, 21, 16]`."""
        batch = len(observations)
        frames = observations.contiguous().view(batch * FRAMES, *observations.shape[2:])
        stack = torch.arange(len(frames), dtype=torch.int32).view(batch, FRAMES)
        differs = differing_blocks(frames, background).view(batch, FRAMES, BLOCKS1).any(1)
        return cls(frames, stack, differs, background)

    def __len__(self) -> int:
        """How many observations."""
        return len(self.stack)

    @cached_property
    def stacked(self) -> Tensor:
        """The whole observations, uint8 `[batch, 4, 21, 21, 16]`."""
        frames = self.frames.index_select(0, self.stack.flatten())
        return frames.view(len(self), FRAMES, *self.frames.shape[1:])

    @cached_property
    def plan(self) -> BackgroundPlan | None:
        """How training multiplies once what they share; None where that is too little."""
        return make_plan(self.frames, self.stack, self.differs, self.background)

    def prepare(self) -> None:
        """Make the plan while there is time."""
        _ = self.plan


def plan_of(observations: Tensor | SharedFrames, weight: Tensor) -> BackgroundPlan | None:
    """The plan of a training batch, where `weight` is conv 1's.

    Of whole observations, uint8 `[batch, 4, 21, 21, 16]`, the background is voted on by the newest
    frames of the first 27. None where the ordinary convolutions are the better way: nothing learns,
    another device than the CPU, other inputs, a small batch, or too little in common.
    """
    learns = torch.is_grad_enabled() and weight.requires_grad and not torch.compiler.is_compiling()
    if not (learns and len(observations) >= MIN_BATCH and weight.dtype == torch.float32):
        return None
    if isinstance(observations, Tensor):
        blocked = observations.dtype == torch.uint8 and observations.dim() == 5
        if not (blocked and observations.device.type == "cpu"):
            return None
        observations = SharedFrames.of(observations, most_frequent(observations[:VOTERS, -1]))
    return observations.plan


def most_frequent(frames: Tensor) -> Tensor:
    """What is most often seen, uint8 `[441, 16]`, in `frames`, uint8 `[3^k, 21, 21, 16]`.

    Decided for 8 pixels at a time: the majority of three, of three such majorities, and so on.
    """
    words = frames.reshape(len(frames), -1).view(torch.int64)
    while len(words) > 1:
        first, second, third = words.view(3, len(words) // 3, -1)
        words = torch.where(second == third, second, first)
    return words.view(torch.uint8).view(BLOCKS1, PIXELS)


def differing_blocks(frames: Tensor, background: Tensor) -> Tensor:
    """Which blocks of `frames`, uint8 `[n, 21, 21, 16]`, differ from it, bool `[n, 441]`."""
    words = frames.reshape(len(frames), BLOCKS1, PIXELS).view(torch.int64)
    differs = words != background.view(torch.int64)
    return differs.view(torch.int16).squeeze(-1) != 0  # a block is two words: both at once
