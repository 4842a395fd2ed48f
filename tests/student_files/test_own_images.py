"""Files of students of own images that have the shape of Atari's stacks, and of those stacks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.random_students import random_student
from qpd.actions import Discrete
from qpd.export.bundle import golden_vectors
from qpd.integer.integer_student import IntegerEngine
from qpd.student_files.distilled import (
    StudentFileError,
    architecture_from_json,
    architecture_to_json,
    load_student,
    save_student,
)
from qpd.student_files.quantized import load_integer_student, pack_student, save_integer_student
from qpd.students import Student, StudentArchitecture

STACK = StudentArchitecture((4, 84, 84), 3, (4, 4, 4), (8,))
CAMERAS = StudentArchitecture((4, 84, 84), 3, (4, 4, 4), (8,), stacks_frames=False)


def test_the_shape_of_a_stack_is_one_unless_it_is_said_not_to_be() -> None:
    assert STACK.stacks_frames and not CAMERAS.stacks_frames and STACK != CAMERAS
    small = StudentArchitecture((3, 40, 48), 3, (4, 4, 4), (8,))
    assert not small.stacks_frames
    assert small == StudentArchitecture((3, 40, 48), 3, (4, 4, 4), (8,), stacks_frames=False)
    with pytest.raises(ValueError, match=r"a stack of frames has \(4, 84, 84\)"):
        StudentArchitecture((3, 40, 48), 3, (4, 4, 4), (8,), stacks_frames=True)


def test_files_say_so_and_those_of_stacks_are_as_ever() -> None:
    written = architecture_to_json(STACK)
    assert set(written) == {"observation_shape", "num_actions", "conv_channels", "hidden"}
    assert architecture_from_json(written) == STACK
    assert architecture_to_json(CAMERAS) == written | {"stacks_frames": False}
    assert architecture_from_json(architecture_to_json(CAMERAS)) == CAMERAS
    for wrong in (0, "false", []):
        with pytest.raises(ValueError, match="stacks_frames"):
            architecture_from_json(written | {"stacks_frames": wrong})
    with pytest.raises(ValueError, match="a stack of frames"):
        architecture_from_json(written | {"observation_shape": [3, 84, 84], "stacks_frames": True})


def test_a_student_of_four_cameras_comes_back_and_computes_the_same(tmp_path: Path) -> None:
    student = random_student(CAMERAS, 4)
    save_integer_student(tmp_path / "q", student, {})
    again = load_integer_student(tmp_path / "q")
    assert again == student and again.architecture.stacks_frames is False
    # An older QPD reads the file as one of a stack: the numbers are the same.
    tensors, metadata = pack_student(student, {})
    fields = json.loads(metadata["architecture"])
    del fields["stacks_frames"]
    save_file(tensors, tmp_path / "old", metadata | {"architecture": json.dumps(fields)})
    old = load_integer_student(tmp_path / "old")
    assert old.architecture.stacks_frames
    golden = golden_vectors(student)
    for each in (again, old):
        np.testing.assert_array_equal(
            IntegerEngine(each).integer_outputs(golden.observations), golden.logits
        )
    floats = Student(CAMERAS, seed=4)
    save_student(tmp_path / "f", floats, Discrete(3), {})
    loaded, images = load_student(tmp_path / "f"), torch.from_numpy(golden.observations)
    assert loaded.architecture == CAMERAS
    assert torch.equal(loaded(images).actor, floats(images).actor)
    stacked = Student(STACK, seed=4)(images).actor
    torch.testing.assert_close(stacked, floats(images).actor, rtol=0, atol=1e-5)  # another order


def test_a_damaged_field_is_an_error_of_one_line(tmp_path: Path) -> None:
    tensors, metadata = pack_student(random_student(CAMERAS, 4), {})
    fields = json.loads(metadata["architecture"]) | {"stacks_frames": 1}
    save_file(tensors, tmp_path / "q", metadata | {"architecture": json.dumps(fields)})
    with pytest.raises(StudentFileError, match="stacks_frames is neither true nor false"):
        load_integer_student(tmp_path / "q")
