"""ONNX, LiteRT, SB3 and student.bin act as the integer engine does, whatever the actions are."""

import importlib.util
import io
import json
import os
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qpd import load_student_policy
from qpd.actions import Box
from qpd.export.bundle import ExportSource, golden_vectors, write_bundle
from qpd.export.c.binary import binary_student, export_bin
from qpd.export.device_actions import device_actions, environment_actions
from qpd.export.litert_flatbuffer import export_litert
from qpd.export.onnx_graph import export_onnx
from qpd.export.sb3_zip import export_sb3
from qpd.integer.integer_student import IntegerEngine, IntegerStudent, reference_outputs
from qpd.student_files.quantized import save_integer_student
from tests.export.action_students import (
    KINDS,
    observations_of,
    student_at_every_threshold,
    student_of,
)
from tests.export.runtime_models import RUNTIMES

ROOT = Path(__file__).resolve().parents[2]
EXPORTERS = {"onnx": export_onnx, "litert": export_litert, "sb3": export_sb3, "bin": export_bin}
BOXES = [name for name, (actions, *_) in KINDS.items() if isinstance(actions, Box)]
OTHERS = [name for name in KINDS if name not in BOXES]


def exported(target: str, student: IntegerStudent) -> dict[str, bytes]:
    return EXPORTERS[target](ExportSource(student, {}, "test"), golden_vectors(student))


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("model", RUNTIMES)
def test_models_give_the_engines_actions_and_codes(name: str, model: str) -> None:
    """Equal on 99% of observations, as logits are; equal codes are equal actions, bit for bit."""
    student = student_of(name)
    observations = observations_of(student)[1:]  # LiteRT's answer to NaN is its own
    actions, codes = RUNTIMES[model](student, model, observations)
    outputs = reference_outputs(student, observations)
    wanted = device_actions(student, outputs)
    assert codes.dtype == np.uint8 and codes.shape == wanted.shape
    assert actions.dtype == np.float32 and actions.shape == (299, *student.actions.shape)
    equal = (codes == wanted).all(1)
    assert equal.mean() >= 0.99
    right = environment_actions(student, outputs)
    np.testing.assert_array_equal(actions[equal], right[equal])
    # A level that is rounded the other way moves a code a little, no overflow does.
    steps = np.abs(codes.astype(int) - wanted).max()
    assert steps <= max(1, 2**student.action_bits // 50)


@pytest.mark.parametrize("model", RUNTIMES)
def test_models_are_exact_on_the_thresholds(model: str) -> None:
    student = student_at_every_threshold()
    observations = np.arange(256, dtype=np.float32)[:, None]
    outputs = np.arange(-128, 128, dtype=np.int32)[:, None]
    assert (reference_outputs(student, observations) == outputs).all()
    actions, codes = RUNTIMES[model](student, model, observations)
    assert (codes == device_actions(student, outputs)).all() and len(np.unique(codes)) > 250
    np.testing.assert_array_equal(actions, environment_actions(student, outputs))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("model", RUNTIMES)
def test_models_of_choices_give_logits(name: str, model: str) -> None:
    student = student_of(name)
    observations = observations_of(student)[1:]
    (logits,) = RUNTIMES[model](student, model, observations)
    outputs = reference_outputs(student, observations)
    integers = np.round(logits.astype(np.float64) / student.output_scale).astype(np.int32)
    assert (integers == outputs).all(1).mean() >= 0.99
    chosen = device_actions(student, integers) == device_actions(student, outputs)
    assert chosen.all(1).mean() >= 0.99


@pytest.mark.parametrize("name", KINDS)
def test_sb3_and_the_predictor_act_as_the_engine(name: str, tmp_path: Path) -> None:
    from stable_baselines3 import PPO

    student = student_of(name)
    observations = observations_of(student)
    file = tmp_path / "quantized.safetensors"
    save_integer_student(file, student, {})
    wanted = environment_actions(student, IntegerEngine(student).integer_outputs(observations))
    predictor = load_student_policy(file)
    found, _ = predictor.predict(observations, deterministic=True)
    assert found.dtype == student.actions.dtype
    np.testing.assert_array_equal(found, wanted)
    one, _ = predictor.predict(observations[5], deterministic=True)
    np.testing.assert_array_equal(one, wanted[5])
    model = PPO.load(io.BytesIO(exported("sb3", student)["student.zip"]), device="cpu")
    assert model.action_space.shape == student.actions.shape
    found, _ = model.predict(observations, deterministic=True)
    np.testing.assert_array_equal(found, wanted)
    assert model.action_space.contains(found[7])
    if isinstance(student.actions, Box):  # without a deviation, a sample is the action itself
        sampled, _ = model.predict(observations, deterministic=False)
        np.testing.assert_allclose(sampled, wanted, atol=1e-6)
        again, _ = predictor.predict(observations, deterministic=False)
        np.testing.assert_array_equal(again, wanted)


@pytest.mark.parametrize("name", KINDS)
def test_the_bin_reader_acts_as_the_engine(name: str, tmp_path: Path) -> None:
    student = student_of(name)
    files, observations = exported("bin", student), observations_of(student)
    for file in ("qpd_bin.py", "student.bin"):
        (tmp_path / file).write_bytes(files[file])
    spec = importlib.util.spec_from_file_location("qpd_bin", tmp_path / "qpd_bin.py")
    assert spec is not None and spec.loader is not None
    qpd_bin = importlib.util.module_from_spec(spec)
    # dataclass looks its module up.
    sys.modules["qpd_bin"] = qpd_bin
    spec.loader.exec_module(qpd_bin)
    read = qpd_bin.load(tmp_path / "student.bin")
    outputs = qpd_bin.integer_outputs(read, observations)
    assert (outputs == reference_outputs(student, observations)).all()
    chosen = qpd_bin.actions_of(read, outputs)
    assert (chosen == device_actions(student, outputs)).all()
    if isinstance(student.actions, Box):
        values = qpd_bin.values_of(read, chosen).reshape(-1, *student.actions.shape)
        np.testing.assert_array_equal(values, environment_actions(student, outputs))


def test_the_bytes_of_actions_in_a_student_bin() -> None:
    """After the table and the input range, as docs/bin-format.md has them."""
    student = student_of("clip-2", 2, (3,))
    packed, after = binary_student(student), 32 + 2 * 4 + 2 * 8
    assert packed[4] == 2 and packed[24:28] == struct.pack("<2BH", 1, 2, 3)
    bounds = np.array([[-1.0, -2.0, 0.1], [1.0, 3.0, 7.7]], "<f4").tobytes()
    assert student.action_thresholds is not None
    assert packed[after : after + 24] == bounds
    assert packed[after + 24 : after + 36] == struct.pack("<3i", *student.action_thresholds)
    parts = binary_student(student_of("parts", 2, (3,)))
    assert parts[4] == 2 and parts[24:28] == struct.pack("<2BH", 2, 0, 4)
    assert parts[after : after + 16] == struct.pack("<4I", 3, 1, 5, 2)
    switches = binary_student(student_of("switches", 2, (3,)))
    assert switches[4] == 2 and switches[24:28] == struct.pack("<2BH", 3, 0, 4)


def test_models_say_what_their_actions_are() -> None:
    def said(student: IntegerStudent) -> dict[str, str]:
        model = onnx.load_from_string(exported("onnx", student)["student_int8.onnx"])
        return {entry.key: entry.value for entry in model.metadata_props}

    box = said(student_of("tanh-3"))
    assert (box["action_kind"], box["action_bits"], box["action_shape"]) == ("box", "3", "[2, 2]")
    assert json.loads(box["action_low"]) == [-1.0, -2.0, 0.1, -1.0]
    assert json.loads(box["action_high"]) == [1.0, 3.0, 7.7, 2.0]
    assert box["actions"].startswith("4 continuous actions")
    parts = said(student_of("parts"))
    assert (parts["action_kind"], parts["action_nvec"]) == ("multi_discrete", "[3, 1, 5, 2]")
    assert said(student_of("switches"))["action_kind"] == "multi_binary"


@pytest.mark.parametrize(
    ("name", "target"),
    [
        # Importing Stable-Baselines3 takes seconds, twice for each.
        pytest.param(name, target, marks=[pytest.mark.slow] * (target == "sb3"))
        for name in ("tanh-3", "parts", "switches")
        for target in EXPORTERS
    ],
)
def test_readme_code_and_self_test_run_in_the_bundle(
    name: str, target: str, tmp_path: Path
) -> None:
    student, folder = student_of(name), tmp_path / "out"
    source = ExportSource(student, {"env_id": "CartPole-v1"}, "test")
    write_bundle(folder, target, source, exported(target, student))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    run_here: dict[str, Any] = {"cwd": folder, "env": environment, "capture_output": True}
    tested = subprocess.run([sys.executable, "selftest.py"], **run_here, text=True)
    assert tested.returncode == 0 and "ok" in tested.stdout, tested.stdout + tested.stderr
    (program,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert "$" not in (folder / "README.md").read_text()
    if target != "sb3":  # whose code plays in an environment with these actions
        shown = subprocess.run([sys.executable, "-c", program], **run_here, text=True)
        assert shown.returncode == 0 and shown.stdout.strip(), shown.stderr
        if name == "tanh-3" and target == "bin":  # what is printed last are actions, not codes
            shown_actions = shown.stdout[shown.stdout.rindex("[[") :]
            first = np.array(re.findall(r"-?[0-9.]+(?:e-?[0-9]+)?", shown_actions)[:4], float)
            wanted = np.load(folder / "golden.npz")["actions"][0]
            np.testing.assert_allclose(first, wanted.reshape(-1), atol=1e-6)
    if name == "tanh-3":  # golden vectors of a student with other codes for equal accumulators
        other = replace(student, output_scale=2.0 * student.output_scale)
        (folder / "golden.npz").write_bytes(exported(target, other)["golden.npz"])
        tested = subprocess.run([sys.executable, "selftest.py"], **run_here, text=True)
        assert tested.returncode == 1 and "FAILED" in tested.stdout
