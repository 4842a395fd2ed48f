"""Phase 2 of Algorithm 1: post-training quantization, calibrated on observations of the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from qpd.actions import Box
from qpd.environments.registry import feature_origin
from qpd.files.atomic import write_safetensors
from qpd.files.tensors import DamagedFileError, read_tensors
from qpd.integer.integer_student import IntegerStudent, integer_student
from qpd.numerics.random_seeds import generator
from qpd.phases.distill import input_range
from qpd.phases.play import Play
from qpd.phases.runner import already_done
from qpd.phases.student_run import StudentRun
from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.equalization import equalize
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.schema import Recipe
from qpd.replay.memory import ReplayMemory
from qpd.runs.checkpoint import CheckpointError
from qpd.runs.progress import Progress
from qpd.runs.results import distilled_student
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.origin import integer_origin, student_actions
from qpd.student_files.quantized import save_integer_student

CALIBRATED_NAME = "calibrated.safetensors"


def quantize(student: StudentRun, play: Play, progress: Progress) -> None:
    """Run phase 2; writes ptq.safetensors, and quantized.safetensors until phase 3 replaces it."""
    run, recipe = student.run, student.recipe
    if already_done(run, "quantize", progress):
        return
    network = distilled_student(run)
    memory = play.memory
    run.set_phase("quantize", "running")  # now that all it needs is known to be whole
    if len(memory) < memory.capacity:  # a fork's: phase 3 shall find it filled
        progress.note(
            "phase 1's memory is gone: phases 2 and 3 see new play, of the teacher alone"
            " (save.keep_replay=true keeps what phase 3 leaves of it)"
        )
        run.set_phase("quantize", "running", memory_refilled=True)
        play.fill(progress)
        play.save("quantize", [(student, None)])
    elif run.phase("distill").metrics.get("memory_refilled", False):
        progress.note(
            "the memory is not phase 1's: it was played anew, or renewed by the phase 3 of the run "
            "that this one is forked from"
        )
    if run.phase("quantize").metrics.get("memory_refilled", False):
        run.set_phase("quantize", "running", keeps_memory=True)
    observations = _calibration_sample(recipe, memory)
    if network.architecture.num_features:
        # Phase 1 began with the teacher's play alone; the memory now holds the student's as well.
        network.move_input_range(*input_range(memory))
    # Where a layer's scale is dropped there is nothing for equalization to keep.
    if quantization_config(recipe).has_scales:
        equalize(network, observations, recipe.quantize.equalization)
    simulation = QuantizedStudent(network, quantization_config(recipe))
    calibrate(simulation, observations, recipe.quantize.calibration_percentile)
    _tell_unused_bits(student, progress)
    write_safetensors(_calibrated_file(play), simulation.state_dict())
    save_quantized(student, simulation, "ptq")
    run.set_phase("quantize", "done", activation_ranges=simulation.activation_ranges.tolist())


def _tell_unused_bits(student: StudentRun, progress: Progress) -> None:
    """Warn if `weight_bits` holds for no layer: there are two, and both ends are set."""
    config = quantization_config(student.recipe)
    bits = config.layer_bits(student.prepared.architecture.layer_shapes())
    if config.weight_bits not in bits:
        progress.warning(
            f"quantize.weight_bits={config.weight_bits}: no layer has so many; first_layer_bits "
            f"and last_layer_bits decide all {len(bits)} layers: {'/'.join(map(str, bits))}"
        )


def _calibration_sample(recipe: Recipe, memory: ReplayMemory) -> torch.Tensor:
    """Return the observations that set the ranges, on the CPU, the same for a seed."""
    rng = generator(recipe.seed, "calibration")
    rows = rng.permutation(memory.transition_rows())[: recipe.quantize.calibration_samples]
    return memory.gather(torch.from_numpy(rows)).to(torch.device("cpu")).observations


def save_quantized(
    student: StudentRun, simulation: QuantizedStudent, kind: Literal["ptq", "qat"]
) -> None:
    """Write quantized.safetensors, and where `kind` is `ptq` ptq.safetensors too."""
    prepared, run = student.prepared, student.run
    quantized = exact_student(student, simulation)
    about = {
        "recipe": student.recipe.name,
        **({"method": "agent"} if run.manifest.is_agent else {}),
        "env_id": prepared.env_id,
        **feature_origin(prepared.environment),
    }
    scheme = student.recipe.quantize.scheme
    origin = integer_origin(
        about, kind, prepared.teacher, prepared.architecture, scheme, prepared.environment
    )
    if kind == "ptq":
        save_integer_student(run.ptq_file, quantized, origin)
    save_integer_student(run.quantized_file, quantized, origin)


def exact_student(student: StudentRun, simulation: QuantizedStudent) -> IntegerStudent:
    """Return the integers that `simulation` stands for in this run."""
    actions = student.prepared.teacher.actions
    if isinstance(actions, Box):  # a student that is an agent itself may have to clip its means
        stored = student_actions(student.run.distilled_file)
        actions = stored if isinstance(stored, Box) else actions
    return integer_student(simulation, actions, student.recipe.quantize.action_bits)


def _calibrated_file(play: Play) -> Path:
    """Return the file that phase 3 starts from: the student as phase 2 left it, in floats."""
    return play.store / CALIBRATED_NAME


def load_calibrated(run: RunDirectory, play: Play) -> dict[str, torch.Tensor]:
    """Load what phase 2 left for phase 3. Raises CheckpointError where it is missing or damaged."""
    path = _calibrated_file(play)
    try:
        return read_tensors(path)[1]
    except (OSError, DamagedFileError) as error:
        raise CheckpointError(
            f"{path}: is missing or damaged ({error}); put a copy of it back, or make another: "
            f"`qpd quantize {run.path} -o NEW`, then `qpd finetune NEW`"
        ) from error


def quantization_config(recipe: Recipe) -> QuantizationConfig:
    """Return the recipe's quantizers."""
    settings = recipe.quantize
    return QuantizationConfig(
        settings.weight_bits,
        settings.activation_bits,
        settings.first_layer_bits,
        settings.last_layer_bits,
        settings.scheme,
        settings.per_channel,
        settings.learned_ranges,
        settings.input_bits,
    )
