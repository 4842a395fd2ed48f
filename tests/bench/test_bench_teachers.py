"""The teacher of the run takes turns beside its students; without it nothing is made up."""

from __future__ import annotations

import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from qpd.bench.answers import compare_actions
from qpd.bench.benchmark import BenchSettings, run_benchmark
from qpd.bench.contestant import MissingError
from qpd.bench.models import BenchModel, random_model, run_model
from qpd.bench.runtimes import start_teacher
from qpd.bench.teachers import BenchTeacher, group_by_teacher, teacher_of_run
from qpd.recipe.schema import TeacherSettings
from qpd.teachers import load_recipe_teacher
from tests.tiny_run import Follower, recipe_of, work, write_teacher

torch.set_num_threads(1)
RUNS = Path(__file__).parents[2] / "runs-reference"
SETTINGS = BenchSettings(("torch",), (1,), rounds=2, seconds=0.02, frames="noise")
NAME = "teacher ppo CartPole-v1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a teacher, `agent.zip`, and a run of it, `tiny`."""
    folder = tmp_path_factory.mktemp("made")
    write_teacher(folder / "agent.zip")
    work(folder / "tiny", recipe_of(folder / "agent.zip"), Follower())
    return folder


def without_teacher(model: BenchModel) -> tuple[str | None, list[str]]:
    (group,), notes = group_by_teacher([model])
    return (None if group.teacher is None else group.teacher.name), notes


def test_a_cartpole_student_is_compared_with_its_own_teacher(made: Path) -> None:
    record = run_benchmark([run_model(made / "tiny")], SETTINGS)
    rows = {(row.runtime, row.model): row for row in record.rows}
    assert list(rows) == [("torch", NAME), ("sb3-predict", NAME), ("torch", "tiny")]
    assert all(row.status == "measured" for row in record.rows) and record.notes == []
    teacher, predict, student = record.rows
    assert teacher.kernels == "SB3" and teacher.is_teacher and not student.is_teacher
    assert (student.teacher, teacher.teacher, teacher.size) == (NAME, None, None)
    # Actor and critic: 4 x 64, 64 x 64 and their biases twice, 64 x 2 + 2 and 64 + 1.
    assert teacher.file_bytes == 4 * (2 * (4 * 64 + 64 + 64 * 64 + 64) + 64 * 2 + 2 + 64 + 1)
    for row in record.rows:
        assert row.forwards_per_second and teacher.forwards_per_second
        ratio = row.forwards_per_second / teacher.forwards_per_second
        assert row.ratio == pytest.approx(ratio)
        assert row.check is not None and row.check.same_actions == row.check.vectors == 8


def test_runs_of_one_teacher_share_its_rows_and_another_agent_has_its_own(
    made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made / "tiny", tmp_path / "twin")
    agent = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, seed=1, device="cpu")
    agent.save(tmp_path / "agent.zip")
    work(tmp_path / "other", recipe_of(tmp_path / "agent.zip"), Follower())
    runs = (made / "tiny", tmp_path / "other", tmp_path / "twin")
    models = [run_model(run) for run in runs] + [random_model("XXS")]
    groups, notes = group_by_teacher(models)
    assert [[model.path for model in group.models] for group in groups] == [
        [runs[0], runs[2]],
        [runs[1]],
        [None],
    ]
    names = [group.teacher.name for group in groups if group.teacher is not None]
    # Two agents of one algorithm and environment: their checksums tell them apart.
    sums = [teacher_of_run(run).teacher.sha256[:8] for run in runs[:2]]
    assert names == [f"{NAME} {sums[0]}", f"{NAME} {sums[1]}", "teacher ppo BreakoutNoFrameskip-v4"]
    assert notes == [
        "XXS: ratios to the embedded ppo BreakoutNoFrameskip-v4: a random student has no teacher"
    ]


