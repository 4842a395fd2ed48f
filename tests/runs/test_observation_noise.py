"""`--noise`: Gaussian noise on each feature, in its own standard deviations."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from qpd.environments.policy import FunctionPolicy
from qpd.environments.source import EnvironmentSource, Wrapper
from qpd.environments.wrappers import ZERO_CONTACT_FORCES
from qpd.errors.user_error import TargetError
from qpd.runs.observation_noise import with_deviations, with_noise
from qpd.runs.played_environment import EnvironmentWish
from qpd.runs.progress import SilentProgress
from qpd.runs.target import load_target
from tests.command_line import call
from tests.phases import own_environments

REFERENCE = Path(__file__).parents[2] / "runs-reference"
CARTPOLE = REFERENCE / "classic-ppo-cartpole"


def test_noise_has_the_deviations_that_are_asked_for() -> None:
    seen: list[np.ndarray] = []
    target = load_target(CARTPOLE, None, None, "cpu")
    policy = FunctionPolicy(lambda x: seen.append(x) or x, target.policy.actions)  # type: ignore
    deviations = (0.1, 10.0, 0.0, 1.0)
    noisy = with_noise(replace(target, policy=policy, deviations=deviations), 0.5, seed=3)
    observations = np.ones((20_000, 4), np.float32)
    for _ in range(2):
        noisy.policy(observations)
    first, second = seen
    assert first.dtype == np.float32 and (first != second).any()
    np.testing.assert_allclose((first - 1.0).std(0), 0.5 * np.array(deviations), rtol=0.03)
    assert np.abs((first - 1.0).mean(0)).max() < 0.15
    again = with_noise(replace(target, policy=policy, deviations=deviations), 0.5, seed=3)
    again.policy(observations)
    assert (seen[2] == first).all()


@pytest.mark.parametrize("sigma", [-0.1, 11.0, float("nan"), "0.1"])
def test_noise_that_is_none_is_refused(sigma: float) -> None:
    target = replace(load_target(CARTPOLE, None, None, "cpu"), deviations=(1.0,) * 4)
    with pytest.raises(TargetError, match=rf"--noise {sigma}: must be from 0 to 10"):
        with_noise(target, sigma, seed=0)


def test_deviations_are_those_of_its_own_play() -> None:
    target = with_deviations(load_target(CARTPOLE, None, None, "cpu"), SilentProgress())
    assert target.deviations is not None and len(target.deviations) == 4
    # A pole that is held up leans by a degree or two.
    assert 0.002 < target.deviations[2] < 0.1
    assert with_deviations(target, SilentProgress()) is target


def test_a_table_with_a_row_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    before = (CARTPOLE / "manifest.json").read_bytes()
    options = ("--noise", "0,3", "--episodes", "8", "--seed", "1")
    code, out, _ = call(capsys, "evaluate", CARTPOLE, *options, "--json")
    assert code == 0
    quiet, loud = json.loads(out)["noise"]
    assert (quiet["sigma"], loud["sigma"]) == (0.0, 3.0)
    assert quiet["return"]["mean"] > 400 > 150 > loud["return"]["mean"]
    code, out, _ = call(capsys, "evaluate", CARTPOLE, *options)
    assert code == 0 and out.splitlines()[0].startswith("noise  policy")
    assert (CARTPOLE / "manifest.json").read_bytes() == before  # not as the recipe says


def test_another_policys_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--episodes", "2", "--seed", "1", "--json")
    code, out, _ = call(capsys, "evaluate", CARTPOLE, "--noise", "0.1", *options)
    file = tmp_path / "first.json"
    file.write_text(out)
    given = json.loads(out)["deviations"]
    assert code == 0 and len(given) == 4
    # The teacher would have noise in units of its own play, which is another's.
    other = REFERENCE / "classic-dqn-cartpole"
    like = ("--noise", "0.1", "--noise-like", file)
    code, out, _ = call(capsys, "evaluate", other, *like, *options)
    assert code == 0 and json.loads(out)["deviations"] == given
    code, out, _ = call(capsys, "evaluate", other, "--noise", "0.1", *options)
    assert code == 0 and json.loads(out)["deviations"] != given
    code, _, err = call(capsys, "evaluate", REFERENCE / "classic-a2c-acrobot", *like)
    assert code == 2 and "has deviations of 4 features" in err and "sees 6" in err


def test_images_are_refused() -> None:
    target = load_target(REFERENCE / "breakout-ppo-xxs", None, None, "cpu")
    with pytest.raises(TargetError, match="noise is for vectors"):
        with_deviations(target, SilentProgress())


def test_an_image_among_vectors_is_refused_and_half_a_dict_has_no_deviations(
    tmp_path: Path,
) -> None:
    env = DummyVecEnv([own_environments.Camera])
    agent = PPO("MultiInputPolicy", env, n_steps=4, batch_size=4, device="cpu")
    agent.save(tmp_path / "agent.zip")
    VecNormalize(env, norm_obs_keys=["a"]).save(str(tmp_path / "vecnormalize.pkl"))
    wish = EnvironmentWish(f"{own_environments.__name__}:Camera-v0")
    statistics = tmp_path / "vecnormalize.pkl"
    target = load_target(str(tmp_path / "agent.zip"), None, wish, "cpu", statistics)
    assert target.deviations is None
    with pytest.raises(TargetError, match="sees an image among vectors"):
        with_deviations(target, SilentProgress())


def test_all_policies_of_a_run_get_equal_noise() -> None:
    found = {
        policy: with_deviations(load_target(CARTPOLE, policy, None, "cpu"), SilentProgress())
        for policy in ("distilled", "qat")
    }
    assert found["distilled"].deviations == found["qat"].deviations


def test_appended_zeros_have_no_noise(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    file = tmp_path / "like.json"
    file.write_text(json.dumps({"deviations": [2.0] * 27}))
    ant = EnvironmentSource("Ant-v4", {}, (Wrapper(ZERO_CONTACT_FORCES),))
    target = replace(
        load_target(CARTPOLE, "qat", None, "cpu"), environment=ant, observation_shape=(111,)
    )
    found = with_deviations(target, SilentProgress(), like=file).deviations
    assert found == (*[2.0] * 27, *[0.0] * 84)
