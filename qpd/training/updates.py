"""The updates of students that train on one memory, in this process or in several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from torch import Tensor

from qpd.replay.memory import ReplayMemory
from qpd.replay.sample import ReplaySample
from qpd.training.parallel.processes import TrainingProcesses, num_processes
from qpd.training.plan import PhasePlan
from qpd.training.state import PhaseState
from qpd.training.step import TrainStep, training_of


class Updates:
    """Steps of all students of a phase, each called by its number; their settings are the same."""

    def __init__(
        self, students: Sequence[tuple[PhasePlan, PhaseState]], memory: ReplayMemory
    ) -> None:
        self._memory = memory
        self._device = next(students[0][1].module.parameters()).device
        plan = students[0][0]
        self._draws_shared = (
            self._device.type == "cpu" and plan.settings.compile != "on" and plan.reward is None
        )
        self._processes: TrainingProcesses | None = None
        self.prepare()
        modules = [state.module for _, state in students]
        count = num_processes(students[0][0], modules, memory)
        if count > 1:
            self._processes = TrainingProcesses(
                modules,
                [training_of(plan, self._device) for plan, _ in students],
                memory,
                count,
            )
        self._steps = [
            TrainStep(plan, state.module, state.optimizer, self._processes, index)
            for index, (plan, state) in enumerate(students)
        ]

    def prepare(self) -> None:
        """Before an epoch, while nobody adds transitions: see what the frames have in common."""
        if self._draws_shared:
            self._memory.renew_background()

    @contextmanager
    def epoch(self, active: Sequence[int], batches: Sequence[Tensor]) -> Iterator[None]:
        """An epoch in which the `active` students see these batches of ring rows, in this order."""
        processes = self._processes
        with nullcontext() if processes is None else processes.epoch(active, batches):
            yield

    def draw(self, rows: Tensor) -> ReplaySample:
        """A batch, or this process's part of it: what the next steps update by."""
        if self._processes is not None:
            rows = self._processes.begin(rows)
        draw = self._memory.draw if self._draws_shared else self._memory.gather
        return draw(rows).to(self._device)

    def step(self, index: int, sample: ReplaySample, whole: int) -> Tensor:
        """Update a student by what was drawn of a batch of `whole`; returns the losses, `[3]`."""
        return self._steps[index](sample, whole)

    def close(self) -> None:
        """End other processes."""
        if self._processes is not None:
            self._processes.close()
