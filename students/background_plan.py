"""What a batch has in common with a background, hence which products its observations can share.

Most of an Atari frame is the same in all observations. Conv 1 of the Nature network, 8x8 with
stride 4, sums over 2x2 blocks of 4x4 pixels; conv 2, 4x4 with stride 2, over 2x2 blocks of 2x2
results of conv 1. A block in which an observation equals the background contributes what it
contributes in every such observation. Of Breakout played by a teacher and shuffled, one block in
six differs for conv 1, and four in ten for conv 2.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from students.shared_frames import BLOCKS1, SharedFrames, most_frequent

SIDE1, SIDE2, SIDE3 = 21, 10, 9  # blocks that conv 1 reads, that conv 2 reads, results of conv 2
BLOCKS2, RESULTS2 = SIDE2**2, SIDE3**2
VOTERS = 27  # observations that decide what the background is, where none is given
MIN_BATCH = 64  # below, the background's own cost is not small beside the batch's
MAX_OWN = 0.75  # share of conv 2's blocks that differ, above which sharing does not pay
MULTIPLE = 256  # of rows that a matrix product has: oneDNN compiles a kernel for each new number
CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))  # rows and columns of a 2x2 block's parts, in order


class BackgroundPlan(NamedTuple):
    """Which blocks of `batch` observations differ from the background: those are their own.

    Conv 1's own blocks go by observation, then come the background's 441, then fillers that nothing
    reads. Conv 2's go by place, then come the background's 100, then fillers. `rows` of conv 1, its
    results, are four for each block of conv 2 in this order.
    """

    observations: SharedFrames
    sample1: Tensor  # int32 [num_own1]: whose each of conv 1's own blocks is
    place1: Tensor  # int32 [num_own1]: where it is, 0..440
    sample2: Tensor  # int32 [num_own2]: the same of conv 2's
    place2: Tensor  # int32 [num_own2], ascending, 0..99
    starts2: Tensor  # int32 [100]: where each place begins among them
    slot1: Tensor  # int32 [(batch + 1) * 441]: 4 * number of each block; last, the background's
    slot2: Tensor  # int32 [batch, 10, 10]: 4 * number of the block, an own or the background's

    @property
    def num_own1(self) -> int:
        """Blocks of conv 1 that differ."""
        return len(self.place1)

    @property
    def num_own2(self) -> int:
        """Blocks of conv 2 that differ."""
        return len(self.place2)

    @property
    def num_blocks1(self) -> int:
        """Blocks of conv 1 that are multiplied."""
        return _filled(self.num_own1 + BLOCKS1)

    @property
    def num_blocks2(self) -> int:
        """Blocks of conv 2 that are multiplied."""
        return _filled(self.num_own2 + BLOCKS2)


def plan_background(observations: Tensor | SharedFrames, weight: Tensor) -> BackgroundPlan | None:
    """The plan of a training batch, where `weight` is conv 1's.

    Of whole observations, uint8 `[batch, 4, 21, 21, 16]`, the background is voted on by the newest
    frames of the first 27. None where the ordinary convolutions are the better way: nothing learns,
    another device than the CPU, other inputs, a small batch, or too little in common.
    """
    learns = torch.is_grad_enabled() and weight.requires_grad and not torch.compiler.is_compiling()
    suits = len(observations) >= MIN_BATCH and weight.dtype == torch.float32
    if isinstance(observations, Tensor):
        suits = suits and observations.dtype == torch.uint8 and observations.dim() == 5
        suits = suits and observations.device.type == "cpu"
    if not (learns and suits):
        return None
    if isinstance(observations, Tensor):
        background = most_frequent(observations[:VOTERS, -1])
        observations = SharedFrames.of(observations, background)
    return _plan(observations)


def _plan(observations: SharedFrames) -> BackgroundPlan | None:
    own1, batch = observations.differs, len(observations)
    own2 = _any_of_three(_any_of_three(own1.view(batch, SIDE1, SIDE1)).mT).mT
    own2 = own2.reshape(batch, BLOCKS2).t().contiguous()  # by place
    blocks2 = own2.view(-1).nonzero().squeeze(1)
    if len(blocks2) > MAX_OWN * own2.numel():
        return None
    blocks1 = own1.view(-1).nonzero().squeeze(1)
    sample1, place1 = _divided(blocks1, BLOCKS1)
    place2, sample2 = _divided(blocks2, batch)
    slot2 = _slots(blocks2, BLOCKS2)[:, None].repeat(1, batch)
    return BackgroundPlan(
        observations=observations,
        sample1=sample1,
        place1=place1,
        sample2=sample2,
        place2=place2,
        starts2=torch.searchsorted(place2, _hundred(), out_int32=True),
        slot1=_numbered(_slots(blocks1, BLOCKS1).repeat(batch + 1), blocks1),
        slot2=_numbered(slot2, blocks2).t().contiguous().view(batch, SIDE2, SIDE2),
    )


def _filled(count: int) -> int:
    """The next multiple of `MULTIPLE`."""
    return -(-count // MULTIPLE) * MULTIPLE


def _any_of_three(own: Tensor) -> Tensor:
    """A block of conv 2 reads three columns of conv 1's: 21 -> 10 along the last axis."""
    return own[..., :-2:2] | own[..., 1:-1:2] | own[..., 2::2]


