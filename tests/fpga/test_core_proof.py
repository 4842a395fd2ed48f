"""The paper's five shapes at 2 to 8 bits, on 20,000 observations: one meaning, five ways.

Training's simulation, the integer engine, plain NumPy, C and Verilator. A minute or two a shape.
"""

from __future__ import annotations

import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.device.controller_cores import TASKS
from qpd.actions import Box
from qpd.export.bundle import ExportSource, golden_vectors
from qpd.export.device_actions import device_actions
from qpd.export.systemverilog.code import export_systemverilog
from qpd.integer.controller_student import controller_student
from qpd.integer.integer_student import IntegerEngine, IntegerStudent, integer_student
from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.controller_layer import (
    WARM_UP,
    ControllerBits,
    ControllerQuantizers,
    attach_frozen_controller,
)
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, StudentArchitecture
from tests.export.c_programs import c_library, needs, pointer, write_c

pytestmark = pytest.mark.slow

PLAYED = RANDOM = 10_000
ENVS = 20
Simulation = Callable[[torch.Tensor], torch.Tensor]
LANES = 64


def architecture(task: str) -> StudentArchitecture:
    features, actions, width, *_ = TASKS[task]
    return StudentArchitecture((features,), actions, (), (width, width))


def box(task: str) -> Box:
    return Box((-1.0,) * TASKS[task][1], (1.0,) * TASKS[task][1], "tanh")


def played(task: str, act: IntegerEngine | None, count: int) -> np.ndarray:
    """`count` observations of a student's own games, or of random play."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the paper's tasks are -v4
        envs = gymnasium.make_vec(f"{task}-v4", num_envs=ENVS)
    found, (now, _) = [], envs.reset(seed=0)
    envs.action_space.seed(0)
    scale = float(envs.single_action_space.high[0])
    while len(found) * ENVS < count:
        now = now.astype(np.float32)
        found.append(now)
        chosen = envs.action_space.sample() if act is None else scale * np.tanh(act(now))
        now, *_ = envs.step(chosen)
    envs.close()
    return np.concatenate(found)[:count]


def spread(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """`RANDOM` observations: over the range, beyond it, on its levels' edges, and of any size."""
    rng, shape = np.random.default_rng(1), (RANDOM // 4, len(low))
    width = (high - low).astype(np.float64)
    wild = rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)
    parts = [
        low + width * rng.uniform(-0.05, 1.05, shape),
        low + width * rng.normal(0.5, 2.0, shape),
        low + width * rng.integers(-2, 2 * 255 + 3, shape) / (2 * 255),
        np.nan_to_num(wild, nan=0.0, posinf=np.inf, neginf=-np.inf),
    ]
    return np.concatenate(parts).astype(np.float32)


def distilled(task: str, bits: int, seen: np.ndarray) -> tuple[IntegerStudent, Simulation]:
    """A student of random weights, calibrated on `seen`, and training's simulation of it."""
    student, generator = Student(architecture(task), 0), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        # A fresh head is all but 0; a trained one's means reach the ends of the tanh.
        head = student.actor.weight
        head.copy_(torch.randn(head.shape, generator=generator) * 6 / head.shape[1] ** 0.5)
    low, high = np.quantile(seen, [0.001, 0.999], axis=0)
    student.set_input_range(torch.tensor(low).float(), torch.tensor(high + 1e-3).float())
    config = QuantizationConfig(bits, bits, input_bits=bits)
    simulation = QuantizedStudent(student, config)
    calibrate(simulation, torch.from_numpy(seen[::10].copy()))
    return integer_student(simulation, box(task)), lambda rows: simulation(rows).actor


