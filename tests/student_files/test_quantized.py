"""quantized.safetensors: what is written is read back, at its true size; all else is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from qpd.actions import ActionSpace, Box, Discrete, MultiBinary, MultiDiscrete
from qpd.integer.integer_student import IntegerEngine, IntegerStudent, integer_student
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.student_files.distilled import StudentFileError, load_student, save_student
from qpd.student_files.origin import PREPROCESSING, student_actions
from qpd.student_files.quantized import (
    load_integer_student,
    pack_levels,
    save_integer_student,
    unpack_levels,
)
from qpd.students import Student, architecture_for

torch.set_num_threads(1)


@given(bits=st.integers(2, 8), size=st.integers(0, 70), seed=st.integers(0, 2**31))
def test_packed_levels_round_trip(bits: int, size: int, seed: int) -> None:
    levels = np.random.default_rng(seed).integers(0, 2**bits, size).astype(np.uint8)
    packed = pack_levels(levels, bits)
    assert packed.dtype == np.uint8 and packed.shape == ((size * bits + 7) // 8,)
    np.testing.assert_array_equal(unpack_levels(packed, bits, (size,)), levels)


def test_the_packing_by_hand() -> None:
    # 3 bits, lowest first: 5 = 101, 3 = 011, 7 = 111 -> bits 1 0 1, 1 1 0, 1 1 | 1.
    # Byte 0 = 1 + 4 + 8 + 16 + 64 + 128 = 221, byte 1 = 1.
    assert pack_levels(np.array([[5, 3, 7]]), 3).tolist() == [221, 1]
    assert unpack_levels(np.array([221, 1], np.uint8), 3, (3, 1)).tolist() == [[5], [3], [7]]


@pytest.mark.parametrize("packed", [np.zeros(3, np.uint8), np.zeros(1, np.uint8), np.zeros(2)])
def test_packed_bytes_of_a_wrong_size_are_refused(packed: np.ndarray) -> None:
    with pytest.raises(ValueError, match="do not hold 3 levels of 4 bits"):
        unpack_levels(packed, 4, (3,))


def student_of(size: str, **options: Any) -> IntegerStudent:
    shape = (6,) if size.startswith("mlp") else (4, 84, 84)
    student = Student(architecture_for(size, shape, 4), 1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for shape_of_layer in student.shapes:
            bias = student.layer(shape_of_layer.name).bias
            bias.copy_(0.1 * torch.randn(bias.shape, generator=generator))
    return integer_student(QuantizedStudent(student, QuantizationConfig(**options)), Discrete(4))


STUDENTS = pytest.mark.parametrize(
    ("size", "options"),
    [
        ("XXS", {"weight_bits": 8}),
        ("XXS", {"weight_bits": 2, "activation_bits": 3}),
        ("XXS", {"weight_bits": 3, "first_layer_bits": 8, "last_layer_bits": 7}),
        ("mlp-32-16", {"weight_bits": 5, "scheme": "dorefa"}),
        ("mlp-32-16", {"weight_bits": 2, "last_layer_bits": 8, "scheme": "narrow"}),
    ],
)


@STUDENTS
def test_a_file_gives_back_identical_integers(size: str, options: dict, tmp_path: Path) -> None:
    student, path = student_of(size, **options), tmp_path / "quantized.safetensors"
    save_integer_student(path, student, {"recipe": "test"})
    loaded = load_integer_student(path)
    assert loaded == student
    assert loaded.architecture == student.architecture
    assert loaded.output_scale == student.output_scale
    for one, other in zip(student.layers, loaded.layers, strict=True):
        assert (one.shape, one.bits, one.levels) == (other.shape, other.bits, other.levels)
        for name in ("weight", "bias", "multiplier", "shift"):
            before, after = getattr(one, name), getattr(other, name)
            assert (before is None) == (after is None)
            if before is not None:
                assert before.dtype == after.dtype
                np.testing.assert_array_equal(before, after)
    rng = np.random.default_rng(0)
    if student.architecture.is_image:
        inputs = rng.integers(0, 256, (2, 4, 84, 84), dtype=np.uint8)
    else:
        inputs = rng.random((5, 6), np.float32)
    np.testing.assert_array_equal(
        IntegerEngine(loaded).integer_outputs(inputs),
        IntegerEngine(student).integer_outputs(inputs),
    )


@pytest.mark.parametrize(
    "actions",
    [
        Discrete(4, "q_values"),
        MultiDiscrete((1, 3)),
        MultiBinary(4),
        Box((-1.0, 0.0, -2.0, 0.1), (1.0,) * 4, "tanh", shape=(2, 2)),
    ],
    ids=repr,
)
def test_files_tell_the_actions(actions: ActionSpace, tmp_path: Path) -> None:
    plain = student_of("mlp-8")
    student = dataclasses.replace(
        plain, actions=actions, action_bits=5 if isinstance(actions, Box) else 8
    )
    save_integer_student(tmp_path / "integer", student, {})
    assert load_integer_student(tmp_path / "integer") == student != plain
    assert student_actions(tmp_path / "integer") == actions
    save_student(tmp_path / "float", Student(plain.architecture), actions, {})
    assert student_actions(tmp_path / "float") == actions


def test_students_are_equal_where_all_their_integers_are() -> None:
    student = student_of("mlp-8", weight_bits=4)
    assert student == student_of("mlp-8", weight_bits=4) != student_of("mlp-8", weight_bits=5)
    layer = student.layers[1]
    other = dataclasses.replace(layer, bias=layer.bias + np.int32([0, 1, 0, 0]))
    assert dataclasses.replace(student, layers=(student.layers[0], other)) != student
    assert dataclasses.replace(student, output_scale=2 * student.output_scale) != student


@pytest.mark.parametrize("size", ["XXS", "M"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_the_size_on_disk_is_the_true_one(size: str, bits: int, tmp_path: Path) -> None:
    # bits / 8 bytes a parameter, 3% and 2 KB for all the rest: biases of 4 bytes, multipliers and
    # shifts of 5 a channel, and the header with what a run writes into it.
    student, path = student_of(size, weight_bits=bits), tmp_path / "quantized.safetensors"
    about = {
        "recipe": "breakout-ppo-xxs-2bit",
        "env_id": "BreakoutNoFrameskip-v4",
        "phase": "qat",
        "teacher": {"algo": "ppo", "sha256": 64 * "0"},
        "preprocessing": PREPROCESSING,
        "scheme": "dorefa_scaled",
    }
    save_integer_student(path, student, about)
    weights = sum(prod(layer.shape.weight_shape) for layer in student.layers)
    written = path.stat().st_size
    assert weights * bits / 8 <= written
    assert written <= 1.03 * student.architecture.num_parameters * bits / 8 + 2048


def test_8_bits_are_smaller_than_a_float_student_of_a_smaller_size(tmp_path: Path) -> None:
    # The paper: an 8-bit S takes fewer bytes than an fp32 XXS.
    save_integer_student(tmp_path / "s", student_of("S"), {})
    save_student(
        tmp_path / "xxs", Student(architecture_for("XXS", (4, 84, 84), 4)), Discrete(4), {}
    )
    assert (tmp_path / "s").stat().st_size < 0.85 * (tmp_path / "xxs").stat().st_size


def error_line(path: Path, load: Callable[[Path], object] = load_integer_student) -> str:
    with pytest.raises(StudentFileError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text
    return text


def rewritten(path: Path, change: Callable[[dict, dict], object]) -> Path:
    """A student's file whose metadata and tensors went through `change`."""
    save_integer_student(path, student_of("mlp-8", weight_bits=4), {})
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    del metadata["crc32"]  # a file that was meant to be so, not a damaged one
    tensors = safetensors.torch.load_file(path)
    change(metadata, tensors)
    safetensors.torch.save_file(tensors, path, metadata)
    return path


