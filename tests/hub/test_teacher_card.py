"""`qpd teacher card`: what the card claims is in the folder, and its examples run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from stable_baselines3 import A2C, DQN
from stable_baselines3.common.monitor import Monitor

import qpd
from qpd import cli
from qpd.hub.markdown import escape
from tests.command_line import call
from tests.phases.small_trainings import Interrupts

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write what the RL Zoo leaves of a training, in its own layout."""
    import gymnasium

    folder = tmp_path_factory.mktemp("logs") / "a2c" / "CartPole-v1_1"
    (folder / "CartPole-v1").mkdir(parents=True)
    env = Monitor(gymnasium.make("CartPole-v1"), str(folder / "0"))
    model = A2C("MlpPolicy", env, device="cpu", seed=7).learn(2000)
    model.save(folder / "CartPole-v1.zip")
    env.close()
    settings = folder / "CartPole-v1"
    (settings / "args.yml").write_text(
        "!!python/object/apply:collections.OrderedDict\n"
        "- - - algo\n    - a2c\n  - - seed\n    - 7\n  - - env\n    - CartPole-v1\n"
    )
    (settings / "config.yml").write_text(
        "!!python/object/apply:collections.OrderedDict\n- - - ent_coef\n    - 0.0\n"
    )
    return folder


@pytest.fixture(scope="module")
def card(trained: Path) -> Path:
    folder = trained.parent / "card"
    command = ["teacher", "card", str(trained), "-o", str(folder), "--episodes", "12", "--half"]
    with pytest.raises(SystemExit) as ended:
        cli.main(command)
    assert not ended.value.code
    return folder


def test_a_training_that_went_on_from_an_agent_says_so(trained: Path, tmp_path: Path) -> None:
    settings = {"train.start_from": str(trained), "train.timesteps": 400, "normalize": False}
    run = qpd.train("a2c", "CartPole-v1", overrides=settings, output=tmp_path / "run", device="cpu")
    with pytest.raises(SystemExit) as ended:
        cli.main(
            ["teacher", "card", str(run.path), "-o", str(tmp_path / "card"), "--episodes", "2"]
        )
    assert not ended.value.code
    text = (tmp_path / "card" / "README.md").read_text(encoding="utf-8")
    assert re.search(r"Trained for \| \d+ agent steps, from a trained agent \(`--from`\) \|", text)
    assert "qpd run quickstart" not in text


def test_its_numbers_are_those_of_the_games(card: Path, trained: Path) -> None:
    text = (card / "README.md").read_text(encoding="utf-8")
    games = json.loads((card / "evaluation.json").read_text())
    assert len(games["returns"]) == games["episodes"] == 12
    low, high = games["interval"]
    assert f"{games['mean']:.1f} [{low:.1f}, {high:.1f}]" in text
    assert "| Trained for | 2,000 agent steps |" in text
    assert "| Seed of the training | 7 |" in text and "ent_coef: 0.0" in text
    size = (card / "a2c-CartPole-v1.zip").stat().st_size
    assert f"the zip has {size:,} bytes" in text
    assert size < (trained / "CartPole-v1.zip").stat().st_size / 2
    assert json.loads((card / "results.json").read_text())["mean_reward"] == games["mean"]
    assert (card / "training.png").stat().st_size > 5000
    assert (card / "training.csv").read_text().startswith("steps,mean,low,high,games\n")
    result = ModelCard.load(card / "README.md").data.eval_results[0]
    assert result.dataset_name == "CartPole-v1"
    assert result.metric_value == f"{games['mean']:.2f} +/- {games['std']:.2f}"


