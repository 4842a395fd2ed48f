"""Frames in few bytes: palette, differences, deflate; `player.js` has the decoder."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from PIL import Image

MAX_COLOURS = 256


def encode_frames(frames: np.ndarray) -> dict[str, Any]:
    """`frames` uint8 `[n, height, width, 3]` as plain data.

    `palette` lists up to 256 colours `#rrggbb`; `data` is base64 of deflated bytes: each frame's
    palette indices, row by row, XORed with those of the frame before. More than 256 colours are
    brought down to 256, which no Atari game needs.
    """
    indices, palette = _indexed(frames)
    differences = indices.copy()
    differences[1:] ^= indices[:-1]
    packed = zlib.compress(differences.tobytes(), 9)
    return {
        "count": len(frames),
        "height": frames.shape[1],
        "width": frames.shape[2],
        "palette": [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in palette.tolist()],
        "data": base64.b64encode(packed).decode("ascii"),
    }


def decode_frames(encoded: dict[str, Any]) -> np.ndarray:
    """The inverse of `encode_frames`: uint8 `[n, height, width, 3]`."""
    shape = (encoded["count"], encoded["height"], encoded["width"])
    packed = zlib.decompress(base64.b64decode(encoded["data"]))
    differences = np.frombuffer(packed, np.uint8).reshape(shape)
    indices = np.bitwise_xor.accumulate(differences, axis=0)
    palette = [bytes.fromhex(colour[1:]) for colour in encoded["palette"]]
    return np.frombuffer(b"".join(palette), np.uint8).reshape(-1, 3)[indices]


def _indexed(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Palette indices uint8 `[n, height, width]` and the palette uint8 `[colours, 3]`."""
    keys = frames.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    present = np.zeros(1 << 24, np.bool_)
    present[keys] = True
    colours = np.flatnonzero(present)
    if len(colours) > MAX_COLOURS:
        return _indexed(_fewer_colours(frames))
    place = np.zeros(1 << 24, np.uint8)
    place[colours] = np.arange(len(colours))
    palette = (colours[:, None] >> np.array([16, 8, 0])) & 255
    return place[keys], palette.astype(np.uint8)


def _fewer_colours(frames: np.ndarray) -> np.ndarray:
    """The nearest of 256 colours chosen from eight frames spread over the film."""
    chosen = frames[np.linspace(0, len(frames) - 1, 8).round().astype(int)]
    sheet = Image.fromarray(np.concatenate(list(chosen)))
    palette = sheet.quantize(MAX_COLOURS, dither=Image.Dither.NONE)
    pictures = (
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE).convert("RGB")
        for frame in frames
    )
    return np.stack([np.asarray(picture) for picture in pictures])
