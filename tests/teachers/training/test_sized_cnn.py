"""`cnn_arch`: a NatureCNN of other widths, in SB3 and in QPD."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from stable_baselines3 import DQN, PPO

import qpd
from tests.command_line import call
from tests.teachers.sb3_agents import assert_equals_sb3

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn


@pytest.mark.parametrize(("algo", "kind"), [("dqn", DQN), ("ppo", PPO)])
def test_widths_are_those_that_were_asked_for(algo: str, kind: type, tmp_path: Path) -> None:
    overrides = {"cnn_arch": [8, 12, 16, 20], "train.timesteps": 32, "save.tensorboard": False}
    overrides |= {"buffer_size": 100} if algo == "dqn" else {"n_steps": 8, "batch_size": 8}
    run = qpd.train(algo, "PongNoFrameskip-v4", overrides=overrides, output=tmp_path / "run",
                    device="cpu")  # fmt: skip
    model = kind.load(run.agent_file, device="cpu")
    extractor = model.policy.features_extractor if algo == "ppo" else model.q_net.features_extractor
    layers = [extractor.cnn[0], extractor.cnn[2], extractor.cnn[4], extractor.linear[0]]
    assert [len(layer.weight) for layer in layers] == [8, 12, 16, 20]
    teacher = qpd.load_teacher(run)
    assert teacher.hidden_widths == ()  # none behind the features, as SB3 has it for NatureCNN
    assert_equals_sb3(teacher, model)


def test_it_is_asked_of_images_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for env, value, said in (
        ("CartPole-v1", "[8, 8, 8, 8]", "cnn_arch: is CnnPolicy's, for images"),
        ("PongNoFrameskip-v4", "[8, 8]", "channels of three convolutions and units behind them"),
    ):
        code, _, err = call(capsys, "train", "dqn", env, "--set", f"cnn_arch={value}",
                            "-o", tmp_path / "run")  # fmt: skip
        assert code == 2 and said in err and not (tmp_path / "run").exists()
