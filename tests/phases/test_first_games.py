"""The teacher plays first: what plays no better than at random is told before it is imitated."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import qpd
from qpd.environments.errors import EnvironmentRunError
from qpd.errors.codes import ErrorCode
from qpd.phases.first_games import check_returns, is_above_random
from tests.command_line import call
from tests.tiny_run import Follower

TINY = {
    "distill.epochs": 1,
    "replay.capacity": 256,
    "student.size": "mlp-8",
    "evaluation.validation_episodes": 8,
}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An agent that balances the pole, if its observations are normalized; without, it falls.

    It pushes to the side to which the pole leans and falls; the statistics say that the mean angle
    is 5, which the network's bias undoes.
    """
    folder = tmp_path_factory.mktemp("normalized")
    env = VecNormalize(make_vec_env("CartPole-v1"))
    env.obs_rms.mean = np.array([0.0, 0.0, 5.0, 0.0])
    env.obs_rms.var = np.ones(4)
    env.save(str(folder / "statistics.pkl"))
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, seed=0, device="cpu")
    with torch.no_grad():
        first, second = model.policy.mlp_extractor.policy_net[0::2]
        for layer in (first, second, model.policy.action_net):
            layer.weight.zero_()
            layer.bias.zero_()
        first.weight[0, 2], first.weight[0, 3] = 0.1, 0.1
        first.bias[0] = 0.5
        second.weight[0, 0] = 1.0
        model.policy.action_net.weight[:, 0] = torch.tensor([-100.0, 100.0])
    model.save(folder / "ppo-CartPole-v1.zip")
    return folder / "ppo-CartPole-v1.zip"


def test_a_teacher_without_its_statistics_is_told_before_it_is_imitated(
    agent: Path, tmp_path: Path
) -> None:
    follower = Follower()
    run = qpd.distill(
        "agent/vector", teacher=agent, overrides=TINY, output=tmp_path / "a", progress=follower
    )
    games, warning = follower.notes[:2]
    assert (
        games.startswith("first games: the teacher's return is 8.8, a random")
        and "8 games each" in games
    )
    assert warning.startswith("warning: this teacher plays no better than at random")
    assert warning.endswith("--vecnormalize FILE")
    found = run.phase("distill").metrics["first_games"]
    assert found["teacher"] < 11 < found["random"] and found["episodes"] == 8

    follower = Follower()
    run = qpd.distill(
        "agent/vector",
        teacher=agent,
        vecnormalize=agent.with_name("statistics.pkl"),
        overrides=TINY,
        output=tmp_path / "b",
        progress=follower,
    )
    assert run.phase("distill").metrics["first_games"]["teacher"] > 100
    assert not any("warning" in note for note in follower.notes)
    assert run.recipe.teacher.vecnormalize == str(agent.with_name("statistics.pkl"))
    assert qpd.evaluate(run, policy="teacher", episodes=4).mean > 100  # it is found again

    again = Follower()
    qpd.distill(run.recipe, output=tmp_path / "b", progress=again)
    assert not any("first games" in note for note in again.notes)  # once in a run


def test_the_warning_survives_quiet_and_ends_the_run(
    agent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    command = ("distill", "agent/vector", "--teacher", agent, *settings)
    code, out, err = call(capsys, *command, "-o", tmp_path / "quiet", "--quiet")
    warning = "warning: this teacher plays no better than at random; if it was trained with "
    assert (code, out) == (0, "") and err.startswith(warning) and err.count("\n") == 1
    code, out, err = call(capsys, *command, "-o", tmp_path / "told")
    assert code == 0 and err.count(warning) == 2 and err.splitlines()[-1].startswith(warning)
    code, out, err = call(capsys, "show", tmp_path / "quiet", "--json")
    assert err.startswith(warning) and f"warning: {json.loads(out)['warnings'][0]}\n" == err


def test_info_warns_of_an_agent_that_is_no_better_than_chance(
    agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("teacher", "info", agent, "--episodes", "8")
    code, out, err = call(capsys, *words)
    assert code == 0 and "a random policy's" in out
    assert err.startswith("warning: this teacher plays no better than at random; if it was trained")
    err = call(capsys, *words[:3], "--episodes", "2")[2]
    assert err == "warning: 2 games do not tell this teacher from random play; play more\n"
    statistics = agent.with_name("statistics.pkl")
    assert call(capsys, *words, "--vecnormalize", statistics)[2] == ""
    assert call(capsys, "teacher", "info", agent, "--episodes", "0")[2] == ""


def test_info_names_the_file_or_where_it_looked(
    agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def info(*options: object) -> dict:
        code, out, _ = call(capsys, "teacher", "info", agent, "--episodes", "4", "--json", *options)
        assert code == 0
        return json.loads(out)

    without = info()
    assert without["vecnormalize"].startswith(f"none in {agent.with_suffix('')}, {agent.parent};")
    assert without["return"]["mean"] < without["random_return"]["mean"]
    found = info("--vecnormalize", agent.with_name("statistics.pkl"))
    assert found["vecnormalize"] == str(agent.with_name("statistics.pkl"))
    assert found["return"]["mean"] > 100 > found["random_return"]["mean"]


def test_a_file_that_is_not_there(agent: Path) -> None:
    with pytest.raises(qpd.UserError, match="no such file; expected the vecnormalize") as caught:
        qpd.evaluate(agent, vecnormalize=agent.with_name("none.pkl"))
    assert caught.value.code is ErrorCode.TEACHER_SETTINGS


@pytest.mark.parametrize(
    ("returns", "random", "is_above"),
    [
        ([50.0, 60.0], [9.0, 12.0], True),  # two random games have an interval of -9 to 30 and more
        ([11.0, 11.0], [9.0, 12.0], False),
        ([13.0] * 20, [9.0, 9, 9, 9, 9, 9, 9, 9, 9, 30], False),  # as far as ten games can tell
        ([24.0] * 20, [9.0, 9, 9, 9, 9, 9, 9, 9, 9, 30], True),
    ],
)
def test_what_is_above_a_random_policy(
    returns: list[float], random: list[float], is_above: bool
) -> None:
    assert is_above_random(np.array(returns), np.array(random)) is is_above


@pytest.mark.parametrize("wrong", [1e16, -1e300, np.inf, np.nan])
def test_returns_that_cannot_be_recorded_end_a_run_before_it_learns(wrong: float) -> None:
    check_returns(np.array([1e15, -3.0]), "Mine-v0")
    with pytest.raises(EnvironmentRunError, match="^Mine-v0: a game's return is .*; expected"):
        check_returns(np.array([1.0, wrong]), "Mine-v0")
