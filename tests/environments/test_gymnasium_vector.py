"""Gymnasium environments: what SB3 would see, state, failures, wrappers, stacks."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib.common.wrappers import TimeFeatureWrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from qpd.environments.action_spaces import within_space
from qpd.environments.errors import EnvironmentConfigError, EnvironmentRunError
from qpd.environments.feature_names import part_names
from qpd.environments.gymnasium_vector import episode_seed
from qpd.environments.making import make_one
from qpd.environments.registry import environment_spec, feature_origin, make_vector_env
from qpd.environments.source import EnvironmentSource, Wrapper, as_source
from qpd.environments.wrappers import TIME_FEATURE, wrapped
from qpd.errors.termination import Terminated
from tests.environments.custom_environments import MODULE, Broken, Countdown, Sensors, Unbounded
from tests.environments.environment_record import (
    assert_same_record,
    play_recording,
    random_actions,
)

needs_mujoco = pytest.mark.skipif(
    importlib.util.find_spec("mujoco") is None, reason="MuJoCo is not installed (qpd-rl[mujoco])"
)
HOPPER = pytest.param("Hopper-v4", marks=needs_mujoco)
OWN = [f"{MODULE}:{name}-v0" for name in ("Countdown", "Levers", "Switches", "Arm", "Room")]


@pytest.fixture(autouse=True)
def modules_that_the_user_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QPD_IMPORT", f"{MODULE},json,no_such")


def stepped(env: gymnasium.Env[Any, Any], seed: int, steps: int) -> list[Any]:
    """Raw observations of random play in one environment, with the actions' own seed."""
    env.action_space.seed(seed)
    seen = [env.reset(seed=seed)[0]]
    for _ in range(steps):
        seen.append(env.step(env.action_space.sample())[0])
    return seen


@pytest.mark.parametrize("env_id", OWN)
def test_observations_are_those_of_sb3s_flatten_extractor(env_id: str) -> None:
    source = EnvironmentSource(env_id)
    env = make_vector_env(source, 1)
    raw = make_one(source)
    env.reset(3)
    # The seed of its first episode, by the rule that the module's docstring states.
    seed = int(np.random.SeedSequence((3, 0, 0)).generate_state(1)[0])
    observation, _ = raw.reset(seed=seed)
    rng = np.random.default_rng(0)
    for _ in range(10):
        batch = torch.as_tensor(np.asarray(observation))[None]
        shown = preprocess_obs(batch, raw.observation_space)
        assert isinstance(shown, torch.Tensor)
        np.testing.assert_array_equal(env.observations, shown.float().flatten(1).numpy())
        actions = random_actions(env, rng)
        env.step(actions)
        given = actions[0].astype(raw.action_space.dtype)
        observation, *_ = raw.step(given)
    assert env.observations.dtype == np.float32


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "BipedalWalker-v3", *OWN, HOPPER])
def test_state_continues_bit_for_bit(env_id: str, workers: int) -> None:
    env, other = (make_vector_env(env_id, 3, workers=workers, max_frames=70) for _ in range(2))
    env.reset(1)
    play_recording(env, 100, seed=0)
    other.set_state(env.get_state())
    assert_same_record(play_recording(env, 100, seed=1), play_recording(other, 100, seed=1))
    np.testing.assert_equal(env.get_state(), other.get_state())
    env.close()
    other.close()


@pytest.mark.parametrize("env_id", ["Pendulum-v1", OWN[1], HOPPER])
def test_processes_give_the_numbers_of_one(env_id: str) -> None:
    """Two halves that take turns, in 1, 2 and 3 processes, and in this one."""
    records = []
    half = np.arange(5) % 2 == 0
    for workers in (0, 1, 2, 3):
        env = make_vector_env(env_id, 5, workers=workers)
        env.reset(4)
        record = play_recording(env, 30, seed=0)
        rng = np.random.default_rng(1)
        for _ in range(30):
            for group in (half, ~half):
                env.begin_step(random_actions(env, rng), group)
            for _ in range(2):
                record.append((*vars(env.finish_step()).values(),))
        record.append((env.observations.copy(),))
        records.append(record)
        env.close()
    for other in records[1:]:
        assert_same_record(records[0], other)


