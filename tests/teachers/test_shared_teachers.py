"""Every third-party agent of the shared collection acts as SB3's own policy of its tensors does.

SB3's `load` reads 2 of these 61 zips: the others hold pickles of `gym`, gymnasium's predecessor.
So SB3's constructors build the policies, whose `load_state_dict` takes the tensors
(`build_sb3_policy`); `predict` is SB3's own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from qpd.actions import ActingRule, Box
from qpd.environments.errors import EnvironmentConfigError
from qpd.environments.registry import make_vector_env
from qpd.errors.codes import ErrorCode
from qpd.runs.played_environment import EnvironmentWish, environment_of
from qpd.teachers import Teacher, load_teacher
from qpd.teachers.sb3_policy import build_sb3_policy
from qpd.teachers.sources.environment_ids import RENAMED_ENVIRONMENTS

torch.set_num_threads(1)
SHARED = Path(os.environ.get("QPD_SHARED_TEACHERS", Path(__file__).parents[3] / "shared"))
ZIPS = sorted([*SHARED.glob("agents/*/*.zip"), *SHARED.glob("teachers/**/*.zip")])
NUM_GAMES, NUM_STATES = 4, 1000
GREEDY = ActingRule("greedy")
DETERMINISTIC = ("ars", "td3", "ddpg")
FEATURES = {"TimeFeatureWrapper": ("ppo-Ant-v3", "ppo-Swimmer-v3", "ppo-Walker2d-v3")}

pytestmark = pytest.mark.skipif(
    not ZIPS, reason="no shared teachers beside the repository (set QPD_SHARED_TEACHERS)"
)


def name_of(path: Path) -> str:
    return path.parent.name if path.parent.name != "breakout-ppo" else path.stem


def visited(teacher: Teacher, count: int) -> np.ndarray:
    """States of the agent's own games: `count` in all, of several games side by side."""
    try:
        played = environment_of(teacher, EnvironmentWish())
        env = make_vector_env(played.source, NUM_GAMES, workers=0)
    except EnvironmentConfigError as error:
        if error.code != ErrorCode.PACKAGE_MISSING:
            raise
        pytest.skip(str(error))
    env.reset(0)
    states: list[np.ndarray] = []
    while len(states) * NUM_GAMES < count:
        states.append(env.observations.copy())
        with torch.inference_mode():
            labels = teacher(torch.from_numpy(env.observations)).labels.numpy()
        actions = teacher.actions.act(labels, GREEDY, np.random.default_rng(0))
        env.step(actions, env.acting)
        while not env.acting.all():  # SB3's wrappers press a button
            env.step(actions, ~env.acting)
    env.close()
    return np.concatenate(states)[:count]


def config_of(path: Path) -> dict[str, object]:
    """The RL Zoo's hyperparameters, read in another way than QPD does."""
    file = path.parent / "config.yml"
    if not file.exists():
        return {}
    text = file.read_text(encoding="utf-8").replace("!!python/object/apply:", "# ")
    return dict(yaml.safe_load(text)[0])


def test_there_are_as_many_as_the_collection_says() -> None:
    assert not (SHARED / "agents").is_dir() or len(ZIPS) >= 60


@pytest.mark.parametrize("path", ZIPS, ids=name_of)
def test_it_acts_as_sb3s_own_policy_in_states_that_it_visits(path: Path) -> None:
    teacher = load_teacher(path)
    observations = visited(teacher, NUM_STATES)
    with torch.inference_mode():
        labels = teacher(torch.from_numpy(observations)).labels
    chosen = teacher.actions.act(labels.numpy(), GREEDY, np.random.default_rng(0))
    seen = observations
    if teacher.normalization is not None:
        seen = teacher.normalization.apply(observations)
    expected, _ = build_sb3_policy(teacher).predict(seen, deterministic=True)
    assert len(chosen) == len(expected) == NUM_STATES
    assert len(np.unique(observations, axis=0)) > NUM_STATES / 4  # Breakout repeats itself
    scale = np.ones(1)
    if isinstance(teacher.actions, Box):
        scale = np.subtract(teacher.actions.high, teacher.actions.low)
    np.testing.assert_allclose(chosen / scale, expected / scale, rtol=0, atol=1e-6)
    assert len(np.unique(chosen, axis=0)) > 1  # not all one action


