"""Phases 1 and 3 of Algorithm 1: epochs over the rolling memory, validated and checkpointed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from qpd.environments.policy import Policy
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.losses.ppo import PolicyChange
from qpd.machine.cores import usable_cores
from qpd.replay.memory import ReplayMemory
from qpd.replay.play_stream import PlayStream, Rollout
from qpd.replay.sample import ReplaySample
from qpd.runs.epoch_report import EpochReport
from qpd.training.health import REMEMBERED, ROWS_CHECKED, StateCopy, diagnose_epoch
from qpd.training.optimizer import learning_rate
from qpd.training.plan import PhasePlan
from qpd.training.state import PhaseState
from qpd.training.step import TrainStep
from qpd.training.updates import Updates


class TrainingError(UserError, RuntimeError):
    """Training cannot go on; one line says in which phase and epoch, and what may help."""

    code = ErrorCode.TRAINING_DIVERGED


class PhaseObserver(Protocol):
    """Follows a phase: progress display, metrics file, checkpoints."""

    def batch_done(self, done: int, total: int, loss: float, samples_per_second: float) -> None:
        """Hear of every few updates: samples drawn so far in this epoch, of how many."""

    def epoch_done(self, report: EpochReport) -> None:
        """Log the epoch."""

    def rolled_back(self, epoch: int, reason: str, lr: float) -> None:
        """Hear that an epoch was undone, why, and what the learning rate is now."""


@dataclass(frozen=True)
class Trainee:
    """One student in training: its plan, its state, its observer and its label."""

    plan: PhasePlan
    state: PhaseState
    observer: PhaseObserver
    label: str = ""

    @property
    def skipped_updates(self) -> int:
        """Count the updates that were skipped so far, as their gradients were not finite."""
        scaling = self.state.scaling
        return 0 if scaling is None else scaling.loss_scale.skipped

    @property
    def has_settled(self) -> bool:
        """Tell whether its validations have stopped improving for as long as the recipe waits."""
        return self.state.has_settled(self.plan.settings.patience)


def train_together(
    trainees: Sequence[Trainee], stream: PlayStream, save: Callable[[], None]
) -> None:
    """Train students on one stream: every batch is drawn once and goes to each of them.

    Their settings are the same. Runs the epochs that none has seen yet, up to the limit; a student
    that has settled stops earlier. Where students collect, each plays a share of their games. A
    reward term wants a student alone. `save` is called when an epoch has been observed.
    A bad epoch is undone (see `qpd.training.health`). Raises TrainingError when the recipe allows
    no more of that.
    """
    settings = trainees[0].plan.settings
    epoch = max(trainee.state.epoch for trainee in trainees)
    if epoch >= settings.epochs or all(trainee.has_settled for trainee in trainees):
        return
    samples = settings.samples_in_epoch(stream.memory.capacity)
    count = settings.epochs * -(-samples // settings.batch_size)
    updates = Updates(
        [
            TrainStep(t.plan, t.state.module, t.state.optimizer, t.state.scaling, count)
            for t in trainees
        ]
    )
    # Ahead of updates, of which many may be waiting: else emulators would idle behind them.
    device = stream.memory.device
    beside = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
    while epoch < settings.epochs:
        active = {
            number: trainee
            for number, trainee in enumerate(trainees)
            if trainee.state.epoch == epoch and not trainee.has_settled
        }
        if not active:
            return
        _one_epoch(active, updates, stream, beside)
        epoch += 1
        save()


def _one_epoch(
    active: dict[int, Trainee],
    updates: Updates,
    stream: PlayStream,
    beside: torch.cuda.Stream | None,
) -> None:
    """Collect, train, validate and report; the first trainee's randomness shuffles.

    On a GPU play is `beside` the updates, in a stream of its own.
    """
    trainees = list(active.values())
    lead = trainees[0]
    plan, state = lead.plan, lead.state
    started = time.perf_counter()
    rollout, collection = None, None
    if plan.reward is not None:
        rollout = stream.rollout(plan.acting_policy(), plan.reward)
    # Drawn before new play is added: the rows stay valid while the collection writes spare rows.
    batches = _batches(plan, state, stream.memory, rollout)
    draw = stream.memory.start_drawing(shared=updates.reads_shared_frames)
    updates.begin_epoch(list(active), draw)
    if rollout is None:
        players = [trainee.plan.acting_policy() for trainee in trainees]
        # More students than environments take turns, epoch by epoch.
        first = state.epoch * stream.student_envs % len(players)
        if len(players) > stream.student_envs:
            players = [*players[first:], *players[:first]]
        collection = _Collection(stream, players, beside)
    # A bad epoch is noticed at its end only, when the parameters are already spoiled.
    copies = [StateCopy.of(trainee.state) for trainee in trainees]
    skipped = [trainee.skipped_updates for trainee in trainees]
    began = time.perf_counter()
    try:
        sums, count = _train_epoch(active, updates, batches)
    finally:
        trained = time.perf_counter()
        if collection is not None:
            collection.wait()
    collected = time.perf_counter()
    state.add_time("collect", began - started + collected - trained)
    played = None
    if rollout is not None and len(rollout.game_returns):
        played = float(rollout.game_returns.mean())
    rows = torch.cat(batches[-(ROWS_CHECKED // plan.settings.batch_size + 2) :])
    sample = draw(rows).to(updates.device)
    for number, loss_sums, before, ago in zip(active, sums, copies, skipped, strict=True):
        trainee = active[number]
        _check_updates(trainee, trainee.skipped_updates - ago, len(batches))
        _check_epoch(trainee, loss_sums / count, updates.steps[number], sample, before)
        change = updates.steps[number].policy_change(sample)
        _end_epoch(trainee, loss_sums / count, count / (trained - began), played, change)


def _check_updates(trainee: Trainee, skipped: int, tried: int) -> None:
    """Raise TrainingError if an epoch skipped all its updates and the next would as well."""
    plan, scaling = trainee.plan, trainee.state.scaling
    if scaling is None or skipped < tried or scaling.can_fall:
        return
    name = f"{trainee.label}: {plan.name}" if trainee.label else plan.name
    raise TrainingError(
        f"{name}: epoch {trainee.state.epoch + 1}: all {tried} updates were skipped, as gradients "
        f"overflow {plan.settings.precision} at a loss scale of {scaling.loss_scale.scale:g}: "
        f"lower {plan.name}.loss_scale, or set it to dynamic"
    )


def _check_epoch(
    trainee: Trainee, losses: Tensor, step: TrainStep, sample: ReplaySample, before: StateCopy
) -> None:
    """Undo the epoch if it was bad, by the states of a `sample`; remember its loss otherwise."""
    plan, state = trainee.plan, trainee.state

    def loss_before() -> float:
        now = StateCopy.of(state).module
        state.module.load_state_dict(before.module)
        found = step.total(sample)
        state.module.load_state_dict(now)
        return found

    # With rewards the total is a policy gradient's surrogate: its size says nothing.
    recent = state.recent_losses if plan.reward is None else []
    reason = diagnose_epoch(
        losses,
        recent,
        state.module,
        sample.observations,
        plan.actions,
        loss_now=lambda: step.total(sample),
        loss_before=loss_before,
    )
    if reason is None:
        state.recent_losses = [*state.recent_losses, float(losses[0])][-REMEMBERED:]
        return
    epoch, settings = state.epoch + 1, plan.settings
    if state.rollbacks >= settings.rollbacks:
        name = f"{trainee.label}: {plan.name}" if trainee.label else plan.name
        raise TrainingError(
            f"{name}: epoch {epoch}: {reason}, after {state.rollbacks} rollbacks: lower "
            f"{plan.name}.lr (now {settings.lr:g}), or set {plan.name}.max_grad_norm"
        )
    before.restore(state)
    lr = state.lr_scale * learning_rate(settings, state.epoch / settings.epochs)
    trainee.observer.rolled_back(epoch, reason, lr)


def _end_epoch(
    trainee: Trainee,
    losses: Tensor,
    samples_per_second: float,
    rollout_return: float | None,
    change: PolicyChange | None = None,
) -> None:
    """Validate where it is due, and report; `losses` are the epoch's means, `[3]`."""
    plan, state, began = trainee.plan, trainee.state, time.perf_counter()
    settings = plan.settings
    state.epoch += 1
    # Recycled units need time to learn: none in the second half.
    if plan.after_early_epoch is not None and 2 * state.epoch <= settings.epochs:
        plan.after_early_epoch()
    validation = None
    if state.epoch % plan.validate_every == 0 or state.epoch == settings.epochs:
        validation = plan.validate()
        state.keep_if_best(validation, plan.select, plan.validate)
    state.add_time("validate", time.perf_counter() - began)
    if state.scaling is not None:
        state.scaling.end_epoch(state.epoch)
    total, actor, critic = losses.tolist()
    lr = state.lr_scale * learning_rate(settings, state.epoch / settings.epochs)
    trainee.observer.epoch_done(
        EpochReport(
            epoch=state.epoch,
            loss=total,
            actor_loss=actor,
            critic_loss=critic,
            lr=lr,
            samples_per_second=samples_per_second,
            validation=None if validation is None else validation.games,
            divergence=None if validation is None else validation.divergence,
            rollout_return=rollout_return,
            skipped_updates=None if state.scaling is None else trainee.skipped_updates,
            loss_scale=None if state.scaling is None else state.scaling.loss_scale.scale,
            approx_kl=None if change is None else change.approx_kl,
            clip_fraction=None if change is None else change.clip_fraction,
        )
    )


