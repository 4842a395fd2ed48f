"""Zoo folders, names and settings: found, understood, never executed."""

import logging
import zipfile
from pathlib import Path

import gymnasium
import pytest
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from qpd.runs.target import load_target
from qpd.teachers import TeacherError, load_teacher
from qpd.teachers.sources import environment_ids
from qpd.teachers.sources.environment_ids import (
    RENAMED_ENVIRONMENTS,
    algorithm_from_name,
    current_environment_id,
    environment_id_from_name,
)
from qpd.teachers.sources.teacher_source import find_teacher_files
from qpd.teachers.sources.zoo_yaml import read_zoo_yaml


def make_zoo_folder(tmp_path: Path, name: str = "LunarLander-v2") -> Path:
    folder = tmp_path / "logs" / "a2c" / f"{name}_1"
    (folder / name).mkdir(parents=True)
    A2C("MlpPolicy", "CartPole-v1", device="cpu").save(folder / f"{name}.zip")
    pairs = f"!!python/object/apply:collections.OrderedDict\n- - - algo\n    - a2c\n  - - env\n    - {name}\n"  # noqa: E501
    (folder / name / "args.yml").write_text(pairs)
    return folder


def test_zoo_folder_and_renamed_environment(tmp_path, caplog):
    folder = make_zoo_folder(tmp_path)
    environment_ids._tell_once.cache_clear()  # another test may have been told already
    with caplog.at_level(logging.WARNING):
        teacher = load_teacher(folder)
        load_teacher(folder)  # as a run without a recipe does
    assert (teacher.algo, teacher.env_id) == ("a2c", "LunarLander-v3")
    assert caplog.text.count("LunarLander-v2 is called LunarLander-v3") == 1
    (folder / "LunarLander-v2.zip").rename(folder / "best_model.zip")
    assert load_teacher(str(folder)).env_id == "LunarLander-v3"
    assert load_teacher(folder / "best_model").env_id == "LunarLander-v3"
    assert load_teacher(folder, env_id="CartPole-v1").env_id == "CartPole-v1"


def test_missing_normalization_is_refused(tmp_path):
    folder = make_zoo_folder(tmp_path)
    for normalize, needed in (("true", True), ("\"{'norm_obs': False}\"", False), ("false", False)):
        (folder / "LunarLander-v2" / "config.yml").write_text(f"normalize: {normalize}\n")
        if needed:
            with pytest.raises(TeacherError, match=r"vecnormalize\.pkl is missing"):
                load_teacher(folder)
        else:
            load_teacher(folder)


def test_yaml_builds_no_objects(tmp_path):
    target = tmp_path / "was_run"
    path = tmp_path / "args.yml"
    path.write_text(f"algo: ppo\nenv: !!python/object/apply:os.mkdir ['{target}']\n")
    assert read_zoo_yaml(path)["algo"] == "ppo"
    assert not target.exists()
    for text in ("a: [", "- 1\n- 2", "just text", "!!python/name:os.system\n", "\x00"):
        path.write_text(text)
        with pytest.raises(TeacherError, match=r"args\.yml"):
            read_zoo_yaml(path)


@pytest.mark.parametrize(
    ("name", "env_id", "algo"),
    [
        ("ppo-BreakoutNoFrameskip-v4", "BreakoutNoFrameskip-v4", "ppo"),
        ("BreakoutNoFrameskip-v4_12", "BreakoutNoFrameskip-v4", None),
        ("qrdqn-ALE-Breakout-v5", "ALE/Breakout-v5", "qrdqn"),
        ("a2c-MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-5x5-v0", "a2c"),
        ("dqn", None, "dqn"),
        ("best_model", None, None),
        ("ppo_model", None, None),
    ],
)
def test_names(name, env_id, algo):
    assert environment_id_from_name(name) == env_id
    assert algorithm_from_name(name) == algo


