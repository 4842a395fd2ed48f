"""The rolling replay: teacher play, each frame stored once, stacked when it is needed.

Rows form one ring over all environment streams, so the oldest transition always goes first. A row
holds one observation's newest frame in the blocked layout that a student's first layer reads, and
the rows of the three frames before it; row 0 is the empty frame that stands in where an episode has
just begun. The ring has a margin beyond the capacity, so that the oldest transitions kept still
find their older frames.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qpd.actions import ActionSpace
from qpd.environments.transition import TransitionBatch
from qpd.files.tensors import DamagedFileError
from qpd.numerics.feature_range import feature_range
from qpd.replay.joined_rows import packed_rows, unpacked_rows
from qpd.replay.sample import ReplaySample
from qpd.students.shared_background import MultipliedBlocks, SharedBackground, SharedFrames
from qpd.students.student import space_to_depth

CPU = torch.device("cpu")
_RANGE_SAMPLE = 100_000  # observations
BLOCKED_FRAME = (21, 21, 16)  # an 84x84 frame, space-to-depth by 4


def column_bytes(frame_stack: int, actions: ActionSpace) -> int:
    """Return the bytes of memory per transition, apart from its frame, which a file holds."""
    floats = actions.num_labels + 3  # labels; value, log probability, advantage
    action = actions.empty(1).nbytes
    return 4 * floats + action + 4 * frame_stack + 4  # rows of the stack; checksum


def stored_row(
    observation_shape: tuple[int, ...], frame_stack: int, pixels: int = 0
) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and dtype of what is stored of one observation; see `ReplayMemory`."""
    if frame_stack > 1:
        return BLOCKED_FRAME, np.dtype(np.uint8)
    if pixels:
        return (pixels + 4 * (observation_shape[0] - pixels),), np.dtype(np.uint8)
    is_image = len(observation_shape) == 3
    return tuple(observation_shape), np.dtype(np.uint8 if is_image else np.float32)


