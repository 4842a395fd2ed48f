"""One seed for a run, and an independent random stream for each purpose."""

from __future__ import annotations

from typing import Literal

import numpy as np

Purpose = Literal[
    "collection", "shuffle", "student", "validation", "evaluation", "calibration", "first_games"
]
# The position is part of the seed: append new purposes, never reorder, or every recorded run
# becomes irreproducible.
_PURPOSES: tuple[Purpose, ...] = (
    "collection",
    "shuffle",
    "student",
    "validation",
    "evaluation",
    "calibration",
    "first_games",
)


def _sequence(run_seed: int, purpose: Purpose) -> np.random.SeedSequence:
    return np.random.SeedSequence([run_seed, _PURPOSES.index(purpose)])


def generator(run_seed: int, purpose: Purpose) -> np.random.Generator:
    """Return the generator of `purpose`, independent of every other purpose's."""
    return np.random.default_rng(_sequence(run_seed, purpose))


def seed_for(run_seed: int, purpose: Purpose) -> int:
    """Return a seed in [0, 2^30) for `purpose`: adding an environment's number stays below 2^31."""
    return int(_sequence(run_seed, purpose).generate_state(1)[0]) & (2**30 - 1)
