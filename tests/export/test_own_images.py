"""Exports of students of own images: any size and number of channels, on a stack or not."""

import dataclasses
import math
import struct
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from benchmarks.device.runtime_policies import onnx_float_policy, onnx_policy
from benchmarks.random_students import random_student
from qpd.actions import Box, Discrete
from qpd.bench.models import run_model, size_name
from qpd.bench.teachers import group_by_teacher
from qpd.export.bundle import ExportError, ExportSource, golden_vectors, write_bundle
from qpd.export.c.code import export_c
from qpd.export.formats import EXPORTERS
from qpd.export.litert_flatbuffer import export_litert
from qpd.export.onnx_graph import export_onnx
from qpd.export.systemverilog.code import check_student
from qpd.integer.integer_student import IntegerEngine, IntegerStudent, reference_outputs
from qpd.student_files.quantized import save_integer_student
from qpd.students import StudentArchitecture
from tests.export.bin_reader import check_reader, exported, reader
from tests.export.c_programs import (
    KERNELS,
    TARGETS,
    WARNINGS,
    c_library,
    c_logits,
    needs,
    needs_gcc,
    write_c,
)


def joined(
    image: tuple[int, ...], features: int, convolutions: tuple[int, ...], hidden: tuple[int, ...]
) -> StudentArchitecture:
    """An image with features beside it."""
    shape = (math.prod(image) + features,)
    return StudentArchitecture(shape, 3, convolutions, hidden, image_shape=image)


CAMERAS = StudentArchitecture((4, 84, 84), 3, (4, 5, 4), (8,), stacks_frames=False)
# Sides with columns left over, more than one strip or one batch of patches, one patch, 5 layers.
STUDENTS = {
    "rgb": (StudentArchitecture((3, 64, 64), 4, (16, 16, 16), (32,)), 8, 8),
    "grey": (StudentArchitecture((1, 84, 84), 2, (5, 7, 3), (10, 9)), 3, 8),
    "wide": (StudentArchitecture((3, 40, 48), 3, (4, 8, 4), (6,)), 4, 4),
    "left over": (StudentArchitecture((3, 65, 70), 3, (20, 36, 17), (70,)), 5, 8),
    "one patch": (StudentArchitecture((2, 36, 39), 3, (16, 24, 36), (17,)), 8, 8),
    "tall": (StudentArchitecture((2, 161, 37), 3, (4, 4, 4), (5,)), 6, 3),
    "many patches": (StudentArchitecture((3, 120, 160), 3, (8, 4, 4), (5,)), 8, 8),
    "five layers": (StudentArchitecture((5, 87, 91), 3, (4, 8, 8, 20, 17), (5,)), 8, 8),
    "one patch of many": (StudentArchitecture((1, 100, 84), 3, (4, 4, 4, 4, 5), (5,)), 8, 8),
    "cameras": (CAMERAS, 8, 8),
    "planes beyond 16 bits": (StudentArchitecture((2, 250, 264), 3, (4, 4, 4), (5,)), 8, 8),
    "joined": (joined((3, 40, 48), 5, (4, 8, 4), (6,)), 8, 8),
    "joined, left over": (joined((3, 65, 70), 1, (20, 36, 17), (70,)), 5, 3),
    "joined, four layers": (joined((1, 87, 91), 70, (4, 8, 8, 20), (9, 8)), 3, 8),
}


def student_of(name: str) -> IntegerStudent:
    architecture, bits, activation_bits = STUDENTS[name]
    return random_student(architecture, bits, list(STUDENTS).index(name), activation_bits)


@needs_gcc
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", STUDENTS)
def test_c_gives_the_engines_logits(name: str, kernels: str, tmp_path: Path) -> None:
    student = student_of(name)
    observations = golden_vectors(student, 5).observations
    library = c_library(write_c(tmp_path / "out", student, 8), student, KERNELS[kernels])
    got = c_logits(library, student, observations)
    assert (got == IntegerEngine(student).integer_outputs(observations)).all()
    assert (got == reference_outputs(student, observations)).all()
    assert len(np.unique(got, axis=0)) > 8


