"""Runs and recipes from strangers, through the commands: shown, not obeyed; no tracebacks."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.command_line import call

RUN = Path(__file__).parents[2] / "runs-reference" / "classic-ppo-cartpole"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory from elsewhere, and an empty folder to work in."""
    copied = tmp_path / "run"
    shutil.copytree(RUN, copied)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return copied


def test_escapes_in_a_run_are_shown_not_obeyed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    for evaluation in manifest["evaluations"].values():
        evaluation["acting"] = "sample\x1b]0;owned\x07\x1b[2J[red]"
    (run / "manifest.json").write_text(json.dumps(manifest))
    code, out, _ = call(capsys, "show", str(run))
    assert code == 0 and r"sample\x1b]0;owned\x07\x1b[2J[red]" in out
    assert "\x1b" not in out and "\x07" not in out
    manifest["teacher"]["algo"] = {"\x1b[2J": 1}
    manifest["\x1b[2J"] = 1
    (run / "manifest.json").write_text(json.dumps(manifest))
    code, out, err = call(capsys, "show", str(run))
    assert code == 2 and out == "" and "\x1b" not in err
    assert r"\x1b[2J: Extra inputs" in err


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"interval": 3}, "(interval: Input should be a valid list)"),
        ({"mean": "high"}, "(mean: Input should be a valid number)"),
        ({"seconds": []}, "(seconds: Input should be a valid number)"),
        ({"seconds": 1e300}, "(seconds: Input should be less than or equal to 1000000000000)"),
        ({"mean": -1e200}, "(mean: Input should be greater than or equal to -1000000000000000)"),
        ({"episodes": 0}, "(episodes: Input should be greater than or equal to 1)"),
        ({"returns": [[]]}, "(returns.0: Input should be a valid number)"),
    ],
)
def test_evaluations_of_the_wrong_type(
    run: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], expected: str
) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["evaluations"]["teacher"] |= change
    (run / "manifest.json").write_text(json.dumps(manifest))
    code, out, err = call(capsys, "show", str(run))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"evaluations.teacher: not as `qpd evaluate` writes it {expected}" in err


def test_a_runs_environment_id_imports_no_module(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("evil_module.py").write_text("raise SystemExit('was imported')")
    monkeypatch.syspath_prepend(os.getcwd())
    monkeypatch.setenv("QPD_IMPORT", "")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["teacher"]["env_id"] = "evil_module:CartPole-v1"
    (run / "manifest.json").write_text(json.dumps(manifest))
    code, _, err = call(capsys, "evaluate", str(run), "--policy", "distilled", "--episodes", "1")
    assert code == 2 and "evil_module:CartPole-v1" in err and "QPD_IMPORT" in err
    assert "evil_module" not in sys.modules


def test_a_module_that_the_user_names_may_end_the_import(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("ending_module.py").write_text("raise SystemExit('was imported')")
    monkeypatch.syspath_prepend(os.getcwd())
    monkeypatch.setenv("QPD_IMPORT", "")
    code, _, err = call(capsys, "run", "ci", "--set", "teacher.env=ending_module:CartPole-v1")
    assert (code, len(err.splitlines())) == (2, 1) and "SystemExit: was imported" in err


def test_a_hostile_recipe_leaves_nothing_behind(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Path("mine.yaml")
    recipe.write_text('base: ci\nname: "../../escaped\\e[2J"\n')
    code, out, err = call(capsys, "run", "mine.yaml")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "mine.yaml:2: name: " in err and "\x1b" not in err
    recipe.write_text("".join(f"k{i}: 1\n" for i in range(500)))
    code, _, err = call(capsys, "run", "mine.yaml")
    assert code == 2 and len(err.splitlines()) <= 51
    assert os.listdir() == ["mine.yaml"]
