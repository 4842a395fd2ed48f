"""Pages that say which agents work name every algorithm that can be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs_build.error_reference import errors_page
from qpd.teachers.archive.agent_identity import algorithm_name
from qpd.teachers.archive.algorithm import SUPPORTED_ALGORITHMS

ROOT = Path(__file__).parents[2]
NAMES = {algorithm_name(algo) for algo in SUPPORTED_ALGORITHMS}


@pytest.mark.parametrize(
    ("page", "beginning"),
    [
        ("README.md", "PPO, A2C"),
        ("docs/teachers.md", "| algorithm |"),
        ("docs/faq.md", "PPO, A2C"),
        ("docs/index.md", "- A PPO"),
        ("CHANGELOG.md", "- Teachers are"),
        (None, "| [`Q303`]"),
    ],
)
def test_it_names_all(page: str | None, beginning: str) -> None:
    text = errors_page() if page is None else (ROOT / page).read_text(encoding="utf-8")
    lines = text.splitlines()
    (start,) = (i for i, line in enumerate(lines) if line.startswith(beginning))
    size = 9 if beginning.startswith("| algorithm") else 2  # a whole table, or a sentence
    words = " ".join(lines[start : start + size]).replace("(", " ").replace(")", " ").split()
    assert NAMES <= {word.strip(",.:;") for word in words}
