"""What forward passes are timed on."""

from __future__ import annotations

import numpy as np
import torch

from qpd.bench.timed_observations import COUNT, breakout_frames, noise_frames

torch.set_num_threads(1)


def test_breakout_frames_are_real_play_and_always_the_same() -> None:
    frames = breakout_frames()
    assert frames.dtype == np.uint8 and frames.shape == (COUNT, 4, 84, 84)
    assert (frames == breakout_frames()).all()
    # No two alike, something moves within each, and most of the screen is black, as the game is:
    # the C kernels are fast there.
    assert len(np.unique(frames.reshape(COUNT, -1), axis=0)) == COUNT
    assert (frames[:, 0] != frames[:, 3]).any(axis=(1, 2)).all()
    assert 0.3 < (frames == 0).mean() < 0.95


def test_noise_has_no_patch_to_skip() -> None:
    patches = noise_frames().reshape(COUNT, 4, 21, 4, 21, 4).max(axis=(1, 3, 5))
    assert (patches > 0).all()