def test_a_teacher_that_is_gone_gives_no_ratio_and_a_line(made: Path, tmp_path: Path) -> None:
    zip_file = tmp_path / "agent.zip"
    write_teacher(zip_file)
    work(tmp_path / "tiny", recipe_of(zip_file), Follower())
    zip_file.unlink()
    record = run_benchmark([run_model(tmp_path / "tiny")], SETTINGS)
    assert [(row.model, row.status, row.ratio) for row in record.rows] == [
        ("tiny", "measured", None)
    ]
    (line,) = record.notes
    assert line.startswith("tiny: no ratio: its teacher cannot be timed: ")
    assert str(zip_file) in line and "\n" not in line
    # Another agent in its place is not the run's teacher either.
    PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, seed=1, device="cpu").save(zip_file)
    name, (line,) = without_teacher(run_model(tmp_path / "tiny"))
    assert name is None and f"{zip_file} is no longer the teacher of this run" in line


def test_an_image_student_outside_a_run_falls_back_to_the_embedded_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "quantized.safetensors"
    shutil.copyfile(RUNS / "breakout-dqn-s" / "quantized.safetensors", file)
    name, (line,) = without_teacher(run_model(file))
    assert name == "teacher ppo BreakoutNoFrameskip-v4"
    assert "ratios to the embedded ppo BreakoutNoFrameskip-v4" in line
    assert f"{tmp_path}: is not a run directory" in line
    # In its run it is compared with its own.
    monkeypatch.chdir(RUNS.parent)
    name, notes = without_teacher(run_model(RUNS / "pong/ppo-s/quantized.safetensors"))
    assert (name, notes) == ("teacher ppo PongNoFrameskip-v4", [])


def test_without_sb3_qpds_own_module_is_the_baseline(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = "raise ModuleNotFoundError('gone', name='stable_baselines3')\n"
    (tmp_path / "stable_baselines3.py").write_text(gone)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # found by the workers before the real one
    teacher, (model,) = teacher_of_run(made / "tiny"), [run_model(made / "tiny")]
    baseline, predict = (
        start_teacher(runtime, teacher, 1, tmp_path / runtime, model.observations)
        for runtime in ("torch", "sb3-predict")
    )
    baseline.close()
    assert baseline.error is None and baseline.kernels == "QPD"
    assert isinstance(predict.error, MissingError)
    assert str(predict.error) == 'stable_baselines3 is missing: pip install "qpd-rl[train]"'


@pytest.mark.slow
def test_vecnormalizes_statistics_are_applied_before_sb3(made: Path, tmp_path: Path) -> None:
    environment = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    environment.obs_rms.mean, environment.obs_rms.var = np.full(4, 3.0), np.full(4, 0.04)
    environment.save(str(tmp_path / "vecnormalize.pkl"))
    settings = TeacherSettings(
        source=str(made / "agent.zip"),
        algo="ppo",
        env="CartPole-v1",
        vecnormalize=str(tmp_path / "vecnormalize.pkl"),
    )
    teacher = BenchTeacher(NAME, settings, load_recipe_teacher(settings))
    # Around the mean, where normalized observations are of both signs and unclipped.
    observations = (3 + 0.4 * np.random.default_rng(0).normal(size=(8, 4))).astype(np.float32)
    for runtime in ("torch", "sb3-predict"):
        started = start_teacher(runtime, teacher, 1, tmp_path / runtime, observations)
        started.close()
        # The golden check compares with the Teacher in float64, which normalizes by itself.
        assert started.error is None and started.check is not None
        assert started.check.same_actions == 8


def test_an_action_is_judged_by_what_its_logit_lacks() -> None:
    wanted = np.array([[0.0, 10.0], [40.0, 39.0]])  # spread 40
    check = compare_actions(np.array([1.0, 1.0]), wanted)
    assert (check.vectors, check.same_actions) == (2, 1)
    assert check.largest_error == pytest.approx(1 / 40)
    assert compare_actions(np.array([1.0, 0.0]), wanted).largest_error == 0.0
