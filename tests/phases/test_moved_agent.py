"""Runs whose agents lie elsewhere than when they began, and that are gone on with elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml

import qpd
from qpd.runs.run_directory import RunDirectory
from qpd.runs.target import load_target
from qpd.teachers import TeacherError
from tests.command_line import call
from tests.tiny_run import recipe_of, write_dqn, write_teacher


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an agent and a run of it that has finished phase 1."""
    folder = tmp_path_factory.mktemp("moved")
    (folder / "agents").mkdir()
    write_teacher(folder / "agents" / "ppo-CartPole-v1.zip")
    recipe = recipe_of(folder / "agents" / "ppo-CartPole-v1.zip", distill={"epochs": 2})
    qpd.distill(recipe, output=folder / "run")
    return folder


@pytest.fixture
def copied(distilled: Path, tmp_path: Path) -> Path:
    """The run at another place, its agent at a third one."""
    shutil.copytree(distilled / "run", tmp_path / "run")
    (tmp_path / "new").mkdir()
    shutil.copy(distilled / "agents" / "ppo-CartPole-v1.zip", tmp_path / "new" / "mine.zip")
    file = tmp_path / "run" / "recipe.yaml"
    run = RunDirectory.open(tmp_path / "run")
    with run:
        gone = run.recipe.model_copy(
            update={"teacher": run.recipe.teacher.model_copy(update={"source": "/gone/a.zip"})}
        )
        run.replace_recipe(gone)
    assert "/gone/a.zip" in file.read_text()
    return tmp_path


def test_the_agent_may_be_named_anew(copied: Path) -> None:
    run, agent = copied / "run", copied / "new" / "mine.zip"
    with pytest.raises(TeacherError, match=r"no longer found at /gone/a\.zip: `qpd quantize .*run"):
        qpd.quantize(run)
    fork = qpd.quantize(run, output=copied / "fork", weight_bits=3, teacher=agent)
    assert fork.recipe.teacher.source == str(agent)
    done = qpd.quantize(run, teacher=str(agent))
    assert done.recipe.teacher.source == str(agent)
    assert qpd.finetune(run, overrides=["finetune.epochs=1"]).phase("finetune").state == "done"


def test_another_agent_is_refused_before_anything_is_written(copied: Path) -> None:
    model = copied / "other.zip"
    write_teacher(model)
    from stable_baselines3 import PPO

    other = PPO.load(model, device="cpu")
    with torch.no_grad():
        other.policy.action_net.weight.mul_(2.0)
    other.save(model)
    before = (copied / "run" / "recipe.yaml").read_bytes()
    for output in (copied / "fork", None):
        with pytest.raises(qpd.UserError, match="/run: began with the teacher"):
            qpd.quantize(copied / "run", teacher=model, output=output)
    assert not (copied / "fork").exists()
    assert (copied / "run" / "recipe.yaml").read_bytes() == before


