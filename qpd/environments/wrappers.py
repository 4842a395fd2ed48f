"""Wrappers of environments: QPD's own, and which an agent's own files may name.

`TimeFeature` stands in for sb3_contrib's wrapper, so that agents of the RL Zoo play without it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from qpd.environments.errors import EnvironmentConfigError, one_line
from qpd.environments.named_modules import import_named
from qpd.environments.source import EnvironmentSource, Wrapper
from qpd.errors.termination import Terminated

Environment = gymnasium.Env[Any, Any]

TIME_FEATURE = "sb3_contrib.common.wrappers.TimeFeatureWrapper"
ZERO_CONTACT_FORCES = "qpd.environments.wrappers.ZeroContactForces"
# The names under which the RL Zoo's files have had it.
_TIME_FEATURES = (
    TIME_FEATURE,
    "sb3_contrib.common.wrappers.time_feature.TimeFeatureWrapper",
    "rl_zoo3.wrappers.TimeFeatureWrapper",
    "utils.wrappers.TimeFeatureWrapper",
)
# What a downloaded file may name: installed code that writes no file and imports nothing more.
_KNOWN = {
    "gymnasium.wrappers": (
        "ClipAction", "ClipReward", "DtypeObservation", "FilterObservation", "FlattenObservation",
        "FrameStackObservation", "MaxAndSkipObservation", "RescaleAction", "RescaleObservation",
        "ReshapeObservation", "TimeAwareObservation", "TimeLimit",
    ),
    "rl_zoo3.wrappers": (
        "ActionSmoothingWrapper", "DelayedRewardWrapper", "FrameSkip", "HistoryWrapper",
        "MaskVelocityWrapper",
    ),
    "stable_baselines3.common.atari_wrappers": ("ClipRewardEnv", "MaxAndSkipEnv"),
}  # fmt: skip


def importable(name: str) -> str:
    """Return the name by which a wrapper is imported, of one that the RL Zoo's files call else."""
    return TIME_FEATURE if name in _TIME_FEATURES else name


