"""What several test files need."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Before PyTorch is imported: processes that test side by side do not fight for the cores.
os.environ["OMP_NUM_THREADS"] = "1"

from tests.hostile.bounded_reader import BoundedReader
from tests.tiny_run import write_teacher

# On a busy machine an example takes many times as long.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def teacher_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent that the tiny experiments imitate."""
    path = tmp_path_factory.mktemp("teacher") / "ppo-CartPole-v1.zip"
    write_teacher(path)
    return path


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Relative paths lie in a temporary folder; main()'s signal handler goes away."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def reader() -> Iterator[BoundedReader]:
    """A process that reads hostile files within limits."""
    with BoundedReader() as started:
        yield started
