"""Pipes, devices and links to them in the place of files: one line at once, and nothing is read.

A pipe without a writer would be waited for, and /dev/zero has no end.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from qpd import cli

RUN = Path(__file__).parents[2] / "runs-reference" / "classic-ppo-cartpole"


@pytest.fixture(autouse=True)
def no_endless_wait() -> Iterator[None]:
    """A reader that waits is interrupted, and the test fails."""

    def stop(*_: object) -> None:
        raise AssertionError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def place(kind: str, path: Path) -> None:
    """Put a special file where `path` says, in place of what is there."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("export FILE --format c -o out", "student.safetensors"),
        ("export run --format c -o out", "run/quantized.safetensors"),
        ("evaluate run", "run/recipe.yaml"),
        ("show run", "run/manifest.json"),
        ("bench FILE", "student.safetensors"),
        ("teacher info FILE", "agent.zip"),
        ("teacher card FILE -o out", "agent.zip"),
        ("teacher info zoo", "zoo/policy.pth"),
        ("run FILE -o out", "mine.yaml"),
        ("sweep FILE -o out", "mine.yaml"),
        ("analyze fps FILE", "device.json"),
    ],
)
def test_one_line(
    command: str,
    file: str,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    in_an_empty_folder: None,
) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "data").write_text("{}")
    place(kind, tmp_path / file)
    with pytest.raises(SystemExit) as caught:
        cli.main(shlex.split(command.replace("FILE", file)))
    said = capsys.readouterr()
    assert (caught.value.code, said.out) == (2, ""), said.err
    lines = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and Path(file).parts[0] in lines[0] and "Traceback" not in said.err
    assert not (tmp_path / "out").exists()
