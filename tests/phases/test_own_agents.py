"""Agents of one's own environments, trained by plain SB3 for a moment, from the zip to a device."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO

import qpd
from qpd.environments.errors import EnvironmentRunError
from qpd.environments.registry import make_vector_env
from qpd.environments.transition import TransitionBatch
from qpd.integer.integer_student import IntegerEngine
from qpd.phases.preparation import prepare
from qpd.recipe.loading import load_recipe, override_lines
from qpd.replay.play_stream import PlayStream
from qpd.student_files.quantized import load_integer_student
from tests.command_line import call
from tests.environments import custom_environments
from tests.phases import own_environments
from tests.tiny_run import Follower, Interrupt, recipe_of, work

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
    ("name", "policy", "size"),
    [
        ("Keys", "MultiInputPolicy", "mlp-8"),
        ("Aim", "MlpPolicy", "mlp-8"),
        ("Rgb", "CnnPolicy", "XXS"),
        ("Cameras", "CnnPolicy", "XXS"),
        ("Camera", "MultiInputPolicy", "XXS"),
        ("Stereo", "MultiInputPolicy", "XXS"),
    ],
)
def test_from_zip_to_device(
    name: str,
    policy: str,
    size: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    env_id = f"{MODULE}:{name}-v0"
    env = gymnasium.make(f"{name}-v0")
    agent = PPO(policy, env, n_steps=64, batch_size=64, n_epochs=1, device="cpu", seed=0)
    agent.learn(128).save(tmp_path / "agent.zip")
    settings = TINY | {"teacher.env": env_id, "student.size": size}
    run = qpd.run(teacher=tmp_path / "agent.zip", overrides=settings, output=tmp_path / "run")
    assert {"teacher", "distilled", "ptq", "qat"} <= set(run.manifest.evaluations)
    folder = tmp_path / "c"
    code, _, err = call(capsys, "export", tmp_path / "run", "--format", "c", "-o", folder)
    assert code == 0, err
    assert not (folder / "qpd_preprocess.c").exists()  # which is Atari's
    if name == "Camera":
        header = (folder / "qpd_student.h").read_text(encoding="utf-8")
        assert "QPD_FEATURES 5" in header and "/* a[1] */" in header and "/* gear[2] */" in header
    if name == "Keys":
        rows = (folder / "README.md").read_text(encoding="utf-8").splitlines()
        named = [row.split("|")[2].strip() for row in rows if re.match(r"\| \d+ \| [ab]\[", row)]
        assert named == [f"a[{i}]" for i in range(3)] + [f"b[{i}]" for i in range(8)]
        assert "/* b[7] */" in (folder / "qpd_student.h").read_text(encoding="utf-8")
    done = subprocess.run(["make", "test"], cwd=folder, capture_output=True, text=True, timeout=120)
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


def trained(name: str, folder: Path) -> Path:
    """Return the zip of an agent of images that has learned for a moment."""
    env = gymnasium.make(f"{name}-v0")
    agent = PPO("CnnPolicy", env, n_steps=64, batch_size=64, n_epochs=1, device="cpu", seed=0)
    agent.learn(64).save(folder / "agent.zip")
    return folder / "agent.zip"


@pytest.mark.parametrize("name", ["Cameras", "Rgb"])
def test_training_reads_what_the_teacher_saw(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QPD_IMPORT", MODULE)  # the recipe below names it
    settings = TINY | {
        "teacher.source": str(trained(name, tmp_path)),
        "teacher.env": f"{MODULE}:{name}-v0",
        "student.size": "XXS",
        "replay.capacity": 60,
        "collection.student_fraction": 0.0,
    }
    recipe = load_recipe("agent/continuous", override_lines(settings))
    prepared = prepare(recipe, "cpu")
    assert not prepared.architecture.stacks_frames
    stream = PlayStream(recipe, prepared.teacher, prepared.environment, tmp_path / "frames.bin")
    seen: dict[int, np.ndarray] = {}
    add = stream.memory.add

    def noted(batch: TransitionBatch) -> np.ndarray:
        rows = add(batch)
        seen.update(zip(rows.tolist(), batch.observations.copy(), strict=True))
        return rows

    stream.memory.add = noted  # type: ignore[method-assign]
    stream.fill()
    stream.close()
    rows = stream.memory.transition_rows()
    drawn = stream.memory.gather(torch.from_numpy(rows)).observations.numpy()
    wanted = np.stack([seen[int(row)] for row in rows])
    for channel in range(wanted.shape[1]):
        np.testing.assert_array_equal(drawn[:, channel], wanted[:, channel])
    assert len(np.unique(wanted, axis=0)) == 8


def test_a_run_of_images_is_shown_and_timed_and_published_without_atari(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env_id, run = f"{MODULE}:Rgb-v0", tmp_path / "run"
    settings = TINY | {"teacher.env": env_id, "student.size": "XXS"}
    qpd.run(teacher=trained("Rgb", tmp_path), overrides=settings, output=run)
    record, hub = tmp_path / "device.json", tmp_path / "hub"
    words = ("--runtimes", "c,torch", "--rounds", "1", "--seconds", "0.01", "-o", record, "-q")
    code, _, err = call(capsys, "bench", run, *words)
    assert code == 0, err
    rows = json.loads(record.read_text())["rows"]
    names = {row["runtime"] for row in rows if row["median_us"]}
    assert {"c", "torch"} <= names and not any(row.get("error") for row in rows), rows
    for format_ in ("sb3", "bin"):
        folder = tmp_path / format_
        assert call(capsys, "export", run, "--format", format_, "-o", folder)[0] == 0
        done = subprocess.run([sys.executable, "selftest.py"], cwd=folder, timeout=120, check=False)
        assert done.returncode == 0
    readme = (tmp_path / "sb3" / "README.md").read_text()
    assert "make_atari_env" not in readme and f'gymnasium.make("{env_id}")' in readme
    (block,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    place = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
    shown = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path / "sb3", env=place, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert shown.returncode == 0 and shown.stdout.strip(), shown.stderr
    code, _, err = call(capsys, "push", run, "me/rgb", "--dry-run", "-o", hub, "-q")
    assert code == 0 and (hub / "c" / "qpd.h").is_file() and (hub / "bin").is_dir(), err
    card = (hub / "README.md").read_text()
    assert "an image of 3x40x48, channels first" in card
    assert "sticky" not in card and "AtariWrapper" not in card and "make_atari_env" not in card


def test_what_cannot_be_repeated_is_no_damaged_checkpoint(
    tmp_path: Path, teacher_zip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who took it for one, and deleted the checkpoint, would lose what was learned."""
    monkeypatch.setenv("QPD_IMPORT", custom_environments.__name__)
    wrapper = f"{custom_environments.__name__}.{custom_environments.Jittered.__name__}"
    recipe = recipe_of(teacher_zip, environment={"wrappers": [wrapper]})
    path = tmp_path / "run"
    with pytest.raises(Interrupt):
        work(path, recipe, Follower(lambda event, name, _: event == "epoch" and name == "distill"))
    with pytest.raises(EnvironmentRunError, match=r"cannot be repeated.*np_random"):
        work(path, recipe, Follower())
    assert (path / "checkpoint" / "state.safetensors").is_file()