def test_what_no_seed_reaches_is_said_when_a_state_is_restored() -> None:
    env = make_vector_env(f"{MODULE}:Unseeded-v0", 2)
    env.reset(0)
    play_recording(env, 5, seed=0)
    with pytest.raises(EnvironmentRunError, match="cannot be repeated.*np_random") as raised:
        env.set_state(env.get_state())
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="reset"):
        env.step(np.zeros(2, int))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "at step 5 of a game: RuntimeError: the motor is hot"),
        ("quits", "at step 5 of a game: SystemExit: the operator has gone"),
        ("nan", "at step 5 of a game: its observation is not finite"),
        ("reward", "at step 5 of a game: its reward is not finite"),
        ("short", r"an observation of shape \(2,\), not 3 numbers"),
    ],
)
def test_a_failure_is_one_line(how: str, message: str, workers: int) -> None:
    env = make_vector_env(
        EnvironmentSource(f"{MODULE}:Broken-v0", {"how": how}), 4, workers=workers
    )
    env.reset(0)
    with pytest.raises(EnvironmentRunError, match=message) as raised:
        play_recording(env, 5, seed=0)
    assert "\n" not in str(raised.value) and "Broken-v0" in str(raised.value)
    if how == "reward":  # of the game before; the next one may begin
        env.reset(1)
    env.close()


def test_an_environment_that_quits_as_it_is_made_is_one_line() -> None:
    how = {"how": "is not made"}
    for source in (EnvironmentSource(f"{MODULE}:Broken-v0", how), as_source(lambda: Broken(**how))):
        with pytest.raises(EnvironmentConfigError, match="SystemExit: no such port"):
            environment_spec(source)


def test_who_terminates_the_command_is_not_the_environment() -> None:
    source = EnvironmentSource(f"{MODULE}:Broken-v0", {"how": "is terminated"})
    env = make_vector_env(source, 4, workers=0)
    env.reset(0)
    with pytest.raises(Terminated):
        play_recording(env, 5, seed=0)
    env.close()


def test_a_process_that_dies_is_one_line() -> None:
    source = EnvironmentSource(f"{MODULE}:Broken-v0", {"how": "exits"})
    env = make_vector_env(source, 4, workers=2)
    env.reset(0)
    with pytest.raises(EnvironmentRunError, match="a process that plays it ended with status 3"):
        play_recording(env, 5, seed=0)
    env.close()


def test_infinite_bounds_are_refused() -> None:
    with pytest.raises(EnvironmentConfigError, match="from -inf to inf: bounds must be finite"):
        environment_spec(f"{MODULE}:Unbounded-v0")


def test_what_the_line_on_infinite_bounds_says_works() -> None:
    source = EnvironmentSource(f"{MODULE}:Unbounded-v0", wrappers=(Wrapper(f"{MODULE}.Bounded"),))
    env = make_vector_env(source, 2)
    env.reset(0)
    env.step(np.ones((2, 2), np.float32))
    assert env.observations[:, 2].tolist() == [2.0, 2.0]
    env.close()
    with pytest.raises(EnvironmentConfigError, match=r"gymnasium\.ActionWrapper of your own\)$"):
        environment_spec(f"{MODULE}:Unbounded-v0")
    with pytest.raises(ValueError, match="unbounded"):  # so that this is not what it may say
        gymnasium.wrappers.RescaleAction(Unbounded(), -1, 1)


