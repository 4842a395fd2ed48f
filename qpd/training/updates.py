"""A batch's updates of all students on a stream; on a GPU as one CUDA graph.

A small student's update is dozens of kernels of a few microseconds each, and launching each from
Python takes as long. Captured once, they are launched together.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from qpd.replay.sample import ReplaySample
from qpd.training.step import TrainStep

Draw = Callable[[Tensor], ReplaySample]
_WARM_UP = 3  # plain updates first: these make optimizer states, and let libraries choose kernels


class Updates:
    """Draws batches, and updates students by them.

    Where all their steps can be captured, the draw, the steps and the optimizers of a batch become
    one CUDA graph, with a branch for each student. The first batches, and those of another size,
    such as an epoch's last, are updated kernel by kernel.
    """

    def __init__(self, steps: Sequence[TrainStep]) -> None:
        self.steps = list(steps)
        self.seconds_drawing = 0.0  # not known where a graph draws
        self.device = steps[0].device
        self._active = list(steps)
        self._draw: Draw = _nothing_to_draw
        self._captures = all(step.can_be_captured for step in steps)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._plain_updates, self._size = 0, 0
        self._states: list[Any] = []
        if self._captures:
            # The same for the whole phase: autograd goes back on the streams that it came by.
            self._streams = [torch.cuda.Stream(self.device) for _ in steps]

    @property
    def reads_shared_frames(self) -> bool:
        """Tell whether draws may be shared (`TrainStep.reads_shared_frames`)."""
        return self.steps[0].reads_shared_frames

    def begin_epoch(self, numbers: Sequence[int], draw: Draw) -> None:
        """Update the students with these numbers from now on, by what `draw` returns for rows."""
        active = [self.steps[number] for number in numbers]
        if active != self._active or draw != self._draw:
            self._forget()
        self._active, self._draw, self.seconds_drawing = active, draw, 0.0

    def __call__(self, rows: Tensor) -> list[Tensor]:
        """Update by the transitions at ring `rows`, int64 `[batch]`.

        Returns each student's total, actor and critic loss, `[3]`; the next call overwrites them.
        """
        if not self._captures:
            asked = time.perf_counter()
            sample = self._draw(rows).to(self.device)
            self.seconds_drawing += time.perf_counter() - asked
            return [step(sample) for step in self._active]
        # A rollback gives an optimizer other tensors than the graph knows.
        states = [step.optimizer.state for step in self._active]
        if any(now is not then for now, then in zip(states, self._states, strict=False)):
            self._forget()
        self._size = self._size or len(rows)
        if len(rows) != self._size:
            return self._in_streams(rows)
        if self._graph is None:
            self._plain_updates += 1
            if self._plain_updates <= _WARM_UP or not self._capture(rows):
                return self._in_streams(rows)
            self._states = states
        assert self._graph is not None
        self._rows.copy_(rows)
        for rate, group in zip(self._rates, self._groups(), strict=True):
            rate.fill_(group["lr"])
        self._graph.replay()
        return self._losses

    def _forget(self) -> None:
        self._graph, self._states, self._plain_updates = None, [], 0

    def _groups(self) -> list[dict[str, Any]]:
        return [group for step in self._active for group in step.optimizer.param_groups]

    def _in_streams(self, rows: Tensor) -> list[Tensor]:
        """Update kernel by kernel, on the streams that are captured."""
        now = torch.cuda.current_stream(self.device)
        self._streams[0].wait_stream(now)
        with torch.cuda.stream(self._streams[0]):
            losses = self._branches(rows)
        now.wait_stream(self._streams[0])
        return losses

    def _branches(self, rows: Tensor) -> list[Tensor]:
        """Draw, and update each student on a stream of its own: a small one leaves a GPU idle."""
        first, *others = self._streams[: len(self._active)]
        sample = self._draw(rows)
        losses = []
        for stream, step in zip(others, self._active[1:], strict=True):
            stream.wait_stream(first)
            with torch.cuda.stream(stream):
                losses.append(step(sample))
        losses.insert(0, self._active[0](sample))
        for stream in others:
            first.wait_stream(stream)
        return losses

    def _capture(self, rows: Tensor) -> bool:
        """Capture an update without carrying it out; tell whether that could be done."""
        groups = self._groups()
        numbers = [float(group["lr"]) for group in groups]
        self._rows = rows.clone()
        # Floats would stay what they are now.
        self._rates = [torch.full((), number, device=self.device) for number in numbers]
        graph = torch.cuda.CUDAGraph()
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"], group["capturable"] = rate, True
        before = torch.cuda.current_stream(self.device)
        try:
            # thread_local: play goes on in another thread.
            with (
                torch.cuda.device(self.device),
                torch.cuda.graph(graph, stream=self._streams[0], capture_error_mode="thread_local"),
            ):
                self._losses = self._branches(self._rows)
        except RuntimeError as error:
            if any(step.must_compile for step in self._active):
                raise
            torch.cuda.set_stream(before)  # a capture that fails at its end leaves its own
            line = str(error).strip().splitlines()[0]
            warnings.warn(f"no CUDA graph of an update: {line}; training is slower", stacklevel=1)
            self._captures = False
            return False
        finally:
            for group, number in zip(groups, numbers, strict=True):
                group["lr"], group["capturable"] = number, False
        self._graph = graph
        return True


def _nothing_to_draw(rows: Tensor) -> ReplaySample:
    raise AssertionError("begin_epoch was not called")