def _batches(
    plan: PhasePlan, state: PhaseState, memory: ReplayMemory, rollout: Rollout | None
) -> list[Tensor]:
    """Return an epoch's batches, as rows of the memory."""
    settings = plan.settings
    size, passes, rows = settings.batch_size, 1, None
    total = min(settings.samples_per_epoch or len(memory), len(memory))
    if plan.reward is not None and rollout is not None:
        rows, passes, total = rollout.rows, plan.reward.passes, len(rollout.rows)
    epochs = [memory.shuffled(size, state.shuffle, total, rows) for _ in range(passes)]
    return list(chain(*epochs))


class _Collection:
    """An epoch's new play, by the students as they were when the epoch began.

    It fills spare rows that the epoch does not draw from, so it may run beside the training: where
    a core is free for it, it does. The numbers are the same either way.
    """

    def __init__(
        self, stream: PlayStream, students: Sequence[Policy], beside: torch.cuda.Stream | None
    ) -> None:
        self._stream, self._students, self._beside = stream, students, beside
        self._thread: ThreadPoolExecutor | None = None
        # On two cores emulation and training only slow each other down.
        if usable_cores() > 2:
            # As many threads for the teacher, whatever training sets meanwhile.
            threads = torch.get_num_threads()
            self._thread = ThreadPoolExecutor(
                1, initializer=torch.set_num_threads, initargs=(threads,)
            )
            if beside is not None:
                beside.wait_stream(torch.cuda.current_stream(stream.memory.device))
            self._done = self._thread.submit(self._refresh)
        else:
            stream.refresh(students)

    def _refresh(self) -> None:
        if self._beside is None:
            self._stream.refresh(self._students)
            return
        with torch.cuda.stream(self._beside):
            self._stream.refresh(self._students)
        self._beside.synchronize()

    def wait(self) -> None:
        """Wait until all new play is in the memory; re-raise an error of the thread."""
        if self._thread is not None:
            with self._thread:
                self._done.result()


