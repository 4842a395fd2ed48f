"""Runs training phases in run directories: filled, logged, checkpointed and restored."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from qpd.numerics.random_seeds import generator
from qpd.phases.session import Session
from qpd.recipe.schema import TrainingPhase
from qpd.replay.memory import ReplayMemory
from qpd.runs.checkpoint import (
    UNFIT,
    CheckpointError,
    checkpoint_file,
    load_needed_checkpoint,
    save_checkpoint,
)
from qpd.runs.epoch_metrics import (
    epoch_scalars,
    histograms_due,
    quantization_scalars,
    weight_histograms,
)
from qpd.runs.manifest import PhaseName
from qpd.runs.metrics_log import MetricsLog
from qpd.runs.results import check_result
from qpd.training.epochs import EpochReport, Trainee, train_together
from qpd.training.plan import PhasePlan
from qpd.training.state import PhaseState, make_optimizer

COLUMNS = (
    "loss",
    "actor_loss",
    "critic_loss",
    "lr",
    "samples_per_second",
    "validation_return",
    "validation_low",
    "validation_high",
    "rollout_return",
)


def already_done(session: Session, phase: PhaseName) -> bool:
    """Whether the run directory holds the phase's result; says so.

    Raises RunDirectoryError where the result is damaged or gone.
    """
    done = session.run.phase(phase).state == "done"
    if done:
        check_result(session.run, phase)
        session.progress.note(f"{phase}: already done in {session.run.path}, nothing to do")
    return done


def phase_state(module: torch.nn.Module, settings: TrainingPhase, seed: int) -> PhaseState:
    """A phase's beginning."""
    return PhaseState(module, make_optimizer(module, settings), generator(seed, "shuffle"))


def asked_size(memory: ReplayMemory, temperature: float) -> float:
    """How large the logits are that Eq. 1 asks for, of the order of 1 or larger.

    That is how many times as fast the actor head has to learn. With a temperature of 1 or more they
    are of that order; below, they are what the memory holds over the temperature, and no larger
    than if it held the order of 1. (Q-values of Breakout are 0.13 from their state's mean, over
    0.01 that is 13; at 100 times the learning rate the head would only be shaken.)
    """
    if temperature >= 1.0:
        return 1.0
    return min(max(memory.logit_deviation() / temperature, 1.0), 1.0 / temperature)


def fill(session: Session) -> float:
    """Fill the memory if it is not full; returns the seconds that took."""
    began = time.perf_counter()
    memory = session.stream().memory
    before = memory.num_added
    session.stream().fill(session.progress.filling)
    if memory.num_added > before:
        rate = (memory.num_added - before) / (time.perf_counter() - began)
        session.progress.note(f"memory filled: {len(memory):,} transitions at {rate:,.0f}/s")
    return time.perf_counter() - began


def save(phase: PhaseName, members: Sequence[tuple[Session, PhaseState | None]]) -> None:
    """One checkpoint of the stream, of all students in training on it, and of their metrics.

    It is written when the frames that it needs are on the disk.
    """
    session = members[0][0]
    tensors, stream = session.stream().state_dict()
    states: dict[str, Any] = {}
    for member, state in members:
        if state is not None:
            own, states[member.label] = state.state_dict()
            tensors |= {f"{member.label}/{name}": tensor for name, tensor in own.items()}
    metrics = {member.label: member.run.metrics_bytes().decode() for member, _ in members}
    plain = {"phase": phase, "states": states, "stream": stream, "metrics": metrics}
    session.stream().memory.sync()
    save_checkpoint(session.store, tensors, plain)


def restore(phase: PhaseName, members: Sequence[tuple[Session, PhaseState]]) -> bool:
    """Load the checkpoint into the states if it belongs to this phase."""
    saved = load_needed_checkpoint(members[0][0].store, members[0][0].run)
    if saved is None or saved[1]["phase"] != phase:
        return False
    tensors, plain = saved
    for session, state in members:
        prefix = f"{session.label}/"
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        try:
            state.load_state_dict(own, plain["states"][session.label])
        except UNFIT as error:
            file, reason = checkpoint_file(session.store), f"does not fit ({error!r:.200})"
            raise CheckpointError.of(file, reason, session.run) from error
    return True


def run_phase(members: Sequence[tuple[Session, PhasePlan, PhaseState]]) -> None:
    """Train the members on their one stream; a checkpoint follows the metrics rows of an epoch."""
    lead, plan, _ = members[0]
    phase: PhaseName = "distill" if plan.name == "distill" else "finetune"
    epoch = max(state.epoch for _, _, state in members)
    lead.progress.phase(phase, plan.settings.epochs, epoch)
    with ExitStack() as logs:
        trainees = []
        for session, own_plan, state in members:
            session.run.set_phase(phase, "running")
            log = logs.enter_context(_metrics_log(session, phase, state.epoch))
            trainees.append(
                Trainee(own_plan, state, _Observer(session, log, own_plan, state), session.label)
            )
        pairs = [(session, state) for session, _, state in members]
        train_together(trainees, lead.stream(), lambda: save(phase, pairs))


def _metrics_log(session: Session, phase: PhaseName, epoch: int) -> MetricsLog:
    return MetricsLog(session.run.metrics_file, COLUMNS, phase=phase, resume_epoch=epoch)


@dataclass
class _Observer:
    session: Session
    log: MetricsLog
    plan: PhasePlan
    state: PhaseState

    def batch_done(self, done: int, total: int, loss: float, samples_per_second: float) -> None:
        self.session.progress.batch(done, total, loss, samples_per_second)

    def epoch_done(self, report: EpochReport) -> None:
        row: dict[str, float | None] = {name: getattr(report, name) for name in COLUMNS[:5]}
        if report.validation is not None:
            row["validation_return"] = report.validation.mean
            row["validation_low"], row["validation_high"] = report.validation.interval()
        row["rollout_return"] = report.rollout_return
        self.log.write(report.epoch, {name: row.get(name) for name in COLUMNS})
        self._tell_sinks(report)
        self.session.progress.epoch(report, self.session.label)

    def rolled_back(self, epoch: int, reason: str, lr: float) -> None:
        prefix = f"{self.session.label}: " if self.session.label else ""
        self.session.progress.note(
            f"{prefix}epoch {epoch} is undone: {reason}; the learning rate is halved, to {lr:.3g}"
        )

    def _tell_sinks(self, report: EpochReport) -> None:
        sinks, module = self.session.sinks(), self.state.module
        if not sinks:
            return
        scalars = epoch_scalars(report)
        scalars |= quantization_scalars(module, self.session.stream().memory)
        is_due = histograms_due(report.epoch, self.plan.settings.epochs)
        histograms = weight_histograms(module) if is_due else {}
        for sink in sinks:
            sink.epoch(self.plan.name, report.epoch, scalars, histograms)


def summary(state: PhaseState) -> dict[str, Any]:
    """What the manifest says of a finished phase."""
    return {
        "epochs": state.epoch,
        "best_epoch": state.best_epoch if state.best else None,
        "best_validation_return": state.best_score if state.best else None,
        "rollbacks": state.rollbacks,
        "seconds": state.seconds,
    }


def finish(session: Session) -> None:
    """Drop the checkpoint and the frames of a finished run, unless the recipe keeps them."""
    if not session.recipe.save.keep_replay:
        shutil.rmtree(session.store, ignore_errors=True)
