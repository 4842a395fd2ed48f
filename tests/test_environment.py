"""Our environments against SB3's wrappers, exact resume, truncation, and error messages."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import safetensors.numpy
from sb3_twin import Sb3Twin, sb3_vector_env
from stable_baselines3 import PPO
from stable_baselines3.common import atari_wrappers
from stable_baselines3.common.atari_wrappers import NoopResetEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecFrameStack,
    VecTransposeImage,
)

from qpd.atari_environment import AtariEnvironment
from qpd.environment import (
    EnvironmentConfigError,
    VectorEnvironment,
    VectorStep,
    environment_spec,
    make_vector_env,
)
from teachers.teacher_source import find_teacher_files

BREAKOUT = "BreakoutNoFrameskip-v4"
TEACHER = find_teacher_files("embedded").archive

# The zip's pickled schedules come from the training machine; playing needs none of them.
SCHEDULES = {"lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.0}

Policy = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def sb3_vector_env_truncated(env_id: str, num_envs: int, max_frames: int) -> VecEnv:
    """AtariWrapper's chain with a time limit that, as ALE's, does not count the no-ops."""

    def make() -> gymnasium.Env:
        env: gymnasium.Env = NoopResetEnv(Monitor(gymnasium.make(env_id)), noop_max=30)
        env = atari_wrappers.MaxAndSkipEnv(gymnasium.wrappers.TimeLimit(env, max_frames), 4)
        env = atari_wrappers.FireResetEnv(atari_wrappers.EpisodicLifeEnv(env))
        return atari_wrappers.ClipRewardEnv(atari_wrappers.WarpFrame(env))

    return VecTransposeImage(VecFrameStack(DummyVecEnv([make] * num_envs), 4))


def act_and_force(ours: VectorEnvironment, actions: np.ndarray) -> tuple[VectorStep, np.ndarray]:
    """One transition everywhere, then all forced steps; the returns of finished games or NaN."""
    assert ours.acting.all()
    first = ours.step(actions)
    returns = np.where(first.game_over, first.game_returns, np.nan)
    for _ in range(12):
        if ours.acting.all():
            return first, returns
        forced = ours.step(actions, active=~ours.acting)
        assert not (forced.terminated | forced.truncated).any()
        returns = np.where(forced.game_over, forced.game_returns, returns)
    raise AssertionError("forced steps without end")


def assert_frames_match(ours: np.ndarray, theirs: np.ndarray, exact: bool) -> None:
    """Equal, or differing only as the order of max-pooling and greying explains.

    SB3 takes the brighter of two frames per colour channel and greys afterwards, ALE greys
    first: ours can only be darker (rounding aside), and only where two colours met.
    """
    if exact:
        np.testing.assert_array_equal(ours, theirs)
        return
    difference = theirs.astype(int) - ours
    assert difference.min() >= -1
    assert (difference != 0).mean() < 0.02


def compare(
    ours: VectorEnvironment, twin: Sb3Twin, num_steps: int, policy: Policy, exact: bool = True
) -> tuple[int, list[float]]:
    """Assert that everything is equal for ``num_steps``; lost lives and finished games' scores."""
    rng = np.random.default_rng(7)
    scores: list[float] = []
    num_lost_lives = 0
    for _ in range(12):
        if not ours.acting.all():
            ours.step(np.zeros(ours.num_envs, dtype=np.int64), active=~ours.acting)
    assert_frames_match(ours.observations, twin.observations, exact)
    ages = np.zeros(ours.num_envs, dtype=np.int64)
    for _ in range(num_steps):
        actions = policy(ours.observations, rng)
        twin.observations, rewards, dones, infos = twin.vec_env.step(actions)
        result, returns = act_and_force(ours, actions)
        np.testing.assert_array_equal(result.terminated | result.truncated, dones)
        truncated = [info.get("TimeLimit.truncated", False) for info in infos]
        np.testing.assert_array_equal(result.truncated & ~result.terminated, truncated)
        np.testing.assert_array_equal(np.sign(result.rewards), rewards)
        assert_frames_match(ours.observations, twin.observations, exact)
        assert isinstance(ours, AtariEnvironment)
        assert ours._lives.tolist() == twin.lives()
        ages = np.where(dones, 0, np.minimum(ages + 1, 3))
        np.testing.assert_array_equal(ours.age, ages)
        for row in np.flatnonzero(result.game_over & result.terminated):
            assert infos[row]["episode"]["r"] == returns[row]
            scores.append(float(returns[row]))
        num_lost_lives += int((dones & np.isnan(returns)).sum())
    return num_lost_lives, scores


