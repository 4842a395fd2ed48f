"""A drone that flies to a goal between obstacles: the navigation task of QuaRL, as an environment.

Krishnan et al. (arXiv 1910.01055, section 5.2) train DQN policies in Air Learning, a simulator of
drones, which nobody can install any more. This is the task without its pictures: the same arena of
25 x 25 m with 1 to 5 obstacles, drawn anew for each episode as is the goal, at most 750 steps, 25
actions (5 speeds, 5 yaw rates), and the reward

    r = 1000 a - 100 b - D_g - D_c - 1,    D_c = (V_max - V_now) t_max

a: at the goal; b: a collision, or out of steps; D_g: distance to the goal in m; V_max 2.5 m/s;
t_max the action's duration. The paper's factor delta of D_c is undefined; here it is 1. Height is
left out.

The drone is a disc of 0.3 m that takes a new speed at 2 m/s^2 and a new yaw rate at once. A policy
sees 22 numbers: 16 ranges of a lidar (every 22.5 degrees, up to 8 m, as shares of it), the inertial
unit (speed, yaw rate, acceleration, as shares of the largest), the goal's distance as a share of
the arena's diagonal, and sine and cosine of its direction.

A curriculum of farther goals is a training for each distance, `farthest`, from the last agent:
`qpd train dqn qpd/Navigation-v0 --env-kwargs farthest:8`, then `--from` that one.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

SIDE = 25.0  # m
MAX_STEPS = 750
SECONDS = 0.2  # an action's duration
SPEEDS = np.linspace(0.0, 2.5, 5)  # m/s
YAW_RATES = np.linspace(-1.5, 1.5, 5)  # rad/s
MAX_ACCELERATION = 2.0  # m/s^2
RADIUS = 0.3  # of the drone, m
AT_GOAL = 1.0  # m
NUM_RAYS, REACH = 16, 8.0  # m
_DIAGONAL = SIDE * 2**0.5
_NEAREST_GOAL = 2.0  # m
_SUBSTEPS = 2  # of 0.25 m at most: thinner than any obstacle


class Navigation(gymnasium.Env[NDArray[np.float32], np.int64]):
    """The arena; `farthest` m is the goal's largest distance, `reward_scale` multiplies rewards.

    `info["is_success"]` of the last step says whether the goal was reached.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": int(1 / SECONDS)}

    def __init__(
        self,
        farthest: float = _DIAGONAL,
        reward_scale: float = 0.01,
        render_mode: str | None = None,
    ) -> None:
        """Make the arena; raises ValueError for a distance below 2.5 m."""
        least = _NEAREST_GOAL + 0.5  # places are drawn until their distance fits
        if not farthest >= least:
            raise ValueError(f"farthest is {farthest}; expected metres, {least:g} or more")
        self.farthest, self.reward_scale = float(farthest), float(reward_scale)
        self.render_mode = render_mode
        self.action_space = gymnasium.spaces.Discrete(len(SPEEDS) * len(YAW_RATES))
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (NUM_RAYS + 6,), np.float32)
        self._boxes = np.empty((0, 4))  # x0, y0, x1, y1
        self._place, self._goal = np.zeros(2), np.zeros(2)
        self._heading = self._speed = self._yaw_rate = self._acceleration = 0.0
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Draw obstacles, drone and goal."""
        super().reset(seed=seed)
        rng = self.np_random
        while True:
            sizes = rng.uniform(2.0, 7.0, (rng.integers(1, 6), 2))
            corners = rng.uniform(0.0, 1.0, sizes.shape) * (SIDE - sizes)
            self._boxes = np.concatenate([corners, corners + sizes], 1)
            self._place = rng.uniform(1.0, SIDE - 1.0, 2)
            self._goal = rng.uniform(1.0, SIDE - 1.0, 2)
            is_near = _NEAREST_GOAL <= np.hypot(*(self._goal - self._place)) <= self.farthest
            # Neither may begin within 0.5 m of an obstacle.
            if is_near and min(self._clearance(self._place), self._clearance(self._goal)) > 0.8:
                break
        self._heading = rng.uniform(-np.pi, np.pi)
        self._speed = self._yaw_rate = self._acceleration = 0.0
        self._steps = 0
        return self._observation(), {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Fly for 0.2 s; `action` = 5 * speed + yaw rate, each 0 to 4."""
        speed, yaw = divmod(int(action), len(YAW_RATES))
        change = np.clip((SPEEDS[speed] - self._speed) / SECONDS, -MAX_ACCELERATION,
                         MAX_ACCELERATION)  # fmt: skip
        self._acceleration, self._yaw_rate = float(change), float(YAW_RATES[yaw])
        collided = False
        for _ in range(_SUBSTEPS):
            self._speed += self._acceleration * SECONDS / _SUBSTEPS
            self._heading += self._yaw_rate * SECONDS / _SUBSTEPS
            way = self._speed * SECONDS / _SUBSTEPS
            self._place = self._place + way * np.array(
                [np.cos(self._heading), np.sin(self._heading)]
            )
            collided = collided or self._clearance(self._place) < RADIUS
        self._steps += 1
        far = float(np.hypot(*(self._goal - self._place)))
        reached = far < AT_GOAL and not collided
        out_of_steps = self._steps >= MAX_STEPS and not reached
        failed = collided or out_of_steps
        reward = 1000.0 * reached - 100.0 * failed - far - (SPEEDS[-1] - self._speed) * SECONDS - 1
        ended = reached or collided
        info = {"is_success": reached} if ended or out_of_steps else {}
        # Out of steps is a failure of the task, with a penalty: no truncation to bootstrap from.
        return (
            self._observation(),
            self.reward_scale * float(reward),
            bool(ended or out_of_steps),
            False,
            info,
        )

    def render(self) -> NDArray[np.uint8]:
        """Draw the arena from above, uint8 `[300, 300, 3]`: obstacles, goal, drone and heading."""
        size, picture = 300, np.full((300, 300, 3), 255, np.uint8)
        scale = size / SIDE
        for x0, y0, x1, y1 in (self._boxes * scale).astype(int):
            picture[size - y1 : size - y0, x0:x1] = (110, 110, 110)
        columns, rows = np.meshgrid(np.arange(size), size - 1 - np.arange(size))
        ahead = self._place + 0.7 * np.array([np.cos(self._heading), np.sin(self._heading)])
        for place, radius, colour in (
            (self._goal, AT_GOAL, (60, 160, 80)),
            (self._place, 2 * RADIUS, (40, 90, 200)),
            (ahead, RADIUS, (220, 120, 30)),
        ):
            near = np.hypot(columns - place[0] * scale, rows - place[1] * scale) < radius * scale
            picture[near] = colour
        return picture

    def _clearance(self, place: NDArray[np.float64]) -> float:
        """Return the distance from a place to the nearest obstacle or wall, in m."""
        x, y = place
        boxes = self._boxes
        outside_x = np.maximum(np.maximum(boxes[:, 0] - x, x - boxes[:, 2]), 0.0)
        outside_y = np.maximum(np.maximum(boxes[:, 1] - y, y - boxes[:, 3]), 0.0)
        return float(min(np.hypot(outside_x, outside_y).min(), x, y, SIDE - x, SIDE - y))

    def _ranges(self) -> NDArray[np.float64]:
        """Return how far each ray sees, `[16]` in m, the first straight ahead."""
        angles = self._heading + np.arange(NUM_RAYS) * (2 * np.pi / NUM_RAYS)
        # Slabs: where a ray enters and leaves each box, walls from within.
        along = np.stack([np.cos(angles), np.sin(angles)], 1)
        along = np.where(np.abs(along) < 1e-9, 1e-9, along)[:, None, :]
        first = (self._boxes[None, :, :2] - self._place) / along
        last = (self._boxes[None, :, 2:] - self._place) / along
        enters = np.minimum(first, last).max(2)
        leaves = np.maximum(first, last).min(2)
        hits = np.where((enters <= leaves) & (enters > 0.0), enters, REACH).min(1)
        walls = np.maximum(-self._place / along[:, 0], (SIDE - self._place) / along[:, 0]).min(1)
        found: NDArray[np.float64] = np.minimum(np.minimum(hits, walls), REACH)
        return found

    def _observation(self) -> NDArray[np.float32]:
        to_goal = self._goal - self._place
        angle = np.arctan2(to_goal[1], to_goal[0]) - self._heading
        others = (
            self._speed / SPEEDS[-1],
            self._yaw_rate / YAW_RATES[-1],
            self._acceleration / MAX_ACCELERATION,
            np.hypot(*to_goal) / _DIAGONAL,
            np.sin(angle),
            np.cos(angle),
        )
        return np.concatenate([self._ranges() / REACH, others]).astype(np.float32).clip(-1.0, 1.0)
