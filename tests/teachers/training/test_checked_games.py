"""Trainings whose environment fails on the way: its fault, in one line, and nothing is lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

import qpd
from qpd.environments.errors import EnvironmentRunError
from qpd.errors.termination import Terminated
from qpd.runs.training_run import TrainingRun
from qpd.teachers.training.checked_games import CheckedVecEnv
from tests.command_line import call
from tests.environments.custom_environments import MODULE, Arm, Broken, Countdown

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn

FAILURES = {
    "raises": "at step 5 of a game: RuntimeError: the motor is hot",
    "quits": "at step 5 of a game: SystemExit: the operator has gone",
    "nan": "at step 5 of a game: its observation is not finite",
    "reward": "at step 5 of a game: its reward is not finite",
    "short": "at step 5 of a game: ValueError: an observation of shape (2,), not 3 numbers",
}


def _made(count: int, how: str) -> CheckedVecEnv:
    return CheckedVecEnv([partial(Broken, how)] * count, "my:Broken-v0")


@pytest.mark.parametrize("how", FAILURES)
def test_a_failure_is_one_line(how: str) -> None:
    env = _made(2, how)
    env.reset()
    for _ in range(4):
        env.step(np.zeros(2, int))
    with pytest.raises(EnvironmentRunError) as raised:
        env.step(np.zeros(2, int))
    assert str(raised.value).startswith(f"my:Broken-v0: {FAILURES[how]}")
    assert "\n" not in str(raised.value)


def test_who_terminates_the_command_is_not_the_environment() -> None:
    env = _made(1, "is terminated")
    env.reset()
    with pytest.raises(Terminated):
        for _ in range(5):
            env.step(np.zeros(1, int))


def test_an_agents_own_nan_is_not_the_environments_fault() -> None:
    env = CheckedVecEnv([Arm], "my:Arm-v0")  # it asserts that actions are in its bounds
    env.reset()
    with pytest.raises(ArithmeticError, match="actions are no longer finite"):
        env.step(np.full((1, 2, 2), np.nan, np.float32))
    with pytest.raises(EnvironmentRunError, match="AssertionError"):
        env.step(np.full((1, 2, 2), 99, np.float32))


class Large(Countdown):
    """Shows what is finite, though its square in float32 is not."""

    def shown(self, action: Any) -> Any:
        return np.array([1e30, -1e30, 0])


class Keys(Countdown):
    observation_space = spaces.Dict({"a": spaces.Discrete(25), "b": spaces.Box(-9, 9, (2,))})

    def shown(self, action: Any) -> Any:
        return {"a": self.left, "b": np.float32([self.walk, 0])}


@pytest.mark.parametrize("kind", [Countdown, Large, Keys, Arm])
def test_what_does_not_fail_is_as_it_was(kind: type[gymnasium.Env[Any, Any]]) -> None:
    plain, checked = DummyVecEnv([kind] * 2), CheckedVecEnv([kind] * 2, "my:Own-v0")
    for env in (plain, checked):
        env.seed(7)
        env.action_space.seed(7)
    found = [plain.reset(), checked.reset()]
    for _ in range(50):
        actions = np.array([plain.action_space.sample() for _ in range(2)])
        steps = [env.step(actions) for env in (plain, checked)]
        np.testing.assert_equal(*found)
        np.testing.assert_equal(*steps)
        found = [step[0] for step in steps]


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_training_goes_on_from_its_last_checkpoint(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repaired, folder = tmp_path / "repaired", tmp_path / "run"
    command = (
        *("train", "ppo", f"{MODULE}:Broken-v0", "--timesteps", "300", "-o", folder),
        *("--set", "n_steps=50", "--set", "batch_size=50", "--set", "train.checkpoint_every=100"),
        *("--env-kwargs", f"how:{how}", "--env-kwargs", f"unless:{repaired}"),
        *("--env-kwargs", "after:220", "--quiet"),
    )
    code, _, err = call(capsys, *command)
    assert code == 2 and err.count("\n") == 1
    assert f"{MODULE}:Broken-v0, made with how=" in err and "of a game: " in err and "[Q503]" in err
    repaired.touch()
    code, _, err = call(capsys, *command)
    assert (code, err) == (0, "")
    phase = TrainingRun.open(folder).phase
    assert (phase.state, phase.resumed_at) == ("done", (200,))


def test_episodes_that_a_wrapper_cuts_are_recorded(tmp_path: Path) -> None:
    cut = {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 7}}
    overrides = {"environment.wrappers": [cut], "n_steps": 32, "batch_size": 32, "n_envs": 1}
    done = qpd.train(
        "ppo",
        "Pendulum-v1",
        overrides={**overrides, "train.timesteps": 64},
        output=tmp_path / "run",
    )
    rows = (done.path / "0.monitor.csv").read_text().splitlines()[2:]
    assert len(rows) >= 8 and {row.split(",")[1] for row in rows} == {"7"}
    # The agent is played with the user's wrapper alone.
    assert "Monitor" not in (done.path / "Pendulum-v1" / "config.yml").read_text()


def test_a_used_bipedal_walker_plays_as_a_fresh_one() -> None:
    """A resumed training begins with fresh ones, one that was not interrupted has used ones."""
    pytest.importorskip("Box2D")

    def made() -> CheckedVecEnv:
        return CheckedVecEnv([partial(gymnasium.make, "BipedalWalker-v3")], "BipedalWalker-v3")

    def rewards(env: CheckedVecEnv, seed: int) -> list[float]:
        actions = np.random.default_rng(seed).uniform(-1, 1, (60, 1, 4)).astype(np.float32)
        env.seed(seed)
        env.reset()
        return [float(env.step(action)[1][0]) for action in actions]

    used = made()
    for seed in range(6):
        assert rewards(used, seed) == rewards(made(), seed)
