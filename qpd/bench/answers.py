"""Check a runtime's answers to the golden observations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from qpd.actions import ActingRule, ActionSpace, Box, Discrete, MultiBinary, MultiDiscrete
from qpd.bench.device_record import GoldenCheck

# What SB3's networks of these return has been through the tanh already.
_AFTER_TANH = ("td3", "ddpg", "ars")


@dataclass(frozen=True)
class Wanted:
    """The right answers: outputs (or labels) float `[n, ...]` of `actions`, or actions themselves.

    `as_found` turns what a worker returns for it into actions, where that is something else.
    """

    values: np.ndarray
    actions: ActionSpace
    are_actions: bool = False
    takes_actions: bool = False
    as_found: Callable[[np.ndarray], np.ndarray] | None = None

    def as_actions(self, as_found: Callable[[np.ndarray], np.ndarray] | None = None) -> Wanted:
        """Return the same for a worker that returns actions, or what `as_found` makes actions."""
        return replace(self, takes_actions=True, as_found=as_found)

    def compared(self, found: np.ndarray) -> GoldenCheck:
        """Compare a worker's answers with these."""
        if self.as_found is not None:
            found = self.as_found(found)
        if self.are_actions:
            return _compare_numbers(found, self.values, self.actions)
        compared = compare_actions if self.takes_actions else compare
        return compared(found, self.values, self.actions)


def compare(
    found: np.ndarray, wanted: np.ndarray, actions: ActionSpace | None = None
) -> GoldenCheck:
    """Compare outputs, both float `[n, numbers]`; the error is relative to `wanted`'s spread.

    Of `actions`, which are one choice among the numbers by default.
    """
    actions = actions or Discrete(wanted.shape[1])
    spread = float(np.ptp(wanted)) or 1.0
    error = float(np.abs(found - wanted).max()) / spread
    same = int(actions.same(_greedy(found, actions), _greedy(wanted, actions)).sum())
    return _check(len(wanted), same, error)


def compare_actions(
    taken: np.ndarray, wanted: np.ndarray, actions: ActionSpace | None = None
) -> GoldenCheck:
    """Compare actions `[n, ...]` with outputs, float `[n, numbers]`.

    The error is what the chosen action's logit lacks to the largest, relative to `wanted`'s spread:
    of two nearly equal logits fp32 may choose the other. Continuous actions differ by a share of
    their range.
    """
    actions = actions or Discrete(wanted.shape[1])
    best = _greedy(wanted, actions)
    if isinstance(actions, Box):
        return _compare_numbers(taken, best, actions)
    chosen = taken.astype(np.int64).reshape(best.shape)
    spread = float(np.ptp(wanted)) or 1.0
    lacking = float(_lacking(chosen, wanted, actions).max()) / spread
    return _check(len(wanted), int(actions.same(chosen, best).sum()), lacking)


def _compare_numbers(found: np.ndarray, wanted: np.ndarray, actions: ActionSpace) -> GoldenCheck:
    assert isinstance(actions, Box)
    low, high = actions.bounds
    found = found.reshape(wanted.shape)
    apart = np.abs(found - wanted).reshape(len(wanted), -1) / (high - low)
    return _check(len(wanted), int(actions.same(found, wanted).sum()), float(apart.max()))


def _lacking(chosen: np.ndarray, wanted: np.ndarray, actions: ActionSpace) -> np.ndarray:
    """Return what the logits of `chosen` lack to the best ones', float `[n]`."""
    if isinstance(actions, MultiBinary):
        return np.where(chosen == (wanted > 0), 0.0, np.abs(wanted)).max(axis=1)
    parts, columns = [wanted], chosen.reshape(len(chosen), -1)
    if isinstance(actions, MultiDiscrete):
        parts = np.split(wanted, np.cumsum(actions.nvec)[:-1], axis=1)
    rows = np.arange(len(wanted))
    each = [part.max(1) - part[rows, own] for part, own in zip(parts, columns.T, strict=True)]
    return np.max(each, axis=0)


def _greedy(outputs: np.ndarray, actions: ActionSpace) -> np.ndarray:
    return actions.act(outputs, ActingRule("greedy"), np.random.default_rng(0))


def _check(vectors: int, same: int, error: float) -> GoldenCheck:
    # JSON knows no NaN or infinity; a number beyond any tolerance stands for them.
    error = error if np.isfinite(error) else 1e9
    return GoldenCheck(vectors=vectors, same_actions=same, largest_error=error)


def labels_of_outputs(actions: ActionSpace, outputs: Tensor) -> np.ndarray:
    """Return a teacher's labels, float `[n, num_labels]`, of what its network returned first."""
    if isinstance(actions, Box):  # means, and of Gaussian ones the logarithms of deviations
        outputs = actions.labels_of(*outputs.split(actions.num_outputs, 1))
    found: np.ndarray = outputs.numpy()
    return found


def sb3_actions(actions: Box, algo: str, found: np.ndarray) -> np.ndarray:
    """Return the actions, float32 `[n, *shape]`, of what `sb3_logits` gives for continuous ones.

    These are means in the environment's units (PPO, A2C, TRPO), before the tanh (SAC, TQC), or
    after it (TD3, DDPG, ARS).
    """
    if actions.squash == "clip":
        low, high = actions.bounds
        return np.clip(found, low, high).astype(np.float32).reshape(-1, *actions.shape)
    return actions.scaled(found if algo in _AFTER_TANH else np.tanh(found))
