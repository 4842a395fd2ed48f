"""Environments of a user's own, registered when this module is imported."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from qpd.errors.termination import Terminated

MODULE = "tests.environments.custom_environments"


class Countdown(gymnasium.Env[Any, Any]):
    """Shows a seeded walk and what the last action was; ends after 12 to 20 steps."""

    action_space: spaces.Space[Any] = spaces.Discrete(3)
    observation_space: spaces.Space[Any] = spaces.Box(-9, 9, (3,), np.float64)

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.walk = int(self.np_random.integers(12, 21)), 0.0
        return self.shown(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.left -= 1
        self.walk += self.scale * float(self.np_random.normal())
        return self.shown(action), self.walk, self.left == 0, False, {}

    def shown(self, action: Any) -> Any:
        return np.array([self.walk, self.left / 9, float(np.sum(action))])


class Levers(Countdown):
    action_space = spaces.MultiDiscrete([3, 2])
    observation_space = spaces.MultiDiscrete([22, 4])

    def shown(self, action: Any) -> Any:
        return np.array([self.left, np.sum(action)])


class Switches(Countdown):
    action_space = spaces.MultiBinary(3)
    observation_space = spaces.MultiBinary(4)

    def shown(self, action: Any) -> Any:
        return np.array([self.left % 2, *np.broadcast_to(action, 3)], np.int8)


class Arm(Countdown):
    """Actions and observations of two axes."""

    action_space = spaces.Box(np.array([[-1, 0], [-2, 1]], np.float32), np.float32(3))
    observation_space = spaces.Box(-9, 9, (2, 2), np.float32)

    def shown(self, action: Any) -> Any:
        return np.array([[self.left, 1], [2, np.sum(action)]], np.float32)


class Fine(Countdown):
    """Has bounds that float32 does not, which rounds them outward."""

    action_space = spaces.Box(-0.1, 0.1, (2,), np.float64)


class Room(Countdown):
    observation_space = spaces.Discrete(25)

    def shown(self, action: Any) -> Any:
        return self.left


class Grid(Countdown):
    """Observations of three axes that are no image."""

    observation_space = spaces.Box(-9, 9, (2, 3, 2), np.float32)


class Particular(Countdown):
    """Takes actions that are NumPy's numbers, and an argument that ale-py's games have, too."""

    def __init__(self, game: str = "walk") -> None:
        super().__init__()
        self.game = game

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.dtype == np.int64 and action.shape == ()
        return super().step(action.item())


class Unbounded(Countdown):
    action_space = spaces.Box(-np.inf, np.inf, (2,))


class Bounded(gymnasium.ActionWrapper[Any, Any, Any]):
    """Bounds where an environment has none."""

    action_space = spaces.Box(-2, 2, (2,))

    def action(self, action: Any) -> Any:
        return action


class Jittered(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Adds noise that no seed reaches."""

    def observation(self, observation: Any) -> Any:
        return observation + np.float32(random.random())


class Sensors(Countdown):
    """A Dict, whose keys gymnasium sorts."""

    observation_space = spaces.Dict(
        {
            "speed": spaces.Box(-9, 9, (1,)),
            "joint": spaces.Box(-9, 9, (3,)),
            "mode": spaces.Discrete(25),
            "on|off": spaces.MultiBinary(1),
        }
    )

    def shown(self, action: Any) -> Any:
        joint = np.float32([self.walk, 0, 1])
        return {
            "speed": joint[:1],
            "joint": joint,
            "mode": self.left,
            "on|off": np.ones(1, np.int8),
        }


class Unseeded(Countdown):
    """Draws from a generator that no seed reaches."""

    def shown(self, action: Any) -> Any:
        return np.array([random.random(), 0, 0])


class Broken(Countdown):
    """Fails in its fifth step, each in its own way, while the file `unless` is missing."""

    def __init__(self, how: str = "raises", unless: str = "/no/such/file", after: int = 5) -> None:
        super().__init__()
        if how == "is not made":
            raise SystemExit("no such\nport")
        self.how, self.unless, self.after, self.steps = how, Path(unless), after, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        shown, reward, *rest = super().step(action)
        if self.steps >= self.after and not self.unless.exists():
            if self.how == "raises":
                raise RuntimeError("the motor\nis hot")
            if self.how == "quits":
                raise SystemExit("the operator has gone")
            if self.how == "is terminated":
                raise Terminated(143)  # what the command line makes of SIGTERM
            if self.how == "exits":
                import os

                os._exit(3)
            shown = np.full(3, np.nan) if self.how == "nan" else shown
            shown = np.zeros(2) if self.how == "short" else shown
            reward = np.inf if self.how == "reward" else reward
        return shown, reward, *rest


class Doubled(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Twice what the environment shows, plus a number."""

    def __init__(self, env: gymnasium.Env[Any, Any], plus: float = 0.0) -> None:
        super().__init__(env)
        self.plus = plus

    def observation(self, observation: Any) -> Any:
        return 2 * observation + self.plus


class Chatty(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Prints at each reset, as Python does and as code in C does."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        print("a new game")
        os.write(1, b"in C\n")
        return super().reset(**options)


for environment in (Countdown, Levers, Switches, Arm, Room, Unbounded, Unseeded, Broken, Sensors,
                    Grid, Particular, Fine):  # fmt: skip
    gymnasium.register(f"{environment.__name__}-v0", environment)
