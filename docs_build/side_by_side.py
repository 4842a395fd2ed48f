"""Join two GIFs of play into one, side by side, each under its label.

docs/figures/teacher-and-student.gif was made by:

    qpd evaluate embedded --episodes 1 --seed 1 --gif teacher.gif --gif-seconds 20
    qpd evaluate runs-reference/breakout-ppo-xxs --episodes 1 --seed 1 --gif student.gif \
        --gif-seconds 20
    python -m docs_build.side_by_side teacher.gif student.gif docs/figures/teacher-and-student.gif \
        --labels "teacher: 6.7 MB" "student: 38 KB"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageSequence

SCALE = 2
BAR = 36  # pixels above each game, for its label
GAP = 12  # pixels between the games
BACKGROUND = (32, 33, 36)  # the bar is part of the picture: readable on light and dark pages
FOREGROUND = (232, 234, 237)


def join(films: Sequence[list[Image.Image]], labels: Sequence[str]) -> list[Image.Image]:
    """Return the joined frames; a film that ends early keeps showing its last frame."""
    shown = []
    for number in range(max(map(len, films))):
        panels = [_enlarged(film[min(number, len(film) - 1)]) for film in films]
        width = sum(panel.width for panel in panels) + GAP * (len(panels) - 1)
        canvas = Image.new("RGB", (width, BAR + max(p.height for p in panels)), BACKGROUND)
        left = 0
        for panel, label in zip(panels, labels, strict=True):
            canvas.paste(panel, (left, BAR))
            middle = (left + panel.width // 2, BAR // 2)
            font = ImageFont.load_default(20)
            ImageDraw.Draw(canvas).text(middle, label, FOREGROUND, font, anchor="mm")
            left += panel.width + GAP
        shown.append(canvas)
    return shown


def save(path: Path, frames: Sequence[Image.Image], milliseconds: int) -> None:
    """Write `frames` as an endless GIF of 32 colours."""
    palette = frames[0].quantize(32, dither=Image.Dither.NONE)
    pictures = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0)


def _enlarged(frame: Image.Image) -> Image.Image:
    return frame.resize((frame.width * SCALE, frame.height * SCALE), Image.Resampling.NEAREST)


def main() -> None:
    """Join the GIFs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("left", type=Path)
    parser.add_argument("right", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--labels", nargs=2, required=True, metavar=("LEFT", "RIGHT"))
    parser.add_argument("--every", type=int, default=1, help="keep every Nth frame")
    arguments = parser.parse_args()
    films, milliseconds = [], 0
    for path in (arguments.left, arguments.right):
        with Image.open(path) as film:
            milliseconds = round(film.info["duration"])
            frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(film)]
        films.append(frames[:: arguments.every])
    save(arguments.output, join(films, arguments.labels), milliseconds * arguments.every)


if __name__ == "__main__":
    main()
