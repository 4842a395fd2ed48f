"""The GIF of the README: two films in one, side by side."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PIL import Image

from docs_build.side_by_side import BAR, GAP, SCALE, join, main, save


def film(colour: str, length: int) -> list[Image.Image]:
    return [Image.new("RGB", (40, 20), colour) for _ in range(length)]


def test_films_keep_their_sides_and_the_shorter_one_stops() -> None:
    frames = join([film("red", 2), film("blue", 3)], ["one", "two"])
    assert len(frames) == 3
    assert {frame.size for frame in frames} == {(2 * 40 * SCALE + GAP, BAR + 20 * SCALE)}
    for frame in frames:
        assert frame.getpixel((0, BAR)) == (255, 0, 0)
        assert frame.getpixel((40 * SCALE + GAP, BAR)) == (0, 0, 255)
        assert len(frame.crop((0, 0, 40 * SCALE, BAR)).getcolors() or []) > 1  # a label


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = film("black", 5)
    for number, frame in enumerate(frames):  # a ball that moves: Pillow merges equal frames
        frame.putpixel((number, 3), (255, 255, 255))
    for name in ("a.gif", "b.gif"):
        save(tmp_path / name, frames, 60)
    paths = [str(tmp_path / name) for name in ("a.gif", "b.gif", "both.gif")]
    monkeypatch.setattr(sys, "argv", ["x", *paths, "--labels", "a", "b", "--every", "2"])
    main()
    with Image.open(tmp_path / "both.gif") as joined:
        assert (joined.n_frames, joined.info["duration"]) == (3, 120)
