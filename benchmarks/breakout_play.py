"""Real Breakout play for the benchmarks that need frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from qpd.recipe.loading import load_recipe
from qpd.replay.play_stream import PlayStream
from qpd.teachers import Teacher, load_teacher

ENV_ID = "BreakoutNoFrameskip-v4"
RECIPE_MEMORY = 100_000  # transitions, as in the quickstart: holds early and late parts of games


def teacher_play(folder: Path, capacity: int, num_envs: int = 64) -> tuple[Teacher, PlayStream]:
    """Return the embedded teacher, and an empty memory of `capacity` transitions to fill."""
    overrides = [f"replay.capacity={capacity}", f"environment.num_envs={num_envs}"]
    # The quickstart's settings, so that numbers are those of what users run first.
    recipe = load_recipe("quickstart", overrides)
    teacher = load_teacher(recipe.teacher.source)
    return teacher, PlayStream(recipe, teacher, ENV_ID, folder / "replay.bin")


def stacked_observations(stream: PlayStream, most: int = 8192) -> np.ndarray:
    """Return the memory's observations as anyone would store them, uint8 `[n, 4, 84, 84]`.

    All of them, or `most` drawn at random.
    """
    rows = torch.from_numpy(stream.memory.transition_rows())
    if len(rows) > most:
        rows = torch.from_numpy(np.random.default_rng(0).choice(rows.numpy(), most, replace=False))
    # The memory keeps frames in 4x4 patches (space to depth), which this undoes.
    blocked = stream.memory.gather(rows).observations
    patches = blocked.view(len(rows), 4, 21, 21, 4, 4).transpose(3, 4)
    return np.ascontiguousarray(patches.reshape(len(rows), 4, 84, 84).numpy())
