"""The arena of the navigation task: geometry, dynamics, reward by hand, starts that repeat."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import qpd.environments.making  # noqa: F401 (registers it)
from qpd.environments.navigation import MAX_STEPS, NUM_RAYS, Navigation

STRAIGHT, STAND = 4 * 5 + 2, 2  # full speed, none; both without turning


def placed(
    place: tuple[float, float],
    goal: tuple[float, float],
    boxes: list[list[float]] | None = None,
    heading: float = 0.0,
) -> Navigation:
    env = Navigation(reward_scale=1.0)
    env.reset(seed=0)
    env._place, env._goal, env._heading = np.array(place), np.array(goal), heading
    env._boxes = np.array(boxes or [[0.0, 24.0, 1.0, 25.0]])
    return env


def test_gymnasium_accepts_it() -> None:
    check_env(gymnasium.make("qpd/Navigation-v0").unwrapped, skip_render_check=True)


def test_a_seed_gives_the_same_arena_and_episodes_differ() -> None:
    first, second = Navigation(), Navigation(farthest=30.0)
    assert (first.reset(seed=3)[0] == Navigation().reset(seed=3)[0]).all()
    again = first.reset()[0]
    assert (again != first.reset(seed=3)[0]).any()
    second.reset(seed=3)
    for _ in range(50):
        second.reset()
        distance = float(np.hypot(*(second._goal - second._place)))
        assert 2.0 <= distance <= 30.0 and 1 <= len(second._boxes) <= 5
        assert min(second._clearance(second._place), second._clearance(second._goal)) > 0.8


def test_farthest_bounds_the_goals_distance() -> None:
    env = Navigation(farthest=4.0)
    env.reset(seed=0)
    found = []
    for _ in range(50):
        env.reset()
        found.append(float(np.hypot(*(env._goal - env._place))))
    assert 2.0 <= min(found) and max(found) <= 4.0
    with pytest.raises(ValueError, match="expected metres, 2.5 or more"):
        Navigation(farthest=2.0)
    Navigation(farthest=2.5).reset(seed=0)


def test_ranges_by_hand() -> None:
    # Looking east from (10, 10): an obstacle's side 3 m ahead, the south wall 10 m off, out of
    # reach; the obstacle behind begins 2 m to the west.
    env = placed((10.0, 10.0), (20.0, 10.0), [[13.0, 8.0, 15.0, 12.0], [5.0, 9.0, 8.0, 11.0]])
    ranges = env._ranges()
    assert ranges[0] == pytest.approx(3.0)
    assert ranges[NUM_RAYS // 2] == pytest.approx(2.0)
    assert ranges[NUM_RAYS // 4] == pytest.approx(8.0)  # north: 15 m, its reach is 8
    # 22.5 degrees left: x grows by 3 while y grows by 1.24, still within the side.
    assert ranges[1] == pytest.approx(3.0 / np.cos(np.pi / 8))
    env._place = np.array([1.0, 12.0])
    assert env._ranges()[NUM_RAYS // 2] == pytest.approx(1.0)  # the west wall


def test_it_speeds_up_and_the_reward_is_the_papers() -> None:
    env = placed((5.0, 5.0), (15.0, 5.0))
    # 2 m/s^2 for 0.2 s in two halves: 0.2, then 0.4 m/s; 0.02 + 0.04 m.
    seen, reward, ended, truncated, info = env.step(np.int64(STRAIGHT))
    assert env._place.tolist() == pytest.approx([5.06, 5.0])
    assert reward == pytest.approx(-(15.0 - 5.06) - (2.5 - 0.4) * 0.2 - 1.0)
    assert (ended, truncated, info) == (False, False, {})
    assert seen[NUM_RAYS : NUM_RAYS + 3].tolist() == pytest.approx([0.16, 0.0, 1.0])
    assert seen[-2:].tolist() == pytest.approx([0.0, 1.0])  # straight ahead


def test_the_goal_ends_it_and_so_does_a_wall() -> None:
    env = placed((5.0, 5.0), (6.0, 5.0))
    _, reward, ended, _, info = env.step(np.int64(STRAIGHT))
    assert ended and info == {"is_success": True} and reward > 990.0
    env = placed((24.65, 5.0), (5.0, 5.0))
    _, reward, ended, _, info = env.step(np.int64(STRAIGHT))
    assert ended and info == {"is_success": False} and reward < -100.0


def test_out_of_steps_is_a_failure() -> None:
    env = gymnasium.make("qpd/Navigation-v0", reward_scale=1.0)
    env.reset(seed=1)
    for step in range(MAX_STEPS):
        _, reward, ended, _, info = env.step(np.int64(STAND))
        assert ended == (step == MAX_STEPS - 1)
    assert info["is_success"] is False and float(reward) < -100.0


def test_a_picture_shows_goal_and_obstacles() -> None:
    env = placed((5.0, 5.0), (15.0, 5.0), [[10.0, 15.0, 15.0, 20.0]])
    picture = env.render()
    assert picture.shape == (300, 300, 3)
    assert picture[300 - 60, 180].tolist() == [60, 160, 80]
    assert picture[300 - 12 * 17, 12 * 12].tolist() == [110, 110, 110]
