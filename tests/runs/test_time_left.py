"""The time left of a whole run, with numbers by hand."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from qpd.actions import ActingRule
from qpd.evaluation.games import EvaluationResult
from qpd.phases.whole_run import work_ahead
from qpd.runs import progress as progress_module
from qpd.runs.epoch_report import EpochReport
from qpd.runs.progress import TerminalProgress
from qpd.runs.run_directory import RunDirectory
from qpd.runs.time_left import HearsWork, TimeLeft, WorkAhead
from tests.tiny_run import recipe_of


def test_later_phases_cost_what_this_one_does_per_sample() -> None:
    left = TimeLeft(WorkAhead({"distill": 1000, "finetune": 600}, games=40))
    # 10 epochs of 100 samples at 5 s: 20 samples/s. 4 epochs (20 s) and finetune's 600 (30 s).
    assert left.in_training("distill", 10, 4, 5.0) == pytest.approx(50.0)
    # A validation of 5 games took 10 s: 2 s for each of the 40 that end the run.
    assert left.in_games("validating", 5, 5, 10.0) is None
    assert left.in_training("distill", 10, 4, 5.0) == pytest.approx(130.0)
    # In phase 3 nothing follows but the games.
    assert left.in_training("finetune", 6, 1, 5.0) == pytest.approx(85.0)


def test_games_count_down_over_the_policies() -> None:
    left = TimeLeft(WorkAhead({}, games=40))
    assert left.in_games("evaluating teacher", 5, 20, 10.0) == pytest.approx(70.0)  # 35 at 2 s
    assert left.in_games("evaluating teacher", 20, 20, 20.0) == pytest.approx(20.0)  # 20 at 1 s
    assert left.in_games("evaluating ptq", 10, 20, 5.0) == pytest.approx(5.0)  # 10 at 0.5 s


def test_the_work_is_what_the_run_has_not_done(tmp_path, teacher_zip) -> None:  # type: ignore[no-untyped-def]
    recipe = recipe_of(teacher_zip)  # 6 and 4 epochs over a memory of 512, 4 games each
    with RunDirectory.create(tmp_path / "run", recipe) as run:
        work = work_ahead(recipe, run, sharpened=False)
        assert work == WorkAhead({"distill": 6 * 512, "finetune": 4 * 512}, games=16)
        run.set_phase("distill", "done")
        assert work_ahead(recipe, run, sharpened=False).samples == {"finetune": 2048}
    reward = {"rollout": 256, "passes": 2}
    recipe = recipe_of(
        teacher_zip,
        distill={"samples_per_epoch": 100},
        finetune={"reward": reward},
        student={"size": "mlp-16", "sharpness": 2.0},
    )
    with RunDirectory.create(tmp_path / "other", recipe) as run:
        work = work_ahead(recipe, run, sharpened=True)
    assert work == WorkAhead({"distill": 600, "finetune": 4 * 512}, games=20)


def test_the_display_tells_both(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    text = io.StringIO()
    display = TerminalProgress(Console(file=text, width=300))
    assert isinstance(display, HearsWork)
    display.work_ahead(WorkAhead({"distill": 1000, "finetune": 1000}, games=10))
    display.phase("distill", 10, 0)
    now[0] = 130.0
    report = EpochReport(1, 0.5, 0.4, 0.1, 1e-3, 33.0, None)
    display.epoch(report)
    # 9 epochs at 30 s; finetune's 1,000 samples at 0.3 s more.
    assert text.getvalue().rstrip().endswith("4:30 left in this phase, 9:30 in all")
    games = EvaluationResult(np.ones(2), np.ones(2, np.int64), 0, ActingRule("greedy"))
    now[0] = 140.0
    display.episodes("validating", 1, 2)
    now[0] = 160.0
    display.episodes("validating", 2, 2)  # 30 s since the epoch's line: 15 s a game
    display.epoch(EpochReport(2, 0.5, 0.4, 0.1, 1e-3, 33.0, games))
    # 8 epochs at 30 s, as many seconds for finetune's 10, and 10 games at 15 s.
    assert text.getvalue().rstrip().endswith("4:00 left in this phase, 11:30 in all")
