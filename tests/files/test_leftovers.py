"""What killed writers leave goes with the next write; what living ones hold stays."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qpd.files.atomic import remove_leftovers, write_text
from qpd.files.whole_folder import whole_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")

# Writes half a thing at sys.argv[2], says so, and waits for its end.
WRITERS = {
    "file": """
from qpd.files.atomic import replace_file
with replace_file(path) as file:
    file.write(b"half"); file.flush(); print("half", flush=True); sys.stdin.read()
""",
    "folder": """
from qpd.files.whole_folder import whole_folder
with whole_folder(path) as fresh:
    (fresh / "a").write_text("half"); print("half", flush=True); sys.stdin.read()
""",
}


def half_written(kind: str, path: Path) -> subprocess.Popen[str]:
    """A process that is in the midst of writing `path`."""
    code = f"import sys; from pathlib import Path; path = Path(sys.argv[1]){WRITERS[kind]}"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "half\n"
    return process


def end(process: subprocess.Popen[str], *, kill: bool) -> None:
    if kill:
        process.send_signal(signal.SIGKILL)
    process.communicate()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_next_writer_removes_a_dead_ones_leftover_and_no_living_ones(
    kind: str, tmp_path: Path
) -> None:
    dead, living = half_written(kind, tmp_path / "out"), half_written(kind, tmp_path / "out")
    end(dead, kill=True)
    assert len(names(tmp_path)) == 2  # both hidden
    if kind == "file":
        write_text(tmp_path / "out", "whole")
    else:
        with whole_folder(tmp_path / "out") as fresh:
            (fresh / "a").write_text("whole")
    assert len(names(tmp_path)) == 2 and "out" in names(tmp_path)
    remove_leftovers(tmp_path)
    assert len(names(tmp_path)) == 2  # its writer lives
    end(living, kill=False)
    assert living.returncode == 0
    assert names(tmp_path) == ["out"]
    written = tmp_path / "out" if kind == "file" else tmp_path / "out" / "a"
    assert written.read_text() == "half"  # the last one wins


def test_another_folder_in_the_same_parent_clears_up_too(tmp_path: Path) -> None:
    end(half_written("folder", tmp_path / "one"), kill=True)
    with whole_folder(tmp_path / "two") as fresh:
        (fresh / "a").write_text("")
    assert names(tmp_path) == ["two"]


def test_a_folder_that_had_stepped_aside_is_put_back(tmp_path: Path) -> None:
    # As a kill between the two renames leaves it.
    (tmp_path / ".one.0123abcd.old").mkdir()
    (tmp_path / ".one.0123abcd.old" / "a").write_text("former")
    (tmp_path / ".one.0123abcd.new").mkdir()
    with whole_folder(tmp_path / "two"):
        pass
    assert names(tmp_path) == ["one", "two"]
    assert (tmp_path / "one" / "a").read_text() == "former"


def test_what_a_user_named_alike_stays(tmp_path: Path) -> None:
    for name in (".one.old", ".one.12345678.bak", "one.12345678.new"):
        (tmp_path / name).mkdir()
    with whole_folder(tmp_path / "one"):
        pass
    assert names(tmp_path) == [".one.12345678.bak", ".one.old", "one", "one.12345678.new"]


@pytest.mark.parametrize("at", [(1,), (2,), (2, 3)])
def test_ctrl_c_between_the_renames_leaves_the_former_folder(
    at: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with whole_folder(tmp_path / "one") as fresh:
        (fresh / "a").write_text("former")
    rename, calls = Path.rename, itertools.count(1)

    def interrupted(path: Path, target: Path) -> Path:
        if next(calls) in at:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "one") as fresh:
        (fresh / "a").write_text("new")
    monkeypatch.undo()
    with whole_folder(tmp_path / "two"):  # puts back what a second Ctrl-C has left aside
        pass
    assert names(tmp_path) == ["one", "two"]
    assert (tmp_path / "one" / "a").read_text() == "former"