def test_its_examples_run(
    card: Path,
    tmp_path: Path,
    in_an_empty_folder: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(card, copy)
    text = (copy / "README.md").read_text(encoding="utf-8")
    (python,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    subprocess.run([sys.executable, "-c", python], check=True, cwd=copy)
    evaluate = next(line for line in text.splitlines() if line.startswith("qpd evaluate"))
    arguments = evaluate.split("#")[0].split()[1:]
    monkeypatch.chdir(copy)
    code, out, err = call(capsys, *arguments, "--json")
    assert code == 0, err
    again = json.loads(out)["return"]
    assert again["returns"] == json.loads((copy / "evaluation.json").read_text())["returns"]


def test_without_files_beside_it_the_card_says_what_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DQN("MlpPolicy", "CartPole-v1", buffer_size=10, device="cpu").save(tmp_path / "mine.zip")
    DQN("MlpPolicy", "CartPole-v1", buffer_size=10, device="cpu", seed=7).save(tmp_path / "7.zip")
    agent, folder = tmp_path / "mine.zip", tmp_path / "card"
    command = ("teacher", "card", agent, "-o", folder, "--episodes", 3, "--env", "CartPole-v1")
    code, out, err = call(capsys, *command, "--json")
    assert code == 0, err
    assert set(json.loads(out)["files"]) == {
        "README.md", "dqn-CartPole-v1.zip", "evaluation.json", "results.json"
    }  # fmt: skip
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "| Seed of the training | not recorded |" in text and "## Training" not in text
    assert (folder / "dqn-CartPole-v1.zip").read_bytes() == agent.read_bytes()
    metadata = yaml.safe_load(text.split("---")[1])
    assert metadata["library_name"] == "stable-baselines3"
    with_seed = tmp_path / "with-seed"
    command = ("teacher", "card", tmp_path / "7.zip", "-o", with_seed, *command[5:])
    assert call(capsys, *command)[0] == 0
    assert "| Seed of the training | 7 |" in (with_seed / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_agent_that_sees_normalized_observations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    env = VecNormalize(make_vec_env("CartPole-v1"))
    A2C("MlpPolicy", env, device="cpu", seed=0).learn(100).save(tmp_path / "a2c-CartPole-v1.zip")
    env.save(str(tmp_path / "vecnormalize.pkl"))
    folder = tmp_path / "card"
    command = ("teacher", "card", tmp_path / "a2c-CartPole-v1.zip", "-o", folder)
    code, _, err = call(capsys, *command, "--episodes", 3, "--seed", 5)
    assert code == 0, err
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "--episodes 3 --seed 5" in text
    (python,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    play = "print(agent.predict(env.reset(), deterministic=True)[0])"
    subprocess.run([sys.executable, "-c", python + play], check=True, cwd=folder)


def test_a_name_that_would_leave_the_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = tmp_path / "mine.zip"
    A2C("MlpPolicy", "CartPole-v1", device="cpu").save(agent)
    folder = tmp_path / "card"
    command = ("teacher", "card", agent, "-o", folder, "--env", "..\\..\\evil")
    code, _, err = call(capsys, *command)
    assert code == 2 and "names no environment" in err and not folder.exists()


def test_a_folder_with_files_is_left_alone(
    tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    code, _, err = call(capsys, "teacher", "card", trained, "-o", tmp_path)
    assert code == 2 and "holds files already; choose a new folder with -o" in err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_wrappers_and_interruptions_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = "sb3_contrib.common.wrappers.TimeFeatureWrapper"
    settings: dict[str, Any] = {
        "train.timesteps": 600, "train.checkpoint_every": 200, "normalize": False, "n_envs": 1,
        "environment.wrappers": [wrapper],
    }  # fmt: skip
    given: dict[str, Any] = {"overrides": settings, "output": tmp_path / "run", "device": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        qpd.train("a2c", "CartPole-v1", progress=Interrupts(450), **given)
    run = qpd.train("a2c", "CartPole-v1", **given)
    folder = tmp_path / "card"
    code, _, err = call(capsys, "teacher", "card", run.path, "-o", folder, "--episodes", 2)
    assert code == 0, err
    text = (folder / "README.md").read_text(encoding="utf-8")
    (resumed,) = run.phase.resumed_at
    assert f"resumed from its checkpoint at {resumed} steps" in text
    assert f"on `CartPole-v1` only, in {escape(wrapper)}" in text
    (python,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    play = "print(agent.predict(env.reset()[0], deterministic=True)[0])"
    subprocess.run([sys.executable, "-c", python + play], check=True, cwd=folder)
    evaluate = next(line for line in text.splitlines() if line.startswith("qpd evaluate"))
    monkeypatch.chdir(folder)
    code, out, err = call(capsys, *shlex.split(evaluate.split("#")[0])[1:], "--json")
    assert code == 0, err
    played = json.loads((folder / "evaluation.json").read_text())
    assert json.loads(out)["return"]["returns"] == played["returns"]
