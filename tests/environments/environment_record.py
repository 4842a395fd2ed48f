"""What is seen of an environment while random actions are played, to compare two of them."""

from __future__ import annotations

import numpy as np

from qpd.actions import ActingRule, Discrete
from qpd.environments.registry import VectorEnvironment

Record = list[tuple[np.ndarray, ...]]


def random_actions(env: VectorEnvironment, rng: np.random.Generator) -> np.ndarray:
    """Actions `[num_envs, ...]`, all equally likely."""
    space = env.spec.actions
    if isinstance(space, Discrete):
        return rng.integers(0, space.n, env.num_envs)
    outputs = space.random_outputs(env.num_envs, rng)
    return space.act(outputs, ActingRule("sample"), rng)


def play_recording(env: VectorEnvironment, num_steps: int, seed: int) -> Record:
    """All that is seen in ``num_steps`` vector steps of random actions."""
    rng = np.random.default_rng(seed)
    record: Record = []
    for _ in range(num_steps):
        result = env.step(random_actions(env, rng))
        seen = (env.observations.copy(), env.acting.copy(), env.age.copy())
        record.append((*seen, *vars(result).values()))
    return record


def assert_same_record(first: Record, second: Record) -> None:
    assert len(first) == len(second)
    for left, right in zip(first, second, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)