def test_the_parts_of_a_dict_have_names() -> None:
    spec = environment_spec(lambda: Sensors())
    assert spec.parts == (("joint", 3), ("mode", 25), ("on|off", 1), ("speed", 1))
    names = part_names(feature_origin(as_source(lambda: Sensors()))["features"])
    assert names is not None and (len(names),) == spec.observation_shape
    assert names[:4] == ("joint[0]", "joint[1]", "joint[2]", "mode[0]")
    assert names[-2:] == ("on_off", "speed")
    assert feature_origin(as_source("CartPole-v1")) == {}
    assert spec.forms == ("", "one-hot", "", "")
    for wrong in ("abc", [], [["a"]], [["a", 0]], [["a", 10**9]], [[1, 1]], [["a", True]], {}):
        assert part_names(wrong) is None


def test_actions_reach_the_environment_in_their_own_shape() -> None:
    """Arm asserts that its space contains them; its last input is their sum."""
    env = make_vector_env(f"{MODULE}:Arm-v0", 2)
    env.reset(0)
    env.step(np.array([[[-1, 0], [-2, 1]], [[3, 3], [3, 3]]], np.float32))
    assert env.observations[:, 3].tolist() == [-2.0, 12.0]
    with pytest.raises(ValueError, match="actions must be in 4 continuous actions"):
        env.step(np.full((2, 2, 2), 3.5, np.float32))


def test_actions_of_float64_are_within_its_bounds() -> None:
    """float32(0.1) is above 0.1; Fine asserts that its space contains its action."""
    env = make_vector_env(f"{MODULE}:Fine-v0", 1)
    env.reset(0)
    high = np.float32(env.spec.actions.high[0])
    assert float(high) > 0.1
    env.step(np.array([[high, 0.5 * high]], np.float32))
    assert env.observations[0, 2] == np.float32(0.1 + 0.5 * float(high))


def test_choices_are_numpys_numbers_as_in_sb3() -> None:
    env = make_vector_env(f"{MODULE}:Particular-v0", 2, num_threads=1)
    env.reset(0)
    assert env.step(np.array([1, 2])).rewards.shape == (2,)


def test_a_limit_of_steps_may_be_an_argument_and_games_may_be_anyones() -> None:
    """gymnasium.make's own argument; and `game`, which ale-py is not alone to have."""
    source = EnvironmentSource(f"{MODULE}:Particular-v0", {"game": "x", "max_episode_steps": 3})
    env = make_vector_env(source, 1, num_threads=1)
    env.reset(0)
    ended = [bool(env.step(np.array([0])).game_over[0]) for _ in range(3)]
    assert ended == [False, False, True]
    assert make_vector_env("Particular-v0", 1, num_threads=1).spec.env_id == "Particular-v0"


def test_an_id_that_a_script_has_registered_is_played_here() -> None:
    """Slow enough that processes would pay, which know nothing of it."""

    class Slow(Countdown):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            time.sleep(0.002)
            return super().step(action)

    gymnasium.register("SlowScript-v0", Slow)
    for num_threads in (0, 2):
        env = make_vector_env("SlowScript-v0", 8, num_threads=num_threads)
        env.reset(0)
        assert env.step(np.zeros(8, np.int64)).rewards.shape == (8,)
        env.close()


def test_stacks_are_those_of_vec_frame_stack() -> None:
    env_id = f"{MODULE}:Countdown-v0"
    plain = make_vector_env(env_id, 2)
    stacked = make_vector_env(EnvironmentSource(env_id, frame_stack=3), 2)
    assert stacked.spec.observation_shape == (9,)
    space = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
    theirs = StackedObservations(2, 3, space)
    plain.reset(0)
    stacked.reset(0)
    seen = theirs.reset(plain.observations)
    rng, ended = np.random.default_rng(0), 0
    for _ in range(60):
        np.testing.assert_array_equal(stacked.observations, seen)
        actions = random_actions(plain, rng)
        over = plain.step(actions).game_over
        stacked.step(actions)
        infos = [{"terminal_observation": np.zeros(3, np.float32)} if end else {} for end in over]
        seen, _ = theirs.update(plain.observations, over, infos)
        ended += int(over.sum())
    assert ended > 2


