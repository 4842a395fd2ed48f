"""Frames come back as they were, up to 256 colours, and nearly so beyond."""

from __future__ import annotations

import base64
import zlib

import hypothesis.extra.numpy as arrays
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qpd.analysis.report.frame_codec import encode_frames
from tests.analysis.report.decoded_film import decode_frames

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.just(3))


@settings(max_examples=25, deadline=None)
@given(arrays.arrays(np.uint8, SHAPES))
def test_few_colours_come_back_exactly(frames: np.ndarray) -> None:
    assert np.array_equal(decode_frames(encode_frames(frames)), frames)


def test_the_bytes_are_what_the_docstring_says() -> None:
    # Two frames of two pixels: black, red; then red, red.
    black, red = [0, 0, 0], [255, 0, 16]
    encoded = encode_frames(np.array([[[black, red]], [[red, red]]], np.uint8))
    assert encoded["palette"] == ["#000000", "#ff0010"]
    assert (encoded["count"], encoded["height"], encoded["width"]) == (2, 1, 2)
    assert zlib.decompress(base64.b64decode(encoded["data"])) == bytes([0, 1, 1 ^ 0, 1 ^ 1])


def test_of_too_many_colours_the_frequent_stay_and_the_others_are_near() -> None:
    frames = np.zeros((2, 64, 64, 3), np.uint8)
    frames[0, :, :, 0], frames[0, :, :, 1] = np.indices((64, 64)) * 4  # 4,096 colours, once each
    frames[1] = [250, 251, 252]  # and one very often
    encoded = encode_frames(frames)
    back = decode_frames(encoded)
    assert len(encoded["palette"]) == 256
    assert np.array_equal(back[1], frames[1])
    palette = np.array([list(bytes.fromhex(colour[1:])) for colour in encoded["palette"]])
    wanted = np.abs(frames[0].astype(int)[:, :, None] - palette).astype(float)
    nearest = np.sqrt((wanted**2).sum(axis=3)).min(axis=2)
    lost = np.sqrt(((back[0].astype(float) - frames[0]) ** 2).sum(axis=2))
    np.testing.assert_allclose(lost, nearest)
