"""What the first process tells the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from qpd.training.parallel.part import Training


@dataclass(frozen=True)
class Job:
    """What a worker is told at first. It is the one of `num_workers` called `worker`."""

    modules: Sequence[nn.Module]
    trainings: Sequence[Training]
    frame_file: Path
    num_rows: int
    worker: int
    num_workers: int
    threads: int


@dataclass(frozen=True)
class Epoch:
    """A worker's part of an epoch's batches, one after the other.

    The modules `active` train. `stack` int32 `[n, 4]` are the rows of the frame file, `differs`
    uint8 `[n, 56]` the packed blocks in which they are not the `background`, uint8 `[441, 16]`;
    `logits` `[n, num_actions]` and `values` `[n]` float32 the teacher's; of a batch of `wholes`
    observations the worker has as many as `parts` says.
    """

    active: Sequence[int]
    stack: np.ndarray
    differs: np.ndarray
    background: np.ndarray
    logits: np.ndarray
    values: np.ndarray
    parts: Sequence[int]
    wholes: Sequence[int]
