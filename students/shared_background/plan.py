"""Find what a batch has in common with a background, hence which products it can share.

Most of an Atari frame is the same in all observations. Conv 1 of the Nature network, 8x8 with
stride 4, sums over 2x2 blocks of 4x4 pixels; conv 2, 4x4 with stride 2, over 2x2 blocks of 2x2
results of conv 1. A block in which an observation equals the background contributes what it
contributes in every such observation. Of Breakout played by a teacher and shuffled, one block in
six differs for conv 1, and four in ten for conv 2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qpd.students.shared_background.block_tables import (
    BLOCKS1,
    BLOCKS2,
    FRAMES,
    PIXELS,
    RESULTS2,
    SIDE1,
    blocks_read,
    corner_numbers,
    parents_in_results,
    parents_in_rows,
    rows_read,
)

MAX_OWN = 0.75  # share of conv 2's blocks that differ, above which sharing does not pay
MULTIPLE = 256  # of rows that a matrix product has: oneDNN compiles a kernel for each new number


class MultipliedBlocks(NamedTuple):
    """Shares, 0 to 1, of the first two convolutions' blocks that a batch multiplies."""

    conv1: float
    conv2: float

    def __str__(self) -> str:
        if self == (1.0, 1.0):
            return "none, observations have too little in common"
        return (
            f"{self.conv1:.0%} of conv 1's blocks and {self.conv2:.0%} of conv 2's are multiplied"
        )


class BackgroundPlan(NamedTuple):
    """Plan what the first two convolutions do for a batch of observations.

    Blocks that differ from the background are an observation's own. Those of conv 1 go by
    observation, then come the background's 441, then fillers that nothing reads. Those of conv 2 go
    by place, then come the background's 100, then a filler or more; each is four of conv 1's
    results, which are rows in this order. A convolution's table has four rows for each of its
    blocks: what it contributes to the results of which it is the top left, top right ... part.
    """

    pixels: Tensor  # uint8 [blocks of conv 1, 4 * 16]
    place1: Tensor  # int32 [num_own1]: where own blocks of conv 1 are, 0..440
    starts2: Tensor  # int32 [100]: where each place begins among own blocks of conv 2
    index1: Tensor  # int32 [rows, 4]: the rows of conv 1's table that add up to each result
    index2: Tensor  # int32 [batch * 81, 4]: the same of conv 2
    gradients1: Tensor  # int32 [num_own1 * 4]: the result that has each row; a filler's for none
    gradients2: Tensor  # int32 [num_own2 * 4]: of 82 results an observation, the last for none

    @property
    def batch(self) -> int:
        """Count the observations."""
        return len(self.index2) // RESULTS2

    @property
    def num_own1(self) -> int:
        """Count the blocks of conv 1 that differ."""
        return len(self.place1)

    @property
    def num_own2(self) -> int:
        """Count the blocks of conv 2 that differ."""
        return len(self.gradients2) // 4

    @property
    def num_blocks1(self) -> int:
        """Count the blocks of conv 1 that are multiplied, the background's and fillers included."""
        return len(self.pixels)

    @property
    def num_blocks2(self) -> int:
        """Count the blocks of conv 2 that are multiplied, the background's and fillers included."""
        return len(self.index1) // 4

    @property
    def multiplied(self) -> MultipliedBlocks:
        """Compare what is multiplied with all blocks of all observations."""
        all1, all2 = self.batch * BLOCKS1, self.batch * BLOCKS2
        return MultipliedBlocks(self.num_blocks1 / all1, self.num_blocks2 / all2)


def make_plan(
    frames: Tensor, stack: Tensor, differs: Tensor, background: Tensor
) -> BackgroundPlan | None:
    """Plan for observations as `SharedFrames` has them; None where they differ too much."""
    batch = len(stack)
    # By place first, so that the own blocks of a place lie together and a sum over them is one.
    own2 = _where(_second_blocks(differs.t().contiguous()))
    if len(own2) > MAX_OWN * batch * BLOCKS2:
        return None
    own1 = _where(differs)
    numbers1 = own1.int()
    sample1 = numbers1.div(BLOCKS1, rounding_mode="trunc")
    place1 = numbers1 - sample1 * BLOCKS1
    # A block that is not an observation's own is the background's of that place.
    first2 = _following(own2, BLOCKS2 + 1)[:, None].expand(BLOCKS2 + 1, batch).contiguous()
    first2 = _numbered(first2, own2).t().contiguous()  # row of conv 1 [batch, 101]: a block's first
    rows2 = (first2 + corner_numbers(1)[:, None, None]).view(-1)
    return BackgroundPlan(
        pixels=_pixels(frames, stack.index_select(0, sample1), place1, background),
        place1=place1,
        starts2=torch.searchsorted(own2, torch.arange(BLOCKS2) * batch, out_int32=True),
        index1=_first_index(own1, own2, batch),
        index2=rows2.index_select(0, rows_read(batch)).view(-1, 4),
        gradients1=rows2.index_select(0, parents_in_rows(batch).index_select(0, own1).view(-1)),
        gradients2=parents_in_results(batch).index_select(0, own2).view(-1),
    )


