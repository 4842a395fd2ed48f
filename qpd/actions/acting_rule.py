"""The rule by which a policy's outputs become actions: sampled, epsilon-greedy or greedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

ActingKind = Literal["sample", "epsilon", "greedy"]
ACTING_KINDS: tuple[ActingKind, ...] = get_args(ActingKind)


@dataclass(frozen=True)
class ActingRule:
    """Say how to act; what it means for one kind of action says `ActionSpace.act`.

    `sample` draws from the policy's distribution, of `sharpness` times its logits; `epsilon` takes
    the likeliest action, but a uniform one with probability `epsilon`, one coin for each
    environment; `greedy` takes the likeliest.
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
