"""Films that fit a page: pictures that change all over pack badly, and are reduced step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qpd.analysis.report.frame_codec import encode_frames
from qpd.evaluation.filmed_game import FilmedGame

MAX_BYTES = 1_000_000  # of a game; Atari's need a tenth
FEWEST_PICTURES = 25.0  # a second, below which play looks jerky
LEAST_WIDTH = 120  # pixels


def fitted_film(game: FilmedGame) -> tuple[dict[str, Any], int]:
    """Return the film as `encode_frames` does, and how many steps each picture stands for.

    The first of these that takes at most `MAX_BYTES`: as filmed, with every other picture, at half
    the size, in 4 bits for each of the three colours, at half the size again; or else the last.
    """
    for frames, stride in _lighter(game):
        fitted = encode_frames(frames), stride
        if len(fitted[0]["data"]) <= MAX_BYTES:
            break
    return fitted


def _lighter(game: FilmedGame) -> Iterator[tuple[np.ndarray, int]]:
    frames, stride = game.frames, game.stride
    yield frames, stride
    while game.steps_per_second / stride >= 2 * FEWEST_PICTURES:
        # The last picture is the end, whatever the stride.
        frames, stride = np.concatenate([frames[:-1:2], frames[-1:]]), 2 * stride
        yield frames, stride
    if frames.shape[2] >= 2 * LEAST_WIDTH:
        frames = _halved(frames)
        yield frames, stride
    frames = frames & 0xF0 | 0x08
    yield frames, stride
    if frames.shape[2] >= LEAST_WIDTH:
        yield _halved(frames) & 0xF0 | 0x08, stride


def _halved(frames: np.ndarray) -> np.ndarray:
    """Return the means of 2x2 blocks, uint8; an odd last row or column is left out."""
    height, width = (size // 2 for size in frames.shape[1:3])
    even = frames[:, : 2 * height, : 2 * width].astype(np.uint16)
    blocks = even.reshape(len(frames), height, 2, width, 2, 3)
    return ((blocks.sum(axis=(2, 4)) + 2) // 4).astype(np.uint8)
