"""How a policy turns logits into actions: sampled, epsilon-greedy or greedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

ActingKind = Literal["sample", "epsilon", "greedy"]


@dataclass(frozen=True)
class ActingRule:
    """How to turn logits into actions.

    `sample` draws from softmax(sharpness * logits); `epsilon` takes the argmax, but a uniform
    action with probability `epsilon`, one coin for each environment; `greedy` takes the argmax.
    """

    kind: ActingKind
    epsilon: float = 0.01
    sharpness: float = 1.0

    def __str__(self) -> str:
        if self.kind == "epsilon":
            return f"epsilon-greedy ({self.epsilon:g})"
        if self.kind == "sample" and self.sharpness != 1.0:
            return f"sampled from softmax({self.sharpness:g} * logits)"
        return {"sample": "sampled", "greedy": "greedy"}[self.kind]

    def act(self, logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Choose actions, int64 `[batch]`, for logits, floats, `[batch, num_actions]`.

        `sample` uses the Gumbel-max trick.
        """
        if self.kind == "sample":
            # argmax(logits + Gumbel noise) is a draw from softmax(logits): no exp, no
            # normalisation, one call for the whole batch.
            noise = rng.gumbel(size=logits.shape)
            return np.argmax(self.sharpness * logits.astype(np.float64) + noise, axis=1)
        best = np.argmax(logits, axis=1)
        if self.kind == "epsilon":
            # One coin per environment: SB3's DQN.predict draws a single one for the whole batch,
            # which makes parallel games explore in lockstep.
            explore = rng.random(len(logits)) < self.epsilon
            uniform = rng.integers(logits.shape[1], size=len(logits))
            best = np.where(explore, uniform, best)
        return best

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the probability that `act` takes each action, float64 `[batch, num_actions]`."""
        if self.kind == "sample":
            # In float64 and shifted by the maximum: exp cannot overflow, whatever the sharpness.
            scaled = self.sharpness * logits.astype(np.float64)
            weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
            return weights / weights.sum(axis=1, keepdims=True)
        best = np.eye(logits.shape[1])[np.argmax(logits, axis=1)]
        if self.kind == "epsilon":
            return (1.0 - self.epsilon) * best + self.epsilon / logits.shape[1]
        return best

    def log_probs(self, logits: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log-probabilities float32 `[batch]` of `actions`; NaN unless they were sampled."""
        if self.kind != "sample":
            return np.full(len(actions), np.nan, np.float32)
        scaled = self.sharpness * logits.astype(np.float64)
        scaled -= scaled.max(axis=1, keepdims=True)
        chosen = scaled[np.arange(len(actions)), actions]
        return (chosen - np.log(np.exp(scaled).sum(axis=1))).astype(np.float32)


def resolve_acting(
    kind: str, *, is_actor_critic: bool, is_atari: bool, epsilon: float, sharpness: float = 1.0
) -> ActingRule:
    """Resolve `auto` to the rule by which SB3 and the RL Zoo let agents act.

    Atari: sampled for actor-critic agents, epsilon-greedy for Q-values. Elsewhere the zoo acts
    deterministically: greedy.
    """
    if kind == "auto":
        on_atari = "sample" if is_actor_critic else "epsilon"
        kind = on_atari if is_atari else "greedy"
    if kind not in ("sample", "epsilon", "greedy"):
        raise ValueError(f"acting {kind!r}: one of auto, sample, epsilon, greedy")
    return ActingRule(kind, epsilon, sharpness)  # type: ignore[arg-type]
