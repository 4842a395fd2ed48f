"""Return by lambda: only runs that differ in nothing else are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpd.analysis.figure_style import paper_style
from qpd.analysis.returns.lambda_returns import lambda_figure, lambda_returns
from qpd.analysis.returns.policy_returns import policy_returns
from qpd.analysis.runs.run_frame import run_frame
from tests.analysis.made_up_runs import REFERENCE, make_run


def run(path: Path, weight: float, best: float, *more: str, seed: int = 0) -> Path:
    changes = [f"distill.actor_weight={weight}", f"finetune.actor_weight={weight}", *more]
    return make_run(path, {"teacher": [9.0], "qat": [best]}, seed=seed, changes=changes)


def test_runs_that_differ_in_lambda_alone(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "one", 1.0, 30.0),
        run(tmp_path / "half-seed0", 0.5, 10.0),
        run(tmp_path / "half-seed1", 0.5, 20.0, seed=1),
        run(tmp_path / "longer", 0.0, 5.0, "distill.epochs=99"),
        run(tmp_path / "s-one", 1.0, 50.0, "student.size=S"),
        run(tmp_path / "s-none", 0.0, 40.0, "student.size=S"),
    ]
    table = lambda_returns(policy_returns(run_frame(runs)))
    assert list(zip(table["series"], table["lambda"], table["mean"], strict=True)) == [
        ("PPO, 8-bit, S", 0, 40),
        ("PPO, 8-bit, S", 1, 50),
        ("PPO, 8-bit, XXS", 0.5, 15),
        ("PPO, 8-bit, XXS", 1, 30),
    ]
    with paper_style():
        (axes,) = lambda_figure(table).axes
    drawn = {box.get_label(): list(box[0].get_xdata()) for box in axes.containers}
    assert drawn == {"PPO, 8-bit, S": [0, 1], "PPO, 8-bit, XXS": [0.5, 1]}


@pytest.mark.parametrize("other", [("distill.epochs=99",), ("student.size=S",)])
def test_nothing_to_compare(tmp_path: Path, other: tuple[str]) -> None:
    runs = [run(tmp_path / "a", 0.5, 1.0), run(tmp_path / "b", 1.0, 1.0, *other)]
    assert lambda_returns(policy_returns(run_frame(runs))).empty


def test_reference_runs() -> None:
    runs = [REFERENCE / name for name in ("quickstart", "breakout-ppo-xxs", "breakout-ppo-s")]
    table = lambda_returns(policy_returns(run_frame(runs)))
    assert list(zip(table["experiment"], table["lambda"], strict=True)) == [
        ("quickstart", 0.5),
        ("breakout-ppo-xxs", 1.0),
    ]
