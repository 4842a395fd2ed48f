"""Phase 2 of Algorithm 1: post-training quantization, calibrated on observations of the memory."""

from __future__ import annotations

from pathlib import Path

import torch

from qpd.files.atomic import write_safetensors
from qpd.files.tensors import DamagedFileError, read_tensors
from qpd.integer.integer_student import integer_student
from qpd.numerics.random_seeds import generator
from qpd.phases.runner import already_done, fill, save
from qpd.phases.session import Session
from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.equalization import equalize
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.schema import Recipe
from qpd.runs.checkpoint import CheckpointError
from qpd.runs.results import distilled_student
from qpd.student_files.quantized import save_integer_student

# What a device must do before it may ask a student for an action.
PREPROCESSING = (
    "every 4th frame, maximum of the last two, grey, area-resized to 84x84, last 4 stacked, "
    "oldest first, zeros before an episode; uint8"
)


def quantize(session: Session) -> None:
    """Phase 2; writes ptq.safetensors, and quantized.safetensors until phase 3 replaces it."""
    if already_done(session, "quantize"):
        return
    student = distilled_student(session.run)
    stream = session.stream()
    session.run.set_phase("quantize", "running")  # now that all it needs is known to be whole
    if len(stream.memory) < stream.memory.capacity:  # a fork's: phase 3 shall find it filled
        fill(session)
        save("quantize", [(session, None)])
        session.run.set_phase("quantize", "running", keeps_memory=True)
    settings = session.recipe.quantize
    rows = session.stream().memory.transition_rows()
    rng = generator(session.recipe.seed, "calibration")
    rows = rng.permutation(rows)[: settings.calibration_samples]
    sample = session.stream().memory.gather(torch.from_numpy(rows)).to(torch.device("cpu"))
    if settings.scheme == "dorefa_scaled":
        equalize(student, sample.observations, settings.equalization)
    simulation = QuantizedStudent(student, quantization_config(session.recipe))
    calibrate(simulation, sample.observations, settings.calibration_percentile)
    write_safetensors(_calibrated_file(session), simulation.state_dict())
    save_quantized(session, simulation, "ptq")
    ranges = simulation.activation_ranges.tolist()
    session.run.set_phase("quantize", "done", activation_ranges=ranges)


def save_quantized(session: Session, simulation: QuantizedStudent, kind: str) -> None:
    """Write quantized.safetensors; `kind` is `ptq` (then ptq.safetensors too) or `qat`."""
    student = integer_student(simulation)
    about = {
        "recipe": session.recipe.name,
        "env_id": session.env_id,
        "phase": kind,
        "teacher": {"algo": session.teacher.algo, "sha256": session.teacher.sha256},
        "preprocessing": PREPROCESSING if session.architecture.is_image else "none",
        "scheme": session.recipe.quantize.scheme,
    }
    if kind == "ptq":
        save_integer_student(session.run.ptq_file, student, about)
    save_integer_student(session.run.quantized_file, student, about)


def _calibrated_file(session: Session) -> Path:
    """What phase 3 starts from: the student as phase 2 left it, in floats."""
    return session.store / "calibrated.safetensors"


def load_calibrated(session: Session) -> dict[str, torch.Tensor]:
    """What phase 2 left for phase 3. Raises CheckpointError where it is missing or damaged."""
    path = _calibrated_file(session)
    try:
        return read_tensors(path)[1]
    except (OSError, DamagedFileError) as error:
        raise CheckpointError(
            f"{path}: is missing or damaged ({error}); put a copy of it back, or make another: "
            f"`qpd quantize {session.run.path} -o NEW`, then `qpd finetune NEW`"
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