@needs_gcc
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ["left over", "one patch", "one patch of many", "joined"])
def test_sanitizers_find_nothing_in_c(name: str, kernels: str, tmp_path: Path) -> None:
    folder = write_c(tmp_path / "out", student_of(name), 8)
    flags = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = ["qpd_test.c", "qpd_check.c", "qpd_network.c", "qpd_sample.c"]
    sources += ["qpd_encode.c"] * (folder / "qpd_encode.c").exists()
    command = ["gcc", *WARNINGS, *KERNELS[kernels], *flags, "-o", "test", *sources]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if "asan" in done.stderr or "ubsan" in done.stderr:
        pytest.skip("gcc has no sanitizers here")
    assert done.returncode == 0, done.stderr
    done = subprocess.run(["./test"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "ok: 8" in done.stdout, done.stdout + done.stderr


EMULATED = {
    **{name: TARGETS[name] for name in ("aarch64", "armhf", "cortex-m4", "cortex-m0")},
    "aarch64-i8mm": (
        [*TARGETS["aarch64"][0], "-march=armv8.6-a"],
        [*TARGETS["aarch64"][1], "-cpu", "max"],
    ),
}


@pytest.mark.parametrize("target", EMULATED)
@pytest.mark.parametrize("name", ["wide", "left over", "one patch", "joined"])
def test_golden_vectors_pass_on_emulated_processors(name: str, target: str, tmp_path: Path) -> None:
    compiler, runner = EMULATED[target]
    needs(compiler[0], runner[0])
    folder = write_c(tmp_path / "out", student_of(name), 8)
    sources = ["qpd_test.c", "qpd_check.c", "qpd_network.c", "qpd_sample.c"]
    sources += ["qpd_encode.c"] * (folder / "qpd_encode.c").exists()
    command = [*compiler, "-std=c99", "-O2", "-o", "test", *sources]
    subprocess.run(command, cwd=folder, check=True)
    done = subprocess.run(
        [*runner, "./test"], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert "ok: 8 golden vectors" in done.stdout + done.stderr


def test_the_c_export_of_an_image_speaks_of_no_frames() -> None:
    exported = export_c(
        ExportSource(student_of("wide"), {"algo": "dqn", "env_id": "Mine-v0"}, "mine"),
        golden_vectors(student_of("wide"), 0, 4),
    )
    assert not {"qpd_preprocess.c", "qpd_preprocess.h", "qpd_encode.c"} & set(exported)
    header, readme = exported["qpd_student.h"].decode(), exported["README.md"].decode()
    for line in ("QPD_CHANNELS 3", "QPD_HEIGHT 40", "QPD_WIDTH 48", "QPD_OWN_IMAGE 1"):
        assert f"#define {line}\n" in header
    assert "an image of 3x40x48" in header and "uint8 [3][40][48]" in readme
    for word in ("frame", "screen", "210", "84", "probability 0.01", "Atari"):
        assert word not in readme.replace("No frames are stacked", ""), word


@needs_gcc
def test_codes_of_continuous_actions_are_compared_by_make_test(tmp_path: Path) -> None:
    architecture = StudentArchitecture((3, 40, 48), 2, (4, 4, 4), (8,))
    student = random_student(architecture, actions=Box((-1.0, 0.0), (1.0, 5.0)))
    folder = write_c(tmp_path / "out", student, 8)
    done = subprocess.run(["make", "test"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and "ok: 8" in done.stdout, done.stdout + done.stderr


def test_a_stack_is_exported_with_its_preprocessing_and_four_cameras_without() -> None:
    for stacks in (True, False):
        architecture = StudentArchitecture((4, 84, 84), 3, (4, 4, 4), (8,), stacks_frames=stacks)
        student = random_student(architecture, 4)
        exported = export_c(ExportSource(student, {}, "test"), golden_vectors(student, 0, 2))
        assert ("qpd_preprocess.c" in exported) == stacks
        assert isinstance(student.actions, Discrete)


def test_the_c_export_says_where_features_go_beside_an_image() -> None:
    student = student_of("joined")
    about = {"algo": "ppo", "env_id": "Mine-v0", "features": [["arm", 4], ["gear", 1]]}
    exported = export_c(ExportSource(student, about, "mine"), golden_vectors(student, 0, 4))
    header, readme = exported["qpd_student.h"].decode(), exported["README.md"].decode()
    for line in ("QPD_INPUT_BYTES 5765", "QPD_FEATURES 5", "QPD_INPUT_TOP 255", "QPD_WIDTH 48"):
        assert f"#define {line}\n" in header
    assert "an image of 3x40x48 and 5 features" in header
    assert "/* arm[3] */" in header and "/* gear */" in header
    assert "uint8 [3][40][48]" in readme and "| 4 | gear |" in readme
    assert "qpd_levels_from_floats(values, levels)" in readme
    with pytest.raises(ExportError, match="students of images"):
        check_student(student)


def test_more_features_than_the_c_runtime_counts_are_refused() -> None:
    student = random_student(joined((1, 36, 36), 65_536, (4, 4, 4), (5,)))
    with pytest.raises(ExportError, match="at most 65,535 features"):
        export_c(ExportSource(student, {}, "mine"), golden_vectors(student, 0, 2))


@pytest.mark.parametrize("name", ["joined", "joined, left over", "joined, four layers"])
def test_onnx_joins_features_as_the_engine_does(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    student = student_of(name)
    source, golden = ExportSource(student, {}, name), golden_vectors(student, 1)
    write_bundle(tmp_path / "onnx", "onnx", source, export_onnx(source, golden))
    for policy in (onnx_policy, onnx_float_policy):
        logits = policy(tmp_path / "onnx")(golden.observations)
        integers = np.round(logits.astype(np.float64) / student.output_scale)
        assert (integers == golden.logits).all(1).mean() >= 0.8
        assert np.abs(integers - golden.logits).max() < 5e-3 * np.ptp(golden.logits)


@pytest.mark.parametrize("name", STUDENTS)
def test_the_bin_reader_gives_the_engines_logits(name: str, tmp_path: Path) -> None:
    check_reader(student_of(name), tmp_path / "bin")


def test_a_bin_says_how_large_images_are(tmp_path: Path) -> None:
    folder = exported(tmp_path / "bin", student_of("left over"))
    data = (folder / "student.bin").read_bytes()
    assert data[4] == 5 and struct.unpack_from("<3I", data, 32 + 4 * 5) == (3, 65, 70)
    stack = random_student(StudentArchitecture((4, 84, 84), 3, (4, 4, 4), (8,)), 4)
    folder = exported(tmp_path / "stack", stack)
    assert (folder / "student.bin").read_bytes()[4] == 1  # as ever
    done = subprocess.run([sys.executable, "selftest.py"], cwd=tmp_path / "bin", check=False)
    assert done.returncode == 0
    # One row more than there is: its weights cannot be those of the file.
    qpd_bin = reader(folder)
    wrong = bytearray(data[:28] + bytes(4) + data[32:])
    struct.pack_into("<I", wrong, 32 + 4 * 5 + 4, 69)
    crc = qpd_bin.zlib.crc32(bytes(wrong[:28] + wrong[32:]))
    struct.pack_into("<I", wrong, 28, crc)
    (tmp_path / "wrong.bin").write_bytes(bytes(wrong))
    with pytest.raises(ValueError):
        qpd_bin.load(tmp_path / "wrong.bin")


@pytest.mark.parametrize("name", ["rgb", "wide", "left over", "tall", "five layers", "cameras",
     "joined", "joined, left over", "joined, four layers"],
)  # fmt: skip
def test_litert_gives_the_engines_logits(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    from benchmarks.device.runtime_policies import litert_policy

    student = student_of(name)
    source, golden = ExportSource(student, {}, name), golden_vectors(student, 1)
    write_bundle(tmp_path / "litert", "litert", source, export_litert(source, golden))
    logits = litert_policy(tmp_path / "litert")(golden.observations)
    integers = np.round(logits.astype(np.float64) / student.output_scale)
    # A factor of 24 bits may round a tie the other way: a level, not an overflow.
    assert (integers == golden.logits).all(1).mean() >= 0.8
    assert np.abs(integers - golden.logits).max() < 5e-3 * np.ptp(golden.logits)
    command = [sys.executable, "selftest.py"]
    done = subprocess.run(command, cwd=tmp_path / "litert", capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    shape = ", ".join(map(str, student.architecture.observation_shape))
    if student.architecture.is_image:
        assert f"uint8 [batch, {shape}]" in (tmp_path / "litert" / "README.md").read_text()
    else:
        assert (litert_batch(tmp_path / "litert", golden.observations) == logits).all()


def litert_batch(folder: Path, vectors: np.ndarray) -> np.ndarray:
    """Return the logits of all vectors at once, as the bundle's README says."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(folder / "student.tflite"), num_threads=1)
    source = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(source, vectors.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(source, vectors)
    interpreter.invoke()
    logits: np.ndarray = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    return logits


@pytest.mark.parametrize("target", ["onnx", "litert", "bin", "sb3"])
def test_no_bundle_takes_an_image_for_ataris_frames(target: str) -> None:
    module, function = EXPORTERS[target].split(":")
    needed = {"onnx": "onnx", "litert": "ai_edge_litert", "sb3": "stable_baselines3"}
    pytest.importorskip(needed.get(target, "numpy"))
    export = getattr(import_module(module), function)
    student = student_of("wide")
    source = ExportSource(student, {"algo": "dqn", "env_id": "Mine-v0"}, "mine")
    readme = export(source, golden_vectors(student, 0, 2))["README.md"].decode()
    for word in ("Atari", "atari", "84", "frames", "probability 0.01", "emulator"):
        assert word not in readme, word
    if target == "sb3":
        assert 'gymnasium.make("Mine-v0")' in readme and "DQN.load" in readme
    else:
        assert "the image of Mine-v0 as it is, 3x40x48 channels first, uint8 0..255" in readme
        assert "take the argmax" in readme


def test_the_bench_times_images_on_images(tmp_path: Path) -> None:
    stack = random_student(StudentArchitecture((4, 84, 84), 3, (16, 16, 16), (32,)))
    frames = np.zeros((16, 4, 84, 84), np.uint8)
    for name, student in (("wide", student_of("wide")), ("cameras", student_of("cameras"))):
        save_integer_student(tmp_path / f"{name}.safetensors", student, {})
        model = run_model(tmp_path / f"{name}.safetensors")
        timed = model.timed_on(frames)
        assert timed.shape[1:] == student.architecture.observation_shape
        np.testing.assert_array_equal(timed, model.observations)
        (group,), (note,) = group_by_teacher([model])  # no teacher of other images beside it
        assert group.teacher is None and "no ratio" in note
    save_integer_student(tmp_path / "stack.safetensors", stack, {})
    model = run_model(tmp_path / "stack.safetensors")
    assert model.timed_on(frames) is frames and model.size == "XXS"
    own = dataclasses.replace(stack.architecture, stacks_frames=False)
    assert size_name(own) == "XXS"
