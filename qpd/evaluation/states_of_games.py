"""A uniform sample of the states of each game, as many of a long game as of a short one."""

from __future__ import annotations

import numpy as np

from qpd.evaluation.sampled_states import HELD_OUT_STATES


class StatesOfGames:
    """Keeps states of `num_games` games and a policy's outputs there; `evaluate` hands them over.

    Of all games together at most as many as `SampledStates` keeps. A game of Breakout in which the
    ball goes round and round lasts seven times as long as others: of all states of 16 games it
    would be a third.
    """

    def __init__(self, num_games: int) -> None:
        self._most = max(1, HELD_OUT_STATES // num_games)
        # Apart from the games' own stream: sampling changes no game.
        self._rng = np.random.default_rng(0x57A7)
        self._num_seen = np.zeros(num_games, np.int64)
        self._states: np.ndarray | None = None
        self._outputs: np.ndarray | None = None

    def __call__(self, games: np.ndarray, observations: np.ndarray, outputs: np.ndarray, /) -> None:
        """Keep them or not, a state of each of the `games`: reservoir sampling (Vitter 1985, R)."""
        if self._states is None or self._outputs is None:
            size = (len(self._num_seen), self._most)
            self._states = np.empty((*size, *observations.shape[1:]), observations.dtype)
            self._outputs = np.empty((*size, *outputs.shape[1:]), np.float32)
        seen = self._num_seen[games]
        places = np.where(seen < self._most, seen, self._rng.integers(seen + 1))
        kept = places < self._most
        self._states[games[kept], places[kept]] = observations[kept]
        self._outputs[games[kept], places[kept]] = outputs[kept]
        self._num_seen[games] += 1

    @property
    def games(self) -> np.ndarray:
        """The game of each state, int64 `[n]`."""
        return np.nonzero(self._is_kept)[0]

    @property
    def observations(self) -> np.ndarray:
        """The states, `[n, ...]`."""
        assert self._states is not None
        return self._states[self._is_kept]

    @property
    def outputs(self) -> np.ndarray:
        """The policy's outputs there, float32 `[n, num_outputs]`."""
        assert self._outputs is not None
        return self._outputs[self._is_kept]

    def mean(self, values: np.ndarray) -> float:
        """Return the mean over games of each game's mean of `values`, `[n]`."""
        sums = np.bincount(self.games, values, len(self._num_seen))
        counts = np.minimum(self._num_seen, self._most)
        return float((sums[counts > 0] / counts[counts > 0]).mean())

    @property
    def _is_kept(self) -> np.ndarray:
        return np.arange(self._most) < self._num_seen[:, np.newaxis]
