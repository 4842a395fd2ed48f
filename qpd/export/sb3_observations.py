"""Make an exported Stable-Baselines3 agent's spaces, and golden vectors in them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from qpd.environments.action_spaces import actions_of, space_of
from qpd.environments.errors import EnvironmentConfigError
from qpd.environments.making import make_one
from qpd.environments.observation import ShownObservations
from qpd.export.bundle import ExportError, ExportSource, GoldenVectors, golden_vectors
from qpd.student_files.origin import student_environment

Space = gymnasium.Space[Any]


def observation_space(source: ExportSource) -> Space:
    """Return the environment's own space, in its wrappers and stacked, if it is known here.

    SB3 compares it with that of the environment that a user passes to `load`. Where the environment
    cannot be made here, or shows something else than the student reads, it is what the student
    reads: a flat Box of float32, or images of uint8. Raises ExportError for a Dict, and for what
    is no vector.
    """
    shape = source.student.architecture.observation_shape
    is_image, found = source.student.architecture.is_image, None
    try:
        found = None if source.student.architecture.stacks_frames else _shown_space(source)
        fits = found is not None and ShownObservations(found, source.name).shape == shape
    except EnvironmentConfigError as error:
        # A flat Box in place of a Dict, or of whole numbers, could not be played.
        if source.about.get("features") or source.about.get("feature_forms"):
            what = "a Dict" if source.about.get("features") else "no flat vector"
            raise ExportError(
                f"{source.name}: its observations are {what}, which only its environment tells: "
                f"{error}"
            ) from error
        fits = False
    if found is not None and fits and (not is_image or isinstance(found, spaces.Dict)):
        return found
    if is_image:
        return spaces.Box(0, 255, shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def action_space(source: ExportSource) -> Space:
    """Return the environment's own space of actions if it is known here, else one of the same.

    Its dtype, which SB3 compares as well, is in no student's file.
    """
    actions = source.student.actions
    with suppress(EnvironmentConfigError):
        env = make_one(student_environment(source.about))
        found = env.action_space
        env.close()
        if not actions_of(found, source.name).differs_from(actions):
            return found
    return space_of(actions)


def golden_in_space(
    source: ExportSource, golden: GoldenVectors, space: Space
) -> tuple[GoldenVectors, dict[str, np.ndarray]]:
    """Return golden vectors, and arrays with their observations as `space` has them.

    Boxes hold the given ones. One-hot numbers and the parts of a Dict must be valid ones, so that
    other observations, drawn from the space, take the place of the given. The arrays are named
    `observations`, or `observations.KEY` for each part of a Dict.
    """
    count = len(golden.observations)
    if isinstance(space, spaces.Box):
        return golden, {"observations": golden.observations.reshape(count, *space.shape)}
    space.seed(0)
    drawn: list[Any] = [space.sample() for _ in range(count)]
    shown = ShownObservations(space, source.name)
    flat = np.zeros((count, *shown.shape), shown.dtype)
    for observation, row in zip(drawn, flat, strict=True):
        shown.push(observation, row)
    arrays = {"observations": np.array(drawn)}
    if isinstance(space, spaces.Dict):
        arrays = {
            f"observations.{key}": np.stack([observation[key] for observation in drawn])
            for key in space.spaces
        }
    return golden_vectors(source.student, observations=flat), arrays


def _channels_first(space: Space) -> Space:
    """Return a Dict whose images have their channels first, as SB3's VecTransposeImage shows it."""
    from stable_baselines3.common.preprocessing import (
        is_image_space,
        is_image_space_channels_first,
    )
    from stable_baselines3.common.vec_env import VecTransposeImage

    if not isinstance(space, spaces.Dict):
        return space
    # A list of pairs: of a mapping gymnasium sorts the keys, and features would change places.
    parts = {
        key: VecTransposeImage.transpose_space(part)
        if isinstance(part, spaces.Box)
        and is_image_space(part)
        and not is_image_space_channels_first(part)
        else part
        for key, part in space.spaces.items()
    }
    return spaces.Dict(list(parts.items()))


def _shown_space(source: ExportSource) -> Space:
    from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

    environment = student_environment(source.about)
    env = make_one(environment)
    found = env.observation_space
    env.close()
    if environment.frame_stack == 1:
        return _channels_first(found)
    if not isinstance(found, spaces.Box):  # SB3 stacks each part of a Dict, QPD their sequence
        raise EnvironmentConfigError(f"{environment}: stacks no Box")
    return StackedObservations(1, environment.frame_stack, found).stacked_observation_space
