"""`qpd analyze returns`, `sizes`, `pareto`, `fps`: what is printed, written and refused."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from tests.analysis.made_up_runs import REFERENCE, make_run
from tests.command_line import call

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

DEVICE = REFERENCE / "devices" / "epyc-zen4-2-cores.json"
CARTPOLE = REFERENCE / "classic-ppo-cartpole"


def files(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def test_returns(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs").mkdir()
    for name, weight in (("half", 0.5), ("one", 1.0)):
        changes = [f"distill.actor_weight={weight}", f"finetune.actor_weight={weight}"]
        make_run(Path("runs") / name, changes=changes)
    code, out, err = call(capsys, "analyze", "returns", "runs", CARTPOLE, "-o", "new/figures")
    assert code == 0, err
    assert "BreakoutNoFrameskip-v4" in out and "500.0 [500.0, 500.0]" in out
    names = ("returns", "returns_relative", "returns_by_lambda")
    drawn = {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}
    assert files("new/figures") == drawn | {"returns.csv", "returns_by_lambda.csv"}
    with open("new/figures/returns.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    qat = next(r for r in rows if (r["experiment"], r["policy"]) == ("half", "qat"))
    assert (float(qat["mean"]), float(qat["relative"]), qat["runs"]) == (15, 0.75, "runs/half")
    # Without -o nothing is written; JSON says null where a number is unknown.
    code, out, _ = call(capsys, "analyze", "returns", "runs/one", "--json")
    found = json.loads(out)
    assert code == 0 and found["files"] == [] and "returns_by_lambda" not in found
    teacher = next(r for r in found["returns"] if r["policy"] == "teacher")
    assert teacher["mean"] == 20 and teacher["relative"] is None and teacher["lambda"] is None
    assert files(".") == {"runs", "new"}


def test_the_same_command_writes_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("a", "b"):
        assert call(capsys, "analyze", "returns", CARTPOLE, "-o", folder)[0] == 0
    assert files("a") == files("b") and len(files("a")) == 5
    for name in files("a"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()


def test_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "analyze", "sizes", REFERENCE / "breakout-ppo-s", "-o", "t")
    assert code == 0, err
    assert "114,208* (59.1x)" in out and "* a run's file: breakout-ppo-s" in out
    assert files("t") == {"sizes.csv", "sizes.png", "sizes.svg"}
    assert len(Path("t/sizes.csv").read_text().splitlines()) == 1 + 7 * 5


def test_pareto(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [REFERENCE / "quickstart", REFERENCE / "breakout-ppo-s"]
    # As a shell's *.json leaves it: the first file to the option, the next among the runs.
    code, out, err = call(
        capsys, "analyze", "pareto", *runs, "--devices", DEVICE, DEVICE, "-o", "t"
    )
    assert code == 0, err
    assert "c-simd" in out and "37,680" in out
    names = {f"pareto_{cost}.{x}" for cost in ("bytes", "latency") for x in ("csv", "png", "svg")}
    assert files("t") == names
    code, out, _ = call(capsys, "analyze", "pareto", CARTPOLE, "--devices", DEVICE, "--json")
    found = json.loads(out)
    assert code == 0 and "pareto_latency" not in found
    assert found["notes"][0] == "pareto_latency: nothing to show"
    assert any("no device measured it" in note for note in found["notes"])
    front = [row["size_bytes"] for row in found["pareto_bytes"] if row["on_front"]]
    assert front == [1504]


def test_pareto_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("no-files"))
    code, out, _ = call(capsys, "analyze", "pareto", "no-files")
    assert code == 0 and "no-files (distilled), no-files (qat): not in pareto_bytes" in out


def test_fps_draws_its_tables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = call(capsys, "analyze", "fps", DEVICE, "-o", "t")
    assert code == 0, err
    tables = {f"fps_table_{n}.{suffix}" for n in (1, 2) for suffix in ("csv", "md")}
    assert files("t") == tables | {"fps.png", "fps.svg"} and "fps.png" in out
    # The tables need no matplotlib.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, _ = call(capsys, "analyze", "fps", DEVICE, "-o", "bare")
    assert code == 0 and files("bare") == tables
    assert 'not drawn: qpd analyze needs matplotlib: pip install "qpd-rl[analysis]"' in out


def test_without_pandas(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for command in (["returns", CARTPOLE], ["sizes"], ["pareto", CARTPOLE]):
        code, out, err = call(capsys, "analyze", *command, "-o", "t")
        assert (code, out) == (2, "") and not Path("t").exists()
        assert err.strip().endswith(
            'qpd analyze needs pandas: pip install "qpd-rl[analysis]" [Q602]'
        )


@pytest.mark.parametrize("command", ["returns", "sizes", "pareto"])
def test_what_is_no_run_is_refused_in_a_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("file").write_text("")
    for path, said in (
        ("empty", "empty: is neither a run directory (no manifest.json) nor a folder of them"),
        ("gone", "gone: is not a run directory: it is no folder"),
        ("file", "file: is not a run directory: it is no folder"),
    ):
        code, out, err = call(capsys, "analyze", command, CARTPOLE, path, "-o", "t")
        assert (code, out) == (2, "") and len(err.splitlines()) == 1 and said in err
    assert not Path("t").exists()


def test_other_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("fresh"), {})
    code, _, err = call(capsys, "analyze", "returns", "fresh")
    assert code == 2 and "fresh: no policy was evaluated yet; see `qpd evaluate`" in err
    code, _, err = call(
        capsys, "analyze", "pareto", CARTPOLE, "--devices", CARTPOLE / "manifest.json"
    )
    assert code == 2 and "holds nothing that `qpd bench`" in err and len(err.splitlines()) == 1
    Path("taken").write_text("")
    code, _, err = call(capsys, "analyze", "returns", CARTPOLE, "-o", "taken")
    assert code == 2 and "taken" in err and len(err.splitlines()) == 1
