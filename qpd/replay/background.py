"""What the frames of a replay memory have in common, and where each of them differs from that.

Known when a batch is drawn, it saves reading the batch's frames (see
`qpd.students.shared_background.shared_frames`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from qpd.students.shared_background.block_tables import BLOCKS1, PIXELS
from qpd.students.shared_background.shared_frames import (
    SharedFrames,
    differing_blocks,
    most_frequent,
)

PACKED = 56  # bytes of a frame's differences, a bit a block; whole 64-bit words
VOTERS = 3**5  # frames that decide what the background is
_ROWS = 4096  # looked at in one go


class ReplayBackground:
    """The background of `frames`, uint8 `[rows, 21, 21, 16]`, once there has been a vote.

    `num_added` always counts the transitions that the memory has ever been given.
    """

    def __init__(self, frames: Tensor) -> None:
        self._frames = frames
        self.pixels: Tensor | None = None  # uint8 [441, 16]
        self._differs = torch.zeros(len(frames), PACKED, dtype=torch.uint8)
        self._voted_at = 0

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return self._differs.numel()

    def renew(self, rows: np.ndarray, num_added: int) -> None:
        """Vote by the transitions at ring `rows`, unless some of these had a part in the last vote.

        Nobody may add transitions meanwhile.
        """
        if self.pixels is not None and num_added - self._voted_at < len(rows):
            return
        voters = rows[np.linspace(0, len(rows) - 1, VOTERS).astype(np.int64)]
        self.pixels = most_frequent(self._frames.index_select(0, torch.from_numpy(voters)))
        self._voted_at = num_added
        self._compare(self.pixels)

    def _compare(self, background: Tensor) -> None:
        for start in range(0, len(self._frames), _ROWS):
            here = slice(start, start + _ROWS)
            self._differs[here] = packed(differing_blocks(self._frames[here], background))

    def note(self, rows: np.ndarray, frames: Tensor) -> None:
        """Look at `frames`, uint8 `[n, 21, 21, 16]`, which are in these rows now."""
        if self.pixels is not None:
            differs = packed(differing_blocks(frames, self.pixels))
            self._differs.numpy()[rows] = differs.numpy()

    def differing(self, stack: Tensor) -> Tensor:
        """The blocks that differ in some frame of a stack: int32 `[n, 4]` -> uint8 `[n, 56]`."""
        words = self._differs.view(torch.int64)
        oldest, *others = (words.index_select(0, column) for column in stack.unbind(1))
        for differs in others:
            oldest |= differs
        return oldest.view(torch.uint8)

    def observations(self, stack: Tensor) -> SharedFrames:
        """Those of frames in rows `stack`, int32 `[n, 4]`; there must have been a vote."""
        assert self.pixels is not None
        return SharedFrames(self._frames, stack, unpacked(self.differing(stack)), self.pixels)

    def state_dict(self) -> dict[str, Tensor]:
        """The vote, if there was one; what differs from it the frames tell."""
        if self.pixels is None:
            return {}
        return {"background": self.pixels, "voted_at": torch.tensor(self._voted_at)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` saved among others; the frames must be those of then."""
        self.pixels = None
        if "background" in state:
            self.pixels = torch.empty(BLOCKS1, PIXELS, dtype=torch.uint8)
            self.pixels.copy_(state["background"])
            self._voted_at = int(state["voted_at"])
            self._compare(self.pixels)


def packed(differs: Tensor) -> Tensor:
    """A bit for each block: bool `[n, 441]` -> uint8 `[n, 56]`."""
    bits = np.packbits(differs.numpy(), axis=1)
    return torch.from_numpy(bits)  # 441 bits are 56 bytes, the last 7 bits 0


def unpacked(bits: Tensor) -> Tensor:
    """Blocks again: uint8 `[n, 56]` -> bool `[n, 441]`."""
    return torch.from_numpy(np.unpackbits(bits.numpy(), axis=1, count=BLOCKS1)).view(torch.bool)
