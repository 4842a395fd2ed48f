"""`qpd teacher info` says what an agent is, continuous actions and wrappers included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stable_baselines3 import SAC

from tests.command_line import call


def test_a_continuous_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kwargs = {"net_arch": [16, 8]}
    agent = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs=kwargs, buffer_size=10, device="cpu")
    agent.save(tmp_path / "sac-Pendulum-v1.zip")
    (tmp_path / "config.yml").write_text(
        "env_wrapper: sb3_contrib.common.wrappers.TimeFeatureWrapper\n"
    )
    path = tmp_path / "sac-Pendulum-v1.zip"
    code, out, _ = call(capsys, "teacher", "info", path, "--episodes", 0, "--json")
    assert code == 0
    info = json.loads(out)
    assert (info["algo"], info["env_id"]) == ("sac", "Pendulum-v1")
    assert (info["actions"], info["squash"]) == ("1 continuous action (-2 to 2)", "tanh")
    assert (info["hidden_widths"], info["activation"]) == ([16, 8], "ReLU")
    assert info["wrappers"] == "TimeFeatureWrapper"
