"""Runs the phases of Algorithm 1 in a run directory: checkpointed, resumable, each only once."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from qpd.acting import ActingRule, resolve_acting
from qpd.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from qpd.environment import VectorEnvironment, environment_spec, make_vector_env
from qpd.evaluation import EvaluationResult, evaluate
from qpd.manifest import PhaseName, TeacherRecord
from qpd.metrics_log import MetricsLog
from qpd.phase_state import PhaseState, make_optimizer
from qpd.play_stream import PlayStream
from qpd.policy import Policy, network_policy
from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.integer_student import IntegerEngine, integer_student
from qpd.quantization.packing import save_integer_student
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.random_seeds import generator, seed_for
from qpd.recipe import Recipe, TrainingPhase
from qpd.run_directory import RunDirectory
from qpd.student_files import load_student, save_student
from qpd.training_phases import EpochReport, PhasePlan, train_phase
from students import Student, StudentArchitecture, architecture_for
from teachers import Teacher, load_teacher

COLUMNS = (
    "loss",
    "actor_loss",
    "critic_loss",
    "lr",
    "samples_per_second",
    "validation_return",
    "validation_low",
    "validation_high",
)


class Progress(Protocol):
    """Who shows what is going on."""

    def phase(self, name: str, total_epochs: int, first_epoch: int) -> None:
        """A training phase begins (or goes on after `first_epoch` epochs)."""

    def filling(self, done: int, total: int) -> None:
        """The memory is being filled."""

    def batch(self, done: int, total: int, loss: float, samples_per_second: float) -> None:
        """Samples drawn in this epoch, of how many."""

    def epoch(self, report: EpochReport) -> None:
        """An epoch is over."""

    def episodes(self, what: str, done: int, total: int) -> None:
        """Episodes of an evaluation that are finished."""

    def note(self, text: str) -> None:
        """Say one line."""


class SessionError(ValueError):
    """Teacher, environment, student or device do not fit together; one line says how."""


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one. Raises SessionError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SessionError(
            f"device {name}: this machine has no usable CUDA device; use cpu or auto"
        )
    return torch.device(name)


@dataclass
class Session:
    """A run directory with its teacher, student architecture and environments."""

    run: RunDirectory
    recipe: Recipe
    teacher: Teacher
    env_id: str
    architecture: StudentArchitecture
    device: torch.device
    progress: Progress
    _stream: PlayStream | None = None
    _validation_env: VectorEnvironment | None = None

    @property
    def temperature(self) -> float:
        """Tau of phase 1: the recipe's, else 0.01 for Q-values and 3 for an actor."""
        return phase_temperature(self.recipe.distill, self.teacher)

    def stream(self) -> PlayStream:
        """The play stream, built once: restored from the checkpoint, or with an empty memory."""
        if self._stream is None:
            frame_file = self.run.checkpoint_folder / "replay.bin"
            had_frames = frame_file.is_file()
            self._stream = PlayStream(self.recipe, self.teacher, self.env_id, frame_file)
            saved = load_checkpoint(self.run.checkpoint_folder)
            if saved is not None and not had_frames:
                raise CheckpointError(
                    f"{frame_file}: is gone or has another size, but belongs to the checkpoint "
                    f"beside it; delete {frame_file.parent} to start this phase anew"
                )
            if saved is not None:
                self._stream.load_state_dict(saved[0], saved[1]["stream"])
        return self._stream

    def acting_rule(self, kind: str | None = None, sharpness: float = 1.0) -> ActingRule:
        """How evaluations act: the recipe's rule."""
        settings = self.recipe.evaluation
        return resolve_acting(
            kind or settings.acting,
            is_actor_critic=self.teacher.has_actor_critic,
            is_atari=environment_spec(self.env_id).is_atari,
            epsilon=settings.epsilon,
            sharpness=sharpness,
        )

    def validate(self, policy: Policy) -> EvaluationResult:
        """Play the validation episodes: other games than those that are reported."""
        count = self.recipe.evaluation.validation_episodes
        if self._validation_env is None:
            self._validation_env = self.make_env(min(count, 64))
        return evaluate(
            policy,
            self._validation_env,
            count,
            self.acting_rule(),
            seed_for(self.recipe.seed, "validation"),
            lambda done: self.progress.episodes("validation", done, count),
        )

    def make_env(self, num_envs: int) -> VectorEnvironment:
        """A vector environment as the recipe describes it."""
        settings = self.recipe.environment
        return make_vector_env(
            self.env_id,
            num_envs,
            num_threads=settings.num_threads,
            max_frames=settings.max_frames,
        )

    def close(self) -> None:
        """Release environments and the run directory."""
        for resource in (self._stream, self._validation_env):
            if resource is not None:
                resource.close()
        self.run.close()


def phase_temperature(settings: TrainingPhase, teacher: Teacher) -> float:
    """Tau of Eq. 1: 0.01 for Q-values, 3 for an actor, unless the recipe says otherwise."""
    if settings.temperature is not None:
        return settings.temperature
    return 3.0 if teacher.has_actor_critic else 0.01


@dataclass(frozen=True)
class Prepared:
    """A recipe's teacher, environment, student and device, known to fit together."""

    teacher: Teacher
    env_id: str
    architecture: StudentArchitecture
    device: torch.device


