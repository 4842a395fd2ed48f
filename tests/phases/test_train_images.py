"""`qpd train` where a wrapper shows images instead of the zoo's vectors."""

from __future__ import annotations

from pathlib import Path

import pytest
from stable_baselines3 import SAC

import qpd
from qpd.commands.train import student_command
from qpd.environments.source import Wrapper
from tests.phases.small_trainings import SMALL

pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn
CAMERA = [
    "gymnasium.wrappers.AddRenderObservation",
    {"gymnasium.wrappers.ResizeObservation": {"shape": [36, 40]}},
    {"gymnasium.wrappers.GrayscaleObservation": {"keep_dim": True}},
]


def test_pendulum_from_pixels(tmp_path: Path) -> None:
    overrides = {
        "train.timesteps": 60, "learning_starts": 40, "buffer_size": 100, "batch_size": 8,
        "cnn_arch": [4, 4, 4, 8], "environment.kwargs": {"render_mode": "rgb_array"},
        "environment.wrappers": CAMERA, "environment.frame_stack": 2,
    }  # fmt: skip
    run = qpd.train("sac", "Pendulum-v1", overrides=overrides, output=tmp_path / "run", **SMALL)
    assert run.agent_file is not None
    model = SAC.load(run.agent_file, device="cpu")
    # The zoo has MlpPolicy for Pendulum; SB3 puts channels first.
    assert model.observation_space.shape == (2, 36, 40)
    assert type(model.actor.features_extractor).__name__ == "SizedNatureCNN"
    command = student_command(tmp_path / "run")
    assert """--env-kwargs 'render_mode:"rgb_array"' --wrapper gymnasium.wrappers.Add""" in command
    kwargs = {"render_mode": "rgb_array"}
    found = qpd.evaluate(run, episodes=1, env_kwargs=kwargs, wrappers=CAMERA)
    assert found.returns.size == 1


def test_lists_of_a_recipe_are_gymnasiums_tuples() -> None:
    assert Wrapper("gymnasium.wrappers.A", {"shape": [1, 2]}).arguments == {"shape": (1, 2)}
    assert Wrapper("mine.A", {"shape": [1, 2]}).arguments == {"shape": [1, 2]}
