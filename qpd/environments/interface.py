"""The contract of every vector environment in this package, and the errors it raises."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from qpd.actions import ActionSpace, Box
from qpd.environments.errors import EnvironmentConfigError, EnvironmentRunError

__all__ = [
    "EnvironmentConfigError",
    "EnvironmentRunError",
    "EnvironmentSpec",
    "State",
    "VectorEnvironment",
    "VectorStep",
]

FRAME_STACK = 4
FRAME_SIZE = 84

# Arrays alone: a checkpoint stores them as safetensors, and nothing of it is ever unpickled.
State = dict[str, np.ndarray]


@dataclass(frozen=True)
class EnvironmentSpec:
    """Sizes of observations and actions, which a network must fit.

    ``actions`` says nothing of what a policy's outputs mean: its own space does.
    ``observation_shape`` is (4, 84, 84) uint8 for Atari, elsewhere (d,) float32 or, of images,
    (channels, height, width) uint8. ``frame_stack`` is 4 for Atari and 1 elsewhere. ``parts`` are
    those of a Dict, without its images: key and size. ``forms`` say of each, or of the whole, how
    it becomes a vector: one-hot, row by row, or empty for one that is. ``image_shape`` is that of
    images, and of what vectors begin with, of a Dict that has images as well: their channels follow
    each other.
    """

    env_id: str
    actions: ActionSpace
    observation_shape: tuple[int, ...]
    observation_dtype: str
    is_atari: bool
    frame_stack: int
    parts: tuple[tuple[str, int], ...] = ()
    image_shape: tuple[int, ...] | None = None
    forms: tuple[str, ...] = ()

    @property
    def pixels(self) -> int:
        """Count the numbers at the beginning of a vector that are an image's levels."""
        is_vector = len(self.observation_shape) == 1
        return math.prod(self.image_shape) if is_vector and self.image_shape else 0

    def misfit(self, observation_shape: tuple[int, ...], actions: ActionSpace) -> str | None:
        """Say in what a policy with these sizes does not fit; None if it does."""
        own = self.observation_shape
        if observation_shape != own:
            said = f"sees observations of shape {observation_shape}, {self.env_id} gives {own}"
            times, rest = divmod(observation_shape[0], own[0])
            if observation_shape[1:] == own[1:] and times > 1 and rest == 0:
                said += f": {times} of them stacked (VecFrameStack)? Give --frame-stack {times}"
                said += " (environment.frame_stack)"
            elif len(own) == 1 and observation_shape == (own[0] + 1,):
                said += "; if its last number is the time that is left, give --wrapper "
                said += "(environment.wrappers) sb3_contrib.common.wrappers.TimeFeatureWrapper"
            return said
        if actions.differs_from(self.actions):
            return f"has {actions}, {self.env_id} has {self.actions}"
        return None


@dataclass(frozen=True)
class VectorStep:
    """The outcome of one vector step; every field has shape [num_envs].

    ``rewards`` float32: raw (unclipped), those of forced steps included.
    ``terminated``, ``truncated`` bool: of the episode in SB3's sense (on Atari a lost life
    terminates); always False where the step was forced, as no transition exists there.
    ``game_over`` bool: a whole game ended, in a forced step or not, truncation included.
    ``game_returns`` float64, ``game_lengths`` int64 (agent steps, i.e. transitions): of the
    game so far, forced steps' rewards included, before wrappers change them, as SB3's Monitor has
    them in the RL Zoo; final where ``game_over``.
    """

    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    game_over: NDArray[np.bool_]
    game_returns: NDArray[np.float64]
    game_lengths: NDArray[np.int64]


