"""Files of students with tables: the same integers back, versions, damage, and ReLU's as before."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.random_students import random_student
from qpd.actions import Box, Discrete
from qpd.integer.integer_student import IntegerStudent
from qpd.student_files.distilled import StudentFileError, load_student, save_student
from qpd.student_files.quantized import (
    load_integer_student,
    pack_student,
    save_integer_student,
    stored_constant_bytes,
)
from qpd.students import Student, StudentArchitecture


def student_of(activation: str) -> IntegerStudent:
    return random_student(StudentArchitecture((5,), 3, (), (9, 7), activation), 4, 2, 5)


@pytest.mark.parametrize(("activation", "tables"), [("relu", 0), ("tanh", 1), ("elu", 2)])
def test_integers_and_floats_come_back(activation: str, tables: int, tmp_path: Path) -> None:
    student, path = student_of(activation), tmp_path / "quantized.safetensors"
    save_integer_student(path, student, {})
    loaded = load_integer_student(path)
    assert loaded == student and loaded.architecture.activation == activation
    assert len(loaded.tables) == tables
    head = loaded.layers[-1]
    assert head.table is None
    for layer, before in zip(loaded.layers[:-1], student.layers, strict=False):
        assert (layer.table is None) == (activation == "relu")
        assert layer.table is None or (layer.table == before.table).all()
    floats = Student(student.architecture, seed=4)
    save_student(tmp_path / "float", floats, Discrete(3), {})
    again = load_student(tmp_path / "float")
    x = torch.rand(6, 5)
    assert torch.equal(again(x).actor, floats(x).actor)
    assert again.architecture == floats.architecture


def test_relu_students_are_stored_as_ever_and_others_under_the_next_version(
    tmp_path: Path,
) -> None:
    """An older QPD would take another function for ReLU: it refuses the next version."""
    for activation, version, more in (("relu", "2", set()), ("tanh", "3", {"tables"})):
        tensors, metadata = pack_student(student_of(activation), {})
        assert metadata["format_version"] == version
        assert ("activation" in json.loads(metadata["architecture"])) == (version == "3")
        plain = {"biases", "multipliers", "shifts", "input_low", "input_high"}
        weights = {"linear1.weight", "linear2.weight", "actor.weight"}
        assert set(tensors) == plain | weights | more


def damaged(path: Path, activation: str, **changes: object) -> None:
    """A file that names `changes` of metadata, or has other `tables`."""
    tensors, metadata = pack_student(student_of(activation), {})
    if "tables" in changes:
        tensors["tables"] = torch.from_numpy(changes.pop("tables"))  # type: ignore[arg-type]
    save_file(tensors, path, {**metadata, **changes})  # type: ignore[dict-item]


ARCHITECTURE = {"observation_shape": [5], "num_actions": 3, "conv_channels": [], "hidden": [9, 7]}


@pytest.mark.parametrize(
    ("activation", "changes", "line"),
    [
        ("relu", {"format_version": "3"}, "activation relu needs format version 2"),
        ("tanh", {"format_version": "2"}, "activation tanh needs format version 3"),
        ("tanh", {"format_version": "5"}, "has format version 5, this QPD reads 2 to 4"),
        ("relu", {"format_version": "4", "integers": '{"input_bits": 9}'}, "input_bits"),
        ("relu", {"format_version": "4", "integers": '{"has_zero_weight": 1}'}, "has_zero"),
        ("relu", {"format_version": "4", "integers": '{"output_step": 0.0}'}, "output_bits"),
        (
            "relu",
            {"format_version": "4", "integers": '{"output_step": 5e-324, "output_bits": 3}'},
            "output_step",
        ),
        ("relu", {"format_version": "4", "integers": "[]"}, "integers"),
        ("tanh", {"tables": np.zeros(1023, np.uint8)}, r"tables is uint8 \(1023,\)"),
        ("elu", {"tables": np.zeros(1024, np.uint8)}, r"not uint8 \(2048,\)"),
        ("tanh", {"tables": np.full(1024, 32, np.uint8)}, "tables with levels above 31"),
        ("tanh", {"tables": np.zeros(1024, np.int32)}, "tables is int32"),
        (
            "tanh",
            {"architecture": json.dumps(ARCHITECTURE | {"activation": "sinus" * 99})},
            "unknown activation 'sinus",
        ),
        ("tanh", {"architecture": json.dumps(ARCHITECTURE | {"activation": ["tanh"]})}, "unknown"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    activation: str, changes: dict[str, object], line: str, tmp_path: Path
) -> None:
    path = tmp_path / "quantized.safetensors"
    damaged(path, activation, **changes)
    with pytest.raises(StudentFileError, match=line) as caught:
        load_integer_student(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_accumulators_beyond_32_bits_are_refused(tmp_path: Path) -> None:
    tensors, metadata = pack_student(student_of("relu"), {})
    tensors["biases"] = tensors["biases"].clone()
    tensors["biases"][-1] = 2**31 - 1  # with the products, an int32 turns negative
    save_file(tensors, tmp_path / "file", metadata)
    with pytest.raises(StudentFileError, match="actor: its accumulators may exceed int32"):
        load_integer_student(tmp_path / "file")


def test_no_tables_are_refused(tmp_path: Path) -> None:
    tensors, metadata = pack_student(student_of("tanh"), {})
    del tensors["tables"]
    save_file(tensors, tmp_path / "file", metadata)
    with pytest.raises(StudentFileError, match="'tables'"):
        load_integer_student(tmp_path / "file")


def test_a_header_tells_the_bytes_of_thresholds(tmp_path: Path) -> None:
    architecture = StudentArchitecture((5,), 2, (), (4,))
    plain = random_student(architecture, 8)
    codes = random_student(architecture, 8, actions=Box((0.0, 0.0), (1.0, 1.0)), action_bits=6)
    save_integer_student(tmp_path / "plain", plain, {})
    save_integer_student(tmp_path / "codes", codes, {})
    # 5 * 4 + 4 * 2 weights, 4 * 9 + 2 * 4; thresholds of 6 bits
    assert stored_constant_bytes(tmp_path / "plain") == 28 + 44
    assert stored_constant_bytes(tmp_path / "codes") == 28 + 44 + 4 * 63
