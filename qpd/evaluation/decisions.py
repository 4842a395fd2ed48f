"""Compare what several policies would do on the same observations, as numbers that can be drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qpd.actions import ActingRule, ActionSpace, Box, Discrete, MultiBinary, MultiDiscrete
from qpd.environments.policy import Policy


@dataclass(frozen=True)
class Player:
    """A policy with its acting rule and a label."""

    label: str
    policy: Policy
    rule: ActingRule


def decisions_of(actions: ActionSpace, outputs: np.ndarray, rule: ActingRule) -> np.ndarray:
    """Return what a policy would do by `outputs` `[batch, ...]`: float64 `[batch, numbers]`.

    Of continuous actions these are the actions, noise left aside; of choices each one's
    probability under `rule` (within its part), of switches the probability of `on`.
    """
    if isinstance(actions, Discrete | MultiDiscrete | MultiBinary):
        return actions.probabilities(outputs, rule)
    greedy = actions.act(outputs, ActingRule("greedy"), np.random.default_rng(0))
    return greedy.reshape(len(outputs), -1).astype(np.float64)


def decide(
    players: list[Player], observation: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first player's action `[1, ...]`, and all decisions `[players, numbers]`.

    The first one's continuous action is the one that it takes, noise included.
    """
    outputs = [player.policy(observation) for player in players]
    first = players[0]
    action = first.policy.actions.act(outputs[0], first.rule, rng)
    told = [
        decisions_of(player.policy.actions, own, player.rule)[0]
        for player, own in zip(players, outputs, strict=True)
    ]
    if isinstance(first.policy.actions, Box):
        told[0] = action.reshape(-1).astype(np.float64)
    return action, np.stack(told)


def undecided(players: list[Player]) -> np.ndarray:
    """Return NaN `[players, numbers]`: nobody was asked."""
    return np.full((len(players), players[0].policy.actions.num_outputs), np.nan)