def test_a_rewritten_file_is_read_if_nothing_was_changed(tmp_path: Path) -> None:
    path = rewritten(tmp_path / "q", lambda metadata, tensors: None)
    assert len(load_integer_student(path).layers) >= 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, t: m.update(format_version="9"), "format version 9, this QPD reads 2"),
        (lambda m, t: m.update(format="other"), "not written as qpd-integer-student"),
        (lambda m, t: m.pop("weight_bits"), "weight_bits"),
        (lambda m, t: m.update(weight_bits="[9, 4]"), "weight_bits"),
        (lambda m, t: m.update(weight_bits="[4]"), "weight_bits"),
        (lambda m, t: m.update(weight_bits="[4, 8]"), "packed bytes"),
        (lambda m, t: m.update(weight_bits="{"), "integer student"),
        (lambda m, t: m.update(activation_levels="100"), "activation_levels 100"),
        (lambda m, t: m.update(logit_scale="nan"), "logit_scale"),
        (lambda m, t: m.update(actions="{"), "integer student"),
        (lambda m, t: m.update(actions='{"kind": "discrete", "n": 4}'), "labels: expected"),
        (lambda m, t: m.update(actions='{"kind": "multi_binary", "n": 5}'), "4 outputs for 5 swi"),
        (lambda m, t: m.update(actions='{"kind": "multi_binary", "n": true}'), "whole numbers"),
        (lambda m, t: m.update(action_bits="9"), "action_bits 9"),
        (lambda m, t: m.update(architecture="[]"), "integer student"),
        (lambda m, t: m.update(architecture=json.dumps({"hidden": [8]})), "integer student"),
        (lambda m, t: t.pop("actor.weight"), "actor.weight"),
        (lambda m, t: t.update({"biases": torch.zeros(12)}), "biases"),
        (lambda m, t: t.update({"shifts": 0 * t["shifts"]}), "out of range"),
        (lambda m, t: t["input_high"].copy_(t["input_low"]), "input_high"),
    ],
)
def test_files_of_another_kind_are_refused(
    change: Callable[[dict, dict], object], message: str, tmp_path: Path
) -> None:
    assert message in error_line(rewritten(tmp_path / "q.safetensors", change))


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    # JSON as Python reads it knows Infinity; int() of it raises OverflowError.
    path = rewritten(tmp_path / "q", lambda m, t: m.update(weight_bits="[Infinity, 4]"))
    assert "integer student" in error_line(path)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_cut_files_are_refused(keep: int, tmp_path: Path) -> None:
    path = rewritten(tmp_path / "quantized.safetensors", lambda metadata, tensors: None)
    path.write_bytes(path.read_bytes()[:keep])
    assert "damaged" in error_line(path)


