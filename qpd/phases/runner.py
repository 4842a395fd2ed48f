"""Runs a training phase in run directories: logged, checkpointed, resumed, done once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from qpd.numerics.random_seeds import generator
from qpd.phases.play import Play
from qpd.phases.student_run import StudentRun
from qpd.recipe.training_phases import TrainingPhase
from qpd.replay.memory import ReplayMemory
from qpd.runs.counted_gradients import (
    GRADIENT_COLUMNS,
    PhaseGradients,
    gradient_columns,
    gradient_histograms,
    gradient_scalars,
)
from qpd.runs.epoch_report import (
    EpochReport,
    epoch_scalars,
    histograms_due,
    quantization_scalars,
    weight_histograms,
)
from qpd.runs.manifest import PhaseName
from qpd.runs.metrics_log import MetricsLog
from qpd.runs.progress import Progress
from qpd.runs.results import check_result
from qpd.runs.run_directory import RunDirectory
from qpd.training.epochs import Trainee, train_together
from qpd.training.gradient_scaling import GradientScaling
from qpd.training.optimizer import make_optimizer
from qpd.training.plan import PhasePlan
from qpd.training.state import PhaseState

FARTHER = 2.0  # times the memory's: XXS students of PPO have 1.0 to 1.9, DQN's had up to 7
LITTLE = 0.01  # nats; below it are students of PPO and A2C that play as well as their agents
COLUMNS = (
    "loss",
    "actor_loss",
    "critic_loss",
    "lr",
    "samples_per_second",
    "validation_return",
    "validation_low",
    "validation_high",
    "validation_divergence",
    "rollout_return",
    "skipped_updates",
    "loss_scale",
    *GRADIENT_COLUMNS,
    "approx_kl",
    "clip_fraction",
)


def already_done(run: RunDirectory, phase: PhaseName, progress: Progress) -> bool:
    """Return whether the run directory holds the phase's result, and say so if it does.

    Raises RunDirectoryError where the result is damaged or gone.
    """
    done = run.phase(phase).state == "done"
    if done:
        check_result(run, phase)
        progress.note(f"{phase}: already done in {run.path}, nothing to do")
    return done


def initial_state(module: torch.nn.Module, settings: TrainingPhase, seed: int) -> PhaseState:
    """Return the state in which a phase begins."""
    return PhaseState(
        module,
        make_optimizer(module, settings),
        generator(seed, "shuffle"),
        scaling=GradientScaling.of(settings),
    )


def run_phase(
    members: Sequence[tuple[StudentRun, PhasePlan, PhaseState]], play: Play, progress: Progress
) -> None:
    """Train the members on one play; a checkpoint follows the metrics rows of each epoch."""
    # Opened first: damaged frames must be found before anything is recorded or cut off.
    stream = play.stream
    plan = members[0][1]
    phase: PhaseName = "distill" if plan.name == "distill" else "finetune"
    epoch = max(state.epoch for _, _, state in members)
    progress.phase(phase, plan.settings.epochs, epoch)
    with ExitStack() as logs:
        trainees = []
        for student, own_plan, state in members:
            student.run.set_phase(phase, "running")
            log = MetricsLog(
                student.run.metrics_file, COLUMNS, phase=phase, resume_epoch=state.epoch
            )
            logs.enter_context(log)
            observer = _Observer(student, play.memory, progress, log, own_plan, state)
            trainees.append(Trainee(own_plan, state, observer, student.label))
        states = [(student, state) for student, _, state in members]
        # Metrics first, checkpoint second: a kill in between leaves rows that resuming cuts off.
        train_together(trainees, stream, lambda: play.save(phase, states))


@dataclass
class _Observer:
    """Carries what a student's training reports to its metrics file, its sinks and the display."""

    student: StudentRun
    memory: ReplayMemory
    progress: Progress
    log: MetricsLog
    plan: PhasePlan
    state: PhaseState

    def batch_done(self, done: int, total: int, loss: float, samples_per_second: float) -> None:
        self.progress.batch(done, total, loss, samples_per_second)

    def epoch_done(self, report: EpochReport) -> None:
        row: dict[str, float | None] = {name: getattr(report, name) for name in COLUMNS[:5]}
        if report.validation is not None:
            row["validation_return"] = report.validation.mean
            if len(report.validation.returns) > 1:  # one game has no interval
                row["validation_low"], row["validation_high"] = report.validation.interval()
            row["validation_divergence"] = report.divergence
        for name in (
            "rollout_return", "skipped_updates", "loss_scale", "approx_kl", "clip_fraction",
        ):  # fmt: skip
            row[name] = getattr(report, name)
        counted = self._counted
        if counted is not None:
            row |= gradient_columns(counted.epochs[-1], counted.form)
        self.log.write(report.epoch, {name: row.get(name) for name in COLUMNS})
        if counted is not None:
            counted.write(self.student.run.exponents_file(self.plan.name))
        self._tell_sinks(report)
        self.progress.epoch(report, self.student.label)
        settings, state = self.plan.settings, self.state
        is_over = report.epoch == settings.epochs or state.has_settled(settings.patience)
        if self.plan.name == "distill" and is_over:
            self._tell_own_play(report)

    def _tell_own_play(self, report: EpochReport) -> None:
        """Say so where Eq. 1 is far larger on the student's own play than on the memory's states.

        Other states are met there, too, but above all the memory's have been learned by heart.
        """
        own, seen = report.divergence, report.actor_loss
        if own is None or self.plan.settings.loss != "forward_kl":
            return
        if not own > max(FARTHER * seen, LITTLE):
            return
        self.progress.note(
            f"{self._prefix}Eq. 1 is {own:.3g} nats on the student's own play, on the memory "
            f"{seen:.3g}: if the student plays worse than its agent, raise replay.refresh_fraction"
        )

    @property
    def _prefix(self) -> str:
        return f"{self.student.label}: " if self.student.label else ""

    @property
    def _counted(self) -> PhaseGradients | None:
        """Gradients that were counted so far: of all epochs, as the checkpoint holds them."""
        scaling = self.state.scaling
        if scaling is None or not scaling.epochs:
            return None
        return PhaseGradients(self.plan.settings.precision, scaling.epochs)

    def rolled_back(self, epoch: int, reason: str, lr: float) -> None:
        self.progress.note(
            f"{self._prefix}epoch {epoch} is undone: {reason}; the learning rate is halved, to "
            f"{lr:.3g}"
        )

    def _tell_sinks(self, report: EpochReport) -> None:
        sinks, module = self.student.sinks(), self.state.module
        if not sinks:  # the quantization error costs a forward pass
            return
        scalars = epoch_scalars(report)
        scalars |= quantization_scalars(module, self.memory)
        is_due = histograms_due(report.epoch, self.plan.settings.epochs)
        histograms = weight_histograms(module) if is_due else {}
        counted = self._counted
        if counted is not None:
            scalars |= gradient_scalars(counted.epochs[-1], counted.form)
            histograms |= gradient_histograms(counted.epochs[-1]) if is_due else {}
        for sink in sinks:
            sink.epoch(self.plan.name, report.epoch, scalars, histograms)


def summary(state: PhaseState) -> dict[str, Any]:
    """Return what the manifest records of a finished training phase."""
    best = state.best_score
    found: dict[str, Any] = {
        "epochs": state.epoch,
        "best_epoch": state.best_epoch if state.best else None,
        "best_validation_return": best.mean_return if best else None,
        "best_validation_divergence": best.to_json()["divergence"] if best else None,
        "rollbacks": state.rollbacks,
        "seconds": state.seconds,
    }
    if state.scaling is not None:
        scale = state.scaling.loss_scale
        found |= {"skipped_updates": scale.skipped, "loss_scale": scale.scale}
    return found
