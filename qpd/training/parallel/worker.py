"""A process that computes gradients of its part of every batch, until its line is closed.

python -m qpd.training.parallel.worker SOCKET MEMORY (file descriptors; started by `processes`)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor

from qpd.machine.allocator import keep_freed_memory
from qpd.replay.background import unpacked
from qpd.replay.memory import BLOCKED_FRAME
from qpd.replay.sample import ReplaySample
from qpd.students.shared_background.shared_frames import SharedFrames
from qpd.training.parallel.job import Epoch, Job
from qpd.training.parallel.line import HungUpError, Line
from qpd.training.parallel.part import backward
from qpd.training.parallel.shared_tensors import SharedTensors


def main(arguments: Sequence[str]) -> None:
    """Work until the first process hangs up."""
    socket, memory = (int(argument) for argument in arguments)
    line = Line(Connection(socket))
    try:
        job: Job = line.receive()
        keep_freed_memory()
        torch.set_num_threads(job.threads)
        shared = SharedTensors(job.modules, job.num_workers, memory)
        shared.use()
        frames = _frames(job)
        while True:
            _epoch(job, line.receive(), line, shared, frames)
    except HungUpError:
        return


def _frames(job: Job) -> Tensor:
    shape = (job.num_rows, *BLOCKED_FRAME)
    return torch.from_numpy(np.memmap(job.frame_file, np.uint8, mode="r+", shape=shape))


def _epoch(job: Job, epoch: Epoch, line: Line, shared: SharedTensors, frames: Tensor) -> None:
    def exchange(actor: float, critic: float) -> tuple[float, float]:
        line.send_losses(actor, critic)
        return line.receive_losses()

    for sample, whole in _samples(epoch, frames):
        for index in epoch.active:
            module = job.modules[index]
            line.wait()  # until the parameters are those of this step
            backward(module, sample, whole, job.trainings[index], exchange)
            shared.write_gradients(index, job.worker)
            line.signal()
            module.zero_grad(set_to_none=True)


def _samples(epoch: Epoch, frames: Tensor) -> Iterator[tuple[ReplaySample, int]]:
    stack, logits, values = map(torch.from_numpy, (epoch.stack, epoch.logits, epoch.values))
    differs, background = map(torch.from_numpy, (epoch.differs, epoch.background))
    none, start = torch.zeros(0), 0
    for part, whole in zip(epoch.parts, epoch.wholes, strict=True):
        if part == 0:
            continue
        here = slice(start, start + part)
        start += part
        drawn = SharedFrames(frames, stack[here], unpacked(differs[here]), background)
        drawn.prepare()  # while the first process optimizes
        yield ReplaySample(drawn, logits[here], values[here], none, none, none), whole


if __name__ == "__main__":
    main(sys.argv[1:])
