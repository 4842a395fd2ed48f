"""Every wrong input: exit code 2, one line a mistake with a code, no traceback, nothing written."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

from qpd import cli
from qpd.runs.run_directory import LOCK_NAME
from tests.command_line import call
from tests.commands import bad_agents_and_runs, bad_commands, bad_recipes
from tests.commands.bad_files import make_files
from tests.commands.bad_row import Row

ROOT = Path(__file__).resolve().parents[2]
ROWS = [*bad_recipes.ROWS, *bad_agents_and_runs.ROWS, *bad_commands.ROWS]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, teacher_zip: Path) -> Iterator[Path]:
    """The folder that all commands are run in; another one is working in its run `busy`."""
    folder = tmp_path_factory.mktemp("files")
    before = Path.cwd()
    os.chdir(folder)
    make_files(folder, teacher_zip)
    with FileLock(folder / "busy" / LOCK_NAME):
        yield folder
    os.chdir(before)


@cache
def checksum(path: Path, changed_ns: int) -> int:
    """Of a file that was changed at that time, and so is read once."""
    return zlib.crc32(path.read_bytes())


def snapshot(folder: Path) -> dict[str, int | None]:
    """A checksum of every file, None for a folder; locks are no content."""
    found: dict[str, int | None] = {}
    for parent, folders, names in os.walk(folder):
        found |= dict.fromkeys([os.path.join(parent, name) for name in folders])
        for path in (Path(parent, name) for name in names if name != LOCK_NAME):
            found[str(path)] = checksum(path, path.stat().st_mtime_ns)
    return found


def in_a_new_process(
    arguments: list[str], variables: dict[str, str], home: Path
) -> tuple[object, str, str]:
    known = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    known |= {"HF_HOME": str(home), "PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "qpd.cli", *arguments],
        env=known | variables, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_table_is_long_and_names_no_command_twice() -> None:
    assert len(ROWS) >= 150
    assert len({row.name for row in ROWS}) == len(ROWS)
    said = {word for row in ROWS for word in shlex.split(row.command)[:2]}
    names = {command.name or command.callback.__name__ for command in cli.app.registered_commands
             if command.callback is not None and not command.hidden}  # fmt: skip
    groups = {group.name for group in cli.app.registered_groups}
    assert names | groups <= said


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_wrong_input(
    row: Row, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if row.writes is not None:
        text = row.writes.encode() if isinstance(row.writes, str) else row.writes
        (files / "mine.yaml").write_bytes(text)
    before = snapshot(files)
    arguments = shlex.split(row.command)
    if row.environment:
        code, out, err = in_a_new_process(arguments, row.environment, tmp_path)
    else:
        code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, ""), err
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == len(row.lines) == len(set(lines)), err
    assert "Traceback" not in err
    codes = [line.rpartition(" [")[2].removesuffix("]") for line in lines]
    assert sorted(codes) == sorted(wanted.id for wanted in row.lines), err
    for fragment in row.says:
        assert fragment in err
    assert snapshot(files) == before


@pytest.mark.parametrize("command", ["", "teacher", "analyze"])
def test_a_group_without_a_command_shows_its_help(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *shlex.split(command))
    assert (code, err) == (2, "")
    assert out.lstrip().startswith(f"Usage: qpd {command}".rstrip()) and "--help" in out
    assert out.count("\n") > 5