class ReplayMemory:
    """A ring of `capacity` transitions from `num_envs` streams.

    `frame_stack` is the environment's: Atari's 4 come a frame at a time and are stored so; of 1,
    whatever their shape, observations are stored whole. The first `pixels` numbers of a vector are
    an image's levels, of which a byte each is stored.
    With `frame_file` the observations live in that file, memory-mapped: what a crash leaves there
    is what a resumed run reads. Only what `state_dict` returns must be saved beside it. The next
    `spare` transitions added overwrite nothing that can be drawn now, so that a state saved before
    them stays whole. On another `device` than the CPU a copy of it all lives there, in uint8, and
    `gather` reads that; the file serves for resuming alone.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        observation_shape: tuple[int, ...],
        frame_stack: int,
        actions: ActionSpace,
        frame_file: Path | None = None,
        spare: int = 0,
        device: torch.device = CPU,
        pixels: int = 0,
    ) -> None:
        if capacity < 1 or num_envs < 1:
            raise ValueError(f"replay of {capacity} transitions from {num_envs} environments")
        self.capacity, self.num_envs = capacity, num_envs
        self.actions = actions
        self.frame_stack, self.stacks_frames = frame_stack, frame_stack > 1
        # The oldest transition kept may be stacked upon frames of up to three vector steps before.
        margin = num_envs * self.frame_stack if self.stacks_frames else 0
        self._ring_rows = capacity + margin + spare
        self._pixels = pixels
        row_shape, dtype = stored_row(observation_shape, frame_stack, pixels)
        count = self._ring_rows + 1  # and the empty frame
        shape = (count, *row_shape)
        self.frame_file = frame_file
        self._file = None if frame_file is None else _mapped_rows(frame_file, shape, dtype)
        rows = np.zeros(shape, dtype) if self._file is None else self._file
        self.frame_bytes = int(np.prod(shape)) * dtype.itemsize
        self.device = device
        self._rows = torch.from_numpy(rows)
        self._copy = None if device == CPU else self._rows.to(device, copy=True)
        # All but the frames lives on the device that reads it.
        self._labels = torch.zeros(count, actions.num_labels, device=device)
        self._values = torch.zeros(count, device=device)
        self._actions = torch.from_numpy(actions.empty(count)).to(device)
        self._log_probs = torch.zeros(count, device=device)
        self._advantages = torch.zeros(count, device=device)
        self._stack = torch.zeros(count, self.frame_stack, dtype=torch.int32, device=device)
        self._newest = np.zeros((num_envs, self.frame_stack), np.int32)  # latest rows, oldest first
        self._checksums = np.zeros(count, np.uint32)
        self._checksums[0] = zlib.crc32(bytes(self.frame_bytes // count))
        self.background = SharedBackground(self._rows, self._stack)
        self.num_added = 0

    def __len__(self) -> int:
        """Count the transitions that can be drawn."""
        return min(self.num_added, self.capacity)

    @property
    def num_bytes(self) -> int:
        """Count the bytes held, frames and teacher outputs together."""
        outputs = [self._labels, self._values, self._actions, self._log_probs, self._advantages]
        parts = [self._rows, self._stack, *outputs]
        held = sum(part.numel() * part.element_size() for part in parts)
        return held + self.background.num_bytes

    def add(self, batch: TransitionBatch) -> np.ndarray:
        """Store one vector step's transitions; the oldest make room. Returns their ring rows."""
        count = len(batch)
        if count == 0:
            return np.zeros(0, np.int64)
        rows = (self.num_added + np.arange(count)) % self._ring_rows + 1
        index = torch.from_numpy(rows)
        stored = torch.from_numpy(batch.observations)
        if self._pixels:
            stored = torch.from_numpy(packed_rows(batch.observations, self._pixels))
        if self.stacks_frames:
            # The three older frames of the stack are in the memory already, or are empty.
            stored = space_to_depth(stored[:, -1].contiguous())
        self._rows.numpy()[rows] = stored.numpy()  # PyTorch's index_put_ is 20 times slower here
        # A frame file is synced at checkpoints alone: after a power cut its pages may be any age.
        self._checksums[rows] = [zlib.crc32(row.tobytes()) for row in stored.numpy()]
        index = index.to(self.device)
        if self._copy is not None:
            self._copy[index] = stored.to(self.device)
        columns = [
            (self._labels, batch.labels),
            (self._values, batch.values),
            (self._stack, torch.from_numpy(self._stack_rows(batch, rows))),
        ]
        if batch.outcome is not None:
            columns.append((self._actions, torch.from_numpy(batch.outcome.actions)))
            columns.append((self._log_probs, torch.from_numpy(batch.outcome.log_probs)))
        for column, values in columns:
            column[index] = values.to(self.device)
        self.num_added += count
        return rows

    def set_advantages(self, rows: np.ndarray, advantages: np.ndarray) -> None:
        """Note the advantages, float `[n]`, of the transitions at ring `rows`, int `[n]`."""
        index = torch.from_numpy(rows).to(self.device)
        self._advantages[index] = torch.from_numpy(advantages).float().to(self.device)

    def _stack_rows(self, batch: TransitionBatch, rows: np.ndarray) -> np.ndarray:
        """Return the rows of each new observation's frames, int32 `[n, frame_stack]`.

        Oldest first; 0, the empty frame, where the episode had not begun.
        """
        history = np.roll(self._newest[batch.streams], -1, axis=1)
        history[:, -1] = rows
        older_by = np.arange(self.frame_stack - 1, -1, -1)
        history[older_by[None, :] > batch.ages[:, None]] = 0
        self._newest[batch.streams] = history
        return history

    def transition_rows(self) -> np.ndarray:
        """Return the rows of transitions that can be drawn, oldest first, int64 `[len(self)]`."""
        first = self.num_added - len(self)
        return (first + np.arange(len(self))) % self._ring_rows + 1

    def gather(self, rows: Tensor) -> ReplaySample:
        """Copy the transitions at ring `rows`, int64 `[batch]`, on the memory's device."""
        rows = rows.to(self.device)
        source = self._rows if self._copy is None else self._copy
        if self.stacks_frames:
            stack = self._stack.index_select(0, rows).flatten()
            frames = source.index_select(0, stack).view(len(rows), self.frame_stack, *BLOCKED_FRAME)
        else:
            frames = source.index_select(0, rows)
            if self._pixels:
                frames = unpacked_rows(frames, self._pixels)
        return self._sample(frames, rows)

    def start_drawing(self, shared: bool) -> Callable[[Tensor], ReplaySample]:
        """Return the function that draws an epoch's batches, by ring rows int64 `[batch]`.

        That is `gather`, unless draws may be `shared`: these leave the frames where they lie, and
        know what they have in common. Nobody may add transitions before this returns; what is
        added later cannot be drawn before it is called again.
        """
        drawable = torch.from_numpy(self.transition_rows())
        if not (shared and self.stacks_frames and self.background.renew(drawable, self.num_added)):
            return self.gather
        return lambda rows: self._sample(self.background.observations(rows), rows)

    def multiplied_blocks(self, batch_size: int) -> MultipliedBlocks | None:
        """Measure what a shuffled batch still multiplies; None where no draws are shared."""
        # Its own randomness: measuring must not change what training draws next.
        rows = self.shuffled(batch_size, np.random.default_rng(0))[0]
        return self.background.multiplied(rows)

    def _sample(self, inputs: Tensor | SharedFrames, rows: Tensor) -> ReplaySample:
        return ReplaySample(
            inputs,
            self._labels.index_select(0, rows),
            self._values.index_select(0, rows),
            self._actions.index_select(0, rows),
            self._log_probs.index_select(0, rows),
            self._advantages.index_select(0, rows),
        )

    def shuffled(
        self,
        batch_size: int,
        rng: np.random.Generator,
        num_samples: int | None = None,
        rows: np.ndarray | None = None,
    ) -> tuple[Tensor, ...]:
        """Shuffle the rows of all transitions, or `rows`, int64 `[n]`, into batches of int64.

        On the memory's device; `num_samples` stops earlier. Whatever is added while they are drawn,
        these stay as they are.
        """
        order = torch.from_numpy(rng.permutation(self.transition_rows() if rows is None else rows))
        return order.to(self.device)[:num_samples].split(batch_size)

    def observation_range(self) -> tuple[Tensor, Tensor]:
        """Find the range of each vector feature, float32 `[features]`, see `feature_range`.

        The pixels before them are left out.
        """
        rows = self.transition_rows()
        if len(rows) > _RANGE_SAMPLE:
            # Not every n-th: rows of several environments take turns, so that one would be seen.
            rows = np.sort(np.random.default_rng(0).choice(rows, _RANGE_SAMPLE, replace=False))
        held = np.ascontiguousarray(self._rows.numpy()[rows, self._pixels :]).view(np.float32)
        low, high = feature_range(held)
        return torch.from_numpy(low).float(), torch.from_numpy(high).float()

    def value_moments(self) -> tuple[float, float]:
        """Compute mean and standard deviation of the teacher's values in memory."""
        rows = torch.from_numpy(self.transition_rows()).to(self.device)
        values = self._values.index_select(0, rows)
        return float(values.mean()), float(values.std(correction=0))

    def labels(self) -> Tensor:
        """Return the teacher's labels in memory, float32 `[len(self), num_labels]`."""
        rows = torch.from_numpy(self.transition_rows()).to(self.device)
        return self._labels.index_select(0, rows)

    def state_dict(self) -> dict[str, Tensor]:
        """Return all but the observations, which the frame file holds."""
        # Not what the reward term needs: a rollout is drawn from in the epoch that played it.
        return {
            "labels": self._labels.cpu(),
            "values": self._values.cpu(),
            "stack": self._stack.cpu(),
            "newest": torch.from_numpy(self._newest),
            "checksums": torch.from_numpy(self._checksums.view(np.int32)),  # no uint32 there
            "num_added": torch.tensor(self.num_added),
            **self.background.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` saved; the observations must be those of the frame file."""
        for name in ("labels", "values", "stack"):
            getattr(self, f"_{name}").copy_(state[name])
        if self._copy is not None:
            self._copy.copy_(self._rows)
        self._newest[...] = state["newest"].numpy()
        self._checksums[...] = state["checksums"].numpy().view(np.uint32)
        self.background.load_state_dict(state)
        self.num_added = int(state["num_added"])

    def check_frames(self, drawn: bool = True) -> None:
        """Compare the observations with the CRC-32 that each had when it was added.

        All that can be drawn, or, unless they are `drawn`, those that a next one is stacked upon.
        Raises DamagedFileError.
        """
        rows = [self._newest.ravel()]  # of every stream, for the next observation's stack
        if drawn:
            rows.append(self._stack.cpu().numpy()[self.transition_rows()].ravel())
        frames = self._rows.numpy()
        for row in np.unique(np.concatenate(rows)):
            if zlib.crc32(frames[row].data) != self._checksums[row]:
                raise DamagedFileError(f"row {row} has another checksum than when it was written")

    def sync(self) -> None:
        """Bring the frame file to the disk: a checkpoint may then rely on it after a power cut."""
        if self._file is not None:
            self._file.flush()


def _mapped_rows(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.memmap:
    """Map the file's rows, `shape`; all their disk space is reserved, so a full disk shows here.

    A file of another size is made anew. Raises OSError.
    """
    size = int(np.prod(shape)) * dtype.itemsize
    if not path.is_file() or path.stat().st_size != size:
        path.unlink(missing_ok=True)
        try:
            with path.open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
        except OSError as error:
            path.unlink(missing_ok=True)
            # Reserving space fails without a name, and without saying what to change.
            reason = f"{error.strerror or error}: the frames of replay.capacity take {size:,} bytes"
            raise OSError(error.errno, reason, str(path)) from error
    return np.memmap(path, dtype, mode="r+", shape=shape)
