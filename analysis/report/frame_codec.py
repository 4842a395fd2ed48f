"""A compact encoding of frames: palette, differences, deflate; `player.js` decodes it."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

MAX_COLOURS = 256


def encode_frames(frames: np.ndarray) -> dict[str, Any]:
    """Encode `frames`, uint8 `[n, height, width, 3]`, as plain data.

    `palette` lists up to 256 colours `#rrggbb`; `data` is base64 of deflated bytes: each frame's
    palette indices, row by row, XORed with those of the frame before. Beyond 256 colours, which no
    Atari game has, the most frequent stay and the others become the nearest of them.
    """
    indices, palette = _indexed(frames)
    differences = indices.copy()
    # Little moves between two frames, so the XOR is nearly all zeros, which deflate packs away.
    differences[1:] ^= indices[:-1]
    packed = zlib.compress(differences.tobytes(), 9)
    return {
        "count": len(frames),
        "height": frames.shape[1],
        "width": frames.shape[2],
        "palette": [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in palette.tolist()],
        "data": base64.b64encode(packed).decode("ascii"),
    }


def _indexed(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return palette indices uint8 `[n, height, width]` and the palette uint8 `[colours, 3]`."""
    # A colour as one 24-bit number: counting 2^24 bins is far faster than np.unique over rows.
    keys = frames.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    counts = np.bincount(keys.reshape(-1), minlength=1 << 24)
    colours = np.flatnonzero(counts)
    kept = np.sort(colours[np.argsort(-counts[colours], kind="stable")][:MAX_COLOURS])
    place = np.zeros(1 << 24, np.uint8)
    # In parts, as the distances are [colours, 256, 3] and a rendered frame may have many thousand
    # colours.
    for some in np.array_split(colours, -(-len(colours) // 4096)):
        distances = ((_rgb(some)[:, None] - _rgb(kept)[None]) ** 2).sum(axis=2)
        place[some] = distances.argmin(axis=1)
    return place[keys], _rgb(kept).astype(np.uint8)


def _rgb(keys: np.ndarray) -> np.ndarray:
    """Split 24-bit colours `[n]` into red, green and blue, int32 `[n, 3]`."""
    return ((keys[:, None] >> np.array([16, 8, 0])) & 255).astype(np.int32)
