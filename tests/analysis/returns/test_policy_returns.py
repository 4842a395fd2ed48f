"""Returns over seeds and games: which runs are joined, and what they are compared with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from qpd.analysis.returns.policy_returns import final_students, policy_returns, returns_csv
from qpd.analysis.returns.return_rows import returns_notes, returns_tables
from qpd.analysis.runs.run_frame import run_frame
from qpd.runs.run_directory import RunDirectoryError
from tests.analysis.made_up_runs import REFERENCE, RETURNS, make_run


def row(table: pd.DataFrame, policy: str, **fields: object) -> pd.Series:
    """The only row of `policy` with these fields."""
    found = table[table["policy"] == policy]
    for name, value in fields.items():
        found = found[found[name] == value]
    assert len(found) == 1
    return found.iloc[0]


def test_seeds_are_joined_and_compared_with_the_teacher(tmp_path: Path) -> None:
    first = make_run(tmp_path / "x-seed0")
    second = make_run(tmp_path / "x-seed1", {"qat": [30.0, 40]}, seed=1)
    table = policy_returns(run_frame([first, second]))
    assert len(table) == 3
    qat = row(table, "qat")
    assert (qat["experiment"], qat["num_runs"], qat["num_episodes"]) == ("x", 2, 4)
    assert qat["mean"] == 25 and qat["iqm"] == 25  # of 10, 20, 30, 40
    # The teacher's games are 10 and 30: 1/2, 1, 3/2 and 2 of two are won.
    assert qat["relative"] == 25 / 20 and qat["improvement"] == (0.5 + 1 + 1.5 + 2) / 8
    # Two seeds at 15 and 35 say little of others, whose games may be beyond all of these.
    assert qat["mean_low"] < 10 and qat["mean_high"] > 40
    assert np.isnan(row(table, "teacher")["relative"])
    assert qat["runs"] == (str(first), str(second))


def test_the_same_student_counts_once_and_so_do_a_teachers_games(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", seed=0),
        # A fork of it: the same fp32 student, evaluated on more games; other bits.
        make_run(
            tmp_path / "b",
            RETURNS | {"distilled": [20.0, 40, 60]},
            changes=["quantize.weight_bits=4"],
        ),
        make_run(tmp_path / "c", {"teacher": [50.0]}, seed=1),
    ]
    table = policy_returns(run_frame(runs))
    distilled, teacher = row(table, "distilled"), row(table, "teacher")
    assert (distilled["num_runs"], distilled["num_episodes"], distilled["mean"]) == (1, 3, 40)
    assert (teacher["num_runs"], teacher["num_episodes"], teacher["mean"]) == (1, 3, 30)
    assert len(table[table["policy"] == "qat"]) == 2
    assert distilled["experiment"] == "a + 1 more"
    assert row(table, "qat", weight_bits=4)["relative"] == 15 / 30


def test_another_machines_student_of_the_same_seed_is_another_run(tmp_path: Path) -> None:
    data = (REFERENCE / "quickstart" / "quantized.safetensors").read_bytes()
    for name, last, returns in (("a", 0, [10.0, 20]), ("b", 1, [30.0, 40]), ("copy", 1, [30.0])):
        run = make_run(tmp_path / name, {"qat": returns})
        (run / "quantized.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ last]))
    table = policy_returns(run_frame([tmp_path]))
    row = table[table["policy"] == "qat"].iloc[0]
    assert (row["num_runs"], row["num_episodes"], row["mean"]) == (2, 4, 25.0)


def test_other_games_of_a_teacher_from_one_seed_count(tmp_path: Path) -> None:
    """More environments play other games; the order in which runs are named decides nothing."""
    played = ([1.0, 2, 3], [1.0, 2, 3, 4], [5.0, 6, 7, 8])
    runs = [make_run(tmp_path / str(n), {"teacher": games}) for n, games in enumerate(played)]
    for order in (runs, runs[::-1]):
        found = row(policy_returns(run_frame(order)), "teacher")
        assert (found["num_runs"], found["num_episodes"], found["mean"]) == (1, 8, 4.5)


def test_no_other_teacher_stands_in(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "sampled"),
        make_run(tmp_path / "greedy", {"qat": [1.0]}, acting="greedy"),
        make_run(tmp_path / "other-agent", {"qat": [1.0]}, algo="a2c"),
        make_run(tmp_path / "other-game", {"qat": [1.0]}, env_id="PongNoFrameskip-v4"),
    ]
    frame = run_frame(runs)
    table = policy_returns(frame)
    students = table[table["policy"] == "qat"].set_index("experiment")
    assert students["relative"].notna().to_dict() == {
        "sampled": True,
        "greedy": False,
        "other-agent": False,
        "other-game": False,
    }
    notes = " ".join(returns_notes(frame, table))
    assert "no evaluation of the teacher, acting by the same rule, for" in notes
    assert "greedy" in notes and "sampled" not in notes.split("same rule, for")[1]


def test_a_sharpened_teacher_is_compared_with_the_plain_one(tmp_path: Path) -> None:
    returns = {"teacher": [10.0, 10], "teacher_sharpened": [15.0, 15]}
    table = policy_returns(run_frame([make_run(tmp_path / "a", returns)]))
    assert row(table, "teacher_sharpened")["relative"] == 1.5


def test_negative_returns_have_no_share_but_a_probability(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {"teacher": [-100.0, -90], "qat": [-80.0]})
    frame = run_frame([run])
    table = policy_returns(frame)
    assert np.isnan(row(table, "qat")["relative"]) and row(table, "qat")["improvement"] == 1
    assert "no share of the teacher's return where that may not be positive: Breakout" in " ".join(
        returns_notes(frame, table)
    )
    # A mean of 1 that could as well be negative: 42 times as much would say nothing.
    unclear = {"teacher": [-100.0, 102], "qat": [42.0]}
    table = policy_returns(run_frame([make_run(tmp_path / "b", unclear)]))
    assert np.isnan(row(table, "qat")["relative"])


def test_a_rows_interval_depends_on_nothing_but_its_games(tmp_path: Path) -> None:
    games = list(np.random.default_rng(0).normal(size=50))
    runs = [make_run(tmp_path / name, {"qat": games}) for name in ("a", "b")]
    for place, change in enumerate(("epochs=1", "epochs=2")):
        runs.append(make_run(tmp_path / str(place), {"qat": games}, changes=[f"distill.{change}"]))
    alone = policy_returns(run_frame(runs[:1])).iloc[0]
    together = policy_returns(run_frame(runs))
    assert set(together["mean_low"]) == {alone["mean_low"]}
    assert policy_returns(run_frame(runs), seed=1)["iqm_low"].iloc[0] != alone["iqm_low"]


def test_a_finetuned_student_stands_for_its_run(tmp_path: Path) -> None:
    both = make_run(tmp_path / "both", {"ptq": [1.0], "qat": [2.0], "distilled": [3.0]})
    only = make_run(tmp_path / "only", {"ptq": [4.0]}, changes=["quantize.weight_bits=4"])
    table = final_students(policy_returns(run_frame([both, only])))
    assert sorted(zip(table["policy"], table["mean"], strict=True)) == [
        ("distilled", 3),
        ("ptq", 4),
        ("qat", 2),
    ]


def test_nothing_evaluated_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="a: no policy was evaluated yet; see `qpd eval"):
        policy_returns(run_frame([make_run(tmp_path / "a", {})]))


def test_what_a_terminal_and_a_file_show(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"x-seed{seed}", seed=seed) for seed in (0, 1)]
    runs.append(make_run(tmp_path / "pong", env_id="PongNoFrameskip-v4"))
    frame = run_frame(runs)
    table = policy_returns(frame)
    breakout, pong = returns_tables(table)
    assert (breakout.title, pong.title) == ("BreakoutNoFrameskip-v4", "PongNoFrameskip-v4")
    lines = {line[2]: line for line in breakout.rows}
    assert lines["QAT"][:7] == ["x", "PPO", "QAT", "XXS", "8-bit", "0.5", "4 of 2 runs"]
    assert lines["QAT"][7].startswith("15.0 [") and lines["QAT"][9].startswith("75% [")
    assert lines["teacher"][:2] == ["-", "PPO"] and lines["teacher"][5] == "-"
    csv = returns_csv(table)
    assert f"{runs[0]};{runs[1]}" in set(csv["runs"])
    assert not {"recipe_key", "names"} & set(csv.columns)
    assert any("3 students" in note for note in returns_notes(frame, table))  # ptq of each run


def test_games_that_two_evaluations_share_count_once(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "more", {"teacher": [9.0, 2, 3, 8]}),
        make_run(tmp_path / "less", {"teacher": [1.0, 2, 3]}),
    ]
    for order in (runs, runs[::-1]):
        found = row(policy_returns(run_frame(order)), "teacher")
        assert (found["num_episodes"], found["mean"]) == (5, (9 + 2 + 3 + 8 + 1) / 5)


def test_an_agent_in_another_environment_is_another_teacher(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "whole", {"teacher": [100.0], "qat": [100.0]}),
        make_run(
            tmp_path / "short",
            {"teacher": [10.0], "qat": [10.0]},
            changes=["environment.max_frames=400"],
        ),
    ]
    table = policy_returns(run_frame(runs))
    assert list(table[table["policy"] == "qat"]["relative"]) == [1.0, 1.0]


def test_a_sharpened_teacher_is_never_compared_with_a_greedy_one(tmp_path: Path) -> None:
    sharp = make_run(tmp_path / "sharp", {"teacher": [10.0], "teacher_sharpened": [20.0]})
    greedy = make_run(tmp_path / "greedy", {"teacher": [40.0]}, acting="greedy")
    manifest = json.loads((sharp / "manifest.json").read_text())
    manifest["evaluations"]["teacher_sharpened"]["acting"] = "sampled from softmax(3 * logits)"
    (sharp / "manifest.json").write_text(json.dumps(manifest))
    for order in ([sharp, greedy], [greedy, sharp]):
        table = policy_returns(run_frame(order))
        assert row(table, "teacher_sharpened")["relative"] == 2.0


def test_an_evaluation_that_names_no_seed_is_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "old")
    manifest = json.loads((run / "manifest.json").read_text())
    for evaluation in manifest["evaluations"].values():
        del evaluation["seed"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert row(policy_returns(run_frame([run])), "qat")["mean"] == 15.0
