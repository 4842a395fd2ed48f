"""What a change of settings is worth, beside a baseline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qpd.analysis.returns.ablation import ablation_table, ablation_tables, left_out
from qpd.analysis.runs.run_frame import run_frame
from qpd.runs.run_directory import RunDirectoryError
from tests.analysis.made_up_runs import make_run

NO_DAGGER = ("collection.student_fraction=0",)


def runs_of_three_seeds(folder: Path) -> list[Path]:
    """The baseline scores 100, 110 and 120; without DAgger 90, 95 and 85."""
    return [
        make_run(folder / f"{name}-{seed}", {"qat": [mean - 1, mean + 1]}, seed=seed, changes=keys)
        for name, keys, means in (("base", (), (100, 110, 120)), ("none", NO_DAGGER, (90, 95, 85)))
        for seed, mean in enumerate(means)
    ]


def test_differences_are_by_seed_with_students_t(tmp_path: Path) -> None:
    runs = runs_of_three_seeds(tmp_path)
    table = ablation_table(run_frame(runs), runs[0])
    found = table[table["changed"] != ""].iloc[0]
    assert found["changed"] == "collection.student_fraction=0"
    assert found["means"] == (90.0, 95.0, 85.0) and found["games"] == 6
    # Differences -10, -15, -35: mean -20, sd sqrt(175), 4.303 of Student's t with 2 of freedom.
    assert found["difference"] == pytest.approx(-20.0)
    far = 4.3027 * np.sqrt(175 / 3)
    assert found["difference_low"] == pytest.approx(-20 - far, rel=1e-3)
    assert found["difference_high"] == pytest.approx(-20 + far, rel=1e-3)
    assert found["p"] == pytest.approx(0.1201, abs=2e-3)  # t = -2.619, two-sided, alone
    (shown,) = ablation_tables(table)
    assert [row[0] for row in shown.rows] == [
        "nothing: the baseline",
        "collection.student_fraction=0",
    ]


def test_seeds_that_agree_by_chance_have_the_variance_of_their_games(tmp_path: Path) -> None:
    runs = [
        make_run(folder, {"qat": [mean - 10, mean + 10]}, seed=seed, changes=keys)
        for keys, mean in (((), 100), (NO_DAGGER, 90))
        for seed in range(3)
        for folder in [tmp_path / f"{mean}-{seed}"]
    ]
    found = ablation_table(run_frame(runs), runs[0]).iloc[1]
    assert found["difference"] == pytest.approx(-10.0)
    # Each mean of two games has a variance of 200 / 2; six of them over 3 squared.
    far = 4.3027 * np.sqrt(600 / 9)
    assert found["difference_high"] == pytest.approx(-10 + far, rel=1e-3)


def test_two_students_of_one_seed_both_count(tmp_path: Path) -> None:
    runs = runs_of_three_seeds(tmp_path)
    twice = make_run(tmp_path / "again", {"qat": [60, 70, 80, 90]}, seed=0, changes=NO_DAGGER)
    frame = run_frame([*runs, twice])
    frame.loc[frame["run"].str.endswith("none-0"), "student_digest"] = "one"
    frame.loc[frame["run"] == str(twice), "student_digest"] = "another"
    found = ablation_table(frame, runs[0]).iloc[1]
    assert found["games"] == 10 and found["means"][0] == pytest.approx((89 + 91 + 300) / 6)


def test_networks_that_nothing_trained_have_no_row(tmp_path: Path) -> None:
    games = {"distilled": [1, 2, 3], "qat": [90, 95, 85]}
    runs = [
        make_run(tmp_path / name, games, changes=changes)
        for name, changes in (("base", ()), ("scratch", ("distill.epochs=0",)))
    ]
    frame = run_frame(runs)
    table = ablation_table(frame, runs[0])
    assert list(table[table["changed"] != ""]["policy"]) == ["qat"]
    assert left_out(frame, table) == []
    # Nor do trained ones differ from random ones.
    table = ablation_table(frame, runs[1])
    assert list(table["policy"]) == ["qat", "qat"]


def test_runs_without_a_row_are_named(tmp_path: Path) -> None:
    runs = runs_of_three_seeds(tmp_path)
    frame = run_frame(runs)
    strange = frame["run"] == str(runs[-1])
    frame.loc[strange, "env_id"] = "Acrobot-v1"
    (note,) = left_out(frame, ablation_table(frame, runs[0]))
    assert note.startswith("left out, ") and note.endswith(f": {runs[-1]}")


def test_only_seeds_that_both_have_count(tmp_path: Path) -> None:
    runs = runs_of_three_seeds(tmp_path)
    table = ablation_table(run_frame([*runs[:2], *runs[3:]]), runs[0])
    assert table[table["changed"] != ""].iloc[0]["seeds"] == (0, 1)


def test_another_commit_is_a_change_too(tmp_path: Path) -> None:
    runs = runs_of_three_seeds(tmp_path)
    frame = run_frame(runs)
    frame.loc[frame["run"].str.contains("none"), "code"] = "abc1234"
    found = list(ablation_table(frame, runs[0])["changed"])
    assert found == ["", "collection.student_fraction=0, commit=abc1234"]


def test_other_environments_and_teachers_are_no_ablations(tmp_path: Path) -> None:
    runs = runs_of_three_seeds(tmp_path)
    frame = run_frame(runs)
    for key, other in (("env_id", "Acrobot-v1"), ("teacher_sha256", "f" * 64)):
        mixed = frame.copy()
        mixed.loc[mixed["run"].str.contains("none"), key] = other
        assert list(ablation_table(mixed, runs[0])["changed"]) == [""]


def test_a_baseline_that_is_not_among_the_runs(tmp_path: Path) -> None:
    runs = runs_of_three_seeds(tmp_path)
    with pytest.raises(RunDirectoryError, match="--baseline names no evaluated run"):
        ablation_table(run_frame(runs[1:]), runs[0])


def test_agents_that_were_rounded_are_compared_although_nothing_trained_them(
    tmp_path: Path,
) -> None:
    agent = {"method": "agent"}
    runs = [
        make_run(tmp_path / name, {"ptq": [mean - 1, mean + 1]}, changes=keys, distilled=agent)
        for name, keys, mean in (
            ("base", ["distill.epochs=0"], 100.0),
            ("tensor", ["distill.epochs=0", "quantize.per_channel=false"], 90.0),
        )
    ]
    untrained = make_run(tmp_path / "none", {"ptq": [1.0, 2.0]}, changes=["distill.epochs=0"])
    table = ablation_table(run_frame(runs), runs[0])
    assert table["changed"].tolist() == ["", "quantize.per_channel=false"]
    with pytest.raises(RunDirectoryError, match="none of its networks was trained"):
        ablation_table(run_frame([untrained]), untrained)
