"""Trainings in few bits side by side: real ones, with returns written into their manifests."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qpd
from qpd.analysis.precision.trainings import (
    by_task,
    read_trainings,
    shown_trainings,
    significands,
)
from qpd.recipe.train_schema import METHODS, TrainPrecision, load_train_recipe
from qpd.runs.manifest import EvaluatedPolicy
from qpd.runs.run_folder import RunDirectoryError
from qpd.runs.training_run import TrainingRun
from tests.command_line import call

pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn


def training(
    folder: Path, seed: int, value: float | None, algo: str = "sac", **precision: Any
) -> None:
    """A training's run directory, with a curve up to `value`; None: it failed after 501 steps."""
    places = {"core_bits": "quantization.core_bits", "batch_size": "batch_size"}
    overrides = [f"{places.get(key, f'precision.{key}')}={text}" for key, text in precision.items()]
    env = "Pendulum-v1" if algo == "sac" else "CartPole-v1"
    recipe = load_train_recipe(None, overrides, algo=algo, env=env)
    recipe = recipe.model_copy(update={"seed": seed})
    with TrainingRun.create(folder, recipe) as run:
        run.set_phase(state="done", timesteps=2000, failed_at=501 if value is None else None)
        if value is None:
            return
        policy: EvaluatedPolicy = "qat" if "core_bits" in precision else "teacher"
        run.record_evaluation(policy, evaluation([value - 1, value + 1]))
        with run.metrics_file.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["phase", "epoch", "timesteps", "episode_return"])
            writer.writerow(["train", 1, 500, ""])
            writer.writerow(["train", 2, 1000, value - 100])
            writer.writerow(["train", 3, 2000, value])


def evaluation(returns: list[float]) -> dict[str, Any]:
    return {
        "mean": float(np.mean(returns)), "returns": returns, "episodes": len(returns),
        "seed": 0, "acting": "greedy", "interval": [min(returns), max(returns)],
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, value in enumerate([-150.0, -170, -160]):
        training(tmp_path / f"single-{seed}", seed, value)
        training(tmp_path / f"half-{seed}", seed, value - 10, format="fp16")
        training(tmp_path / f"plain-{seed}", seed, None, format="fp16", methods="[]")
        training(tmp_path / f"m5-{seed}", seed, value - 900, format="e5m5")
    training(tmp_path / "half-3", 3, -400.0, format="fp16")  # without a pair
    training(tmp_path / "ppo-0", 0, 500.0, "ppo", format="fp16", master_weights="false")
    return tmp_path


def test_arms_are_told_apart() -> None:
    low = TrainPrecision(format="fp16")
    assert low.named() == "fp16, six methods"
    assert low.named("ppo") == "fp16, mixed precision"
    fixed = low.model_copy(update={"loss_scale": 128, "master_weights": False})
    assert fixed.named("dqn") == "fp16, mixed precision, S 128, no masters"
    assert TrainPrecision(format="fp16", methods=list(METHODS[:2])).named() == (
        "fp16, hadam + softplus"
    )
    assert TrainPrecision(format="fp32").named() == "fp32"


def test_differences_are_in_pairs_and_failures_have_no_return(folder: Path) -> None:
    ppo, sac = shown_trainings(read_trainings([folder]))
    assert (ppo.title, sac.title) == ("ppo CartPole-v1", "sac Pendulum-v1")
    rows = {row[0]: row[1:] for row in sac.rows}
    assert list(rows) == ["fp32", "e5m5, six methods", "fp16, plain", "fp16, six methods"]
    # -160 +- 4.303 * 10 / sqrt 3.
    assert rows["fp32"] == ["-150, -170, -160", "-160 [-185, -135]", "-", "-", "-"]
    half = rows["fp16, six methods"]
    assert half[0] == "-160, -180, -170, -400" and half[2] == "-10 [-10, -10]"
    assert rows["fp16, plain"] == ["-, -, -", "-", "-", "-", "501, 501, 501"]
    assert ppo.rows == [["fp16, mixed precision, no masters", "500", "500", "-", "-", "-"]]


def test_other_recipes_stand_apart_and_repetitions_are_refused(folder: Path) -> None:
    training(folder / "core", 0, -500.0, format="fp16", core_bits=3)
    training(folder / "long", 0, -140.0, batch_size=512)
    shown = shown_trainings(read_trainings([folder]))
    titles = [each.title for each in shown]
    assert titles[0] == "ppo CartPole-v1" and titles[3] == "sac Pendulum-v1 in 8-3-8 bits"
    assert all(title.startswith("sac Pendulum-v1, recipe ") for title in titles[1:3])
    assert sorted(len(each.rows) for each in shown[1:3]) == [1, 4]
    training(folder / "again", 0, -155.0)
    with pytest.raises(qpd.UserError, match="a second training of fp32 with seed 0"):
        by_task(read_trainings([folder]))


def test_significands_are_those_of_all_methods(folder: Path) -> None:
    found = significands(by_task(read_trainings([folder]))["sac Pendulum-v1"])
    assert {key: len(mine) for key, mine in found.items()} == {(5, 10): 4, (5, 5): 3}


def test_the_command_draws_them(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "analyze", "precision", folder, "-o", tmp_path / "out")
    assert code == 0 and "minus fp32" in out, err
    names = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert names == {
        "trainings-sac-Pendulum-v1.png", "learning-sac-Pendulum-v1.png",
        "significands-sac-Pendulum-v1.png", "trainings-ppo-CartPole-v1.png",
        "learning-ppo-CartPole-v1.png",
    }  # fmt: skip
    text = (tmp_path / "out" / "learning_curves.csv").read_text()
    curves = list(csv.DictReader(text.splitlines()))
    assert len(curves) == 2 * 11 and float(curves[0]["timesteps"]) == 1000


@pytest.mark.parametrize("text", ["phase,epoch,timesteps,episode_return\ntrain,1,500,x\n",
                                  "phase,epoch,episode_return\ntrain,1,-300\n"])  # fmt: skip
def test_a_curve_that_is_no_numbers_is_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training(tmp_path / "one", 0, -150.0)
    (tmp_path / "one" / "metrics.csv").write_text(text)
    code, out, err = call(capsys, "analyze", "precision", str(tmp_path))
    assert (code, out) == (2, "") and "metrics.csv: timesteps and episode_return" in err


def test_every_arm_has_a_name() -> None:
    assert TrainPrecision(format="fp16", methods=["kahan_actor"]).named() == (
        "fp16, plain and kahan_actor"
    )


def test_a_trainings_recipe_that_was_edited_is_written_again(tmp_path: Path) -> None:
    recipe = load_train_recipe(None, ["name='09'"], algo="sac", env="Pendulum-v1")
    with TrainingRun.create(tmp_path / "run", recipe) as run:
        file = run.recipe_file
    assert TrainingRun.open(tmp_path / "run").recipe == recipe
    file.write_text(file.read_text() + "# edited\n")
    with pytest.raises(RunDirectoryError, match="goes on without it"):
        TrainingRun.open(tmp_path / "run")
    with TrainingRun.create(tmp_path / "run", recipe):
        pass
    assert TrainingRun.open(tmp_path / "run").recipe == recipe
