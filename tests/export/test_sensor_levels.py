"""From sensor to level: the engine and C agree bit for bit, NaN and infinities included."""

import ctypes
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from benchmarks.random_students import random_student
from qpd.export.bundle import load_export_source
from qpd.integer.integer_student import IntegerEngine, IntegerStudent, reference_outputs
from qpd.student_files.distilled import StudentFileError
from qpd.student_files.quantized import load_integer_student, save_integer_student
from qpd.students import StudentArchitecture
from tests.export.c_programs import WARNINGS, c_library, needs_gcc, write_c

RUNS = Path(__file__).resolve().parents[2] / "runs-reference"


def student_with_ranges(low: list[float], high: list[float]) -> IntegerStudent:
    """A student of random integers that reads features from `low` to `high`."""
    plain = random_student(StudentArchitecture((len(low),), 3, (), (6,)))
    ranges = np.array(low, np.float32), np.array(high, np.float32)
    return IntegerStudent(
        plain.architecture, plain.layers, plain.output_scale, plain.actions, *ranges
    )


def c_levels(library: ctypes.CDLL, *arrays: np.ndarray) -> tuple[np.ndarray, int]:
    """Levels, uint8 `[features]`, of floats `(values,)` or of counts `(counts, low, high)`."""
    levels = np.full(len(arrays[0]), 77, dtype=np.uint8)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*arrays, levels)]
    name = "qpd_levels_from_floats" if len(arrays) == 1 else "qpd_levels_from_counts"
    return levels, getattr(library, name)(*pointers)


def test_what_is_no_number_or_beyond_the_range_saturates_in_the_engine() -> None:
    student = student_with_ranges([-1.0] * 6, [2.0] * 6)
    unusual = np.array([[np.nan, np.inf, -np.inf, 3e38, -3e38, 0.5]], dtype=np.float32)
    # 0.5 lies halfway: 127.5, which goes to the even 128
    assert student.encode(unusual).tolist() == [[0, 255, 0, 255, 0, 128]]
    assert student.encode(-unusual)[0, 0] == 0  # a NaN with its sign set, too
    low = np.full((1, 6), -1.0, np.float32)
    alone = np.where(np.isnan(unusual), unusual, low)
    assert (reference_outputs(student, alone) == reference_outputs(student, low)).all()
    engine = IntegerEngine(student)
    assert (engine.integer_outputs(alone) == reference_outputs(student, low)).all()


def test_a_range_that_no_float_spans_is_refused(tmp_path: Path) -> None:
    for high in (np.inf, 3e38):
        student = student_with_ranges([-3e38, 0.0], [high, 1.0])
        save_integer_student(tmp_path / "student.safetensors", student, {})
        with pytest.raises(StudentFileError, match="wider than float32 holds"):
            load_integer_student(tmp_path / "student.safetensors")


@needs_gcc
@pytest.mark.parametrize("flags", [(), ("-std=gnu11", "-march=native", "-O3")])
def test_floats_become_the_engines_levels(flags: tuple[str, ...], tmp_path: Path) -> None:
    """The second flags allow fused multiply-adds, which would round otherwise."""
    low, high = [-1.0, -0.1423, 0.0, -3e38, 1e-30, -4.8], [2.0, 0.3166, 1e-3, 1e37, 2e-30, 4.8]
    student = student_with_ranges(low, high)
    library = c_library(write_c(tmp_path / "out", student, 8), student, flags)
    rng = np.random.default_rng(0)
    unit = rng.uniform(-0.05, 1.05, (4000, 6))
    # Half of them on ties and ends, or a rounding error beside them.
    unit[:2000] = rng.integers(-2, 513, (2000, 6)) / 510
    values = (np.array(low) + unit * (np.array(high) - np.array(low))).astype(np.float32)
    wild = rng.integers(0, 2**32, (1000, 6), dtype=np.uint32).view(np.float32)
    unusual = np.array([[np.nan, np.inf, -np.inf, -np.nan, 3e38, -0.0]], dtype=np.float32)
    observations = np.concatenate([values, wild, unusual])
    for row, levels in zip(observations, student.encode(observations), strict=True):
        got, outside = c_levels(library, row)
        assert (got == levels).all(), (row, got, levels)
        with np.errstate(over="ignore", invalid="ignore"):
            place = (row - student.input_low) / (student.input_high - student.input_low)
        assert outside == (~((place >= 0) & (place <= 1))).sum()


