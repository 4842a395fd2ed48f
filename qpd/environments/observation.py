"""Observations of gymnasium environments as SB3 shows them to a policy: flat float32, or images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from qpd.environments.errors import EnvironmentConfigError


class ShownObservations:
    """Turn an observation of one space into an array of `shape` and `dtype`.

    As SB3 does: boxes are flattened, bits kept, whole numbers become one-hot, the parts of a Dict
    follow each other (CombinedExtractor); images, uint8, get their channels first
    (VecTransposeImage). The images of a Dict come before its other parts, their channels one after
    the other; beside other parts their pixels are float32.
    """

    def __init__(self, space: gymnasium.Space[Any], name: str) -> None:
        """Raise EnvironmentConfigError, which names `name`, for a space that no policy sees."""
        self.dtype = "float32"
        self.parts: tuple[tuple[str, int], ...] = ()  # of a Dict, key and size of all but images
        self.forms: tuple[str, ...] = (_form(space),)  # of a Dict, one for each of its parts
        self.image_shape: tuple[int, ...] | None = None
        self._write: Callable[[Any, np.ndarray], None] = self._flat
        if isinstance(space, spaces.Discrete) and space.start == 0:
            self._offsets, size = np.zeros(1, np.int64), int(space.n)
            self._write = self._one_hot
        elif isinstance(space, spaces.MultiDiscrete) and not np.any(space.start):
            counts = space.nvec.ravel()
            self._offsets, size = np.cumsum(counts) - counts, int(counts.sum())
            self._write = self._one_hot
        elif isinstance(space, spaces.MultiBinary) or (
            isinstance(space, spaces.Box) and space.shape and not _is_image(space)
        ):
            size = int(np.prod(space.shape))
        elif isinstance(space, spaces.Box) and _is_image(space):
            self._write_image(space)
            return
        elif (
            isinstance(space, spaces.Dict)
            and len(space)
            and not any(isinstance(part, spaces.Dict) for part in space.values())
        ):
            parts = [(key, ShownObservations(space[key], name)) for key in shown_keys(space)]
            self.image_shape = _joined_images([part.image_shape for _, part in parts], name)
            sizes = [math.prod(part.shape) for _, part in parts]
            ends = np.cumsum(sizes).tolist()
            self._parts = [
                (key, part, slice(end - size, end))
                for (key, part), end, size in zip(parts, ends, sizes, strict=True)
            ]
            vectors = [(key, part) for key, part in parts if part.image_shape is None]
            self.parts = tuple((str(key), part.shape[0]) for key, part in vectors)
            self.forms = tuple(part.forms[0] for _, part in vectors)
            size = ends[-1]
            self._write = self._combined
            if not vectors:
                self.dtype = "uint8"
        else:
            raise EnvironmentConfigError(
                f"{name} has observations {space}: expected Box (images: "
                "uint8, 3 axes, 0 to 255), Discrete, MultiDiscrete and MultiBinary counted from 0, "
                "or a Dict of these"
            )
        # Of a Dict of images alone, one image.
        images = self.image_shape if self.dtype == "uint8" else None
        self.shape: tuple[int, ...] = images or (size,)

    def _write_image(self, space: spaces.Box) -> None:
        self.dtype = "uint8"
        # SB3's is_image_space_channels_first: the smallest axis is that of the channels.
        self._channels_first = int(np.argmin(space.shape)) == 0
        height, width, channels = space.shape
        self.shape = space.shape if self._channels_first else (channels, height, width)
        self.image_shape = self.shape
        self._write = self._image

    def stacked(self, count: int) -> tuple[int, ...]:
        """Return the shape of `count` observations, joined as SB3's VecFrameStack does."""
        return (count * self.shape[0], *self.shape[1:])

    def push(self, observation: Any, into: np.ndarray) -> None:
        """Write an observation last into a stack, of shape `stacked(k)`; older ones move ahead.

        So does SB3's VecFrameStack, from zeros when an episode begins.
        """
        count = self.shape[0]
        if len(into) > count:
            into[:-count] = into[count:].copy()
            into = into[-count:]
        self._write(observation, into)

    def _flat(self, observation: Any, into: np.ndarray) -> None:
        found = np.asarray(observation)
        if found.size != len(into):
            raise ValueError(f"an observation of shape {found.shape}, not {len(into)} numbers")
        into[...] = found if found.ndim == 1 else found.ravel()

    def _one_hot(self, observation: Any, into: np.ndarray) -> None:
        into[...] = 0
        into[self._offsets + np.asarray(observation, np.int64).ravel()] = 1

    def _image(self, observation: Any, into: np.ndarray) -> None:
        found = np.asarray(observation)
        found = found if self._channels_first else np.moveaxis(found, -1, 0)
        if found.shape != into.shape or found.dtype != np.uint8:
            raise ValueError(f"an image of shape {found.shape}, {found.dtype}, not {into.shape}")
        into[...] = found

    def _combined(self, observation: Any, into: np.ndarray) -> None:
        numbers = into.reshape(-1)  # a view, and so is each part
        for key, part, where in self._parts:
            part.push(observation[key], numbers[where].reshape(part.shape))


def _form(space: gymnasium.Space[Any]) -> str:
    """Say how numbers that are no vector become one; empty for vectors, images and a Dict."""
    if isinstance(space, spaces.Discrete):
        return "one-hot"
    if isinstance(space, spaces.MultiDiscrete):
        counts = "x".join(map(str, space.nvec.ravel()[:20]))
        return f"{space.nvec.size} one-hot numbers, {counts}"
    is_box = isinstance(space, spaces.Box) and not _is_image(space)
    if (is_box or isinstance(space, spaces.MultiBinary)) and len(space.shape or ()) > 1:
        return f"{'x'.join(map(str, space.shape or ()))}, row by row"
    return ""


def shown_keys(space: spaces.Dict) -> list[str]:
    """Return a Dict's keys in the order in which its parts are shown: images first."""
    return sorted(space.spaces, key=lambda key: not _is_image(space[key]))


def _joined_images(shapes: Sequence[tuple[int, ...] | None], name: str) -> tuple[int, ...] | None:
    """Return the shape of images whose channels follow each other; None where there is none."""
    found = [shape for shape in shapes if shape is not None]
    if len({shape[1:] for shape in found}) > 1:
        sizes = ", ".join("x".join(map(str, shape[1:])) for shape in found)
        raise EnvironmentConfigError(
            f"{name} has a Dict with images of unlike sizes ({sizes}): make them one size "
            "(gymnasium.wrappers.TransformObservation)"
        )
    return (sum(shape[0] for shape in found), *found[0][1:]) if found else None


def _is_image(space: gymnasium.Space[Any]) -> bool:
    # SB3's is_image_space: it gives a CnnPolicy these, and an MlpPolicy a 255th of them.
    if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.dtype != np.uint8:
        return False
    return bool(np.all(space.low == 0) and np.all(space.high == 255))
