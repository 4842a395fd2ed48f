"""Hidden layers by a table: every export gives the integer engine's numbers, all of them."""

from __future__ import annotations

import importlib.util
import io
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.random_students import random_student
from qpd.actions import Box, MultiDiscrete
from qpd.export.bundle import ExportSource, golden_vectors, write_bundle
from qpd.export.c.binary import export_bin
from qpd.export.c.sizes import c_constant_bytes, flash_arena_bytes, weight_bytes
from qpd.export.device_actions import device_actions, environment_actions
from qpd.export.sb3_zip import sb3_zip
from qpd.integer.constant_bytes import constant_bytes
from qpd.integer.integer_student import IntegerEngine, IntegerStudent, reference_outputs
from qpd.student_files.quantized import save_integer_student, stored_constant_bytes
from qpd.students import StudentArchitecture
from tests.export.action_students import HIGH, LOW, observations_of
from tests.export.arduino_library import library, uno_program
from tests.export.c_programs import (
    LIBRARY,
    TARGETS,
    c_library,
    needs,
    needs_gcc,
    pointer,
    write_c,
)
from tests.export.runtime_models import RUNTIMES

# function, bits of weights and of activations, hidden widths (VNNI pads 33 and takes 64 whole)
CASES = {
    "tanh": ("tanh", 8, 8, (33, 20)),
    "elu": ("elu", 4, 5, (64, 16, 9)),
    "silu": ("silu", 8, 3, (64, 64)),
}
EVERY = pytest.mark.parametrize("case", CASES)


def student_of(case: str, is_box: bool = True) -> IntegerStudent:
    activation, bits, activation_bits, hidden = CASES[case]
    actions = Box(LOW, HIGH, "tanh") if is_box else MultiDiscrete((3, 2, 4))
    architecture = StudentArchitecture((8,), actions.num_outputs, (), hidden, activation)
    return random_student(architecture, bits, 3, activation_bits, actions)


@EVERY
def test_activations_use_their_tables(case: str) -> None:
    """Else what follows would show nothing."""
    student, levels = student_of(case), None
    for layer in student.layers[:-1]:
        before = student.encode(observations_of(student)) if levels is None else levels
        acc = before.astype(np.int64) @ layer.weight.T.astype(np.int64) + layer.bias
        assert layer.multiplier is not None and layer.shift is not None and layer.table is not None
        half = np.int64(1) << (layer.shift.astype(np.int64) - 1)
        index = np.clip((acc * layer.multiplier + half) >> layer.shift, 0, 1023)
        assert np.percentile(index, 5) < 450 < 570 < np.percentile(index, 95)
        levels = layer.table[index]
        assert len(np.unique(levels)) >= min(2**8, layer.levels + 1) // 3


@EVERY
@pytest.mark.parametrize("is_box", [True, False])
@pytest.mark.parametrize("model", RUNTIMES)
def test_models_are_exact(case: str, is_box: bool, model: str) -> None:
    student = student_of(case, is_box)
    observations = observations_of(student, 600)[1:]  # LiteRT's answer to NaN is its own
    outputs = reference_outputs(student, observations)
    found = RUNTIMES[model](student, model, observations)
    if is_box:
        np.testing.assert_array_equal(found[0], environment_actions(student, outputs))
        np.testing.assert_array_equal(found[1], device_actions(student, outputs))
    else:
        integers = np.round(found[0].astype(np.float64) / student.output_scale)
        np.testing.assert_array_equal(integers, outputs)
    assert len(np.unique(outputs, axis=0)) > 100


@pytest.mark.parametrize("model", RUNTIMES)
def test_models_are_exact_on_the_edges_of_indices(model: str) -> None:
    """Gains whose products float32 cannot tell from the edge between two indices."""
    student = student_of("tanh", is_box=False)
    layer = student.layers[0]
    assert layer.multiplier is not None and layer.shift is not None
    # acc * 2^-8 is an index and a half where acc is 128 more than a multiple of 256; one unit of
    # the multiplier less, and it is not.
    layer.multiplier[:], layer.shift[:] = 2**30, 38
    layer.multiplier[::2] -= 1
    layer.bias[:] = 256 * 500 - 128 + 2 * np.arange(len(layer.bias)) // 2
    observations = observations_of(student, 600)[1:]
    outputs = reference_outputs(student, observations)
    (logits,) = RUNTIMES[model](student, model, observations)
    integers = np.round(logits.astype(np.float64) / student.output_scale)
    np.testing.assert_array_equal(integers, outputs)


@EVERY
def test_sb3_acts_as_the_engine(case: str) -> None:
    from stable_baselines3 import PPO

    student = student_of(case)
    observations = observations_of(student)
    model = PPO.load(io.BytesIO(sb3_zip(ExportSource(student, {}, "test"))), device="cpu")
    found, _ = model.predict(observations, deterministic=True)
    outputs = IntegerEngine(student).integer_outputs(observations)
    np.testing.assert_array_equal(found, environment_actions(student, outputs))


