"""What the fast learner takes from the model around it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

sb3 = pytest.importorskip("stable_baselines3")

from qpd.teachers.training.fast_learner import _transitions, use_fast_learner  # noqa: E402


@pytest.mark.parametrize("discounts", [None, torch.tensor([[0.81], [0.81]])])
def test_batches_are_normalized_and_terminal_states_have_no_value(discounts) -> None:
    asked = []

    def sample(size, env):
        asked.append((size, env))
        rows = torch.arange(6.0).view(2, 3)
        dones, rewards = torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [3.0]])
        return SimpleNamespace(
            observations=rows, actions=rows, next_observations=rows + 1, dones=dones,
            rewards=rewards, discounts=discounts,
        )  # fmt: skip

    buffer = SimpleNamespace(sample=sample)
    model = SimpleNamespace(replay_buffer=buffer, _vec_normalize_env="VecNormalize", gamma=0.9)
    batch = _transitions(model, 2)
    assert asked == [(2, "VecNormalize")]
    assert batch.discounts.tolist() == pytest.approx([0.9 if discounts is None else 0.81, 0.0])
    assert batch.rewards.tolist() == [2.0, 3.0]


def test_targets_follow_at_their_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sb3.SAC(
        "MlpPolicy", "Pendulum-v1", buffer_size=64, learning_starts=64, device="cpu", seed=0,
        target_update_interval=3, tau=0.25, policy_kwargs={"net_arch": [4]},
    )  # fmt: skip
    model.learn(64)
    use_fast_learner(model)
    followed: list[float] = []
    monkeypatch.setattr(model.fast_critics, "follow", followed.append)
    model.train(5, batch_size=8)  # after the updates 0 and 3
    assert followed == [0.25, 0.25]