def test_renamed_environments_exist():
    for current in RENAMED_ENVIRONMENTS.values():
        assert current in gymnasium.registry
    assert current_environment_id("CartPole-v1") == "CartPole-v1"
    # -v5 observes and rewards otherwise than what agents of -v3 were trained on.
    assert current_environment_id("HalfCheetah-v3") == "HalfCheetah-v4"
    assert current_environment_id("Ant-v2") == "Ant-v4"


@pytest.mark.parametrize("name", ["run1.5", "run15"])
def test_an_unpacked_agent_has_its_own_files_and_no_neighbours(name, tmp_path):
    agent = tmp_path / name
    A2C("MlpPolicy", "CartPole-v1", device="cpu").save(tmp_path / "a2c.zip")
    with zipfile.ZipFile(tmp_path / "a2c.zip") as packed:
        packed.extractall(agent)
    (agent / "args.yml").write_text("env: CartPole-v1\nalgo: a2c\n")
    other = tmp_path / "other"
    other.mkdir()
    (other / "args.yml").write_text("env: Acrobot-v1\nalgo: ppo\n")
    assert load_teacher(agent).env_id == "CartPole-v1"
    (agent / "args.yml").unlink()
    assert load_teacher(agent, algo="a2c").files.env_id is None


def test_a_checkpoint_has_the_statistics_of_its_own_step(tmp_path):
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    saving = CheckpointCallback(8, str(tmp_path), save_vecnormalize=True)
    A2C("MlpPolicy", env, n_steps=4, device="cpu").learn(16, callback=saving)
    env.save(str(tmp_path / "vecnormalize.pkl"))
    first = find_teacher_files(tmp_path / "rl_model_8_steps.zip")
    assert first.vec_normalize == tmp_path / "rl_model_vecnormalize_8_steps.pkl"
    assert first.notes == ()
    (tmp_path / "rl_model_vecnormalize_8_steps.pkl").unlink()
    last = find_teacher_files(tmp_path / "rl_model_8_steps.zip")
    assert last.vec_normalize == tmp_path / "vecnormalize.pkl"
    target = load_target(tmp_path / "rl_model_16_steps.zip", None, "CartPole-v1", "cpu")
    assert target.notes == (
        f"observations are normalized by {tmp_path}/rl_model_vecnormalize_16_steps.pkl",
    )


def test_what_is_chosen_among_several_files_is_said(tmp_path):
    agent = A2C("MlpPolicy", "CartPole-v1", device="cpu")
    agent.save(tmp_path / "a2c-CartPole-v1.zip")
    agent.save(tmp_path / "best_model.zip")
    agent.save(tmp_path / "rl_model_8_steps.zip")
    assert find_teacher_files(tmp_path).notes == (
        f"in {tmp_path}, a2c-CartPole-v1.zip is taken, not best_model.zip",
    )
    assert find_teacher_files(tmp_path / "best_model.zip").notes == ()
    (tmp_path / "vecnormalize.pkl").touch()
    assert find_teacher_files(tmp_path / "a2c-CartPole-v1.zip").notes == ()
    agent.save(tmp_path / "a2c-CartPole-v1_1000_steps.zip")  # of the same training
    assert find_teacher_files(tmp_path / "a2c-CartPole-v1.zip").notes == ()
    agent.save(tmp_path / "mine.zip")  # of another training, perhaps
    assert find_teacher_files(tmp_path / "mine.zip").notes == (
        "vecnormalize.pkl lies beside a2c-CartPole-v1.zip, too: if it is not mine.zip's, give "
        "--vecnormalize FILE",
    )
    named = find_teacher_files(tmp_path / "mine.zip", tmp_path / "vecnormalize.pkl")
    assert named.notes == ()


def test_a_mistyped_run_is_not_asked_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "manifest.json").touch()
    with pytest.raises(TeacherError, match=r"runs/mime: no such .*did you mean runs/mine"):
        find_teacher_files("runs/mime")