@needs_gcc
def test_counts_become_levels_by_exact_division(tmp_path: Path) -> None:
    student = student_with_ranges([0.0] * 4, [1.0] * 4)
    library = c_library(write_c(tmp_path / "out", student, 8), student, [])
    rng = np.random.default_rng(1)
    ends = np.concatenate([rng.integers(0, 1024, 400), rng.integers(-(2**31), 2**31, 400)])
    ends = np.concatenate([ends, [-(2**31), 2**31 - 1, 2**31 - 1, -(2**31), 5, 5, 0, 255]])
    low, high = ends[0::2].astype(np.int32), ends[1::2].astype(np.int32)
    inside = rng.uniform(-0.1, 1.1, len(low))
    counts = np.clip(np.round(low + inside * (high.astype(float) - low)), -(2**31), 2**31 - 1)
    counts = counts.astype(np.int32)
    for i in range(0, len(low), 4):
        group = slice(i, i + 4)
        got, outside = c_levels(library, counts[group], low[group], high[group])
        wanted, beyond = [], 0
        for count, one, other in zip(counts[group], low[group], high[group], strict=True):
            # round((count - low) * 255 / (high - low)), halves away from low, in exact fractions
            width = int(other) - int(one)
            place = Fraction(int(count) - int(one), width) if width else Fraction(0)
            wanted.append(int(min(max(place, 0), 1) * 255 + Fraction(1, 2)))
            beyond += not 0 <= place <= 1 if width else int(count != one)
        assert got.tolist() == wanted and outside == beyond


@needs_gcc
def test_an_adc_with_the_headers_macros_gives_levels_without_floats(tmp_path: Path) -> None:
    """A 10-bit ADC reads -2.5 at 0 and 0.005 more a count; the feature goes from -1 to 2."""
    folder = write_c(tmp_path / "out", student_with_ranges([-1.0], [2.0]), 8)
    (folder / "main.c").write_text(
        '#include <stdio.h>\n#include "qpd.h"\n'
        "static const int32_t low[] = {QPD_COUNT(QPD_LOW_0, -2.5, 0.005)};\n"
        "static const int32_t high[] = {QPD_COUNT(QPD_HIGH_0, -2.5, 0.005)};\n"
        "int main(void)\n{\n    uint8_t level;\n"
        "    for (int32_t count = 0; count < 1024; count += 100) {\n"
        "        const int outside = qpd_levels_from_counts(&count, low, high, &level);\n"
        '        printf("%d %d,", level, outside);\n    }\n'
        '    printf("%d %d", (int)low[0], (int)high[0]);\n    return 0;\n}\n'
    )
    command = ["gcc", *WARNINGS, "-o", "main", "main.c", "qpd_encode.c"]
    subprocess.run(command, cwd=folder, check=True)
    said = subprocess.run([folder / "main"], capture_output=True, text=True, check=True).stdout
    # low is at count 1.5 / 0.005 = 300, high at 4.5 / 0.005 = 900: 100 counts are 42.5 levels
    assert said == "0 1,0 1,0 1,0 0,43 0,85 0,128 0,170 0,213 0,255 0,255 1,300 900"


@needs_gcc
def test_the_golden_test_covers_floats_and_counts(tmp_path: Path) -> None:
    student = load_export_source(RUNS / "classic-ppo-cartpole").student
    folder = write_c(tmp_path / "out", student, 8)

    def golden_test() -> subprocess.CompletedProcess[str]:
        sources = ["qpd_test.c", "qpd_check.c", "qpd_network.c", "qpd_encode.c"]
        command = ["gcc", *WARNINGS, "-DQPD_PORTABLE", "-o", "program", *sources]
        subprocess.run(command, cwd=folder, check=True)
        return subprocess.run([folder / "program"], capture_output=True, text=True, check=False)

    assert golden_test().returncode == 0
    encode, header = (folder / "qpd_encode.c").read_text(), (folder / "qpd_student.h").read_text()
    for broken in (
        encode.replace("2u * QPD_INPUT_TOP * (uint64_t)above", "509u * (uint64_t)above"),
        encode.replace("levels[i] = 0;\n            ++outside;", "levels[i] = 1;"),
        encode.replace("unit * (float)QPD_INPUT_TOP", "unit * 254.0f"),
    ):
        assert broken != encode
        (folder / "qpd_encode.c").write_text(broken)
        assert golden_test().returncode == 1
    (folder / "qpd_encode.c").write_text(encode)
    (folder / "qpd_student.h").write_text(header.replace("QPD_LOW_1 -0.89", "QPD_LOW_1 -0.79"))
    assert golden_test().returncode == 1
