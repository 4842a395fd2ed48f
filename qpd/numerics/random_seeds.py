"""One seed for a run, one independent stream for each purpose."""

from __future__ import annotations

from typing import Literal

import numpy as np

Purpose = Literal["collection", "shuffle", "student", "validation", "evaluation", "calibration"]
_PURPOSES: tuple[Purpose, ...] = (
    "collection",
    "shuffle",
    "student",
    "validation",
    "evaluation",
    "calibration",
)


def _sequence(run_seed: int, purpose: Purpose) -> np.random.SeedSequence:
    return np.random.SeedSequence([run_seed, _PURPOSES.index(purpose)])


def generator(run_seed: int, purpose: Purpose) -> np.random.Generator:
    """A generator of its own for `purpose`."""
    return np.random.default_rng(_sequence(run_seed, purpose))


def seed_for(run_seed: int, purpose: Purpose) -> int:
    """A seed in [0, 2^30) for `purpose`: room for one more per environment below 2^31."""
    return int(_sequence(run_seed, purpose).generate_state(1)[0]) & (2**30 - 1)