def _slots(own: Tensor, count: int) -> Tensor:
    """4 * number of the background's `count` blocks, which follow the `own`, int32 `[count]`."""
    return torch.arange(4 * len(own), 4 * (len(own) + count), 4, dtype=torch.int32)


def _numbered(slots: Tensor, own: Tensor) -> Tensor:
    """`slots` with 4 * number in the places, flat, that are in `own`; in place."""
    numbers = torch.arange(0, 4 * len(own), 4, dtype=torch.int32)
    slots.view(-1).index_copy_(0, own, numbers)
    return slots


def _divided(numbers: Tensor, divisor: int) -> tuple[Tensor, Tensor]:
    """Quotients and remainders, int32 `[n]`, of `numbers` `[n]`, not negative."""
    numbers = numbers.int()
    quotient = numbers.div(divisor, rounding_mode="trunc")
    return quotient, numbers - quotient * divisor


def first_index(plan: BackgroundPlan) -> Tensor:
    """Of each row of conv 1, the four rows of its blocks' table, int32 `[rows, 4]`.

    The table has four rows (one a corner) for each block of conv 1 that is multiplied.
    """
    background = len(plan.observations) * BLOCKS1  # the slots of these blocks are the last 441
    own, filled = plan.num_own2, plan.num_blocks2
    blocks = torch.zeros(filled, dtype=torch.int32)
    first = _first_blocks().index_select(0, plan.place2)
    torch.add(first, plan.sample2, alpha=BLOCKS1, out=blocks[:own])
    torch.add(_first_blocks(), background, out=blocks[own : own + BLOCKS2])
    slots = plan.slot1.index_select(0, (blocks[:, None] + _read_blocks()).view(-1))
    return slots.view(-1, 4).add_(_four())


def second_index(plan: BackgroundPlan) -> Tensor:
    """Of each result of conv 2, the four rows of its blocks' table, int32 `[batch * 81, 4]`.

    The table has four rows (one a corner) for each block that is multiplied.
    """
    index = torch.empty(len(plan.observations), SIDE3, SIDE3, 4, dtype=torch.int32)
    for corner, (down, right) in enumerate(CORNERS):
        blocks = plan.slot2[:, down : down + SIDE3, right : right + SIDE3]
        torch.add(blocks, corner, out=index[..., corner])
    return index.view(-1, 4)


