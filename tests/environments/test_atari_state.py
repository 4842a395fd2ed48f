"""An environment's state brings back its games exactly, here and in another process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from qpd.environments.registry import make_vector_env
from tests.environments.environment_record import assert_same_record, play_recording

BREAKOUT = "BreakoutNoFrameskip-v4"


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
from qpd.environments.registry import make_vector_env
sys.path.insert(0, "tests")
from tests.environments.environment_record import play_recording
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
    root = Path(__file__).parents[2]
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
    with pytest.raises(ValueError, match="different max_frames"):
        make_vector_env(BREAKOUT, 1, max_frames=99).set_state(state)
    with pytest.raises(ValueError, match="another environment"):
        make_vector_env("CartPole-v1", 1).set_state(make_other_cartpole_state())


def make_other_cartpole_state() -> dict[str, np.ndarray]:
    env = make_vector_env("CartPole-v1", 2)
    env.reset(0)
    return env.get_state()