@pytest.mark.parametrize("test_mode", [False, True])
def test_the_time_feature_is_sb3_contribs(test_mode: bool) -> None:
    theirs = TimeFeatureWrapper(gymnasium.make("Pendulum-v1"), test_mode=test_mode)
    wrapper = Wrapper(TIME_FEATURE, {"test_mode": test_mode})
    ours = make_one(EnvironmentSource("Pendulum-v1", wrappers=(wrapper,)))
    assert ours.observation_space == theirs.observation_space
    for one, other in zip(stepped(ours, 5, 20), stepped(theirs, 5, 20), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def test_the_time_feature_counts_the_environments_own_limit() -> None:
    """Pendulum lasts 200 steps: after 10 of them 0.95 is left, though games end at 11."""
    env = make_vector_env(
        EnvironmentSource("Pendulum-v1", wrappers=(Wrapper(TIME_FEATURE),)), 1, max_frames=11
    )
    env.reset(0)
    for _ in range(10):
        env.step(np.zeros((1, 1), np.float32))
    assert env.observations[0, 3] == np.float32(0.95)
    assert env.step(np.zeros((1, 1), np.float32)).truncated[0]
    assert env.observations[0, 3] == 1.0


@needs_mujoco
def test_ants_old_agents_see_zeros_for_contact_forces() -> None:
    from qpd.environments.older_ids import present_form

    source, line = present_form(EnvironmentSource("Ant-v3"))
    assert line is not None and "Ant-v3 is played in Ant-v4" in line
    env, plain = make_vector_env(source, 1), make_vector_env("Ant-v4", 1)
    assert env.spec.observation_shape == (111,)
    for each in (env, plain):
        each.reset(0)
        each.step(np.ones((1, 8), np.float32))
    np.testing.assert_array_equal(env.observations[0, :27], plain.observations[0])
    assert not env.observations[0, 27:].any()


@needs_mujoco
def test_humanoids_contact_forces_become_zeros(in_an_empty_folder: None) -> None:
    """Humanoid-v4 shows forces where -v3 showed zeros. (MuJoCo warns in a file where it runs.)"""
    from qpd.environments.older_ids import present_form

    source, _ = present_form(EnvironmentSource("Humanoid-v3"))
    env, plain = make_vector_env(source, 1), make_vector_env("Humanoid-v4", 1)
    assert env.spec.observation_shape == plain.spec.observation_shape == (376,)
    forces = 0.0
    for each in (env, plain):
        each.reset(0)
    for _ in range(40):
        for each in (env, plain):
            each.step(np.full((1, 17), 0.4, np.float32))
        forces = max(forces, float(np.abs(plain.observations[0, -84:]).max()))
        assert not env.observations[0, -84:].any()
        np.testing.assert_array_equal(env.observations[0, :-84], plain.observations[0, :-84])
    assert forces > 1.0


def test_arguments_and_wrappers_are_applied_in_order() -> None:
    doubled = f"{MODULE}.Doubled"
    env_id = f"{MODULE}:Countdown-v0"
    plain = make_vector_env(EnvironmentSource(env_id, {"scale": 3.0}), 1)
    source = EnvironmentSource(
        env_id, {"scale": 3.0}, (Wrapper(doubled, {"plus": 1}), Wrapper(doubled))
    )
    env = make_vector_env(source, 1)
    for each in (plain, env):
        each.reset(0)
        each.step(np.array([1]))
    np.testing.assert_allclose(env.observations, 2 * (2 * plain.observations + 1), rtol=1e-6)
    assert str(source) == f"{env_id}, made with scale=3.0, in {doubled}(plus=1), in {doubled}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (EnvironmentSource("Pendulum-v1", {"mass": 1}), "Pendulum-v1 made with mass: TypeError"),
        (
            EnvironmentSource("Pendulum-v1", wrappers=(Wrapper("no_such.Wrapper"),)),
            "wrapper no_such.Wrapper: its module no_such cannot be imported",
        ),
        (
            EnvironmentSource("Pendulum-v1", wrappers=(Wrapper("json.Wrapper"),)),
            "wrapper json.Wrapper: module json has no Wrapper",
        ),
        (
            EnvironmentSource("Pendulum-v1", wrappers=(Wrapper("json.dumps"),)),
            "wrapper json.dumps cannot be applied: TypeError",
        ),
        (
            EnvironmentSource("BreakoutNoFrameskip-v4", frame_stack=4),
            "Atari games are preprocessed as SB3 does",
        ),
        (EnvironmentSource("FrozenLake-v1", frame_stack=2), "only flat Box observations"),
        # Of several axes VecFrameStack joins the last, before they are flattened.
        (EnvironmentSource(f"{MODULE}:Grid-v0", frame_stack=2), "only flat Box observations"),
    ],
)
def test_what_cannot_be_done_is_one_line(source: EnvironmentSource, message: str) -> None:
    with pytest.raises(EnvironmentConfigError, match=message) as raised:
        make_vector_env(source, 1)
    assert "\n" not in str(raised.value)


