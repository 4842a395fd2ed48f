"""Tab completion, asked for as a shell does: words in variables, answers on stdout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qpd.export.formats import EXPORTERS

ROOT = Path(__file__).resolve().parents[2]


def completed(line: str) -> list[str]:
    """Return what bash offers after `line`."""
    words = line.split(" ")
    done = subprocess.run(
        [sys.executable, "-m", "qpd.cli"],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "_QPD_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("qpd e", ["evaluate", "export"]),
        ("qpd teacher ", ["info", "pull", "card"]),
        ("qpd tr", ["train"]),
        ("qpd run qui", ["quickstart"]),
        ("qpd sweep mini", ["mini-grid"]),
        ("qpd run ci --set distill.l", ["distill.lr=", "distill.loss="]),
        ("qpd export runs/x --format o", ["onnx"]),
        ("qpd bench --sizes XXS,XX", ["XXS,XXS", "XXS,XXL"]),
        ("qpd evaluate runs/x --policy q", ["qat"]),
        ("qpd evaluate --quie", ["--quiet"]),
    ],
)
def test_the_shell_is_offered(line: str, some: list[str]) -> None:
    offered = completed(line)
    assert set(some) <= set(offered)
    last = line.split(" ")[-1]
    assert all(word.startswith(last) for word in offered)


def test_every_format_that_export_accepts_is_offered() -> None:
    assert set(completed("qpd export runs/x --format ")) == set(EXPORTERS)
