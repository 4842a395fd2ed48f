"""`layer_norm=true`: hidden layers that are normalized, in SB3, in QPD, and in few bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from torch import nn

import qpd
from qpd.teachers.training.layer_norm import layer_normed
from tests.command_line import call
from tests.teachers.sb3_agents import assert_equals_sb3

torch.set_num_threads(1)
SMALL: dict[str, dict[str, int]] = {
    "ppo": {"n_steps": 16, "n_envs": 2, "batch_size": 16},
    "dqn": {"learning_starts": 8, "train_freq": 4, "gradient_steps": 1},
}
pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn


def test_outputs_are_normalized_before_the_activation_by_hand() -> None:
    mapped = torch.tensor([[1.0, 3.0, 5.0, 7.0]])  # mean 4, deviation sqrt(5)
    normal = torch.tensor([-3.0, -1.0, 1.0, 3.0]) / 5**0.5
    torch.testing.assert_close(layer_normed(nn.Tanh)()(mapped)[0], torch.tanh(normal))
    torch.testing.assert_close(layer_normed(nn.ReLU)()(mapped)[0], torch.relu(normal))
    with pytest.raises(ValueError, match="the activation is ELU"):
        layer_normed(nn.ELU)


@pytest.mark.parametrize(("algo", "kind"), [("ppo", PPO), ("dqn", DQN)])
def test_the_agent_is_sb3s_and_ours_and_can_learn_in_few_bits(
    algo: str, kind: type, tmp_path: Path
) -> None:
    overrides = {"layer_norm": True, "train.timesteps": 64, "save.tensorboard": False}
    overrides |= SMALL[algo]
    run = qpd.train(algo, "CartPole-v1", overrides=overrides, output=tmp_path / "run", device="cpu")
    model = kind.load(run.agent_file, device="cpu")
    teacher = qpd.load_teacher(run)
    assert teacher.activation == ("LayerNormTanh" if algo == "ppo" else "LayerNormReLU")
    assert_equals_sb3(teacher, model)
    few = qpd.train(algo, "CartPole-v1", overrides=overrides | {"quantization.bits": 4},
                    output=tmp_path / "few", device="cpu")  # fmt: skip
    assert qpd.load_teacher(few).quantization is not None
    states = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    assert qpd.load_teacher(few)(torch.from_numpy(states))[0].isfinite().all()


def test_integers_of_it_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = {"layer_norm": True, "train.timesteps": 64, "save.tensorboard": False}
    overrides |= SMALL["ppo"]
    run = qpd.train("ppo", "CartPole-v1", overrides=overrides, output=tmp_path / "a", device="cpu")
    code, out, err = call(capsys, "quantize", run.path, "--bits", "8", "--activations", "8",
                          "--episodes", "2", "-o", tmp_path / "suite")  # fmt: skip
    assert code == 0, err
    assert "simulated" in out and "LayerNormTanh; integers know" in out + err