def _second_blocks(differs: Tensor) -> Tensor:
    """Find conv 2's blocks that differ: bool by place, of conv 1's `[441, n]` -> `[100, n]`."""
    # Its four results of conv 1 read 3x3 of these blocks: first down, then across.
    differs = differs.view(SIDE1, SIDE1, -1)
    rows = differs[:-2:2] | differs[1:-1:2] | differs[2::2]
    return (rows[:, :-2:2] | rows[:, 1:-1:2] | rows[:, 2::2]).view(BLOCKS2, -1)


def _where(differs: Tensor) -> Tensor:
    """Find the entries that are true, int64 `[n]`."""
    # NumPy's way takes a third of PyTorch's time.
    return torch.from_numpy(differs.view(-1).numpy().nonzero()[0])


def _filled(count: int) -> int:
    """Round up to a multiple of `MULTIPLE`."""
    return -(-count // MULTIPLE) * MULTIPLE


def _following(own: Tensor, count: int) -> Tensor:
    """Return 4 times the numbers of the `count` blocks after the `own`, int32 `[count]`."""
    return torch.arange(4 * len(own), 4 * (len(own) + count), 4, dtype=torch.int32)


def _numbered(slots: Tensor, own: Tensor) -> Tensor:
    """Write 4 * number into those `slots`, int32, whose flat places are in `own`; in place."""
    numbers = torch.arange(0, 4 * len(own), 4, dtype=torch.int32)
    slots.view(-1).index_copy_(0, own, numbers)
    return slots


def _pixels(frames: Tensor, stack1: Tensor, place1: Tensor, background: Tensor) -> Tensor:
    """Copy what conv 1 multiplies, uint8 `[blocks, 64]`: the own blocks, the background, fillers.

    `stack1` int32 `[num_own1, 4]`: the frames of each own block.
    """
    own = len(place1)
    pixels = torch.empty(_filled(own + BLOCKS1), FRAMES * PIXELS, dtype=torch.uint8)
    if len(frames) * BLOCKS1 > torch.iinfo(torch.int32).max:  # from 4.9 million frames on
        stack1 = stack1.long()
    rows = torch.add(place1[:, None], stack1, alpha=BLOCKS1)
    # Straight from where the frames lie, 8 pixels at a time.
    words = frames.view(-1, PIXELS).view(torch.int64)
    into = pixels[:own].view(torch.int64).view(-1, 2)
    torch.index_select(words, 0, rows.view(-1), out=into)
    everywhere = background[:, None]  # the same in every frame of a stack
    pixels[own : own + BLOCKS1].view(-1, FRAMES, PIXELS).copy_(everywhere)
    pixels[own + BLOCKS1 :] = 0
    return pixels


def _first_index(own1: Tensor, own2: Tensor, batch: int) -> Tensor:
    """Make `BackgroundPlan.index1`: which rows of conv 1's table add up to each of its results."""
    slots = _following(own1, BLOCKS1).expand(batch + 1, BLOCKS1).contiguous()
    slots = _numbered(slots, own1).view(-1)  # first row in the table; after the batch, background's
    read, of_background = blocks_read(batch)
    blocks = read.new_empty(_filled(len(own2) + BLOCKS2 + 1), 16)
    torch.index_select(read, 0, own2, out=blocks[: len(own2)])
    blocks[len(own2) : len(own2) + BLOCKS2] = of_background
    blocks[len(own2) + BLOCKS2 :] = 0
    index = slots.index_select(0, blocks.view(-1))
    index.view(-1, 4 * MULTIPLE).add_(corner_numbers(MULTIPLE))  # in long rows: 10x as fast
    return index.view(-1, 4)
