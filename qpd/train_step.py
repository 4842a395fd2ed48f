"""One update: losses, gradients, optimizer; compiled into few kernels where that pays."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from qpd.distillation_losses import (
    critic_huber,
    kl_student_teacher,
    kl_teacher_student,
    normalised_sum,
)
from qpd.phase_plan import PhasePlan
from qpd.policy_gradient import clipped_objective
from qpd.precision import compute_precision
from qpd.replay_memory import ReplaySample

Losses = Callable[[ReplaySample], tuple[Tensor, Tensor, Tensor]]


def phase_losses(
    outputs: tuple[Tensor, Tensor], sample: ReplaySample, plan: PhasePlan
) -> tuple[Tensor, Tensor, Tensor]:
    """Total (Eq. 2, and the reward term), actor (Eq. 1), critic (Eq. 3) loss, all scalars."""
    logits, values = outputs
    divergence = kl_teacher_student
    if plan.settings.loss == "reverse_kl":
        divergence = kl_student_teacher
    actor = divergence(
        sample.logits, logits, plan.teacher_temperature, plan.student_temperature
    ).mean()
    critic = critic_huber(sample.values, values).mean()
    total = normalised_sum(actor, critic, plan.settings.actor_weight)
    if plan.reward is not None:
        objective = clipped_objective(
            logits, sample.actions, sample.log_probs, sample.advantages, plan.reward.clip
        )
        total = plan.reward.imitation * total + objective.mean()
    return total, actor, critic


class TrainStep:
    """Updates `module` by `plan`; a call takes a sample on the module's device.

    With `compile` on (auto: on a GPU) forward and backward pass are compiled for the first batch's
    size, on a GPU as CUDA graphs; batches of another size, such as an epoch's last, take the plain
    way. On a CPU compiling does not pay: a compiled step multiplies what observations share again.
    """

    def __init__(
        self, plan: PhasePlan, module: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self._plan, self._module, self._optimizer = plan, module, optimizer
        self._device = next(module.parameters()).device
        self._dtype = compute_precision(plan.settings.precision, self._device)
        wanted = plan.settings.compile
        self._compiled: Losses | None = None
        if wanted == "on" or (wanted == "auto" and self._device.type == "cuda"):
            mode = "reduce-overhead" if self._device.type == "cuda" else None
            self._compiled = torch.compile(self._losses, fullgraph=True, dynamic=False, mode=mode)
        self._compiled_size = 0

    def _losses(self, sample: ReplaySample) -> tuple[Tensor, Tensor, Tensor]:
        mixed = self._dtype != torch.float32
        with torch.autocast(self._device.type, self._dtype, enabled=mixed):
            outputs = self._module(sample.observations)
        return phase_losses(outputs, sample, self._plan)

    def __call__(self, sample: ReplaySample) -> Tensor:
        """Take the step; returns total, actor and critic loss, `[3]`, outside the graph."""
        losses: Losses = self._losses
        if self._compiled is not None:
            self._compiled_size = self._compiled_size or len(sample.values)
            if len(sample.values) == self._compiled_size:
                torch.compiler.cudagraph_mark_step_begin()
                losses = self._compiled
        total, actor, critic = losses(sample)
        self._optimizer.zero_grad(set_to_none=True)
        total.backward()
        if self._plan.settings.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self._module.parameters(), self._plan.settings.max_grad_norm)
        self._optimizer.step()
        if self._plan.after_update is not None:
            self._plan.after_update()
        return torch.stack([total.detach(), actor.detach(), critic.detach()])
