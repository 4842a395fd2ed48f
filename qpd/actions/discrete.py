"""One choice among several: softmax policies, and Q-values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from qpd.actions.acting_rule import ActingRule
from qpd.actions.categorical import (
    kl_student_teacher,
    kl_student_teacher_gradient,
    kl_teacher_student,
    kl_teacher_student_gradient,
)
from qpd.actions.space import ActionSpace


@dataclass(frozen=True)
class Discrete(ActionSpace):
    """`n` actions, 0 to n - 1; outputs are a policy's logits, or the Q-values of actions."""

    n: int
    labels: Literal["logits", "q_values"] = "logits"

    kind: ClassVar[str] = "discrete"

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"{self.n} actions: at least 1 is needed")

    @property
    def has_values(self) -> bool:  # type: ignore[override]
        """Tell whether outputs are Q-values."""
        return self.labels == "q_values"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action: a plain number."""
        return ()

    @property
    def dtype(self) -> np.dtype:
        """Type of an action."""
        return np.dtype(np.int64)

    @property
    def num_outputs(self) -> int:
        """One for each action."""
        return self.n

    @property
    def temperature(self) -> float | None:
        """3, the QPD paper's; Q-values have none of their own."""
        return None if self.has_values else 3.0

    def __str__(self) -> str:
        return f"{self.n} actions"

    def act(self, outputs: np.ndarray, rule: ActingRule, rng: np.random.Generator) -> np.ndarray:
        """Choose actions, int64 `[batch]`, by logits or Q-values, floats `[batch, n]`.

        `sample` uses the Gumbel-max trick.
        """
        if rule.kind == "sample":
            # argmax(logits + Gumbel noise) is a draw from softmax(logits): no exp, no
            # normalisation, one call for the whole batch.
            noise = rng.gumbel(size=outputs.shape)
            return np.argmax(rule.sharpness * outputs.astype(np.float64) + noise, axis=1)
        best = np.argmax(outputs, axis=1)
        if rule.kind == "epsilon":
            # One coin per environment: SB3's DQN.predict draws a single one for the whole batch,
            # which makes parallel games explore in lockstep.
            explore = rng.random(len(outputs)) < rule.epsilon
            uniform = rng.integers(self.n, size=len(outputs))
            best = np.where(explore, uniform, best)
        return best

    def probabilities(self, outputs: np.ndarray, rule: ActingRule) -> np.ndarray:
        """Return the probability that `act` takes each action, float64 `[batch, n]`."""
        if rule.kind == "sample":
            # In float64 and shifted by the maximum: exp cannot overflow, whatever the sharpness.
            scaled = rule.sharpness * outputs.astype(np.float64)
            weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
            return weights / weights.sum(axis=1, keepdims=True)
        best = np.eye(self.n)[np.argmax(outputs, axis=1)]
        if rule.kind == "epsilon":
            return (1.0 - rule.epsilon) * best + rule.epsilon / self.n
        return best

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, rule: ActingRule) -> np.ndarray:
        """Return log-probabilities float32 `[batch]` of `actions`; NaN unless they were sampled."""
        if rule.kind != "sample":
            return np.full(len(actions), np.nan, np.float32)
        scaled = rule.sharpness * outputs.astype(np.float64)
        scaled -= scaled.max(axis=1, keepdims=True)
        chosen = scaled[np.arange(len(actions)), actions]
        return (chosen - np.log(np.exp(scaled).sum(axis=1))).astype(np.float32)

    def label_entropy(self, labels: Tensor, temperature: float) -> tuple[float, float]:
        """Average the labels' entropy in nats, and their best action's share, over `[states, n]`.

        Of `softmax(labels / temperature)`, the left side of Eq. 1.
        """
        log_likely = torch.log_softmax(labels / temperature, 1)
        likely = log_likely.exp()
        return float(-(likely * log_likely).sum(1).mean()), float(likely.amax(1).mean())

    def temperature_for(self, labels: Tensor, entropy: float) -> float:
        """Return tau at which the labels `[states, n]` have this share of the greatest entropy.

        The greatest is ln n, that of a policy that chooses at random. Unlike a fixed tau it does
        not depend on the scale of Q-values, which is that of rewards and discount.
        """
        if self.n == 1:
            return 1.0
        # The mean entropy grows with tau: bisect its logarithm, to about a millionth.
        low, high = -8.0, 8.0
        for _ in range(44):
            middle = 0.5 * (low + high)
            found = self.label_entropy(labels, 10.0**middle)[0] / math.log(self.n)
            low, high = (middle, high) if found < entropy else (low, middle)
        return float(10.0**high)

    def describe_labels(self, labels: Tensor, temperature: float) -> str:
        """Say how sure of its best action the teacher is at this temperature."""
        entropy, best = self.label_entropy(labels, temperature)
        return (
            f"labels at temperature {temperature:.3g}: the best action has {best:.0%} on average, "
            f"{entropy:.2f} nats of entropy"
        )

    def output_scale(self, labels: Tensor, temperature: float) -> float:
        """Return the scale of logits that Eq. 1 asks for: the labels' own over the temperature.

        That of Q-values is the median over states of their deviation within a state: in a few
        states, such as lost ones, they may differ a hundred times as much.
        """
        if not self.has_values:
            return self.logit_scale(labels, temperature)
        spread = self.centred(labels).square().mean(1).sqrt().median()
        return max(float(spread) / temperature, 1.0)

    def centred(self, outputs: Tensor) -> Tensor:
        """Return logits less their mean: a constant added to all of a state changes no policy."""
        return outputs - outputs.mean(1, keepdim=True)

    def _size(self) -> tuple[object, ...]:
        return (self.n,)

    def outside(self, actions: np.ndarray) -> np.ndarray:
        """Tell which of `actions`, int `[batch]`, are not in 0 to n - 1."""
        return (actions < 0) | (actions >= self.n)

    def divergence(
        self,
        labels: Tensor,
        outputs: Tensor,
        temperature: float,
        student_temperature: float = 1.0,
        *,
        reverse: bool = False,
    ) -> Tensor:
        """Compute Eq. 1 of the QPD paper; see `qpd.actions.categorical`."""
        self.check_labels(labels, outputs)
        kl = kl_student_teacher if reverse else kl_teacher_student
        return kl(labels, outputs, temperature, student_temperature)

    def divergence_gradient(
        self,
        labels: Tensor,
        outputs: Tensor,
        temperature: float,
        student_temperature: float = 1.0,
        *,
        reverse: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute `divergence` and its derivative by the outputs, graph-free."""
        self.check_labels(labels, outputs)
        kl = kl_student_teacher_gradient if reverse else kl_teacher_student_gradient
        return kl(labels, outputs, temperature, student_temperature)