class Score(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sums an environment's own rewards, below an agent's wrappers.

    SB3's Monitor sits there in the RL Zoo: returns are those of rewards that no wrapper clips. In
    float64; gymnasium's RecordEpisodeStatistics sums in the rewards' own type, as float32.
    """

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._sum = 0.0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Forget what was not taken."""
        self._sum = 0.0
        return super().reset(**options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Add a step's reward."""
        found = super().step(action)
        self._sum += float(found[1])
        return found

    def take(self) -> float:
        """Return the sum since it was last taken."""
        taken, self._sum = self._sum, 0.0
        return taken


def score_of(env: Environment) -> Score | None:
    """Return the `Score` below an environment's wrappers; None where it has none."""
    while not isinstance(env, Score):
        if not isinstance(env, gymnasium.Wrapper):
            return None
        env = env.env
    return env


class TimeFeature(gymnasium.ObservationWrapper[Any, Any, Any]):
    """One more input, the share of an episode's steps that is left: 1 - t/T.

    `limit` is T, the environment's own limit of steps whatever cuts its games off here; without
    one it is `max_steps`. In `test_mode` the input is always 1.
    """

    def __init__(
        self,
        env: Environment,
        max_steps: int = 1000,
        test_mode: bool = False,
        *,
        limit: int | None = None,
    ) -> None:
        super().__init__(env)
        self._space = _flat_box(env, "TimeFeatureWrapper")
        self.observation_space = _longer(self._space, 0.0, 1.0, 1)
        self._limit = max_steps if limit is None else limit
        self._steps, self._test_mode = 0, test_mode

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin to count."""
        self._steps = 0
        return super().reset(**options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Count a step."""
        self._steps += 1
        return super().step(action)

    def observation(self, observation: Any) -> np.ndarray:
        """Append the share that is left, in the observation's dtype."""
        left = 1.0 if self._test_mode else 1 - self._steps / self._limit
        return np.append(observation, np.array(left, self._space.dtype))


class ZeroContactForces(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Ant's inputs and 84 zeros: what agents of Ant-v2 and -v3 saw of contact forces.

    They were 0 throughout, by an error in the simulator of the time. Where the environment shows
    real ones, as Humanoid-v4 does, `append=False` makes zeros of its last 84 inputs.
    """

    NUM_FORCES = 84  # 6 for each of 14 bodies

    def __init__(self, env: Environment, append: bool = True) -> None:
        super().__init__(env)
        space, self._append = _flat_box(env, "ZeroContactForces"), append
        if append:
            self.observation_space = _longer(space, -np.inf, np.inf, self.NUM_FORCES)
        elif space.shape[0] <= self.NUM_FORCES:
            raise EnvironmentConfigError(f"wrapper ZeroContactForces: {space} shows no forces")
        self._zeros = np.zeros(self.NUM_FORCES, space.dtype)

    def observation(self, observation: Any) -> np.ndarray:
        """Append the zeros, or put them in the place of forces."""
        seen = observation if self._append else observation[: -self.NUM_FORCES]
        return np.concatenate([seen, self._zeros])


class RebuiltWorld(gymnasium.Wrapper[Any, Any, Any, Any]):
    """BipedalWalker with a new physical world for each episode, as LunarLander has.

    A used one remembers earlier episodes in the order of its contacts: the last bits of an episode
    then depend on them, and it could not be repeated from its seed and actions.
    """

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Replace the world, and begin an episode."""
        walker: Any = self.unwrapped
        walker._destroy()
        walker.world = type(walker.world)()
        return self.env.reset(**options)


def repeatable(env: Environment) -> Environment:
    """Return `env`, whose episodes depend on their seeds and actions alone, where that is known."""
    module = type(env.unwrapped).__module__
    return RebuiltWorld(env) if module == "gymnasium.envs.box2d.bipedal_walker" else env


def wrapped(env: Environment, wrapper: Wrapper, limit: int | None) -> Environment:
    """Return `env` in a wrapper; `limit` is the environment's own limit of steps.

    Imports the wrapper's module. Raises EnvironmentConfigError.
    """
    try:
        if wrapper.name in _TIME_FEATURES:
            found: Environment = TimeFeature(env, **wrapper.kwargs, limit=limit)
        else:
            found = _wrapper_class(wrapper)(env, **wrapper.arguments)
    except EnvironmentConfigError:
        raise
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # of a user's own class: it may raise anything
        raise EnvironmentConfigError(
            f"wrapper {wrapper} cannot be applied: {one_line(error)}"
        ) from error
    if not isinstance(found, gymnasium.Env):
        raise EnvironmentConfigError(
            f"wrapper {wrapper.name} returned {type(found).__name__}, not a gymnasium environment"
        )
    return found


def is_known(wrapper: Wrapper) -> bool:
    """Tell whether an agent's own files may name this wrapper: harmless code of no stranger."""
    module, _, name = wrapper.name.rpartition(".")
    known = (*_TIME_FEATURES, ZERO_CONTACT_FORCES)
    return wrapper.name in known or name in _KNOWN.get(module, ())


def modules_to_name(environment: EnvironmentSource) -> list[str]:
    """Return the modules that QPD imports for an environment only if the user names them."""
    names = [environment.env_id.rpartition(":")[0]]
    names += [each.name.rpartition(".")[0] for each in environment.wrappers if not is_known(each)]
    return [name for name in dict.fromkeys(names) if name]


def _wrapper_class(wrapper: Wrapper) -> Any:
    module, _, attribute = wrapper.name.rpartition(".")
    place = f"wrapper {wrapper.name}"
    found = getattr(import_named(module, place, is_known=is_known(wrapper)), attribute, None)
    if found is None:
        raise EnvironmentConfigError(f"{place}: module {module} has no {attribute}")
    return found


def _flat_box(env: Environment, name: str) -> spaces.Box:
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise EnvironmentConfigError(f"wrapper {name} needs flat observations, not {space}")
    return space


def _longer(space: spaces.Box, low: float, high: float, count: int) -> spaces.Box:
    """Return the space with `count` more numbers, from `low` to `high`."""
    dtype: Any = space.dtype
    return spaces.Box(
        np.append(space.low, np.full(count, low, dtype)),
        np.append(space.high, np.full(count, high, dtype)),
        dtype=dtype,
    )
