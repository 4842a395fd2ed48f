"""The inverse of `encode_frames`, in Python; a report's own decoder is JavaScript."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np


def decode_frames(encoded: dict[str, Any]) -> np.ndarray:
    """Return the frames of an encoded film, uint8 `[n, height, width, 3]`."""
    shape = (encoded["count"], encoded["height"], encoded["width"])
    packed = zlib.decompress(base64.b64decode(encoded["data"]))
    differences = np.frombuffer(packed, np.uint8).reshape(shape)
    indices = np.bitwise_xor.accumulate(differences, axis=0)
    palette = [bytes.fromhex(colour[1:]) for colour in encoded["palette"]]
    return np.frombuffer(b"".join(palette), np.uint8).reshape(-1, 3)[indices]