@torch.no_grad()
def trained(task: str, bits: int, seen: np.ndarray) -> tuple[IntegerStudent, Simulation]:
    """A controller as training makes it, of random weights, and the policy that learns."""
    features, actions, width, *_ = TASKS[task]
    torch.manual_seed(0)
    sizes = [(features, width), (width, width), (width, actions)]
    layers: list[Any] = [torch.nn.Linear(*size) for size in sizes]
    mean, deviation = seen.mean(0, np.float64), seen.std(0, dtype=np.float64) + 1e-3

    def normalized(rows: torch.Tensor) -> torch.Tensor:
        return ((rows.double() - torch.tensor(mean)) / torch.tensor(deviation)).float()

    x = normalized(torch.from_numpy(seen)).clamp(-10.0, 10.0)
    scales = [float(x.abs().max())]
    for layer in layers[:-1]:
        x = torch.relu(layer(x))
        scales.append(float(x.max()))
    quantizers = ControllerQuantizers(
        ControllerBits(bits, bits, 8), "narrow", [*scales, 2.0], WARM_UP, is_active=True
    )
    attach_frozen_controller(layers, quantizers)
    # Means as far as the tanh goes, by the rounded weights, which are larger.
    first, second, head = layers
    x = torch.relu(second(torch.relu(first(normalized(torch.from_numpy(seen))))))
    factor = 1.0 / float(F.linear(quantizers.learned[2].quantized(x), head.weight).std())
    for numbers in (head.weight, head.bias):
        numbers.mul_(factor)
    head.weight_scale *= factor
    policy = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    student = controller_student(layers, quantizers, mean, deviation, box(task))
    return student, lambda rows: policy(normalized(rows))


def in_c(folder: Path, student: IntegerStudent, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The C export's outputs and codes of floats, as a microcontroller would compute them."""
    library = c_library(write_c(folder, student, 8), student, ["-DQPD_PORTABLE"])
    outputs = np.zeros((len(rows), student.architecture.num_outputs), np.int32)
    codes = np.zeros(outputs.shape, np.uint8)
    levels = np.zeros(rows.shape, np.uint8)
    for row, level, output, code in zip(rows, levels, outputs, codes, strict=True):
        library.qpd_levels_from_floats(pointer(row), pointer(level))
        library.qpd_outputs(pointer(level), pointer(output))
        library.qpd_act(pointer(level), pointer(code))
    return outputs, codes


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("made", ["distilled", "trained"])
@pytest.mark.parametrize("task", TASKS)
def test_one_meaning_on_twenty_thousand_observations(
    task: str, made: str, bits: int, tmp_path: Path
) -> None:
    needs("verilator", "make", "gcc")
    make = distilled if made == "distilled" else trained
    student, simulation = make(task, bits, played(task, None, 2_000))
    engine = IntegerEngine(student)
    assert student.input_low is not None and student.input_high is not None
    rows = np.concatenate(
        [played(task, engine, PLAYED), spread(student.input_low, student.input_high)]
    )
    golden = golden_vectors(student, observations=rows)  # plain NumPy's
    assert (engine.integer_outputs(rows) == golden.logits).all()
    codes = device_actions(student, golden.logits)
    assert (engine.codes(rows) == codes).all() and len(np.unique(codes)) > 4
    outputs, c_codes = in_c(tmp_path / "c", student, rows)
    assert (outputs == golden.logits).all() and (c_codes == codes).all()
    with torch.no_grad():
        means = simulation(torch.from_numpy(rows[:PLAYED])).numpy()
    simulated = np.floor((np.tanh(means.astype(np.float64)) + 1.0) / 2.0 * 255.0 + 0.5)
    # The same codes, but where float32 rounds a sum that is all but on a threshold.
    assert (simulated == codes[:PLAYED]).mean() > 0.98
    folder = tmp_path / "core"
    folder.mkdir()
    lanes = min(LANES, TASKS[task][2])
    source = ExportSource(student, {}, f"{task}-{bits}")
    for name, content in export_systemverilog(source, golden, lanes).items():
        (folder / name).write_bytes(content)
    done = subprocess.run(["make", "-s", "test"], cwd=folder, capture_output=True, text=True)
    shutil.rmtree(tmp_path, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    more = 1 + 2 * student.input_levels  # what sensors may send, both sides of each threshold
    assert f"PASS: {len(rows) + more} vectors" in done.stdout
