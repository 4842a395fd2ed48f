"""The updates of students that train on one memory."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from qpd.replay.memory import ReplayMemory
from qpd.replay.sample import ReplaySample
from qpd.training.plan import PhasePlan
from qpd.training.state import PhaseState
from qpd.training.step import TrainStep


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
        self.prepare()
        self._steps = [TrainStep(plan, state.module, state.optimizer) for plan, state in students]

    def prepare(self) -> None:
        """See what the frames have in common: before an epoch, while nothing is being added."""
        if self._draws_shared:
            self._memory.renew_background()

    def draw(self, rows: Tensor) -> ReplaySample:
        """Draw the batch at these ring rows: what the next steps update by."""
        draw = self._memory.draw if self._draws_shared else self._memory.gather
        return draw(rows).to(self._device)

    def step(self, index: int, sample: ReplaySample) -> Tensor:
        """Update a student by what was drawn; returns the losses, `[3]`."""
        return self._steps[index](sample)
