"""The objective of a phase: Eq. 1, 2 and 3 at the phase's temperatures and actor weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qpd.actions import ActionSpace
from qpd.losses.distillation import (
    critic_huber,
    critic_huber_gradient,
    normalised_sum,
    normalised_sum_slope_tensors,
    normalised_sum_slopes,
)
from qpd.replay.sample import ReplaySample


@dataclass(frozen=True)
class Objective:
    """Imitation of the teacher; `loss` and `actor_weight` as in the recipe.

    What Eq. 1 is for them, and what the temperatures divide, `actions` knows.
    """

    actions: ActionSpace
    loss: str
    actor_weight: float
    teacher_temperature: float
    student_temperature: float

    def divergences(
        self, outputs: tuple[Tensor, Tensor], sample: ReplaySample
    ) -> tuple[Tensor, Tensor]:
        """Compute the actor (Eq. 1) and critic (Eq. 3) loss of each state, `[batch]` both."""
        actor, values = outputs
        divergence = self.actions.divergence(
            sample.labels,
            actor,
            self.teacher_temperature,
            self.student_temperature,
            reverse=self.loss == "reverse_kl",
        )
        return divergence, critic_huber(sample.values, values)

    @torch.no_grad()
    def gradients(
        self, outputs: tuple[Tensor, Tensor], sample: ReplaySample
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Compute `divergences`, each with its derivative by the outputs or values, graph-free."""
        # In closed form, so that autograd's backward pass begins at the network's outputs.
        actor, values = outputs
        divergence = self.actions.divergence_gradient(
            sample.labels,
            actor,
            self.teacher_temperature,
            self.student_temperature,
            reverse=self.loss == "reverse_kl",
        )
        return divergence, critic_huber_gradient(sample.values, values)

    def total(self, actor: Tensor, critic: Tensor) -> Tensor:
        """Combine the batch's mean losses, scalars, by Eq. 2."""
        return normalised_sum(actor, critic, self.actor_weight)

    def slopes(self, actor: float, critic: float) -> tuple[float, ...]:
        """Return the derivatives of `total` by the actor's and the critic's mean loss, as numbers.

        The critic's is left out if it has no weight.
        """
        return normalised_sum_slopes(actor, critic, self.actor_weight)

    def slope_tensors(self, actor: Tensor, critic: Tensor) -> tuple[Tensor, ...]:
        """Return `slopes` of mean losses that are scalar tensors, without reading them."""
        return normalised_sum_slope_tensors(actor, critic, self.actor_weight)

    def total_of(self, actor: float, critic: float) -> float:
        """Return the value of `total` for plain numbers: the sum of the losses with a weight."""
        return actor if self.actor_weight >= 1.0 else actor + critic
