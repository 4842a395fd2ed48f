"""The paper's seven student sizes (its Table 3), MLP sizes, and how a name becomes a network."""

from __future__ import annotations

import re

from qpd.students.architecture import StudentArchitecture

# size -> (conv1, conv2, conv3, linear); parameters for 4 actions run from 35,796 to 3,335,364.
SIZE_GRID: dict[str, tuple[tuple[int, int, int], int]] = {
    "XXS": ((16, 16, 16), 32),
    "XS": ((16, 16, 16), 64),
    "S": ((16, 16, 16), 128),
    "M": ((16, 32, 32), 256),
    "L": ((32, 64, 64), 256),
    "XL": ((32, 64, 64), 512),
    "XXL": ((64, 64, 64), 1024),
}
_MLP_SIZE = re.compile(r"mlp((?:-[1-9]\d*)+)")


def architecture_for(
    size: str,
    observation_shape: tuple[int, ...],
    num_outputs: int,
    activation: str = "relu",
    stacks_frames: bool | None = None,
    image_shape: tuple[int, ...] | None = None,
) -> StudentArchitecture:
    """Return the architecture named `size`: one of the grid, or `mlp-64-64` for two hidden layers.

    `stacks_frames` and `image_shape` are as in StudentArchitecture.
    Raises ValueError for an unknown name, or one that does not fit the observations.
    """
    if match := _MLP_SIZE.fullmatch(size):
        hidden = tuple(int(width) for width in match.group(1)[1:].split("-"))
        return StudentArchitecture(
            tuple(observation_shape), num_outputs, (), hidden, activation, image_shape=image_shape
        )
    if size not in SIZE_GRID:
        raise ValueError(f"unknown student size {size!r}: one of {', '.join(SIZE_GRID)}, mlp-64")
    conv_channels, linear = SIZE_GRID[size]
    shape = tuple(observation_shape)
    return StudentArchitecture(
        shape, num_outputs, conv_channels, (linear,), activation, stacks_frames, image_shape
    )
