"""The small zip of an agent is the same agent, to us and to Stable-Baselines3."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import QRDQN
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3

from qpd.teachers import TeacherError, load_teacher
from qpd.teachers.archive.compact_agent import compact_agent
from qpd.teachers.archive.sb3_archive import read_sb3_archive

torch.set_num_threads(1)
CLASSES: dict[str, Any] = {"ppo": PPO, "a2c": A2C, "dqn": DQN, "qrdqn": QRDQN}
MEMORY = {"buffer_size": 100, "learning_starts": 10, "train_freq": 4}


def trained(algo: str, path: Path) -> Path:
    """An agent that learned for a moment, so that its optimizer has moments."""
    options = MEMORY if algo in ("dqn", "qrdqn") else {"n_steps": 8}
    if algo == "ppo":
        options = {**options, "batch_size": 8}
    model = CLASSES[algo]("MlpPolicy", "CartPole-v1", device="cpu", seed=0, **options)
    model.learn(64).save(path)
    return path


@pytest.mark.parametrize("algo", CLASSES)
def test_it_plays_the_same_and_can_be_trained_on(tmp_path: Path, algo: str) -> None:
    path = trained(algo, tmp_path / f"{algo}-CartPole-v1.zip")
    small = tmp_path / f"{algo}-CartPole-v1-small.zip"
    small.write_bytes(compact_agent(read_sb3_archive(path)))
    assert small.stat().st_size < 0.35 * path.stat().st_size
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    batch = torch.from_numpy(observations)
    expected, loaded = load_teacher(path)(batch), load_teacher(small)(batch)
    # float16 keeps 11 bits of a weight: outputs move by some thousandths of their size.
    torch.testing.assert_close(loaded.labels, expected.labels, rtol=4e-3, atol=4e-3)
    model = CLASSES[algo].load(small, env=gymnasium.make("CartPole-v1"), device="cpu")
    assert all(p.dtype == torch.float32 for p in model.policy.parameters())
    actions = model.predict(observations, deterministic=True)[0]
    top = loaded.labels.topk(2).values
    is_clear = (top[:, 0] - top[:, 1] > 1e-4).numpy()  # QR-DQN's mean may round the other way
    np.testing.assert_array_equal(actions[is_clear], loaded.labels.argmax(1).numpy()[is_clear])
    assert model.num_timesteps == 64
    model.learn(64, reset_num_timesteps=False)


def test_dqns_target_network_becomes_the_network(tmp_path: Path) -> None:
    path = trained("dqn", tmp_path / "dqn.zip")
    before = read_sb3_archive(path).state_dict
    assert not torch.equal(before["q_net.q_net.0.weight"], before["q_net_target.q_net.0.weight"])
    small = tmp_path / "small.zip"
    small.write_bytes(compact_agent(read_sb3_archive(path)))
    after = read_sb3_archive(small).state_dict
    for name, tensor in after.items():
        assert tensor.dtype == torch.float16
        torch.testing.assert_close(
            tensor, before[name.replace("q_net_target", "q_net")].half(), rtol=0, atol=0
        )


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_agents_with_several_optimizers(tmp_path: Path, kind: Any) -> None:
    model = kind("MlpPolicy", "Pendulum-v1", device="cpu", seed=0, **MEMORY)
    path, small = tmp_path / "agent.zip", tmp_path / "small.zip"
    model.learn(24).save(path)
    small.write_bytes(compact_agent(read_sb3_archive(path)))
    assert small.stat().st_size < 0.2 * path.stat().st_size
    batch = torch.randn(64, 3)
    expected, loaded = load_teacher(path)(batch), load_teacher(small)(batch)
    torch.testing.assert_close(loaded.labels, expected.labels, rtol=4e-3, atol=4e-3)
    again = kind.load(small, env=gymnasium.make("Pendulum-v1"), device="cpu")
    tensors = again.policy.state_dict()
    assert torch.equal(tensors["critic.qf0.0.weight"], tensors["critic_target.qf0.0.weight"])
    again.learn(24, reset_num_timesteps=False)


def test_numbers_beyond_float16_stay_float32(tmp_path: Path) -> None:
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu")
    with torch.no_grad():
        model.policy.action_net.bias[0] = 1e5
    model.save(tmp_path / "agent.zip")
    small = tmp_path / "small.zip"
    small.write_bytes(compact_agent(read_sb3_archive(tmp_path / "agent.zip")))
    tensors = read_sb3_archive(small).state_dict
    assert tensors["action_net.bias"].dtype == torch.float32
    assert tensors["action_net.bias"][0] == 1e5
    assert tensors["action_net.weight"].dtype == torch.float16


def test_the_same_agent_gives_the_same_bytes(tmp_path: Path) -> None:
    archive = read_sb3_archive(trained("a2c", tmp_path / "agent.zip"))
    assert compact_agent(archive) == compact_agent(archive)


def test_an_unpacked_agent_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(trained("ppo", tmp_path / "agent.zip")) as agent:
        agent.extractall(tmp_path / "agent")
    with pytest.raises(TeacherError, match="agent: is a folder; expected the agent's zip file"):
        compact_agent(read_sb3_archive(tmp_path / "agent"))


def test_damage_beside_the_weights_is_one_line(tmp_path: Path) -> None:
    trained("ppo", tmp_path / "agent.zip")
    with zipfile.ZipFile(tmp_path / "agent.zip") as agent:
        members = {name: agent.read(name) for name in agent.namelist()}
    for name, content in (
        ("policy.optimizer.pth", members["policy.optimizer.pth"][:-100]),
        ("system_info.txt", b"x" * 10_001),
    ):
        damaged = tmp_path / "damaged.zip"
        with zipfile.ZipFile(damaged, "w") as target:
            for other, value in {**members, name: content}.items():
                target.writestr(other, value)
        with pytest.raises(TeacherError, match="damaged.zip: damaged beside its weights"):
            compact_agent(read_sb3_archive(damaged))