def prepare(recipe: Recipe, device: str) -> Prepared:
    """Load the teacher and check that all fits; writes nothing.

    Raises SessionError, TeacherError or EnvironmentConfigError (one line) where it does not.
    """
    settings = recipe.teacher
    teacher = load_teacher(settings.source, algo=settings.algo, env_id=settings.env)
    env_id = teacher.env_id  # the recipe's, by its present name
    if env_id is None:
        raise SessionError(
            f"teacher {settings.source} names no environment: set teacher.env in the recipe"
        )
    spec = environment_spec(env_id)
    if spec.observation_shape != teacher.observation_shape:
        raise SessionError(
            f"teacher {teacher.source} reads observations of shape {teacher.observation_shape}, "
            f"environment {env_id} gives {spec.observation_shape}"
        )
    if spec.num_actions != teacher.num_actions:
        raise SessionError(
            f"teacher {teacher.source} has {teacher.num_actions} actions, "
            f"environment {env_id} {spec.num_actions}"
        )
    chosen = choose_device(device)
    architecture = recipe_architecture(recipe, spec.observation_shape, spec.num_actions)
    teacher.to(chosen)
    return Prepared(teacher, env_id, architecture, chosen)


def open_session(run: RunDirectory, prepared: Prepared, progress: Progress) -> Session:
    """Record the teacher in the manifest, and begin; RunDirectoryError if it is another one."""
    teacher = prepared.teacher
    run.record_teacher(
        TeacherRecord(
            source=teacher.source,
            sha256=teacher.sha256,
            algo=teacher.algo,
            env_id=prepared.env_id,
            num_parameters=teacher.num_parameters,
        )
    )
    return Session(
        run,
        run.recipe,
        teacher,
        prepared.env_id,
        prepared.architecture,
        prepared.device,
        progress,
    )


def recipe_architecture(
    recipe: Recipe, observation_shape: tuple[int, ...], num_actions: int
) -> StudentArchitecture:
    """The student that the recipe describes, for these observations and actions."""
    student = recipe.student
    try:
        if student.size is not None:
            return architecture_for(student.size, observation_shape, num_actions)
        return StudentArchitecture(
            observation_shape, num_actions, student.conv_channels or (), student.hidden or ()
        )
    except ValueError as error:
        raise SessionError(f"recipe {recipe.name}: student: {error}") from error


def distill(session: Session) -> None:
    """Phase 1; writes distilled.safetensors, with temperature and sharpness folded in."""
    if _already_done(session, "distill"):
        return
    recipe, stream = session.recipe, session.stream()
    student = Student(session.architecture, seed_for(recipe.seed, "student")).to(session.device)
    state = _phase_state(student, recipe.distill, recipe.seed)
    if not _restore(session, "distill", state):
        _fill(session)
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
        lambda: network_policy(student, fold),
        lambda: session.validate(network_policy(student, fold)),
    )
    _train(session, plan, state)
    if state.best:
        student.load_state_dict(state.best)
    student.scale_logits(fold)
    about = {"recipe": recipe.name, "env_id": session.env_id, "phase": "distill"}
    save_student(session.run.distilled_file, student, about)
    session.run.set_phase("distill", "done", **_summary(state))


def quantize(session: Session) -> None:
    """Phase 2; writes ptq.safetensors, and quantized.safetensors until phase 3 replaces it."""
    if _already_done(session, "quantize"):
        return
    session.run.set_phase("quantize", "running")
    _fill(session)
    simulation = QuantizedStudent(
        load_student(session.run.distilled_file), quantization_config(session.recipe)
    )
    settings = session.recipe.quantize
    rows = session.stream().memory.transition_rows()
    rng = np.random.default_rng([session.recipe.seed, 2])
    rows = rng.permutation(rows)[: settings.calibration_samples]
    sample = session.stream().memory.gather(torch.from_numpy(rows))
    calibrate(simulation, sample.observations, settings.calibration_percentile)
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
    ranges = session.run.phase("quantize").metrics["activation_ranges"]
    with torch.no_grad():
        simulation.activation_ranges.copy_(torch.tensor(ranges))
    simulation.to(session.device)
    state = _phase_state(simulation, recipe.finetune, recipe.seed)
    if not _restore(session, "finetune", state):
        _fill(session)
        ptq = session.validate(IntegerEngine(integer_student(simulation)))
        session.progress.note(f"before phase 3: validation return {ptq.mean:.1f}")
        state.keep_if_best(ptq.mean)  # finetuning must beat what it starts from
        _save(session, "finetune", state)
    temperature = phase_temperature(recipe.finetune, session.teacher)
    plan = PhasePlan(
        "finetune",
        recipe.finetune,
        temperature,
        temperature * recipe.student.sharpness,
        recipe.evaluation.validate_every,
        lambda: network_policy(simulation),
        lambda: session.validate(IntegerEngine(integer_student(simulation))),
    )
    _train(session, plan, state)
    if state.best:
        simulation.load_state_dict(state.best)
    _save_quantized(session, simulation, "qat")
    session.run.set_phase("finetune", "done", **_summary(state))


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


def _phase_state(module: torch.nn.Module, settings: TrainingPhase, seed: int) -> PhaseState:
    return PhaseState(module, make_optimizer(module, settings), generator(seed, "shuffle"))


def _fill(session: Session) -> None:
    began = time.perf_counter()
    memory = session.stream().memory
    before = memory.num_added
    session.stream().fill(session.progress.filling)
    if memory.num_added > before:
        rate = (memory.num_added - before) / (time.perf_counter() - began)
        session.progress.note(f"memory filled: {len(memory):,} transitions at {rate:,.0f}/s")


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
