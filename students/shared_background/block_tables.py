"""Which block is part of which result: the tables by which the first two convolutions are shared.

They depend on the number of observations alone. A block has four corners: what it is to the four
results of which it is the top left, top right, bottom left and bottom right part. Rows of conv 1
are given as entries of an array `[corner, observation, 101]`, whose last column is a filler's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, wraps
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

FRAMES, PIXELS = 4, 16  # stacked frames; pixels of a block in each
SIDE1, SIDE2, SIDE3 = 21, 10, 9  # blocks that conv 1 reads, that conv 2 reads, results of conv 2
BLOCKS1, BLOCKS2, RESULTS2 = SIDE1**2, SIDE2**2, SIDE3**2
CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))  # rows and columns of a 2x2 block's parts, in order
_BATCHES = 4  # sizes of batches whose tables are kept: an epoch's, and its last, smaller one
_LARGEST = 4096  # if they are not larger: of that size they take 67 MB


def _kept(table: Callable[[int], T]) -> Callable[[int], T]:
    """Let `table` remember what it made for the last sizes."""
    remembered = lru_cache(maxsize=_BATCHES)(table)

    @wraps(table)
    def kept(batch: int) -> T:
        return remembered(batch) if batch <= _LARGEST else table(batch)

    return kept


@cache
def corner_numbers(count: int) -> Tensor:
    """Repeat 0, 1, 2, 3 `count` times, int32 `[4 * count]`."""
    return torch.arange(4, dtype=torch.int32).repeat(count)


@_kept
def blocks_read(batch: int) -> tuple[Tensor, Tensor]:
    """List the blocks of conv 1 that the four results of each block of conv 2 read, four each.

    Int32 `[100 * batch, 16]`, by place; and the background's, `[100, 16]`.
    """
    corners = torch.tensor([row * SIDE1 + column for row, column in CORNERS])
    sides = torch.arange(SIDE2) * 2  # conv 2 has a stride of 2
    first = (sides[:, None] * SIDE1 + sides).view(-1, 1)
    read = first + (corners[:, None] + corners).view(-1)
    # By place: the batch's blocks at the first place, then those at the second ...
    each = read[:, None] + (torch.arange(batch) * BLOCKS1)[:, None]
    return each.view(-1, 16).int(), (read + batch * BLOCKS1).int()


@_kept
def rows_read(batch: int) -> Tensor:
    """List the parts of blocks that each result of conv 2 reads, as entries of that array.

    Int32, flat: four for each of its 81 results for each observation.
    """
    sides = torch.arange(SIDE3)
    corners = torch.tensor([row * SIDE2 + column for row, column in CORNERS])
    blocks = (sides[:, None] * SIDE2 + sides).view(-1, 1) + corners
    blocks = blocks + (torch.arange(batch) * (BLOCKS2 + 1))[:, None, None]
    return (blocks + torch.arange(4) * batch * (BLOCKS2 + 1)).view(-1).int()


@_kept
def parents_in_rows(batch: int) -> Tensor:
    """List, for conv 1's blocks, the parts of conv 2's that they are corners of, as such entries.

    Int32 `[batch * 441, 4]`; a filler's where there is none.
    """
    blocks, parts, _ = _parents_in_blocks()
    blocks = blocks + (torch.arange(batch) * (BLOCKS2 + 1))[:, None, None]
    return (blocks + parts * batch * (BLOCKS2 + 1)).view(-1, 4).int()


@_kept
def parents_in_results(batch: int) -> Tensor:
    """List, for conv 2's blocks, the results that they are corners of.

    Int32 `[100 * batch, 4]`, by place. Each observation has 82 results, the last of which stands
    for none.
    """
    parents, _ = _parents(SIDE2)
    each = parents[:, None] + (torch.arange(batch) * (RESULTS2 + 1))[:, None]
    return each.view(-1, 4).int()


@cache
def first_spread() -> tuple[Tensor, Tensor]:
    """Find the row of each corner of conv 1's blocks; and whether there is one.

    Int32 `[441 * 4]` and bool `[441 * 4, 1]`.
    """
    blocks, parts, inside = _parents_in_blocks()
    return torch.where(inside, blocks * 4 + parts, 0).view(-1).int(), inside.view(-1, 1)


@cache
def second_spread() -> tuple[Tensor, Tensor]:
    """Find the result of each corner of conv 2's blocks, and if any, as in `first_spread`."""
    parents, inside = _parents(SIDE2)
    return torch.where(inside, parents, 0).view(-1).int(), inside.view(-1, 1)


def _parents(side: int) -> tuple[Tensor, Tensor]:
    """List the results of which a block is the top left, top right ... part: int64 `[side^2, 4]`.

    Of `side - 1` squared results; their number where there is none, and then the second, bool, is
    false.
    """
    # Blocks at the edges are part of fewer than four results.
    none = (side - 1) ** 2
    parents = torch.full((side, side, 4), none)
    results = torch.arange(none).view(side - 1, side - 1)
    for corner, (down, right) in enumerate(CORNERS):
        parents[down : down + side - 1, right : right + side - 1, corner] = results
    return parents.view(-1, 4), (parents != none).view(-1, 4)


def _parents_in_blocks() -> tuple[Tensor, Tensor, Tensor]:
    """Tell `_parents` of conv 1's blocks as conv 2 reads them: its block, part of it; whether any.

    Int64, int64 and bool `[441, 4]`; block 100, part 0, where there is none.
    """
    parents, inside = _parents(SIDE1)
    row, column = parents // (SIDE1 - 1), parents % (SIDE1 - 1)
    blocks = torch.where(inside, row // 2 * SIDE2 + column // 2, BLOCKS2)
    return blocks, torch.where(inside, row % 2 * 2 + column % 2, 0), inside
