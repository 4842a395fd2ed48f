"""What is seen of an environment while random actions are played, to compare two of them."""

from __future__ import annotations

import numpy as np

from qpd.environments.registry import VectorEnvironment

Record = list[tuple[np.ndarray, ...]]


def play_recording(env: VectorEnvironment, num_steps: int, seed: int) -> Record:
    """All that is seen in ``num_steps`` vector steps of random actions."""
    rng = np.random.default_rng(seed)
    record: Record = []
    for _ in range(num_steps):
        result = env.step(rng.integers(0, env.spec.actions.num_outputs, env.num_envs))
        seen = (env.observations.copy(), env.acting.copy(), env.age.copy())
        record.append((*seen, *vars(result).values()))
    return record


def assert_same_record(first: Record, second: Record) -> None:
    assert len(first) == len(second)
    for left, right in zip(first, second, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)
