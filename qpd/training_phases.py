"""Phases 1 and 3 of Algorithm 1: epochs over the rolling memory, validated and checkpointed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor, nn

from qpd.distillation_losses import (
    critic_huber,
    kl_student_teacher,
    kl_teacher_student,
    normalised_sum,
)
from qpd.evaluation import EvaluationResult
from qpd.phase_state import PhaseState, learning_rate
from qpd.play_stream import PlayStream, Rollout
from qpd.policy import Policy
from qpd.policy_gradient import clipped_objective
from qpd.precision import compute_precision
from qpd.recipe_phases import RewardSettings, TrainingPhase
from qpd.replay_memory import ReplayMemory, ReplaySample


class TrainingError(RuntimeError):
    """Training cannot go on; one line says in which phase and epoch, and what may help."""


@dataclass(frozen=True)
class PhasePlan:
    """All that distinguishes phase 1 from phase 3.

    `teacher_temperature` and `student_temperature` divide the logits in Eq. 1. `acting_policy` is
    who plays where the student collects; `validate` plays the validation episodes; `after_update`
    keeps parameters in their domain; `after_early_epoch` follows the epochs of the first half. With
    `reward` the student plays before each epoch, which trains on that rollout alone.
    """

    name: str
    settings: TrainingPhase
    teacher_temperature: float
    student_temperature: float
    validate_every: int
    acting_policy: Callable[[], Policy]
    validate: Callable[[], EvaluationResult]
    reward: RewardSettings | None = None
    after_update: Callable[[], None] | None = None
    after_early_epoch: Callable[[], None] | None = None


@dataclass(frozen=True)
class EpochReport:
    """Batch means over one epoch: losses in nats and value units, speed, validation if any.

    `rollout_return`: mean return of the games that ended in the epoch's rollout, if any did.
    """

    epoch: int
    loss: float
    actor_loss: float
    critic_loss: float
    lr: float
    samples_per_second: float
    validation: EvaluationResult | None
    rollout_return: float | None = None


class PhaseObserver(Protocol):
    """Who follows a phase: progress display, metrics file, checkpoints."""

    def batch_done(self, done: int, total: int, loss: float, samples_per_second: float) -> None:
        """Hear of every few updates: samples drawn so far in this epoch, of how many."""

    def epoch_done(self, report: EpochReport) -> None:
        """Log the epoch and save a checkpoint."""


def phase_losses(
    outputs: tuple[Tensor, Tensor], sample: ReplaySample, plan: PhasePlan
) -> tuple[Tensor, Tensor, Tensor]:
    """Total (Eq. 2), actor (Eq. 1) and critic (Eq. 3) loss of a batch, all scalars."""
    logits, values = outputs
    divergence = kl_teacher_student
    if plan.settings.loss == "reverse_kl":
        divergence = kl_student_teacher
    actor = divergence(
        sample.logits, logits, plan.teacher_temperature, plan.student_temperature
    ).mean()
    critic = critic_huber(sample.values, values).mean()
    return normalised_sum(actor, critic, plan.settings.actor_weight), actor, critic


def train_phase(
    plan: PhasePlan, state: PhaseState, stream: PlayStream, observer: PhaseObserver
) -> None:
    """Run the epochs that `state` has not seen, up to the limit or the plateau.

    Raises TrainingError when a loss is not finite.
    """
    settings = plan.settings
    while state.epoch < settings.epochs:
        if settings.patience is not None and state.stale >= settings.patience:
            return
        started = time.perf_counter()
        rollout, collection = None, None
        if plan.reward is not None:
            rollout = stream.rollout(plan.acting_policy(), plan.reward)
        batches, num_batches, total = _batches(plan, state, stream.memory, rollout)
        if rollout is None:
            collection = _Collection(stream, plan.acting_policy())
        began = time.perf_counter()
        try:
            sums, count = _train_epoch(plan, state, batches, num_batches, total, observer)
        finally:
            trained = time.perf_counter()
            if collection is not None:
                collection.wait()
        state.epoch += 1
        if not math.isfinite(float(sums.sum())):
            raise TrainingError(
                f"{plan.name}: the loss is no longer finite in epoch {state.epoch}: "
                f"lower {plan.name}.lr (now {settings.lr:g}), or set {plan.name}.max_grad_norm"
            )
        if plan.after_early_epoch is not None and 2 * state.epoch <= settings.epochs:
            plan.after_early_epoch()
        collected = time.perf_counter()
        validation = None
        if state.epoch % plan.validate_every == 0 or state.epoch == settings.epochs:
            validation = plan.validate()
            state.keep_if_best(validation.mean)
        state.spend("collect", began - started + collected - trained)
        state.spend("validate", time.perf_counter() - collected)
        total, actor, critic = (sums / count).tolist()
        lr = learning_rate(settings, state.epoch / settings.epochs)
        speed = count / (trained - began)
        played = None
        if rollout is not None and len(rollout.game_returns):
            played = float(rollout.game_returns.mean())
        observer.epoch_done(
            EpochReport(state.epoch, total, actor, critic, lr, speed, validation, played)
        )


def _batches(
    plan: PhasePlan, state: PhaseState, memory: ReplayMemory, rollout: Rollout | None
) -> tuple[Iterator[ReplaySample], int, int]:
    """An epoch's batches, their number, and that of the samples in them."""
    settings = plan.settings
    size, passes, rows = settings.batch_size, 1, None
    total = min(settings.samples_per_epoch or len(memory), len(memory))
    if plan.reward is not None and rollout is not None:
        rows, passes, total = rollout.rows, plan.reward.passes, len(rollout.rows)
    epochs = [memory.epoch(size, state.shuffle, total, rows) for _ in range(passes)]
    return chain(*epochs), passes * -(-total // size), passes * total


class _Collection:
    """An epoch's new play, by the student as it was when the epoch began.

    It fills spare rows that the epoch does not draw from, so it may run beside the training: where
    a core is free for it, it does. The numbers are the same either way.
    """

    def __init__(self, stream: PlayStream, student: Policy) -> None:
        self._thread: ThreadPoolExecutor | None = None
        if (os.cpu_count() or 1) > 2:
            self._thread = ThreadPoolExecutor(1)
            self._done = self._thread.submit(stream.refresh, student)
        else:
            stream.refresh(student)

    def wait(self) -> None:
        """Until all of it is in the memory; raises what went wrong there."""
        if self._thread is not None:
            with self._thread:
                self._done.result()


def _train_epoch(
    plan: PhasePlan,
    state: PhaseState,
    batches: Iterator[ReplaySample],
    num_batches: int,
    total: int,
    observer: PhaseObserver,
) -> tuple[Tensor, int]:
    """One pass over the batches: loss sums (total, actor, critic) and samples drawn."""
    settings = plan.settings
    device = next(state.module.parameters()).device
    sums, count, began = torch.zeros(3, device=device), 0, time.perf_counter()
    gathering = 0.0
    for index in range(num_batches):
        asked = time.perf_counter()
        sample = next(batches)
        gathering += time.perf_counter() - asked
        done = (state.epoch + count / total) / settings.epochs
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate(settings, done) * group["lr_factor"]
        losses = train_step(plan, state.module, state.optimizer, sample, device)
        sums += losses * len(sample.values)
        count += len(sample.values)
        if index % 16 == 15:
            speed = count / (time.perf_counter() - began)
            observer.batch_done(count, total, float(sums[0]) / count, speed)
    state.spend("gather", gathering)
    state.spend("train", time.perf_counter() - began - gathering)
    return sums.cpu(), count


def train_step(
    plan: PhasePlan,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    sample: ReplaySample,
    device: torch.device,
) -> Tensor:
    """One update; returns the three losses, `[3]`, outside the graph."""
    sample = sample.to(device)
    dtype = compute_precision(plan.settings.precision, device)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        outputs = module(sample.observations)
    total, actor, critic = phase_losses(outputs, sample, plan)
    if plan.reward is not None:
        objective = clipped_objective(
            outputs[0], sample.actions, sample.log_probs, sample.advantages, plan.reward.clip
        )
        total = plan.reward.imitation * total + objective.mean()
    optimizer.zero_grad(set_to_none=True)
    total.backward()
    if plan.settings.max_grad_norm is not None:
        nn.utils.clip_grad_norm_(module.parameters(), plan.settings.max_grad_norm)
    optimizer.step()
    if plan.after_update is not None:
        plan.after_update()
    return torch.stack([total.detach(), actor.detach(), critic.detach()])