@EVERY
def test_the_reader_of_student_bin_is_exact(case: str, tmp_path: Path) -> None:
    student = student_of(case)
    source = ExportSource(student, {}, "test")
    files = export_bin(source, golden_vectors(student))
    write_bundle(tmp_path / "bin", "bin", source, files)
    spec = importlib.util.spec_from_file_location("qpd_bin", tmp_path / "bin" / "qpd_bin.py")
    assert spec is not None and spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    read = reader.load(tmp_path / "bin" / "student.bin")
    observations = observations_of(student)
    outputs = reference_outputs(student, observations)
    np.testing.assert_array_equal(reader.integer_outputs(read, observations), outputs)
    # header, layers, 8 features, bounds of 3 actions, the tables' number; the rest is constants
    places = 32 + 4 * len(student.layers) + 8 * 8 + 8 * 3 + 4
    content = files["student.bin"]
    assert content[4] == 3 and len(content) == places + c_constant_bytes(student)
    assert f"{c_constant_bytes(student):,} bytes of constants" in files["README.md"].decode()


@needs_gcc
@EVERY
@pytest.mark.parametrize("kernels", ["-march=native", "-DQPD_PORTABLE"])
def test_c_is_exact(case: str, kernels: str, tmp_path: Path) -> None:
    student = student_of(case)
    library = c_library(write_c(tmp_path / "c", student), student, [kernels])
    observations = observations_of(student)
    row = np.zeros(student.architecture.num_outputs, np.int32)
    wanted = reference_outputs(student, observations)
    for levels, outputs in zip(student.encode(observations), wanted, strict=True):
        library.qpd_outputs(pointer(levels), pointer(row))
        assert (row == outputs).all()


@pytest.mark.parametrize("target", TARGETS)
def test_golden_vectors_pass_on_every_target(target: str, tmp_path: Path) -> None:
    compiler, runner = TARGETS[target]
    needs(compiler[0], *runner[:1])
    folder = write_c(tmp_path / "c", student_of("elu"))
    sources = ["qpd_test.c", "qpd_check.c", *LIBRARY]
    command = [*compiler, "-std=c99", "-DQPD_PORTABLE", "-o", "test", *sources]

    def played() -> str:
        subprocess.run(command, cwd=folder, check=True)
        run = [*runner, "./test"]
        ran = subprocess.run(
            run, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        return ran.stdout + ran.stderr

    assert "ok: 32 golden vectors" in played()
    if target == "x86-64":  # and a table of zeros is noticed
        header = folder / "qpd_layers.h"
        text = header.read_text()
        start = text.index("qpd_table_1[1024] = {") + len("qpd_table_1[1024] = {")
        header.write_text(text[:start] + "0" + text[text.index("}", start) :])
        assert "FAILED: vector 1" in played()


def test_an_emulated_uno_looks_levels_up_in_flash(tmp_path: Path) -> None:
    needs("avr-gcc", "avr-g++", "simavr")
    architecture = StudentArchitecture((5,), 2, (), (12, 8), "tanh")
    student = random_student(architecture, 4, 3, actions=MultiDiscrete((2,)))
    folder = library(tmp_path / "library", student)
    sizes = uno_program(folder, tmp_path)
    assert sizes["bss"] + sizes["data"] < flash_arena_bytes(student) + 200  # no kilobyte in RAM
    emulator = ["simavr", "-m", "atmega328p", "-f", "16000000", str(tmp_path / "program.elf")]
    ran = subprocess.run(emulator, capture_output=True, text=True, check=True, timeout=120)
    assert "PASS: 32 golden vectors of test" in ran.stdout + ran.stderr


def test_constants_count_tables_and_thresholds(tmp_path: Path) -> None:
    shapes = StudentArchitecture((2,), 2, (), (3,)).layer_shapes()
    plain = constant_bytes(shapes, [2, 8])
    assert constant_bytes(shapes, [2, 8], 2, 255) == plain + 2 * 1024 + 4 * 255
    for case, tables in (("tanh", 1), ("elu", 3), ("silu", 2)):
        student, file = student_of(case), tmp_path / case
        save_integer_student(file, student, {})
        weights = constant_bytes(
            [y.shape for y in student.layers], [y.bits for y in student.layers]
        )
        assert weight_bytes(student) == weights + 1024 * tables
        # What `qpd show` and cards state, from the file's header, is what the C export holds.
        assert stored_constant_bytes(file) == c_constant_bytes(student)
        assert stored_constant_bytes(file) == weight_bytes(student) + 4 * 255
