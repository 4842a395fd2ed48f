"""Advantages of played steps, for the reward term of phase 3 (GAE, Schulman et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PlayedStep:
    """One vector step of play, a row for each stream that acted.

    `streams` int64, `rewards` float, `values` float (the critic's, of the state acted in), `ended`
    bool (the episode was over after it) and `cut` bool (by a time limit alone), all `[rows]`.
    """

    streams: np.ndarray
    rewards: np.ndarray
    values: np.ndarray
    ended: np.ndarray
    cut: np.ndarray


def generalized_advantages(
    steps: Sequence[PlayedStep], num_streams: int, discount: float, gae_lambda: float
) -> list[np.ndarray]:
    """Compute GAE (Schulman et al. 2016, Eq. 16) for consecutive `steps`: float64 `[rows]` each.

    A stream's last step has no successor to bootstrap from, unless its episode ended there: its
    advantage is NaN. So is that of a step after which a time limit cut the episode: it could have
    gone on, from a state whose value nobody asked for.
    """
    # Streams act in some steps only (forced buttons are none), so a stream's next state need not be
    # in the next step: it is remembered per stream.
    following = np.full(num_streams, np.nan)  # the value of each stream's next state
    running = np.zeros(num_streams)  # its advantage
    backwards = []
    for step in reversed(steps):
        streams = step.streams
        bootstrap = np.where(step.ended, 0.0, discount * following[streams])
        bootstrap = np.where(step.cut, np.nan, bootstrap)
        delta = step.rewards + bootstrap - step.values
        carried = np.where(step.ended, 0.0, discount * gae_lambda * running[streams])
        advantages = delta + carried
        backwards.append(advantages)
        # A NaN marks one step as having no advantage; it must not spread to all the steps before
        # it.
        running[streams] = np.nan_to_num(advantages)
        following[streams] = step.values
    return backwards[::-1]
