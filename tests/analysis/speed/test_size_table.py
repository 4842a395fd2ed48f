"""The size table: real bytes, of runs where there are any."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from qpd.actions import Discrete
from qpd.analysis.figure_style import paper_style
from qpd.analysis.runs.run_frame import run_frame
from qpd.analysis.speed.size_table import (
    BITS,
    PACKED,
    shown_sizes,
    size_figure,
    size_notes,
    size_table,
    sizes_left_out,
)
from qpd.integer.integer_student import integer_student
from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.student_files.distilled import save_student
from qpd.student_files.quantized import save_integer_student
from qpd.students import SIZE_GRID, Student, architecture_for
from tests.analysis.made_up_runs import REFERENCE

RUNS = ("quickstart", "breakout-ppo-xxs-4bit", "breakout-ppo-xxs-2bit", "classic-dqn-cartpole")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return size_table(run_frame([REFERENCE / name for name in RUNS]))


def cell(table: pd.DataFrame, size: str, precision: str) -> pd.Series:
    found = table[(table["size"] == size) & (table["precision"] == precision)]
    assert len(found) == 1
    return found.iloc[0]


def test_the_grid_is_complete_and_in_order(table: pd.DataFrame) -> None:
    grid = table.iloc[: len(SIZE_GRID) * len(BITS)]
    assert list(zip(grid["size"], grid["weight_bits"], strict=True)) == [
        (size, bits) for size in SIZE_GRID for bits in BITS
    ]
    # The paper's Table 3.
    parameters = dict(zip(grid["size"], grid["parameters"], strict=True))
    assert parameters["XXS"] == 35_796 and parameters["XXL"] == 3_335_364
    # k bits a weight, and at most 3% and a kilobyte for biases, multipliers and the header.
    for _, row in grid[grid["weight_bits"] < 32].iterrows():
        least = row["parameters"] * row["weight_bits"] / 8
        assert 0.99 * least < row["size_bytes"] < 1.03 * least + 3000


def test_a_runs_file_comes_before_a_packed_one(table: pd.DataFrame) -> None:
    four = cell(table, "XXS", "4-bit")
    file = REFERENCE / "breakout-ppo-xxs-4bit" / "quantized.safetensors"
    assert four["source"] == "breakout-ppo-xxs-4bit"
    assert four["size_bytes"] == file.stat().st_size == 19_832
    assert four["ratio"] == 6_746_772 / 19_832
    assert cell(table, "XXS", "6-bit")["source"] == PACKED
    # What is not of the grid follows, beside its own teacher.
    mixed, small = (
        cell(table, "XXS", "8/2/2/2/8-bit (activations 2)"),
        cell(table, "mlp-32", "8-bit"),
    )
    assert (mixed["size_bytes"], small["teacher_bytes"]) == (14_072, 4 * 67_586)


@pytest.mark.parametrize("bits", [32, 6, 2])
def test_a_packed_size_is_that_of_the_written_file(
    table: pd.DataFrame, tmp_path: Path, bits: int
) -> None:
    student = Student(architecture_for("XS", (4, 84, 84), 4), seed=3)
    path = tmp_path / "student.safetensors"
    if bits == 32:
        save_student(path, student, Discrete(4), {})
    else:
        simulation = QuantizedStudent(student, QuantizationConfig(bits, bits))
        calibrate(simulation, torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8))
        save_integer_student(path, integer_student(simulation, Discrete(4)), {})
    precision = "fp32" if bits == 32 else f"{bits}-bit"
    # The header is padded to 8 bytes; digits of the logits' scale may fill one more.
    assert abs(cell(table, "XS", precision)["size_bytes"] - path.stat().st_size) <= 8


def test_what_a_terminal_shows(table: pd.DataFrame) -> None:
    shown = shown_sizes(table)
    assert shown.header[:5] == ["size", "parameters", "fp32", "8-bit", "6-bit"]
    xxs = dict(zip(shown.header, shown.rows[0], strict=True))
    assert (xxs["parameters"], xxs["4-bit"]) == ("35,796", "19,832* (340x)")
    assert "*" not in xxs["6-bit"] and shown.rows[-1][0] == "classic-dqn-cartpole"
    assert any("* a run's file: quickstart" in note for note in size_notes(table))
    assert "-" not in shown.rows[0]


def test_the_figure_shows_the_grid_and_the_teacher(table: pd.DataFrame) -> None:
    with paper_style():
        (axes,) = size_figure(table).axes
    lines = {str(line.get_label()): line for line in axes.lines}
    assert {"fp32", "8-bit", "6-bit", "4-bit", "2-bit"} <= set(lines)
    eight = table[table["size"].isin(SIZE_GRID) & (table["precision"] == "8-bit")]
    assert list(lines["8-bit"].get_ydata()) == list(eight["size_bytes"])
    assert axes.get_yscale() == "log"


def test_students_of_vectors_are_drawn_and_what_is_not_is_named(table: pd.DataFrame) -> None:
    with paper_style():
        (axes,) = size_figure(table).axes
    labels = [text.get_text() for text in axes.get_xticklabels()]
    place = labels.index("classic-dqn-cartpole")
    drawn = {y for line in axes.lines for x, y in line.get_xydata() if x == place}
    # Its files in fp32 and 8 bits, and its teacher.
    assert drawn == {1_916.0, 1_504.0, 4.0 * 67_586}
    frame = run_frame(
        [REFERENCE / name for name in (*RUNS, "quickstart-lambda-1", "quickstart-a2c")]
    )
    reasons = sizes_left_out(table, frame)
    assert "file was not kept" in reasons["breakout-ppo-xxs-4bit (distilled)"]
    # Same parameters and bits; A2C's agent is another one, of as many bytes.
    for name in ("quickstart-lambda-1", "quickstart-a2c"):
        assert reasons[f"{name} (qat)"] == (
            "left out, as a run of the same size and bits is there, whose teacher has as many bytes"
        )
    assert not any(name.startswith("classic-dqn-cartpole") for name in reasons)
