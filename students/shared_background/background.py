"""The background of a replay memory's frames, and the draws that know where they differ from it.

A background known when a batch is drawn saves more than products: training then mostly reads the
blocks that differ, and never puts the batch's whole frames together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from qpd.students.shared_background.block_tables import BLOCKS1, FRAMES, PIXELS
from qpd.students.shared_background.convolution import SharedLayers
from qpd.students.shared_background.plan import BackgroundPlan, MultipliedBlocks, make_plan

MIN_BATCH = 64  # below, the background's own products are not few beside the batch's
VOTERS = 3**5  # frames that decide what the background is: a majority of majorities, five deep
PACKED = 56  # bytes of a frame's differences, a bit a block; whole 64-bit words
_CHUNK = 4096  # frames compared in one go: 29 MB

# Eight bools, read as a 64-bit integer and multiplied by this, have their bits in the top byte:
# the i-th is moved there by the power of two that lies 7 - i bytes up. No sum carries.
_GATHER_BITS = 0x0102040810204080
# The way back: the eight bools of each byte, as a 64-bit integer.
_BITS_OF_BYTES = ((torch.arange(256)[:, None] >> torch.arange(8)) & 1).byte().view(torch.int64)


@dataclass(frozen=True, eq=False)
class SharedFrames:
    """A batch of stacked observations, as references to frames.

    `frames` uint8 `[n, 21, 21, 16]`: all there are; `stack` int32 `[batch, 4]`: each observation's
    among them, oldest first; `differs` bool `[batch, 441]`: its blocks that differ in some frame
    from the `background`, uint8 `[441, 16]`.
    """

    frames: Tensor
    stack: Tensor
    differs: Tensor
    background: Tensor

    @classmethod
    def of(cls, observations: Tensor, background: Tensor | None = None) -> SharedFrames:
        """Compare whole observations, uint8 `[batch, 4, 21, 21, 16]`, with a background.

        Where none is given, with what they themselves most often show.
        """
        batch = len(observations)
        frames = observations.contiguous().view(batch * FRAMES, *observations.shape[2:])
        if background is None:
            background = voted(frames, torch.arange(len(frames)))
        stack = torch.arange(len(frames), dtype=torch.int32).view(batch, FRAMES)
        differs = differing_blocks(frames, background).view(batch, FRAMES, BLOCKS1).any(1)
        return cls(frames, stack, differs, background)

    def __len__(self) -> int:
        """Count the observations."""
        return len(self.stack)

    @cached_property
    def stacked(self) -> Tensor:
        """Put the whole observations together, uint8 `[batch, 4, 21, 21, 16]`."""
        frames = self.frames.index_select(0, self.stack.flatten())
        return frames.view(len(self), FRAMES, *self.frames.shape[1:])

    # Cached: students that train on one draw share its plan.
    @cached_property
    def plan(self) -> BackgroundPlan | None:
        """Plan what is multiplied once; None where too little is shared for that to pay."""
        if len(self) < MIN_BATCH:
            return None
        return make_plan(self.frames, self.stack, self.differs, self.background)

    def layers(
        self, ordinary: Callable[..., Tensor], dtype: torch.dtype
    ) -> tuple[Tensor, Callable[..., Tensor]]:
        """Return what a student's first layer reads, uint8, and the function that applies layers.

        That function does what `ordinary` does, a student's `apply_layer`, with activations in
        `dtype`; between the first two layers it may have rows, `[n, channels]`, for images.
        """
        if self.plan is None:
            return self.stacked, ordinary
        return self.plan.pixels, SharedLayers(self.plan, ordinary, dtype)


class SharedBackground:
    """Hold what the frames of a replay memory have in common, once they have voted on it.

    `frames` uint8 `[rows, 21, 21, 16]` and `stack` int32 `[rows, 4]`, the rows of the frames of
    each row's observation, are the memory's own tensors, read whenever it is asked to. Of anything
    else (vectors, other stacks, a memory on a GPU) there is never a background.
    """

    def __init__(self, frames: Tensor, stack: Tensor) -> None:
        self._frames, self._stack = frames, stack
        is_atari = frames.dtype == torch.uint8 and stack.shape[1] == FRAMES
        self._may_vote = is_atari and stack.device.type == "cpu"
        self.pixels: Tensor | None = None  # uint8 [441, 16], after a vote
        count = len(frames) if self._may_vote else 0
        self._differs = torch.zeros(count, PACKED, dtype=torch.uint8)  # as of `_compared_at`
        # Both count the transitions that the memory had ever been given.
        self._voted_at = 0
        self._compared_at: int | None = None

    @property
    def num_bytes(self) -> int:
        """Count the bytes held."""
        return self._differs.numel()

    def renew(self, rows: Tensor, num_added: int) -> bool:
        """See what the frames have in common, before an epoch; returns whether that is known.

        `rows` int64 `[n]` are those of the transitions that can be drawn, oldest first, out of
        `num_added` that the memory has ever been given. Nobody may add any meanwhile; what is added
        afterwards cannot be drawn before this is called again.
        """
        if not self._may_vote or len(rows) == 0:
            return False
        # A vote stands until the last of those who had a part in it are gone: most games look the
        # same for ever, and after a vote all frames have to be compared again.
        if self.pixels is None or num_added - self._voted_at >= len(rows):
            self.pixels = voted(self._frames, rows)
            self._voted_at, self._compared_at = num_added, None
        if self._compared_at is None:
            every = range(0, len(self._frames), _CHUNK)
            self._compare(self.pixels, (slice(start, start + _CHUNK) for start in every))
        else:  # the newest alone; fewer than all, or a vote would have been due
            self._compare(
                self.pixels, rows[len(rows) + self._compared_at - num_added :].split(_CHUNK)
            )
        self._compared_at = num_added
        return True

    def _compare(self, background: Tensor, parts: Iterable[slice | Tensor]) -> None:
        """Note where the frames at these rows, slices or int64 `[n]`, differ."""
        for part in parts:
            # A slice copies nothing; by rows, index_select takes an eighth of indexing's time.
            if isinstance(part, slice):
                frames = self._frames[part]
            else:
                frames = self._frames.index_select(0, part)
            self._differs[part] = packed(differing_blocks(frames, background))

    def observations(self, rows: Tensor) -> SharedFrames:
        """Refer to the observations at `rows`, int64 `[n]`, of those last given to `renew`."""
        assert self.pixels is not None
        stack = self._stack.index_select(0, rows)
        return SharedFrames(self._frames, stack, unpacked(self._differing(stack)), self.pixels)

    def _differing(self, stack: Tensor) -> Tensor:
        """Find the blocks that differ in some frame: int32 `[n, 4]` -> bits, uint8 `[n, 56]`."""
        words = self._differs.view(torch.int64)
        oldest, *others = (words.index_select(0, column) for column in stack.unbind(1))
        for differs in others:
            oldest |= differs
        return oldest.view(torch.uint8)

    def multiplied(self, rows: Tensor) -> MultipliedBlocks | None:
        """Measure what a batch of the observations at `rows`, int64 `[n]`, still multiplies.

        None where there was no vote, or where the batch is too small to share anything.
        """
        if self.pixels is None or len(rows) < MIN_BATCH:
            return None
        # Compared anew: these may have been added since `renew`.
        stack = self._stack.index_select(0, rows)
        frames = self._frames.index_select(0, stack.flatten())
        whole = frames.view(len(rows), FRAMES, *frames.shape[1:])
        plan = SharedFrames.of(whole, self.pixels).plan
        return MultipliedBlocks(1.0, 1.0) if plan is None else plan.multiplied

    def state_dict(self) -> dict[str, Tensor]:
        """Return the vote, if there was one; the frames themselves tell what differs from it."""
        if self.pixels is None:
            return {}
        return {"background": self.pixels, "voted_at": torch.tensor(self._voted_at)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` saved among others."""
        self.pixels, self._compared_at = None, None
        if self._may_vote and "background" in state:
            # Into a new tensor: a checkpoint's is checked here to be of this very shape and dtype.
            self.pixels = torch.empty(BLOCKS1, PIXELS, dtype=torch.uint8)
            self.pixels.copy_(state["background"])
            self._voted_at = int(state["voted_at"])


