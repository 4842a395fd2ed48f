"""Every third-party agent of the shared collection loads, or says why not."""

import os
import re
from pathlib import Path

import pytest
import torch

from qpd.teachers import TeacherError, load_teacher

torch.set_num_threads(1)
SHARED = Path(
    os.environ.get("QPD_SHARED_TEACHERS", Path(__file__).parents[3] / "shared" / "teachers")
)
ZIPS = sorted(SHARED.rglob("*.zip"))
NUM_ACTIONS = {"Acrobot-v1": 3, "CartPole-v1": 2, "LunarLander-v3": 4, "MountainCar-v0": 3,
               "BreakoutNoFrameskip-v4": 4}  # fmt: skip
CONTINUOUS = ("Pendulum", "HalfCheetah", "Hopper")

pytestmark = pytest.mark.skipif(
    not ZIPS, reason="no shared teachers beside the repository (set QPD_SHARED_TEACHERS)"
)


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", ZIPS, ids=name_of)
def test_every_shared_agent(path):
    text = path.stem if path.stem.startswith("ppo-") else path.parent.name
    algo, env_name = re.split("-", text, maxsplit=1)
    if env_name.startswith(CONTINUOUS):
        with pytest.raises(TeacherError, match="continuous actions are not supported yet"):
            load_teacher(path)
        return
    teacher = load_teacher(path)
    assert teacher.algo == algo
    assert teacher.env_id == env_name.replace("LunarLander-v2", "LunarLander-v3")
    assert teacher.actions.num_outputs == NUM_ACTIONS[teacher.env_id]
    assert (teacher.normalization is not None) == (path.parent / "vecnormalize.pkl").exists()
    dtype = torch.uint8 if teacher.is_image else torch.float32
    logits, values = teacher(torch.ones(3, *teacher.observation_shape, dtype=dtype))
    assert logits.shape == (3, teacher.actions.num_outputs) and values.shape == (3,)
    assert torch.isfinite(logits).all() and torch.isfinite(values).all()
    folder = load_teacher(path.parent)
    assert folder.sha256 == teacher.sha256 and folder.env_id == teacher.env_id


@pytest.mark.parametrize(
    ("folder", "minimum"),
    [("ppo-CartPole-v1", 400), ("dqn-CartPole-v1", 400), ("ppo-MountainCar-v0", -140),
     ("a2c-Acrobot-v1", -120)],
)  # fmt: skip
def test_old_agents_still_play_well(folder, minimum):
    """The rebuilt function is the trained one: wrong activations or statistics play badly."""
    import gymnasium

    path = SHARED / "rl-zoo" / folder
    if not path.is_dir():
        pytest.skip(f"{folder} is not among the shared teachers")
    teacher = load_teacher(path)
    assert teacher.env_id is not None
    environment = gymnasium.make(teacher.env_id)
    returns = []
    for seed in range(4):
        observation, _ = environment.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            with torch.inference_mode():
                logits = teacher(torch.from_numpy(observation)[None]).labels
            observation, reward, terminated, truncated, _ = environment.step(int(logits.argmax()))
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    environment.close()
    assert sum(returns) / len(returns) >= minimum
