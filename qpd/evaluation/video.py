"""A game as a GIF."""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image

from qpd.actions import ActingRule
from qpd.environments.policy import Policy
from qpd.environments.registry import EnvironmentConfigError
from qpd.environments.source import EnvironmentSource
from qpd.errors.codes import ErrorCode
from qpd.evaluation.decisions import Player
from qpd.evaluation.filmed_game import check_drawable, film_game
from qpd.files.atomic import replace_file

MAX_FRAMES_PER_SECOND = 25  # browsers slow faster GIFs down


def check_filmable(path: Path, env: str | EnvironmentSource) -> None:
    """Raise EnvironmentConfigError, before anything is played, if no film can be made."""
    if not path.parent.is_dir():
        raise EnvironmentConfigError(
            f"--gif {path}: there is no folder {path.parent}", ErrorCode.FILE_SYSTEM
        )
    if not os.access(path.parent, os.W_OK):  # before the games
        raise EnvironmentConfigError(
            f"--gif {path}: the folder {path.parent} cannot be written", ErrorCode.FILE_SYSTEM
        )
    if path.is_dir():
        raise EnvironmentConfigError(
            f"--gif {path}: is a folder; name a .gif file", ErrorCode.FILE_SYSTEM
        )
    if path.suffix.lower() != ".gif":
        raise EnvironmentConfigError(f"--gif {path}: name a .gif file", ErrorCode.COMMAND_LINE)
    check_drawable(env)


def record_gif(
    path: Path,
    policy: Policy,
    env: str | EnvironmentSource,
    rule: ActingRule,
    seed: int,
    seconds: float,
    max_frames: int | None = None,
) -> None:
    """Write the beginning of one game, at the speed of play.

    Raises EnvironmentConfigError where the environment cannot be rendered.
    """
    game = film_game([Player("", policy, rule)], env, seed, seconds, max_frames)
    # Pictures are left out rather than shown too slowly.
    rate = game.steps_per_second / game.stride
    stride = max(1, -(-round(rate) // MAX_FRAMES_PER_SECOND))
    images = [Image.fromarray(frame) for frame in game.frames[::stride]]
    # One palette for all frames: one each would let colours flicker, and cost bytes.
    palette = images[0].quantize(32, dither=Image.Dither.NONE)
    pictures = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    with replace_file(path) as file:
        pictures[0].save(
            file,
            format="GIF",
            save_all=True,
            append_images=pictures[1:],
            duration=round(1000 * stride / rate),
            loop=0,
        )