def random_policy(num_actions: int) -> Policy:
    return lambda observations, rng: rng.integers(0, num_actions, len(observations))


def test_breakout_equals_sb3() -> None:
    ours = make_vector_env(BREAKOUT, 3, num_threads=2)
    ours.reset(1)
    twin = Sb3Twin(sb3_vector_env(BREAKOUT, 3), "breakout", 1)
    lost_lives, scores = compare(ours, twin, 700, random_policy(4))
    assert lost_lives > 40 and len(scores) > 8 and max(scores) > 2


@pytest.mark.parametrize("max_frames", [6, 10, 402])
def test_truncation_equals_sb3_even_inside_forced_steps(max_frames: int) -> None:
    ours = make_vector_env(BREAKOUT, 2, max_frames=max_frames)
    ours.reset(3)
    twin = Sb3Twin(sb3_vector_env_truncated(BREAKOUT, 2, max_frames), "breakout", 3)
    compare(ours, twin, 25 if max_frames < 100 else 300, random_policy(4))


@pytest.mark.parametrize(
    ("env_id", "rom", "seed", "num_steps", "exact"),
    [
        ("MsPacmanNoFrameskip-v4", "ms_pacman", 1, 400, False),  # no FIRE, 3 lives
        ("ALE/SpaceInvaders-v5", "space_invaders", 1, 500, True),
        pytest.param(
            "FreewayNoFrameskip-v4", "freeway", 1, 2200, False, marks=pytest.mark.slow
        ),  # no FIRE, no lives, long games
        pytest.param("PongNoFrameskip-v4", "pong", 1, 2000, False, marks=pytest.mark.slow),
        pytest.param("QbertNoFrameskip-v4", "qbert", 1, 1500, False, marks=pytest.mark.slow),
        pytest.param("SeaquestNoFrameskip-v4", "seaquest", 1, 1500, False, marks=pytest.mark.slow),
    ],
)
def test_other_games_equal_sb3(
    env_id: str, rom: str, seed: int, num_steps: int, exact: bool
) -> None:
    ours = make_vector_env(env_id, 2)
    ours.reset(seed)
    sb3_id = env_id.replace("ALE/", "").replace("-v5", "NoFrameskip-v4")
    twin = Sb3Twin(sb3_vector_env(sb3_id, 2), rom, seed)
    policy = random_policy(ours.spec.num_actions)
    _, scores = compare(ours, twin, num_steps, policy, exact)
    assert scores