def voted(frames: Tensor, rows: Tensor) -> Tensor:
    """Let a few frames vote on the background, uint8 `[441, 16]`.

    They are spread evenly over those of `frames`, uint8 `[n, 21, 21, 16]`, at `rows`, int64 `[m]`.
    """
    return most_frequent(frames.index_select(0, rows[_voters(len(rows))]))


def _voters(count: int) -> Tensor:
    """Spread the voters evenly over `count` transitions: their numbers, int64 `[VOTERS]`.

    Rounded down as NumPy's `linspace` has it, so that every vote is what it has always been.
    """
    voters = torch.arange(VOTERS, dtype=torch.float64) * ((count - 1) / (VOTERS - 1))
    voters[-1] = count - 1
    return voters.long()


def most_frequent(frames: Tensor) -> Tensor:
    """Find what is most often seen, uint8 `[441, 16]`, in `frames`, uint8 `[3^k, 21, 21, 16]`.

    Decided for 8 pixels at a time: the majority of three, of three such majorities, and so on.
    """
    words = frames.reshape(len(frames), -1).view(torch.int64)
    while len(words) > 1:
        first, second, third = words.view(3, len(words) // 3, -1)
        words = torch.where(second == third, second, first)
    return words.view(torch.uint8).view(BLOCKS1, PIXELS)


def differing_blocks(frames: Tensor, background: Tensor) -> Tensor:
    """Compare `frames`, uint8 `[n, 21, 21, 16]`, with a background block by block: bool `[n, 441]`.

    True where they differ.
    """
    words = frames.reshape(len(frames), BLOCKS1, PIXELS).view(torch.int64)
    differs = words != background.view(torch.int64)
    return differs.view(torch.int16).squeeze(-1) != 0  # a block is two words: both at once


def packed(differs: Tensor) -> Tensor:
    """Keep a bit for each block: bool `[n, 441]` -> uint8 `[n, 56]`, the last 7 bits 0."""
    whole = torch.zeros(len(differs), 8 * PACKED, dtype=torch.bool)
    whole[:, :BLOCKS1] = differs
    words = whole.view(torch.int64) * _GATHER_BITS
    return words.bitwise_right_shift_(56).to(torch.uint8)


def unpacked(bits: Tensor) -> Tensor:
    """Tell blocks apart again: uint8 `[n, 56]` -> bool `[n, 441]`."""
    words = _BITS_OF_BYTES.view(-1).index_select(0, bits.view(-1).int())
    return words.view(torch.bool).view(len(bits), 8 * PACKED)[:, :BLOCKS1].contiguous()
