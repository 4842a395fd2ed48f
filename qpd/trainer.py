"""Runs the phases of Algorithm 1 in a run directory: checkpointed, resumable, each only once."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from qpd.atomic_files import write_safetensors
from qpd.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from qpd.dormant_units import recycle_dormant_units
from qpd.manifest import PhaseName
from qpd.metrics_log import MetricsLog
from qpd.phase_state import PhaseState, make_optimizer
from qpd.policy import network_policy
from qpd.precision import compute_precision
from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.equalization import equalize
from qpd.quantization.integer_student import IntegerEngine, integer_student
from qpd.quantization.packing import save_integer_student
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.random_seeds import generator, seed_for
from qpd.recipe import Recipe
from qpd.recipe_phases import TrainingPhase
from qpd.session import Session, phase_temperature
from qpd.student_files import load_student, save_student
from qpd.training_phases import EpochReport, PhasePlan, train_phase
from students import Student

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


def distill(session: Session) -> None:
    """Phase 1; writes distilled.safetensors, with temperature and sharpness folded in."""
    if _already_done(session, "distill"):
        return
    recipe, stream = session.recipe, session.stream()
    student = Student(session.architecture, seed_for(recipe.seed, "student")).to(session.device)
    sharpening = max(1.0, 1.0 / session.temperature)  # the size of the logits that Eq. 1 asks for
    state = _phase_state(student, recipe.distill, recipe.seed, sharpening)
    if not _restore(session, "distill", state):
        state.spend("collect", _fill(session))
        if not session.architecture.is_image:
            low, high = stream.memory.observation_range()
            margin = 0.05 * (high - low)
            student.set_input_range(low - margin, high + margin)
        student.set_value_range(*stream.memory.value_moments())
        _save(session, "distill", state)
    fold = session.temperature * recipe.student.sharpness
    plan = PhasePlan(
        "distill",
        recipe.distill,
        session.temperature,
        1.0,
        recipe.evaluation.validate_every,
        lambda: network_policy(copy.deepcopy(student), fold),
        lambda: session.validate(network_policy(student, fold)),
        after_early_epoch=_recycler(session, student, state),
    )
    _train(session, plan, state)
    if state.best:
        student.load_state_dict(state.best)
    student.scale_logits(fold)
    about = {"recipe": recipe.name, "env_id": session.env_id, "phase": "distill"}
    save_student(session.run.distilled_file, student, about)
    session.run.set_phase("distill", "done", **_summary(state))


def _recycler(session: Session, student: Student, state: PhaseState) -> Callable[[], None]:
    """Recycling of dormant units, on observations drawn from the memory."""

    def recycle() -> None:
        if not session.recipe.distill.recycle_dormant:
            return
        memory = session.stream().memory
        rows = state.shuffle.choice(memory.transition_rows(), min(len(memory), 4096), False)
        observations = memory.gather(torch.from_numpy(rows)).observations.to(session.device)
        count = recycle_dormant_units(
            student, state.optimizer, observations, int(state.shuffle.integers(2**31))
        )
        if count:
            session.progress.note(f"epoch {state.epoch}: {count} dormant units start anew")

    return recycle


def quantize(session: Session) -> None:
    """Phase 2; writes ptq.safetensors, and quantized.safetensors until phase 3 replaces it."""
    if _already_done(session, "quantize"):
        return
    session.run.set_phase("quantize", "running")
    stream = session.stream()
    if len(stream.memory) < stream.memory.capacity:  # a fork's: phase 3 shall find it filled
        _fill(session)
        tensors, plain = stream.state_dict()
        save_checkpoint(
            session.run.checkpoint_folder,
            tensors,
            {"phase": "quantize", "state": {}, "stream": plain},
        )
    settings = session.recipe.quantize
    student = load_student(session.run.distilled_file)
    rows = session.stream().memory.transition_rows()
    rng = generator(session.recipe.seed, "calibration")
    rows = rng.permutation(rows)[: settings.calibration_samples]
    sample = session.stream().memory.gather(torch.from_numpy(rows)).to(torch.device("cpu"))
    if settings.scheme == "dorefa_scaled":
        equalize(student, sample.observations, settings.equalization)
    simulation = QuantizedStudent(student, quantization_config(session.recipe))
    calibrate(simulation, sample.observations, settings.calibration_percentile)
    write_safetensors(_calibrated_file(session), simulation.state_dict())
    _save_quantized(session, simulation, "ptq")
    ranges = simulation.activation_ranges.tolist()
    session.run.set_phase("quantize", "done", activation_ranges=ranges)


def finetune(session: Session) -> None:
    """Phase 3: training through the quantizers; writes quantized.safetensors."""
    if _already_done(session, "finetune"):
        return
    recipe = session.recipe
    student = load_student(session.run.distilled_file)
    simulation = QuantizedStudent(student, quantization_config(recipe))
    simulation.load_state_dict(_calibrated(session))
    simulation.to(session.device)
    fold = session.temperature * recipe.student.sharpness
    sharpening = max(1.0, 1.0 / session.temperature) * fold
    state = _phase_state(simulation, recipe.finetune, recipe.seed, sharpening)
    if not _restore(session, "finetune", state):
        state.spend("collect", _fill(session))
        ptq = session.validate(IntegerEngine(integer_student(simulation)))
        session.progress.note(f"before phase 3: validation return {ptq.mean:.1f}")
        state.keep_if_best(ptq.mean)  # finetuning must beat what it starts from
        _save(session, "finetune", state)
    # With rewards, who plays must be who trains, in its very arithmetic.
    dtype = torch.float32
    if recipe.finetune.reward is not None:
        dtype = compute_precision(recipe.finetune.precision, session.device)
    temperature = phase_temperature(recipe.finetune, session.teacher)
    plan = PhasePlan(
        "finetune",
        recipe.finetune,
        temperature,
        temperature * recipe.student.sharpness,
        recipe.evaluation.validate_every,
        lambda: network_policy(copy.deepcopy(simulation), dtype=dtype),
        lambda: session.validate(IntegerEngine(integer_student(simulation))),
        recipe.finetune.reward,
        simulation.keep_ranges_positive,
    )
    _train(session, plan, state)
    if state.best:
        simulation.load_state_dict(state.best)
    _save_quantized(session, simulation, "qat")
    session.run.set_phase("finetune", "done", **_summary(state))


def _calibrated_file(session: Session) -> Path:
    """What phase 3 starts from: the student as phase 2 left it, in floats."""
    return session.run.checkpoint_folder / "calibrated.safetensors"


def _calibrated(session: Session) -> dict[str, torch.Tensor]:
    path = _calibrated_file(session)
    try:
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{path}: is missing or damaged; `qpd quantize {session.run.path} -o NEW` makes another"
        ) from error


def quantization_config(recipe: Recipe) -> QuantizationConfig:
    """The recipe's quantizers."""
    settings = recipe.quantize
    return QuantizationConfig(
        settings.weight_bits,
        settings.activation_bits,
        settings.first_layer_bits,
        settings.last_layer_bits,
        settings.scheme,
        settings.per_channel,
        settings.learned_ranges,
    )


