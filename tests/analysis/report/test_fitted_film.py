"""Films are reduced until they fit a page, and no further than that."""

from __future__ import annotations

import numpy as np
import pytest

from qpd.analysis.report import fitted_film as module
from qpd.analysis.report.fitted_film import fitted_film
from qpd.evaluation.filmed_game import FilmedGame
from tests.analysis.report.decoded_film import decode_frames

NOTHING = np.zeros((1, 1, 1))


def _game(frames: np.ndarray, rate: float) -> FilmedGame:
    return FilmedGame(frames, NOTHING, NOTHING, NOTHING, True, rate)


def test_a_film_that_fits_stays_as_it_is() -> None:
    frames = np.zeros((4, 240, 320, 3), np.uint8)
    frames[1:, 3, 5] = [250, 3, 17]
    film, stride = fitted_film(_game(frames, 100.0))
    assert stride == 1 and np.array_equal(decode_frames(film), frames)


@pytest.mark.parametrize(
    ("limit", "stride", "pictures", "size"),
    [
        (8_000, 2, 7, (120, 160)),
        (5_000, 4, 4, (120, 160)),
        (3_000, 4, 4, (60, 80)),
        (1, 4, 4, (30, 40)),
    ],
)
def test_noise_is_reduced_step_by_step(
    limit: int, stride: int, pictures: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirteen pictures at 100 a second, of which the last is the end: 0, 4, 8 and 12 may stay."""
    rng = np.random.default_rng(0)
    marks = rng.random((13, 120, 160, 1)) < 0.02  # each picture other dots than the last
    frames = np.where(marks, np.uint8(200), np.uint8(40)).repeat(3, axis=3)
    monkeypatch.setattr(module, "MAX_BYTES", limit)
    monkeypatch.setattr(module, "LEAST_WIDTH", 60)
    film, found = fitted_film(_game(frames, 100.0))
    assert (found, film["count"], (film["height"], film["width"])) == (stride, pictures, size)
    if size == (120, 160):
        assert np.array_equal(decode_frames(film), frames[::found])
