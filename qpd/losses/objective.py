"""The objective of a phase: Eq. 1, 2 and 3 at the phase's temperatures and actor weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qpd.losses.distillation import (
    critic_huber,
    critic_huber_gradient,
    kl_student_teacher,
    kl_student_teacher_gradient,
    kl_teacher_student,
    kl_teacher_student_gradient,
    normalised_sum,
    normalised_sum_slopes,
)
from qpd.replay.sample import ReplaySample


@dataclass(frozen=True)
class Objective:
    """Imitation of the teacher; `loss` and `actor_weight` as in the recipe.

    The temperatures divide the logits in Eq. 1.
    """

    loss: str
    actor_weight: float
    teacher_temperature: float
    student_temperature: float

    def divergences(
        self, outputs: tuple[Tensor, Tensor], sample: ReplaySample
    ) -> tuple[Tensor, Tensor]:
        """Compute the actor (Eq. 1) and critic (Eq. 3) loss of each state, `[batch]` both."""
        logits, values = outputs
        kl = kl_student_teacher if self.loss == "reverse_kl" else kl_teacher_student
        actor = kl(sample.logits, logits, self.teacher_temperature, self.student_temperature)
        return actor, critic_huber(sample.values, values)

    @torch.no_grad()
    def gradients(
        self, outputs: tuple[Tensor, Tensor], sample: ReplaySample
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Compute `divergences`, each with its derivative by the logits or values, graph-free."""
        # In closed form, so that autograd's backward pass begins at the network's outputs.
        logits, values = outputs
        reverse = self.loss == "reverse_kl"
        kl = kl_student_teacher_gradient if reverse else kl_teacher_student_gradient
        actor = kl(sample.logits, logits, self.teacher_temperature, self.student_temperature)
        return actor, critic_huber_gradient(sample.values, values)

    def total(self, actor: Tensor, critic: Tensor) -> Tensor:
        """Combine the batch's mean losses, scalars, by Eq. 2."""
        return normalised_sum(actor, critic, self.actor_weight)

    def slopes(self, actor: float, critic: float) -> tuple[float, ...]:
        """Return the derivatives of `total` by the actor's and the critic's mean loss, as numbers.

        The critic's is left out if it has no weight.
        """
        return normalised_sum_slopes(actor, critic, self.actor_weight)

    def total_of(self, actor: float, critic: float) -> float:
        """Return the value of `total` for plain numbers: the sum of the losses with a weight."""
        return actor if self.actor_weight >= 1.0 else actor + critic
