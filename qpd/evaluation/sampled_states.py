"""A uniform sample of the states that a policy meets while it plays."""

from __future__ import annotations

import numpy as np

from qpd.actions import ActionSpace
from qpd.environments.policy import Policy

HELD_OUT_STATES = 4096  # of one sample; 116 MB of Atari's frames
_STATES_A_STEP = 4  # while all games run: parallel games in the same step are alike


class SampledStates:
    """A policy, with a uniform sample of the states it was asked about and its outputs there."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Apart from the games' own stream: sampling changes no game.
        self._rng = np.random.default_rng(0x57A7)
        self._states: list[np.ndarray] = []
        self._outputs: list[np.ndarray] = []
        self._num_seen = 0
        self._share: float | None = None  # of the states that are looked at

    @property
    def actions(self) -> ActionSpace:
        """The policy's actions."""
        return self._policy.actions

    def __call__(self, observations: np.ndarray, /) -> np.ndarray:
        """Return what the policy does, and keep some of the states."""
        outputs = self._policy(observations)
        if self._share is None:
            self._share = min(1.0, _STATES_A_STEP / len(observations))
        # A share, not a number: else the games that go on when most have ended would be most of it.
        count = int(self._rng.binomial(len(observations), self._share))
        if not self._num_seen:
            count = max(count, 1)
        for row in self._rng.choice(len(observations), count, replace=False):
            self._keep(observations[row], outputs[row])
        return outputs

    def _keep(self, observation: np.ndarray, outputs: np.ndarray) -> None:
        """Keep it, or not: reservoir sampling (Vitter 1985, algorithm R)."""
        self._num_seen += 1
        if len(self._states) < HELD_OUT_STATES:
            self._states.append(observation.copy())
            self._outputs.append(np.array(outputs, np.float32))
            return
        place = int(self._rng.integers(self._num_seen))
        if place < HELD_OUT_STATES:
            self._states[place] = observation.copy()
            self._outputs[place] = np.array(outputs, np.float32)

    @property
    def observations(self) -> np.ndarray:
        """The states, `[n, ...]`."""
        return np.stack(self._states)

    @property
    def outputs(self) -> np.ndarray:
        """The policy's outputs there, float32 `[n, num_outputs]`."""
        return np.stack(self._outputs)
