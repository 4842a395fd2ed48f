"""`qpd bench` and `qpd analyze fps`: from the command to the tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from qpd.machine.description import c_compiler
from tests.command_line import call

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

torch.set_num_threads(1)
RUN = Path(__file__).parents[2] / "runs-reference" / "classic-ppo-cartpole"
SHORT = ("--rounds", "2", "--seconds", "0.02")


@pytest.mark.skipif(c_compiler() is None or shutil.which("make") is None, reason="no C compiler")
def test_from_the_benchmark_to_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark = ["bench", "--sizes", "XXS", "--runtimes", "torch,c", "--device-name", "desk"]
    code, out, err = call(capsys, *benchmark, *SHORT, "-o", "desk.json", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert record["settings"] == {"rounds": 2, "seconds": 0.02, "frames": "breakout"}
    assert record == json.loads(Path("desk.json").read_text())
    rows = [(row["runtime"], row["model"], row["weight_bits"]) for row in record["rows"]]
    teacher = "teacher ppo BreakoutNoFrameskip-v4"
    assert rows == [
        ("torch", teacher, 32),
        ("sb3-predict", teacher, 32),
        ("torch", "XXS", 32),
        ("c", "XXS", 8),
    ]
    for row in record["rows"]:
        assert row["status"] == "measured", row
        assert len(row["round_medians_us"]) == 2
        assert row["forwards_per_second"] == pytest.approx(1e6 / row["median_us"])
    teacher, _, _, c = record["rows"]
    for row in record["rows"]:  # with one student, all its rounds are the teacher's
        ratio = row["forwards_per_second"] / teacher["forwards_per_second"]
        assert row["ratio"] == pytest.approx(ratio)
    # The C program alone, and a process with PyTorch.
    assert c["peak_rss_bytes"] < 20e6 < 100e6 < teacher["peak_rss_bytes"]

    code, out, err = call(capsys, "analyze", "fps", "desk.json", "-o", "tables")
    assert code == 0, err
    assert "Table 1" in out and "Table 2" in out and "Raspberry Pi 3B (paper)" in out
    for number in (1, 2):
        lines = Path(f"tables/fps_table_{number}.csv").read_text().splitlines()
        assert lines[1].startswith("desk,torch,1," if number == 1 else "desk,c,1,")
    code, out, _ = call(capsys, "analyze", "fps", "desk.json", "--json")
    tables = json.loads(out)
    assert tables["fps_table_2"]["rows"][0]["fps"]["XXS"] == c["forwards_per_second"]


def test_a_student_without_its_teacher_is_told_of_below_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copyfile(RUN / "quantized.safetensors", "quantized.safetensors")
    command = ["bench", "quantized.safetensors", "--runtimes", "torch", "--frames", "noise"]
    code, out, err = call(capsys, *command, *SHORT)
    assert code == 0, err
    assert "no ratio: its teacher cannot be timed: .: is not a run directory" in out
    assert "teacher ppo" not in out


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--sizes", "XXXL"], "--sizes XXXL: one of XXS"),
        (["--runtimes", "tensorrt"], "--runtimes tensorrt: one of torch, torch-compile"),
        (["--runtimes", "torch", "--ssh", "u@h"], "--runtimes torch: over ssh, one of c, c-simd"),
        (["--threads", "0"], "--threads 0: numbers from 1"),
        (["--threads", "1,many"], "--threads many: numbers from 1"),
        (["--frames", "pong"], "--frames pong: one of breakout, noise"),
        (["nowhere"], "nowhere"),
        (["-o", "missing/device.json"], "the folder missing does not exist"),
        (["--ssh", "u@h:x"], "--ssh u@h:x: user@host"),
    ],
)
def test_wrong_input_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code, out, err = call(capsys, "bench", *arguments)
    lines = err.splitlines()
    assert (code, out, len(lines)) == (2, "", 1), err
    assert lines[0].startswith("error: ") and said in lines[0]
    assert list(Path.cwd().iterdir()) == []


def test_a_file_of_somebody_else_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    Path("notes.json").write_text('{"mine": 1}')
    for command in (["bench", "-o", "notes.json"], ["analyze", "fps", "notes.json"]):
        code, out, err = call(capsys, *command)
        assert (code, out, len(err.splitlines())) == (2, "", 1) and "notes.json" in err
    assert Path("notes.json").read_text() == '{"mine": 1}'