@pytest.mark.parametrize("path", ZIPS, ids=name_of)
def test_it_is_what_its_files_say(path: Path) -> None:
    algo, env_id = re.split("-", name_of(path), maxsplit=1)
    teacher, config = load_teacher(path), config_of(path)
    assert teacher.algo == algo
    assert teacher.env_id == RENAMED_ENVIRONMENTS.get(env_id, env_id)
    assert teacher.has_critic == (algo not in ("dqn", "qrdqn", "ars"))
    assert (teacher.normalization is not None) == (path.parent / "vecnormalize.pkl").exists()
    actions = teacher.actions
    if isinstance(actions, Box):
        tanh = algo in ("sac", "tqc", "ddpg", "td3")
        tanh |= algo == "ars" and config["policy"] == "MlpPolicy"
        assert actions.squash == ("tanh" if tanh else "clip")
        assert actions.labels == ("deterministic" if algo in DETERMINISTIC else "gaussian")
        assert set(actions.high) == ({2.0} if "Pendulum" in env_id else {1.0})
    observations = torch.from_numpy(visited(teacher, NUM_GAMES))
    with torch.inference_mode():
        labels, values = teacher(observations)
    assert values.shape == (len(labels),) and bool((values == 0).all()) == (algo == "ars")
    assert teacher.judges_apart == (teacher.has_critic and not teacher.is_image)
    if teacher.judges_apart:
        with torch.inference_mode():
            acted = teacher.act(observations)
            judged = teacher.judge(observations, acted)
        assert torch.equal(acted, labels) and torch.equal(judged, values)
    # The zoo's own words for the layers.
    arch = re.search(r"net_arch=\[(\d[\d, ]*)\]", str(config.get("policy_kwargs")))
    if arch:
        assert teacher.hidden_widths == tuple(map(int, arch.group(1).split(",")))
    assert load_teacher(path.parent).sha256 == teacher.sha256


@pytest.mark.parametrize("path", ZIPS, ids=name_of)
def test_what_its_environment_was_made_of(path: Path) -> None:
    environment = load_teacher(path).files.environment
    timed = name_of(path) in FEATURES["TimeFeatureWrapper"]
    names = ["sb3_contrib.common.wrappers.TimeFeatureWrapper"] if timed else []
    assert [wrapper.name for wrapper in environment.env_wrapper] == names
    assert (environment.env_kwargs, environment.frame_stack) == ({}, 1)
    assert environment.normalize == bool(config_of(path).get("normalize", False))


@pytest.mark.parametrize(
    ("folder", "minimum"),
    [("ppo-CartPole-v1", 400), ("dqn-CartPole-v1", 400), ("ppo-MountainCar-v0", -140),
     ("a2c-Acrobot-v1", -120), ("ars-CartPole-v1", 400), ("sac-Pendulum-v1", -400),
     ("ddpg-Pendulum-v1", -400), ("tqc-Pendulum-v1", -400), ("ars-Pendulum-v1", -600),
     ("trpo-MountainCarContinuous-v0", 90)],
)  # fmt: skip
def test_old_agents_still_play_well(folder: str, minimum: float) -> None:
    """The rebuilt function is the trained one: wrong activations or statistics play badly."""
    import gymnasium

    found = [path for path in ZIPS if path.parent.name == folder]
    if not found:
        pytest.skip(f"{folder} is not among the shared teachers")
    teacher, rng = load_teacher(found[0]), np.random.default_rng(0)
    assert teacher.env_id is not None
    environment = gymnasium.make(teacher.env_id)
    returns = []
    for seed in range(4):
        observation, _ = environment.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            with torch.inference_mode():
                labels = teacher(torch.from_numpy(observation)[None]).labels
            action = teacher.actions.act(labels.numpy(), GREEDY, rng)[0]
            observation, reward, terminated, truncated, _ = environment.step(action)
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    environment.close()
    assert sum(returns) / len(returns) >= minimum
