"""The reader on docs/file-format.md, which shares no code with QPD, computes the same logits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.random_students import random_student
from qpd.export.bundle import ExportSource, golden_vectors
from qpd.export.c.code import export_c
from qpd.files.atomic import write_bytes
from qpd.integer.integer_student import IntegerEngine, IntegerStudent
from qpd.student_files.quantized import load_integer_student, save_integer_student
from qpd.students import StudentArchitecture, architecture_for

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "runs-reference"
BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "file-format.md").read_text(), re.DOTALL
)
READER, EXAMPLE, C_READER = BLOCKS


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the page's code defines."""
    names: dict[str, Any] = {}
    exec(READER + C_READER, names)
    return names


def observations(student: IntegerStudent, count: int) -> np.ndarray:
    """Random frames, or vectors of which some lie beyond the range, and on halves of a level."""
    rng = np.random.default_rng(1)
    if student.input_low is None or student.input_high is None:
        shape = student.architecture.observation_shape
        return rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    low, high = student.input_low, student.input_high
    top = student.input_levels
    halves = rng.integers(-20, 2 * top + 20, (count, len(low))) / np.float32(2 * top)
    values = (low + halves * (high - low)).astype(np.float32)
    # No level of its own for what is no number; the others saturate.
    values[:3] = np.resize(np.array([np.nan, np.inf, -np.inf], np.float32), (3, len(low)))
    if (image := student.architecture.image_shape) is not None:
        pixels = rng.integers(0, 256, (count, *image)).reshape(count, -1)
        values = np.concatenate([pixels.astype(np.float32), values], 1)
    return values


STUDENTS = {
    "frames, 2 bits inside": RUNS / "breakout-ppo-xxs-2bit",
    "frames, five convolutions": RUNS / "breakout-ppo-2kb",
    "frames, 8 bits": RUNS / "breakout-ppo-xxs",
    "vectors": RUNS / "classic-ppo-cartpole",
    "even weights of 2 bits, inputs of 4": RUNS / "controllers/hopper/core-2-width-128-input-4",
    "vectors of Q-values": RUNS / "classic-dqn-lunarlander",
    "vectors, 3 bits, two layers": architecture_for("mlp-17-9", (5,), 3),
    "an image and features": StudentArchitecture(
        (3 * 40 * 48 + 5,), 3, (9, 6, 7), (12,), image_shape=(3, 40, 48)
    ),
    "vectors, tanh, one table": StudentArchitecture((5,), 3, (), (17, 9), "tanh"),
    "vectors, ELU, two tables": StudentArchitecture((5,), 3, (), (17, 9), "elu"),
    "frames, 5 bits, four convolutions": StudentArchitecture(
        (4, 84, 84), 6, (9, 12, 6, 7), (33, 12)
    ),
    "images of one's own, not square": StudentArchitecture((3, 41, 54), 3, (9, 12, 6), (33,)),
}


@pytest.fixture(params=STUDENTS)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The quantized.safetensors of a reference run, or of a student made up."""
    source = STUDENTS[request.param]
    if isinstance(source, Path):
        return source / "quantized.safetensors"
    bits = 3 if source.conv_channels == () else 5
    path = tmp_path / "quantized.safetensors"
    save_integer_student(path, random_student(source, bits), {"name": "Zoë", "seed": 0})
    return path


def test_the_page_reads_the_same_student(page: dict[str, Any], file: Path) -> None:
    student = load_integer_student(file)
    inputs = observations(student, 8)
    read = page["read_student"](file)
    expected = IntegerEngine(student).integer_outputs(inputs)
    np.testing.assert_array_equal(page["integer_outputs"](read, inputs), expected)
    assert len(np.unique(expected)) > student.architecture.num_outputs
    assert float(read[0]["logit_scale"]) == student.output_scale
    for (weight, *_), layer in zip(read[2], student.layers, strict=True):
        np.testing.assert_array_equal(weight, layer.weight)


def test_the_page_reads_the_constants_in_c(page: dict[str, Any], file: Path) -> None:
    student = load_integer_student(file)
    files = export_c(ExportSource(student, {}, "test"), golden_vectors(student, 0, 2))
    header = files["qpd_layers.h"].decode()
    for layer in student.layers:
        name, shape = layer.shape.name, layer.weight.shape
        architecture = student.architecture
        after_image = name == "linear1" and architecture.image_shape is not None
        channels = architecture.conv_channels[-1] if after_image else None
        features = architecture.num_features if after_image else 0
        weight = page["c_weights"](
            header, name, shape, layer.bits, student.has_zero_weight, channels, features
        )
        np.testing.assert_array_equal(weight, layer.weight)


def test_the_page_detects_damage(page: dict[str, Any], file: Path, tmp_path: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    path = tmp_path / "damaged.safetensors"
    write_bytes(path, bytes(content))
    if b"crc32" in content:
        with pytest.raises(ValueError, match="is damaged"):
            page["read_student"](path)
    else:
        page["read_student"](path)


def test_the_example_runs(
    page: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exec(EXAMPLE, page)
    student = load_integer_student(RUNS / "classic-ppo-cartpole" / "quantized.safetensors")
    logits = IntegerEngine(student).integer_outputs(np.zeros((1, 4), np.float32))
    assert capsys.readouterr().out.startswith(str(logits))


def test_the_reader_needs_numpy_alone_and_is_short() -> None:
    imported = set(re.findall(r"^(?:import|from) (\w+)", READER + C_READER, re.MULTILINE))
    assert imported == {"json", "zlib", "numpy", "re"}
    assert sum(bool(line.strip()) for line in READER.splitlines()) <= 85
