"""What students keep of their agents' play, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qpd.analysis.returns.parity import (
    parity_notes,
    parity_table,
    parity_tables,
    smallest_at_parity,
)
from qpd.files.atomic import write_json
from qpd.runs.run_folder import sealed
from tests.analysis.made_up_runs import make_run

FIRST_GAMES = {"first_games": {"teacher": 100.0, "random": 10.0, "episodes": 8}}


def _run(path: Path, teacher: np.ndarray, student: np.ndarray, parallel: int) -> Path:
    """A run in which a random policy had 10."""
    games = {"teacher": list(teacher), "qat": list(student)}
    changes = [f"evaluation.episodes={len(teacher)}", f"evaluation.num_envs={parallel}"]
    return make_run(path, games, changes=changes, distilled=FIRST_GAMES)


def test_paired_and_independent_games_by_hand(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    teacher = rng.normal(110, 30, 40)
    student = teacher - 1 + rng.normal(0, 0.5, 40)
    # Of 40 games in 20 environments, the second in each begins whenever the first has ended.
    runs = [_run(tmp_path / str(n), teacher, student, n) for n in (40, 20)]
    table, left_out = parity_table(runs)
    assert left_out == {} and list(table["paired"]) == [True, False]
    paired, alone = (row for _, row in table.iterrows())
    gap = teacher.mean() - 10
    for row in (paired, alone):
        assert row["kept"] == pytest.approx(1 + (student.mean() - teacher.mean()) / gap)
        assert row["kept_low"] < row["kept"] < row["kept_high"]
    assert paired["kept_low"] > 0.98
    # Welch: two standard errors on right angles, at 78 degrees of freedom.
    width = alone["difference_high"] - alone["difference_low"]
    errors = np.hypot(teacher.std(ddof=1), student.std(ddof=1)) / np.sqrt(40)
    assert width == pytest.approx(2 * 1.991 * errors, rel=0.001)
    smallest = smallest_at_parity(table, 0.95)
    assert list(smallest["run"]) == [str(tmp_path / "40")]
    *_, last = parity_tables(table, 0.999)
    assert last.rows[0][:2] == ["PPO on BreakoutNoFrameskip-v4", "none"]
    assert any("independent means" in note for note in parity_notes(table, 0.95))


def test_agents_of_one_environment_are_told_apart_by_their_files(tmp_path: Path) -> None:
    games = np.linspace(90.0, 110.0, 20)
    runs = [_run(tmp_path / name, games, games, 20) for name in "ab"]
    manifest = json.loads((runs[1] / "manifest.json").read_text())
    manifest["teacher"]["sha256"] = "f" * 64
    write_json(runs[1] / "manifest.json", sealed(manifest))
    table, _ = parity_table(runs)
    assert table["agent"].nunique() == 2 and "(ffffffff)" in table["agent"].iloc[1]
    assert len(smallest_at_parity(table, 0.9)) == 2


def test_what_cannot_be_told_is_left_out_or_empty(tmp_path: Path) -> None:
    hopeless = _run(tmp_path / "a", np.full(5, 10.0), np.full(5, 10.0), 5)
    without_random = make_run(tmp_path / "b")
    unplayed = make_run(tmp_path / "c", {"teacher": [1.0, 2.0]})
    table, left_out = parity_table([hopeless, without_random, unplayed])
    assert len(table) == 1 and np.isnan(table["kept"].iloc[0])
    assert [Path(run).name for run in left_out] == ["b", "c"]
    assert parity_tables(table, 0.95)[0].rows[0][-2] == "-"