@pytest.mark.slow
def test_breakout_equals_sb3_in_good_games() -> None:
    model = PPO.load(TEACHER, device="cpu", custom_objects=SCHEDULES)
    ours = make_vector_env(BREAKOUT, 4)
    ours.reset(2)
    twin = Sb3Twin(sb3_vector_env(BREAKOUT, 4), "breakout", 2)

    def play(observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        actions, _ = model.predict(observations)
        return np.where(rng.random(len(actions)) < 0.02, rng.integers(0, 4, len(actions)), actions)

    lost_lives, scores = compare(ours, twin, 2000, play)
    assert lost_lives > 8 and max(scores) > 100


Record = list[tuple[np.ndarray, ...]]


def play_recording(env: VectorEnvironment, num_steps: int, seed: int) -> Record:
    """All that is seen in ``num_steps`` vector steps of random actions."""
    rng = np.random.default_rng(seed)
    record: Record = []
    for _ in range(num_steps):
        result = env.step(rng.integers(0, env.spec.num_actions, env.num_envs))
        seen = (env.observations.copy(), env.acting.copy(), env.age.copy())
        record.append((*seen, *vars(result).values()))
    return record


def assert_same_record(first: Record, second: Record) -> None:
    assert len(first) == len(second)
    for left, right in zip(first, second, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("env_id", "num_steps"),
    [(BREAKOUT, 1000), ("MsPacmanNoFrameskip-v4", 500), ("CartPole-v1", 500), ("Acrobot-v1", 700)],
)
def test_state_round_trip(env_id: str, num_steps: int) -> None:
    original = make_vector_env(env_id, 2)
    original.reset(11)
    play_recording(original, num_steps, seed=0)
    state = safetensors.numpy.load(safetensors.numpy.save(original.get_state()))
    expected = play_recording(original, 200, seed=1)
    restored = make_vector_env(env_id, 2)
    restored.set_state(state)
    assert_same_record(play_recording(restored, 200, seed=1), expected)
    original.set_state(state)  # the same object can go back, too
    assert_same_record(play_recording(original, 200, seed=1), expected)


@pytest.mark.parametrize("num_steps", [0, 1, 20])
def test_state_round_trip_at_episode_edges(num_steps: int) -> None:
    """Games of 18 emulator frames: the saves fall on, before and after each forced step."""
    original = make_vector_env(BREAKOUT, 1, max_frames=18)
    original.reset(0)
    play_recording(original, num_steps, seed=0)
    for _ in range(4):
        restored = make_vector_env(BREAKOUT, 1, max_frames=18)
        restored.set_state(original.get_state())
        state_before = original.get_state()
        expected = play_recording(original, 8, seed=1)
        assert_same_record(play_recording(restored, 8, seed=1), expected)
        original.set_state(state_before)
        play_recording(original, 1, seed=2)


RESUME_IN_NEW_PROCESS = """
import pickle, sys
import safetensors.numpy
from qpd.environment import make_vector_env
sys.path.insert(0, "tests")
from test_environment import play_recording
env = make_vector_env("BreakoutNoFrameskip-v4", 3)
env.set_state(safetensors.numpy.load_file(sys.argv[1]))
pickle.dump(play_recording(env, 500, seed=1), open(sys.argv[2], "wb"))
"""


@pytest.mark.slow
def test_state_continues_in_a_new_process(tmp_path: Path) -> None:
    original = make_vector_env(BREAKOUT, 3)
    original.reset(5)
    play_recording(original, 3300, seed=0)
    safetensors.numpy.save_file(original.get_state(), tmp_path / "state")
    files = [str(tmp_path / "state"), str(tmp_path / "record")]
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", RESUME_IN_NEW_PROCESS, *files], check=True, cwd=root)
    resumed = pickle.loads((tmp_path / "record").read_bytes())
    assert_same_record(resumed, play_recording(original, 500, seed=1))


def test_state_of_another_environment_is_refused() -> None:
    env = make_vector_env(BREAKOUT, 1)
    env.reset(0)
    play_recording(env, 5, seed=0)
    state = env.get_state()
    with pytest.raises(ValueError, match="num_resets is int64"):
        make_vector_env(BREAKOUT, 2).set_state(state)
    with pytest.raises(ValueError, match="replay differs"):
        env.set_state(state | {"seed": np.array([1])})
    with pytest.raises(ValueError, match="another max_frames"):
        make_vector_env(BREAKOUT, 1, max_frames=99).set_state(state)
    with pytest.raises(ValueError, match="another environment"):
        make_vector_env("CartPole-v1", 1).set_state(make_other_cartpole_state())


def make_other_cartpole_state() -> dict[str, np.ndarray]:
    env = make_vector_env("CartPole-v1", 2)
    env.reset(0)
    return env.get_state()


@pytest.mark.parametrize("env_id", [BREAKOUT, "CartPole-v1"])
def test_seed_decides_everything(env_id: str) -> None:
    env = make_vector_env(env_id, 2)
    records = []
    for seed in (4, 4, 5):
        env.reset(seed)
        records.append(play_recording(env, 40, seed=0))
    assert_same_record(records[0], records[1])
    with pytest.raises(AssertionError):
        assert_same_record(records[0], records[2])


@pytest.mark.parametrize(("env_id", "least_starts"), [(BREAKOUT, 3), ("CartPole-v1", 30)])
def test_copies_and_games_start_differently(env_id: str, least_starts: int) -> None:
    """Breakout has only 4 distinct starts; CartPole starts anew every time, in every copy."""
    env = make_vector_env(env_id, 3, max_frames=30)
    env.reset(0)
    starts: list[list[bytes]] = [[], [], []]
    begins = np.ones(3, dtype=bool)
    for _ in range(200):
        for row in np.flatnonzero(begins & env.acting):
            starts[row].append(env.observations[row].tobytes())
        begins &= ~env.acting
        begins |= env.step(np.full(3, 1)).game_over
    assert starts[0] != starts[1] != starts[2] != starts[0]
    for row in range(3):
        assert len(set(starts[row][:12])) >= min(least_starts, 12)
    assert len({start for row in starts for start in row[:12]}) >= least_starts


@pytest.mark.parametrize("env_id", [BREAKOUT, "CartPole-v1"])
def test_inactive_environments_do_not_change(env_id: str) -> None:
    """Stepping a row only now and then equals stepping it alone all the time."""
    env, alone = make_vector_env(env_id, 3), make_vector_env(env_id, 3)
    env.reset(0)
    alone.reset(0)
    rng = np.random.default_rng(0)
    for _ in range(150):
        active = rng.random(3) < 0.6
        actions = rng.integers(0, 2, 3)
        before = env.observations.copy()
        result = env.step(actions, active)
        np.testing.assert_array_equal(env.observations[~active], before[~active])
        assert not result.rewards[~active].any()
        assert not result.game_over[~active].any()
        if active[0]:
            expected = alone.step(actions, np.array([True, False, False]))
            np.testing.assert_array_equal(env.observations[0], alone.observations[0])
            for mine, theirs in zip(vars(result).values(), vars(expected).values(), strict=True):
                assert mine[0] == theirs[0]


@pytest.mark.parametrize("env_id", [BREAKOUT, "CartPole-v1"])
@pytest.mark.parametrize("num_threads", [0, 1])
def test_steps_in_flight_together_are_those_taken_one_by_one(env_id: str, num_threads: int) -> None:
    """Two halves that take turns, one begun before the other is finished, see the same games."""
    env, plain = make_vector_env(env_id, 4, num_threads=num_threads), make_vector_env(env_id, 4)
    env.reset(0)
    plain.reset(0)
    halves = [np.array([True, False, True, False]), np.array([False, True, False, True])]
    rng = np.random.default_rng(0)
    env.begin_step(first := rng.integers(0, 2, 4), halves[0])
    expected = [plain.step(first, halves[0])]
    for turn in range(1, 200):
        actions, half = rng.integers(0, 2, 4), halves[turn % 2]
        env.begin_step(actions, half)
        result, wanted = env.finish_step(), expected.pop()
        other = halves[1 - turn % 2]
        for mine, theirs in zip(vars(result).values(), vars(wanted).values(), strict=True):
            np.testing.assert_array_equal(mine[other], theirs[other])
        np.testing.assert_array_equal(env.observations[other], plain.observations[other])
        np.testing.assert_array_equal(env.acting[other], plain.acting[other])
        assert not result.rewards[half].any() and not result.game_over[half].any()
        expected.append(plain.step(actions, half))
    env.finish_step()
    np.testing.assert_array_equal(env.observations, plain.observations)
    np.testing.assert_equal(env.get_state(), plain.get_state())


@pytest.mark.parametrize("env_id", [BREAKOUT, "CartPole-v1"])
def test_a_step_in_flight_is_guarded(env_id: str) -> None:
    env = make_vector_env(env_id, 2)
    env.reset(0)
    with pytest.raises(ValueError, match="without begin_step"):
        env.finish_step()
    env.begin_step(np.zeros(2, dtype=int), np.array([True, False]))
    with pytest.raises(ValueError, match="being stepped"):
        env.begin_step(np.zeros(2, dtype=int))
    with pytest.raises(ValueError, match="before get_state"):
        env.get_state()
    env.finish_step()
    env.get_state()


def test_truncated_game_reports_its_return_and_length() -> None:
    env = make_vector_env(BREAKOUT, 1, max_frames=400)
    env.reset(0)
    rng = np.random.default_rng(0)
    score, length = 0.0, 0
    for _ in range(400):
        was_acting = env.acting[0]
        result = env.step(rng.integers(0, 4, 1))
        score += float(result.rewards[0])
        length += int(was_acting)
        if result.game_over[0]:
            break
    assert result.truncated[0] and not result.terminated[0]
    assert result.game_returns[0] == score
    assert result.game_lengths[0] == length < 100
    assert env.step(np.zeros(1, dtype=int)).game_lengths[0] == 0


def test_gym_truncation_and_no_fake_transitions() -> None:
    """CartPole pays 1 per transition: returns equal lengths; a limit of 9 steps truncates."""
    env = make_vector_env("CartPole-v1", 4, max_frames=9)
    env.reset(0)
    assert env.acting.all() and env.observations.dtype == np.float32
    reference = gymnasium.make("CartPole-v1")
    ended = terminated = 0
    for action in np.random.default_rng(0).integers(0, 2, (300, 4)):
        before = env.observations.copy()
        result = env.step(action)
        for row in np.flatnonzero(~result.game_over):
            reference.reset()
            reference.unwrapped.state = before[row]
            after = reference.step(int(action[row]))[0]
            np.testing.assert_allclose(env.observations[row], after, atol=1e-6)
        over = result.game_over
        np.testing.assert_array_equal(over, result.terminated | result.truncated)
        np.testing.assert_array_equal(result.game_returns, result.game_lengths)
        assert (result.game_lengths[result.truncated] == 9).all()
        assert (np.abs(env.observations[over]) <= 0.05).all()
        ended += int(over.sum())
        terminated += int(result.terminated.sum())
    assert 0 < terminated < ended


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Breakout-v5", r"unknown environment 'Breakout-v5'.*nearest: ALE/Breakout-v5"),
        ("BreakoutNoFrameskip-v5", "nearest: BreakoutNoFrameskip-v4"),
        ("CartPole", "nearest: CartPole-v1"),
        ("Breakout-v4", "unknown environment"),
        ("Pendulum-v1", "continuous actions: not supported yet"),
        ("FrozenLake-v1", "only flat Box spaces fit"),
        ("", "unknown environment"),
    ],
)
def test_unusable_environments_are_explained(env_id: str, message: str) -> None:
    with pytest.raises(EnvironmentConfigError, match=message) as raised:
        make_vector_env(env_id, 1)
    assert "\n" not in str(raised.value)