def test_sources_are_values() -> None:
    one = EnvironmentSource("A-v0", {"a": [1, 2], "b": 2}, (Wrapper("m.C", {"x": 1}),), 2)
    same = EnvironmentSource.from_json(one.to_json())
    assert one == same and hash(one) == hash(same)
    assert one != EnvironmentSource("A-v0", {"a": [1, 2], "b": 2}, (Wrapper("m.C"),), 2)
    for kwargs in ({"a": float("nan")}, {"a": object()}, {"a": [[0] * 600] * 2}, {"a b": 1}):
        with pytest.raises(EnvironmentConfigError):
            EnvironmentSource("A-v0", kwargs)


def test_a_function_makes_environments_but_is_not_stored() -> None:
    def countdown() -> gymnasium.Env[Any, Any]:
        return Countdown(scale=2.0)

    env = make_vector_env(countdown, 2, max_frames=7)
    env.reset(0)
    record = play_recording(env, 8, seed=0)
    assert env.spec.observation_shape == (3,) and record[6][5].all()  # truncated
    with pytest.raises(EnvironmentConfigError, match="Python function, which cannot be stored"):
        EnvironmentSource("mine", maker=countdown).to_json()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_action_has_the_shape_of_its_space(dtype: type) -> None:
    single, square = (gymnasium.spaces.Box(-1, 1, shape, dtype) for shape in ((), (2, 2)))
    given = within_space(np.zeros(1, np.float32), single)
    assert (given.shape, given.dtype) == ((), dtype)
    assert within_space(np.zeros(4, np.float32), square).shape == (2, 2)


@pytest.mark.parametrize(
    "names",
    [
        ("gymnasium.wrappers.ClipReward",),
        # Five steps of the environment in one of the agent's, and their rewards at the end.
        ("rl_zoo3.wrappers.FrameSkip", "rl_zoo3.wrappers.DelayedRewardWrapper"),
    ],
)
def test_returns_are_those_of_a_monitor_below_the_wrappers(names: tuple[str, ...]) -> None:
    arguments = {"gymnasium.wrappers.ClipReward": {"min_reward": -1.0, "max_reward": 0.0}}
    wrappers = tuple(Wrapper(name, arguments.get(name, {})) for name in names)
    source = EnvironmentSource("Pendulum-v1", wrappers=wrappers)
    ours = make_vector_env(source, 1)
    ours.reset(5)
    theirs = monitor = Monitor(gymnasium.make("Pendulum-v1"))
    for wrapper in wrappers:
        theirs = wrapped(theirs, wrapper, 200)
    rng = np.random.default_rng(0)
    for episode in range(2):
        theirs.reset(seed=episode_seed(5, 0, episode))
        over = False
        while not over:
            actions = random_actions(ours, rng)
            step = ours.step(actions)
            over = bool(step.game_over[0])
            theirs.step(actions[0])
        assert step.game_returns[0] == pytest.approx(monitor.get_episode_rewards()[-1])
    assert step.game_returns[0] < -200  # no reward of Pendulum is below -1 after the clip
