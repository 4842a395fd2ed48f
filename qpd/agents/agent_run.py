"""The run directory of an agent in integers: a run whose student is the agent itself.

What takes a run takes it: export, bench, report, evaluate. Its distilled.safetensors computes the
agent's own outputs in float, its quantized.safetensors the same in integers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qpd.actions import Box
from qpd.agents.agent_student import agent_student, student_actions_of, within_clip
from qpd.agents.errors import AgentQuantizationError
from qpd.agents.quantized_agent import input_range
from qpd.environments.registry import feature_origin
from qpd.environments.source import EnvironmentSource
from qpd.evaluation.games import EvaluationResult
from qpd.files.atomic import write_safetensors
from qpd.integer.integer_student import IntegerStudent, integer_student
from qpd.machine.description import cxx_compiler
from qpd.numerics.numerics_record import record_numerics
from qpd.phases.agent_recipe import (
    CONTINUOUS_RECIPE,
    IMAGE_RECIPE,
    VECTOR_RECIPE,
    from_root,
)
from qpd.phases.quantize import CALIBRATED_NAME, quantization_config
from qpd.quantization.bias_correction import correct_biases
from qpd.quantization.calibration import calibrate
from qpd.quantization.equalization import balance
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.quantization.weight_quantizer import WeightQuantizer
from qpd.recipe.loading import load_recipe, override_lines
from qpd.recipe.schema import Recipe
from qpd.runs.manifest import EvaluatedPolicy, TeacherRecord
from qpd.runs.results import metrics_checksum
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.distilled import MAX_PARAMETERS, save_student
from qpd.student_files.origin import integer_origin
from qpd.student_files.quantized import save_integer_student
from qpd.students import Student
from qpd.teachers import Teacher
from qpd.teachers.archive.agent_identity import agent_name


@dataclass(frozen=True)
class IntegerAgent:
    """An agent in integers, and how it came about: recipe, float student, simulation."""

    recipe: Recipe
    student: Student
    simulation: QuantizedStudent
    integers: IntegerStudent
    per: str  # what shares a range of weights: tensor, channel or column


def integer_agent(
    teacher: Teacher,
    states: np.ndarray,
    quantizer: WeightQuantizer,
    activation_bits: int,
    episodes: int,
    seed: int,
    stacks_frames: bool | None = None,
) -> IntegerAgent:
    """Return the integers of an agent, calibrated on `states`, observations `[n, ...]`.

    Phase 2's own quantizers: odd integers, inputs in 8 bits with a range for each feature. The
    weights have a scale for each output channel, or `per` tensor one; `per` column the layer before
    also takes over the scales of input columns (`balance`). Biases lose the weights' mean error
    (`correct_biases`). `stacks_frames` is as in StudentArchitecture. Raises
    AgentQuantizationError.
    """
    seen = torch.from_numpy(states)
    low, high = (torch.zeros(1), torch.ones(1)) if teacher.is_image else input_range(seen)
    student = agent_student(teacher, low, high, stacks_frames)
    if student.architecture.num_parameters > MAX_PARAMETERS:  # its file would not be read again
        raise AgentQuantizationError(
            f"{teacher.source}: {student.architecture.num_parameters:,} parameters of its actor; "
            f"students have at most {MAX_PARAMETERS:,}"
        )
    if quantizer.per == "column":
        balance(student, seen)
    recipe = _recipe(teacher, student, quantizer, activation_bits, episodes, seed)
    simulation = QuantizedStudent(copy.deepcopy(student), quantization_config(recipe))
    correct_biases(simulation, seen)
    calibrate(simulation, seen, recipe.quantize.calibration_percentile)
    if not teacher.is_image:
        # The float student answers as the agent does also where play leaves these states.
        wide = within_clip(teacher.normalization, low - (high - low), high + (high - low))
        student.move_input_range(*(end.float() for end in wide))
    try:
        integers = integer_student(simulation, student_actions_of(teacher))
    except ValueError as error:  # a layer of far too many inputs
        raise AgentQuantizationError(f"{teacher.source}: no integers hold it: {error}") from error
    return IntegerAgent(recipe, student, simulation, integers, quantizer.per)


def _recipe(
    teacher: Teacher,
    student: Student,
    quantizer: WeightQuantizer,
    activation_bits: int,
    episodes: int,
    seed: int,
) -> Recipe:
    """Return the recipe of a run whose student has the agent's widths, and no training."""
    base = IMAGE_RECIPE if teacher.is_image else VECTOR_RECIPE
    if isinstance(teacher.actions, Box):
        base = CONTINUOUS_RECIPE
    widths = student.architecture
    settings: dict[str, Any] = {
        "name": agent_name(teacher.algo, teacher.env_id),
        "seed": seed,
        "teacher.source": from_root(teacher.source),
        "teacher.algo": teacher.algo,
        "student.hidden": list(widths.hidden),
        "student.activation": widths.activation,
        **({"student.conv_channels": list(widths.conv_channels)} if teacher.is_image else {}),
        "distill.epochs": 0,
        "quantize.weight_bits": quantizer.bits,
        "quantize.activation_bits": activation_bits,
        "quantize.per_channel": quantizer.per != "tensor",
        "quantize.equalization": 0.0,  # the student is balanced already, or is not to be
        "evaluation.episodes": episodes,
    }
    return load_recipe(base, override_lines(settings))


def write_agent_run(
    path: Path,
    agent: IntegerAgent,
    teacher: Teacher,
    environment: EnvironmentSource,
    games: Mapping[EvaluatedPolicy, EvaluationResult],
) -> None:
    """Write the run directory at `path`; one that is finished is left as it is.

    `games` are those of the agent, `teacher`, and of its integers, `ptq`. Raises RunDirectoryError.
    """
    with RunDirectory.create(path, agent.recipe) as run:
        if run.phase("evaluate").state == "done":
            return
        run.record_teacher(TeacherRecord.of(teacher, environment))
        run.record_arithmetic(record_numerics(torch.device("cpu"), cxx_compiler() is not None))
        about = {"recipe": agent.recipe.name, "env_id": environment.env_id, "method": "agent"}
        about |= feature_origin(environment)
        actions = agent.integers.actions
        save_student(run.distilled_file, agent.student, actions, {**about, "phase": "distill"})
        run.set_phase("distill", "done", method="agent", epochs=0)
        scheme = agent.recipe.quantize.scheme
        origin = integer_origin(
            about, "ptq", teacher, agent.student.architecture, scheme, environment
        )
        for file in (run.ptq_file, run.quantized_file):
            save_integer_student(file, agent.integers, origin)
        # What `qpd finetune` starts from.
        calibrated = run.checkpoint_folder / CALIBRATED_NAME
        write_safetensors(calibrated, agent.simulation.state_dict())
        ranges = agent.simulation.activation_ranges.tolist()
        run.set_phase("quantize", "done", method="agent", per=agent.per, activation_ranges=ranges)
        for name, result in games.items():
            run.record_evaluation(name, result.to_json())
        run.set_phase("evaluate", "done", metrics_crc32=metrics_checksum(run))
