"""Students with a zero among their weights: three phases, one file, equal integers in exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from qpd.export.bundle import ExportSource, golden_vectors
from qpd.export.systemverilog.code import export_systemverilog
from qpd.integer.integer_student import IntegerEngine, reference_outputs
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.quantized import load_integer_student
from tests.export.c_programs import c_library, c_logits, needs_gcc, write_c
from tests.export.test_systemverilog import needs_verilator, played
from tests.tiny_run import Follower, recipe_of, work

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def narrow(teacher_zip: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run whose student has weights of 2 bits, and of 8 in its last layer."""
    quantize = {"scheme": "narrow", "weight_bits": 2, "last_layer_bits": 8, "activation_bits": 2}
    path = tmp_path_factory.mktemp("runs") / "narrow"
    recipe = recipe_of(teacher_zip, quantize=quantize, finetune={"lr": 0.02})
    work(path, recipe, Follower())
    return RunDirectory.open(path)


def test_weights_are_symmetric_with_a_zero(narrow: RunDirectory) -> None:
    student = load_integer_student(narrow.quantized_file)
    first, last = (set(layer.weight.ravel().tolist()) for layer in student.layers)
    assert student.has_zero_weight and first == {-2, 0, 2}
    assert max(map(abs, last)) <= 254 and not any(each % 2 for each in last)


def test_phase_3_trains_through_the_zero(narrow: RunDirectory) -> None:
    before, after = (
        load_integer_student(file).layers[0].weight
        for file in (narrow.ptq_file, narrow.quantized_file)
    )
    assert ((before == 0) != (after == 0)).any()


@needs_gcc
def test_c_computes_its_integers(narrow: RunDirectory, tmp_path: Path) -> None:
    student = load_integer_student(narrow.quantized_file)
    states = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    engine = IntegerEngine(student).integer_outputs(states)
    np.testing.assert_array_equal(engine, reference_outputs(student, states))
    library = c_library(write_c(tmp_path / "c", student), student, ["-O2"])
    np.testing.assert_array_equal(c_logits(library, student, states), engine)


@needs_verilator
@pytest.mark.parametrize("multipliers", [4, "all"])
def test_the_core_computes_its_integers(
    narrow: RunDirectory, multipliers: object, tmp_path: Path
) -> None:
    student = load_integer_student(narrow.quantized_file)
    golden = golden_vectors(student, n=40)
    files = export_systemverilog(ExportSource(student, {}, "student"), golden, multipliers)  # type: ignore[arg-type]
    done = played(tmp_path / "core", files)
    assert done.returncode == 0 and "PASS" in done.stdout, done.stdout + done.stderr
