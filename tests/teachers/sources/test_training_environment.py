"""What an agent's environment was made of is read from the zoo's files, and only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpd.teachers import TeacherError, load_teacher
from qpd.teachers.sources.training_environment import EnvironmentWrapper, TrainingEnvironment
from tests.tiny_run import write_teacher

TIME = "sb3_contrib.common.wrappers.TimeFeatureWrapper"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_teacher(tmp_path / "CartPole-v1.zip")
    return tmp_path


def environment_of(folder: Path, config: str = "{}", args: str = "{}") -> TrainingEnvironment:
    (folder / "config.yml").write_text(config)
    (folder / "args.yml").write_text(f"{args}\n" if args != "{}" else "env: CartPole-v1\n")
    return load_teacher(folder).files.environment


def test_nothing_is_said(folder: Path) -> None:
    assert load_teacher(folder).files.environment == TrainingEnvironment()
    assert environment_of(folder, "env_wrapper: null\nenv_kwargs:\n") == TrainingEnvironment()
    assert str(TrainingEnvironment()) == "none"


def test_all_that_the_zoo_writes(folder: Path) -> None:
    """Its three ways to name wrappers: a class, a class with arguments, a list of either."""
    zoo = f"""!!python/object/apply:collections.OrderedDict
- - - env_wrapper
    - - {TIME}:
          max_steps: 500
      - gymnasium.wrappers.RescaleAction
  - - env_kwargs
    - continuous: true
      gravity: -9.5
  - - frame_stack
    - 3
  - - normalize
    - dict(norm_obs=False, norm_reward=True)
"""
    found = environment_of(folder, zoo, "env_kwargs: {gravity: -1.0}")
    assert found == TrainingEnvironment(
        {"continuous": True, "gravity": -1.0},
        (
            EnvironmentWrapper(TIME, {"max_steps": 500}),
            EnvironmentWrapper("gymnasium.wrappers.RescaleAction"),
        ),
        frame_stack=3,
        normalize=False,
    )
    said = "TimeFeatureWrapper(max_steps=500), RescaleAction, 3 frames, continuous=True, gravity"
    assert str(found).startswith(said)
    assert environment_of(folder, f"env_wrapper: {TIME}").env_wrapper == (EnvironmentWrapper(TIME),)
    stacked = "vec_env_wrapper: {stable_baselines3.common.vec_env.VecFrameStack: {n_stack: 2}}"
    (wrapper,) = environment_of(folder, stacked).vec_env_wrapper
    assert str(wrapper) == "VecFrameStack(n_stack=2)"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("frame_stack: 0", "frame_stack 'int'; expected a whole number above 0"),
        ("frame_stack: '4'", "frame_stack '4'; expected a whole number"),
        (
            "env_wrapper: 'os.system(1)'",
            r"env_wrapper 'os.system\(1\)'; expected a wrapper's class",
        ),
        ("env_wrapper: [[a.b]]", "env_wrapper 'list'; expected"),
        ("env_wrapper: {a.b: 3}", "env_wrapper 'dict'; expected"),
        ("env_wrapper: {a.b: {c: {d: 1}}}", "env_wrapper 'dict'; expected"),
        ("env_kwargs: dict(a=1)", r"env_kwargs 'dict\(a=1\)'; expected names and plain values"),
        ("env_kwargs: {1: 2}", "env_kwargs 'dict'; expected names"),
        # Nine lists of nine of the one before: 9^9 numbers, were they ever printed.
        (
            "a0: &a0 [1]\n"
            + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
            + "env_kwargs: {x: *a9}",
            "env_kwargs 'dict'; expected names and plain values",
        ),
    ],
)
def test_anything_else_is_one_line(folder: Path, config: str, said: str) -> None:
    with pytest.raises(TeacherError, match=f"CartPole-v1.zip: its settings say {said}") as caught:
        environment_of(folder, config)
    assert "\n" not in str(caught.value)
