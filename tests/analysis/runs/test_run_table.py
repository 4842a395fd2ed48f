"""`qpd show`: what each policy takes as a file and as constants."""

import copy
from pathlib import Path

import pytest

from qpd.analysis.runs.run_table import (
    run_summary,
    summary_caption,
    summary_rows,
    summary_title,
)
from qpd.analysis.runs.sweep_table import sweep_caption
from tests.command_line import call
from tests.tiny_run import Follower, Interrupt, recipe_of, work

RUNS = Path(__file__).resolve().parents[3] / "runs-reference"


def test_bytes_are_stated_with_and_without_the_files_header() -> None:
    run = RUNS / "classic-ppo-cartpole"
    summary = run_summary(run)
    header, rows = summary_rows(summary)
    assert header[-2:] == ["file bytes", "constants"]
    sizes = {row[0]: row[-2:] for row in rows}
    file = (run / "quantized.safetensors").stat().st_size
    # 4 * 32 + 32 * 2 weights; 9 bytes for each of 32 hidden units, 4 for each of 2 actions
    assert sizes["finetuned (QAT)"] == [f"{file:,}", "488"]
    # 226 parameters and 9,155, of 4 bytes each
    assert sizes["distilled, fp32"][1] == "904"
    assert sizes["teacher"] == ["36,620", "36,620"]
    assert summary["policies"]["qat"]["constant_bytes"] == 488


def test_bits_of_each_layer_count_in_the_constants() -> None:
    policies = run_summary(RUNS / "breakout-ppo-xxs-2bit")["policies"]
    # what QPD_CONSTANT_BYTES says: the first and the last layer have 8 bits, the others 2
    assert policies["qat"]["constant_bytes"] == 12_832


def test_a_run_that_was_made_without_a_recipe_names_none() -> None:
    summary = run_summary(RUNS / "classic-ppo-cartpole")
    title = "classic-ppo-cartpole, student of PPO on CartPole-v1"
    assert summary_title(summary) == f"{title}, recipe classic-ppo-cartpole"
    # what `qpd run --teacher ppo-CartPole-v1.zip` writes
    assert summary_title(summary | {"recipe": "ppo-CartPole-v1"}) == title


def test_a_missing_share_of_the_teacher_is_explained() -> None:
    summary = run_summary(RUNS / "breakout-ppo-2kb")  # whose teacher was not evaluated
    _, rows = summary_rows(summary)
    assert "-" in [row[2] for row in rows if row[1] != "not evaluated"]
    assert summary_caption(summary).endswith(
        "; of teacher: -, as the teacher was not evaluated: "
        "`qpd evaluate RUN --policy teacher` does that"
    )
    negative = run_summary(RUNS / "classic-a2c-acrobot")  # -1 for every step
    assert summary_caption(negative).endswith("; of teacher: -, as its return is not above 0")
    assert "of teacher" not in summary_caption(run_summary(RUNS / "classic-ppo-cartpole"))
    unsure = copy.deepcopy(run_summary(RUNS / "classic-ppo-cartpole"))
    unsure["policies"]["teacher"]["return"] |= {"mean": 32.3, "interval": [-144.4, 120.7]}
    assert {row[2] for row in summary_rows(unsure)[1]} == {"-"}
    assert summary_caption(unsure).endswith("as its return may as well be below 0")


def test_a_run_under_way_says_how_far_it_is(
    teacher_zip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_of(teacher_zip, distill={"epochs": 3})
    seen: list[str | None] = []

    def stop(event: str, phase: str, epoch: int) -> bool:
        seen.append(run_summary(tmp_path / "run")["under_way"])
        return (event, epoch) == ("epoch", 2)

    with pytest.raises(Interrupt):
        work(tmp_path / "run", recipe, Follower(stop))
    assert seen[0] == "at work: distill" and seen[-1] == "at work: distill, epoch 2 of 3"
    assert (
        call(capsys, "show", tmp_path / "run")[1]
        .rstrip()
        .endswith("interrupted: distill, epoch 2 of 3; rerun its command to resume")
    )
    assert run_summary(RUNS / "classic-ppo-cartpole")["under_way"] is None


def test_a_sweep_ends_with_what_its_cells_warn_of() -> None:
    runs = [{"warnings": ["a bad teacher"]}, {"warnings": ["a bad teacher"]}, {"warnings": []}]
    cells = [{"cell": "a", "state": "done", "run": run} for run in runs]
    caption = sweep_caption({"cells": [*cells, {"cell": "b", "state": "waiting"}]})
    assert caption[1:] == ["warning, of 2 cells: a bad teacher"]


def test_games_by_unequal_seeds_are_told() -> None:
    summary = run_summary(RUNS / "classic-ppo-cartpole")
    assert summary_caption(summary).count("evaluation seed") == 1
    summary["policies"]["qat"]["return"]["seed"] = 7
    caption = summary_caption(summary)
    assert "evaluation seed 7 (finetuned (QAT))" in caption and "each, " in caption