class VectorEnvironment(Protocol):
    """Several copies of one environment, stepped together; they reset themselves.

    ``observations``: what the policy sees now, uint8 [n, 4, 84, 84] or float32 [n, d]; owned
    by the environment, valid until the next step. Where ``acting`` is False its content is the
    last observation of the episode that ended (or, after a reset, not meaningful).
    ``acting`` bool [n]: False where the next step is forced (SB3's wrappers act): the policy's
    action is ignored there and the step is no transition.
    ``age`` int64 [n]: observations since the episode began, capped at frame_stack - 1: how
    many of the older frames are real.
    """

    spec: EnvironmentSpec
    num_envs: int
    observations: np.ndarray
    acting: NDArray[np.bool_]
    age: NDArray[np.int64]

    def reset(self, seed: int) -> None:
        """Start a new game everywhere; ``seed`` >= 0 decides all randomness from here on."""

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> VectorStep:
        """Step with ``actions`` ([n, ...]); only where ``active`` (bool [n]) if it is given.

        Inactive environments cost nothing and do not change; their fields in the result are
        0 and False, except the running ``game_returns`` and ``game_lengths``.
        Raises ValueError on wrong shapes and on actions that are not in the spec's space.
        """

    def begin_step(self, actions: np.ndarray, active: np.ndarray | None = None) -> None:
        """Set a step going and return; ``step`` is this and ``finish_step``.

        Other environments may be begun meanwhile. What belongs to one that is being stepped means
        nothing until its step is finished. Raises ValueError as ``step`` does, and where an
        environment is already being stepped.
        """

    def finish_step(self) -> VectorStep:
        """Wait for the step that was begun first; ValueError if there is none."""

    def get_state(self) -> State:
        """Return all that ``set_state`` needs, as plain numeric arrays (copies)."""

    def set_state(self, state: State) -> None:
        """Continue bit-identically from ``get_state``, also in a new object or process.

        Raises ValueError where the state does not fit this environment.
        """

    def close(self) -> None:
        """Release the emulators; the environment cannot be used any more."""


def checked_actions(
    actions: np.ndarray, needed: NDArray[np.bool_], space: ActionSpace
) -> np.ndarray:
    """Return ``actions`` [n, ...] in the space's dtype; ValueError if a needed one is not in it."""
    # Only what is `needed` must be inside: callers leave anything in rows that do not act.
    actions = np.asarray(actions)
    kinds = "iu" if space.dtype.kind == "i" else "f"
    if actions.shape != (*needed.shape, *space.shape) or actions.dtype.kind not in kinds:
        raise ValueError(
            f"actions must be {space.dtype} of shape {(*needed.shape, *space.shape)}, "
            f"got {actions.dtype} of shape {actions.shape}"
        )
    wrong = needed & space.outside(actions)
    if wrong.any():
        raise ValueError(f"actions must be in {space}, got {actions[wrong].tolist()}")
    if isinstance(space, Box):  # an agent's bounds are rounded to what its zip prints
        low, high = (each.reshape(space.shape) for each in space.bounds)
        actions = np.clip(actions, low, high)
    return actions.astype(space.dtype)


def checked_active(active: np.ndarray | None, num_envs: int) -> NDArray[np.bool_]:
    """Return the mask of environments to step, bool [n]; None means all of them."""
    if active is None:
        return np.ones(num_envs, dtype=np.bool_)
    active = np.asarray(active)
    if active.shape != (num_envs,) or active.dtype != np.bool_:
        raise ValueError(f"active must be bool of shape ({num_envs},), got {active.dtype}")
    return active


def check_state(state: State, expected: State) -> None:
    """Raise ValueError unless ``state`` has the names, shapes and dtypes of ``expected``.

    Arrays of free length are given by a first dimension of 0 in ``expected``.
    """
    if state.keys() != expected.keys():
        raise ValueError(f"environment state: names {sorted(state)}, not {sorted(expected)}")
    for name, like in expected.items():
        # `game_actions` grows with the game; all else has one shape for good.
        free = like.ndim > 0 and like.shape[0] == 0
        same = state[name].shape[1:] == like.shape[1:] if free else state[name].shape == like.shape
        if not same or state[name].dtype != like.dtype:
            raise ValueError(
                f"environment state: {name} is {state[name].dtype} {state[name].shape}, "
                f"not {like.dtype} {like.shape}: saved with another environment?"
            )
