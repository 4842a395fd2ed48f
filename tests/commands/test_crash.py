"""The last net: an error that nobody foresaw is one line, exit code 70, its traceback in a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from qpd.commands.crash import crash_line
from tests.command_line import call
from tests.tiny_run import recipe_of

ROOT = Path(__file__).resolve().parents[2]

# What nobody foresees: an error in QPD's own code, put there before anything imports it.
PLUGIN = """
import qpd.evaluation.games

def evaluate(*arguments, **options):
    raise {error}

qpd.evaluation.games.evaluate = evaluate
"""


def qpd(folder: Path, error: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`qpd ARGUMENTS` in a process in which no game can be played."""
    (folder / "plugin.py").write_text(PLUGIN.format(error=error))
    code = "import plugin; from qpd.cli import main; main()"
    paths = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folder / "tmp")},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_run_keeps_the_traceback_in_its_directory(tmp_path: Path, teacher_zip: Path) -> None:
    recipe = recipe_of(
        teacher_zip, teacher={"source": str(teacher_zip), "algo": "ppo", "env": "CartPole-v1"}
    )
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    done = qpd(tmp_path, "KeyError('an odd\\nkey')", "run", "odd.yaml")
    assert done.returncode == 70
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    file = Path("runs") / "tiny" / "traceback.txt"
    assert line.endswith(f"its traceback is in {file} [Q999]") and "KeyError" in line
    assert "Traceback" not in done.stderr
    text = (tmp_path / file).read_text()
    assert "qpd run odd.yaml" in text and 'plugin.py", line' in text and "KeyError" in text


def test_without_a_run_a_temporary_file_has_it(tmp_path: Path, teacher_zip: Path) -> None:
    (tmp_path / "tmp").mkdir()
    done = qpd(
        tmp_path, "RecursionError", "evaluate", str(teacher_zip), "--env", "CartPole-v1", "--quiet"
    )
    assert (done.returncode, done.stdout) == (70, "")
    (line,) = done.stderr.splitlines()
    found = re.fullmatch(
        r"error: QPD did not foresee this error: RecursionError; its traceback is in (\S+) "
        r"\[Q999\]",
        line,
    )
    assert found is not None, line
    assert Path(found[1]).parent == tmp_path / "tmp"
    assert "in evaluate" in Path(found[1]).read_text()


def test_no_exception_passes_whatever_its_class(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_an_empty_folder: None
) -> None:
    class Panic(BaseException):  # what a Rust extension raises
        pass

    def body() -> None:
        raise Panic("gone \x1b[2J\n" * 100)

    monkeypatch.setattr("qpd.recipe.shipped.list_recipes", body)
    monkeypatch.setattr("tempfile.tempdir", str(Path.cwd()))
    code, out, err = call(capsys, "recipes")
    assert (code, out) == (70, "")
    assert err.count("\n") == 1 and "Panic: gone" in err and "\x1b" not in err and len(err) < 600
    assert [path.name.startswith("qpd-traceback-") for path in Path.cwd().iterdir()] == [True]


def test_a_disk_that_takes_no_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    line = crash_line(ValueError("x"), ["show", "\0"])
    assert "ValueError: x; its traceback could not be written: No such file" in line
