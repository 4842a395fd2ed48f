"""The plan of a training phase: what the loop that trains phases 1 and 3 needs to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qpd.actions import ActionSpace
from qpd.environments.policy import Policy
from qpd.losses.objective import Objective
from qpd.recipe.training_phases import RewardSettings, TrainingPhase
from qpd.training.selection import Selection, Validated


@dataclass(frozen=True)
class PhasePlan:
    """All that distinguishes phase 1 from phase 3, for the loop that trains both.

    `actions` knows what Eq. 1 is; `actor_weight` is lambda of Eq. 2; `teacher_temperature` and
    `student_temperature` are those of Eq. 1. `acting_policy` plays where the student collects;
    `validate` plays the validation episodes, by which `select` chooses an epoch; `after_update`
    keeps parameters in their domain; `after_early_epoch` follows the epochs of the first half.
    With `reward` the student plays before each epoch, which trains on that rollout alone.
    """

    name: str
    settings: TrainingPhase
    actions: ActionSpace
    actor_weight: float
    teacher_temperature: float
    student_temperature: float
    validate_every: int
    acting_policy: Callable[[], Policy]
    validate: Callable[[], Validated]
    select: Selection
    reward: RewardSettings | None = None
    after_update: Callable[[], None] | None = None
    after_early_epoch: Callable[[], None] | None = None

    @property
    def objective(self) -> Objective:
        """Return what the phase minimises, without the reward term."""
        return Objective(
            self.actions,
            self.settings.loss,
            self.actor_weight,
            self.teacher_temperature,
            self.student_temperature,
        )
