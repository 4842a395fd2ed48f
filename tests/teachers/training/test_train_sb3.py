"""Training a teacher through the RL Zoo, for real and briefly."""

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO

from qpd.teachers import TeacherError, load_teacher, train_teacher

torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn
def test_train_teacher_writes_a_loadable_zoo_folder(tmp_path):
    folder = train_teacher("ppo", "MountainCar-v0", tmp_path, num_timesteps=64, device="cpu")
    assert folder == tmp_path / "ppo" / "MountainCar-v0_1"
    teacher = load_teacher(folder)
    assert (teacher.algo, teacher.env_id, teacher.actions.num_outputs) == (
        "ppo",
        "MountainCar-v0",
        3,
    )
    assert teacher.num_timesteps and teacher.num_timesteps >= 64
    assert teacher.normalization is not None
    model = PPO.load(folder / "MountainCar-v0.zip", device="cpu")
    observations = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    normalized = torch.from_numpy(teacher.normalization.apply(observations))
    expected = model.policy.get_distribution(normalized).distribution.logits.detach()
    logits = teacher(torch.from_numpy(observations)).labels
    torch.testing.assert_close(logits.log_softmax(1), expected, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("default")
def test_train_teacher_refuses_what_it_cannot_train(tmp_path):
    for algo, env_id, expected in (
        ("sac", "CartPole-v1", "cannot be trained"),
        ("ppo", "CartPole-v9", "did you mean CartPole-v"),
        ("ppo", "Pendulum-v1", "not supported yet"),
        ("ppo", "CliffWalking-v1", "observations of type Discrete"),
    ):
        with pytest.raises(TeacherError, match=expected):
            train_teacher(algo, env_id, tmp_path, num_timesteps=8)
    with pytest.raises(TeacherError, match="at least 1"):
        train_teacher("ppo", "CartPole-v1", tmp_path, num_timesteps=0)
    assert not list(tmp_path.iterdir())