def first_gradients(plan: BackgroundPlan) -> tuple[Tensor, Tensor]:
    """Rows of conv 1 to which the corners of its own blocks contributed, int32 `[num_own1 * 4]`.

    And the entries that stand for none: a block at an edge is part of fewer than four results.
    """
    blocks, parts, inside = _parents_in_rows()
    blocks = blocks.index_select(0, plan.place1).add_((plan.sample1 * BLOCKS2)[:, None])
    rows = plan.slot2.view(-1).index_select(0, blocks.view(-1))
    rows.add_(parts.index_select(0, plan.place1).view(-1))
    return rows, _none_there(inside, plan.place1)


def second_gradients(plan: BackgroundPlan) -> tuple[Tensor, Tensor]:
    """Results of conv 2 to which the corners of its own blocks contributed, int32 `[own2 * 4]`.

    And the entries that stand for none, as in `first_gradients`.
    """
    parents, inside = _parents(SIDE2)
    results = parents.index_select(0, plan.place2).add_((plan.sample2 * RESULTS2)[:, None])
    return results.view(-1), _none_there(inside, plan.place2)


def spread_first(rows: Tensor) -> Tensor:
    """Of 400 rows of conv 1, by place, those of its blocks' corners: `[441 * 4, out]`."""
    blocks, parts, inside = _parents_in_rows()
    return _spread(rows, blocks * 4 + parts, inside)


def spread_second(results: Tensor) -> Tensor:
    """Of 81 results of conv 2 those of its blocks' corners, `[81, out]` -> `[100 * 4, out]`."""
    return _spread(results, *_parents(SIDE2))


def _spread(rows: Tensor, index: Tensor, inside: Tensor) -> Tensor:
    """`rows[index]`, and 0 where the corner is outside."""
    return rows.index_select(0, index.view(-1)).mul_(inside.view(-1, 1))


def _none_there(inside: Tensor, places: Tensor) -> Tensor:
    """Entries of `inside[places]`, flat, that are false, int64."""
    outside = inside.logical_not().index_select(0, places)
    return outside.view(-1).nonzero().squeeze(1)


@cache
def _four() -> Tensor:
    """0, 1, 2, 3, int32."""
    return torch.arange(4, dtype=torch.int32)


@cache
def _hundred() -> Tensor:
    """0 to 99, int32."""
    return torch.arange(BLOCKS2, dtype=torch.int32)


@cache
def _first_blocks() -> Tensor:
    """The first of the nine blocks of conv 1 that each block of conv 2 reads, int32 `[100]`."""
    sides = torch.arange(SIDE2, dtype=torch.int32) * 2
    return (sides[:, None] * SIDE1 + sides).view(-1)


@cache
def _read_blocks() -> Tensor:
    """From there, the four blocks of each of its four results of conv 1, int32 `[16]`."""
    corners = [row * SIDE1 + column for row, column in CORNERS]
    return torch.tensor([a + b for a in corners for b in corners], dtype=torch.int32)


@cache
def _parents(side: int) -> tuple[Tensor, Tensor]:
    """The results of which a block is the top left, top right ... part: int32 `[side^2, 4]`.

    Of `side - 1` squared results; 0 where there is none, and then the second, bool, is false.
    """
    parents = torch.full((side, side, 4), -1, dtype=torch.int32)
    results = torch.arange((side - 1) ** 2, dtype=torch.int32).view(side - 1, side - 1)
    for corner, (down, right) in enumerate(CORNERS):
        parents[down : down + side - 1, right : right + side - 1, corner] = results
    return parents.clamp(min=0).view(-1, 4), (parents >= 0).view(-1, 4)


@cache
def _parents_in_rows() -> tuple[Tensor, Tensor, Tensor]:
    """`_parents` of conv 1's blocks, as conv 2 reads them: its block, part of it; whether any."""
    parents, inside = _parents(SIDE1)
    row, column = parents // (SIDE1 - 1), parents % (SIDE1 - 1)
    return row // 2 * SIDE2 + column // 2, row % 2 * 2 + column % 2, inside