def _already_done(session: Session, phase: PhaseName) -> bool:
    done = session.run.phase(phase).state == "done"
    if done:
        session.progress.note(f"{phase}: already done in {session.run.path}, nothing to do")
    return done


def _phase_state(
    module: torch.nn.Module, settings: TrainingPhase, seed: int, head_factor: float
) -> PhaseState:
    optimizer = make_optimizer(module, settings, head_factor)
    return PhaseState(module, optimizer, generator(seed, "shuffle"))


def _fill(session: Session) -> float:
    """Fill the memory if it is not full; returns the seconds that took."""
    began = time.perf_counter()
    memory = session.stream().memory
    before = memory.num_added
    session.stream().fill(session.progress.filling)
    if memory.num_added > before:
        rate = (memory.num_added - before) / (time.perf_counter() - began)
        session.progress.note(f"memory filled: {len(memory):,} transitions at {rate:,.0f}/s")
    return time.perf_counter() - began


def _restore(session: Session, phase: PhaseName, state: PhaseState) -> bool:
    """Load the checkpoint into `state` if it belongs to this phase."""
    saved = load_checkpoint(session.run.checkpoint_folder)
    if saved is None or saved[1]["phase"] != phase:
        return False
    state.load_state_dict(saved[0], saved[1]["state"])
    return True


def _save(session: Session, phase: PhaseName, state: PhaseState) -> None:
    tensors, plain = state.state_dict()
    stream_tensors, stream_plain = session.stream().state_dict()
    everything: dict[str, Any] = {"phase": phase, "state": plain, "stream": stream_plain}
    save_checkpoint(session.run.checkpoint_folder, tensors | stream_tensors, everything)


def _train(session: Session, plan: PhasePlan, state: PhaseState) -> None:
    """Run the phase with its observers; the checkpoint follows the metrics row of its epoch."""
    phase: PhaseName = "distill" if plan.name == "distill" else "finetune"
    session.run.set_phase(phase, "running")
    session.progress.phase(phase, plan.settings.epochs, state.epoch)
    folder = session.run.tensorboard_folder if session.recipe.save.tensorboard else None
    with MetricsLog(
        session.run.metrics_file,
        COLUMNS,
        phase=phase,
        resume_epoch=state.epoch,
        tensorboard_folder=folder,
    ) as log:
        train_phase(plan, state, session.stream(), _Observer(session, phase, state, log))


@dataclass
class _Observer:
    session: Session
    phase: PhaseName
    state: PhaseState
    log: MetricsLog

    def batch_done(self, done: int, total: int, loss: float, samples_per_second: float) -> None:
        self.session.progress.batch(done, total, loss, samples_per_second)

    def epoch_done(self, report: EpochReport) -> None:
        row: dict[str, float | None] = {name: getattr(report, name) for name in COLUMNS[:5]}
        if report.validation is not None:
            row["validation_return"] = report.validation.mean
            row["validation_low"], row["validation_high"] = report.validation.interval()
        row["rollout_return"] = report.rollout_return
        self.log.write(report.epoch, {name: row.get(name) for name in COLUMNS})
        _save(self.session, self.phase, self.state)
        self.session.progress.epoch(report)


def _save_quantized(session: Session, simulation: QuantizedStudent, kind: str) -> None:
    student = integer_student(simulation)
    about = {"recipe": session.recipe.name, "env_id": session.env_id, "phase": kind}
    if kind == "ptq":
        save_integer_student(session.run.ptq_file, student, about)
    save_integer_student(session.run.quantized_file, student, about)


def _summary(state: PhaseState) -> dict[str, Any]:
    return {
        "epochs": state.epoch,
        "best_epoch": state.best_epoch if state.best else None,
        "best_validation_return": state.best_score if state.best else None,
        "seconds": state.seconds,
    }


def finish(session: Session) -> None:
    """Drop the checkpoint and the frames of a finished run, unless the recipe keeps them."""
    if not session.recipe.save.keep_replay:
        shutil.rmtree(session.run.checkpoint_folder, ignore_errors=True)
