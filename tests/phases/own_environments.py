"""Environments of a user's own module, registered with gymnasium when it is imported."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class _Shown(gymnasium.Env[Any, Any]):
    """Shows a number from 0 to 7 in each of ten steps, and pays for telling it."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self.pay(action)
        self.steps += 1
        return self.next(), float(reward), False, self.steps == 10, {}

    def next(self) -> Any:
        self.number = int(self.np_random.integers(8))
        return self.show()

    def show(self) -> Any:
        raise NotImplementedError

    def pay(self, action: Any) -> float:
        raise NotImplementedError


class Keys(_Shown):
    """A Dict of a vector and a number; two choices at once."""

    observation_space = spaces.Dict(
        {"b": spaces.Discrete(8), "a": spaces.Box(-1.0, 1.0, (3,), np.float32)}
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def show(self) -> Any:
        return {"a": np.full(3, self.number / 8, np.float32), "b": self.number}

    def pay(self, action: Any) -> float:
        return float(action[0] == (self.number >= 4)) + float(action[1] == self.number % 3)


class Rgb(_Shown):
    """An RGB image, channels last, not square."""

    observation_space = spaces.Box(0, 255, (40, 48, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def show(self) -> Any:
        image = np.zeros((40, 48, 3), np.uint8)
        image[:, 6 * self.number : 6 * self.number + 6, self.number % 3] = 200
        return image

    def pay(self, action: Any) -> float:
        return float(action == (self.number >= 4))


class Scalar(Rgb):
    """An action that is a number, without an axis."""

    action_space = spaces.Box(-1.0, 1.0, ())


class Count(Rgb):
    """A whole number, and an action that may lie between."""

    observation_space = spaces.Discrete(8)
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def show(self) -> Any:
        return self.number

    def pay(self, action: Any) -> float:
        return float((action[0] > 0) == (self.number >= 4))


class Cameras(_Shown):
    """Four cameras with the shape of Atari's stack of frames; each shows the number elsewhere."""

    observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = spaces.Box(np.float32([-1]), np.float32([1]))

    def show(self) -> Any:
        images = np.zeros((4, 84, 84), np.uint8)
        for camera, image in enumerate(images):
            image[10 * self.number : 10 * self.number + 9, 20 * camera :] = 50 * (camera + 1)
        return images

    def pay(self, action: Any) -> float:
        return -abs(float(action[0]) - self.number / 7)


class Camera(_Shown):
    """An RGB image, channels last, between a vector and a number; pays for knowing all three."""

    observation_space = spaces.Dict(
        {
            "a": spaces.Box(-3.0, 3.0, (2,), np.float32),
            "camera": spaces.Box(0, 255, (40, 48, 3), np.uint8),
            "gear": spaces.Discrete(3),
        }
    )
    action_space = spaces.Discrete(2)

    def show(self) -> Any:
        image = np.zeros((40, 48, 3), np.uint8)
        image[:, 6 * self.number : 6 * self.number + 6, self.number % 3] = 200
        self.sign = float(self.np_random.choice([-1.0, 1.0]))
        return {"a": np.float32([self.sign, 0.5]), "camera": image, "gear": self.number % 3}

    def pay(self, action: Any) -> float:
        return float(action == ((self.number >= 4) == (self.sign > 0)))


class Wind(_Shown):
    """A Dict whose keys are in no alphabetical order."""

    observation_space = spaces.Dict(
        [("wind", spaces.Box(-9.0, 9.0, (2,), np.float32)), ("arm", spaces.Box(-1.0, 1.0, (3,)))]
    )
    action_space = spaces.Discrete(2)

    def show(self) -> Any:
        arm = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return {"wind": np.float32([self.number, -self.number]), "arm": arm}

    def pay(self, action: Any) -> float:
        return float(action == (self.number >= 4))


class Stereo(_Shown):
    """Two images of different channels, and nothing else."""

    observation_space = spaces.Dict(
        {
            "left": spaces.Box(0, 255, (40, 48, 3), np.uint8),
            "right": spaces.Box(0, 255, (40, 48, 1), np.uint8),
        }
    )
    action_space = spaces.Discrete(2)

    def show(self) -> Any:
        left, right = np.zeros((40, 48, 3), np.uint8), np.zeros((40, 48, 1), np.uint8)
        left[:, 6 * self.number : 6 * self.number + 6, self.number % 3] = 200
        right[:, 5 * self.number : 5 * self.number + 5] = 90
        return {"left": left, "right": right}

    def pay(self, action: Any) -> float:
        return float(action == (self.number >= 4))


class Aim(_Shown):
    """Bits in, two torques of unlike bounds out."""

    observation_space = spaces.MultiBinary(3)
    action_space = spaces.Box(np.float32([-2, 0]), np.float32([2, 5]))

    def show(self) -> Any:
        return np.array([self.number >> bit & 1 for bit in range(3)], np.int8)

    def pay(self, action: Any) -> float:
        return -abs(float(action[0]) - self.number / 4 + 1) - abs(float(action[1]) - 2)


class Matrix(_Shown):
    """Nine numbers in a square."""

    observation_space = spaces.Box(-1.0, 8.0, (3, 3), np.float32)
    action_space = spaces.Discrete(2)

    def show(self) -> Any:
        return np.full((3, 3), self.number, np.float32)

    def pay(self, action: Any) -> float:
        return float(action == (self.number >= 4))


for kind in (Keys, Rgb, Scalar, Count, Cameras, Camera, Stereo, Wind, Aim, Matrix):
    gymnasium.register(f"{kind.__name__}-v0", kind)
