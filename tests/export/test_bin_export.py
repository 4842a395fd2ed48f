"""student.bin: 32 bytes of header, the C export's constants, and a reader in NumPy alone."""

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from benchmarks.random_students import random_student
from qpd.actions import Discrete
from qpd.cli import main
from qpd.export.bundle import load_export_source
from qpd.export.c.binary import binary_student
from qpd.export.c.sizes import weight_bytes
from qpd.integer.constant_bytes import constant_bytes
from qpd.integer.integer_student import IntegerLayer, IntegerStudent
from qpd.students import LayerShape, StudentArchitecture
from tests.export.bin_reader import check_reader, exported, reader

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs-reference"
CARTPOLE = RUNS / "classic-ppo-cartpole"


STUDENTS = [
    (StudentArchitecture((4, 84, 84), 18, (5, 7, 3), (10, 9)), 3, 8),
    (StudentArchitecture((4, 84, 84), 4, (6, 9, 5, 12), (23,)), 6, 4),
    (StudentArchitecture((7,), 3, (), (33, 5)), 5, 8),
    (StudentArchitecture((8,), 2, (), (20,)), 8, 3),
]


@pytest.mark.parametrize("case", range(len(STUDENTS)))
def test_the_reader_gives_the_engines_logits(case: int, tmp_path: Path) -> None:
    architecture, bits, activation_bits = STUDENTS[case]
    check_reader(random_student(architecture, bits, case, activation_bits), tmp_path / "bin")


@pytest.mark.parametrize("run", ["breakout-ppo-xxs-2bit", "classic-qrdqn-lunarlander"])
def test_mixed_bits_and_trained_students(run: str, tmp_path: Path) -> None:
    check_reader(load_export_source(RUNS / run).student, tmp_path / "bin")


def test_every_byte_of_a_small_student_by_hand() -> None:
    """2 features, 3 hidden units of 2 bits, 2 actions of 8, as docs/bin-format.md has it."""
    architecture = StudentArchitecture((2,), 2, (), (3,))
    hidden, actor = architecture.layer_shapes()
    layers = (
        IntegerLayer(
            hidden,
            2,
            np.array([[-3, 3], [1, -1], [-1, -3]], np.int16),  # levels n: 0 3, 2 1, 1 0
            np.array([1, -2, 3], np.int32),
            np.array([4, 5, 6], np.int32),
            np.array([7, 8, 9], np.int32),
            15,
        ),
        IntegerLayer(
            actor,
            8,
            np.array([[-255, 255, 1], [-1, 3, 5]], np.int16),  # n - 128: -128 127 0, -1 1 2
            np.array([10, -11], np.int32),
            None,
            None,
            15,
        ),
    )
    ranges = np.array([-1, 0], np.float32), np.array([1, 0.5], np.float32)
    packed = binary_student(IntegerStudent(architecture, layers, 0.25, Discrete(2), *ranges))
    body = (
        struct.pack("<HBBHBB", 3, 2, 0, 2, 8, 0)
        + struct.pack("<4f", -1, 0, 1, 0.5)
        + struct.pack("<3i2i", 1, -2, 3, 10, -11)
        + struct.pack("<3i", 4, 5, 6)
        + bytes([7, 8, 9])
        + bytes([0b1100, 0b0110, 0b0001])  # a row of 2 bits a weight is one byte, low bits first
        + struct.pack("<6b", -128, 127, 0, -1, 1, 2)
    )
    start = b"QPDB" + bytes([1, 2, 0, 15]) + struct.pack("<HHIdI", 2, 2, len(body), 0.25, 0)
    assert len(start) == 28 and len(body) == 68
    assert packed == start + struct.pack("<I", zlib.crc32(start + body)) + body
    # weights 3 and 6, biases 20, multipliers 12, shifts 3; a table of 8, ranges of 16
    assert constant_bytes([hidden, actor], [2, 8]) == 3 + 6 + 20 + 12 + 3 == len(body) - 8 - 16


def test_constants_are_those_of_the_c_export(tmp_path: Path) -> None:
    student = load_export_source(CARTPOLE).student
    # (4 * 32 + 32 * 2) weights, 32 * 9 + 2 * 4; header, 4 bytes a layer, 8 a feature
    assert weight_bytes(student) == 192 + 296 == 488
    assert len(binary_student(student)) == 32 + 2 * 4 + 4 * 8 + 488
    four = load_export_source(RUNS / "breakout-ppo-xxs-4bit").student
    assert len(binary_student(four)) == 32 + 5 * 4 + weight_bytes(four)
    # 6 weights of 3 bits in a row: 18 bits are 3 bytes, 12 are 2
    shapes = [LayerShape("linear1", "linear", (5, 6), 1, (5,)),
              LayerShape("actor", "linear", (2, 4), 1, (2,))]  # fmt: skip
    assert constant_bytes(shapes, [3, 3]) == 5 * (3 + 9) + 2 * (2 + 4)


def test_the_command_and_the_selftest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(CARTPOLE), "--format", "bin", "-o", str(folder), "--json"])
    assert stopped.value.code == 0
    assert json.loads(capsys.readouterr().out)["files"]["student.bin"] == 560
    readme = (folder / "README.md").read_text()
    assert "560 bytes" in readme and "488 bytes" in readme and "$" not in readme
    test = [sys.executable, str(folder / "selftest.py")]
    right = subprocess.run(test, capture_output=True, text=True, check=False)
    assert right.returncode == 0 and "ok     student.bin: of 256 golden" in right.stdout
    # The README's example
    (program,) = [part.split("```")[0] for part in readme.split("```python\n")[1:]]
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )
    assert len(ran.stdout.strip("[]\n ").split()) == 256
    data = bytearray((folder / "student.bin").read_bytes())
    data[300] ^= 1
    (folder / "student.bin").write_bytes(data)
    wrong = subprocess.run(test, capture_output=True, text=True, check=False)
    assert wrong.returncode == 1 and "damaged" in wrong.stdout


def test_damage_is_refused(tmp_path: Path) -> None:
    folder = exported(tmp_path / "bin", load_export_source(CARTPOLE).student)
    qpd_bin, whole = reader(folder), (folder / "student.bin").read_bytes()
    file = tmp_path / "other.bin"
    cases = [b"", whole[:31], b"NOPE" + whole[4:], whole[:-1], whole + b"\0",
             whole[:4] + b"\2" + whole[5:]]  # fmt: skip
    cases += [whole[:i] + bytes([whole[i] ^ 128]) + whole[i + 1 :] for i in range(len(whole))]
    for damaged in cases:
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"other\.bin"):
            qpd_bin.load(file)
