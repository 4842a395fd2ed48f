"""Real observations, those of a policy's own play, for timing and comparing."""

from __future__ import annotations

import numpy as np

from qpd.actions import ActingRule
from qpd.environments.policy import Policy
from qpd.environments.registry import VectorEnvironment


def played_observations(
    policy: Policy,
    env: VectorEnvironment,
    count: int,
    rule: ActingRule,
    seed: int,
    every: int = 1,
) -> np.ndarray:
    """Return `count` observations of `policy`'s play in `env`, `[count, ...]`, in order.

    Of every `every`-th step in which the policy is asked at all: neighbouring observations of
    Atari share three of four frames. Games that end are followed by others.
    """
    rng = np.random.default_rng(seed)
    env.reset(seed)
    seen: list[np.ndarray] = []
    num_seen = asked = 0
    while num_seen < count:
        rows, actions = np.flatnonzero(env.acting), env.spec.actions.empty(env.num_envs)
        if len(rows):
            observations = env.observations[rows]
            actions[rows] = policy.actions.act(policy(observations), rule, rng)
            if asked % every == 0:
                seen.append(observations)
                num_seen += len(observations)
            asked += 1
        env.step(actions)
    return np.concatenate(seen)[:count]
