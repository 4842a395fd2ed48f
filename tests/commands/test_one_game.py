"""A run whose returns are of one game each: no page shows an interval that it does not have."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from qpd.analysis.figure_style import paper_style
from qpd.analysis.report.headline import headline_section
from qpd.analysis.report.inputs import read_inputs
from qpd.analysis.returns.qat_curves import draw_curves, qat_curves
from qpd.evaluation.return_words import games_text, interval_text, interval_words
from tests.command_line import call
from tests.tiny_run import recipe_of, write_teacher


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run, and what `qpd run` said while it made it."""
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("one-game")
    write_teacher(folder / "ppo-CartPole-v1.zip")
    games = {"episodes": 1, "validation_episodes": 1, "validate_every": 2}
    recipe = recipe_of(folder / "ppo-CartPole-v1.zip", evaluation=games)
    (folder / "tiny.yaml").write_text(recipe.to_yaml())
    command = [sys.executable, "-m", "qpd.cli", "run", folder / "tiny.yaml", "-o", folder / "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return folder / "run", done.stdout + done.stderr


def test_progress_and_tables_show_none(
    notes: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run, said = notes
    assert "qat: return " in said and "[-]" in said
    assert call(capsys, "show", run)[1].count("[-]") == 4  # teacher, distilled, ptq, qat
    returns = json.loads(call(capsys, "show", run, "--json")[1])["policies"]["qat"]["return"]
    mean = f"{returns['mean']:,.1f}"
    assert f"qat: return {mean} [-]" in said


def test_metrics_leave_its_ends_empty(notes: tuple[Path, str]) -> None:
    with (notes[0] / "metrics.csv").open(encoding="utf-8", newline="") as file:
        validated = [row for row in csv.DictReader(file) if row["validation_return"]]
    assert validated and {row["validation_low"] for row in validated} == {""}


def test_the_report_says_one_game(notes: tuple[Path, str]) -> None:
    cards = headline_section(read_inputs(notes[0], [], None, 0, lambda text: None)).blocks[0].cards
    assert cards[0].notes[0] == "one full game, which tells of no other"


def test_curves_are_drawn_without_bars(notes: tuple[Path, str]) -> None:
    with paper_style():
        _, returns = draw_curves(qat_curves([notes[0]])).axes
    drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in returns.lines])
    assert np.isfinite(drawn).any()


def test_words() -> None:
    assert interval_text((1.0, 2345.678), 2) == "[1.0, 2,345.7]"
    assert interval_text((1.0, 1.0), 1) == "[-]"
    assert interval_words((1.0, 2.0), 9) == "95% interval 1.0 to 2.0, 9 full games"
    assert [games_text(n) for n in (1, 1000)] == ["1 full game", "1,000 full games"]
