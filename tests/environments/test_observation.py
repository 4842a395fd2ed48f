"""Observations are what Stable-Baselines3's own wrappers and extractors make of them."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import CombinedExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecTransposeImage

from qpd.environments.errors import EnvironmentConfigError
from qpd.environments.observation import ShownObservations

RGB = spaces.Box(0, 255, (40, 36, 3), np.uint8)
FIRST = spaces.Box(0, 255, (3, 40, 36), np.uint8)
KEYS = spaces.Dict(
    {
        "speed": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
        "gear": spaces.Discrete(3),
        "doors": spaces.MultiBinary(2),
        "wheels": spaces.MultiDiscrete([2, 4]),
    }
)


class Drawn(gymnasium.Env[Any, Any]):
    """Draws its observations; an episode has five steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        # A copy: two of these must not draw from one stream.
        self.observation_space = copy.deepcopy(space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(7)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.parametrize("space", [RGB, FIRST], ids=["channels last", "channels first"])
def test_images_are_stacked_as_sb3_stacks_them(space: spaces.Box) -> None:
    theirs: Any = VecFrameStack(DummyVecEnv([lambda: Drawn(space)]), 3)
    theirs = VecTransposeImage(theirs) if space is RGB else theirs
    ours, shown = Drawn(space), ShownObservations(space, "Drawn")
    seen = np.zeros(shown.stacked(3), shown.dtype)
    shown.push(ours.reset(seed=0)[0], seen)
    np.testing.assert_array_equal(seen, theirs.reset()[0])
    for _ in range(4):
        shown.push(ours.step(0)[0], seen)
        np.testing.assert_array_equal(seen, theirs.step(np.zeros(1, np.int64))[0][0])
    assert seen.any() and seen.dtype == np.uint8


def test_a_dict_is_what_the_combined_extractor_sees() -> None:
    shown, extractor = ShownObservations(KEYS, "Keys"), CombinedExtractor(KEYS)
    KEYS.seed(3)
    for _ in range(5):
        found = KEYS.sample()
        seen = np.full(shown.shape, 9.0, np.float32)
        shown.push(found, seen)
        batch = {key: torch.as_tensor(np.array(value)[None]) for key, value in found.items()}
        expected = extractor(preprocess_obs(batch, KEYS))[0]
        np.testing.assert_array_equal(seen, expected.numpy())


@pytest.mark.parametrize(
    ("space", "form"),
    [
        (spaces.Discrete(16), "one-hot"),
        (spaces.MultiDiscrete([3, 4]), "2 one-hot numbers, 3x4"),
        (spaces.Box(-1, 1, (2, 3)), "2x3, row by row"),
        (spaces.MultiBinary([2, 2]), "2x2, row by row"),
        (spaces.MultiBinary(5), ""),
        (spaces.Box(-1, 1, (3,)), ""),
        (RGB, ""),
    ],
)
def test_how_an_observation_becomes_a_vector_is_told(space: Any, form: str) -> None:
    assert ShownObservations(space, "Mine").forms == (form,)
    both = ShownObservations(spaces.Dict({"own": space, "speed": spaces.Box(-1, 1, (2,))}), "Mine")
    assert both.forms == (() if space is RGB else (form,)) + ("",)


def test_an_image_in_a_dict_comes_first_and_keeps_its_levels() -> None:
    space = spaces.Dict({"arm": KEYS["speed"], "camera": RGB, "gear": spaces.Discrete(3)})
    shown = ShownObservations(space, "Car")
    assert shown.parts == (("arm", 4), ("gear", 3)) and shown.image_shape == (3, 40, 36)
    space.seed(3)
    found = space.sample()
    seen = np.full(shown.shape, 9.0, np.float32)
    shown.push(found, seen)
    pixels = found["camera"].transpose(2, 0, 1).ravel()
    number = np.eye(3)[found["gear"]]
    np.testing.assert_array_equal(seen, np.concatenate([pixels, found["arm"].ravel(), number]))


@pytest.mark.parametrize("alone", [True, False])
def test_channels_of_several_images_follow_each_other(alone: bool) -> None:
    parts = {"a": RGB, "z": spaces.Box(0, 255, (1, 40, 36), np.uint8)}
    space = spaces.Dict(parts if alone else parts | {"speed": KEYS["speed"]})
    shown = ShownObservations(space, "Car")
    assert shown.image_shape == (4, 40, 36)
    space.seed(3)
    found = space.sample()
    images = np.concatenate([found["a"].transpose(2, 0, 1), found["z"]])
    seen = np.zeros(shown.shape, shown.dtype)
    shown.push(found, seen)
    assert shown.dtype == ("uint8" if alone else "float32")
    beside = [] if alone else found["speed"].ravel()
    np.testing.assert_array_equal(seen.ravel(), np.concatenate([images.ravel(), beside]))


def test_what_no_policy_here_sees_is_refused() -> None:
    with pytest.raises(EnvironmentConfigError, match="or a Dict of these"):
        ShownObservations(spaces.Dict({"car": KEYS, "camera": RGB}), "Car")
    rear = spaces.Box(0, 255, (36, 48, 1), np.uint8)
    with pytest.raises(EnvironmentConfigError, match=r"images of unlike sizes \(40x36, 36x48\)"):
        ShownObservations(spaces.Dict({"camera": RGB, "rear": rear, "speed": KEYS["speed"]}), "Car")
    with pytest.raises(ValueError, match=r"an image of shape \(3, 9, 9\)"):
        ShownObservations(RGB, "Car").push(
            np.zeros((9, 9, 3), np.uint8), np.zeros((3, 40, 36), np.uint8)
        )