def test_files_that_are_missing_or_no_safetensors(tmp_path: Path) -> None:
    assert "no such file" in error_line(tmp_path / "absent.safetensors")
    (tmp_path / "zip").write_bytes(b"PK\x03\x04" + bytes(200))
    assert "damaged" in error_line(tmp_path / "zip")
    assert error_line(tmp_path)  # a folder


def test_float_and_integer_students_are_not_taken_for_each_other(tmp_path: Path) -> None:
    save_student(tmp_path / "float", Student(architecture_for("mlp-8", (6,), 4)), Discrete(4), {})
    save_integer_student(tmp_path / "integer", student_of("mlp-8"), {})
    assert "not written as qpd-integer-student" in error_line(tmp_path / "float")
    assert "not written as qpd-float-student" in error_line(tmp_path / "integer", load_student)


def test_a_distilled_student_with_an_empty_input_range_is_refused(tmp_path: Path) -> None:
    student = Student(architecture_for("mlp-8", (3,), 2))
    student.input_high.copy_(student.input_low)
    save_student(tmp_path / "file", student, Discrete(2), {})
    with pytest.raises(StudentFileError, match="input_high must exceed input_low"):
        load_student(tmp_path / "file")


def test_integers_do_not_change_with_the_network_they_were_made_of() -> None:
    student = Student(architecture_for("mlp-8", (3,), 2))
    simulation = QuantizedStudent(student, QuantizationConfig(8, 8))
    integers = integer_student(simulation, Discrete(2))
    assert integers.input_low is not None
    before = integers.input_low.copy()
    student.move_input_range(torch.full((3,), -5.0), torch.full((3,), 5.0))
    np.testing.assert_array_equal(integers.input_low, before)
