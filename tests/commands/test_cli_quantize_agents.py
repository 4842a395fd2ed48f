"""`qpd quantize AGENT...`: one table, one JSON object, one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import qpd
from tests.command_line import call

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def test_many_agents_make_one_table(
    dqn_zip: Path, teacher_zip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("quantize", dqn_zip, teacher_zip, "absent.zip", "--bits", "fp16,8",
             "--activations", 8, "--episodes", 3, "-o", "suite")  # fmt: skip
    code, out, err = call(capsys, *asked)
    assert code == 1  # one of them is not there
    table = out.splitlines()
    assert len([line for line in table if line.startswith("dqn-CartPole-v1")]) == 4
    assert len([line for line in table if "W8A8" in line and "integers" in line]) == 2
    assert "absent.zip" in out and "not measured" in out
    assert "warning: absent.zip: no such file" in err
    code, out, _ = call(capsys, *asked, "--json")  # nothing is left to be played
    found = json.loads(out)
    assert code == 1 and found == json.loads(Path("suite/table.json").read_text())
    assert [row["precision"] for row in found["rows"]][:3] == ["fp16", "W8", "W8A8"]
    run = "suite/dqn-CartPole-v1/W8A8-dorefa_scaled-column"
    code, out, _ = call(capsys, "show", run)
    assert code == 0 and "W8A8-dorefa_scaled-column, DQN on CartPole-v1" in out.splitlines()[0]
    code, out, _ = call(capsys, "export", run, "--format", "c", "-o", "c", "--json")
    assert code == 0 and Path("c/qpd_network.c").is_file()
    code, out, _ = call(capsys, "evaluate", run, "--episodes", 3, "--json")
    played = next(row for row in found["rows"] if row["precision"] == "W8A8")
    assert code == 0 and json.loads(out)["policy"] == "ptq"
    assert json.loads(out)["return"]["episodes"] == played["episodes"] == 3


def test_the_api_returns_the_table(dqn_zip: Path) -> None:
    table = qpd.quantize_agents([dqn_zip], bits=[4], per=["tensor"], episodes=2, output="suite")
    (row,) = table.rows
    assert (row.precision, row.scheme, row.per) == ("W4", "affine", "tensor")
    assert Path("suite/table.csv").is_file()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--scheme", "afine"], "--scheme afine: expected affine, affine-literal, dorefa_scaled"),
        (["--bits", "1"], "--bits 1: expected fp16, or 2 to 8"),
        (["--activations", "9"], "--activations 9: expected 2 to 8 bits"),
        (["--bits", "fp16", "--per", "tensor"], "--per tensor: is for --bits 2 to 8"),
        (["--per", "row"], "--per row: expected tensor, channel, column"),
        (["--episodes", "0"], "--episodes 0: must be from 1"),
        (["--set", "quantize.weight_bits=4"], "--set: is for runs; agents take --bits"),
        (["-o", "taken"], "taken: holds other files (note.txt) and no suite.json"),
    ],
)
def test_mistakes_are_one_line(
    dqn_zip: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").mkdir()
    Path("taken/note.txt").touch()
    code, out, err = call(capsys, "quantize", dqn_zip, *words)
    assert (code, out) == (2, "") and err.startswith(f"error: {line}"), err
    assert len(err.splitlines()) == 1 and not Path("runs").exists()


def test_what_is_no_agent_and_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "quantize", "absent")
    assert code == 2 and "absent: is not a run directory" in err
    code, _, err = call(capsys, "quantize", "absent", "--bits", "8")
    assert code == 2 and "absent: no such file or folder" in err