def test_a_run_goes_on_with_the_same_agent_by_another_path(
    distilled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    shutil.copy(distilled / "agents" / "ppo-CartPole-v1.zip", tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    more = {"overrides": ["teacher.env=CartPole-v1"], "output": tmp_path / "run"}
    first = qpd.distill(recipe_of(Path("x")), teacher="here", **more)  # type: ignore[arg-type]
    assert first.recipe.teacher.source == str(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    again = qpd.distill(recipe_of(Path("x")), teacher="ppo-CartPole-v1.zip", **more)  # type: ignore[arg-type]
    assert again.recipe.teacher.source == str(tmp_path / "here" / "ppo-CartPole-v1.zip")
    assert again.phase("distill") == first.phase("distill")


def test_an_agent_is_named_from_its_recipes_folder(distilled: Path, tmp_path: Path) -> None:
    data = recipe_of(Path("agents/ppo-CartPole-v1")).model_dump(mode="json")
    (distilled / "mine.yaml").write_text(yaml.safe_dump(data))
    found = qpd.load_recipe(str(distilled / "mine.yaml"))
    assert found.teacher.source == str(distilled / "agents" / "ppo-CartPole-v1")
    (tmp_path / "elsewhere.yaml").write_text(yaml.safe_dump(data))
    assert qpd.load_recipe(str(tmp_path / "elsewhere.yaml")).teacher.source == str(
        Path("agents/ppo-CartPole-v1")
    )


def test_what_is_no_agent(distilled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = distilled / "run"
    code, _, said = call(capsys, "distill", "--teacher", run)
    assert code == 2 and "is a run, not an agent" in said
    code, _, said = call(capsys, "distill", "--teacher", run / "distilled.safetensors")
    assert code == 2 and "is a student's file, not an agent" in said
    code, _, said = call(
        capsys, "quantize", distilled / "agents" / "ppo-CartPole-v1.zip", "--teacher", run
    )
    assert code == 2 and "--teacher: is for runs" in said


def test_errors_of_recipes_have_the_code_that_is_printed() -> None:
    with pytest.raises(qpd.UserError) as caught:
        qpd.load_recipe("quickstart", ["distill.epoch=1"])
    assert caught.value.code.id == "Q103" and caught.value.coded_lines()[0].endswith("[Q103]")


def test_statistics_move_with_their_agent(tmp_path: Path) -> None:
    """VecNormalize's, which a recipe names: beside the agent if they are no longer there."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    env = VecNormalize(make_vec_env("CartPole-v1"))
    agent = PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu", seed=0)
    agent.save(old / "ppo-CartPole-v1.zip")
    env.save(str(old / "vecnormalize.pkl"))
    statistics = {"vecnormalize": str(old / "vecnormalize.pkl")}
    recipe = recipe_of(old / "ppo-CartPole-v1.zip", distill={"epochs": 1}, teacher=statistics)
    run = qpd.distill(recipe, output=tmp_path / "run")
    # Its students have no such unit of noise, so that it has none there, either.
    assert load_target(run.path, "teacher", None, "cpu").deviations is None
    shutil.move(old, new)
    done = qpd.quantize(run.path, teacher=new / "ppo-CartPole-v1.zip")
    assert done.phase("quantize").state == "done" and done.recipe.teacher.vecnormalize is None


def test_forks_tell_whose_memory_they_have(copied: Path) -> None:
    """Phase 1's, or one that was played anew, also in a fork of a fork."""
    run, agent = copied / "run", copied / "new" / "mine.zip"
    first = qpd.quantize(run, output=copied / "first", teacher=agent)
    assert not first.memory_refilled
    shutil.rmtree(run / "checkpoint")
    manifest = RunDirectory.open(run)
    with manifest:
        manifest.set_phase("distill", "done", keeps_memory=False)
    anew = qpd.quantize(run, output=copied / "anew", teacher=agent)
    again = qpd.quantize(anew.path, output=copied / "again", weight_bits=3)
    assert anew.memory_refilled and again.memory_refilled
    finished = qpd.finetune(first.path, overrides=["finetune.epochs=2"])
    renewed = qpd.quantize(finished.path, output=copied / "renewed", weight_bits=3)
    assert renewed.memory_refilled  # by phase 3


def test_the_moved_agent_of_a_run_can_be_played(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, agent = str(copied / "run"), str(copied / "new" / "mine.zip")
    asked = ("evaluate", run, "--policy", "teacher", "--episodes", "1")
    code, _, err = call(capsys, *asked)
    assert code == 2 and "no longer found at /gone/a.zip: `qpd evaluate" in err
    code, _, err = call(capsys, *asked, "--teacher", agent)
    assert code == 0, err
    other = copied / "new" / "other.zip"
    write_dqn(other)
    code, _, err = call(capsys, *asked, "--teacher", str(other))
    assert code == 2 and "an agent of dqn, not of ppo" in err
    code, _, err = call(capsys, "evaluate", run, "--teacher", agent)
    assert code == 2 and "distilled plays without it" in err
    code, _, err = call(capsys, "evaluate", agent, "--teacher", agent)
    assert code == 2 and "is no run of a student" in err