def _train_epoch(
    active: dict[int, Trainee], updates: Updates, batches: list[Tensor]
) -> tuple[list[Tensor], int]:
    """One pass over the batches: each student's loss sums (total, actor, critic), and the number of
    samples drawn.
    """
    lead = next(iter(active.values()))
    settings = lead.plan.settings
    sums = [torch.zeros(3, device=updates.device) for _ in active]
    total = sum(len(rows) for rows in batches)
    count, began = 0, time.perf_counter()
    for index, rows in enumerate(batches):
        done = (lead.state.epoch + count / total) / settings.epochs
        for trainee in active.values():
            for group in trainee.state.optimizer.param_groups:
                factor = trainee.state.lr_scale * group["lr_factor"]
                group["lr"] = learning_rate(settings, done) * factor
        for loss_sums, losses in zip(sums, updates(rows), strict=True):
            loss_sums += losses * len(rows)
        count += len(rows)
        if index % 16 == 15:  # reading a loss waits for a GPU
            speed = count / (time.perf_counter() - began)
            lead.observer.batch_done(count, total, float(sums[0][0]) / count, speed)
    lead.state.add_time("gather", updates.seconds_drawing)
    lead.state.add_time("train", time.perf_counter() - began - updates.seconds_drawing)
    return [loss_sums.cpu() for loss_sums in sums], count