def test_wrong_arguments_are_refused() -> None:
    for arguments in ({"num_envs": 0}, {"num_envs": 1, "num_threads": -1}):
        with pytest.raises(EnvironmentConfigError):
            make_vector_env(BREAKOUT, **arguments)
    with pytest.raises(EnvironmentConfigError):
        make_vector_env(BREAKOUT, 1, max_frames=0)
    env = make_vector_env("CartPole-v1", 2)
    with pytest.raises(ValueError, match="reset"):
        env.step(np.zeros(2, dtype=int))
    env.reset(0)
    for actions in (np.zeros(3, dtype=int), np.zeros(2), np.array([0, 2]), np.array([-1, 0])):
        with pytest.raises(ValueError, match="actions must be"):
            env.step(actions)
    with pytest.raises(ValueError, match="active must be"):
        env.step(np.zeros(2, dtype=int), active=np.ones(2))


def test_specs() -> None:
    breakout = environment_spec(BREAKOUT)
    assert (breakout.num_actions, breakout.observation_shape) == (4, (4, 84, 84))
    assert breakout.is_atari and breakout.observation_dtype == "uint8"
    cartpole = environment_spec("CartPole-v1")
    assert (cartpole.num_actions, cartpole.observation_shape) == (2, (4,))
    assert not cartpole.is_atari and cartpole.frame_stack == 1
