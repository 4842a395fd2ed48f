"""What several test files need."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from hypothesis import settings

# Before PyTorch is imported: processes that test side by side do not fight for the cores.
os.environ["OMP_NUM_THREADS"] = "1"

from tests.hostile.bounded_reader import BoundedReader
from tests.tiny_run import write_dqn, write_teacher

# On a busy machine an example takes many times as long.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


# Notebooks run as tests. What these show has tests of its own, and UMAP takes 15 s to compile.
SLOW_NOTEBOOKS = (
    "features.ipynb",
    "outputs.ipynb",
    "quantization.ipynb",
    "quantized-agents.ipynb",
    "returns.ipynb",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow notebooks."""
    for item in items:
        if item.path.name in SLOW_NOTEBOOKS:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Typer makes all commands anew for each call of `qpd`, which takes longer than most calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def teacher_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent that the tiny experiments imitate."""
    path = tmp_path_factory.mktemp("teacher") / "ppo-CartPole-v1.zip"
    write_teacher(path)
    return path


@pytest.fixture(scope="session")
def dqn_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained DQN agent for CartPole: games of ten to a hundred steps."""
    path = tmp_path_factory.mktemp("agent") / "dqn-CartPole-v1.zip"
    write_dqn(path)
    return path


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths lie in a temporary folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def reader() -> Iterator[BoundedReader]:
    """A process that reads hostile files within limits."""
    with BoundedReader() as started:
        yield started
