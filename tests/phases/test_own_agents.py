"""Agents of one's own environments, trained by plain SB3 for a moment, from the zip to a device."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import PPO

import qpd
from qpd.environments.registry import make_vector_env
from qpd.integer.integer_student import IntegerEngine
from qpd.student_files.quantized import load_integer_student
from tests.command_line import call
from tests.phases import own_environments

MODULE = own_environments.__name__
TINY = {
    "environment.num_envs": 4,
    "replay.capacity": 400,
    "distill.epochs": 4,
    "finetune.epochs": 1,
    "evaluation.episodes": 4,
    "evaluation.validation_episodes": 2,
    "evaluation.validate_every": 2,
    "save.tensorboard": False,
}


@pytest.mark.parametrize(
    ("name", "policy", "size", "target"),
    [
        ("Keys", "MultiInputPolicy", "mlp-8", "c"),
        ("Aim", "MlpPolicy", "mlp-8", "c"),
        ("Rgb", "CnnPolicy", "XXS", "onnx"),
    ],
)
def test_from_zip_to_device(
    name: str,
    policy: str,
    size: str,
    target: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if target == "onnx":
        pytest.importorskip("onnxruntime")
    env_id = f"{MODULE}:{name}-v0"
    env = gymnasium.make(f"{name}-v0")
    agent = PPO(policy, env, n_steps=64, batch_size=64, n_epochs=1, device="cpu", seed=0)
    agent.learn(128).save(tmp_path / "agent.zip")
    settings = TINY | {"teacher.env": env_id, "student.size": size}
    run = qpd.run(teacher=tmp_path / "agent.zip", overrides=settings, output=tmp_path / "run")
    assert {"teacher", "distilled", "ptq", "qat"} <= set(run.manifest.evaluations)
    folder = tmp_path / target
    code, _, err = call(capsys, "export", tmp_path / "run", "--format", target, "-o", folder)
    assert code == 0, err
    test = ["make", "test"] if target == "c" else [sys.executable, "selftest.py"]
    if (name, target) == ("Keys", "c"):
        rows = (folder / "README.md").read_text(encoding="utf-8").splitlines()
        named = [row.split("|")[2].strip() for row in rows if re.match(r"\| \d+ \| [ab]\[", row)]
        assert named == [f"a[{i}]" for i in range(3)] + [f"b[{i}]" for i in range(8)]
        assert "/* b[7] */" in (folder / "qpd_student.h").read_text(encoding="utf-8")
    done = subprocess.run(test, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "ok" in done.stdout, done.stdout + done.stderr
    # What the integers answer are actions that the environment takes.
    engine = IntegerEngine(load_integer_student(run.quantized_file))
    games = make_vector_env(env_id, 2)
    games.reset(0)
    rule = engine.actions.rule("greedy", on_atari=False, epsilon=0.0, sharpness=1.0)
    for _ in range(5):
        actions = engine.actions.act(engine(games.observations), rule, np.random.default_rng(0))
        games.step(actions)
    games.close()
