"""`--teacher AGENT` needs no recipe: the agent's observations choose one."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
from stable_baselines3 import A2C
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import qpd
from qpd.api import resolve_recipe
from qpd.errors.codes import ErrorCode
from qpd.phases.whole_run import default_output
from qpd.recipe.schema import RecipeError
from qpd.recipe.shipped import list_recipes
from tests.command_line import call
from tests.phases.own_environments import Camera


@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_run_of_ones_own_agent_needs_no_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    model = A2C("MlpPolicy", "CartPole-v1", n_steps=2, seed=0, device="cpu")
    model.save("a2c-CartPole-v1.zip")
    tiny = ("distill.epochs=1", "finetune.epochs=1", "replay.capacity=256", "student.size=mlp-8")
    games = ("evaluation.episodes=2", "evaluation.validation_episodes=2")
    overrides = [word for line in (*tiny, *games) for word in ("--set", line)]
    code, out, err = call(capsys, "run", "--teacher", "a2c-CartPole-v1.zip", *overrides)
    assert code == 0, err
    assert out.startswith("a2c-CartPole-v1, student of A2C on CartPole-v1\n")  # and no recipe
    run = qpd.open_run("runs/a2c-CartPole-v1")
    assert run.manifest.teacher is not None and run.manifest.teacher.algo == "a2c"
    assert set(run.manifest.evaluations) == {"teacher", "distilled", "ptq", "qat"}


def test_images_and_vectors_have_recipes_of_their_own(teacher_zip: Path) -> None:
    atari = resolve_recipe(None, teacher="embedded")
    assert (atari.name, atari.student.size) == ("ppo-BreakoutNoFrameskip-v4", "S")
    vector = resolve_recipe(None, ["seed=4", "student.size=mlp-8"], teacher=teacher_zip)
    assert (vector.name, vector.student.size, vector.seed) == ("ppo-CartPole-v1", "mlp-8", 4)
    assert default_output(vector) == Path("runs/ppo-CartPole-v1")
    assert resolve_recipe(None, ["name=mine"], teacher=teacher_zip).name == "mine"
    # As many as the memory of images may hold, more than that of vectors.
    many = ["finetune.reward.rollout=65536"]
    assert resolve_recipe(None, many, teacher="embedded").finetune.reward is not None
    with pytest.raises(RecipeError, match=r"65536 must be between .* replay\.capacity \(50000\)"):
        resolve_recipe(None, many, teacher=teacher_zip)
    assert [recipe.name for recipe in list_recipes()][:3] == [
        "agent/atari",
        "agent/continuous",
        "agent/vector",
    ]


def test_a_recipe_of_another_environment_is_said_to_be_one(teacher_zip: Path) -> None:
    with pytest.warns(
        UserWarning, match="classic-ppo-lunarlander is for LunarLander-v2; .* plays C"
    ):
        found = resolve_recipe("discrete/ppo-lunarlander", teacher=teacher_zip)
    assert found.teacher.env is None
    # Of the same, or where the user names one, there is nothing to say.
    resolve_recipe("discrete/ppo-cartpole", teacher=teacher_zip)
    resolve_recipe("discrete/ppo-lunarlander", ["teacher.env=CartPole-v1"], teacher=teacher_zip)


def test_an_image_that_vecnormalize_makes_floats_of_is_an_image(tmp_path: Path) -> None:
    camera = Camera()
    camera.observation_space = deepcopy(camera.observation_space)  # VecNormalize changes it
    env = VecNormalize(DummyVecEnv([lambda: camera]), norm_obs_keys=["a", "camera"])
    A2C("MultiInputPolicy", env, n_steps=2, device="cpu").save(tmp_path / "a2c-Camera-v0.zip")
    env.save(str(tmp_path / "vecnormalize.pkl"))
    found = resolve_recipe(
        None, [f"teacher.env={Camera.__module__}:Camera-v0"], teacher=tmp_path / "a2c-Camera-v0.zip"
    )
    assert found.student.size == "S"


def test_neither_recipe_nor_teacher(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "run")
    assert (code, out) == (2, "") and err.startswith("error: no recipe: give one (`qpd recipes`")
    with pytest.raises(qpd.UserError) as caught:
        qpd.distill(overrides={"distill.lr": "high"}, teacher="embedded")
    assert caught.value.code is ErrorCode.RECIPE_WRONG_TYPE


@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_student_is_made_beside_the_training_of_its_agent() -> None:
    few = ("n_steps=8", "batch_size=8", "n_envs=1")
    trained = qpd.train("ppo", "CartPole-v1", overrides=["train.timesteps=8", *few])
    assert trained.path == Path("runs/ppo-CartPole-v1")
    recipe = resolve_recipe(None, teacher=trained.path)
    assert default_output(recipe) == Path("runs/ppo-CartPole-v1-student")
