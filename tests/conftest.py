"""What several test files need."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import write_teacher


@pytest.fixture(scope="session")
def teacher_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent that the tiny experiments imitate."""
    path = tmp_path_factory.mktemp("teacher") / "ppo-CartPole-v1.zip"
    write_teacher(path)
    return path
