"""`qpd teacher train --set`: what is taken, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from stable_baselines3 import DQN, PPO

from qpd.teachers import TeacherError
from qpd.teachers.training.hyperparameters import read_hyperparameters
from tests.command_line import call


def test_values_have_the_types_that_they_look_like() -> None:
    found = read_hyperparameters(
        ["n_steps=3", "learning_rate=2.5e-4", "buffer_size=1e5", "optimize_memory_usage=true",
         "n_envs=8", "optimize_memory_usage=True"],
        DQN,
    )  # fmt: skip
    assert found == {
        "n_steps": 3, "learning_rate": 2.5e-4, "buffer_size": 100_000,
        "optimize_memory_usage": True, "n_envs": 8,
    }  # fmt: skip
    assert type(found["buffer_size"]) is int
    assert read_hyperparameters(["learning_rate=lin_2.5e-4"], PPO) == {
        "learning_rate": "lin_2.5e-4"
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [("n_steps", "must be key=value, for example n_steps=3"),
     ("n_steps=", "must be key=value"),
     ("n_step=3", "DQN has no such hyperparameter; did you mean n_steps"),
     ("policy_kwargs=abc", "DQN has no such hyperparameter"),
     ("device=cpu", "DQN has no such hyperparameter"),
     ("gamma=abc", "must be a number, true, false, none, or a schedule such as lin_2.5e-4"),
     ("gamma=nan", "must be a finite number"),
     ("batch_size=lin_3", "must be a whole number"),
     ("batch_size=abc", "must be a whole number"),
     ("batch_size=1.5", "must be a whole number"),
     ("n_envs=many", "must be a whole number")],
)  # fmt: skip
def test_what_is_refused(text: str, expected: str) -> None:
    with pytest.raises(TeacherError, match=f"--set {text}: {expected}"):
        read_hyperparameters([text], DQN)


def test_nothing_is_written_for_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    command = ("teacher", "train", "dqn", "CartPole-v1", "-o", folder, "--set", "lr=1")
    code, _, err = call(capsys, *command)
    assert code == 2 and "--set lr=1: DQN has no such hyperparameter" in err and not folder.exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn
def test_a_resumed_training_keeps_its_hyperparameters(tmp_path: Path) -> None:
    """Breakout for some seconds, with a checkpoint as an interruption leaves it."""
    from stable_baselines3 import A2C

    from qpd.teachers import train_teacher
    from qpd.teachers.sources.zoo_yaml import read_zoo_yaml

    arguments = ("a2c", "BreakoutNoFrameskip-v4", tmp_path)
    assignments = ["n_steps=2", "gamma=0.5", "learning_rate=lin_1e-4"]
    folder = train_teacher(*arguments, 80, assignments=assignments)
    agent = folder / "BreakoutNoFrameskip-v4.zip"
    agent.rename(folder / "rl_model_80_steps.zip")
    assert train_teacher(*arguments, 160, resume=True) == folder
    model = A2C.load(agent, device="cpu")
    assert (model.n_steps, model.gamma) == (2, 0.5)
    assert model.num_timesteps == 176  # from 80 on in rollouts of 2 steps in 16 games, past 160
    config = read_zoo_yaml(folder / "BreakoutNoFrameskip-v4" / "config.yml")
    assert (config["n_steps"], config["gamma"]) == (2, 0.5)
    assert config["learning_rate"] == "lin_1e-4"
    assert sorted(path.name for path in folder.glob("*.monitor.csv")) == [
        "0.monitor.csv", "80.monitor.csv"
    ]  # fmt: skip
