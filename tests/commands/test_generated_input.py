"""Generated wrong inputs: exit code 2, lines with codes, no traceback, nothing written.

`QPD_BAD_INPUTS=500 pytest -m slow` tries that many.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from qpd.errors.codes import ErrorCode
from tests.command_line import call
from tests.commands.bad_files import make_files
from tests.commands.generated_input import GOOD, Wrong, wrong_inputs

CODES = {code.id for code in ErrorCode} - {ErrorCode.UNFORESEEN.id}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, teacher_zip: Path) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("generated") / "files"
    folder.mkdir()
    before = Path.cwd()
    os.chdir(folder)
    make_files(folder, teacher_zip)
    yield folder
    os.chdir(before)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No input may be taken for a hub's id: a connection is a finding."""

    def refuse(*_: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def names(folder: Path) -> set[str]:
    return {
        os.path.join(parent, name)
        for parent, folders, found in os.walk(folder)
        for name in [*folders, *found]
        if name != ".lock"
    }


def problem_of(wrong: Wrong, files: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Say what is not as it should be, '' if nothing."""
    if wrong.writes is not None:
        (files / "mine.yaml").write_bytes(wrong.writes)
    before = names(files)
    code, out, err = call(capsys, *wrong.arguments)
    lines = err.splitlines()
    said = [re.fullmatch(r"error: .+ \[(Q\d+)\]", line) for line in lines]
    if code != 2 or out:
        return f"exit code {code}: {out}{err}"
    if not lines or any(match is None or match[1] not in CODES for match in said):
        return f"lines: {err!r}"
    if not err.isprintable() and not err.replace("\n", "").isprintable():
        return f"control characters: {err!r}"
    written = names(files) ^ before
    return f"written: {sorted(written)}" if written else ""


def check(count: int, seed: int, files: Path, capsys: pytest.CaptureFixture[str]) -> str:
    findings = []
    for wrong in islice(wrong_inputs(seed), count):
        problem = problem_of(wrong, files, capsys)
        if problem:
            findings.append(f"{[word[:80] for word in wrong.arguments]}: {problem[:500]!r}")
    return "\n".join(findings)


def test_the_generator_knows_every_command() -> None:
    from docs_build.cli_reference import commands

    leaves = {path.removeprefix("qpd").strip() for path, one in commands()
              if not hasattr(one, "commands")}  # fmt: skip
    assert leaves == set(GOOD)


def test_a_few_wrong_inputs(files: Path, capsys: pytest.CaptureFixture[str], offline: None) -> None:
    assert check(60, 0, files, capsys) == ""


@pytest.mark.slow
def test_many_wrong_inputs(files: Path, capsys: pytest.CaptureFixture[str], offline: None) -> None:
    count = int(os.environ.get("QPD_BAD_INPUTS", "300"))
    seed = int(os.environ.get("QPD_SEED", "1"))
    assert check(count, seed, files, capsys) == ""
