"""Returns by bits and scheme, from run directories."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from qpd.analysis.figure_style import paper_style
from qpd.analysis.returns.quantization_returns import (
    draw_returns,
    quantization_returns,
    quantizer_label,
)
from qpd.recipe.loading import override_recipe
from qpd.recipe.schema import QuantizeSettings
from qpd.runs.run_directory import RunDirectory
from qpd.runs.target import TargetError
from tests.analysis.made_up_runs import make_run

RUNS = Path(__file__).parents[3] / "runs-reference"


def fork(
    folder: Path, name: str, overrides: list[str], mean: float | None, games: int = 50
) -> Path:
    """A fork of the quickstart whose phase 2 scored `mean` over so many games."""
    path = folder / name
    path.mkdir()
    for file in ("manifest.json", "recipe.yaml"):
        shutil.copyfile(RUNS / "quickstart" / file, path / file)
    with RunDirectory.open(path) as run:
        run.replace_recipe(override_recipe(run.recipe, overrides))
        run._update(evaluations={})
        if mean is not None:
            score = {"mean": mean, "interval": [mean - 9, mean + 9], "episodes": games}
            run.record_evaluation("ptq", score)
    return path


def test_a_line_for_each_quantizer(tmp_path: Path) -> None:
    runs = [RUNS / "quickstart"]
    for bits, mean in ((4, 260.0), (2, 1.0), (8, 376.0)):
        runs.append(fork(tmp_path, f"w{bits}", [f"quantize.weight_bits={bits}"], mean))
    runs.append(fork(tmp_path, "eq5", ["quantize.scheme=dorefa"], 23.0))
    runs.append(fork(tmp_path, "silent", [], None))
    found = quantization_returns(runs)
    assert found.left_out == {
        str(tmp_path / "silent"): "no return by bits, as no quantized student was evaluated"
    }
    assert set(found.table["student"]) == {"XXS"}  # forks are one student
    ptq = found.table[(found.table["policy"] == "ptq")]
    scaled = ptq[ptq["quantizer"] == "dorefa_scaled"]
    assert scaled["weight_bits"].tolist() == [2, 4, 8, 8]
    assert ptq.loc[ptq["quantizer"] == "dorefa", "mean"].tolist() == [23.0]
    row = scaled[scaled["weight_bits"] == 4].iloc[0]
    assert (row["low"], row["high"], row["episodes"]) == (251.0, 269.0, 50)
    with paper_style():
        (ax,) = draw_returns(found).axes
    drawn = {c.get_label(): c.lines[0].get_ydata().tolist() for c in ax.containers}
    # At 8 bits the 50 games count, not the quickstart's own 30.
    assert drawn["PTQ, dorefa_scaled"] == [1.0, 260.0, 376.0]
    assert drawn["PTQ, dorefa"] == [23.0]
    assert "QAT, dorefa_scaled" in drawn
    labels = [line.get_label() for line in ax.lines]
    assert "teacher" in labels and "fp32 student" in labels


def test_a_fork_without_the_memory_is_no_second_training(tmp_path: Path) -> None:
    path = fork(tmp_path, "w3", ["quantize.weight_bits=3"], 200.0)
    with RunDirectory.open(path) as run:
        own = {"keeps_memory": False, "memory_refilled": True, "code": "abc123"}
        run.set_phase("distill", "done", **{**run.phase("distill").metrics, **own})
    assert quantization_returns([RUNS / "quickstart", path]).trainings == {"XXS": 1}
    with RunDirectory.open(path) as run:
        run.set_phase("distill", "done", **{**run.phase("distill").metrics, "code": "abc", "x": 1})
    assert quantization_returns([RUNS / "quickstart", path]).trainings == {"XXS": 2}


def test_an_agent_in_two_environments_has_two_panels(tmp_path: Path) -> None:
    for version, best in (("v4", 100.0), ("v5", 400.0)):
        made = {"teacher": [best, best], "ptq": [best - 2, best]}
        make_run(tmp_path / version, made, env_id=f"ALE/Breakout-{version}")
    found = quantization_returns([tmp_path / "v4", tmp_path / "v5"])
    assert found.trainings == {"XXS (v4)": 1, "XXS (v5)": 1}
    assert found.references.set_index("student")["mean"].to_dict() == {
        "XXS (v4)": 100.0, "XXS (v5)": 400.0,
    }  # fmt: skip


def test_references_are_those_with_the_most_games(tmp_path: Path) -> None:
    more = fork(tmp_path, "more", [], 370.0)
    with RunDirectory.open(more) as run:
        run.record_evaluation("teacher", {"mean": 1.0, "interval": [0, 2], "episodes": 500})
    for runs in ([RUNS / "quickstart", more], [more, RUNS / "quickstart"]):
        references = quantization_returns(runs).references.set_index("policy")
        assert references.loc["teacher", "episodes"] == 500
        assert references.loc["distilled", "episodes"] == 30


def test_other_students_have_panels_of_their_own() -> None:
    names = ["quickstart", "breakout-ppo-s", "breakout-ppo-xxs"]
    found = quantization_returns([RUNS / name for name in names])
    expected = {"S", "XXS (quickstart)", "XXS (breakout-ppo-xxs)"}
    assert set(found.table["student"]) == expected
    with paper_style():
        figure = draw_returns(found)
        figure.canvas.draw()
    titles = {ax.get_title().replace("\n", " ") for ax in figure.axes} - {""}
    assert titles == {f"{name}, student of PPO on BreakoutNoFrameskip-v4" for name in expected}
    width = figure.bbox.width
    boxes = [ax.title.get_window_extent() for ax in figure.axes]
    assert all(box.x0 >= 0 and box.x1 <= width for box in boxes)


def test_trainings_of_one_recipe_share_a_panel_and_mixed_bits_stand_at_their_mean() -> None:
    found = quantization_returns([RUNS / name for name in ("quickstart", "breakout-ppo-xxs-2bit")])
    assert found.trainings == {"XXS": 2}
    mixed = found.table.set_index("weight_bits").loc[2]
    # conv1 and the head have 8 bits: (4,096 + 128) * 8 + (4,096 + 2,304 + 25,088) * 2 bits.
    assert mixed["mean_bits"] == pytest.approx(96_768 / 35_712)
    assert mixed["layer_bits"] == "8/2/2/2/8"


def test_only_returns_of_one_environment_share_a_scale() -> None:
    names = ("quickstart", "quickstart-a2c", "classic-ppo-cartpole", "classic-qrdqn-lunarlander")
    found = quantization_returns([RUNS / name for name in names])
    with paper_style():
        axes = [ax for ax in draw_returns(found).axes if ax.get_title()]
    limits = {ax.get_title().split("student of ")[1]: ax.get_ylim() for ax in axes}
    breakout = limits["PPO on BreakoutNoFrameskip-v4"]
    assert breakout == limits["A2C on BreakoutNoFrameskip-v4"]
    assert 388 < breakout[1] < 450 and breakout[0] == 0
    assert limits["PPO on CartPole-v1"][1] > 500  # every game is 500 there
    # Negative returns of one environment do not take the others' zero away.
    assert limits["QR-DQN on LunarLander-v3"][0] < 0 == limits["PPO on CartPole-v1"][0]


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "dorefa_scaled"),
        ({"scheme": "dorefa", "equalization": 0.0}, "dorefa"),
        ({"activation_bits": 4}, "dorefa_scaled, 4-bit activations"),
        (
            {"first_layer_bits": 8, "per_channel": False},
            "dorefa_scaled, 8-bit first layer, per layer",
        ),
        (
            {"last_layer_bits": 6, "equalization": 0.0},
            "dorefa_scaled, 6-bit last layer, not equalized",
        ),
    ],
)
def test_labels(changes: dict[str, object], label: str) -> None:
    assert quantizer_label(QuantizeSettings.model_validate(changes)) == label


def test_nothing_was_evaluated(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no quantized student was evaluated"):
        quantization_returns([fork(tmp_path, "silent", [], None)])
